//! Speed of the core alone: two endpoints in one thread exchange datagrams in memory.
//!
//! Prints packets per second and nanoseconds per packet for bulk transfer, and microseconds for a
//! small call. The times are of both ends together; divide by two for one end. One copy of each run
//! stands in for the kernel's copy. `cargo run --profile dist -p cellar-rx --example core_speed`

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cellar_rx::{
    Config, ConnectionId, ConnectionOptions, Endpoint, Event, NullSecurity, ReadOutcome,
    ServiceConfig, Time, TransmitBuffer, WriteOutcome,
};

struct Pair {
    ends: [Endpoint; 2],
    buffer: TransmitBuffer,
    now: u64,
    packets: u64,
    runs: u64,
}

const ADDRESSES: [([u8; 4], u16); 2] = [([10, 0, 0, 1], 7001), ([10, 0, 0, 2], 7000)];

impl Pair {
    fn new() -> Self {
        let mut ends = [1, 2].map(|seed| {
            Endpoint::new(
                Config {
                    probe_mtu: false,
                    ..Config::default()
                },
                seed,
            )
        });
        ends[1].add_service(ServiceConfig {
            id: 1,
            security: vec![(0, Arc::new(NullSecurity))],
            reach_check: false,
            idle_dead_time: None,
        });
        Self {
            ends,
            buffer: TransmitBuffer::new(64),
            now: 1,
            packets: 0,
            runs: 0,
        }
    }

    fn time(&self) -> Time {
        Time::from_micros(self.now)
    }

    /// Carries the output of one end to the other; returns whether there was any.
    fn carry(&mut self, from: usize) -> bool {
        let mut any = false;
        while self.ends[from].poll_transmit(Time::from_micros(self.now), &mut self.buffer) {
            any = true;
            self.runs += 1;
            let segment = self.buffer.segment_size();
            self.packets += self.buffer.bytes().len().div_ceil(segment) as u64;
            let run = Bytes::copy_from_slice(self.buffer.bytes());
            let source = ADDRESSES[from].into();
            self.now += 1;
            let now = Time::from_micros(self.now);
            self.ends[1 - from].handle_segments(now, source, None, run, segment);
        }
        any
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn clock() -> Instant {
    Instant::now()
}

fn bulk(megabytes: usize) {
    let mut pair = Pair::new();
    let now = pair.time();
    let connection = pair.ends[0].connect(
        now,
        ADDRESSES[1].into(),
        1,
        Box::new(NullSecurity),
        ConnectionOptions::default(),
    );
    let call = pair.ends[0].start_call(now, connection).expect("channel");
    pair.ends[0]
        .write(now, call, Bytes::from_static(b"go"))
        .expect("write");
    pair.ends[0].finish(now, call);
    let chunk = Bytes::from(vec![7; 1 << 20]);
    let (mut written, mut received) = (0, 0);
    let mut serving = None;
    let start = clock();
    loop {
        pair.carry(0);
        let now = pair.time();
        while let Some(event) = pair.ends[1].poll_event() {
            if let Event::NewCall { call, .. } = event {
                serving = Some(call);
            }
        }
        while let Some(call) = serving
            && written < megabytes
        {
            match pair.ends[1].write(now, call, chunk.clone()) {
                Ok(WriteOutcome::Accepted) => written += 1,
                Ok(WriteOutcome::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        if let Some(call) = serving
            && written == megabytes
        {
            pair.ends[1].finish(now, call);
            serving = None;
        }
        // One run at a time, as a driver alternates between sending and receiving.
        let idle = !pair.carry(1);
        let now = pair.time();
        while pair.ends[0].poll_event().is_some() {}
        let end = loop {
            match pair.ends[0].read(now, call) {
                ReadOutcome::Chunk(bytes) => received += bytes.len(),
                ReadOutcome::Pending => break false,
                ReadOutcome::End => break true,
                ReadOutcome::Failed(code) => panic!("failed with {code}"),
            }
        };
        if end {
            break;
        }
        if idle {
            for end in &mut pair.ends {
                if let Some(at) = end.poll_timeout() {
                    pair.now = pair.now.max(at.as_micros().min(pair.now + 1_000));
                    end.handle_timeout(Time::from_micros(pair.now));
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let data = pair.ends[1].statistics().data_sent;
    println!(
        "bulk: {:.2} Gbit/s, {:.0} ns per data packet at both ends, {} packets in {} runs, {} resent",
        received as f64 * 8.0 / seconds / 1e9,
        seconds * 1e9 / f64::from(data),
        pair.packets,
        pair.runs,
        pair.ends[1].statistics().data_resent,
    );
}

/// Makes a call with a reply of several packets. After it the client's address is verified, and the
/// server accepts its full number of calls.
fn prove_address(pair: &mut Pair, connection: ConnectionId) {
    let now = pair.time();
    let call = pair.ends[0].start_call(now, connection).expect("channel");
    pair.ends[0].finish(now, call);
    for _ in 0..10 {
        pair.carry(0);
        let now = pair.time();
        while let Some(event) = pair.ends[1].poll_event() {
            if let Event::NewCall { call, .. } = event {
                let reply = Bytes::from_static(&[2; 5_000]);
                pair.ends[1].write(now, call, reply).expect("write");
                pair.ends[1].finish(now, call);
            }
        }
        pair.carry(1);
        while pair.ends[0].poll_event().is_some() {}
        loop {
            match pair.ends[0].read(now, call) {
                ReadOutcome::Chunk(_) => {}
                ReadOutcome::End => return,
                _ => break,
            }
        }
    }
    panic!("no reply");
}

fn small(calls: u32, parallel: usize) {
    let mut pair = Pair::new();
    let now = pair.time();
    let connections: Vec<_> = (0..parallel)
        .map(|_| {
            pair.ends[0].connect(
                now,
                ADDRESSES[1].into(),
                1,
                Box::new(NullSecurity),
                ConnectionOptions::default(),
            )
        })
        .collect();
    prove_address(&mut pair, connections[0]);
    let (request, reply) = (Bytes::from_static(&[1; 60]), Bytes::from_static(&[2; 150]));
    let start = clock();
    for _ in 0..calls / parallel as u32 {
        let now = pair.time();
        let mut open = Vec::with_capacity(parallel);
        for connection in &connections {
            let call = pair.ends[0].start_call(now, *connection).expect("channel");
            pair.ends[0]
                .write(now, call, request.clone())
                .expect("write");
            pair.ends[0].finish(now, call);
            open.push(call);
        }
        pair.carry(0);
        let now = pair.time();
        while let Some(event) = pair.ends[1].poll_event() {
            if let Event::NewCall { call, .. } = event {
                while let ReadOutcome::Chunk(_) = pair.ends[1].read(now, call) {}
                pair.ends[1].write(now, call, reply.clone()).expect("write");
                pair.ends[1].finish(now, call);
            }
        }
        pair.carry(1);
        let now = pair.time();
        while pair.ends[0].poll_event().is_some() {}
        for call in open {
            let ReadOutcome::Chunk(_) = pair.ends[0].read(now, call) else {
                panic!("no reply")
            };
            let ReadOutcome::End = pair.ends[0].read(now, call) else {
                panic!("no end")
            };
        }
        pair.now += 10;
        for end in &mut pair.ends {
            if end.poll_timeout().is_some_and(|at| at <= now) {
                end.handle_timeout(now);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "small calls, {parallel} at a time: {:.0} per second, {:.0} ns each at both ends, {:.2} packets each",
        f64::from(calls) / seconds,
        seconds * 1e9 / f64::from(calls),
        pair.packets as f64 / f64::from(calls),
    );
}

fn main() {
    for _ in 0..3 {
        bulk(2_000);
    }
    small(1_000_000, 1);
    small(1_000_000, 16);
    small(1_000_000, 1_000);
}
