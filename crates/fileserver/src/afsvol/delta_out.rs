//! Making deltas: the data that another Cellar server needs to bring its volume to the state of the
//! one here.
//!
//! A receiver that reads the same objects gets the layouts of files in objects, and the copies of
//! files in archives. No byte is recalled for it. Other receivers get the bytes, and then all bytes
//! of a file if anything in it has changed.

use std::collections::VecDeque;

use bytes::Bytes;
use cellar_fileobjects::Lender;
use cellar_volume::{Body, Content, Frozen, Listed, Part, Since, Vnodes};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{BASE_DATE, BASE_NOTHING, BASE_STATE, DeltaHead, VolumeState};
use cellar_wire::delta::{Origin, Writer};
use cellar_wire::ids::AfsTime;

use super::contents::{delta_head, delta_vnode, from_wire};
use super::dump::elsewhere;
use super::stream::{Next, Source};
use crate::abort_map::{dump_code, store_code};
use crate::limits::VOLUME_STREAM_PIECE_BYTES;

/// The state of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// No volume, or none that may be used.
    Nothing,
    /// Every change before this date.
    Date(AfsTime),
    /// This state.
    State(VolumeState),
    /// This state, with a date for the head. It is not known which vnodes were removed since.
    Named(VolumeState, AfsTime),
}

/// The head of a delta, and the list of vnodes for it. `None` if this volume does not know the
/// changes since that state.
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
    /// The epoch since which changes are sent.
    epoch: Option<u64>,
    /// Replaces bytes by layouts.
    lender: Option<Lender>,
    body: Option<Body>,
    /// Contents from outside that are being added: position and length.
    fed: Option<(u64, u64)>,
}

impl DeltaSource {
    /// With `lender`, layouts replace the bytes of files in objects.
    pub(super) fn new(
        frozen: &Frozen,
        since: Since,
        mut lender: Option<Lender>,
    ) -> Result<Self, AbortCode> {
        let mut writer = Writer::new();
        if let Some(lender) = &mut lender {
            let info = frozen.info();
            lender.begin(info);
            writer.origin(Origin {
                policy: info.policy,
                version: lender.version(),
            });
            if info.borrowed != 0 && !info.takes_over {
                writer.borrowed();
            }
        }
        let epoch = match since {
            Since::Epoch(epoch) => Some(epoch),
            _ => None,
        };
        if let Some(epoch) = epoch {
            // Removals come first, because vnode numbers may be reused.
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
            lender,
            body: None,
            fed: None,
        })
    }

    /// Writes the next item. Returns `None` to continue, or the next result that is no piece.
    fn step(&mut self) -> Result<Option<Next>, AbortCode> {
        if self.fed.is_some() {
            return Ok(Some(Next::More));
        }
        if let Some(body) = &mut self.body {
            let next = body.next(VOLUME_STREAM_PIECE_BYTES);
            match next.map_err(|error| dump_code(&error))? {
                None => self.body = None,
                Some(Part {
                    at,
                    content: Content::Bytes(bytes),
                }) => self.writer.data(at, bytes),
                Some(Part {
                    at,
                    content: Content::Hole(len),
                }) => {
                    // If nothing is kept, there are zeros anyway.
                    if self.epoch.is_some() {
                        self.writer.zeros(at, len);
                    }
                }
            }
            return Ok(None);
        }
        let Some(vnodes) = &mut self.vnodes else {
            return Ok(Some(Next::End));
        };
        match vnodes.next().map_err(|error| dump_code(&error))? {
            Some(listed) => self.vnode(&listed),
            None => {
                self.vnodes = None;
                self.writer.end();
                Ok(None)
            }
        }
    }

    fn vnode(&mut self, listed: &Listed) -> Result<Option<Next>, AbortCode> {
        let Some(image) = &listed.image else {
            self.writer.keep(listed.vnode, listed.uniquifier);
            return Ok(None);
        };
        if let Some(lender) = &mut self.lender {
            if image.policy != 0 {
                self.writer.policy(image.policy);
            }
            if image.layout.is_some() || image.copies.is_some() {
                let lent = lender.lend(self.frozen.info());
                lent.map_err(|error| store_code(&error))?;
            }
            if let Some(copies) = &image.copies {
                self.writer.copies(copies);
            }
            if let Some(wiped) = &image.wiped {
                self.writer.wiped(wiped);
            }
            if let Some(layout) = &image.layout {
                self.writer.layout(layout);
            }
            if image.layout.is_some() || image.wiped.is_some() {
                self.writer.vnode(&delta_vnode(image, 0));
                return Ok(None);
            }
        }
        if let Some(file) = elsewhere(&self.frozen, listed) {
            // The source does not know which bytes of objects are new since the base.
            self.writer.vnode(&delta_vnode(image, 0));
            let length = file.length();
            if length == 0 {
                return Ok(None);
            }
            self.fed = Some((0, length));
            return Ok(Some(Next::Elsewhere(file)));
        }
        let body = self.frozen.body(listed, self.epoch);
        let body = body.map_err(|error| dump_code(&error))?;
        self.writer.vnode(&delta_vnode(image, body.kept_length()));
        self.body = Some(body).filter(|_| image.length > 0);
        Ok(None)
    }
}

impl Source for DeltaSource {
    fn next(&mut self) -> Result<Next, AbortCode> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Next::Piece(piece));
            }
            let next = self.step()?;
            self.ready.extend(self.writer.take());
            match next {
                None => {}
                Some(Next::End | Next::More) if !self.ready.is_empty() => {}
                Some(next) => return Ok(next),
            }
        }
    }

    fn feed(&mut self, bytes: Bytes) {
        if let Some((at, length)) = self.fed.take() {
            let end = at + bytes.len() as u64;
            self.fed = Some((end, length)).filter(|_| end < length);
            self.writer.data(at, bytes);
        }
    }
}
