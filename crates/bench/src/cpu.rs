//! Processor time of a server process, from the scheduler's accounting.
//!
//! `/proc/PID/task/TID/schedstat` counts the nanoseconds that each thread really ran. Unlike wall
//! time it is correct on a machine with other load, and it is finer than the clock ticks of
//! `/proc/PID/stat`. The time of threads that ended between two readings is missing there. It is
//! contained in the total of the process (`/proc/PID/stat`), so the larger of both differences
//! counts.

use std::fs;
use std::io;
use std::time::Duration;

/// Processor time consumed so far by a set of processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    threads: Duration,
    ticks: Duration,
}

impl Reading {
    /// Reads the accounts of every process in `pids`.
    ///
    /// # Errors
    /// A process does not exist or its accounts cannot be read.
    pub(crate) fn take(pids: &[u32]) -> io::Result<Self> {
        let mut reading = Self::default();
        for pid in pids {
            reading.threads += thread_time(*pid)?;
            reading.ticks += tick_time(*pid)?;
        }
        Ok(reading)
    }

    /// Time spent since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        self.threads.saturating_sub(earlier.threads).max(
            self.ticks
                .saturating_sub(earlier.ticks)
                .saturating_sub(TICK),
        )
    }
}

/// Resident memory of the processes, bytes.
pub(crate) fn resident_bytes(pids: &[u32]) -> io::Result<u64> {
    let mut total = 0;
    for pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|word| word.parse::<u64>().ok())
            .unwrap_or(0);
        total += kib * 1024;
    }
    Ok(total)
}

fn thread_time(pid: u32) -> io::Result<Duration> {
    let mut nanoseconds = 0u64;
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = entry?.path().join("schedstat");
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        nanoseconds += first_number(&text);
    }
    Ok(Duration::from_nanos(nanoseconds))
}

fn tick_time(pid: u32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command name may contain blanks and brackets: fields are counted from the last ')'.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|word| word.parse::<u64>().ok())
        .sum();
    Ok(TICK * u32::try_from(ticks).unwrap_or(u32::MAX))
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0)
}

/// Linux reports process times in hundredths of a second on every architecture that we build for.
const TICK: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Reading;

    #[test]
    fn own_work_is_seen() {
        let pid = std::process::id();
        let before = Reading::take(&[pid]).unwrap();
        let start = Instant::now();
        let mut x = 0u64;
        while start.elapsed() < Duration::from_millis(60) {
            x = std::hint::black_box(x.wrapping_add(1));
        }
        let spent = Reading::take(&[pid]).unwrap().since(&before);
        assert!(spent > Duration::from_millis(5), "{spent:?}");
    }

    #[test]
    fn a_missing_process_is_an_error() {
        assert!(Reading::take(&[u32::MAX]).is_err());
    }
}
