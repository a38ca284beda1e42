//! Bad input, end to end: a whole running cell receives everything that should not be sent to it.
//!
//! * [`messages`]: requests that stock programs sent, cut at every byte, with flipped bits, and
//!   with opcodes and services that do not exist;
//! * [`answers`]: well-formed requests for impossible things, with the code that each gets, from us
//!   and from OpenAFS;
//! * [`streams`]: transfers that lie about their lengths, stop midway, or are never read;
//! * [`amplification`]: how many bytes a request with a forged sender brings to that address;
//! * [`datagrams`]: garbage, floods of connections, and packets forged for other clients' calls.
//!
//! After each test the server still runs and answers on all its ports. It has caught no panic, has
//! counted its refusals, and has not grown beyond a bound.

mod amplification;
mod answers;
mod cell;
mod datagrams;
mod messages;
mod packet;
mod streams;
mod words;

use crate::common::ports;
