//! Speed of the erasure code: MB/s of data encoded, and decoded with the most missing data shards
//! that it permits.
//!
//! `cargo run --profile dist -p cellar-objects --example code_speed`

use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_objects::erasure::Code;

const TIME: Duration = Duration::from_millis(400);

fn main() {
    println!("data+parity  unit KiB   encode MB/s   decode MB/s");
    for (data, parity) in [(2, 1), (4, 2), (8, 3), (16, 4), (32, 8)] {
        for unit in [64 << 10, 1 << 20] {
            let mut code = Code::new(data, parity);
            let shard = |at| Bytes::from(vec![at as u8; unit]);
            let whole: Vec<Bytes> = (0..data).map(shard).collect();
            let encode = rate(data * unit, || {
                let mut out = vec![Vec::with_capacity(unit); parity];
                code.encode(&whole, &mut out).expect("shards fit");
            });
            let mut out = vec![Vec::with_capacity(unit); parity];
            code.encode(&whole, &mut out).expect("shards fit");
            let mut all: Vec<(usize, Bytes)> = whole.iter().cloned().enumerate().collect();
            all.extend((data..).zip(out.into_iter().map(Bytes::from)));
            let lost: Vec<usize> = (0..parity.min(data)).collect();
            let have = all.split_off(lost.len());
            let have = &have[..data];
            let decode = rate(data * unit, || {
                code.reconstruct(have, &lost).expect("enough shards");
            });
            println!(
                "{data:>5}+{parity:<6} {:>8}   {encode:>11.0}   {decode:>11.0}",
                unit >> 10
            );
        }
    }
}

fn rate(bytes: usize, mut work: impl FnMut()) -> f64 {
    work();
    let begin = Instant::now();
    let mut rounds = 0;
    while begin.elapsed() < TIME {
        work();
        rounds += 1;
    }
    (bytes * rounds) as f64 / begin.elapsed().as_secs_f64() / 1e6
}
