//! The service of `rxperf`: how fast is Rx itself? Service 147, port 7009.
//!
//! It has no opcodes: a request begins with a version, so the version is declared as the opcode of
//! the only procedure. What streams depends on the command:
//!
//! | command | request | reply |
//! |---|---|---|
//! | send | `bytes` bytes | |
//! | receive | | `bytes` bytes |
//! | RPC | `send` bytes | `receive` bytes |
//! | file | of each word four times as many bytes; 0 turns the direction | the same |
//!
//! The cookie ends every reply but that of the file command.
//!
//! Source: behaviour of OpenAFS's rxperf and of the server in Linux (net/rxrpc/rxperf.c).

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, List};

use crate::package::package;

/// What ends a reply.
pub const COOKIE: u32 = 0x4711;
/// The version that is spoken, as the first word of a request.
pub const VERSION: u32 = 3;
/// Chunks above this are refused with abort code -1.
pub const CHUNK_MAX: u32 = 512 * 1024;
/// Words of a file command. OpenAFS has no bound.
pub const FILE_WORDS_MAX: usize = 65_536;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The client sends.
    Send {
        /// How many bytes.
        bytes: u32,
    },
    /// The server sends.
    Receive {
        /// How many bytes.
        bytes: u32,
    },
    /// The client sends, then the server does.
    Rpc {
        /// Bytes of the request.
        send: u32,
        /// Bytes of the reply.
        receive: u32,
    },
    /// As the words say.
    File {
        /// Each moves four times as many bytes; 0 turns the direction, which only works once.
        words: List<u32, FILE_WORDS_MAX>,
    },
}

const SEND: u32 = 0;
const RECEIVE: u32 = 1;
const RPC: u32 = 3;
const FILE: u32 = 4;

/// The head of a request: the command comes before the chunks, its own words after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Bytes that the server reads at a time.
    pub read_chunk: u32,
    /// Bytes that the server writes at a time.
    pub write_chunk: u32,
    /// What to do.
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
