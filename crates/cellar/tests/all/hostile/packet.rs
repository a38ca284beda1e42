//! Packets of Rx, composed by hand.

/// A packet's header and contents.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    pub(crate) epoch: u32,
    pub(crate) cid: u32,
    pub(crate) call: u32,
    pub(crate) seq: u32,
    pub(crate) serial: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) service: u16,
}

pub(crate) const DATA: u8 = 1;
pub(crate) const ACK: u8 = 2;
pub(crate) const BUSY: u8 = 3;
pub(crate) const ABORT: u8 = 4;
pub(crate) const ACKALL: u8 = 5;
/// Reasons of an ACK.
pub(crate) const DELAY: u8 = 8;
pub(crate) const PING_RESPONSE: u8 = 7;
pub(crate) const CLIENT: u8 = 1;
pub(crate) const LAST: u8 = 4;

impl Packet {
    pub(crate) fn bytes(&self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [self.epoch, self.cid, self.call, self.seq, self.serial] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend([self.kind, self.flags, 0, 0, 0, 0]);
        bytes.extend(self.service.to_be_bytes());
        bytes.extend(payload);
        bytes
    }
}

/// The payload of an ACK that takes everything before `first` as received.
pub(crate) fn ack(reason: u8, first: u32, serial: u32, window: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for word in [first, first.wrapping_sub(1), serial] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend([reason, 0, 0, 0, 0]);
    for word in [1444, 1444, window, 1] {
        bytes.extend(word.to_be_bytes());
    }
    bytes
}
