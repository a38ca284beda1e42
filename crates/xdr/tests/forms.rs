//! Tests the XDR form of each basic type, and the refusals.

use cellar_xdr::{
    AfsString, Decode, DecodeError, Decoder, Encode, List, Opaque, TooLong, WordBytes, WordString,
    xdr_enum, xdr_struct,
};

xdr_enum! {
    /// A lock.
    enum Lock {
        Read = 0,
        Write = 1,
    }
}

xdr_struct! {
    /// All kinds of fields.
    struct Mixed {
        byte: u8,
        short: i16,
        flag: bool,
        wide: i64,
        pair: [u32; 2],
        lock: Lock,
        text: AfsString<5>,
    }
}

fn mixed() -> Mixed {
    Mixed {
        byte: 0xff,
        short: -2,
        flag: true,
        wide: -3,
        pair: [4, 5],
        lock: Lock::Write,
        text: AfsString::from_static("six"),
    }
}

const MIXED: &[u8] = b"\0\0\0\xff\xff\xff\xff\xfe\0\0\0\x01\
    \xff\xff\xff\xff\xff\xff\xff\xfd\0\0\0\x04\0\0\0\x05\0\0\0\x01\0\0\0\x03six\0";

#[test]
fn fields_follow_one_another_in_words() {
    assert_eq!(mixed().to_xdr(), MIXED);
    assert_eq!(Mixed::from_xdr(MIXED), Ok(mixed()));
    assert_eq!(Mixed::MIN_SIZE, MIXED.len() - 4);
    for end in 0..MIXED.len() {
        assert_eq!(
            Mixed::from_xdr(&MIXED[..end]),
            Err(DecodeError::Truncated),
            "{end}"
        );
    }
}

#[test]
fn narrow_values_take_the_low_bits() {
    assert_eq!(u8::from_xdr(b"\xff\xff\xff\x80"), Ok(0x80));
    assert_eq!(u16::from_xdr(b"\xff\xff\x80\x01"), Ok(0x8001));
    assert_eq!(i16::from_xdr(b"\0\0\xff\xff"), Ok(-1));
    assert_eq!(bool::from_xdr(b"\0\0\x02\0"), Ok(true));
}

#[test]
fn padding_is_written_as_zeros_and_not_looked_at() {
    for len in 0..9 {
        let text = AfsString::<8>::try_from(&b"abcdefgh"[..len.min(8)]).unwrap();
        let mut bytes = text.to_xdr().to_vec();
        assert_eq!(bytes.len(), 4 + len.min(8).next_multiple_of(4));
        let used = 4 + text.len();
        assert!(bytes[used..].iter().all(|&byte| byte == 0));
        bytes[used..].fill(0xee);
        assert_eq!(AfsString::from_xdr(&bytes), Ok(text));
    }
}

#[test]
fn a_bound_is_judged_before_anything_is_read() {
    let too_long = DecodeError::TooLong { limit: 4, len: 5 };
    assert_eq!(AfsString::<4>::from_xdr(b"\0\0\0\x05"), Err(too_long));
    assert_eq!(Opaque::<4>::from_xdr(b"\0\0\0\x05"), Err(too_long));
    assert_eq!(List::<u32, 4>::from_xdr(b"\0\0\0\x05"), Err(too_long));
    let len = u32::MAX as usize;
    let absurd = DecodeError::TooLong { limit: 4, len };
    assert_eq!(AfsString::<4>::from_xdr(b"\xff\xff\xff\xff"), Err(absurd));
    // Within the bound, but more than the bytes can hold.
    let huge = List::<u64, 1_000_000_000>::from_xdr(b"\x0f\xff\xff\xff\0\0\0\0");
    assert_eq!(huge, Err(DecodeError::Truncated));
    let huge = List::<u64, { usize::MAX }>::from_xdr(b"\xff\xff\xff\xff\0\0\0\0");
    assert_eq!(huge, Err(DecodeError::Truncated));
    let mut decoder = Decoder::new(b"\0\0\0\x02\0\0\0\x01");
    assert_eq!(
        decoder.count(usize::MAX, usize::MAX),
        Err(DecodeError::Truncated)
    );
}

#[test]
fn values_that_the_wire_cannot_carry_cannot_be_built() {
    assert_eq!(
        AfsString::<2>::try_from("abc"),
        Err(TooLong { limit: 2, len: 3 })
    );
    assert_eq!(
        Opaque::<2>::new(vec![0; 3]),
        Err(TooLong { limit: 2, len: 3 })
    );
    assert_eq!(
        List::<u8, 2>::try_from(vec![0; 3]),
        Err(TooLong { limit: 2, len: 3 })
    );
    assert_eq!(
        WordString::<4>::try_from("abcd"),
        Err(TooLong { limit: 3, len: 4 })
    );
    let mut list = List::<u8, 1>::new();
    assert_eq!(list.push(1), Ok(()));
    assert_eq!(list.push(2), Err(TooLong { limit: 1, len: 2 }));
    assert_eq!(List::<u8, 2>::from_iter_cut(0..9).len(), 2);
}

#[test]
fn character_arrays_end_at_their_nul() {
    let name = WordString::<4>::try_from("ab").unwrap();
    let bytes = name.to_xdr();
    assert_eq!(bytes, b"\0\0\0a\0\0\0b\0\0\0\0\0\0\0\0"[..]);
    assert_eq!(
        WordString::from_xdr(b"\0\0\0a\xff\xff\xffb\0\0\0\0\0\0\0z"),
        Ok(name.clone())
    );
    assert_eq!(WordString::<4>::new(b"ab\0c"), Ok(name));
    let endless = WordString::<2>::from_xdr(b"\0\0\0a\0\0\0b");
    assert!(matches!(endless, Err(DecodeError::Invalid(_))));
    assert_eq!(WordBytes([0x80]).to_xdr(), b"\xff\xff\xff\x80"[..]);
    assert_eq!(WordBytes(*b"ab").to_xdr(), b"\0\0\0a\0\0\0b"[..]);
    assert_eq!(
        WordBytes::from_xdr(b"\0\0\0a\0\0\0b"),
        Ok(WordBytes(*b"ab"))
    );
}

#[test]
fn an_enumeration_refuses_what_it_does_not_list() {
    assert_eq!(Lock::from_xdr(b"\0\0\0\x01"), Ok(Lock::Write));
    assert!(matches!(
        Lock::from_xdr(b"\0\0\0\x02"),
        Err(DecodeError::Invalid(_))
    ));
    assert_eq!(Lock::from_word(7), None);
}

#[test]
fn text_is_shown_escaped_where_it_must_be() {
    let shown = |bytes: &[u8]| AfsString::<20>::try_from(bytes).unwrap().to_string();
    assert_eq!(shown("grün".as_bytes()), "grün");
    assert_eq!(shown(b"a\nb"), "a\\nb");
    assert_eq!(shown(b"\xff"), "\\xff");
    assert_eq!(
        format!("{:?}", Opaque::<2>::try_from(&b"a\0"[..]).unwrap()),
        "\"a\\x00\""
    );
}
