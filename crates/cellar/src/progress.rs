//! Progress of what takes longer than a second, on standard error, if that is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter work shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// A bar that appears when the work takes long.
pub(crate) struct Progress {
    bar: ProgressBar,
    shown: std::sync::atomic::AtomicBool,
    since: std::time::Instant,
}

impl Progress {
    /// Over `total` bytes, or over an unknown number.
    pub(crate) fn bytes(total: Option<u64>) -> Self {
        let template = if total.is_some() {
            "{msg:!30} {bar:30} {bytes:>10}/{total_bytes} {bytes_per_sec:>12} {eta:>5}"
        } else {
            "{msg:!30} {spinner} {bytes:>10} {bytes_per_sec:>12}"
        };
        Self::new(total, template)
    }

    fn new(total: Option<u64>, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self {
            bar,
            shown: false.into(),
            since: std::time::Instant::now(),
        }
    }

    /// Over names that are worked through, nobody knows how many.
    pub(crate) fn names() -> Self {
        Self::new(None, "{pos:>10} removed {per_sec:>14}  {msg:!60}")
    }

    /// Over entries of a list, nobody knows how many.
    pub(crate) fn entries() -> Self {
        Self::new(None, "{pos:>10} looked at {per_sec:>14}  {msg:!60}")
    }

    /// Over `total` things.
    pub(crate) fn count(total: u64) -> Self {
        Self::new(
            Some(total),
            "{msg:!30} {bar:30} {pos:>7}/{len} {per_sec:>14} {eta:>5}",
        )
    }

    /// So much is done in all, as far as anybody can tell.
    pub(crate) fn at(&self, amount: u64) {
        let done = self.bar.position();
        self.add(amount.saturating_sub(done));
        if self.bar.length().is_some_and(|total| total < amount) {
            self.bar.set_length(amount);
        }
    }

    /// More bytes are to come than was known.
    pub(crate) fn extend(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// What is being worked on.
    pub(crate) fn name(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// So much more is done.
    pub(crate) fn add(&self, amount: u64) {
        use std::sync::atomic::Ordering::Relaxed;
        self.bar.inc(amount);
        let late = self.since.elapsed() > PATIENCE && std::io::stderr().is_terminal();
        if late && !self.shown.swap(true, Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints a line on standard error without tearing the bar.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }
}
