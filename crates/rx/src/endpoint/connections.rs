//! Creation and removal of connections and peers.

use std::net::SocketAddr;

use super::{CONNECTION_NUMBERS, ConnectionInfo, Endpoint};
use crate::Caller;
use crate::call::CallState;
use crate::code;
use crate::config::ConnectionOptions;
use crate::connection::{Connection, SecurityState};
use crate::event::Event;
use crate::id::ConnectionId;
use crate::packet::{Flags, version_header};
use crate::security::{ClientSecurity, ConnectionIdentity};
use crate::table::NONE;
use crate::time::Time;

/// A peer without connections is dropped after this time, microseconds.
const PEER_LIFE: u64 = 60_000_000;
/// Number of connections checked when one must make room.
const ROOM_SEARCH: u32 = 64;
/// Only connections idle for longer are dropped to make room, microseconds.
const ROOM_IDLE: u64 = 10_000_000;
/// Only connections idle for longer count towards [`crate::Limits::idle_connections`],
/// microseconds.
const KEPT_IDLE: u64 = 60_000_000;

/// Time during which the answer to a version query is accepted, microseconds.
const VERSION_TIME: u64 = 10_000_000;
/// Epoch of packets that belong to no connection. Source: rx-wire facts 2.9 and 4.1.
const MAPPING_EPOCH: u32 = 999;

impl Endpoint {
    /// Creates a client connection. Nothing is sent before the first call.
    pub fn connect(
        &mut self,
        now: Time,
        peer: SocketAddr,
        service: u16,
        security: Box<dyn ClientSecurity>,
        options: ConnectionOptions,
    ) -> ConnectionId {
        let now = self.advance(now);
        let address = peer;
        // The bound of peers does not apply to our own connections.
        let peer = match self.peer_of(now, address) {
            Some(peer) => peer,
            None => self.add_peer(now, address),
        };
        let identity = ConnectionIdentity {
            peer: address,
            epoch: self.config.epoch,
            cid: self.next_cid(),
            service,
            security_index: security.index(),
            call_numbers: [0; 4],
            first_checksum: 0,
            unix_seconds: self.unix_seconds(now),
        };
        let security = SecurityState::Client(security);
        let connection = Connection::new(now, &identity, peer, security, options);
        let slot = self.insert_connection(connection);
        ConnectionId {
            slot,
            generation: self.connections.generation(slot),
        }
    }

    /// Returns the next free connection id whose packets are routed to this endpoint.
    fn next_cid(&mut self) -> u32 {
        let (shard, shards) = (self.config.cid_shard, self.config.cid_shards);
        loop {
            let number = self.next_connection;
            let mut next = number.wrapping_add(1) & CONNECTION_NUMBERS;
            // Advance to the next number that belongs to this shard.
            next = next.wrapping_add((shard + shards - next % shards) % shards);
            if next > CONNECTION_NUMBERS {
                next = shard;
            }
            self.next_connection = next;
            let cid = next << 2;
            let key = crate::connection::connection_key(self.config.epoch, cid, false);
            if next != 0 && !self.by_key.contains_key(&key) {
                return cid;
            }
        }
    }

    /// Closes a client connection; its calls are aborted (-6) without events.
    pub fn close(&mut self, now: Time, connection: ConnectionId) {
        let now = self.advance(now);
        let slot = connection.slot;
        if self.connections.generation(slot) != connection.generation {
            return;
        }
        let Some(record) = self.connections.get(slot) else {
            return;
        };
        if record.server {
            return;
        }
        for channel in record.channels {
            if let Some(call) = self.calls.get_mut(channel.call) {
                call.attached = false;
                let pending = call.ack.now.is_some() || call.ack.deadline.is_some();
                if call.state == CallState::Dally && pending && call.abort == 0 {
                    self.send_final_ack(channel.call);
                }
                self.abort_call(now, channel.call, code::USER_ABORT, false);
            }
        }
        self.remove_connection(slot);
    }

    /// Returns the two ends of a connection.
    #[must_use]
    pub fn connection(&self, connection: ConnectionId) -> Option<ConnectionInfo> {
        if self.connections.generation(connection.slot) != connection.generation {
            return None;
        }
        let record = self.connections.get(connection.slot)?;
        Some(ConnectionInfo {
            peer: record.address,
            local: record.local,
            epoch: record.epoch,
            cid: record.cid,
            service: record.service,
            security_index: record.security_index,
            server: record.server,
            caller: match &record.security {
                SecurityState::Server(class) => class.caller(),
                SecurityState::Client(_) => Caller::Anonymous,
            },
        })
    }

    /// Removes a connection whose calls are over.
    pub(super) fn remove_connection(&mut self, slot: u32) {
        self.end_unverified(slot);
        let Some(connection) = self.connections.remove(slot) else {
            return;
        };
        for channel in connection.channels {
            if let Some(call) = self.calls.remove(channel.call) {
                self.buffered.sub_received(&call, call.receive.bytes());
                self.buffered.sub_sent(&call, call.send.buffered());
            }
        }
        self.unlink(&connection, slot);
        if connection.server {
            self.counts.connections.sub(1);
        }
        if let Some(peer) = self.peers.get_mut(connection.peer) {
            peer.connections = peer.connections.saturating_sub(1);
            // The state of an unverified sender, which may not exist, is not worth keeping.
            if connection.server && peer.connections == 0 && !peer.proof.holds(self.now) {
                self.forget_peer(connection.peer);
            }
        }
        let count = if connection.server {
            &mut self.statistics.server_connections
        } else {
            &mut self.statistics.client_connections
        };
        *count = count.saturating_sub(1);
    }

    /// Removes a connection from the chain of those with its key.
    fn unlink(&mut self, connection: &Connection, slot: u32) {
        let key = connection.key();
        let Some(&head) = self.by_key.get(&key) else {
            return;
        };
        if head == slot {
            if connection.same_key == NONE {
                self.by_key.remove(&key);
            } else {
                self.by_key.insert(key, connection.same_key);
            }
            return;
        }
        let mut at = head;
        while let Some(other) = self.connections.get_mut(at) {
            if other.same_key == slot {
                other.same_key = connection.same_key;
                return;
            }
            at = other.same_key;
        }
    }

    pub(super) fn forget_connection(&mut self, slot: u32) {
        let generation = self.connections.generation(slot);
        self.remove_connection(slot);
        self.events.push_back(Event::ConnectionClosed {
            connection: ConnectionId { slot, generation },
        });
    }

    fn is_idle(&self, connection: &Connection) -> bool {
        connection.channels.iter().all(|channel| {
            self.calls
                .get(channel.call)
                .is_none_or(|call| call.state == CallState::Dally)
        })
    }

    /// Drops an idle server connection: of a few at a random place, the one idle longest.
    pub(super) fn make_room(&mut self, now: Time) -> bool {
        let bound = self.connections.bound();
        if bound == 0 {
            return false;
        }
        let start = (self.random.next() % u64::from(bound)) as u32;
        let slots = (0..ROOM_SEARCH.min(bound)).map(|i| (start + i) % bound);
        let oldest = slots
            .filter_map(|slot| Some((slot, self.connections.get(slot)?)))
            .filter(|(_, c)| c.server && now.micros_since(c.used_at) > ROOM_IDLE && self.is_idle(c))
            .min_by_key(|(_, connection)| connection.used_at)
            .map(|(slot, _)| slot);
        let Some(slot) = oldest else { return false };
        self.forget_connection(slot);
        true
    }

    /// Drops everything that was unused for long.
    pub(super) fn sweep(&mut self, now: Time) {
        self.forget_idle_connections(now);
        self.forget_calls(now);
        self.forget_peers(now, false);
        self.shrink();
    }

    /// Releases memory that a flood made the tables allocate.
    fn shrink(&mut self) {
        let freed = [
            self.connections.shrink(),
            self.calls.shrink(),
            self.peers.shrink(),
            self.hosts.shrink(),
        ];
        self.freed |= freed.contains(&true);
        self.by_key.shrink_to(2 * self.by_key.len());
        self.by_address.shrink_to(2 * self.by_address.len());
        self.by_host.shrink_to(2 * self.by_host.len());
        self.timers.shrink();
        self.events.shrink_to(2 * self.events.len());
        self.control.shrink_to(2 * self.control.len());
        let (hosts, peers) = (self.hosts.bound(), self.peers.bound());
        self.ready.shrink(hosts, peers);
    }

    /// Drops server connections that were idle for long. Those of unverified addresses are dropped
    /// after a minute; of the others, those idle longest until the bound is met.
    fn forget_idle_connections(&mut self, now: Time) {
        let idle = u64::try_from(self.config.connection_idle.as_micros()).unwrap_or(u64::MAX);
        let mut unused: Vec<(u64, u32)> = self
            .connections
            .iter()
            .map(|(slot, c)| (now.micros_since(c.used_at), slot, c))
            .filter(|(time, _, c)| *time > KEPT_IDLE.min(idle) && c.server && self.is_idle(c))
            .map(|(time, slot, c)| (if c.unverified { u64::MAX } else { time }, slot))
            .collect();
        let kept = self.counts.part(self.config.limits.idle_connections);
        let excess = unused.len().saturating_sub(kept);
        if excess > 0 {
            unused.select_nth_unstable_by(excess - 1, |a, b| b.cmp(a));
        }
        for (place, (time, slot)) in unused.into_iter().enumerate() {
            if place < excess || time > idle {
                self.forget_connection(slot);
            }
        }
    }

    /// Removes the slots of calls that ended a while ago; the channel keeps the call number.
    fn forget_calls(&mut self, now: Time) {
        let quiet = PEER_LIFE;
        let old: Vec<(u32, u32)> = self
            .calls
            .iter()
            .filter(|(_, call)| {
                call.state == CallState::Dally
                    && call.ack.deadline.is_none()
                    && !call.queued
                    && now.micros_since(call.received_at.max(call.sent_at)) > quiet
            })
            .map(|(slot, call)| (slot, call.connection))
            .collect();
        for (slot, connection) in old {
            self.calls.remove(slot);
            let Some(connection) = self.connections.get_mut(connection) else {
                continue;
            };
            for channel in &mut connection.channels {
                if channel.call == slot {
                    channel.call = NONE;
                }
            }
        }
    }

    /// Drops peers without connections; `pressed`: also those heard recently.
    pub(super) fn forget_peers(&mut self, now: Time, pressed: bool) {
        let life = if pressed { 0 } else { PEER_LIFE };
        let old: Vec<u32> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.connections == 0 && now.micros_since(peer.received_at) >= life)
            .map(|(slot, _)| slot)
            .collect();
        for slot in old {
            self.forget_peer(slot);
        }
    }

    fn forget_peer(&mut self, slot: u32) {
        let Some(peer) = self.peers.remove(slot) else {
            return;
        };
        self.counts.peers.sub(1);
        self.by_address.remove(&peer.address);
        let Some(host) = self.hosts.get_mut(peer.host) else {
            return;
        };
        host.peers = host.peers.saturating_sub(1);
        if host.peers == 0 {
            let ip = host.address;
            self.hosts.remove(peer.host);
            self.by_host.remove(&ip);
        }
    }

    /// Reports that the network cannot reach `to`. Calls to it that have waited for an answer since
    /// before `now` fail with -1.
    pub fn handle_unreachable(&mut self, now: Time, to: SocketAddr) {
        let now = self.advance(now);
        let Some(&peer) = self.by_address.get(&to) else {
            return;
        };
        if self.forget_unverified(now, peer) {
            return;
        }
        let waiting = |call: &crate::call::Call| {
            call.expects_answer() && call.sent_at >= call.received_at && call.started_at < now
        };
        let failing: Vec<u32> = self
            .calls
            .iter()
            .filter(|(_, call)| {
                waiting(call)
                    && self
                        .connections
                        .get(call.connection)
                        .is_some_and(|c| c.peer == peer)
            })
            .map(|(slot, _)| slot)
            .collect();
        for slot in failing {
            self.fail_call(now, slot, code::CALL_DEAD);
        }
    }

    /// Reports that nothing listens on port `to` of its host. The process that our calls were made
    /// to has ended, and its state is lost. The calls fail with [`code::GONE`], even if it had
    /// acknowledged them.
    pub fn handle_refused(&mut self, now: Time, to: SocketAddr) {
        let now = self.advance(now);
        let Some(&peer) = self.by_address.get(&to) else {
            return;
        };
        let is_to = |call: &crate::call::Call| {
            let connection = self.connections.get(call.connection);
            connection.is_some_and(|connection| connection.peer == peer)
        };
        let out = |call: &crate::call::Call| {
            call.expects_answer() && !call.server && call.started_at < now
        };
        let calls = self.calls.iter();
        let failing: Vec<u32> = calls
            .filter(|(_, call)| out(call) && call.send.packets() > 0 && is_to(call))
            .map(|(slot, _)| slot)
            .collect();
        for slot in failing {
            self.fail_call(now, slot, code::GONE);
        }
    }

    /// Reports that our datagrams leave from another address than before `since`. Servers send to
    /// the address of a connection's first packet. Our calls begun before `since` therefore fail
    /// with -1, and the server is sent an abort, as they may be repeated. New calls need new
    /// connections.
    pub fn handle_new_address(&mut self, now: Time, since: Time) {
        let now = self.advance(now);
        let failing: Vec<u32> = self
            .calls
            .iter()
            .filter(|(_, call)| {
                call.expects_answer()
                    && call.started_at < since
                    && self
                        .connections
                        .get(call.connection)
                        .is_some_and(|connection| !connection.server)
            })
            .map(|(slot, _)| slot)
            .collect();
        for slot in failing {
            self.abort_call(now, slot, code::CALL_DEAD, true);
        }
    }

    /// Sends a version query, which any server answers without any state of us.
    pub(super) fn ask_version(&mut self, now: Time, to: SocketAddr) {
        let peer = self.by_address.get(&to).copied();
        let Some(peer) = peer.and_then(|peer| self.peers.get_mut(peer)) else {
            return;
        };
        peer.asked_at = now;
        let flags = Flags(Flags::CLIENT_INITIATED | Flags::LAST_PACKET);
        self.send_control(to, None, &version_header(MAPPING_EPOCH, flags), &[0]);
    }

    /// Processes the answer, if the server was asked.
    pub(super) fn take_version(&mut self, now: Time, from: SocketAddr) {
        let peer = self.by_address.get(&from).copied();
        if let Some(peer) = peer.and_then(|peer| self.peers.get_mut(peer))
            && now.micros_since(peer.asked_at) < VERSION_TIME
        {
            peer.received_at = now;
        }
    }

    /// Sends a datagram that needs no answer, so that address translators on the way to `to` keep
    /// passing packets from there. Source: rx-wire facts 2.9, the NAT ping of OpenAFS's cache
    /// manager.
    pub fn keep_mapping(&mut self, to: SocketAddr) {
        // Without the CLIENT bit it is no query.
        let header = version_header(MAPPING_EPOCH, Flags(Flags::LAST_PACKET));
        self.send_control(to, None, &header, &[0]);
    }

    /// Reports that datagrams of `size` bytes (UDP payload) cannot reach `to` unfragmented.
    pub fn handle_too_big(&mut self, now: Time, to: SocketAddr, size: usize) {
        let now = self.advance(now);
        let size = u16::try_from(size).unwrap_or(u16::MAX);
        if let Some(&peer) = self.by_address.get(&to)
            && let Some(peer) = self.peers.get_mut(peer)
            && peer.mtu.shrink(now, size)
        {
            self.statistics.mtu_shrinks += 1;
        }
    }

    /// Counts a send that failed on this machine.
    pub fn note_send_failure(&mut self) {
        self.statistics.send_failures = self.statistics.send_failures.wrapping_add(1);
    }
}
