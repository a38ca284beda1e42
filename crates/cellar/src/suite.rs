//! The command suites of AFS, `vos`, `pts`, `fs`, `bos` and `osd`, with their original option names
//! and printed forms.
//!
//! Each suite is a table of commands ([`syntax`]) and a function that runs them. `-json` prints the
//! same results as JSON.

pub(crate) mod syntax;

pub(crate) mod bos;
pub(crate) mod fs;
pub(crate) mod osd;
pub(crate) mod pts;
pub(crate) mod vos;

use std::net::{IpAddr, ToSocketAddrs};

use cellar_wire::ids::PartitionId;
use serde::Serialize;
use syntax::{
    ADMINISTRATOR, CELL_DIRECTORY, Command, DATABASE_SERVER, IGNORED, Invocation, Parameter,
    Refusal, Suite, SyntaxError, flag, optional,
};

use crate::failure::{FAILED, Failure, Outcome};
use crate::identity::IdentityOptions;
use crate::output::{out, outln};
use crate::session::{CellOptions, Session};

/// All suites, with the operations on policies as one of their own.
pub(crate) static ALL: [&Suite; 6] = [
    &vos::SUITE,
    &pts::SUITE,
    &fs::SUITE,
    &bos::SUITE,
    &osd::SUITE,
    &osd::POLICY_SUITE,
];

/// A command, for tables of many.
const fn command(
    name: &'static str,
    aliases: &'static [&'static str],
    about: &'static str,
    parameters: &'static [Parameter],
    examples: &'static [&'static str],
) -> Command {
    Command {
        name,
        aliases,
        about,
        parameters,
        examples,
    }
}

/// Switches that every operation takes. Switches of the original suites without a meaning here are
/// accepted, so that existing scripts work.
const COMMON: [Parameter; 14] = [
    optional(
        "cell",
        "cell name: the cell; default: the cell in --dir, otherwise the cell in ThisCell",
    ),
    optional(
        CELL_DIRECTORY,
        "directory: the directory of a cell on this machine; default: ./cell-data",
    ),
    optional(
        DATABASE_SERVER,
        "address: a database server of the cell; append :PORT if it is not 7003",
    ),
    flag("json", ": print JSON"),
    flag("noresolve", ": print addresses, not names"),
    flag("noauth", ": act without a token, as system:anyuser"),
    flag(
        "auth",
        ": act with your token, not as the local administrator",
    ),
    flag(
        "localauth",
        ": act as administrator with the cell's key; works on a server of the cell",
    ),
    flag(
        ADMINISTRATOR,
        ": act as administrator through the socket in --dir, or fail",
    ),
    flag(
        "verbose",
        ": report as whom the operation acts, and its steps",
    ),
    flag("help", ": print this help"),
    optional("config", IGNORED),
    flag("encrypt", ": accepted; calls are always encrypted"),
    flag("force", IGNORED),
];

/// Parses a command line. Prints help or the reason of a refusal.
fn parse(suite: &'static Suite, words: &[String]) -> Outcome<Option<Invocation>> {
    match suite.parse(words) {
        Ok(invocation) => Ok(Some(invocation)),
        Err(Refusal::Help(text)) => {
            out!("{text}");
            Ok(None)
        }
        Err(Refusal::Bare(text)) => {
            out!("{text}");
            Err(Failure::ended(status(suite, SyntaxError::Bare)))
        }
        Err(Refusal::Usage(wrong, text)) => {
            crate::output::complain(format_args!("{text}"));
            Err(Failure::ended(status(suite, wrong)))
        }
    }
}

/// The exit status of a wrong command line. Each original suite has its own.
fn status(suite: &Suite, wrong: SyntaxError) -> u8 {
    match suite.name {
        "vos" => vos::FAILED,
        "pts" => FAILED,
        _ => wrong as u8,
    }
}

/// The options that select the cell of a command line. `server` is a server of the cell, if the
/// command names one.
fn cell_options(invocation: &Invocation, server: Option<&str>) -> CellOptions {
    let dbserver = invocation.get(DATABASE_SERVER).map(str::to_owned);
    let dir = invocation.get(CELL_DIRECTORY).map(Into::into);
    let env_dir = std::env::var_os("CELLAR_DIR").map(Into::into);
    CellOptions {
        cell: invocation.get("cell").map(str::to_owned),
        server: dbserver
            .or_else(|| server.map(str::to_owned))
            .into_iter()
            .collect(),
        dir: dir.or(env_dir),
        no_dns: std::env::var_os("CELLAR_NO_DNS").is_some_and(|value| !value.is_empty()),
        admin: invocation.has(ADMINISTRATOR),
        verbose: invocation.has("verbose"),
        identity: IdentityOptions {
            noauth: invocation.has("noauth"),
            // Administrative calls are small, and encryption is worth its cost.
            encrypt: true,
            localauth: invocation.has("localauth"),
        },
        by_token: invocation.has("auth"),
        reported: Vec::new(),
    }
}

/// Advice for the operation: if it has a `-server` of its own, the switch for a database server is
/// `-dbserver`.
fn advised(invocation: &Invocation, failure: Failure) -> Failure {
    match invocation.has_own("server") {
        true => failure.with_switch("--server ADDRESS", "-dbserver ADDRESS"),
        false => failure,
    }
}

/// The address of a server that was given as an address or as a name.
fn server_address(text: &str) -> Outcome<IpAddr> {
    let text = text.rsplit_once(':').map_or(text, |(host, _)| host);
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let found = (text, 7005).to_socket_addrs().map_err(|cause| {
        Failure::new(format!("server '{text}' not found in host table ({cause})"))
    })?;
    let found: Vec<_> = found.collect();
    let address = found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first());
    address
        .map(|address| address.ip())
        .ok_or_else(|| Failure::new(format!("server '{text}' not found in host table")))
}

/// The address of a server to call. If there is an administrator's socket, a loopback address means
/// the server behind that socket, even if the server uses another address.
fn called_server(session: &Session, text: &str) -> Outcome<IpAddr> {
    let address = server_address(text)?;
    let cell = &session.cell;
    let own = &cell.database_servers;
    let here = session.client.servers().is_administrator(&cell.name);
    match own.first() {
        Some(own) if here && address.is_loopback() && !own.is_loopback() => Ok(*own),
        _ => Ok(address),
    }
}

/// Parses a quota in KiB: a number, or a number with K, M, G or T, as OpenAFS accepts it.
fn quota(what: &str, text: &str) -> Outcome<i32> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 0),
        Some((at, 'm' | 'M')) => (&text[..at], 10),
        Some((at, 'g' | 'G')) => (&text[..at], 20),
        Some((at, 't' | 'T')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let kib = digits
        .parse()
        .ok()
        .and_then(|number: i32| number.checked_mul(1 << shift));
    kib.filter(|kib| *kib >= 0).ok_or_else(|| {
        Failure::usage(format!(
            "{what}: '{text}' is not a quota: write a number of KiB, or a number with K, M, G or T, for example 10G; less than 2T; 0 for no limit"
        ))
    })
}

fn partition(text: &str) -> Outcome<PartitionId> {
    PartitionId::parse(text).ok_or_else(|| {
        Failure::usage(format!(
            "could not interpret partition name '{text}'; write a, vicepa, /vicepa or its number"
        ))
    })
}

fn number<T: std::str::FromStr>(what: &str, text: &str) -> Outcome<T> {
    text.parse()
        .map_err(|_| Failure::usage(format!("{what}: '{text}' is not a valid number")))
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &(impl Serialize + ?Sized)) -> Outcome {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(format!("cannot print JSON: {error}")))?;
    outln!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::quota;

    #[test]
    fn quotas_as_openafs_takes_them() {
        let kib = |text| quota("-max", text).ok();
        for (text, wanted) in [
            ("5000", 5000),
            ("0", 0),
            ("100k", 100),
            ("3M", 3 << 10),
            ("10G", 10 << 20),
            ("1t", 1 << 30),
        ] {
            assert_eq!(kib(text), Some(wanted), "{text}");
        }
        for wrong in ["", "G", "-1", "-1G", "2T", "1.5G", "10GB", "3000000000"] {
            assert_eq!(kib(wrong), None, "{wrong}");
        }
    }
}
