//! Failures of a reader: the choice among the objects that are left, and the time to wait for one.

use std::time::Duration;

use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::object::Scheme;

use super::{ReadCall, Reader, Span};
use crate::arithmetic::copies_of;
use crate::devices::Condition;
use crate::error::{Error, Problem, failed_devices, is_damage};

/// Attempts for an object that gave no answer.
const TRIES_MAX: u32 = 3;

/// Most problems recorded.
const PROBLEMS_MAX: usize = 256;

/// A failure and its object.
pub(super) struct Failure {
    place: usize,
    cause: CallError,
    /// Whether the caller had not listened for long: the object is retried, and the failure does
    /// not count.
    left_alone: bool,
    /// The failed call, if it was open.
    call: Option<Box<ReadCall>>,
}

impl Failure {
    pub(super) fn of(call: ReadCall, cause: CallError) -> Self {
        Self {
            place: call.place,
            cause,
            left_alone: call.was_idle(),
            call: Some(Box::new(call)),
        }
    }

    pub(super) fn of_open(place: usize, cause: CallError) -> Self {
        Self {
            place,
            cause,
            left_alone: false,
            call: None,
        }
    }
}

impl Reader {
    /// Returns the rank of an object for reading: 0 is best. `None`: unusable.
    fn rank(&self, place: usize) -> Option<u32> {
        let placed = self.set.layout.objects.get(place)?;
        let tried = *self.tried.get(place)?;
        if tried >= TRIES_MAX {
            return None;
        }
        if placed.version == 0 {
            return Some(0);
        }
        if self.silence.is_some() && self.devices.is_passed_over(placed.osd) {
            return None;
        }
        match self.devices.condition(placed.osd) {
            Condition::Well => Some(tried),
            Condition::Suspect => Some(tried + 1),
            Condition::Dead => None,
        }
    }

    /// Returns the best of some places; equal ranks are ordered by the priority of their devices.
    pub(super) fn best_of(&self, places: impl Iterator<Item = usize>) -> Option<(u32, usize)> {
        let ranked = places.filter_map(|place| Some((self.rank(place)?, place)));
        ranked.min_by_key(|(rank, place)| {
            let osd = self.set.layout.objects[*place].osd;
            (*rank, u32::MAX - self.devices.read_priority(osd), *place)
        })
    }

    /// Returns the `count` best objects of all, data first, and the rank of the worst of them.
    pub(super) fn any_of(&self, count: usize) -> Option<(u32, Vec<usize>)> {
        let mut ranked: Vec<(u32, usize)> = (0..self.set.layout.objects.len())
            .filter_map(|place| Some((self.rank(place)?, place)))
            .collect();
        ranked.sort_unstable();
        ranked.truncate(count);
        let worst = ranked.last()?.0;
        (ranked.len() == count).then(|| (worst, ranked.iter().map(|(_, place)| *place).collect()))
    }

    pub(super) fn nothing_left(&self, stripe: usize) -> Error {
        let shape = &self.set.layout.shape;
        let osd = self.set.layout.objects.get(stripe).map_or(0, |p| p.osd);
        let usable = |places: &mut dyn Iterator<Item = usize>| {
            places.filter(|place| self.rank(*place).is_some()).count()
        };
        if shape.scheme == Scheme::Erasure {
            return Error::TooFew {
                left: usable(&mut (0..self.set.layout.objects.len())),
                needed: shape.stripes as usize,
                failed: failed_devices(&self.problems),
                cause: self.last.clone(),
            };
        }
        let failed = copies_of(shape, stripe)
            .any(|place| self.problems.iter().any(|problem| problem.place == place));
        if failed {
            return Error::Device {
                osd,
                cause: self.last.clone(),
            };
        }
        Error::Unavailable { osd }
    }

    /// Returns the time to wait for an object. Without an alternative, including a file server, the
    /// wait is unlimited (until its server counts as dead).
    pub(super) fn patience(&self, place: usize) -> Option<Duration> {
        let shape = &self.set.layout.shape;
        let usable = |other: &usize| *other != place && self.rank(*other).is_some();
        let others = match shape.scheme {
            Scheme::Striped => {
                let stripe = place % shape.stripes.max(1) as usize;
                copies_of(shape, stripe).any(|other| usable(&other))
            }
            Scheme::Erasure => {
                (0..self.tried.len()).filter(usable).count() >= shape.stripes as usize
            }
        };
        // An object that was left out without success gets more time when it is retried.
        let again = self.tried.get(place).copied().unwrap_or(0).min(TRIES_MAX);
        let usual = others.then_some(self.options.patience * (1 + 2 * again));
        let Some(left) = self.silence else {
            return usual;
        };
        Some(usual.map_or(left, |usual| usual.min(left / 2)))
    }

    /// Leaves objects out, and restarts at the current position. `waited` is the time spent in
    /// vain.
    pub(super) fn failed(&mut self, mut failures: Vec<Failure>, waited: Duration) {
        failures.retain(|failure| !failure.left_alone);
        if let (Some(left), false) = (&mut self.silence, failures.is_empty()) {
            *left = left.saturating_sub(waited);
        }
        let mut failed: Vec<usize> = failures.iter().map(|failure| failure.place).collect();
        let silence = failures
            .iter()
            .any(|failure| matches!(failure.cause, CallError::Timeout));
        for failure in failures {
            self.leave_out(failure);
        }
        self.ready.clear();
        let spans = std::mem::take(&mut self.spans);
        if !silence {
            return;
        }
        // Other calls that were silent for as long need no further wait.
        let whole = |span: Span| span.whole.into_iter().flat_map(|(_, calls)| calls);
        for mut call in spans.into_iter().flat_map(|mut span| {
            let calls = std::mem::take(&mut span.calls);
            calls.into_iter().flatten().chain(whole(span))
        }) {
            let place = call.place;
            // Only once: the device may just be slow, and the silence of others must not use up its
            // attempts.
            let fresh = self.tried.get(place) == Some(&0) && !failed.contains(&place);
            if fresh && call.is_silent(self.options.patience) {
                failed.push(place);
                self.leave_out(Failure::of(call, CallError::Timeout));
            }
        }
    }

    fn leave_out(&mut self, failure: Failure) {
        let Failure {
            place, cause, call, ..
        } = failure;
        let placed = self.set.layout.objects.get(place).copied();
        let placed = placed.unwrap_or_default();
        tracing::debug!(osd = placed.osd, place, %cause, "reading an object failed");
        self.devices.failed(placed.osd, &cause);
        let silent = matches!(
            cause,
            CallError::Dead | CallError::Gone | CallError::Timeout
        );
        let silent = silent && self.silence.is_some();
        if silent
            && matches!(cause, CallError::Timeout)
            && let Some(call) = call
            && self.devices.pass_over(placed.osd)
        {
            call.listen(self.devices.clone(), placed.osd);
        }
        if let Some(tried) = self.tried.get_mut(place) {
            let refused = matches!(&cause, CallError::Aborted(code) if *code == AbortCode::EACCES);
            *tried = match &cause {
                _ if refused || is_damage(&cause) => u32::MAX,
                // The file server is used before it is retried.
                _ if silent => u32::MAX,
                // That took long enough.
                CallError::Dead | CallError::Gone => tried.saturating_add(2),
                _ => tried.saturating_add(1),
            };
        }
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem {
                place,
                placed,
                cause: cause.clone(),
            });
        }
        self.last = cause;
    }
}
