//! Standard output that may go away: `cellar ls ... | head` ends quietly, as other tools do.
//!
//! `print!` panics when its reader is gone. [`out!`] and [`outln!`] end the program instead: what was
//! asked for was done, and nobody wants the rest. Other failures (a full disk) are said.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints, or ends the program if nobody reads.
pub(crate) fn print(text: Arguments<'_>) {
    match std::io::stdout().lock().write_fmt(text) {
        Ok(()) => {}
        Err(cause) if cause.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(cause) => {
            eprintln!("cellar: standard output: {cause}");
            std::process::exit(1);
        }
    }
}

/// Columns of the terminal that is printed to; without end where none is.
pub(crate) fn columns() -> usize {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        // A terminal that does not know its size has the usual one.
        Ok(size) if size.ws_col == 0 => 80,
        Ok(size) => size.ws_col.into(),
        Err(_) => usize::MAX,
    }
}

/// As `print!`.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// As `println!`.
macro_rules! outln {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

pub(crate) use {out, outln};
