//! What file server and client share for files in objects; it knows neither files nor volumes.
//!
//! * [`arithmetic`]: striping, where bytes lie;
//! * [`erasure`]: parity, and data from parity;
//! * [`placement`]: which devices get the objects of a new file;
//! * [`Devices`]: the cell's devices, what is heard of them and what this process noticed;
//! * [`Reader`] and [`Writer`]: the bytes of a layout, over many devices at once;
//! * [`repair`]: one object of a layout made anew elsewhere.
//!
//! The life of a read: a range of the file is a contiguous range of each stripe's object; a call for each
//! streams it, and the pieces are taken from the calls in turn, in the order of the file. Who fails or
//! is silent for a second is left out: another copy is read, or the bytes are computed from the others.
//! A write makes a new version of each object it touches. Nobody sees it before the vnode names it, so
//! whoever gives up just stops.

pub mod arithmetic;
mod devices;
pub mod erasure;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
mod io;
pub mod placement;
pub mod repair;

pub use devices::{
    Condition, DEAD_TIME, DeviceList, Devices, IDLE_TIME, SUSPECT_TIME, address_of, words_of,
};
pub use error::{Error, Problem, Result};
pub use io::{Capabilities, ObjectSet, ReadOptions, Reader, WriteOptions, Writer, Written};
