//! Common code of file server and client for files in objects; it knows neither files nor volumes.
//!
//! * [`arithmetic`]: striping, the location of bytes;
//! * [`erasure`]: parity, and data from parity;
//! * [`placement`]: the choice of devices for the objects of a new file;
//! * [`Devices`]: the cell's devices, their reported state and failures that this process noticed;
//! * [`Reader`] and [`Writer`]: the bytes of a layout, over many devices at once;
//! * [`repair`]: rebuilds one object of a layout on another device.
//!
//! A read proceeds as follows. A range of the file is a contiguous range of each stripe's object.
//! One call for each object streams it, and the reader takes the pieces from the calls in turn, in
//! the order of the file. A device that fails or is silent for a second is left out: another copy
//! is read, or the bytes are computed from the others. A write creates a new version of each object
//! that it touches. No reader sees that version before the vnode names it, so an abandoned write
//! just stops.

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
