//! Metrics and health of a daemon over HTTP, on a port or a Unix socket.
//!
//! | path | answer |
//! | --- | --- |
//! | `/metrics` | the metrics, for Prometheus |
//! | `/metrics/volumes` | figures of single volumes, a bounded number of them; file servers only |
//! | `/healthz` | 200 while the process answers |
//! | `/readyz` | 200 if every part serves; otherwise 503 and one line for each part that does not |
//!
//! A port without an address is bound to the loopback address. Every account of the machine can
//! read it. An address that other machines reach needs a token. A socket is open to its owner only.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

pub(crate) mod process;
mod server;
pub(crate) mod snapshot;
mod token;

pub(crate) use server::{Metrics, Pages};
use token::Token;

/// The place of a daemon's metrics, and their readers.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MetricsOptions {
    /// Serve metrics for Prometheus over HTTP, and the pages /healthz and /readyz. PLACE is a port
    /// of this machine, an address and port, or the path of a Unix socket.
    #[arg(long, value_name = "PLACE")]
    metrics: Option<MetricsAddress>,
    /// A file with the token that readers of metrics must send ('Authorization: Bearer TOKEN').
    /// Needed if other machines can reach the address.
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_token: Option<PathBuf>,
}

/// The address of a metrics server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// A TCP port.
    Port(SocketAddr),
    /// The path of a Unix socket.
    Socket(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Socket(text.into()));
        }
        let port = text
            .parse::<u16>()
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        port.or_else(|_| text.parse()).map(Self::Port).map_err(|_| {
            format!("'{text}' is neither a port nor a path: for example 9107, 192.0.2.1:9107 or /run/cellar.metrics")
        })
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => address.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let port = |address: &str| Ok(MetricsAddress::Port(address.parse().expect("address")));
        assert_eq!("9107".parse(), port("127.0.0.1:9107"));
        assert_eq!("192.0.2.1:9107".parse(), port("192.0.2.1:9107"));
        assert_eq!(
            "/run/m".parse(),
            Ok(MetricsAddress::Socket("/run/m".into()))
        );
        for wrong in ["", "m", "70000", "192.0.2.1"] {
            assert!(wrong.parse::<MetricsAddress>().is_err(), "{wrong}");
        }
    }
}
