//! Bad input, end to end: a whole running cell, and everything that should not be sent to it.
//!
//! * [`messages`]: requests that stock programs sent, cut at every byte, with bits flipped, with
//!   opcodes and services that do not exist;
//! * [`answers`]: well-formed requests for what cannot be: which code each gets, from us and from
//!   OpenAFS;
//! * [`streams`]: transfers that lie about their lengths, stop midway, or are never read;
//! * [`amplification`]: how much a request whose sender is forged brings to the address it names;
//! * [`datagrams`]: garbage, floods of connections, packets forged for other people's calls.
//!
//! After each the server lives, answers on all its ports, has caught no panic, has counted what it
//! refused, and has grown by no more than a bound.

mod amplification;
mod answers;
mod cell;
mod datagrams;
mod messages;
mod packet;
mod streams;
mod words;

use crate::common::ports;
