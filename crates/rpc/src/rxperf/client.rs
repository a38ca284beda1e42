//! Client end of rxperf.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use cellar_rx::Security;
use cellar_wire::package::Procedure;
use cellar_wire::rxperf::{CHUNK_MAX, COOKIE, Command, Measure, Measurement, PACKAGE};
use cellar_xdr::DecodeError;
use tokio::sync::mpsc;

use super::data;
use crate::CallError;
use crate::connection::{CallOptions, Connection, ConnectionOptions};
use crate::outgoing::OutgoingCall;
use crate::runtime::Runtime;

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Command of each call.
    pub command: Command,
    /// Calls that each caller makes in sequence. OpenAFS's default: 100.
    pub times: u32,
    /// Concurrent callers; one connection for every four. OpenAFS's default: 1.
    pub callers: u32,
    /// Size of the server's reads and writes, bytes; at most 524,288.
    pub chunk: u32,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            command: Command::Send { bytes: 1 << 20 },
            times: 100,
            callers: 1,
            chunk: CHUNK_MAX,
        }
    }
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Figures {
    /// Calls that succeeded.
    pub calls: u64,
    /// Bytes of data sent, without headers and arguments.
    pub bytes_sent: u64,
    /// Bytes of data received.
    pub bytes_received: u64,
    /// Time from the first call's start to the last call's end.
    pub elapsed: Duration,
}

impl Figures {
    /// Calls per second.
    #[must_use]
    pub fn calls_per_second(&self) -> f64 {
        self.calls as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Millions of bytes per second, both directions together.
    #[must_use]
    pub fn megabytes_per_second(&self) -> f64 {
        let bytes = (self.bytes_sent + self.bytes_received) as f64;
        bytes / 1e6 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }
}

/// Reason why a measurement failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RxperfError {
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The server ended its reply with another word than the cookie.
    #[error("the server is not rxperf: it answered {0:#x} instead of {COOKIE:#x}")]
    Cookie(u32),
    /// The command cannot be executed over Rx.
    #[error("a list of numbers can change from sending to receiving only once")]
    TurnsTwice,
}

/// Measures `server` with calls from `runtime`'s client port, on all its shards.
///
/// # Errors
/// [`RxperfError`] of the first call that failed.
pub async fn client(
    runtime: &Runtime,
    server: SocketAddr,
    options: &ClientOptions,
) -> Result<Figures, RxperfError> {
    check(&options.command)?;
    let port = runtime.client_port().map_err(CallError::from)?;
    let callers = options.callers.max(1);
    let groups = callers.div_ceil(CALLERS_PER_CONNECTION);
    let (results, mut collected) = mpsc::channel(CALLERS_PER_CONNECTION as usize);
    let start = Instant::now();
    for group in 0..groups {
        let members = CALLERS_PER_CONNECTION.min(callers - group * CALLERS_PER_CONNECTION);
        let (port, options, results) = (port.clone(), options.clone(), results.clone());
        runtime.spawn(group as usize, move || async move {
            let connection = port.connect_with(
                server,
                PACKAGE.service_id,
                Security::null(),
                ConnectionOptions::default(),
            );
            for _ in 0..members {
                let (connection, options) = (connection.clone(), options.clone());
                let results = results.clone();
                crate::shard::spawn(async move {
                    let result = caller(&connection, &options).await;
                    // If the receiver is gone, the measurement was given up.
                    let _gone = results.send(result).await;
                });
            }
        });
    }
    drop(results);
    let mut figures = Figures::default();
    let mut answered = 0;
    while let Some(result) = collected.recv().await {
        figures.add(&result?);
        answered += 1;
    }
    if answered < callers {
        return Err(CallError::Closed.into());
    }
    figures.elapsed = start.elapsed();
    Ok(figures)
}

fn check(command: &Command) -> Result<(), RxperfError> {
    if let Command::File { words } = command {
        let mut parts = words.split(|word| *word == 0);
        if parts.by_ref().skip(2).any(|part| !part.is_empty()) {
            return Err(RxperfError::TurnsTwice);
        }
    }
    Ok(())
}

/// Makes one caller's calls in sequence.
async fn caller(connection: &Connection, options: &ClientOptions) -> Result<Figures, RxperfError> {
    let mut figures = Figures::default();
    let chunk = options.chunk.clamp(1, CHUNK_MAX);
    let measurement = Measurement {
        read_chunk: chunk,
        write_chunk: chunk,
        command: options.command.clone(),
    };
    let has_cookie = !matches!(options.command, Command::File { .. });
    let (send, receive) = amounts(&options.command);
    // Small data is sent with the head: one write, one packet.
    let with_head = send.min(SMALL_BYTES);
    let mut head = BytesMut::new();
    Measure { measurement }.encode_request(&mut head);
    head.put_bytes(0, with_head as usize);
    let head = head.freeze();
    for _ in 0..options.times {
        let mut call = connection.open_raw(&PACKAGE, head.clone(), CallOptions::default())?;
        give(&mut call, send - with_head).await?;
        call.read_exact(receive, drop).await?;
        if has_cookie {
            let cookie: u32 = call.read().await?;
            if cookie != COOKIE {
                return Err(RxperfError::Cookie(cookie));
            }
        }
        if call.read_chunk().await?.is_some() {
            let surplus = DecodeError::Invalid("more bytes than requested");
            return Err(CallError::BadReply(surplus).into());
        }
        figures.calls += 1;
        figures.bytes_sent += send;
        figures.bytes_received += receive;
    }
    Ok(figures)
}

/// Bytes of data that one call sends and receives.
fn amounts(command: &Command) -> (u64, u64) {
    match command {
        Command::Send { bytes } => (u64::from(*bytes), 0),
        Command::Receive { bytes } => (0, u64::from(*bytes)),
        Command::Rpc { send, receive } => (u64::from(*send), u64::from(*receive)),
        Command::File { words } => {
            let turn = words
                .iter()
                .position(|word| *word == 0)
                .unwrap_or(words.len());
            let bytes = |words: &[u32]| words.iter().map(|word| u64::from(*word) * 4).sum();
            (bytes(&words[..turn]), bytes(&words[turn..]))
        }
    }
}

async fn give(call: &mut OutgoingCall, len: u64) -> Result<(), CallError> {
    for piece in data(len) {
        call.write(piece).await?;
    }
    Ok(())
}

/// Rx has four channels per connection, and OpenAFS's client makes one connection for four threads.
const CALLERS_PER_CONNECTION: u32 = 4;
const SMALL_BYTES: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_numbers_turns_once() {
        let file = |words: &[u32]| Command::File {
            words: words.to_vec().try_into().unwrap(),
        };
        assert!(check(&file(&[1, 2, 0, 3, 4])).is_ok());
        assert!(check(&file(&[1, 2, 0, 3, 0])).is_ok());
        assert!(check(&file(&[0, 3])).is_ok());
        let twice = check(&file(&[1, 0, 3, 0, 5]));
        assert!(matches!(twice, Err(RxperfError::TurnsTwice)));
        assert_eq!(amounts(&file(&[1, 2, 0, 3, 4])), (12, 28));
        assert_eq!(amounts(&file(&[0, 3])), (0, 12));
    }
}
