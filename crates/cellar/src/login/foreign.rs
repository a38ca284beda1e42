//! A user in a cell of another realm: his name there, and how he gets into its protection database.
//!
//! As OpenAFS's `aklog` does: who has no entry under `name@realm` asks for one. The cell allows it by having
//! a group `system:authuser@realm`, whose quota says how many such users there may be; it refuses
//! otherwise, and the user is `system:anyuser` there.

use std::collections::HashMap;

use cellar_auth::{Level, Token};
use cellar_client::kerberos::Ticket;
use cellar_client::{Cell, Client, Config, Error};
use cellar_rpc::Runtime;
use cellar_wire::ids::ViceId;
use cellar_wire::pr;

/// Makes the ticket's owner known in a cell of another realm, and says what came of it. Nothing of it is a
/// reason to be without the token.
pub(super) async fn register(cell: &Cell, ticket: &Ticket, token: &Token) {
    let name = ticket.client.foreign_name();
    match known(cell, &name, token).await {
        Ok(None) => {}
        Ok(Some(id)) => eprintln!(
            "cellar login: cell {} has entered you as {name} (id {})",
            cell.name, id.0
        ),
        Err(error) => eprintln!(
            "cellar login: you are not in the protection database of cell {}, and cannot enter \
             yourself as {name}: {error}",
            cell.name
        ),
    }
}

/// The id of a new entry; `None` if there was one.
async fn known(cell: &Cell, name: &str, token: &Token) -> Result<Option<ViceId>, Error> {
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
    let outcome = enter(&client, cell, name).await;
    runtime.shutdown();
    outcome
}

async fn enter(client: &Client, cell: &Cell, name: &str) -> Result<Option<ViceId>, Error> {
    let ids = client.ids_of(cell, &[name]).await?;
    if ids.iter().any(|id| *id != ViceId::ANONYMOUS) {
        return Ok(None);
    }
    let too_long = |_| Error::BadAnswer {
        what: format!("name '{name}'"),
        detail: "names of users have at most 63 bytes".to_owned(),
    };
    let arguments = pr::NewEntry {
        name: pr::PrNameArgument::new(name.as_bytes().to_vec()).map_err(too_long)?,
        flag: 0,
        owner: ViceId(0),
    };
    let reply = client.call_protection(cell, &arguments).await?;
    Ok(Some(reply.id))
}
