//! How a failed command ends: a sentence on standard error, and an exit code.

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;

/// A failed command. Errors of every kind become one at the edge of the program.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
    /// The code is final. The command's usual exit status does not replace it.
    exact: bool,
}

/// The operation failed.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;

/// The exit code of shells for a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// The exit code of shells for a program that SIGTERM ended.
const TERMINATED: u8 = 143;

impl Failure {
    /// The operation failed. The message gives the reason and the remedy.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: FAILED,
            exact: false,
        }
    }

    /// A UDP port cannot be opened.
    pub(crate) fn of_port(cause: &std::io::Error, address: SocketAddr) -> Self {
        let hint = match cause.kind() {
            std::io::ErrorKind::AddrInUse => {
                "another program uses this port (an AFS server or client, another cell?); stop it, \
                 or give another --bind or --fileserver-port"
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "this machine has no such address; 'ip address' lists those it has"
            }
            std::io::ErrorKind::PermissionDenied => "ports below 1024 need root",
            _ => "choose another with --bind or --fileserver-port",
        };
        let address_text = cause.to_string();
        let address_text = if address_text.contains(&address.to_string()) {
            address_text
        } else {
            format!("UDP {address}: {address_text}")
        };
        Self::new(format!("{address_text}: {hint}"))
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

    /// The same failure with a further sentence.
    pub(crate) fn but(mut self, more: &str) -> Self {
        self.message = format!("{}: {more}", self.message);
        self
    }

    /// The same failure, whose advice names another switch.
    pub(crate) fn with_switch(mut self, general: &str, switch: &str) -> Self {
        self.message = self.message.replace(general, switch);
        self
    }

    /// The failure was already reported; only the exit code is left.
    pub(crate) fn said(code: u8) -> Self {
        Self {
            message: String::new(),
            code,
            exact: false,
        }
    }

    /// The failure was already reported, and this status is final.
    pub(crate) fn ended(code: u8) -> Self {
        Self::said(code).coded(code)
    }

    /// The same failure with this final status.
    pub(crate) fn coded(mut self, code: u8) -> Self {
        self.code = code;
        self.exact = true;
        self
    }

    /// The same failure with the status that the command usually ends with, unless its status is
    /// final.
    pub(crate) fn with_usual(self, code: u8) -> Self {
        match self.exact {
            true => self,
            false => self.coded(code),
        }
    }

    /// The outcome of a command that has already reported its failures, if there were any.
    pub(crate) fn if_any(failed: bool) -> Outcome {
        match failed {
            true => Err(Self::said(FAILED)),
            false => Ok(()),
        }
    }

    /// Prints the failure after the name of the command.
    pub(crate) fn report(&self, command: &str) -> ExitCode {
        ExitCode::from(self.report_code(command))
    }

    /// Like [`Self::report`], but returns the exit status as a number.
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
        // The messages of our own errors include their causes; io errors have none.
        Self::new(error)
    }
}

/// Failures of a command that continues with its other arguments. Each is reported when it happens.
#[derive(Debug)]
pub(crate) struct Failures {
    command: &'static str,
    /// The highest exit code; 0 if there was no failure.
    code: u8,
}

impl Failures {
    /// No failures yet. `command` is the name that is printed with each.
    pub(crate) fn of(command: &'static str) -> Self {
        Self { command, code: 0 }
    }

    /// Returns the value of an argument that succeeded; reports the failure otherwise.
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

    /// The outcome of the command.
    pub(crate) fn end(self) -> Outcome {
        match self.code {
            0 => Ok(()),
            code => Err(Failure::said(code)),
        }
    }
}

/// The result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;
