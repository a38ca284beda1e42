//! Why an administrative operation failed, with what was attempted.

use cellar_client::token_sentence;
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::VolumeId;

use crate::words;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A server refused, or did not answer.
    #[error("{}", refusal(what, cause, *form))]
    Refused {
        /// What was attempted.
        what: String,
        /// The answer.
        #[source]
        cause: CallError,
        /// In which order the two are said.
        form: Form,
    },
    /// The client could not do its part: no cell, no database server, no such path.
    #[error(transparent)]
    Client(#[from] cellar_client::Error),
    /// No user or group of that name or id.
    #[error("User or group doesn't exist so couldn't look up id for {0}")]
    NoSuchUserOrGroup(String),
    /// The VLDB has no entry of that name or number, or none that what was attempted needs.
    #[error("{}", no_entry(_0))]
    NoSuchEntry(String),
    /// The entry of a volume is locked by somebody.
    #[error("{what}: {}", locked(*volume, holder))]
    Locked {
        /// What was attempted.
        what: String,
        /// The volume.
        volume: VolumeId,
        /// What it is locked for, `VLOP_*`; 0 if the server does not say.
        operation: u32,
        /// Who holds the lock, as far as that is known.
        holder: String,
    },
    /// It was asked to stop, and has undone what it could.
    #[error("interrupted")]
    Interrupted,
    /// A file or stream of this machine.
    #[error("{0}")]
    Local(#[source] std::io::Error),
    /// What was asked for makes no sense, and why.
    #[error("{0}")]
    Usage(String),
    /// Several servers had to act, and it stopped in the middle; says what is left to do.
    #[error("{what}: {cause}. {left}")]
    Partial {
        /// What was attempted.
        what: String,
        /// Why it stopped.
        cause: Box<Self>,
        /// What the administrator should know.
        left: String,
    },
}

/// In which order a refusal says what was attempted and why not: the originals differ, and scripts
/// look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `WHAT: WHY`, as `vos` does.
    Colon,
    /// `WHYWHAT`, as `pts` does: what was attempted begins with what joins them.
    Before,
    /// `WHAT (WHY)`, as `bos` does.
    Brackets,
}

impl Error {
    /// A refused call.
    pub(crate) fn refused(what: impl Into<String>, cause: CallError) -> Self {
        Self::formed(what, cause, Form::Colon)
    }

    /// A refused call, said in some order.
    pub(crate) fn formed(what: impl Into<String>, cause: CallError, form: Form) -> Self {
        Self::Refused {
            what: what.into(),
            cause,
            form,
        }
    }

    /// Why it failed, without what was attempted.
    pub fn reason(&self) -> String {
        match self {
            Self::Refused { cause, .. } => explain(cause.code().to_plain(), cause).0,
            other => other.to_string(),
        }
    }

    /// The abort code behind it, if there is one.
    pub fn code(&self) -> Option<AbortCode> {
        match self {
            Self::Refused { cause, .. } => Some(cause.code().to_plain()),
            Self::Client(error) => error.code(),
            Self::Locked { .. } => Some(AbortCode::VL_ENTRYLOCKED),
            _ => None,
        }
    }
}

/// Whether a server says that it has no such call, or no such service at all.
pub(crate) fn is_unknown_there(code: AbortCode) -> bool {
    matches!(
        code.to_plain(),
        AbortCode::RXGEN_OPCODE | AbortCode::RX_INVALID_OPERATION
    )
}

/// What an overseer answers when it has no key of the version that is to be removed.
const AFSCONF_NOTFOUND: AbortCode = AbortCode(70_354_689);

/// What operations return.
pub type Result<T> = std::result::Result<T, Error>;

fn locked(volume: VolumeId, holder: &str) -> String {
    let code = AbortCode::VL_ENTRYLOCKED;
    let by = match holder {
        "" => String::new(),
        holder => format!(", {holder}"),
    };
    let words = words::of(code).unwrap_or_default();
    format!(
        "{words}{by}. 'vos examine {volume}' shows what it is about; a release or move that was cut off is \
         taken up by 'vos release {volume} --resume' or the same 'vos move'; 'vos unlock {volume}' ends any \
         other lock that was left behind"
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

fn refusal(what: &str, cause: &CallError, form: Form) -> String {
    let (why, more) = explain(cause.code().to_plain(), cause);
    match form {
        Form::Colon => format!("{what}: {why}{more}"),
        Form::Before => format!("{why}{what}{more}"),
        Form::Brackets => format!("{what} ({why}){more}"),
    }
}

/// The words for an answer; and its name, and what to do where something can be done.
fn explain(code: AbortCode, cause: &CallError) -> (String, String) {
    let hint = match code {
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
        AbortCode::VL_ENTRYLOCKED => ". 'vos unlock' ends a lock that was left behind",
        AFSCONF_NOTFOUND => ". There is no key of that version",
        _ => "",
    };
    match (token_sentence(cause), cause) {
        (Some(sentence), _) => (sentence.to_owned(), hint.to_owned()),
        (None, CallError::Aborted(_)) => match (words::of(code), code.name()) {
            (Some(words), Some(name)) => (words, format!(" ({name}, {}){hint}", code.0)),
            (Some(words), None) => (words, format!(" ({}){hint}", code.0)),
            (None, _) => (code.to_string(), hint.to_owned()),
        },
        (None, cause) => (cause.to_string(), String::new()),
    }
}
