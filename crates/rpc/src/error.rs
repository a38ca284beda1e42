//! Failures of outgoing calls, by cause.

use std::io;
use std::sync::Arc;

use cellar_wire::abort::AbortCode;
use cellar_xdr::DecodeError;

/// Reason why an outgoing call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server ended the call with this code: its service's own, or one of Rx and rxgen.
    #[error("the server answered {0}")]
    Aborted(AbortCode),
    /// The server sent nothing for the dead time, or it is unreachable.
    #[error("the server does not answer")]
    Dead,
    /// The server process has ended, and with it all execution of this call. Either nothing listens
    /// on its port, or a restarted process does not know the call. Effects that it had before
    /// remain.
    #[error("the server is not running (nothing answers on its port)")]
    Gone,
    /// The call exceeded its time limit.
    #[error("the call took longer than allowed")]
    Timeout,
    /// The reply is shorter than its results, or not valid XDR.
    #[error("the reply does not parse: {0}")]
    BadReply(DecodeError),
    /// The peer closed the request stream: it answered before it had read the whole request.
    #[error("the server answered before it had read the request")]
    AnsweredEarly,
    /// The connection's queue of waiting calls is full.
    #[error("too many calls are waiting for this server")]
    TooManyCalls,
    /// The runtime that carries the connection was shut down.
    #[error("the connection's runtime has ended")]
    Closed,
    /// A failure of this machine: no socket, no local administrator's socket.
    #[error("{0}")]
    Io(#[source] Arc<io::Error>),
}

impl CallError {
    /// The code that AFS's own programs would report.
    #[must_use]
    pub fn code(&self) -> AbortCode {
        match self {
            Self::Aborted(code) => *code,
            Self::Timeout => AbortCode::RX_CALL_TIMEOUT,
            Self::BadReply(_) => AbortCode::RXGEN_CC_UNMARSHAL,
            Self::AnsweredEarly => AbortCode::RX_PROTOCOL_ERROR,
            Self::Dead | Self::Gone | Self::TooManyCalls | Self::Closed | Self::Io(_) => {
                AbortCode::RX_CALL_DEAD
            }
        }
    }

    /// Whether another server may be tried instead: this one is silent, gone or overloaded.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Dead | Self::Gone | Self::Timeout | Self::Closed | Self::Io(_)
        )
    }
}

impl From<io::Error> for CallError {
    fn from(cause: io::Error) -> Self {
        Self::Io(Arc::new(cause))
    }
}

impl From<DecodeError> for CallError {
    fn from(cause: DecodeError) -> Self {
        Self::BadReply(cause)
    }
}
