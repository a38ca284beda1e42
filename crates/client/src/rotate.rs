//! The choice of the next server: the effect of an answer on the operation that got it.
//!
//! A volume has one or more sites, each with one or more addresses. An operation tries them in
//! order until one serves it. The effect of a failure depends on its code alone:
//!
//! 1. *No answer* (dead, timed out): the next address. Later operations try the address that failed
//!    last.
//! 2. `VNOVOL`, `VMOVED`: the known location is stale. The VLDB is asked again, once for each
//!    operation, and the operation starts over. The second such code leads to the next site.
//! 3. `VOFFLINE`, `VSALVAGE`, `VSALVAGING`, `VNOSERVICE`: this site cannot serve, but another may.
//! 4. `VBUSY`, `VRESTARTING`: this site can serve soon. The other sites are tried first. If all
//!    were tried and one was busy, the operation waits and starts over. Each wait is longer than
//!    the last, up to 15 s. There are at most [`BUSY_WAITS_MAX`] waits, or any number after
//!    [`Rotation::wait_for_busy`].
//! 5. Any other code is the result of the operation.
//!
//! When no site is left, the most informative code is reported: busy, then off-line, then unknown
//! volume, then silence. Sources: afs-rpcs §16; kAFS and OpenAFS agree on rules 1 to 4, except for
//! the times.

use std::time::Duration;

use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;

/// The most waits of an operation for a busy server before it fails: 1+2+4+8+15+15 s.
pub const BUSY_WAITS_MAX: u32 = 6;

/// The longest single wait for a busy server.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(15);

/// The next step of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call this address (an index into the list of candidates).
    Ask(usize),
    /// Ask the VLDB again, then rebuild the list and call [`Rotation::relocated`].
    Relocate,
    /// Wait, then call [`Rotation::waited`].
    Wait(Duration),
    /// Report the failure: no other server can help.
    GiveUp,
}

/// One address of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Candidates of the same server share this number.
    pub server: usize,
}

/// The state of one operation over the sites of its volume.
#[derive(Debug)]
pub struct Rotation {
    candidates: Vec<Candidate>,
    asked: Vec<bool>,
    current: usize,
    relocations_left: u32,
    busy_waits: u32,
    busy_waits_max: Option<u32>,
    any_busy: bool,
    /// The most informative failure so far.
    verdict: Option<CallError>,
}

impl Rotation {
    /// A rotation over these candidates, in order of preference.
    pub fn new(candidates: Vec<Candidate>) -> Self {
        let asked = vec![false; candidates.len()];
        Self {
            candidates,
            asked,
            current: 0,
            relocations_left: 1,
            busy_waits: 0,
            busy_waits_max: Some(BUSY_WAITS_MAX),
            any_busy: false,
            verdict: None,
        }
    }

    /// Waits as long as a server is busy: the recall of a file from an archive can take hours.
    pub fn wait_for_busy(mut self) -> Self {
        self.busy_waits_max = None;
        self
    }

    /// The first step.
    pub fn start(&mut self) -> Step {
        self.next()
    }

    /// Takes the failure of the current address; returns the next step.
    pub fn failed(&mut self, error: CallError) -> Step {
        let code = match &error {
            CallError::Aborted(code) => Some(*code),
            _ => None,
        };
        let unreachable = error.is_unreachable();
        let known = is_about_the_site(&error);
        if known {
            self.weigh(error);
        } else {
            self.verdict = Some(error);
            return Step::GiveUp;
        }
        if !unreachable {
            // The server answered: its other addresses would answer the same.
            let server = self.candidates.get(self.current).map(|c| c.server);
            for (asked, candidate) in self.asked.iter_mut().zip(&self.candidates) {
                *asked |= Some(candidate.server) == server;
            }
        }
        match code {
            Some(AbortCode::VNOVOL | AbortCode::VMOVED) if self.relocations_left > 0 => {
                self.relocations_left -= 1;
                return Step::Relocate;
            }
            Some(AbortCode::VBUSY | AbortCode::VRESTARTING) => self.any_busy = true,
            _ => {}
        }
        self.next()
    }

    /// Takes the candidates of the new VLDB entry; returns the next step.
    pub fn relocated(&mut self, candidates: Vec<Candidate>) -> Step {
        self.asked = vec![false; candidates.len()];
        self.candidates = candidates;
        self.any_busy = false;
        self.next()
    }

    /// Continues after the wait; returns the next step.
    pub fn waited(&mut self) -> Step {
        self.asked.fill(false);
        self.any_busy = false;
        self.next()
    }

    /// The failure to report.
    pub fn verdict(self) -> CallError {
        // Without candidates no server was called: the volume is on no server.
        self.verdict
            .unwrap_or(CallError::Aborted(AbortCode::VNOVOL))
    }

    fn next(&mut self) -> Step {
        if let Some(index) = self.asked.iter().position(|asked| !asked) {
            self.asked[index] = true;
            self.current = index;
            return Step::Ask(index);
        }
        if self.any_busy
            && self
                .busy_waits_max
                .is_none_or(|most| self.busy_waits < most)
        {
            let wait = Duration::from_secs(1 << self.busy_waits.min(4)).min(BUSY_WAIT_MAX);
            self.busy_waits = self.busy_waits.saturating_add(1);
            return Step::Wait(wait);
        }
        Step::GiveUp
    }

    fn weigh(&mut self, error: CallError) {
        if self
            .verdict
            .as_ref()
            .is_none_or(|old| definiteness(&error) >= definiteness(old))
        {
            self.verdict = Some(error);
        }
    }
}

/// Whether another site, or the same one later, may do better.
fn is_about_the_site(error: &CallError) -> bool {
    match error {
        CallError::Aborted(code) => matches!(
            *code,
            AbortCode::VNOVOL
                | AbortCode::VMOVED
                | AbortCode::VOFFLINE
                | AbortCode::VSALVAGE
                | AbortCode::VSALVAGING
                | AbortCode::VNOSERVICE
                | AbortCode::VBUSY
                | AbortCode::VRESTARTING
                | AbortCode::RX_CALL_DEAD
                | AbortCode::RX_CALL_TIMEOUT
        ),
        other => other.is_unreachable(),
    }
}

fn definiteness(error: &CallError) -> u32 {
    match error {
        CallError::Aborted(AbortCode::VBUSY | AbortCode::VRESTARTING) => 3,
        CallError::Aborted(AbortCode::VNOVOL | AbortCode::VMOVED) => 1,
        CallError::Aborted(_) => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotation(servers: &[usize]) -> Rotation {
        Rotation::new(servers.iter().map(|&server| Candidate { server }).collect())
    }

    fn abort(code: AbortCode) -> CallError {
        CallError::Aborted(code)
    }

    #[test]
    fn silence_leads_to_the_next_address() {
        let mut rotation = rotation(&[0, 0, 1]);
        assert_eq!(rotation.start(), Step::Ask(0));
        assert_eq!(rotation.failed(CallError::Dead), Step::Ask(1));
        assert_eq!(rotation.failed(CallError::Timeout), Step::Ask(2));
        assert_eq!(rotation.failed(CallError::Dead), Step::GiveUp);
        assert!(matches!(rotation.verdict(), CallError::Dead));
    }

    #[test]
    fn an_answer_speaks_for_all_addresses_of_the_server() {
        let mut rotation = rotation(&[0, 0, 1]);
        assert_eq!(rotation.start(), Step::Ask(0));
        assert_eq!(rotation.failed(abort(AbortCode::VOFFLINE)), Step::Ask(2));
        assert_eq!(rotation.failed(CallError::Dead), Step::GiveUp);
        assert!(matches!(
            rotation.verdict(),
            CallError::Aborted(AbortCode::VOFFLINE)
        ));
    }

    #[test]
    fn a_moved_volume_is_looked_up_once() {
        let mut rotation = rotation(&[0]);
        assert_eq!(rotation.start(), Step::Ask(0));
        assert_eq!(rotation.failed(abort(AbortCode::VMOVED)), Step::Relocate);
        assert_eq!(
            rotation.relocated(vec![Candidate { server: 7 }]),
            Step::Ask(0)
        );
        assert_eq!(rotation.failed(abort(AbortCode::VNOVOL)), Step::GiveUp);
        assert!(matches!(
            rotation.verdict(),
            CallError::Aborted(AbortCode::VNOVOL)
        ));
    }

    #[test]
    fn busy_waits_grow_and_end() {
        let mut rotation = rotation(&[0, 1]);
        assert_eq!(rotation.start(), Step::Ask(0));
        let mut waits = Vec::new();
        let mut step = rotation.failed(abort(AbortCode::VBUSY));
        loop {
            step = match step {
                Step::Ask(_) => rotation.failed(abort(AbortCode::VBUSY)),
                Step::Wait(time) => {
                    waits.push(time.as_secs());
                    rotation.waited()
                }
                Step::GiveUp => break,
                Step::Relocate => panic!("busy is no reason to ask the VLDB"),
            }
        }
        assert_eq!(waits, [1, 2, 4, 8, 15, 15]);
        assert!(matches!(
            rotation.verdict(),
            CallError::Aborted(AbortCode::VBUSY)
        ));
    }

    #[test]
    fn waits_for_a_busy_server_need_not_end() {
        let mut rotation = rotation(&[0]).wait_for_busy();
        assert_eq!(rotation.start(), Step::Ask(0));
        for wait in [1, 2, 4, 8, 15].into_iter().chain([15; 1000]) {
            let step = rotation.failed(abort(AbortCode::VBUSY));
            assert_eq!(step, Step::Wait(Duration::from_secs(wait)));
            assert_eq!(rotation.waited(), Step::Ask(0));
        }
        assert_eq!(rotation.failed(abort(AbortCode::EIO)), Step::GiveUp);
    }

    #[test]
    fn an_answer_about_the_file_is_final() {
        let mut rotation = rotation(&[0, 1]);
        assert_eq!(rotation.start(), Step::Ask(0));
        assert_eq!(rotation.failed(abort(AbortCode::EACCES)), Step::GiveUp);
        assert!(matches!(
            rotation.verdict(),
            CallError::Aborted(AbortCode::EACCES)
        ));
    }

    #[test]
    fn nobody_to_ask() {
        let mut rotation = rotation(&[]);
        assert_eq!(rotation.start(), Step::GiveUp);
        assert!(matches!(
            rotation.verdict(),
            CallError::Aborted(AbortCode::VNOVOL)
        ));
    }
}
