//! Errors of administrative operations: the attempted action and the cause.

use cellar_client::token_sentence;
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::VolumeId;

use crate::words;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A server refused the call or did not answer.
    #[error("{}", refusal(what, cause, *form, advice.as_deref()))]
    Refused {
        /// The attempted action.
        what: String,
        /// The cause.
        #[source]
        cause: CallError,
        /// The order in which the message gives the action and the cause.
        form: Form,
        /// The true reason or the remedy, if the operation knows more than the code says. It
        /// replaces the general advice for the code.
        advice: Option<String>,
    },
    /// The client itself failed: no cell, no database server, no such path.
    #[error(transparent)]
    Client(#[from] cellar_client::Error),
    /// No user or group has that name or id.
    #[error("User or group doesn't exist so couldn't look up id for {0}")]
    NoSuchUserOrGroup(String),
    /// The VLDB has no entry of that name or number, or the entry lacks the needed volume.
    #[error("{}", no_entry(_0))]
    NoSuchEntry(String),
    /// Another operation has locked the volume's entry.
    #[error("{what}: {}", locked(*volume, holder))]
    Locked {
        /// The attempted action.
        what: String,
        /// The volume.
        volume: VolumeId,
        /// The operation that locked it, `VLOP_*`; 0 if the server does not say.
        operation: u32,
        /// The holder of the lock, as far as it is known.
        holder: String,
    },
    /// The operation was asked to stop and has undone as much as it could.
    #[error("interrupted")]
    Interrupted,
    /// A file or stream on this machine failed.
    #[error("{0}")]
    Local(#[source] std::io::Error),
    /// The request makes no sense; the text says why.
    #[error("{0}")]
    Usage(String),
    /// The operation changes several servers and stopped part way; the text says what is left to
    /// do.
    #[error("{what}: {cause}. {left}")]
    Partial {
        /// The attempted action.
        what: String,
        /// The cause.
        cause: Box<Self>,
        /// The remaining state, for the administrator.
        left: String,
    },
}

/// The order of action and cause in the message of a refusal. OpenAFS's commands differ, and
/// scripts compare their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `WHAT: WHY`, as `vos` does.
    Colon,
    /// `WHYWHAT`, as `pts` does. The action begins with its own separator, e.g. ` ; unable to`.
    Before,
    /// `WHAT (WHY)`, as `bos` does.
    Brackets,
}

impl Error {
    /// A refused call.
    pub(crate) fn refused(what: impl Into<String>, cause: CallError) -> Self {
        Self::formed(what, cause, Form::Colon)
    }

    /// A refused call, with its message in the given form.
    pub(crate) fn formed(what: impl Into<String>, cause: CallError, form: Form) -> Self {
        Self::Refused {
            what: what.into(),
            cause,
            form,
            advice: None,
        }
    }

    /// Adds a sentence to a refusal with this code. Other errors stay as they are.
    pub(crate) fn advise(mut self, wanted: AbortCode, sentence: impl Into<String>) -> Self {
        if let Self::Refused { cause, advice, .. } = &mut self
            && matches!(cause, CallError::Aborted(code) if code.to_plain() == wanted)
        {
            *advice = Some(sentence.into());
        }
        self
    }

    /// The cause alone, without the attempted action.
    pub fn reason(&self) -> String {
        match self {
            Self::Refused { cause, .. } => explain(cause.code().to_plain(), cause, None).0,
            other => other.to_string(),
        }
    }

    /// The abort code of the cause, if it has one.
    pub fn code(&self) -> Option<AbortCode> {
        match self {
            Self::Refused { cause, .. } => Some(cause.code().to_plain()),
            Self::Client(error) => error.code(),
            Self::Locked { .. } => Some(AbortCode::VL_ENTRYLOCKED),
            _ => None,
        }
    }
}

/// Whether the code says that the server does not know the call, or the whole service.
pub(crate) fn is_unknown_there(code: AbortCode) -> bool {
    matches!(
        code.to_plain(),
        AbortCode::RXGEN_OPCODE | AbortCode::RX_INVALID_OPERATION
    )
}

/// The code with which an overseer refuses to remove a key version that it does not have.
const AFSCONF_NOTFOUND: AbortCode = AbortCode(70_354_689);

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

fn locked(volume: VolumeId, holder: &str) -> String {
    let code = AbortCode::VL_ENTRYLOCKED;
    let by = match holder {
        "" => String::new(),
        holder => format!(", {holder}"),
    };
    let words = words::of(code).unwrap_or_default();
    format!(
        "{words}{by}. 'vos examine {volume}' shows the lock. To finish an interrupted release or move, repeat \
         it ('vos release {volume} --resume', or the same 'vos move'). 'vos unlock {volume}' removes any other \
         stale lock"
    )
}

fn no_entry(of: &str) -> String {
    let code = AbortCode::VL_NOENT;
    let words = words::of(code).unwrap_or_default();
    match of.parse::<u32>() {
        Ok(_) => format!("Could not fetch the entry for volume number {of} from VLDB: {words}"),
        Err(_) => format!("{words} ({of})"),
    }
}

fn refusal(what: &str, cause: &CallError, form: Form, advice: Option<&str>) -> String {
    let (why, more) = explain(cause.code().to_plain(), cause, advice);
    match form {
        Form::Colon => format!("{what}: {why}{more}"),
        Form::Before => format!("{why}{what}{more}"),
        Form::Brackets => format!("{what} ({why}){more}"),
    }
}

/// The message for a refusal, and its suffix: the code's name and number, and a hint.
fn explain(code: AbortCode, cause: &CallError, advice: Option<&str>) -> (String, String) {
    let hint = advice.map_or_else(|| hint(code).to_owned(), |advice| format!(". {advice}"));
    match (token_sentence(cause), cause) {
        (Some(sentence), _) => (sentence.to_owned(), hint),
        (None, CallError::Aborted(_)) => match (words::of(code), code.name()) {
            (Some(words), Some(name)) => (words, format!(" ({name}, {}){hint}", code.0)),
            (Some(words), None) => (words, format!(" ({}){hint}", code.0)),
            (None, _) => (code.to_string(), hint),
        },
        (None, cause) => (cause.to_string(), String::new()),
    }
}

/// The general advice for a code.
fn hint(code: AbortCode) -> &'static str {
    match code {
        AbortCode::VL_PERM
        | AbortCode::PRPERM
        | AbortCode::VOLSERBAD_ACCESS
        | AbortCode::EACCES
        | AbortCode::EPERM
        | AbortCode::BZACCESS => {
            ". Changes need an administrator with a token ('cellar login'): a superuser ('bos \
             listusers'), for users and groups a member of system:administrators. Or root or the \
             owner of the cell's directory, on the server's own machine, with --dir DIR"
        }
        AbortCode::VL_ENTRYLOCKED => ". 'vos unlock' removes a stale lock",
        AFSCONF_NOTFOUND => ". There is no key of that version",
        _ => "",
    }
}
