//! Why a call out did not succeed, by who is to blame.

use std::io;
use std::sync::Arc;

use cellar_wire::abort::AbortCode;
use cellar_xdr::DecodeError;

/// Why an outgoing call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server ended the call with this code: its service's own, or one of Rx and rxgen.
    #[error("the server answered {0}")]
    Aborted(AbortCode),
    /// Nothing was heard from the server for the dead time, or it cannot be reached.
    #[error("the server does not answer")]
    Dead,
    /// The server's process has ended, and with it whatever it was doing for this call: nothing
    /// listens on its port, or it was started again and knows nothing of the call. What it had
    /// done before that counts.
    #[error("the server is not running (nothing answers on its port)")]
    Gone,
    /// The call took longer than its caller allowed.
    #[error("the call took longer than allowed")]
    Timeout,
    /// The reply is shorter than its results, or not their XDR form.
    #[error("the reply does not parse: {0}")]
    BadReply(DecodeError),
    /// The request stream was closed by the peer: it answered before it had read all of it.
    #[error("the server answered before it had read the request")]
    AnsweredEarly,
    /// No more calls fit on this connection: its queue of waiting calls is full.
    #[error("too many calls are waiting for this server")]
    TooManyCalls,
    /// The runtime that carries the connection was shut down.
    #[error("the connection's runtime has ended")]
    Closed,
    /// Our own machine failed: no socket, no local administrator's socket.
    #[error("{0}")]
    Io(#[source] Arc<io::Error>),
}

impl CallError {
    /// The code that AFS's own programs would report for this.
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

    /// Whether another server may be asked instead: this one is silent, gone or overloaded.
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
