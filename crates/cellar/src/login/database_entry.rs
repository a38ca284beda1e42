//! Checks whether a cell's protection database knows the user, and enters a user of another realm
//! into it.
//!
//! A token alone gives no rights: a user without an entry in the protection database is
//! `system:anyuser`. Therefore the database is asked after a login, and a missing entry is
//! reported.
//!
//! A user of another realm is called `name@realm` in the cell, and asks for an entry as OpenAFS's
//! `aklog` does. The cell allows that if it has a group `system:authuser@realm`; the quota of the
//! group limits the number of such users.

use std::collections::HashMap;
use std::time::Duration;

use cellar_auth::{Level, Token};
use cellar_client::{Cell, Client, Config, Error, token_sentence};
use cellar_kerberos::Ticket;
use cellar_rpc::Runtime;
use cellar_wire::ids::ViceId;
use cellar_wire::pr;

/// How long to wait for the protection servers. The login succeeds without their answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answer of the protection database.
enum Answer {
    /// There is an entry.
    Known,
    /// There was no entry; the server has made one.
    Entered(ViceId),
    /// There is no entry.
    Unknown,
    /// There is no entry, and the server refuses to make one.
    Refused(Error),
}

/// Checks whether the ticket's owner is known in the cell, and reports the result. If `register` is
/// set and the cell allows it, an unknown owner is entered.
pub(super) async fn check(cell: &Cell, ticket: &Ticket, token: &Token, register: bool) {
    let foreign = ticket.client.realm != ticket.server.realm;
    let name = if foreign {
        ticket.client.foreign_name()
    } else {
        ticket.client.local_name()
    };
    let asked = ask(cell, &name, token, foreign && register);
    let unregistered = format!(
        "cell {} has no user {name}: you are system:anyuser there",
        cell.name
    );
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(Answer::Known)) => {}
        Ok(Ok(Answer::Entered(id))) => eprintln!(
            "cellar login: cell {} has entered you as {name} (id {})",
            cell.name, id.0
        ),
        Ok(Ok(Answer::Unknown)) => eprintln!("cellar login: {unregistered}"),
        Ok(Ok(Answer::Refused(error))) => {
            eprintln!("cellar login: {unregistered}, and the cell does not register you: {error}");
        }
        Ok(Err(Error::Database { cause, .. })) if token_sentence(&cause).is_some() => {
            let why = match has_dot(ticket) {
                true => {
                    "servers refuse names with a dot in their first part, which older tickets use \
                     for another name (OpenAFS's take them with -allow-dotted-principals)"
                }
                false => token_sentence(&cause).unwrap_or_default(),
            };
            eprintln!(
                "cellar login: the servers of cell {} refuse {}: {why}",
                cell.name, ticket.client
            );
        }
        // If a server does not answer, the user learns of it when the token is used.
        Ok(Err(error)) => tracing::debug!(%error, "cannot ask the protection server"),
        Err(_) => tracing::debug!("the protection server does not answer"),
    }
}

/// Returns whether a server would take the first part of the name for two parts.
fn has_dot(ticket: &Ticket) -> bool {
    let first = ticket.client.components.first();
    first.is_some_and(|first| first.contains('.'))
}

async fn ask(cell: &Cell, name: &str, token: &Token, register: bool) -> Result<Answer, Error> {
    let local = |cause| Error::Local {
        what: "a UDP port for calls".to_owned(),
        cause,
    };
    let runtime = Runtime::client_only().map_err(local)?;
    let port = runtime.client_port().map_err(local)?;
    let config = Config {
        cells: vec![cell.clone()],
        administrator: None,
        security: HashMap::from([(cell.name.clone(), token.security(Level::Crypt))]),
        renewal: None,
    };
    let client = Client::new(port, config)?;
    let outcome = find(&client, cell, name, register).await;
    runtime.shutdown();
    outcome
}

async fn find(client: &Client, cell: &Cell, name: &str, register: bool) -> Result<Answer, Error> {
    let ids = client.ids_of(cell, &[name]).await?;
    if ids.iter().any(|id| *id != ViceId::ANONYMOUS) {
        return Ok(Answer::Known);
    }
    let Some(entry) = pr::PrNameArgument::new(name.as_bytes().to_vec())
        .ok()
        .filter(|_| register)
    else {
        return Ok(Answer::Unknown);
    };
    let arguments = pr::NewEntry {
        name: entry,
        flag: 0,
        owner: ViceId(0),
    };
    Ok(match client.call_protection(cell, &arguments).await {
        Ok(reply) => Answer::Entered(reply.id),
        Err(error) => Answer::Refused(error),
    })
}
