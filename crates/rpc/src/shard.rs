//! A shard: one thread with its own event loop, which owns whole connections.
//!
//! 1. All parts of a connection (protocol state, handlers, callers on this thread) run on one
//!    thread, so none of it needs locks.
//! 2. Other threads reach a shard through its queue of commands: closures that run on its thread.
//!    Each command represents one action of a caller (start a call, look at a call), so callers
//!    bound the queue.
//! 3. A thread knows its shard; code on the right thread bypasses the queue.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};

use crate::driver::Driver;
use crate::limits::SHUTDOWN_GRACE;

/// An action for a shard's thread.
pub(crate) type Command = Box<dyn FnOnce(&Rc<Shard>) + Send>;

/// Handle of a shard for other threads.
pub(crate) struct ShardHandle {
    commands: mpsc::UnboundedSender<Command>,
    /// Bytes of datagrams that other shards have received for this one and that it has not
    /// processed.
    pub(crate) passed_on: AtomicUsize,
}

impl ShardHandle {
    /// Runs `command` on the shard's thread; returns false if the shard has ended.
    pub(crate) fn submit(&self, command: Command) -> bool {
        self.commands.send(command).is_ok()
    }
}

/// State of the shard on its own thread.
pub(crate) struct Shard {
    handle: Arc<ShardHandle>,
    ports: RefCell<Vec<Option<Rc<Driver>>>>,
    ended: tokio::sync::Notify,
}

impl Shard {
    /// Returns the driver of a port, if it is open here.
    pub(crate) fn driver(&self, port: usize) -> Option<Rc<Driver>> {
        self.ports.borrow().get(port)?.clone()
    }

    pub(crate) fn set_driver(&self, port: usize, driver: Rc<Driver>) {
        let mut ports = self.ports.borrow_mut();
        if ports.len() <= port {
            ports.resize(port + 1, None);
        }
        ports[port] = Some(driver);
    }

    pub(crate) fn close_port(&self, port: usize) {
        let driver = self.ports.borrow_mut().get_mut(port).and_then(Option::take);
        if let Some(driver) = driver {
            driver.close();
        }
    }

    /// Ends the shard: its ports close, its thread ends.
    pub(crate) fn end(&self) {
        let ports = self.ports.borrow().len();
        for port in 0..ports {
            self.close_port(port);
        }
        self.ended.notify_one();
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Shard>>> = const { RefCell::new(None) };
}

/// Runs `action` with the shard behind `handle` if this is its thread.
pub(crate) fn with_current<R>(
    handle: &Arc<ShardHandle>,
    action: impl FnOnce(&Rc<Shard>) -> R,
) -> Option<R> {
    CURRENT.with_borrow(|current| {
        current
            .as_ref()
            .filter(|shard| Arc::ptr_eq(&shard.handle, handle))
            .map(action)
    })
}

/// Returns the shard of this thread.
pub(crate) fn current_handle() -> Option<Arc<ShardHandle>> {
    CURRENT.with_borrow(|current| current.as_ref().map(|shard| shard.handle.clone()))
}

/// Starts a shard's thread; returns when its event loop runs.
pub(crate) fn start(
    name: String,
    blocking_threads: usize,
) -> io::Result<(Arc<ShardHandle>, std::thread::JoinHandle<()>)> {
    #[expect(
        clippy::disallowed_methods,
        reason = "each command is one step of a call or port, and passed-on bytes are counted"
    )]
    let (commands, queue) = mpsc::unbounded_channel();
    let handle = Arc::new(ShardHandle {
        commands,
        passed_on: AtomicUsize::new(0),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads.max(1))
        .thread_name(format!("{name}-pool"))
        .build()?;
    let shard_handle = handle.clone();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let shard = Rc::new(Shard {
            handle: shard_handle,
            ports: RefCell::new(Vec::new()),
            ended: tokio::sync::Notify::new(),
        });
        CURRENT.set(Some(shard.clone()));
        let local = LocalSet::new();
        local.block_on(&runtime, serve(shard, queue));
        // Remaining tasks hold calls and drivers, and must be dropped before the thread's marker.
        drop(local);
        CURRENT.set(None);
        runtime.shutdown_timeout(SHUTDOWN_GRACE);
    })?;
    Ok((handle, thread))
}

async fn serve(shard: Rc<Shard>, mut queue: mpsc::UnboundedReceiver<Command>) {
    let ended = shard.clone();
    let end = ended.ended.notified();
    tokio::pin!(end);
    loop {
        tokio::select! {
            biased;
            () = &mut end => break,
            command = queue.recv() => match command {
                Some(command) => command(&shard),
                None => return,
            },
        }
    }
    // Senders of accepted commands wait for the effect. No port is open now, and the commands
    // report that to them.
    queue.close();
    while let Some(command) = queue.recv().await {
        command(&shard);
    }
}

/// Starts `future` as a task of this thread's shard.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    tokio::task::spawn_local(future)
}
