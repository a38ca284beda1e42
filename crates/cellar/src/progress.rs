//! Progress bars on standard error for work that takes longer than a second, if that is a terminal.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that takes less time shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// A bar that appears when the work takes long.
pub(crate) struct Progress {
    bar: ProgressBar,
    shown: AtomicBool,
    since: std::time::Instant,
    /// The work waits for a known reason, until something moves again.
    waiting: AtomicBool,
    styles: Styles,
}

/// The styles of a bar.
struct Styles {
    usual: Option<ProgressStyle>,
    /// Without a rate and without a remaining time.
    waiting: Option<ProgressStyle>,
}

impl Progress {
    /// A bar over `total` bytes, or over an unknown number.
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

    /// A bar over names, whose number is not known.
    pub(crate) fn names() -> Self {
        Self::new(None, "{pos:>10} removed {per_sec:>14}  {msg:!60}")
    }

    /// A bar over entries of a list, whose number is not known.
    pub(crate) fn entries() -> Self {
        Self::new(None, "{pos:>10} checked {per_sec:>14}  {msg:!60}")
    }

    /// A bar over files, whose number is not known.
    pub(crate) fn files() -> Self {
        Self::new(None, "{pos:>10} files  {msg:!60}")
    }

    /// A bar over `total` things.
    pub(crate) fn count(total: u64) -> Self {
        Self::new(
            Some(total),
            "{msg:!30} {bar:30} {pos:>7}/{len} {per_sec:>14} {eta:>5}",
        )
    }

    /// Sets the total amount done so far. If it exceeds the expected total, the total grows.
    pub(crate) fn at(&self, amount: u64) {
        let done = self.bar.position();
        self.add(amount.saturating_sub(done));
        if self.bar.length().is_some_and(|total| total < amount) {
            self.bar.set_length(amount);
        }
    }

    /// Adds bytes to the expected total.
    pub(crate) fn extend(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// Shows the name of the item in work.
    pub(crate) fn name(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// Adds to the amount done.
    pub(crate) fn add(&self, amount: u64) {
        if self.waiting.swap(false, Relaxed) {
            if let Some(style) = &self.styles.usual {
                self.bar.set_style(style.clone());
            }
            // The rate counts only from here on.
            return self.skip(amount);
        }
        self.bar.inc(amount);
        self.show_if_late();
    }

    /// Adds an amount that was done earlier and must not count for the rate.
    pub(crate) fn skip(&self, amount: u64) {
        self.bar.inc(amount);
        // Draw before the reset: bytes that are not counted before it would count for the new rate.
        self.bar.tick();
        self.bar.reset_eta();
        self.show_if_late();
    }

    /// Shows that the work waits. The wait does not lower the rate.
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

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints a line on standard output without disturbing the bar.
    pub(crate) fn out(&self, line: &str) {
        self.bar.suspend(|| crate::output::outln!("{line}"));
    }

    /// Prints a line on standard error without disturbing the bar.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| crate::output::errln!("{line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number so large that even on a slow machine it would show in the rate.
    const MANY: u64 = 1 << 50;
    const SLOW: f64 = 1e9;

    fn a_moment() {
        std::thread::sleep(Duration::from_millis(5));
    }

    #[test]
    fn earlier_packets_and_those_after_a_wait_make_no_rate() {
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
