//! Datagrams to an endpoint that serves one service and has a call of its own out.
//!
//! The input is a sequence of steps: a byte, two bytes of length, the datagram. The byte chooses
//! how much time passes, and the address of two from which the datagram comes. A length of 0 is a
//! time-out.

#![no_main]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use cellar_rx::{
    CallId, Config, ConnectionOptions, Endpoint, Event, NullSecurity, ReadOutcome, ServiceConfig,
    Time, TransmitBuffer,
};
use libfuzzer_sys::fuzz_target;

/// Steps of a loop that must end by itself.
const STEPS_MAX: usize = 100_000;

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn read_all(endpoint: &mut Endpoint, now: Time, call: CallId, serves: bool) {
    for _ in 0..STEPS_MAX {
        match endpoint.read(now, call) {
            ReadOutcome::Chunk(_) => {}
            ReadOutcome::Pending | ReadOutcome::Failed(_) => return,
            ReadOutcome::End => {
                if serves {
                    let _ = endpoint.write(now, call, Bytes::from_static(b"twelve bytes"));
                    endpoint.finish(now, call);
                }
                return;
            }
        }
    }
    panic!("a read that never ends");
}

fn drain(endpoint: &mut Endpoint, now: Time, own: Option<CallId>, out: &mut TransmitBuffer) {
    for step in 0.. {
        assert!(step < STEPS_MAX, "events that never end");
        match endpoint.poll_event() {
            None => break,
            Some(Event::NewCall { call, .. }) => read_all(endpoint, now, call, true),
            Some(Event::Readable(call)) => read_all(endpoint, now, call, own != Some(call)),
            Some(_) => {}
        }
    }
    for step in 0.. {
        assert!(step < STEPS_MAX, "datagrams that never end");
        if !endpoint.poll_transmit(now, out) {
            break;
        }
        assert!(out.segments().all(|segment| !segment.is_empty()));
    }
}

fuzz_target!(|data: &[u8]| {
    let mut endpoint = Endpoint::new(Config::default(), 7);
    endpoint.add_service(ServiceConfig {
        id: 1,
        security: vec![(0, Arc::new(NullSecurity))],
        reach_check: false,
        idle_dead_time: None,
    });
    let mut micros = 1;
    let mut out = TransmitBuffer::new(64);
    let now = Time::from_micros(micros);
    let connection = endpoint.connect(
        now,
        address(7000),
        1,
        Box::new(NullSecurity),
        ConnectionOptions::default(),
    );
    let own = endpoint.start_call(now, connection).ok();
    if let Some(call) = own {
        let _ = endpoint.write(now, call, Bytes::from_static(&[0; 3000]));
        endpoint.finish(now, call);
        let _ = endpoint.read(now, call);
    }
    drain(&mut endpoint, now, own, &mut out);
    let mut rest = data;
    while let [choice, high, low, tail @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (datagram, tail) = tail.split_at(len);
        rest = tail;
        micros += 1u64 << (choice & 31);
        let now = Time::from_micros(micros);
        endpoint.handle_timeout(now);
        if len != 0 {
            let from = address(if choice & 128 == 0 { 7000 } else { 7001 });
            endpoint.handle_datagram(now, from, None, Bytes::copy_from_slice(datagram));
        }
        drain(&mut endpoint, now, own, &mut out);
    }
});
