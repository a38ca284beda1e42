//! Whether a cell's protection database knows the user, and how one of another realm gets into it.
//!
//! A token alone gives nothing: who has no entry in the protection database is `system:anyuser`. So that
//! nobody wonders, the database is asked after a login, and what is missing is said. A user of another
//! realm, who is called `name@realm` in the cell, asks for an entry, as OpenAFS's `aklog` does: the cell allows
//! it by having a group `system:authuser@realm`, whose quota says how many such users there may be.

use std::collections::HashMap;
use std::time::Duration;

use cellar_auth::{Level, Token};
use cellar_client::kerberos::Ticket;
use cellar_client::{Cell, Client, Config, Error, token_sentence};
use cellar_rpc::Runtime;
use cellar_wire::ids::ViceId;
use cellar_wire::pr;

/// How long the protection servers are waited for. Nothing of it is a reason to be without the token.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the protection database says.
enum Answer {
    /// There is an entry.
    Known,
    /// There was none, and now there is.
    Entered(ViceId),
    /// There is none.
    Unknown,
    /// There is none, and the server does not make one.
    Refused(Error),
}

/// Looks whether the ticket's owner is known in the cell, enters him where `register` and the cell allow it,
/// and says what came of it.
pub(super) async fn check(cell: &Cell, ticket: &Ticket, token: &Token, register: bool) {
    let foreign = ticket.client.realm != ticket.server.realm;
    let name = if foreign {
        ticket.client.foreign_name()
    } else {
        ticket.client.local_name()
    };
    let asked = ask(cell, &name, token, foreign && register);
    let nobody = format!(
        "cell {} has no user {name}: you are system:anyuser there",
        cell.name
    );
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(Answer::Known)) => {}
        Ok(Ok(Answer::Entered(id))) => eprintln!(
            "cellar login: cell {} has entered you as {name} (id {})",
            cell.name, id.0
        ),
        Ok(Ok(Answer::Unknown)) => eprintln!("cellar login: {nobody}"),
        Ok(Ok(Answer::Refused(error))) => {
            eprintln!("cellar login: {nobody}, and cannot enter yourself: {error}");
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
        // A server that does not answer says so when the token is used.
        Ok(Err(error)) => tracing::debug!(%error, "the protection server was not asked"),
        Err(_) => tracing::debug!("the protection server does not answer"),
    }
}

/// Whether a server takes the first part of the name for two.
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
