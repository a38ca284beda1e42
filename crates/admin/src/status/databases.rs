//! Questions to the database servers of a cell.

use std::net::{IpAddr, SocketAddr};

use cellar_client::{Cell, Client};
use cellar_rpc::{CallError, CallOptions};
use cellar_wire::{Procedure, pr, vl};
use futures_util::future::{join_all, join3};

use super::{DatabaseServer, Limits, version_of};

/// Asks all database servers in parallel. Silent ones are marked as such, so that later calls ask
/// the others first.
pub(super) async fn ask(client: &Client, cell: &Cell, limits: Limits) -> Vec<DatabaseServer> {
    let servers = cell.database_servers.iter();
    let servers = servers.map(async |address| {
        let server = ask_one(client, cell, *address, limits).await;
        for (answers, port) in [
            (server.location, cell.ports.location),
            (server.protection, cell.ports.protection),
        ] {
            if !answers {
                client.servers().mark_down(SocketAddr::new(*address, port));
            }
        }
        server
    });
    join_all(servers).await
}

async fn ask_one(client: &Client, cell: &Cell, address: IpAddr, limits: Limits) -> DatabaseServer {
    let at = |port| SocketAddr::new(address, port);
    let names = pr::NameToID {
        names: cellar_wire::List::default(),
    };
    let (location, protection, version) = join3(
        answers(
            client,
            cell,
            at(cell.ports.location),
            &vl::ProbeServer {},
            limits,
        ),
        answers(client, cell, at(cell.ports.protection), &names, limits),
        version_of(at(cell.ports.location), limits.answer),
    )
    .await;
    DatabaseServer {
        address,
        location,
        protection,
        version,
    }
}

/// Whether a server answers a call. A refusal is an answer.
async fn answers<P: Procedure>(
    client: &Client,
    cell: &Cell,
    peer: SocketAddr,
    arguments: &P,
    limits: Limits,
) -> bool {
    let servers = client.servers();
    let connection = servers.direct_connection(&cell.name, peer, P::package());
    let options = CallOptions {
        timeout: Some(limits.answer),
    };
    match connection.call_with(arguments, options).await {
        Ok(_) | Err(CallError::Aborted(_)) => true,
        Err(_) => false,
    }
}
