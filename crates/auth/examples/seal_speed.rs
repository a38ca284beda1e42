//! How fast packets are sealed and opened on one core, at each level: `cargo run --profile dist
//! --example seal_speed`.

#![allow(clippy::disallowed_methods, reason = "a measurement reads clocks")]

use std::error::Error;
use std::time::Instant;

use bytes::Bytes;
use cellar_auth::{Authority, Enctype, Level};
use cellar_rx::{ClientSecurity, PacketIdentity};

/// User bytes of a packet on Ethernet.
const DATA: usize = 1408;
/// Packets handed to the network at a time.
const RUN: u32 = 46;
const RUNS: u32 = 1500;

fn packet(seq: u32) -> PacketIdentity {
    PacketIdentity {
        epoch: 0x4000_0000,
        cid: 0x100,
        call_number: 1,
        seq,
        from_client: true,
        security_index: 2,
        unix_seconds: 1_800_000_000,
    }
}

/// Seals a run of packets as Rx does, one behind the other; their header checksums.
fn seal(class: &mut dyn ClientSecurity, run: &mut Vec<u8>) -> Result<Vec<u16>, i32> {
    let header = usize::from(class.overhead().header);
    run.clear();
    let mut checksums = Vec::new();
    let mut bodies = Vec::new();
    for seq in 1..=RUN {
        let start = run.len();
        run.resize(start + header + DATA, 0x5a);
        checksums.push(class.protect(&packet(seq), run, start)?);
        bodies.push(start..run.len());
    }
    class.seal(run, &bodies);
    Ok(checksums)
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let authority = Authority::open(directory.path(), "demo.cell")?;
    authority.keys().add_random(Enctype::Aes256Sha1)?;
    let token = authority.localauth_token()?;
    println!("{DATA} bytes a packet, runs of {RUN}; MB/s");
    for level in [Level::Clear, Level::Auth, Level::Crypt] {
        let mut class = token.client_security(level);
        let megabytes = f64::from(RUN * RUNS) * DATA as f64 / 1e6;
        let mut run = Vec::new();
        let begin = Instant::now();
        for _ in 0..RUNS {
            seal(&mut *class, &mut run).map_err(|code| format!("code {code}"))?;
        }
        let sealing = megabytes / begin.elapsed().as_secs_f64();

        let checksums = seal(&mut *class, &mut run).map_err(|code| format!("code {code}"))?;
        let length = run.len() / RUN as usize;
        let datagrams = Bytes::from(run);
        let begin = Instant::now();
        for _ in 0..RUNS {
            for (seq, checksum) in (1..=RUN).zip(&checksums) {
                let at = (seq - 1) as usize * length;
                let body = datagrams.slice(at..at + length);
                class
                    .unprotect(&packet(seq), *checksum, body)
                    .map_err(|code| format!("code {code}"))?;
            }
        }
        let opening = megabytes / begin.elapsed().as_secs_f64();
        println!("{level:?}: sealing {sealing:.0}, opening {opening:.0}");
    }
    Ok(())
}
