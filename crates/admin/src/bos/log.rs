//! The logs of a machine.

use cellar_wire::{AbortCode, bozo};

use super::{Overseer, text};
use crate::error::{Form, Result};

/// The most bytes of a log that are read.
const LOG_MAX: usize = 1 << 30;

impl Overseer<'_> {
    /// Reads a log; the zero byte that ends the transfer is removed.
    ///
    /// # Errors
    /// There is no such log, or the caller has no permission.
    pub async fn log(&self, name: &str) -> Result<Vec<u8>> {
        self.log_end(name, LOG_MAX).await
    }

    /// The last `keep` bytes of a log. The server sends all of it.
    ///
    /// # Errors
    /// As [`Self::log`].
    pub async fn log_end(&self, name: &str, keep: usize) -> Result<Vec<u8>> {
        let name = text(name)?;
        let refused = |cause| {
            let error = self.failed(" (while reading log)", cause, Form::Before);
            let reason = "A Cellar server has the log AuditLog; its other messages are in the journal of its \
                          machine ('journalctl -u cellar')";
            error.advise(AbortCode::BZNOENT, reason)
        };
        let mut call = self
            .connection()
            .open(&bozo::GetLog { name })
            .await
            .map_err(refused)?;
        let (mut log, mut received) = (Vec::new(), 0);
        while received < LOG_MAX {
            let Some(bytes) = call.read_chunk().await.map_err(refused)? else {
                break;
            };
            received += bytes.len();
            log.extend_from_slice(&bytes);
            // Seldom, so that each byte is moved once.
            if log.len() / 2 > keep {
                log.drain(..log.len() - keep);
            }
        }
        if log.last() == Some(&0) {
            log.pop();
        }
        log.drain(..log.len().saturating_sub(keep));
        Ok(log)
    }
}
