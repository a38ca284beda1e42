//! Standard output that may go away: `cellar ls ... | head` ends quietly, as other tools do.
//!
//! `print!` panics when its reader is gone. [`out!`] and [`outln!`] end the program instead: what was
//! asked for was done, and nobody wants the rest. Other failures (a full disk) are said.
//!
//! Names and messages come from servers and other users, and may hold control characters that
//! drive a terminal. [`out!`], [`outln!`] and [`errln!`] print those as `\u001b`, wherever the
//! output goes; line ends and tabs are layout and stay. The form is JSON's, so that JSON stays
//! what it is. Names of files may hold line ends too: [`one_line`].

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints, or ends the program if nobody reads.
pub(crate) fn print(text: Arguments<'_>) {
    let text = text.to_string();
    match std::io::stdout()
        .lock()
        .write_all(visible(&text).as_bytes())
    {
        Ok(()) => {}
        Err(cause) if cause.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(cause) => {
            eprintln!("cellar: standard output: {cause}");
            std::process::exit(1);
        }
    }
}

/// Prints on standard error. A reader that is gone is no failure.
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

/// As `eprintln!`.
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
