//! The token that readers of metrics send.

use std::fs;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::failure::{Failure, Outcome};

/// Fewest characters of a token.
const TOKEN_MIN: usize = 16;

/// A token. It is compared by its digest, so the time of a comparison tells nothing about it.
#[derive(Clone)]
pub(crate) struct Token(sha2::digest::Output<Sha256>);

impl Token {
    /// Reads the token from a file; white space around it does not count.
    pub(crate) fn read(path: &Path) -> Outcome<Self> {
        let fault =
            |text: String| Failure::new(format!("--metrics-token {}: {text}", path.display()));
        let text = fs::read_to_string(path).map_err(|cause| fault(cause.to_string()))?;
        let token = text.trim();
        if token.len() < TOKEN_MIN {
            return Err(fault(format!(
                "the token has fewer than {TOKEN_MIN} characters; 'openssl rand -hex 32' prints a good one"
            )));
        }
        Ok(Self(Sha256::digest(token)))
    }

    /// Whether the value of an `Authorization` header carries the token.
    pub(crate) fn is_in(&self, authorization: Option<&[u8]>) -> bool {
        let sent = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
        sent.is_some_and(|sent| Sha256::digest(sent) == self.0)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}
