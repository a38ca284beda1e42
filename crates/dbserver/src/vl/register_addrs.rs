//! RegisterAddrs, ChangeAddr: the addresses of file servers.
//!
//! A file server registers at its start and after each change of its addresses. The entry for it is
//! chosen as in OpenAFS:
//!
//! 1. Another entry that has one of the addresses is *touched*. An unregistered entry is then fully
//!    covered. A registered one is fully covered if all its addresses are among the new ones.
//! 2. If the UUID is known, its entry is chosen, unless another entry is fully covered. That would
//!    mean two machines with one identity, or one with two: VL_MULTIPADDR.
//! 3. If the UUID is new and one entry is touched, that entry is chosen: a file server that lost
//!    its identity. If more are touched: VL_MULTIPADDR. If none is touched, a new entry is created.
//! 4. The chosen entry gets the UUID and the addresses, and its uniquifier rises. The other touched
//!    entries lose these addresses, and their uniquifiers rise too.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::vl::{ChangeAddr, ChangeAddrReply, RegisterAddrs, RegisterAddrsReply};
use cellar_wire::{AbortCode, List};

use super::Vl;
use super::limits::ADDRESSES_MAX;
use super::server::Server;
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Vl> for RegisterAddrs {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: uuid, address addrs)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<RegisterAddrsReply, Error> {
        Vl::check_administrator(who)?;
        let mut addresses: Vec<u32> = Vec::new();
        for &address in self.addrs.iter().filter(|&&address| address != 0) {
            if addresses.len() < ADDRESSES_MAX && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(AbortCode::VL_INDEXERANGE.into());
        }
        // An entry without an identity would count as unregistered.
        if self.uuid.is_nil() {
            return Err(AbortCode::VL_BADSERVER.into());
        }
        vl.replica
            .write(|transaction| register(&mut Tables(transaction), &self, &addresses))?;
        Ok(RegisterAddrsReply {})
    }
}

fn register(
    tables: &mut Tables<'_, '_>,
    new: &RegisterAddrs,
    addresses: &[u32],
) -> Result<(), Error> {
    let servers = tables.servers()?;
    let known = servers.iter().find(|(_, server)| server.uuid == new.uuid);
    let is_other = |server: &Server| server.uuid != new.uuid;
    let touched: Vec<&(u8, Server)> = servers
        .iter()
        .filter(|(_, s)| is_other(s) && s.addresses.iter().any(|a| addresses.contains(a)))
        .collect();
    let is_covered = |(_, s): &&&(u8, Server)| {
        s.addresses
            .iter()
            .all(|address| addresses.contains(address))
    };
    let chosen = match (known, &touched[..]) {
        (Some(_), _) if touched.iter().any(|server| is_covered(&server)) => None,
        (Some(known), _) if known.1.addresses[..] == *addresses => return Ok(()),
        (Some((number, server)), _) => Some((*number, server.uniquifier)),
        (None, []) => Some((tables.free_server_number(&servers)?, 0)),
        (None, [(number, server)]) => Some((*number, server.uniquifier)),
        (None, _) => None,
    };
    let Some((number, uniquifier)) = chosen else {
        tracing::warn!(uuid = %new.uuid, ?addresses, "addresses belong to several file servers");
        return Err(AbortCode::VL_MULTIPADDR.into());
    };
    let server = Server {
        uuid: new.uuid,
        uniquifier: uniquifier.wrapping_add(1),
        addresses: List::from_iter_cut(addresses.iter().copied()),
    };
    tables.put_server(number, &server);
    for (other, server) in touched.into_iter().filter(|(other, _)| *other != number) {
        let kept = server
            .addresses
            .iter()
            .copied()
            .filter(|a| !addresses.contains(a));
        let server = Server {
            uniquifier: server.uniquifier.wrapping_add(1),
            addresses: List::from_iter_cut(kept),
            ..server.clone()
        };
        tables.put_server(*other, &server);
    }
    Ok(())
}

/// The value of `ip1` that requests the removal of `ip2`.
const REMOVE: u32 = 0xffff_ffff;

impl Answer<Vl> for ChangeAddr {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: address ip1, address ip2)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<ChangeAddrReply, Error> {
        Vl::check_administrator(who)?;
        if self.ip2 >= 0xff00_0000 || self.ip2 == 0 {
            return Err(AbortCode::VL_BADSERVER.into());
        }
        vl.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            if self.ip1 == REMOVE {
                remove_server(&mut tables, self.ip2)
            } else {
                change_address(&mut tables, self.ip1, self.ip2)
            }
        })?;
        Ok(ChangeAddrReply {})
    }
}

fn remove_server(tables: &mut Tables<'_, '_>, address: u32) -> Result<(), Error> {
    let servers = tables.servers()?;
    let found = servers
        .iter()
        .find(|(_, server)| server.addresses.contains(&address));
    let (number, _) = found.ok_or(AbortCode::VL_NOENT)?;
    if tables.server_is_used(*number)? {
        return Err(AbortCode::VL_IDEXIST.into());
    }
    tables.delete_server(*number);
    Ok(())
}

fn change_address(tables: &mut Tables<'_, '_>, from: u32, to: u32) -> Result<(), Error> {
    let servers = tables.servers()?;
    let with = |address| {
        servers
            .iter()
            .find(move |(_, s)| s.addresses.contains(&address))
    };
    let (number, server) = with(from).ok_or(AbortCode::VL_NOENT)?;
    if with(to).is_some_and(|(other, _)| other != number) {
        return Err(AbortCode::VL_MULTIPADDR.into());
    }
    if server.is_registered() {
        // The addresses of such a server come from its own registration.
        return Err(AbortCode::VL_NOENT.into());
    }
    tables.put_server(*number, &Server::unregistered(to));
    Ok(())
}
