//! The service of `rxperf`, which measures the speed of Rx. Service 147, port 7009.
//!
//! It has no opcodes: a request begins with a version. So the version is declared as the opcode of
//! the only procedure. The streamed bytes depend on the command:
//!
//! | command | request | reply |
//! |---|---|---|
//! | send | `bytes` bytes | |
//! | receive | | `bytes` bytes |
//! | RPC | `send` bytes | `receive` bytes |
//! | file | for each word four times as many bytes; 0 changes the direction | the same |
//!
//! The cookie ends every reply but that of the file command.
//!
//! Source: behaviour of OpenAFS's rxperf and of the server in Linux (net/rxrpc/rxperf.c).

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, List};

use crate::package::package;

/// The end of a reply.
pub const COOKIE: u32 = 0x4711;
/// The supported version, as the first word of a request.
pub const VERSION: u32 = 3;
/// Chunks above this are refused with abort code -1.
pub const CHUNK_MAX: u32 = 512 * 1024;
/// The most words of a file command. OpenAFS has no bound.
pub const FILE_WORDS_MAX: usize = 65_536;

/// The measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The client sends.
    Send {
        /// The number of bytes.
        bytes: u32,
    },
    /// The server sends.
    Receive {
        /// The number of bytes.
        bytes: u32,
    },
    /// The client sends, then the server does.
    Rpc {
        /// Bytes of the request.
        send: u32,
        /// Bytes of the reply.
        receive: u32,
    },
    /// Both send, in the order of the words.
    File {
        /// Each word moves four times as many bytes; 0 changes the direction, which works only
        /// once.
        words: List<u32, FILE_WORDS_MAX>,
    },
}

const SEND: u32 = 0;
const RECEIVE: u32 = 1;
const RPC: u32 = 3;
const FILE: u32 = 4;

/// The head of a request. The command precedes the chunk sizes; the command's own words follow
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Bytes that the server reads at a time.
    pub read_chunk: u32,
    /// Bytes that the server writes at a time.
    pub write_chunk: u32,
    /// The command.
    pub command: Command,
}

impl Encode for Measurement {
    fn encode(&self, out: &mut Encoder<'_>) {
        let number = match self.command {
            Command::Send { .. } => SEND,
            Command::Receive { .. } => RECEIVE,
            Command::Rpc { .. } => RPC,
            Command::File { .. } => FILE,
        };
        out.words([number, self.read_chunk, self.write_chunk]);
        match &self.command {
            Command::Send { bytes } | Command::Receive { bytes } => out.u32(*bytes),
            Command::Rpc { send, receive } => out.words([*send, *receive]),
            Command::File { words } => words.encode(out),
        }
    }
}

impl Decode for Measurement {
    const MIN_SIZE: usize = 16;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let [number, read_chunk, write_chunk] = d.words()?;
        let command = match number {
            SEND => Command::Send { bytes: d.u32()? },
            RECEIVE => Command::Receive { bytes: d.u32()? },
            RPC => {
                let [send, receive] = d.words()?;
                Command::Rpc { send, receive }
            }
            FILE => Command::File {
                words: List::decode(d)?,
            },
            _ => return Err(DecodeError::Invalid("not a command of rxperf")),
        };
        Ok(Self {
            read_chunk,
            write_chunk,
            command,
        })
    }
}

package! {
    /// Measurements of Rx.
    pub RXPERF { service: 147, port: 7009, statistics: 0 }

    /// The cookie is absent after a file command.
    3 Measure { measurement: Measurement } -> MeasureReply { cookie: u32 } streams both;
}
