//! A proxy that cuts connections in the middle of calls.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Forwards connections to a port of this machine.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// Answers do not pass while this is set: the server has the request, the client no answer.
    swallow: Arc<AtomicBool>,
    /// The same, but the connection stays: the member is silent.
    silent: Arc<AtomicBool>,
    /// Answers pass after [`LATE`].
    late: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
}

/// The delay of answers at a late member.
const LATE: Duration = Duration::from_millis(5);

impl Proxy {
    /// Starts a proxy. Every connection is cut in the moment after about `every` requests have
    /// passed; 0: never.
    pub(crate) fn start(to: u16, every: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let swallow = Arc::new(AtomicBool::new(false));
        let cuts = Arc::new(AtomicU64::new(0));
        let silent = Arc::new(AtomicBool::new(false));
        let late = Arc::new(AtomicBool::new(false));
        let (flags, count) = (
            [swallow.clone(), silent.clone(), late.clone()],
            cuts.clone(),
        );
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to)))
                else {
                    continue;
                };
                forward(client, server, every, &flags, &count);
            }
        });
        Self {
            port,
            swallow,
            silent,
            late,
            cuts,
        }
    }

    /// Lets answers pass late.
    pub(crate) fn delay(&self) {
        self.late.store(true, Ordering::Relaxed);
    }

    /// Lets no answer pass any more, and closes no connection.
    pub(crate) fn silence(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    pub(crate) fn swallow(&self, is_on: bool) {
        self.swallow.store(is_on, Ordering::Relaxed);
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

fn forward(
    client: TcpStream,
    server: TcpStream,
    every: u64,
    flags: &[Arc<AtomicBool>; 3],
    cuts: &Arc<AtomicU64>,
) {
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let cuts = cuts.clone();
    std::thread::spawn(move || {
        let (mut buffer, mut chunks) = (vec![0; 1 << 16], 0_u64);
        let end = every / 2 + rand::random_range(0..=every);
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
            chunks += 1;
            if every != 0 && chunks >= end {
                // The server may or may not have the request already.
                std::thread::sleep(Duration::from_micros(rand::random_range(0..3000)));
                cuts.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to, [swallow, silent, late]) = (server, client, flags.clone());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if silent.load(Ordering::Relaxed) {
                continue;
            }
            if swallow.load(Ordering::Relaxed) {
                break;
            }
            if late.load(Ordering::Relaxed) {
                std::thread::sleep(LATE);
            }
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}
