//! `cellar tokens` lists the user's tokens; `cellar logout` discards them.

use cellar_client::CellName;
use cellar_kerberos::keyring;
use cellar_kerberos::{self as kerberos, CacheName, programs};
use cellar_wire::ids::AfsTime;
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::identity::now;
use crate::output::outln;
use crate::suite::print_json;

#[derive(Debug, clap::Args)]
pub(crate) struct TokensOptions {
    /// List only tokens for this cell.
    #[arg(long, value_name = "NAME")]
    cell: Option<CellName>,
    /// The credential cache to read. Default: KRB5CCNAME, otherwise your usual cache.
    #[arg(long, value_name = "NAME")]
    cache: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print in the form of OpenAFS's tokens.
    #[arg(long, hide = true)]
    original: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LogoutOptions {
    /// Discard only the tokens for this cell; may be given several times.
    #[arg(long = "cell", value_name = "NAME", conflicts_with = "all")]
    cells: Vec<CellName>,
    /// The credential cache to remove them from. Default: KRB5CCNAME, otherwise your usual cache.
    #[arg(long, value_name = "NAME")]
    cache: Option<String>,
    /// Destroy the credential cache with all its tickets, like kdestroy.
    #[arg(long)]
    all: bool,
}

/// A token in the credential cache or in the kernel.
#[derive(Serialize)]
struct Row {
    cell: String,
    /// `cache` or `kernel`.
    place: &'static str,
    /// Unknown for kernel keys.
    principal: Option<String>,
    service: Option<String>,
    /// Unix seconds.
    expires: u32,
    expired: bool,
    /// Version and encryption type of the service's key that the ticket is sealed with.
    kvno: Option<u32>,
    enctype: Option<String>,
}

pub(crate) async fn tokens(options: TokensOptions) -> Outcome {
    let cache = options.cache.map_or_else(CacheName::own, CacheName::named);
    let cell = options.cell.as_ref().map(CellName::as_str);
    let mut rows = Vec::new();
    for ticket in kerberos::cell_tickets(&cache, cell).await? {
        let sealed = ticket.sealed_with();
        rows.push(Row {
            cell: ticket.server.afs_cell().unwrap_or_default(),
            place: "cache",
            principal: Some(ticket.client.to_string()),
            service: Some(ticket.server.to_string()),
            expires: ticket.ends,
            expired: ticket.ends <= now(),
            kvno: sealed.and_then(|(_, kvno)| kvno),
            enctype: sealed.map(|(enctype, _)| kerberos::enctype_name(enctype)),
        });
    }
    for token in keyring::list()? {
        if cell.is_none_or(|cell| cell == token.cell) {
            rows.push(Row {
                cell: token.cell,
                place: "kernel",
                principal: None,
                service: None,
                expires: token.expires,
                expired: token.expires <= now(),
                kvno: token.sealed_with.and_then(|(_, kvno)| kvno),
                enctype: token
                    .sealed_with
                    .map(|(enctype, _)| kerberos::enctype_name(enctype)),
            });
        }
    }
    if options.json {
        return print_json(&rows);
    }
    if options.original {
        outln!("\nTokens held by the Cache Manager:\n");
        for row in &rows {
            outln!("{}", original(row));
        }
        outln!("   --End of list--");
        return Ok(());
    }
    if rows.is_empty() {
        outln!("No tokens: 'cellar login' gets one.");
    }
    for row in &rows {
        outln!("{}", sentence(row));
    }
    Ok(())
}

/// The line of OpenAFS's `tokens`.
fn original(row: &Row) -> String {
    let date = cellar_admin::date::ctime(AfsTime(row.expires));
    let expires = match row.expired {
        true => "[>> Expired <<]".to_owned(),
        // Month, day, hour and minute.
        false => format!("[Expires {}]", date.get(4..16).unwrap_or(&date)),
    };
    let holder = match &row.principal {
        Some(principal) => format!("User {principal}'s"),
        None => "User's".to_owned(),
    };
    format!("{holder} rxkad tokens for {} {expires}", row.cell)
}

fn sentence(row: &Row) -> String {
    let date = cellar_admin::date::ctime(AfsTime(row.expires));
    let until = if row.expired { "expired" } else { "until" };
    let who = match &row.principal {
        Some(principal) => format!("{principal} in cell {}", row.cell),
        None => format!("The kernel's AFS client in cell {}", row.cell),
    };
    let key = match (row.kvno, &row.enctype) {
        (Some(kvno), Some(enctype)) => format!(" (key version {kvno}, {enctype})"),
        (Some(kvno), None) => format!(" (key version {kvno})"),
        (None, Some(enctype)) => format!(" ({enctype})"),
        (None, None) => String::new(),
    };
    format!("{who}, {until} {date}{key}")
}

pub(crate) async fn logout(options: LogoutOptions) -> Outcome {
    let cache = options.cache.map_or_else(CacheName::own, CacheName::named);
    if options.cells.is_empty() {
        discard(&cache, None, options.all).await?;
    }
    for cell in &options.cells {
        if discard(&cache, Some(cell), false).await? == 0 {
            return Err(Failure::new(format!("you have no token for cell {cell}")));
        }
    }
    Ok(())
}

/// Discards the tokens of a cell, or of all cells; with `all`, the whole credential cache. Returns
/// their number.
async fn discard(cache: &CacheName, cell: Option<&CellName>, all: bool) -> Outcome<usize> {
    let cell = cell.map(CellName::as_str);
    let from_kernel = keyring::remove(cell)?;
    let from_cache = if all {
        let before = kerberos::cell_tickets(cache, None).await?.len();
        if programs::list(cache).await?.is_some() {
            programs::destroy(cache).await?;
        }
        before
    } else {
        kerberos::forget_token(cache, cell).await?
    };
    crate::mounted::tokens_changed();
    Ok(from_kernel + from_cache)
}
