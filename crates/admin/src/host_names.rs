//! Names of hosts, as the commands print them.
//!
//! The originals look every address up in reverse and print the name; `-noresolve` prints dotted
//! addresses. A machine without a name server must not make a listing of a thousand entries
//! hang: each address is asked once, and a lookup that takes longer than two seconds is
//! given up together with all later ones.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// How long one reverse lookup may take.
const LOOKUP_TIME: Duration = Duration::from_secs(2);

/// A cache of names, filled by [`HostNames::learn`].
#[derive(Debug, Default)]
pub struct HostNames {
    names: HashMap<IpAddr, String>,
    resolve: bool,
}

impl HostNames {
    /// `resolve` false prints addresses only.
    pub fn new(resolve: bool) -> Self {
        Self {
            names: HashMap::new(),
            resolve,
        }
    }

    /// Looks up those of `addresses` that are not known yet.
    pub async fn learn(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses {
            if !self.resolve || self.names.contains_key(&address) {
                continue;
            }
            let lookup = tokio::task::spawn_blocking(move || dns_lookup::lookup_addr(&address));
            match tokio::time::timeout(LOOKUP_TIME, lookup).await {
                Ok(Ok(Ok(name))) => {
                    self.names.insert(address, name);
                }
                Ok(_) => {
                    self.names.insert(address, address.to_string());
                }
                Err(_) => self.resolve = false,
            }
        }
    }

    /// The name of an address, or the address itself.
    pub fn name(&self, address: IpAddr) -> String {
        self.names
            .get(&address)
            .cloned()
            .unwrap_or_else(|| address.to_string())
    }

    /// Makes a name known, for tests and for servers named by their administrators.
    pub fn insert(&mut self, address: IpAddr, name: String) {
        self.names.insert(address, name);
    }
}
