//! The end of the audit log of a server.

use std::net::IpAddr;
use std::sync::Arc;

use cellar_admin::bos::Overseer;

use super::{Answer, Site};

/// Bytes of a log that are read from its end.
pub(crate) const LOG_BYTES: usize = 2 << 20;

impl Site {
    /// The last lines of the audit log of a server, the oldest first.
    pub(crate) async fn audit(&self, server: IpAddr) -> Arc<Answer<String>> {
        let ask = async {
            let overseer = Overseer::new(&self.client, &self.cell, server);
            let what = format!("the overseer of {server}");
            let log = overseer.log_end("AuditLog", LOG_BYTES);
            let log = self.within(&what, log).await?;
            Ok(String::from_utf8_lossy(&log).into_owned())
        };
        self.audits.get(server, ask).await
    }
}
