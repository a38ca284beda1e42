//! Receiving of datagrams, from the sockets or from another shard of the port.
//!
//! 1. The kernel selects the shard of a datagram by its connection id. It may however have
//!    assembled several datagrams of one sender into a run, and then the id of the first decides
//!    for all. The code here therefore checks each datagram's id, and passes datagrams of another
//!    shard on to it. This also serves systems without the kernel's selection.
//! 2. Cellar's own clients avoid this: all connection ids of an endpoint are equal modulo 64. At a
//!    server with 2, 4, 8 … shards, all connections of one client port thus belong to one shard.
//! 3. The bytes in flight to each shard are bounded. Beyond, datagrams are dropped, as by a full
//!    socket.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::{Driver, State};
use crate::icmp::IcmpError;
use crate::limits::{DATAGRAMS_PER_TURN, PASSED_ON_BYTES_MAX};
use crate::socket::{ReceiveBuffers, Received};

/// All client connections of an endpoint have equal ids modulo this.
const CID_STRIDE: u32 = 64;

/// Returns the modulus and the remainder of an endpoint's client connection ids (`cid >> 2`), for
/// shard `number` of `count`.
pub(super) fn cid_choice(number: usize, count: usize, random: u64) -> (u32, u32) {
    let count = u32::try_from(count).unwrap_or(1).max(1);
    let number = u32::try_from(number).unwrap_or(0) % count;
    let modulus = if CID_STRIDE.is_multiple_of(count) {
        CID_STRIDE
    } else {
        CID_STRIDE * count
    };
    let choices = modulus / count;
    let choice = u32::try_from(random % u64::from(choices)).unwrap_or(0);
    (modulus, number + count * choice)
}

impl Driver {
    /// Receives some batches from each socket. Returns whether there may be more.
    pub(super) fn receive(&self, cx: &mut Context<'_>, buffers: &mut ReceiveBuffers) -> bool {
        let mut state = self.state.borrow_mut();
        let mut strays = ForwardedRuns::default();
        let mut more = false;
        for socket in self.sockets().iter() {
            let mut datagrams = 0;
            while let Poll::Ready(Ok(())) = socket.poll_readable(cx) {
                if datagrams >= DATAGRAMS_PER_TURN {
                    more = true;
                    break;
                }
                let result = buffers.receive(socket, |run| {
                    let count = run.bytes.len().div_ceil(run.segment);
                    self.counters.datagrams_received.add(count as u64);
                    datagrams += count;
                    if self.shards == 1 {
                        self.take(&mut state, run);
                    } else {
                        self.sort(&mut state, run, &mut strays);
                    }
                });
                self.counters.receive_calls.add(1);
                match result {
                    Ok(()) => {}
                    Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                    // An ICMP error about an earlier datagram; the next call works.
                    Err(cause) => tracing::debug!(%cause, "receiving"),
                }
            }
        }
        drop(state);
        self.pass_on(strays);
        more
    }

    /// Processes a run of this shard's datagrams.
    fn take(&self, state: &mut State, run: Received) {
        let now = self.turn_time.get();
        if let Some(log) = &self.log {
            let mut log = log.borrow_mut();
            for datagram in run.bytes.chunks(run.segment.max(1)) {
                log.record(run.from, datagram);
            }
        }
        if run.bytes.len() <= run.segment {
            state
                .endpoint
                .handle_datagram(now, run.from, run.local, run.bytes);
        } else {
            state
                .endpoint
                .handle_segments(now, run.from, run.local, run.bytes, run.segment);
        }
    }

    /// Processes this shard's datagrams of a run, and puts the others into `strays`.
    fn sort(&self, state: &mut State, mut run: Received, strays: &mut ForwardedRuns) {
        while !run.bytes.is_empty() {
            let shard = self.shard_of(&run.bytes);
            // All consecutive datagrams of the same shard: nearly always the whole run.
            let mut end = run.segment.min(run.bytes.len());
            while end < run.bytes.len() && self.shard_of(&run.bytes[end..]) == shard {
                end = (end + run.segment).min(run.bytes.len());
            }
            let part = Received {
                bytes: run.bytes.split_to(end),
                ..run
            };
            if shard == self.number {
                self.take(state, part);
            } else {
                strays.add(shard, part);
            }
        }
    }

    /// Returns the shard of a datagram, by the connection id at offset 4.
    fn shard_of(&self, datagram: &[u8]) -> usize {
        let cid = datagram.get(4..8).and_then(<[u8]>::first_chunk::<4>);
        let cid = cid.map_or(0, |bytes| u32::from_be_bytes(*bytes));
        (cid >> 2) as usize % self.shards
    }

    fn pass_on(&self, strays: ForwardedRuns) {
        for (number, runs) in strays.0 {
            let Some(handle) = self.port.0.shards.get(number) else {
                continue;
            };
            let bytes: usize = runs.iter().map(|run| run.bytes.len()).sum();
            if handle.passed_on.fetch_add(bytes, Ordering::Relaxed) > PASSED_ON_BYTES_MAX {
                handle.passed_on.fetch_sub(bytes, Ordering::Relaxed);
                continue;
            }
            self.counters.runs_passed_on.add(runs.len() as u64);
            let port = self.port.0.id;
            let target = handle.clone();
            handle.submit(Box::new(move |shard| {
                target.passed_on.fetch_sub(bytes, Ordering::Relaxed);
                if let Some(driver) = shard.driver(port) {
                    driver.take_passed_on(runs);
                }
            }));
        }
    }

    /// Processes the ICMP errors of one socket.
    pub(super) async fn process_icmp_errors(self: Rc<Self>, socket: usize) {
        let sockets = self.sockets();
        let Some(socket) = sockets.get(socket) else {
            return;
        };
        while socket.wait_for_icmp_error().await.is_ok() && !self.closed.get() {
            while let Some(error) = socket.next_error() {
                let now = self.clock.now();
                let endpoint = &mut self.state.borrow_mut().endpoint;
                match error {
                    IcmpError::Unreachable(to) => endpoint.handle_unreachable(now, to),
                    IcmpError::Refused(to) => endpoint.handle_refused(now, to),
                    IcmpError::TooBig(to, mtu) => {
                        let headers = if to.is_ipv4() { 20 + 8 } else { 40 + 8 };
                        // One byte more than what fits does not pass.
                        let size = (mtu as usize + 1).saturating_sub(headers);
                        endpoint.handle_too_big(now, to, size);
                    }
                }
            }
            self.request_turn();
        }
    }

    /// Processes a datagram that another process received for this port, if it belongs to this
    /// shard.
    pub(crate) fn take_delivered(self: &Rc<Self>, from: SocketAddr, datagram: Bytes) {
        if self.shards == 1 || self.shard_of(&datagram) == self.number {
            let run = Received {
                from,
                local: None,
                segment: datagram.len(),
                bytes: datagram,
            };
            self.take_passed_on(vec![run]);
        }
    }

    /// Processes datagrams that another shard received for this one.
    fn take_passed_on(self: &Rc<Self>, runs: Vec<Received>) {
        self.turn_time.set(self.clock.now());
        let mut state = self.state.borrow_mut();
        for run in runs {
            self.take(&mut state, run);
        }
        drop(state);
        self.request_turn();
    }
}

/// Runs for other shards.
#[derive(Default)]
struct ForwardedRuns(Vec<(usize, Vec<Received>)>);

impl ForwardedRuns {
    fn add(&mut self, shard: usize, run: Received) {
        match self.0.iter_mut().find(|(number, _)| *number == shard) {
            Some((_, runs)) => runs.push(run),
            None => self.0.push((shard, vec![run])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_ids_lead_back_and_stay_together() {
        for count in 1..=12 {
            for number in 0..count {
                for random in 0..200 {
                    let (modulus, rest) = cid_choice(number, count, random);
                    assert!(rest < modulus);
                    for step in 0..50 {
                        let id = (rest + modulus * step) as usize;
                        assert_eq!(id % count, number, "leads back to its shard");
                        assert_eq!(id % 64, rest as usize % 64, "the same remainder for all");
                    }
                }
            }
        }
    }

    #[test]
    fn clients_differ_in_the_rest() {
        let rests: std::collections::BTreeSet<u32> =
            (0..64).map(|random| cid_choice(0, 1, random).1).collect();
        assert_eq!(rests.len(), 64);
    }
}
