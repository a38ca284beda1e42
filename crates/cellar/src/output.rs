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
