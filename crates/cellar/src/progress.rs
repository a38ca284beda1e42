//! Progress of what takes longer than a second, on standard error, if that is a terminal.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter work shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// A bar that appears when the work takes long.
pub(crate) struct Progress {
    bar: ProgressBar,
    shown: AtomicBool,
    since: std::time::Instant,
    /// Nothing moves, for a reason: until something does again.
    waiting: AtomicBool,
    styles: Styles,
}

/// How a bar looks.
struct Styles {
    usual: Option<ProgressStyle>,
    /// Without a rate, and a time that follows from it.
    waiting: Option<ProgressStyle>,
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
        let style = |template: &str| {
            let style = ProgressStyle::with_template(template).ok()?;
            Some(style.progress_chars("=> "))
        };
        let still = template
            .replace("{bytes_per_sec:>12} {eta:>5}", "waits")
            .replace("{bytes_per_sec:>12}", "waits");
        let styles = Styles {
            usual: style(template),
            waiting: style(&still),
        };
        if let Some(style) = &styles.usual {
            bar.set_style(style.clone());
        }
        Self {
            bar,
            shown: false.into(),
            since: std::time::Instant::now(),
            waiting: false.into(),
            styles,
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
        if self.waiting.swap(false, Relaxed) {
            if let Some(style) = &self.styles.usual {
                self.bar.set_style(style.clone());
            }
            // The rate is that of what comes from here on.
            return self.skip(amount);
        }
        self.bar.inc(amount);
        self.show_if_late();
    }

    /// So much is done, but it was not done now: no rate follows from it.
    pub(crate) fn skip(&self, amount: u64) {
        self.bar.inc(amount);
        // Counted first: what is not counted when the rate begins anew is counted into the new one.
        self.bar.tick();
        self.bar.reset_eta();
        self.show_if_late();
    }

    /// Nothing will move for a while, which says nothing about the rate at which things do.
    pub(crate) fn waits(&self) {
        self.waiting.store(true, Relaxed);
        if let Some(style) = &self.styles.waiting {
            self.bar.set_style(style.clone());
        }
        self.show_if_late();
        self.bar.tick();
    }

    fn show_if_late(&self) {
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
        self.bar.suspend(|| crate::output::errln!("{line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many that no machine is too slow to count them at a rate that would be seen.
    const MANY: u64 = 1 << 50;
    const SLOW: f64 = 1e9;

    fn a_moment() {
        std::thread::sleep(Duration::from_millis(5));
    }

    #[test]
    fn what_was_there_before_and_what_follows_a_wait_make_no_rate() {
        let progress = Progress::bytes(Some(8 * MANY));
        a_moment();
        progress.skip(MANY);
        a_moment();
        assert!(progress.bar.per_sec() < SLOW, "{}", progress.bar.per_sec());
        progress.waits();
        a_moment();
        progress.add(MANY);
        a_moment();
        assert!(progress.bar.per_sec() < SLOW, "{}", progress.bar.per_sec());
        progress.add(MANY);
        a_moment();
        progress.bar.tick();
        assert!(progress.bar.per_sec() > SLOW, "{}", progress.bar.per_sec());
        assert_eq!(progress.bar.position(), 3 * MANY);
    }
}
