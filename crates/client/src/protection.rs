//! Names and ids of users and groups: the two calls to the protection database that every client
//! needs.

use cellar_wire::ids::ViceId;
use cellar_wire::package::Procedure;
use cellar_wire::pr;

use crate::cell::Cell;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::volume_location::call_database;

impl Client {
    /// Calls a read procedure of the cell's PR servers until one answers.
    ///
    /// # Errors
    /// No server answers, or one refuses the call.
    pub async fn call_protection<P: Procedure>(
        &self,
        cell: &Cell,
        arguments: &P,
    ) -> Result<P::Reply> {
        let servers = cell.protection_servers().collect();
        call_database(self.servers(), cell, servers, arguments).await
    }

    /// The ids of names; 32766 (anonymous) for names that do not exist.
    ///
    /// # Errors
    /// As [`Client::call_protection`]; a name over 63 bytes.
    pub async fn ids_of(&self, cell: &Cell, names: &[&str]) -> Result<Vec<ViceId>> {
        let mut list = pr::NameList::new();
        for name in names {
            let too_long = || Error::BadAnswer {
                what: format!("name '{name}'"),
                detail: "names of users and groups have at most 63 bytes".to_owned(),
            };
            let name = pr::PrName::new(name.as_bytes()).map_err(|_| too_long())?;
            list.push(name).map_err(|_| too_long())?;
        }
        let reply = self
            .call_protection(cell, &pr::NameToID { names: list })
            .await?;
        expect(reply.ids.into_vec(), names.len(), "NameToID")
    }

    /// The names of ids; decimal numbers for ids that do not exist.
    ///
    /// # Errors
    /// As [`Client::call_protection`].
    pub async fn names_of(&self, cell: &Cell, ids: &[ViceId]) -> Result<Vec<String>> {
        let list = pr::IdList::from_iter_cut(ids.iter().copied());
        let reply = self
            .call_protection(cell, &pr::IDToName { ids: list })
            .await?;
        let names = reply.names.iter().map(ToString::to_string).collect();
        expect(names, ids.len(), "IDToName")
    }
}

fn expect<T>(list: Vec<T>, wanted: usize, call: &str) -> Result<Vec<T>> {
    if list.len() == wanted {
        return Ok(list);
    }
    let detail = format!("{} answers to {wanted} questions", list.len());
    Err(Error::BadAnswer {
        what: call.to_owned(),
        detail,
    })
}
