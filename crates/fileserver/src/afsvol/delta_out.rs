//! Making deltas: the data that another Cellar server needs to bring its volume to the state of the
//! one here.
//!
//! A receiver that reads the same objects gets the layouts of files in objects, and the copies of
//! files in archives. No byte is recalled for it. Other receivers get the bytes, and then all bytes
//! of a file if anything in it has changed.
//!
//! A volume that moves takes along its removed files, whose copies are in archives. The clone that
//! a move or a release sends first has none.

use std::collections::VecDeque;

use bytes::Bytes;
use cellar_fileobjects::Lender;
use cellar_volume::{Body, Content, Frozen, Listed, Part, RetiredPlace, Since, Vnodes};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{BASE_DATE, BASE_NOTHING, BASE_STATE, DeltaHead, VolumeState};
use cellar_wire::delta::{Origin, Writer};
use cellar_wire::ids::{AfsTime, Uniquifier, VnodeId};

use super::contents::{delta_head, delta_retired, delta_vnode, from_wire};
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

/// The place before the first removed file.
pub(super) const FIRST_RETIRED: RetiredPlace = (VnodeId(0), Uniquifier(0));

/// The part of a delta that is still to be written, besides the contents of a vnode.
enum Rest {
    /// These vnodes, and all that follows.
    Vnodes(Box<Vnodes>),
    /// The removed files behind this place, and the end.
    Retired(RetiredPlace),
    /// The end.
    End,
    /// Nothing.
    Nothing,
}

/// Makes a delta.
pub(super) struct DeltaSource {
    frozen: Frozen,
    writer: Writer,
    ready: VecDeque<Bytes>,
    rest: Rest,
    sends_retired: bool,
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
            rest: Rest::Vnodes(Box::new(vnodes)),
            sends_retired: false,
            epoch,
            lender,
            body: None,
            fed: None,
        })
    }

    /// Sends removed files too. The receiver has `CAN_RETIRED`, and reads the same objects.
    pub(super) fn with_retired(mut self, sends: bool) -> Self {
        self.sends_retired = sends;
        self
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
        let rest = match &mut self.rest {
            Rest::Vnodes(vnodes) => match vnodes.next().map_err(|error| dump_code(&error))? {
                Some(listed) => return self.vnode(&listed),
                None if self.sends_retired => Rest::Retired(FIRST_RETIRED),
                None => Rest::End,
            },
            Rest::Retired(after) => {
                let after = *after;
                self.retired(after)?.map_or(Rest::End, Rest::Retired)
            }
            Rest::End => {
                self.writer.end();
                Rest::Nothing
            }
            Rest::Nothing => return Ok(Some(Next::End)),
        };
        self.rest = rest;
        Ok(None)
    }

    /// Writes a page of removed files. Returns the place behind which there are more.
    fn retired(&mut self, after: RetiredPlace) -> Result<Option<RetiredPlace>, AbortCode> {
        let page = self.frozen.retired_files(after);
        let (files, more) = page.map_err(|error| dump_code(&error))?;
        if let Some(lender) = &mut self.lender
            && !files.is_empty()
        {
            let lent = lender.lend(self.frozen.info());
            lent.map_err(|error| store_code(&error))?;
        }
        for file in &files {
            self.writer.retired(&delta_retired(file));
        }
        Ok(more)
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
