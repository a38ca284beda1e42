//! The log on standard error, and its filter, which can change while the program runs.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload;

/// The form of log lines.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The filter of the running log.
struct Log {
    /// The filter if none is named.
    usual: &'static str,
    set: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Starts the log. A wrong filter is reported, and replaced by the usual one.
pub(crate) fn start(format: LogFormat, filter: Option<&str>, usual: &'static str) {
    let wanted = filter.unwrap_or(usual);
    let filter = EnvFilter::try_new(wanted).unwrap_or_else(|error| {
        eprintln!("cellar: --log {wanted}: {error}; logging {usual}");
        EnvFilter::new(usual)
    });
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // Without this the log would panic when standard error is closed, for instance after the
        // terminal is gone.
        .log_internal_errors(false);
    let set: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync> = match format {
        LogFormat::Text => {
            let log = log.with_target(false).compact().with_filter_reloading();
            let handle = log.reload_handle();
            log.init();
            Box::new(move |filter| handle.reload(filter))
        }
        LogFormat::Json => {
            let log = log.json().with_filter_reloading();
            let handle = log.reload_handle();
            log.init();
            Box::new(move |filter| handle.reload(filter))
        }
    };
    // A program starts its log once.
    let _first = LOG.set(Log { usual, set });
}

/// Replaces the filter; `None` stands for the usual one.
///
/// # Errors
/// The text is no filter.
pub(crate) fn set_filter(filter: Option<&str>) -> Result<(), String> {
    let Some(log) = LOG.get() else {
        return Ok(());
    };
    let filter = EnvFilter::try_new(filter.unwrap_or(log.usual));
    let filter = filter.map_err(|cause| cause.to_string())?;
    (log.set)(filter).map_err(|cause| cause.to_string())
}
