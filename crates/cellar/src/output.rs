//! Standard output whose reader may go away: `cellar ls ... | head` ends quietly, as other tools
//! do.
//!
//! `print!` panics when its reader is gone. [`out!`] and [`outln!`] end the program instead: its
//! work is done, and the rest of the output is not wanted. Other failures (a full disk) are
//! reported.
//!
//! Names and messages come from servers and other users, and may hold control characters that drive
//! a terminal. [`out!`], [`outln!`] and [`errln!`] print those as `\u001b`, for terminals, pipes
//! and files alike. Line ends and tabs are layout and stay. The form is JSON's, so JSON output
//! stays valid and keeps its meaning. File names may hold line ends too; [`one_line`] escapes
//! those.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints. Ends the program if the reader of standard output is gone.
pub(crate) fn print(text: Arguments<'_>) {
    let text = text.to_string();
    write(visible(&text).as_bytes());
}

/// Writes bytes as they are, for programs. Ends the program if the reader of standard output is
/// gone.
pub(crate) fn write(bytes: &[u8]) {
    match std::io::stdout().lock().write_all(bytes) {
        Ok(()) => {}
        Err(cause) if cause.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(cause) => {
            eprintln!("cellar: standard output: {cause}");
            std::process::exit(1);
        }
    }
}

/// Prints on standard error. If its reader is gone, that is not a failure.
pub(crate) fn complain(text: Arguments<'_>) {
    let text = text.to_string();
    let _unread = std::io::stderr().write_all(visible(&text).as_bytes());
}

/// Text with its control characters escaped, except line ends and tabs.
fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

/// Text with all its control characters escaped: for the name of a file.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, char::is_control)
}

fn escaped(text: &str, is_wrong: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_wrong) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_wrong(c) {
            // Control characters end at U+009F: four digits hold them.
            true => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Columns of the terminal on standard output; unlimited if it is not a terminal.
pub(crate) fn columns() -> usize {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        // A terminal that does not know its size is taken to have 80 columns.
        Ok(size) if size.ws_col == 0 => 80,
        Ok(size) => size.ws_col.into(),
        Err(_) => usize::MAX,
    }
}

/// Like `print!`.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Like `println!`.
macro_rules! outln {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Like `eprintln!`.
macro_rules! errln {
    ($($text:tt)*) => {
        $crate::output::complain(format_args!("{}\n", format_args!($($text)*)))
    };
}

pub(crate) use {errln, out, outln};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_layout_stays() {
        assert!(matches!(visible("name\tdate\nö\u{a0}\n"), Cow::Borrowed(_)));
        assert_eq!(
            visible("\u{1b}]0;x\u{7}\r\u{7f}\u{9b}2J\n"),
            "\\u001b]0;x\\u0007\\u000d\\u007f\\u009b2J\n"
        );
        assert_eq!(one_line("a\nb\tc"), "a\\u000ab\\u0009c");
    }

    #[test]
    fn json_with_control_characters_stays_what_it_is() {
        let value = serde_json::json!({"name": "a\u{1b}\u{7f}\u{9b}\n"});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = visible(&text);
        assert!(!shown.contains(['\u{7f}', '\u{9b}']));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }
}
