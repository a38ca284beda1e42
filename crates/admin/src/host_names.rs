//! Host names as the commands print them.
//!
//! OpenAFS's commands look up every address in reverse and print the name; `-noresolve` prints
//! dotted addresses. Without a name server, a listing of a thousand entries must not hang.
//! Therefore each address is looked up once. After a lookup that takes more than two seconds, that
//! lookup and all later ones are given up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// The time limit of one reverse lookup.
const LOOKUP_TIME: Duration = Duration::from_secs(2);

/// The name of an address in the DNS or in /etc/hosts. Blocks.
pub fn reverse_name(address: IpAddr) -> Option<String> {
    let name = dns_lookup::lookup_addr(&address).ok()?;
    // Without a name the system returns the address.
    (name.parse() != Ok(address)).then_some(name)
}

/// A cache of names, filled by [`HostNames::learn`].
#[derive(Debug, Default)]
pub struct HostNames {
    names: HashMap<IpAddr, String>,
    resolve: bool,
}

impl HostNames {
    /// With `resolve` false, only addresses are printed.
    pub fn new(resolve: bool) -> Self {
        Self {
            names: HashMap::new(),
            resolve,
        }
    }

    /// Looks up those of `addresses` that have not been looked up before.
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

    /// Adds a name: for tests, and for servers that the administrator named.
    pub fn insert(&mut self, address: IpAddr, name: String) {
        self.names.insert(address, name);
    }
}
