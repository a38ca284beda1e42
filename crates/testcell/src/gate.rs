//! A gate before the file server, for tests: it delays or refuses calls of one procedure, or
//! executes them without an answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service, ServiceOptions};
use cellar_wire::abort::AbortCode;
use cellar_wire::package::Package;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// The treatment of calls, by their opcode.
#[derive(Default)]
pub(crate) struct Rules(Mutex<HashMap<u32, Rule>>);

#[derive(Clone)]
enum Rule {
    /// So many more calls.
    Refuse(AbortCode, usize),
    /// The same, after they are done.
    Lose(AbortCode, usize),
    Hold(Arc<HeldCalls>),
}

/// Calls that wait. It is closed when they may go on.
struct HeldCalls {
    door: Semaphore,
    count: AtomicUsize,
}

impl Rules {
    pub(crate) fn refuse(&self, opcode: u32, code: AbortCode, calls: usize) {
        self.0.lock().insert(opcode, Rule::Refuse(code, calls));
    }

    pub(crate) fn lose(&self, opcode: u32, code: AbortCode, calls: usize) {
        self.0.lock().insert(opcode, Rule::Lose(code, calls));
    }

    fn next(&self, opcode: u32) -> Option<Rule> {
        let mut rules = self.0.lock();
        let rule = rules.get_mut(&opcode)?;
        let next = rule.clone();
        if let Rule::Refuse(_, left) | Rule::Lose(_, left) = rule {
            *left = left.saturating_sub(1);
            if *left == 0 {
                rules.remove(&opcode);
            }
        }
        Some(next)
    }

    pub(crate) fn hold(self: &Arc<Self>, opcode: u32) -> Held {
        let waiting = Arc::new(HeldCalls {
            door: Semaphore::new(0),
            count: AtomicUsize::new(0),
        });
        let rule = Rule::Hold(waiting.clone());
        self.0.lock().insert(opcode, rule);
        Held {
            rules: self.clone(),
            opcode,
            waiting,
        }
    }
}

/// The server holds calls of one procedure for as long as this lives, and does them then.
pub struct Held {
    rules: Arc<Rules>,
    opcode: u32,
    waiting: Arc<HeldCalls>,
}

impl Held {
    /// How many calls have come.
    pub fn count(&self) -> usize {
        self.waiting.count.load(Ordering::SeqCst)
    }

    /// From now on calls are done as they come; those that have come go on waiting.
    pub fn let_others_pass(&self) {
        self.rules.0.lock().remove(&self.opcode);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.rules.0.lock().remove(&self.opcode);
        self.waiting.door.close();
    }
}

/// A service behind rules.
pub(crate) struct Gate {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) rules: Arc<Rules>,
}

impl Service for Gate {
    fn package(&self) -> &'static Package {
        self.service.package()
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            let opcode = call.opcode().await?;
            match self.rules.next(opcode) {
                Some(Rule::Refuse(code, _)) => return Err(code),
                Some(Rule::Lose(code, _)) => {
                    self.service.call(call).await?;
                    return Err(code);
                }
                Some(Rule::Hold(waiting)) => {
                    waiting.count.fetch_add(1, Ordering::SeqCst);
                    // The semaphore has no permits: this waits until it is closed.
                    let _closed = waiting.door.acquire().await;
                }
                None => {}
            }
            self.service.call(call).await
        })
    }

    fn options(&self) -> ServiceOptions {
        self.service.options()
    }
}
