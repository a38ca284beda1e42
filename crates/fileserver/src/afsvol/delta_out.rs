//! Making deltas: what another Cellar server needs to have a volume as it is here.

use std::collections::VecDeque;

use bytes::Bytes;
use cellar_volume::{Body, Content, Frozen, Listed, Part, Since, Vnodes};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{BASE_DATE, BASE_NOTHING, BASE_STATE, DeltaHead, VolumeState};
use cellar_wire::delta::Writer;
use cellar_wire::ids::AfsTime;

use super::contents::{delta_head, delta_vnode, dump_code, from_wire};
use super::stream::Source;
use crate::limits::VOLUME_STREAM_PIECE_BYTES;

/// What the other side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// Nothing, or nothing that counts.
    Nothing,
    /// Every change before this date.
    Date(AfsTime),
    /// This state.
    State(VolumeState),
    /// This state, and a date for the head: it is not known which vnodes are gone since.
    Named(VolumeState, AfsTime),
}

/// The head of a delta, and what to list for it. `None`: that state is not one that this volume
/// knows the changes since.
pub(super) fn plan(frozen: &Frozen, base: Base) -> Result<Option<(DeltaHead, Since)>, AbortCode> {
    let state = frozen.state();
    let mut head = delta_head(frozen.info(), frozen.next_uniquifier().0, state);
    let since = match base {
        Base::Nothing => {
            head.base_kind = BASE_NOTHING;
            Since::Everything
        }
        Base::Date(date) => {
            head.base_kind = BASE_DATE;
            head.base_date = date;
            Since::Date(date)
        }
        Base::State(base) => {
            let Some(since) = from_wire(base).and_then(|base| frozen.since(&base)) else {
                return Ok(None);
            };
            head.base_kind = BASE_STATE;
            head.base = base;
            since
        }
        Base::Named(base, date) => {
            let Some(since) = from_wire(base).and_then(|base| frozen.all_since(&base)) else {
                return Ok(None);
            };
            head.base_kind = BASE_DATE;
            head.base_date = date;
            since
        }
    };
    Ok(Some((head, since)))
}

/// Makes a delta.
pub(super) struct DeltaSource {
    frozen: Frozen,
    writer: Writer,
    ready: VecDeque<Bytes>,
    vnodes: Option<Vnodes>,
    /// The epoch that the changes are since.
    epoch: Option<u64>,
    body: Option<Body>,
    /// Contents written since frames were last taken.
    gathered: usize,
}

impl DeltaSource {
    pub(super) fn new(frozen: &Frozen, since: Since) -> Result<Self, AbortCode> {
        let mut writer = Writer::new();
        let epoch = match since {
            Since::Epoch(epoch) => Some(epoch),
            _ => None,
        };
        if let Some(epoch) = epoch {
            // First: their numbers may be used again.
            let removed = frozen.removed(epoch).map_err(|error| dump_code(&error))?;
            for vnode in removed {
                writer.remove(vnode);
            }
        }
        let vnodes = frozen.vnodes(since).map_err(|error| dump_code(&error))?;
        Ok(Self {
            frozen: frozen.clone(),
            writer,
            ready: VecDeque::new(),
            vnodes: Some(vnodes),
            epoch,
            body: None,
            gathered: 0,
        })
    }

    /// Writes the next item. False after the end.
    fn step(&mut self) -> Result<bool, AbortCode> {
        if let Some(body) = &mut self.body {
            let next = body.next(VOLUME_STREAM_PIECE_BYTES);
            match next.map_err(|error| dump_code(&error))? {
                None => self.body = None,
                Some(Part {
                    at,
                    content: Content::Bytes(bytes),
                }) => {
                    self.gathered += bytes.len();
                    self.writer.data(at, bytes);
                }
                Some(Part {
                    at,
                    content: Content::Hole(len),
                }) => {
                    // Where nothing is kept there are zeros anyway.
                    if self.epoch.is_some() {
                        self.writer.zeros(at, len);
                    }
                }
            }
            return Ok(true);
        }
        let Some(vnodes) = &mut self.vnodes else {
            return Ok(false);
        };
        match vnodes.next().map_err(|error| dump_code(&error))? {
            Some(listed) => self.vnode(&listed)?,
            None => {
                self.vnodes = None;
                self.writer.end();
            }
        }
        Ok(true)
    }

    fn vnode(&mut self, listed: &Listed) -> Result<(), AbortCode> {
        let Some(image) = &listed.image else {
            self.writer.keep(listed.vnode, listed.uniquifier);
            return Ok(());
        };
        let body = self.frozen.body(listed, self.epoch);
        let body = body.map_err(|error| dump_code(&error))?;
        self.writer.vnode(&delta_vnode(image, body.kept()));
        self.body = Some(body).filter(|_| image.length > 0);
        Ok(())
    }
}

impl Source for DeltaSource {
    fn next_piece(&mut self) -> Result<Option<Bytes>, AbortCode> {
        while self.ready.is_empty() {
            let goes_on = self.step()?;
            self.ready.extend(self.writer.take());
            if !goes_on {
                break;
            }
        }
        Ok(self.ready.pop_front())
    }
}
