//! `cellar login`: gets a Kerberos ticket and with it a token, in one step. With `--keep` it renews
//! them for as long as a service or batch job runs.
//!
//! The token is the ticket for the cell's service in the user's credential cache; `cellar`'s own
//! commands take it from there ([`crate::identity`]). If the kernel has an AFS client, it gets the
//! token too.

mod database_entry;
mod keep;
mod obtain;

use std::ffi::OsString;
use std::path::PathBuf;

use cellar_client::CellName;
use cellar_kerberos::keyring::{self, KeyringKind};
use cellar_kerberos::{self as kerberos, CacheName};
use cellar_wire::ids::AfsTime;
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::identity::now;
use crate::output::outln;
use crate::session::CellOptions;
use crate::suite::print_json;
use obtain::{ObtainedToken, Proof, Request};

/// Exit statuses of `aklog`: one of several cells failed, no Kerberos ticket, no token. Source:
/// aklog(1).
const AKLOG_SOME_FAILED: u8 = 2;
const AKLOG_KERBEROS: u8 = 4;
const AKLOG_TOKEN: u8 = 5;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar login                         get a token from the Kerberos tickets that you have
  cellar login alice                   ask for alice's password first
  cellar login --cell example.org --realm EXAMPLE.ORG
  cellar login --keytab /etc/backup.keytab --keep                  renew the tokens until stopped
  cellar login --keytab ~/job.keytab --keep -- ./job.sh            renew them while a job runs")]
pub(crate) struct Options {
    /// The Kerberos principal: NAME or NAME@REALM. Default: the owner of your tickets; with
    /// --keytab, the first principal of the keytab.
    principal: Option<String>,
    /// The cell; may be given several times. Default: the cell in --dir, otherwise the cell in
    /// ThisCell.
    #[arg(long = "cell", value_name = "NAME")]
    cells: Vec<String>,
    /// A database server of the cell.
    #[arg(long, value_name = "ADDRESS")]
    server: Vec<String>,
    /// Directory of a cell on this machine. Default: ./cell-data if it exists.
    #[arg(long, value_name = "DIR", env = "CELLAR_DIR")]
    dir: Option<PathBuf>,
    /// The Kerberos realm of the cell's service, and of PRINCIPAL if it names no realm.
    #[arg(long, value_name = "REALM")]
    realm: Option<String>,
    /// Log in with a key from this keytab instead of a password.
    #[arg(long, value_name = "FILE")]
    keytab: Option<PathBuf>,
    /// The credential cache to use. Default: KRB5CCNAME, otherwise your usual cache; a COMMAND gets
    /// a cache of its own.
    #[arg(long, value_name = "NAME")]
    cache: Option<String>,
    /// The lifetime of new tickets, in the syntax of kinit: 10h, 7d. The KDC may grant less.
    #[arg(long, short, value_name = "TIME")]
    lifetime: Option<String>,
    /// How long new tickets can be renewed, in the same syntax.
    #[arg(long, short, value_name = "TIME")]
    renewable: Option<String>,
    /// Whether the kernel's AFS client gets the token too.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    kernel: Kernel,
    /// The kernel keyring that gets the token.
    #[arg(long, value_enum, value_name = "WHICH", default_value = "session")]
    keyring: KeyringName,
    /// Do not create an entry for yourself in the protection database of a cell of another realm.
    #[arg(long)]
    no_register: bool,
    /// Keep running, and renew tickets and tokens before they expire.
    #[arg(long)]
    keep: bool,
    /// Behave as aklog: use the tickets that you have, and print nothing.
    #[arg(long, hide = true, conflicts_with_all = ["principal", "keytab", "keep"])]
    aklog: bool,
    /// As aklog -d: print the tokens.
    #[arg(long, hide = true, requires = "aklog")]
    debug: bool,
    /// As aklog -noauth: get no token.
    #[arg(long, hide = true, requires = "aklog")]
    check: bool,
    /// As aklog -setpag: the parent process gets a session of its own with the tokens.
    #[arg(long, hide = true, requires = "aklog")]
    setpag: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// With --keep: run this command with a credential cache and keyring of its own, and exit when
    /// it exits.
    #[arg(last = true, requires = "keep", value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kernel {
    /// If the kernel has an AFS client.
    Auto,
    /// Yes; fail if the kernel has no AFS client.
    Always,
    /// No.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum KeyringName {
    /// The keyring of this shell or service.
    Session,
    /// The keyring of all your sessions.
    User,
}

pub(crate) async fn run(options: Options) -> Outcome {
    let request = request(&options).await?;
    if options.keep {
        return keep::run(request, options.cache, &options.command).await;
    }
    let cache = options.cache.map_or_else(CacheName::own, CacheName::named);
    if options.aklog {
        return aklog(
            &request,
            &cache,
            options.debug,
            options.check,
            options.setpag,
        )
        .await;
    }
    let held = request.obtain(&cache).await?;
    if options.json {
        let all: Vec<_> = held.iter().map(as_json).collect();
        return print_json(&all);
    }
    for held in &held {
        outln!("{}", sentence(held));
    }
    Ok(())
}

/// Does the work of `aklog`, and ends with its exit statuses. `check`: gets no token. `setpag`:
/// gives the parent process a session keyring of its own, the place of kAFS's tokens.
async fn aklog(
    request: &Request,
    cache: &CacheName,
    debug: bool,
    check: bool,
    setpag: bool,
) -> Outcome {
    let granting = kerberos::granting_ticket(cache, now()).await;
    let granting = granting.map_err(|cause| Failure::from(cause).coded(AKLOG_KERBEROS))?;
    if granting.is_none() {
        return Err(Failure::from(kerberos::Error::NoTicket).coded(AKLOG_KERBEROS));
    }
    if check {
        return Ok(());
    }
    if setpag {
        if !keyring::kernel_has_client() {
            let text = "aklog: -setpag: this kernel has no AFS client whose tokens a session could have. \
                        'cellar login --keep -- COMMAND' runs a command with tickets of its own";
            return Err(Failure::new(text).coded(AKLOG_TOKEN));
        }
        keyring::join_new_session()?;
    }
    let status = match request.cells.len() {
        1 => AKLOG_KERBEROS,
        _ => AKLOG_SOME_FAILED,
    };
    let held = request.obtain(cache).await;
    let held = held.map_err(|failure| failure.coded(status))?;
    if setpag {
        let given = keyring::give_session_to_parent();
        given.map_err(|cause| {
            let text = format!("aklog: -setpag: the parent process keeps its session: {cause}");
            Failure::new(text).coded(AKLOG_TOKEN)
        })?;
    }
    if debug {
        for held in &held {
            outln!("{}", sentence(held));
        }
    }
    Ok(())
}

async fn request(options: &Options) -> Outcome<Request> {
    let cell_options = CellOptions {
        server: options.server.clone(),
        dir: options.dir.clone(),
        ..CellOptions::default()
    };
    let mut known = match cell_options.known_cells().await {
        // A token needs only the cell's name.
        Err(_) if !options.cells.is_empty() => Vec::new(),
        known => known?,
    };
    let names: Vec<CellName> = if options.cells.is_empty() {
        let home = known.first();
        let home = home.ok_or_else(|| Failure::usage("which cell? Give --cell NAME"))?;
        vec![home.name.clone()]
    } else {
        let names = options.cells.iter().map(|name| CellName::new(name));
        let mut names: Vec<CellName> = names.collect::<Result<_, _>>()?;
        if options.aklog {
            let known: Vec<_> = known.iter().map(|cell| &cell.name).collect();
            for name in &mut names {
                if let Some(whole) = expanded(name, &known) {
                    *name = whole;
                }
            }
        }
        names
    };
    if !options.server.is_empty() && names.len() > 1 {
        return Err(Failure::usage(
            "--server names a server of one cell: give only one --cell",
        ));
    }
    if let (false, [name], Some(cell)) = (
        options.server.is_empty(),
        names.as_slice(),
        known.first_mut(),
    ) {
        cell.name = name.clone();
    }
    let cell = |name: CellName| {
        let details = known.iter().find(|cell| cell.name == name).cloned();
        (name, details)
    };
    let principal = options.principal.as_ref().map(|name| match &options.realm {
        Some(realm) if !name.contains('@') => format!("{name}@{realm}"),
        _ => name.clone(),
    });
    let proof = match (&options.keytab, principal) {
        (Some(keytab), Some(principal)) => Proof::Keytab(keytab.clone(), principal),
        (Some(keytab), None) => {
            let first = cellar_kerberos::programs::first_of_keytab(keytab).await?;
            Proof::Keytab(keytab.clone(), first)
        }
        (None, Some(principal)) => Proof::Asked(Some(principal)),
        (None, None) => Proof::TicketsThere,
    };
    let mut kinit = Vec::new();
    for (letter, value) in [("-l", &options.lifetime), ("-r", &options.renewable)] {
        if let Some(value) = value {
            kinit.extend([letter.to_owned(), value.clone()]);
        }
    }
    Ok(Request {
        cells: names.into_iter().map(cell).collect(),
        realm: options.realm.clone(),
        proof,
        kinit,
        kernel: match options.kernel {
            Kernel::Auto => Some(false),
            Kernel::Always => Some(true),
            Kernel::Never => None,
        },
        place: match options.keyring {
            KeyringName::Session => KeyringKind::Session,
            KeyringName::User => KeyringKind::User,
        },
        register: !options.no_register,
    })
}

/// The one known cell whose name begins with `short`, unless that is a cell's name itself.
fn expanded(short: &CellName, known: &[&CellName]) -> Option<CellName> {
    let mut begins = known
        .iter()
        .filter(|name| name.as_str().starts_with(short.as_str()));
    match (begins.next(), begins.next()) {
        (Some(only), None) => Some((*only).clone()),
        _ => None,
    }
}

fn sentence(held: &ObtainedToken) -> String {
    let until = cellar_admin::date::ctime(AfsTime(held.ticket.ends));
    let kernel = if held.in_kernel {
        "; the kernel's AFS client has it too"
    } else {
        ""
    };
    let ObtainedToken { cell, ticket, .. } = held;
    format!(
        "{} has a token for cell {cell} until {until}{kernel}",
        ticket.client
    )
}

fn as_json(held: &ObtainedToken) -> serde_json::Value {
    json!({
        "cell": held.cell.as_str(),
        "principal": held.ticket.client.to_string(),
        "service": held.ticket.server.to_string(),
        "expires": held.ticket.ends,
        "kernel": held.in_kernel,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_stands_for_the_only_cell_that_begins_with_it() {
        let name = |text| CellName::new(text).expect("name");
        let all = [
            name("prod.example.org"),
            name("test.example.org"),
            name("testing.org"),
        ];
        let all: Vec<_> = all.iter().collect();
        assert_eq!(
            expanded(&name("prod"), &all),
            Some(name("prod.example.org"))
        );
        for same in ["test", "elsewhere.org", "prod.example.org.net"] {
            assert_eq!(expanded(&name(same), &all), None, "{same}");
        }
    }
}
