//! The rules that hold for every archive. Each kind of archive runs them.

use cellar_archive::{Archive, Blame, Error, Location, Settings};

use crate::bytes_of::{
    CELL, Counted, Held, Kept, OTHER_CELL, Zeros, expected, key, random, receipt,
};

/// Lengths around the borders of pieces (1 MiB) and parts (8 MiB).
const LENGTHS: [usize; 7] = [
    0,
    1,
    1 << 20,
    (1 << 20) + 1,
    8 << 20,
    (8 << 20) + 1,
    20_000_001,
];

/// All rules, on an empty location.
pub(crate) async fn holds(location: &Location, settings: Settings) {
    let archive = created(location, settings).await;
    copies_come_back(&archive).await;
    copies_are_never_rewritten(&archive).await;
    sources_are_checked(&archive).await;
    sinks_are_finished_only_after_a_match(&archive).await;
    removals_can_be_repeated(&archive).await;
    the_identity_is_checked(location, settings, &archive).await;
}

async fn created(location: &Location, settings: Settings) -> Archive {
    let nothing = Archive::identify(location, settings).await.unwrap();
    assert_eq!(nothing, None);
    let identity = Archive::create(location, settings, CELL, "example.org", 1_700_000_000).await;
    let identity = identity.unwrap();
    assert_eq!(
        Archive::identify(location, settings).await.unwrap(),
        Some(identity.clone())
    );
    let again = Archive::create(location, settings, OTHER_CELL, "example.com", 0).await;
    let said = again.unwrap_err().to_string();
    assert!(said.contains("example.org"), "{said}");
    let open = Archive::open(location, settings, &expected(identity.archive, 0, 0)).await;
    let archive = open.unwrap();
    assert_eq!(archive.session(), 0, "an open writes nothing");
    archive
}

async fn copies_come_back(archive: &Archive) {
    for (n, length) in LENGTHS.into_iter().enumerate() {
        let key = key(2 * n as u32 + 2, 1);
        assert_eq!(archive.length(&key).await.unwrap(), None);
        let bytes = random(length, n as u64);
        let put = archive
            .put(&key, length as u64, &mut Held(bytes.clone()))
            .await;
        let put = put.unwrap();
        assert_eq!(put, receipt(&bytes));
        assert_eq!(archive.length(&key).await.unwrap(), Some(length as u64));
        let mut sink = Kept::default();
        archive.get(&key, &put, &mut sink).await.unwrap();
        assert!(sink.is_finished && sink.bytes == bytes, "{length}");
        archive.verify(&key, &put).await.unwrap();
    }
    assert_eq!(archive.session(), 1);
}

async fn copies_are_never_rewritten(archive: &Archive) {
    let key = key(1000, 1);
    for length in [100, 9 << 20] {
        let bytes = random(length, 3);
        let key = cellar_archive::ObjectKey {
            version: length as u64,
            ..key
        };
        let put = async |bytes: bytes::Bytes| {
            archive
                .put(&key, bytes.len() as u64, &mut Held(bytes))
                .await
        };
        let first = put(bytes.clone()).await.unwrap();
        let same = put(bytes.clone()).await.unwrap();
        assert_eq!(first, same, "a repeated put succeeds");
        let shorter = put(bytes.slice(1..)).await.unwrap_err();
        assert!(
            matches!(shorter, Error::Exists(at) if at == key),
            "{shorter}"
        );
        let other = put(random(length, 4)).await.unwrap_err();
        assert!(matches!(other, Error::Exists(at) if at == key), "{other}");
        archive.verify(&key, &first).await.unwrap();
        // Two writers at the same moment: one of them wins, and the other learns it.
        let race = cellar_archive::ObjectKey {
            version: key.version + 1,
            ..key
        };
        let (mut one, mut two) = (Held(bytes.clone()), Held(random(length, 5)));
        let (one, two) = tokio::join!(
            archive.put(&race, length as u64, &mut one),
            archive.put(&race, length as u64, &mut two)
        );
        let (won, lost) = match (one, two) {
            (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
            other => panic!("not exactly one winner: {other:?}"),
        };
        assert!(matches!(lost, Error::Exists(at) if at == race), "{lost}");
        archive.verify(&race, &won).await.unwrap();
    }
}

async fn sources_are_checked(archive: &Archive) {
    let key = key(1002, 1);
    let length = 9 << 20;
    let zeros = |left, then_fails| Zeros { left, then_fails };
    for (mut source, reason) in [
        (zeros(length - 1, false), "instead of"),
        (zeros(length + 1, false), "more than"),
        (zeros(length - 1, true), "the disk of the source failed"),
    ] {
        let put = archive.put(&key, length, &mut source).await.unwrap_err();
        assert_eq!(put.blame(), Blame::Caller);
        assert!(
            matches!(&put, Error::Source(said) if said.contains(reason)),
            "{put}"
        );
        assert_eq!(archive.length(&key).await.unwrap(), None, "{reason}");
    }
}

async fn sinks_are_finished_only_after_a_match(archive: &Archive) {
    let key = key(1004, 1);
    let bytes = random(3 << 20, 9);
    let put = archive
        .put(&key, bytes.len() as u64, &mut Held(bytes.clone()))
        .await;
    let put = put.unwrap();
    let mut wrong = put;
    wrong.blake3[0] ^= 1;
    let mut md5 = put;
    md5.md5[15] ^= 1;
    let longer = cellar_archive::Receipt {
        length: put.length + 1,
        ..put
    };
    for receipt in [wrong, md5, longer] {
        let mut sink = Kept::default();
        let got = archive.get(&key, &receipt, &mut sink).await.unwrap_err();
        assert!(
            matches!(got, Error::WrongBytes { key: at, .. } if at == key),
            "{got}"
        );
        assert_eq!(got.blame(), Blame::Copy);
        assert!(!sink.is_finished);
        let verified = archive.verify(&key, &receipt).await.unwrap_err();
        assert!(matches!(verified, Error::WrongBytes { .. }), "{verified}");
    }
    let mut full = Counted {
        bytes: 0,
        most: 1 << 20,
    };
    let got = archive.get(&key, &put, &mut full).await.unwrap_err();
    assert!(matches!(got, Error::Sink(_)), "{got}");
}

async fn removals_can_be_repeated(archive: &Archive) {
    let key = key(1006, 1);
    let put = archive.put(&key, 3, &mut Held("abc".into())).await.unwrap();
    for _ in 0..2 {
        archive.remove(&key).await.unwrap();
        let got = archive.verify(&key, &put).await.unwrap_err();
        assert!(matches!(got, Error::Missing(at) if at == key), "{got}");
    }
}

async fn the_identity_is_checked(location: &Location, settings: Settings, archive: &Archive) {
    let id = archive.identity().archive;
    let open = async |expected| Archive::open(location, settings, &expected).await;
    let foreign = cellar_archive::Expected {
        cell: OTHER_CELL,
        ..expected(id, 0, 0)
    };
    let refused = open(foreign).await.unwrap_err();
    assert!(matches!(refused, Error::Foreign { .. }), "{refused}");
    let other = open(expected(cellar_archive::ArchiveId::random(), 0, 0)).await;
    assert!(
        matches!(other, Err(Error::OtherArchive { .. })),
        "{other:?}"
    );
    let second = open(expected(id, archive.session(), 1)).await.unwrap();
    second.remove(&key(1008, 1)).await.unwrap();
    assert_eq!(second.session(), archive.session() + 1);
    let third = open(expected(id, second.session(), 1)).await.unwrap();
    assert_eq!(third.session(), second.session());
    let older = open(expected(id, second.session() + 1, 1))
        .await
        .unwrap_err();
    assert!(matches!(older, Error::Older { .. }), "{older}");
    for error in [refused, older] {
        assert_eq!(error.blame(), Blame::Configuration);
        assert!(!error.is_transient());
    }
}
