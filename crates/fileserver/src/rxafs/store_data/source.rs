//! The bytes of a store, as one source wherever they are.
//!
//! A store that finds its file in another place begins again there, so it needs its bytes again.
//!
//! | bytes | kept |
//! | --- | --- |
//! | all present (a small store) | all |
//! | arriving, for objects | the first [`OBJECT_REPLAY_MAX`] |
//! | pushed into a store on this server | all, in blocks of the partition |

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use cellar_fileobjects::{Failure, OBJECT_REPLAY_MAX, Source};
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::PushedBytes;

use super::gather_bytes;
use crate::limits::STORE_PIECE_BYTES;

/// The bytes of a store.
pub(super) enum StoreBytes<'a> {
    /// All are in memory; the number is that of the next part.
    Present(Arc<[Bytes]>, usize),
    /// They arrive from the client.
    Arriving(Arriving<'a>),
    /// A store on this server received them, and was not applied.
    Pushed(Option<PushedBytes>),
}

impl Source for StoreBytes<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Present(data, next) => {
                let part = data.get(*next).cloned();
                *next += 1;
                Ok(part)
            }
            Self::Arriving(arriving) => arriving.next().await,
            Self::Pushed(pushed) => {
                let Some(mut reading) = pushed.take() else {
                    return Ok(None);
                };
                let (back, part) = blocking(move || {
                    let part = reading.read(STORE_PIECE_BYTES);
                    (reading, part)
                })
                .await;
                *pushed = Some(back);
                Ok(part?)
            }
        }
    }

    fn rewind(&mut self) -> bool {
        match self {
            Self::Present(_, next) => *next = 0,
            Self::Arriving(arriving) => return arriving.rewind(),
            Self::Pushed(pushed) => pushed.iter_mut().for_each(PushedBytes::rewind),
        }
        true
    }
}

/// Bytes as the client sends them.
pub(super) struct Arriving<'a> {
    call: &'a mut IncomingCall,
    left: &'a mut u64,
    /// Parts that have arrived and were not taken yet.
    gathered: VecDeque<Bytes>,
    taken: Vec<Bytes>,
    taken_bytes: usize,
    /// The number of kept parts that were returned since the last restart.
    given: usize,
    /// Whether all parts taken so far are kept.
    is_whole: bool,
}

impl<'a> Arriving<'a> {
    /// The bytes of a call, of which `left` are still to come after those in `gathered`.
    pub(super) fn new(call: &'a mut IncomingCall, left: &'a mut u64, gathered: Vec<Bytes>) -> Self {
        Self {
            call,
            left,
            gathered: gathered.into(),
            taken: Vec::new(),
            taken_bytes: 0,
            given: 0,
            is_whole: true,
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        if let Some(part) = self.taken.get(self.given) {
            self.given += 1;
            return Ok(Some(part.clone()));
        }
        if self.gathered.is_empty() {
            self.gathered = gather_bytes(self.call, self.left, 1).await?.into();
        }
        let part = self.gathered.pop_front();
        if let Some(part) = part.as_ref().filter(|_| self.is_whole) {
            self.taken_bytes += part.len();
            self.is_whole = self.taken_bytes <= OBJECT_REPLAY_MAX;
            match self.is_whole {
                true => self.taken.push(part.clone()),
                false => self.taken = Vec::new(),
            }
            self.given = self.taken.len();
        }
        Ok(part)
    }

    fn rewind(&mut self) -> bool {
        self.given = 0;
        self.is_whole
    }
}
