//! The number of calls for a walk over many files.

use cellar_wire::abort::AbortCode;
use cellar_wire::rxafs::{FetchStatus, InlineBulkStatus};

use crate::bench::{Bench, Client};

async fn look_up(client: &Client, names: impl IntoIterator<Item = String>) {
    for name in names {
        let vnode = client.find(&name).await;
        let known = client.cache.reads().attributes(&client.user, &vnode).await;
        known.expect("known");
    }
}

fn name(number: usize) -> String {
    format!("file{number:03}")
}

/// A cell with 400 files, and a client that knows none of them.
async fn start() -> (Bench, Client) {
    let bench = Bench::start();
    let writer = bench.client().await;
    for number in 0..400 {
        writer.make(&name(number)).await;
    }
    let reader = bench.client().await;
    (bench, reader)
}

/// Calls for one status, and for many.
fn asked(bench: &Bench) -> (u64, u64) {
    (
        bench.calls::<FetchStatus>(),
        bench.calls::<InlineBulkStatus>(),
    )
}

#[tokio::test]
async fn files_looked_up_in_their_order_are_asked_for_many_at_a_time() {
    let (bench, reader) = start().await;
    let (one, many) = asked(&bench);
    // The first says nothing yet; in the second one's call are 49 more, and so on.
    look_up(&reader, (0..400).map(name)).await;
    let (one_now, many_now) = asked(&bench);
    assert!(one_now - one <= 2, "{} for one", one_now - one);
    assert_eq!(many_now - many, 8);
    bench.end();
}

#[tokio::test]
async fn files_looked_up_here_and_there_are_asked_for_one_by_one() {
    let (bench, reader) = start().await;
    let (one, many) = asked(&bench);
    look_up(&reader, (0..40).map(|i| name(i * 177 % 400))).await;
    let (one_now, many_now) = asked(&bench);
    assert_eq!(many_now, many);
    assert!(one_now - one >= 40);
    bench.end();
}

#[tokio::test]
async fn files_are_found_where_the_call_for_many_is_refused() {
    let (bench, reader) = start().await;
    let (one, many) = asked(&bench);
    bench.refuse::<InlineBulkStatus>(AbortCode::RXGEN_OPCODE, usize::MAX);
    look_up(&reader, (0..20).map(name)).await;
    let (one_now, many_now) = asked(&bench);
    assert!(many_now > many);
    assert!(one_now - one >= 20);
    bench.end();
}
