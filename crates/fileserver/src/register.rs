//! Registration in the volume location database: which addresses belong to this server's UUID.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cellar_rpc::Connection;
use cellar_wire::ids::AfsUuid;
use cellar_wire::{AbortCode, List, vl};
use tracing::{info, warn};

use crate::limits::{REGISTER_RETRY, REGISTER_RETRY_MAX};

/// The addresses that the database can hold: IPv4, neither loopback nor unspecified, each once. If
/// there is no such address, the loopback addresses are returned, for a cell on one machine.
pub(crate) fn registrable(addresses: &[SocketAddr]) -> Vec<u32> {
    let of = |loopback: bool| {
        let mut found: Vec<u32> = Vec::new();
        for address in addresses {
            if let IpAddr::V4(ip) = crate::host::canonical(*address).ip()
                && !ip.is_unspecified()
                && ip.is_loopback() == loopback
                && !found.contains(&ip.to_bits())
            {
                found.push(ip.to_bits());
            }
        }
        found
    };
    let addresses = of(false);
    if addresses.is_empty() {
        of(true)
    } else {
        addresses
    }
}

/// Registers with one of `servers`. Retries until one accepts or `stopping` returns true.
pub(crate) async fn register(
    uuid: &AfsUuid,
    servers: &[Connection],
    addresses: &[u32],
    stopping: impl Fn() -> bool,
) {
    if addresses.is_empty() {
        warn!("no IPv4 address to register in the volume location database");
        return;
    }
    let call = vl::RegisterAddrs {
        uuid: *uuid,
        spare1: 0,
        addrs: List::from_iter_cut(addresses.iter().copied()),
    };
    let mut pause = REGISTER_RETRY;
    while !stopping() {
        for server in servers {
            match server.call(&call).await {
                Ok(_) => {
                    info!(%uuid, addresses = addresses.len(), "registered in the VLDB");
                    return;
                }
                Err(cause) => explain(server, &cause),
            }
        }
        tokio::time::sleep(pause).await;
        pause = Duration::min(pause * 2, REGISTER_RETRY_MAX);
    }
}

fn explain(server: &Connection, cause: &cellar_rpc::CallError) {
    let server = server
        .peer()
        .map_or_else(|| "local".to_owned(), |peer| peer.to_string());
    let advice = match cause.code() {
        AbortCode::VL_MULTIPADDR => "one of the addresses belongs to another server's entry",
        AbortCode::VL_PERM => "the volume location server does not take it from us",
        _ => "trying again",
    };
    warn!(server, %cause, advice, "not registered in the volume location database");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_registered_only_when_there_is_nothing_else() {
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let real = [
            address("192.0.2.1:7000"),
            address("127.0.0.1:7000"),
            address("[::1]:7000"),
        ];
        assert_eq!(registrable(&real), [0xc000_0201]);
        assert_eq!(registrable(&real[1..]), [0x7f00_0001]);
        let twice = [
            address("192.0.2.1:7000"),
            address("[::ffff:192.0.2.1]:7000"),
        ];
        assert_eq!(registrable(&twice), [0xc000_0201]);
        assert_eq!(registrable(&[address("0.0.0.0:7000")]), [0; 0]);
    }
}
