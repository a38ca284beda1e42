//! Heartbeats: report the state of the devices to the cell's databases every two seconds.
//!
//! States are not replicated, so each database server gets them. Each has a task of its own, so a
//! server that does not answer does not delay the others. When the entries of the devices have
//! changed, this server reads its own entries again.

use std::net::SocketAddr;
use std::sync::Arc;

use cellar_auth::Level;
use cellar_auth::capability::address_words;
use cellar_rpc::{CallOptions, Connection, Security};
use cellar_wire::osddb::{self, GetOsd, Heartbeat, OsdName};
use cellar_wire::{AbortCode, List};

use crate::limits::{HEARTBEAT_INTERVAL, HEARTBEAT_PATIENCE};
use crate::server::Server;
use crate::statistics::add;

impl Server {
    /// Runs until the server stops.
    pub(crate) async fn send_heartbeats(self: Arc<Self>) {
        for &database in &self.config.databases {
            let server = self.clone();
            tokio::task::spawn_local(async move { server.send_reports(database).await });
        }
    }

    async fn send_reports(self: Arc<Self>, database: SocketAddr) {
        let mut ticks = tokio::time::interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut connection = None;
        let (mut revision, mut failed) = (None, false);
        while !self.is_stopping() {
            ticks.tick().await;
            // After a refusal the connection is created again, with the cell's newest key.
            let Some(to) = connection.get_or_insert_with(|| self.database(database)) else {
                connection = None;
                continue;
            };
            match self.send_report(to, &mut revision).await {
                Ok(()) => {
                    add(&self.statistics.heartbeats, 1);
                    if std::mem::take(&mut failed) {
                        let name = self.config.server_names.get(&database.ip());
                        tracing::info!(server = %database, name, "the OSD database takes heartbeats again");
                    }
                }
                Err(code) => {
                    add(&self.statistics.heartbeats_failed, 1);
                    if !std::mem::replace(&mut failed, true) {
                        let hint = match code {
                            AbortCode::ENOENT => "a device is not in the cell's table",
                            _ => "trying again",
                        };
                        let name = self.config.server_names.get(&database.ip());
                        tracing::warn!(server = %database, name, %code, hint, "the OSD database refuses heartbeats");
                    }
                    connection = None;
                }
            }
        }
    }

    fn database(&self, address: SocketAddr) -> Option<Connection> {
        let security = self.config.authority.localauth(Level::Crypt);
        let security = security.unwrap_or_else(|_| Security::null());
        let port = self.port.get()?;
        Some(port.connect(address, osddb::PACKAGE.service_id, security))
    }

    async fn send_report(
        self: &Arc<Self>,
        connection: &Connection,
        known: &mut Option<u64>,
    ) -> Result<(), AbortCode> {
        let server = self.clone();
        let states: Vec<_> = cellar_rpc::blocking(move || {
            let devices = server.devices.iter();
            devices.map(|device| device.state()).collect()
        })
        .await;
        let addresses = self.config.addresses.iter().copied().map(address_words);
        let port = self
            .port
            .get()
            .map_or(0, |port| port.local_address().port());
        let beat = Heartbeat {
            states: List::from_iter_cut(states),
            addresses: List::from_iter_cut(addresses),
            port: port.into(),
        };
        let options = CallOptions {
            timeout: Some(HEARTBEAT_PATIENCE),
        };
        let reply = connection.call_with(&beat, options).await;
        let revision = reply.map_err(|failure| failure.code())?.devices;
        if *known == Some(revision) {
            return Ok(());
        }
        for device in &self.devices {
            let asked = GetOsd {
                id: device.id,
                name: OsdName::default(),
            };
            let reply = connection.call_with(&asked, options).await;
            let entry = reply.map_err(|failure| failure.code())?.osd.entry;
            device.apply_entry(entry.name.to_string(), entry.flags);
        }
        *known = Some(revision);
        Ok(())
    }
}
