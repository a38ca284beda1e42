//! Tests of capabilities: each field is protected.

use std::os::unix::fs::PermissionsExt;

use cellar_wire::List;
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};

use super::*;
use crate::{Enctype, SecretKey};

const NOW: u64 = 1_700_000_000;
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

/// A server's directory with these Kerberos keys.
fn server(cell: &str, keys: &[(u32, u8)]) -> (tempfile::TempDir, CapabilityKeys) {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::open(directory.path(), cell).unwrap();
    for &(kvno, byte) in keys {
        let key = SecretKey::new(Enctype::Aes256Sha1, &[byte; 32]).unwrap();
        authority.keys().add(kvno, &key).unwrap();
    }
    let keys = CapabilityKeys::open(directory.path(), &authority).unwrap();
    (directory, keys)
}

fn object(serial: u32) -> ObjectId {
    ObjectId {
        volume: VolumeId(5),
        vnode: VnodeId(6),
        uniquifier: Uniquifier(7),
        serial,
    }
}

fn body(rights: u32) -> CapabilityBody {
    CapabilityBody {
        cell: AfsString::default(),
        osd: 3,
        object: object(1),
        rights,
        base: 10,
        version: 11,
        begin: 4096,
        end: 8192,
        expires: NOW + 60,
        clients: List::from_iter_cut([address_words(CLIENT)]),
        user: 42,
    }
}

fn asked(act: Act) -> CapabilityRequest {
    CapabilityRequest {
        osd: 3,
        object: object(1),
        act,
        client: CLIENT,
        now: NOW,
    }
}

fn read(version: u64, begin: u64, end: u64) -> Act {
    Act::Read {
        version,
        begin,
        end,
    }
}

fn write(base: u64, version: u64, begin: u64, end: u64) -> Act {
    Act::Write {
        base,
        version,
        begin,
        end,
    }
}

#[test]
fn a_capability_opens_with_its_key_in_its_cell_only() {
    let (_a, keys) = server("example.org", &[(3, 1), (4, 2)]);
    let (_b, same) = server("example.org", &[(4, 2)]);
    let (_c, other_cell) = server("example.com", &[(4, 2)]);
    let (_d, other_key) = server("example.org", &[(4, 9)]);
    let (_e, no_key) = server("example.org", &[(3, 1)]);
    let sealed = keys.seal(&body(MAY_READ)).unwrap();
    let opened = same.unseal(&sealed, 3).unwrap();
    let cell = AfsString::new("example.org").unwrap();
    assert_eq!(
        opened,
        CapabilityBody {
            cell,
            ..body(MAY_READ)
        }
    );
    assert_eq!(other_cell.unseal(&sealed, 3), Err(Refused::Tampered));
    assert_eq!(other_key.unseal(&sealed, 3), Err(Refused::Tampered));
    assert_eq!(no_key.unseal(&sealed, 3), Err(Refused::UnknownKey));
    assert_eq!(same.unseal(&sealed, 4), Err(Refused::OtherOsd));
    assert_eq!(device_of(&sealed), Some(3));
    assert_ne!(
        keys.seal(&body(MAY_READ)).unwrap(),
        sealed,
        "a nonce used twice"
    );
}

#[test]
fn every_changed_bit_and_every_cut_is_noticed() {
    let (_directory, keys) = server("example.org", &[(1, 1)]);
    let sealed = keys.seal(&body(MAY_READ | MAY_WRITE)).unwrap();
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        let changed = Capability::new(changed).unwrap();
        assert!(keys.unseal(&changed, 3).is_err(), "bit {bit}");
    }
    for length in 0..sealed.len() {
        let cut = Capability::new(sealed[..length].to_vec()).unwrap();
        assert!(keys.unseal(&cut, 3).is_err(), "{length} bytes");
    }
}

#[test]
fn a_cell_without_kerberos_shares_a_file() {
    let (directory, keys) = server("example.org", &[]);
    assert!(matches!(keys.seal(&body(MAY_READ)), Err(Error::NoKey)));
    assert!(make_key_file(directory.path()).unwrap());
    assert!(!make_key_file(directory.path()).unwrap());
    let path = directory.path().join(KEY_FILE);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let sealed = keys.seal(&body(MAY_READ)).unwrap();
    let (other, without) = server("example.org", &[]);
    assert_eq!(without.unseal(&sealed, 3), Err(Refused::UnknownKey));
    std::fs::copy(&path, other.path().join(KEY_FILE)).unwrap();
    assert!(without.unseal(&sealed, 3).is_ok());
    // A cell that gets Kerberos seals with its new key, and accepts capabilities sealed before.
    let key = SecretKey::new(Enctype::Aes256Sha1, &[8; 32]).unwrap();
    keys.authority.keys().add(1, &key).unwrap();
    assert!(keys.unseal(&sealed, 3).is_ok());
    let newer = keys.seal(&body(MAY_READ)).unwrap();
    assert_eq!(without.unseal(&newer, 3), Err(Refused::UnknownKey));
}

#[test]
fn the_largest_capability_has_room() {
    let cell = "c".repeat(255);
    let (_directory, keys) = server(&cell, &[(1, 1)]);
    let largest = CapabilityBody {
        clients: List::from_iter_cut([address_words(CLIENT); 16]),
        ..body(MAY_ALL)
    };
    let sealed = keys.seal(&largest).unwrap();
    assert_eq!(keys.unseal(&sealed, 3).unwrap().clients, largest.clients);
}

#[test]
fn it_allows_what_it_says_and_refusals_are_counted() {
    let (_directory, keys) = server("example.org", &[(1, 1)]);
    let reader = keys.seal(&body(MAY_READ)).unwrap();
    let writer = keys.seal(&body(MAY_WRITE)).unwrap();
    let both = keys.seal(&body(MAY_READ | MAY_WRITE)).unwrap();
    let server = keys.seal(&body(MAY_ALL)).unwrap();
    let whole = read(10, 4096, 8192);
    let store = write(10, 11, 4096, 8192);
    let admit = |capability, act| keys.admit(capability, &asked(act)).map(drop);
    assert_eq!(admit(&reader, whole), Ok(()));
    assert_eq!(admit(&writer, store), Ok(()));
    assert_eq!(admit(&both, read(11, 5000, 5001)), Ok(()));
    assert_eq!(admit(&reader, Act::Examine), Ok(()));
    assert_eq!(admit(&server, Act::All), Ok(()));
    assert_eq!(admit(&server, write(1, 99, 0, 1 << 40)), Ok(()));
    assert!(keys.refused().all(|(_, _, count)| count == 0));
    for (capability, act, why) in [
        (&writer, whole, Refused::OtherRights),
        (&reader, store, Refused::OtherRights),
        (&both, Act::All, Refused::OtherRights),
        (&reader, read(11, 4096, 8192), Refused::OtherVersion),
        (&writer, write(9, 11, 4096, 8192), Refused::OtherVersion),
        (&writer, write(10, 12, 4096, 8192), Refused::OtherVersion),
        (&reader, read(10, 4095, 8192), Refused::OtherRange),
        (&writer, write(10, 11, 4096, 8193), Refused::OtherRange),
    ] {
        assert_eq!(admit(capability, act), Err(why), "{act:?}");
    }
    let other_object = CapabilityRequest {
        object: object(2),
        ..asked(whole)
    };
    let other_client = CapabilityRequest {
        client: IpAddr::from([192, 0, 2, 8]),
        ..asked(whole)
    };
    let at = |now| CapabilityRequest {
        now,
        ..asked(whole)
    };
    assert!(keys.admit(&reader, &at(NOW + 60 + SKEW)).is_ok());
    for (asked, why) in [
        (other_object, Refused::OtherObject),
        (other_client, Refused::OtherClient),
        (at(NOW + 61 + SKEW), Refused::Expired),
    ] {
        assert_eq!(keys.admit(&reader, &asked).map(drop), Err(why));
    }
    let elsewhere = CapabilityRequest {
        osd: 4,
        ..asked(whole)
    };
    assert_eq!(
        keys.admit(&reader, &elsewhere).map(drop),
        Err(Refused::OtherOsd)
    );
    let counts: Vec<_> = keys.refused().map(|(_, _, count)| count).collect();
    assert_eq!(counts, [0, 0, 1, 1, 3, 3, 2, 1, 1]);
}
