//! Known answers: RFC 3961 (n-fold), RFC 8009 appendix A, and data sealed by MIT's library.

use hex_literal::hex;

use super::*;

fn opens(enctype: Enctype, key: &[u8], usage: u32, sealed: &[u8], plain: &[u8]) {
    let key = SecretKey::new(enctype, key).unwrap();
    let opened = decrypt(&key, usage, sealed).expect("sealed with that key");
    assert_eq!(&opened[..], plain);
    assert!(decrypt(&key, usage + 1, sealed).is_none(), "another usage");
    let mut changed = sealed.to_vec();
    for at in 0..changed.len() {
        changed[at] ^= 1;
        assert!(
            decrypt(&key, usage, &changed).is_none(),
            "byte {at} changed"
        );
        changed[at] ^= 1;
    }
    for length in 0..sealed.len() {
        assert!(decrypt(&key, usage, &sealed[..length]).is_none());
    }
}

#[test]
fn aes_sha1_opens_what_mit_sealed() {
    opens(
        Enctype::Aes128Sha1,
        &hex!("9062430C8CDA3388922E6D6A509F5B7A"),
        2,
        &hex!(
            "68FB9679601F45C78857B2BF820FD6E53ECA8D42FD4B1D7024A09205ABB7CD2E
             C26C355D2F"
        ),
        b"9 bytesss",
    );
    opens(
        Enctype::Aes128Sha1,
        &hex!("5A5C0F0BA54F3828B2195E66CA24A289"),
        0,
        &hex!("49FF8E11C173D9583A3254FBE7B1F1DF36C538E8416784A1672E6676"),
        b"",
    );
    opens(
        Enctype::Aes256Sha1,
        &hex!("B1AE4CD8462AFF1677053CC9279AAC30B796FB81CE21474DD3DDBCFEA4EC76D7"),
        2,
        &hex!(
            "09957AA25FCAF88F7B39E4406E633012D5FEA21853F6478DA7065CAEF41FD454
             A40824EEC5"
        ),
        b"9 bytesss",
    );
    opens(
        Enctype::Aes256Sha1,
        &hex!("F1C795E9248A09338D82C3F8D5B567040B0110736845041347235B1404231398"),
        4,
        &hex!(
            "D1137A4D634CFECE924DBC3BF6790648BD5CFF7DE0E7B99460211D0DAEF3D79A
             295C688858F3B34B9CBD6EEBAE81DAF6B734D4D498B6714F1C1D"
        ),
        b"30 bytes bytes bytes bytes byt",
    );
}

#[test]
fn rc4_opens_what_mit_sealed() {
    opens(
        Enctype::Arcfour,
        &hex!("3E40AB6093695281B3AC1A9304224D98"),
        2,
        &hex!(
            "0F9AD121D99D4A09448E4F1F718C4F5CBE6096262C66F29DF232A87C9F98755D
             55"
        ),
        b"9 bytesss",
    );
}

#[test]
fn aes_sha2_opens_what_rfc_8009_shows() {
    let short = hex!("3705D96080C17728A0E800EAB6E0D23C");
    opens(
        Enctype::Aes128Sha256,
        &short,
        2,
        &hex!("EF85FB890BB8472F4DAB20394DCA781DAD877EDA39D50C870C0D5A0A8E48C718"),
        b"",
    );
    opens(
        Enctype::Aes128Sha256,
        &short,
        2,
        &hex!("84D7F30754ED987BAB0BF3506BEB09CFB55402CEF7E6877CE99E247E52D16ED4421DFDF8976C"),
        &hex!("000102030405"),
    );
    let long = hex!("6D404D37FAF79F9DF0D33568D320669800EB4836472EA8A026D16B7182460C52");
    opens(
        Enctype::Aes256Sha384,
        &long,
        2,
        &hex!(
            "41F53FA5BFE7026D91FAF9BE959195A058707273A96A40F0A01960621AC61274
             8B9BBFBE7EB4CE3C"
        ),
        b"",
    );
}

#[test]
fn our_own_tickets_open_again() {
    for enctype in Enctype::ALL {
        let key = SecretKey::new(enctype, &vec![7; enctype.key_length()]).unwrap();
        for length in 0..70 {
            let plain = vec![0x5a; length];
            let sealed = encrypt(&key, USAGE_TICKET, &plain).unwrap();
            assert_eq!(decrypt(&key, USAGE_TICKET, &sealed).unwrap()[..], plain[..]);
        }
    }
}

#[test]
fn sealing_with_the_same_random_block_gives_the_known_answer() {
    let key = SecretKey::new(
        Enctype::Aes128Sha256,
        &hex!("3705D96080C17728A0E800EAB6E0D23C"),
    )
    .unwrap();
    let sealed = encrypt_with(&key, 2, &hex!("7E5895EAF2672435BAD817F545A37148"), b"").unwrap();
    assert_eq!(
        sealed,
        hex!("EF85FB890BB8472F4DAB20394DCA781DAD877EDA39D50C870C0D5A0A8E48C718")
    );
}

#[test]
fn folding_has_its_known_answer() {
    assert_eq!(
        *n_fold(b"kerberos"),
        hex!("6b65726265726f737b9b5b2b93132b93")
    );
}
