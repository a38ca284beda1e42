//! The names of servers in the log of a mount: those of `CellServDB`, and for other servers the
//! names of their addresses. A thread looks them up when a server has answered for the first time.
//! When the server is lost later, the name server may be out of reach too.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, mpsc};
use std::thread;

use cellar_client::cell::parse_server_names;
use cellar_client::reach::Reach;

use crate::session::list_of_cells;

/// The most servers that wait for the lookup of their names.
const WAITING_MAX: usize = 256;

/// Fills the table of names. Unless `lookups` is set, only `CellServDB` is used.
///
/// # Errors
/// No thread can be started.
pub(super) fn learn(reach: &Arc<Reach>, lookups: bool) -> io::Result<()> {
    let listed = std::fs::read_to_string(list_of_cells());
    for (address, name) in parse_server_names(&listed.unwrap_or_default()) {
        reach.names().add_host(address, &name);
    }
    if !lookups {
        return Ok(());
    }
    let (new, addresses) = mpsc::sync_channel::<IpAddr>(WAITING_MAX);
    let kept = Arc::downgrade(reach);
    let thread = thread::Builder::new().name("server-names".to_owned());
    thread.spawn(move || {
        for address in addresses {
            let Some(reach) = kept.upgrade() else {
                return;
            };
            if reach.names().of(address).host.is_none()
                && let Some(name) = cellar_admin::reverse_name(address)
            {
                reach.names().add_host(address, &name);
            }
        }
    })?;
    reach.on_new_server(Box::new(move |address| {
        // The thread lives as long as this sender. A server for which there is no room stays
        // without a name.
        let _full = new.try_send(address);
    }));
    Ok(())
}
