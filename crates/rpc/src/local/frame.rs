//! Frames of the local administrator's socket.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::limits::LOCAL_CHUNK_BYTES_MAX;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Begins a call to the package of this name.
    Call(Bytes),
    Data(Bytes),
    End,
    Abort(i32),
}

/// Reason why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadFrame {
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    #[error("frame of {0} bytes")]
    Length(usize),
}

impl Frame {
    /// Removes a whole frame from the front of `received`; `None` if it is incomplete.
    pub(super) fn take(received: &mut BytesMut) -> Result<Option<Self>, BadFrame> {
        let Some(&[kind, a, b, c]) = received.first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        let fits = match kind {
            CALL => len <= NAME_BYTES_MAX,
            DATA => len <= LOCAL_CHUNK_BYTES_MAX,
            END => len == 0,
            ABORT => len == 4,
            _ => return Err(BadFrame::Kind(kind)),
        };
        if !fits {
            return Err(BadFrame::Length(len));
        }
        if received.len() < HEADER_BYTES + len {
            received.reserve(HEADER_BYTES + len - received.len());
            return Ok(None);
        }
        received.advance(HEADER_BYTES);
        let mut payload = received.split_to(len).freeze();
        Ok(Some(match kind {
            CALL => Self::Call(payload),
            DATA => Self::Data(payload),
            END => Self::End,
            _ => Self::Abort(payload.get_i32()),
        }))
    }

    /// Appends the frame.
    pub(super) fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Call(name) => put(out, CALL, name),
            Self::Data(data) => {
                for chunk in data.chunks(LOCAL_CHUNK_BYTES_MAX) {
                    put(out, DATA, chunk);
                }
            }
            Self::End => put(out, END, &[]),
            Self::Abort(code) => put(out, ABORT, &code.to_be_bytes()),
        }
    }
}

fn put(out: &mut BytesMut, kind: u8, payload: &[u8]) {
    out.reserve(HEADER_BYTES + payload.len());
    // Payloads are shorter than 2^24 bytes: a name, a chunk, a code.
    out.put_u32(u32::from(kind) << 24 | (payload.len() as u32 & 0x00ff_ffff));
    out.extend_from_slice(payload);
}

const CALL: u8 = 1;
const DATA: u8 = 2;
const END: u8 = 3;
const ABORT: u8 = 4;
const HEADER_BYTES: usize = 4;
/// Longest name of a service, bytes.
const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_survives_every_cut() {
        let frames = [
            Frame::Call(Bytes::from_static(b"VL")),
            Frame::Data(Bytes::from_static(b"\0\0\x01\xf7")),
            Frame::End,
            Frame::Abort(-455),
        ];
        for frame in frames {
            let mut bytes = BytesMut::new();
            frame.put(&mut bytes);
            for cut in 0..bytes.len() {
                let mut part = BytesMut::from(&bytes[..cut]);
                assert_eq!(Frame::take(&mut part), Ok(None));
            }
            assert_eq!(Frame::take(&mut bytes), Ok(Some(frame)));
            assert!(bytes.is_empty());
        }
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_kept() {
        let take = |bytes: &[u8]| Frame::take(&mut BytesMut::from(bytes));
        assert_eq!(take(&[9, 0, 0, 0]), Err(BadFrame::Kind(9)));
        assert_eq!(
            take(&[2, 0xff, 0xff, 0xff]),
            Err(BadFrame::Length(0x00ff_ffff))
        );
        assert_eq!(take(&[3, 0, 0, 1]), Err(BadFrame::Length(1)));
        assert_eq!(take(&[1, 0, 1, 0]), Err(BadFrame::Length(256)));
    }
}
