//! Creations that were refused, and whose directory is then removed: they are given up, and only
//! what is lost is told.

use std::sync::Arc;

use cellar_cachemanager::Vnode;
use cellar_client::errno;
use cellar_wire::abort::AbortCode;
use cellar_wire::rxafs::MakeMany;

use crate::bench::{Bench, Client};

const EDQUOT: i32 = 122;
const ENOENT: i32 = 2;

/// A file of six bytes that the quota refused, in a directory `sub` that the server has.
async fn refused(bench: &Bench, a: &Client) -> Arc<Vnode> {
    let (cache, user) = (&a.cache, &a.user);
    let sub = cache.names().make_dir(user, &a.root, b"sub", 0o755).await;
    let sub = sub.expect("made");
    for name in [&b"asked for"[..], b"leased"] {
        let file = cache.names().create_file(user, &sub, name, 0o644).await;
        a.put(&file.expect("made"), name).await.expect("stored");
        let removed = cache.names().remove_file(user, &sub, name).await;
        removed.expect("removed");
    }
    bench.refuse::<MakeMany>(AbortCode::from_errno(EDQUOT), 100);
    let file = cache.names().create_file(user, &sub, b"file", 0o644).await;
    let file = file.expect("made here");
    let stored = a.put(&file, b"waits!").await;
    assert_eq!(errno(&stored.expect_err("no room")), EDQUOT);
    assert_eq!(cache.write_back().unstored().len(), 1);
    file
}

#[tokio::test]
async fn refused_files_go_with_a_directory_that_we_remove() {
    let bench = Bench::start();
    let place = tempfile::tempdir().expect("directory");
    let a = bench.leasing(Some(place.path().to_owned())).await;
    let _file = refused(&bench, &a).await;
    let removed = a.cache.names().remove_dir(&a.user, &a.root, b"sub").await;
    removed.expect("removed");
    assert!(a.cache.write_back().unstored().is_empty());
    assert!(a.cache.management().waiting(None).is_empty());
    assert!(a.cache.close().await.is_empty());
    assert!(
        a.cache.management().aside(None).is_empty(),
        "no program misses it"
    );
    bench.end();
}

#[tokio::test]
async fn refused_files_are_put_aside_if_others_remove_the_directory() {
    let bench = Bench::start();
    let place = tempfile::tempdir().expect("directory");
    let a = bench.leasing(Some(place.path().to_owned())).await;
    let file = refused(&bench, &a).await;
    let b = bench.client().await;
    let removed = b.cache.names().remove_dir(&b.user, &b.root, b"sub").await;
    removed.expect("removed");
    bench.refuse::<MakeMany>(AbortCode::from_errno(EDQUOT), 1);
    for error in [EDQUOT, ENOENT] {
        let stored = a.cache.write_back().store(&file, false).await;
        assert_eq!(errno(&stored.expect_err("not stored")), error);
    }
    assert!(
        a.cache.write_back().unstored().is_empty(),
        "it is not tried again"
    );
    assert!(a.cache.close().await.is_empty());
    let aside = a.cache.management().aside(None);
    assert_eq!(aside.len(), 1, "{aside:?}");
    let about = std::fs::read_to_string(&aside[0]).expect("text");
    assert!(about.contains("why its directory is gone"), "{about}");
    let bytes = std::fs::read(aside[0].with_extension("")).expect("bytes");
    assert_eq!(bytes, b"waits!");
    bench.end();
}
