//! Large files at a file server that knows objects, and keeps these itself.

use std::time::Duration;

use cellar_wire::acl::Rights;
use cellar_wire::afsosd::{BeginStore, RepairStatus};
use cellar_wire::rxafs::StoreData64;

use super::bench::Bench;

const MIB: usize = 1 << 20;

#[tokio::test]
async fn a_file_server_is_not_asked_for_each_piece_where_a_file_goes() {
    let bench = Bench::start();
    let a = bench.client().await;
    // At the first large file, the client asks whether the server supports objects, without waiting
    // for the answer.
    let mut bytes = vec![1; 4 * MIB];
    for number in 0.. {
        let file = a.make(&format!("first {number}")).await;
        a.put(&file, &bytes[..MIB]).await.expect("stored");
        if bench.calls::<BeginStore>() > 0 {
            break;
        }
        assert!(number < 100, "it is never asked where a file goes");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(bench.calls::<RepairStatus>(), 1);
    let file = a.make("file").await;
    a.put(&file, &bytes).await.expect("stored");
    let handle = a.open(&file, Rights::WRITE).await;
    let before = (bench.calls::<BeginStore>(), bench.calls::<StoreData64>());
    let news = || {
        let asked = bench.calls::<BeginStore>() - before.0;
        (asked, bench.calls::<StoreData64>() - before.1)
    };
    for turn in 2..22 {
        let new = vec![turn; 2 * MIB];
        let at = usize::from(turn % 2) * 2 * MIB;
        handle.write(at as u64, &new).await.expect("write");
        handle.store(false).await.expect("stored");
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
    let (asked, stored) = news();
    assert_eq!(stored, 20);
    // An answer is believed for 10 seconds, and machines are slow.
    assert!(asked <= 4, "asked {asked} times where the same file goes");
    // Policies look at sizes.
    for turn in 22..38 {
        let new = vec![turn; MIB];
        handle.write(bytes.len() as u64, &new).await.expect("write");
        handle.store(false).await.expect("stored");
        bytes.extend(new);
    }
    let (more, stored) = news();
    assert_eq!(stored, 36);
    let more = more - asked;
    assert!((2..=6).contains(&more), "asked {more} times while it grew");
    handle.close().await;
    let b = bench.client().await;
    assert!(b.get(&b.find("file").await).await == bytes);
    bench.end();
}
