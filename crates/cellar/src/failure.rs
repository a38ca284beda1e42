//! How a command ends when it fails: a sentence on standard error, and an exit code.

use std::fmt;
use std::process::ExitCode;

/// A failed command. Every kind of error becomes one, at the edge.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
    /// The code is meant as it is, whatever the command usually ends with.
    exact: bool,
}

/// The operation failed.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;

/// As shells have it for a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// And that SIGTERM ended.
const TERMINATED: u8 = 143;

impl Failure {
    /// The operation failed, and this says why and what to do.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: FAILED,
            exact: false,
        }
    }

    /// The command line is wrong.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: USAGE,
            exact: false,
        }
    }

    /// Ctrl-C was pressed.
    pub(crate) fn interrupted() -> Self {
        Self {
            message: "interrupted".to_owned(),
            code: INTERRUPTED,
            exact: true,
        }
    }

    /// SIGTERM came.
    pub(crate) fn terminated() -> Self {
        Self {
            message: "terminated".to_owned(),
            code: TERMINATED,
            exact: true,
        }
    }

    /// The same, and this is to be known of it.
    pub(crate) fn but(mut self, more: &str) -> Self {
        self.message = format!("{}: {more}", self.message);
        self
    }

    /// Everything was said already.
    pub(crate) fn said(code: u8) -> Self {
        Self {
            message: String::new(),
            code,
            exact: false,
        }
    }

    /// Everything was said already, and this is the status whatever the command usually ends with.
    pub(crate) fn ended(code: u8) -> Self {
        Self::said(code).coded(code)
    }

    /// The same with this status, whatever the command usually ends with.
    pub(crate) fn coded(mut self, code: u8) -> Self {
        self.code = code;
        self.exact = true;
        self
    }

    /// The same with the status that the command usually ends with when it fails.
    pub(crate) fn with_usual(self, code: u8) -> Self {
        match self.exact {
            true => self,
            false => self.coded(code),
        }
    }

    /// How a command ends that has said what failed, if anything has.
    pub(crate) fn if_any(failed: bool) -> Outcome {
        match failed {
            true => Err(Self::said(FAILED)),
            false => Ok(()),
        }
    }

    /// Prints it, after the name of the command.
    pub(crate) fn report(&self, command: &str) -> ExitCode {
        ExitCode::from(self.report_code(command))
    }

    /// The same; answers the exit status.
    pub(crate) fn report_code(&self, command: &str) -> u8 {
        if !self.message.is_empty() {
            crate::output::errln!("{command}: {self}");
        }
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.trim_end())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        // Messages of our own errors hold their causes already; io errors are alone.
        Self::new(error)
    }
}

/// Failures of a command that goes on with its other arguments: each is said when it happens.
#[derive(Debug)]
pub(crate) struct Failures {
    command: &'static str,
    /// The exit code of the worst; 0: there was none.
    code: u8,
}

impl Failures {
    /// None yet; `command` is the name that is said with each.
    pub(crate) fn of(command: &'static str) -> Self {
        Self { command, code: 0 }
    }

    /// What came of one argument, if it did not fail.
    pub(crate) fn note<T, E: Into<Failure>>(&mut self, outcome: Result<T, E>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let failure = error.into();
                let _code = failure.report(self.command);
                self.code = self.code.max(failure.code);
                None
            }
        }
    }

    /// How the command ends.
    pub(crate) fn end(self) -> Outcome {
        match self.code {
            0 => Ok(()),
            code => Err(Failure::said(code)),
        }
    }
}

/// What commands return.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;
