//! A panic is one log line, caught or not.
//!
//! Panics are caught in a handler's call (`rpc`) and in work on a thread that may block
//! (`rpc::blocking`). The default hook prints several lines past the log. This hook logs one line
//! instead, so code that catches a panic returns its error and logs nothing of its own.
//!
//! Calls of the embedded engine (`volume`, `celldb`) are an exception: it panics on some damaged
//! pages. The caller reports such a panic as an error, with the name of the damaged file.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

/// Replaces the default hook for the whole process. The log must be started before.
///
/// Tests look for the words "panicked at" in the output of programs.
pub(crate) fn log_in_one_line() {
    std::panic::set_hook(Box::new(report));
}

fn report(panic: &PanicHookInfo<'_>) {
    if cellar_guarded::is_guarded() {
        return;
    }
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let place = panic
        .location()
        .map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let line = format!(
        "thread {thread} panicked at {place}: {}",
        cellar_guarded::message(panic.payload())
    );
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!("{line}");
    } else {
        // `--log off` silences the log, but a program that ends by a panic must say so.
        eprintln!("cellar: {line}");
    }
    // Printed only with RUST_BACKTRACE, which is a request for more lines.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        eprintln!("{backtrace}");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::panic::catch_unwind;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(panics: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            assert!(catch_unwind(panics).is_err(), "it did not panic");
        });
        let bytes = log.0.lock().clone();
        String::from_utf8(bytes).expect("a log in UTF-8")
    }

    /// The hook belongs to the process, so the cases are one test.
    #[test]
    fn a_caught_panic_is_one_log_line() {
        let before = std::panic::take_hook();
        log_in_one_line();
        let lines = [
            logged(|| panic!("a page is damaged")),
            logged(|| assert_eq!(1, 2, "two\nlines")),
            logged(|| std::panic::panic_any(7)),
        ];
        let guarded = logged(|| {
            assert!(cellar_guarded::guarded(|| panic!("caught")).is_err());
            panic!("not caught");
        });
        std::panic::set_hook(before);
        assert!(!guarded.contains(": caught"), "{guarded}");
        assert!(guarded.ends_with(": not caught\n"), "{guarded}");
        for (line, wanted) in lines.iter().zip([
            ": a page is damaged",
            r"two\nlines\n  left: 1\n right: 2",
            ": no message",
        ]) {
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert!(line.ends_with(&format!("{wanted}\n")), "{line}");
            assert!(line.contains("ERROR"), "{line}");
            assert!(
                line.contains("panicked at crates/cellar/src/panics.rs:"),
                "{line}"
            );
        }
    }
}
