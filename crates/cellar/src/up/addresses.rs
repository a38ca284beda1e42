//! The addresses that a server registers for clients, from `NetInfo` and `NetRestrict` in
//! `server-etc`, as for OpenAFS's file server.
//!
//! | file | a line | effect |
//! | --- | --- | --- |
//! | `NetInfo` | `192.0.2.11` | only such addresses of the machine are registered, in this order |
//! | `NetInfo` | `f 203.0.113.5` | registered although no interface has it, as behind NAT |
//! | `NetRestrict` | `10.0.0.0/8` | addresses with this prefix are not registered |
//!
//! Without both files, the address of `--bind` is registered. For `0.0.0.0` that is the source
//! address of packets to other machines. The first address is the server's in the databases.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;

use crate::failure::{Failure, Outcome};

/// A line of `NetInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    address: Ipv4Addr,
    /// Registered although no interface has it.
    is_fake: bool,
}

/// A line of `NetRestrict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused {
    address: Ipv4Addr,
    /// The bits that count.
    mask: u32,
}

impl Refused {
    fn has(self, address: Ipv4Addr) -> bool {
        (u32::from(self.address) ^ u32::from(address)) & self.mask == 0
    }
}

/// The addresses that a server with this configuration directory registers, at least one.
pub(crate) fn registered(server_etc: &Path, bind: IpAddr) -> Outcome<Vec<IpAddr>> {
    let wanted = lines(&server_etc.join("NetInfo"), wanted)?;
    let refused = lines(&server_etc.join("NetRestrict"), refused)?;
    if wanted.is_none() && refused.is_none() {
        let address = match bind.is_unspecified() {
            true => source_address()?,
            false => bind,
        };
        return Ok(vec![address]);
    }
    let own = match bind {
        IpAddr::V4(bind) if !bind.is_unspecified() => vec![bind],
        _ => interfaces()?,
    };
    let chosen = choose(&own, wanted.as_deref(), &refused.unwrap_or_default());
    if chosen.is_empty() {
        return Err(Failure::new(format!(
            "NetInfo and NetRestrict in {} leave none of this server's addresses: {}",
            server_etc.display(),
            own.iter()
                .map(Ipv4Addr::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        )));
    }
    Ok(chosen.into_iter().map(IpAddr::V4).collect())
}

fn choose(own: &[Ipv4Addr], wanted: Option<&[Wanted]>, refused: &[Refused]) -> Vec<Ipv4Addr> {
    let listed: Vec<_> = match wanted {
        None => own.to_vec(),
        Some(wanted) => {
            let there = wanted.iter();
            let there = there.filter(|wanted| wanted.is_fake || own.contains(&wanted.address));
            there.map(|wanted| wanted.address).collect()
        }
    };
    let mut chosen = Vec::new();
    for address in listed {
        if !refused.iter().any(|refused| refused.has(address)) && !chosen.contains(&address) {
            chosen.push(address);
        }
    }
    chosen
}

/// The parsed lines of a file; `None` if there is no such file.
fn lines<T>(file: &Path, parse: fn(&str) -> Option<T>) -> Outcome<Option<Vec<T>>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(Failure::new(format!("{}: {cause}", file.display()))),
    };
    let mut all = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parsed = parse(line).ok_or_else(|| {
            let (file, number) = (file.display(), index + 1);
            Failure::new(format!("{file}:{number}: '{line}' is not an IPv4 address"))
        })?;
        all.push(parsed);
    }
    Ok(Some(all))
}

fn wanted(line: &str) -> Option<Wanted> {
    let fake = line.strip_prefix(['f', 'F']);
    let (address, _) = prefix(fake.unwrap_or(line).trim_start())?;
    Some(Wanted {
        address,
        is_fake: fake.is_some(),
    })
}

fn refused(line: &str) -> Option<Refused> {
    let (address, mask) = prefix(line)?;
    Some(Refused { address, mask })
}

/// An address of one to four numbers, with the mask of its prefix. Missing numbers are 0. Text
/// behind a blank is a comment.
fn prefix(line: &str) -> Option<(Ipv4Addr, u32)> {
    let word = line.split_whitespace().next()?;
    let (address, bits) = word.split_once('/').unwrap_or((word, "32"));
    let mut octets = [0; 4];
    let mut numbers = address.split('.');
    for (octet, number) in octets.iter_mut().zip(&mut numbers) {
        *octet = number.parse().ok()?;
    }
    if numbers.next().is_some() {
        return None;
    }
    let bits: u32 = bits.parse().ok().filter(|bits| *bits <= 32)?;
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    Some((Ipv4Addr::from(octets), mask))
}

/// The machine's IPv4 addresses, without those that only this machine can reach.
fn interfaces() -> Outcome<Vec<Ipv4Addr>> {
    let all = nix::ifaddrs::getifaddrs();
    let all = all.map_err(|cause| Failure::new(format!("the machine's addresses: {cause}")))?;
    let mut found = Vec::new();
    for interface in all {
        let address = interface.address.as_ref();
        let address = address.and_then(|address| address.as_sockaddr_in());
        if let Some(address) = address.map(nix::sys::socket::SockaddrIn::ip)
            && !address.is_loopback()
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    Ok(found)
}

/// The address by which other machines see this one: the source address of packets to them.
fn source_address() -> Outcome<IpAddr> {
    let ask = || -> io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // A documentation address. It is routed like any other, and connect(2) sends nothing.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 7000))?;
        Ok(socket.local_addr()?.ip())
    };
    ask().map_err(|cause| {
        Failure::new(format!(
            "cannot find the address by which clients reach this machine, since it has no route ({cause}); \
             name one with --bind ADDRESS"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etc(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("tempdir");
        for (name, text) in files {
            fs::write(directory.path().join(name), text).expect("write");
        }
        directory
    }

    fn of(bind: &str, files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let etc = etc(files);
        let found = registered(etc.path(), bind.parse().expect("address"));
        let found = found.map_err(|failure| failure.to_string())?;
        Ok(found.iter().map(IpAddr::to_string).collect())
    }

    #[test]
    fn one_bound_address() {
        let one = || Ok(vec!["192.0.2.1".to_owned()]);
        assert_eq!(of("192.0.2.1", &[]), one());
        assert_eq!(
            of("192.0.2.1", &[("NetInfo", "192.0.2.2\n192.0.2.1\n")]),
            one()
        );
        assert_eq!(
            of("192.0.2.1", &[("NetRestrict", "10/8\n127.0.0.1\n")]),
            one()
        );
        let behind_nat = [("NetInfo", "# NAT\nf 203.0.113.5 outside\n192.0.2.1\n\n")];
        let both = ["203.0.113.5", "192.0.2.1"].map(str::to_owned);
        assert_eq!(of("192.0.2.1", &behind_nat).as_deref(), Ok(&both[..]));
        for files in [
            [("NetInfo", "192.0.2.2\n")],
            [("NetRestrict", "192.0.2/24\n")],
            [("NetInfo", "")],
        ] {
            let error = of("192.0.2.1", &files).expect_err("none is left");
            assert!(
                error.contains("leave none of this server's addresses: 192.0.2.1"),
                "{error}"
            );
        }
        let error = of("192.0.2.1", &[("NetRestrict", "10.0.0.0/8\nlocalhost\n")]);
        assert!(
            error
                .expect_err("a word")
                .contains("NetRestrict:2: 'localhost'")
        );
    }

    #[test]
    fn the_machines_addresses() {
        let own = [[10, 0, 0, 1], [192, 0, 2, 1], [192, 0, 2, 9]].map(Ipv4Addr::from);
        let list = |lines: &[&str]| -> Vec<Wanted> {
            lines.iter().filter_map(|line| wanted(line)).collect()
        };
        let without = |lines: &[&str]| -> Vec<Refused> {
            lines.iter().filter_map(|line| refused(line)).collect()
        };
        assert_eq!(choose(&own, None, &without(&["10/8"])), own[1..]);
        assert_eq!(
            choose(&own, None, &without(&["192.0.2.1"])),
            [own[0], own[2]]
        );
        let wanted = list(&["192.0.2.9", "192.0.2.7", "10.0.0.1/8"]);
        assert_eq!(choose(&own, Some(&wanted), &[]), [own[2], own[0]]);
        assert_eq!(choose(&own, Some(&wanted), &without(&["10/8"])), [own[2]]);
        assert!(choose(&own, None, &without(&["0/0"])).is_empty());
        for bad in ["", "1.2.3.4.5", "256", "1.2.3.4/33", "x", "1..2"] {
            assert_eq!(prefix(bad), None, "{bad}");
        }
    }
}
