//! An archive in a directory.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use cellar_archive::{Archive, Error, Location, Settings};

use crate::bytes_of::{CELL, Held, expected, key, random};
use crate::contract;

async fn created(path: &Path) -> Archive {
    let location = Location::Directory(path.to_path_buf());
    let settings = Settings::default();
    let identity = Archive::create(&location, settings, CELL, "example.org", 1)
        .await
        .unwrap();
    let expected = expected(identity.archive, 0, 0);
    Archive::open(&location, settings, &expected).await.unwrap()
}

/// The files below a directory.
fn files(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![path.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap().path();
            match entry.is_dir() {
                true => directories.push(entry),
                false => found.push(entry.strip_prefix(path).unwrap().display().to_string()),
            }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn a_directory_keeps_the_rules() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("archive");
    contract::holds(&Location::Directory(path.clone()), Settings::default()).await;
    assert!(!files(&path).iter().any(|name| name.starts_with("staging/")));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "other accounts do not look into it");
}

#[tokio::test]
async fn a_refused_directory_stays_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let location = |name: &str| Location::Directory(home.path().join(name));
    let settings = Settings::default();
    std::fs::create_dir(home.path().join("used")).unwrap();
    std::fs::write(home.path().join("used/letter"), "mine").unwrap();
    let refused = Archive::create(&location("used"), settings, CELL, "example.org", 1).await;
    assert!(matches!(refused, Err(Error::InUse(_))), "{refused:?}");
    assert_eq!(files(home.path()), ["used/letter"]);

    let file = Archive::create(&location("used/letter"), settings, CELL, "example.org", 1).await;
    assert!(matches!(file, Err(Error::Configuration(_))), "{file:?}");

    let id = cellar_archive::ArchiveId::random();
    for name in ["none", "used"] {
        let never = Archive::open(&location(name), settings, &expected(id, 0, 0)).await;
        assert!(matches!(never, Err(Error::NotAnArchive)), "{never:?}");
        let used = Archive::open(&location(name), settings, &expected(id, 3, 0)).await;
        assert!(matches!(used, Err(Error::EmptyThoughUsed(_))), "{used:?}");
    }
    std::fs::write(home.path().join("used/cellar-archive.json"), "{").unwrap();
    let damaged = Archive::open(&location("used"), settings, &expected(id, 0, 0)).await;
    assert!(matches!(damaged, Err(Error::Identity(_))), "{damaged:?}");
    assert_eq!(
        files(home.path()),
        ["used/cellar-archive.json", "used/letter"]
    );
}

/// The new file system of a disk has a directory `lost+found`.
#[tokio::test]
async fn a_new_file_system_can_become_an_archive() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("lost+found")).unwrap();
    created(home.path()).await;
}

#[tokio::test]
async fn an_archive_that_is_unmounted_takes_nothing_and_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("archive");
    let archive = created(&path).await;
    let id = archive.identity().archive;
    let put = archive
        .put(&key(2, 1), 3, &mut Held("abc".into()))
        .await
        .unwrap();
    // The mount point without its file system.
    std::fs::rename(&path, home.path().join("unmounted")).unwrap();
    std::fs::create_dir(&path).unwrap();
    let refused = archive
        .put(&key(4, 1), 3, &mut Held("abc".into()))
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::EmptyThoughUsed(_)), "{refused}");
    let read = archive.verify(&key(2, 1), &put).await.unwrap_err();
    assert!(
        matches!(read, Error::EmptyThoughUsed(_)),
        "no copy is missing: {read}"
    );
    let removed = archive.remove(&key(2, 1)).await.unwrap_err();
    assert!(matches!(removed, Error::EmptyThoughUsed(_)), "{removed}");
    let location = Location::Directory(path.clone());
    let opened = Archive::open(&location, Settings::default(), &expected(id, 1, 1)).await;
    assert!(
        matches!(opened, Err(Error::EmptyThoughUsed(_))),
        "{opened:?}"
    );
    assert_eq!(files(&path), [""; 0]);

    // Only the copies are gone: the directory was emptied by hand.
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(home.path().join("unmounted"), &path).unwrap();
    archive.verify(&key(2, 1), &put).await.unwrap();
    std::fs::remove_dir_all(path.join("objects")).unwrap();
    let opened = Archive::open(&location, Settings::default(), &expected(id, 1, 1)).await;
    assert!(
        matches!(opened, Err(Error::EmptyThoughUsed(_))),
        "{opened:?}"
    );
    std::fs::remove_dir_all(path.join("sessions")).unwrap();
    let opened = Archive::open(&location, Settings::default(), &expected(id, 1, 0)).await;
    assert!(
        matches!(opened, Err(Error::EmptyThoughUsed(_))),
        "{opened:?}"
    );
}

#[tokio::test]
async fn damaged_and_missing_copies_are_told_apart() {
    let home = tempfile::tempdir().unwrap();
    let archive = created(home.path()).await;
    let bytes = random(2_000_000, 1);
    let key = key(258, 7);
    let put = archive
        .put(&key, 2_000_000, &mut Held(bytes.clone()))
        .await
        .unwrap();
    let file = home
        .path()
        .join(format!("objects/{CELL}/536870912/02/258.1.1.7"));
    let mut damaged = std::fs::read(&file).unwrap();
    damaged[1_999_999] ^= 1;
    std::fs::write(&file, &damaged).unwrap();
    let found = archive.verify(&key, &put).await.unwrap_err();
    assert!(matches!(&found, Error::WrongBytes { reason, .. } if reason == "BLAKE3 differs"));
    std::fs::write(&file, &damaged[..5]).unwrap();
    let found = archive.verify(&key, &put).await.unwrap_err();
    assert!(matches!(&found, Error::WrongBytes { reason, .. } if reason.contains("5 bytes")));
    std::fs::remove_file(&file).unwrap();
    let found = archive.verify(&key, &put).await.unwrap_err();
    assert!(matches!(found, Error::Missing(at) if at == key), "{found}");
}

/// A put that stops in the middle leaves no name, and its file in `staging/` goes.
#[tokio::test]
async fn an_interrupted_put_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let archive = created(home.path()).await;
    let before = archive
        .put(&key(2, 1), 1, &mut Held("a".into()))
        .await
        .unwrap();
    let whole = files(home.path());

    struct Endless;
    impl cellar_archive::Source for Endless {
        fn read(
            &mut self,
            most: usize,
        ) -> futures_util::future::BoxFuture<'_, std::io::Result<bytes::Bytes>> {
            Box::pin(async move {
                tokio::task::yield_now().await;
                Ok(vec![0; most].into())
            })
        }
    }
    let put = async { archive.put(&key(4, 1), 1 << 40, &mut Endless).await };
    let began = cellar_until::until("a file in staging", async || files(home.path()) != whole);
    tokio::select! {
        put = put => panic!("{put:?}"),
        () = began => {}
    }
    cellar_until::until("staging is empty", async || files(home.path()) == whole).await;

    // A crash leaves the file: the next run removes it when it is old.
    let staged = home.path().join("staging/left");
    std::fs::write(&staged, "part").unwrap();
    let hour = Duration::from_secs(3600);
    assert_eq!(
        archive
            .remove_abandoned(SystemTime::UNIX_EPOCH + hour)
            .await
            .unwrap(),
        0
    );
    let later = std::fs::metadata(&staged).unwrap().modified().unwrap() + hour;
    assert_eq!(archive.remove_abandoned(later).await.unwrap(), 1);
    assert_eq!(files(home.path()), whole);
    archive.verify(&key(2, 1), &before).await.unwrap();
}

#[tokio::test]
async fn all_copies_are_listed() {
    use futures_util::TryStreamExt;
    let home = tempfile::tempdir().unwrap();
    let archive = created(home.path()).await;
    for n in 1..=300 {
        archive
            .put(&key(2 * n, 5), 1, &mut Held("a".into()))
            .await
            .unwrap();
    }
    let mut found: Vec<_> = archive.copies().try_collect().await.unwrap();
    found.sort();
    let wanted: Vec<_> = (1..=300).map(|n| (key(2 * n, 5), 1)).collect();
    assert_eq!(found, wanted);
}
