//! The access lists of directories: shown, changed, copied and cleaned.

use std::collections::HashMap;

use cellar_client::Node;
use cellar_wire::ids::ViceId;
use cellar_wire::rxafs;

use super::{Acl, Files, RightsChange};
use crate::error::{Error, Result};
use crate::pts::Protection;

/// The change that `fs setacl` makes to a list.
#[derive(Clone, Debug)]
pub struct AclChange {
    /// Names, and the change of each one's rights.
    pub entries: Vec<(String, RightsChange)>,
    /// All other entries are removed first.
    pub clear: bool,
    /// The entries are negative ones.
    pub negative: bool,
}

impl Files<'_> {
    /// Removes deleted users and groups from the access list of a directory. Returns the new list,
    /// or `None` if nothing changed.
    ///
    /// A file server that cannot reach the protection database returns a number for every entry. A
    /// number alone therefore does not prove a deletion: this function asks the database.
    ///
    /// # Errors
    /// As [`Files::set_access_list`], or the protection database does not give the names of the
    /// numbers.
    pub async fn clean_access_list(&self, path: &str) -> Result<Option<Acl>> {
        let node = self.find(path).await?;
        let mut acl = self.acl_of(&node, path).await?;
        if !self.clean(&node, path, &mut acl).await? {
            return Ok(None);
        }
        self.store_acl(&node, path, &acl).await?;
        Ok(Some(acl))
    }

    /// Removes the entries of deleted users and groups. Replaces other numbers by names, because a
    /// file server does not take a number for a name. Returns whether any entry was removed.
    async fn clean(&self, node: &Node, path: &str, acl: &mut Acl) -> Result<bool> {
        let numbers = acl.numbers();
        if numbers.is_empty() {
            return Ok(false);
        }
        let cell = self.client.cell(&node.volume.cell)?;
        let names = Protection::new(self.client, &cell).names_of(&numbers).await;
        let names = names.map_err(|cause| Error::Partial {
            what: format!("{path}: cannot tell which users and groups were deleted"),
            cause: Box::new(cause),
            left: "The access list is unchanged".to_owned(),
        })?;
        let known: HashMap<ViceId, String> = numbers
            .into_iter()
            .zip(names)
            // For an id that it does not know, the database returns the number as the name.
            .filter(|(id, name)| id.0.to_string() != *name)
            .collect();
        Ok(acl.clean(|id| known.get(&id).cloned()))
    }

    /// The access list of a directory, or of the directory that holds a file.
    ///
    /// # Errors
    /// The path does not exist, or its list may not be seen.
    pub async fn access_list(&self, path: &str) -> Result<Acl> {
        let node = self.find(path).await?;
        self.acl_of(&node, path).await
    }

    async fn acl_of(&self, node: &Node, path: &str) -> Result<Acl> {
        let reply = self
            .client
            .call_volume(&node.volume, &path, &rxafs::FetchACL { fid: node.fid })
            .await?;
        Acl::parse(reply.access_list.as_bytes())
            .map_err(|bad| Error::Usage(format!("{path}: {bad}")))
    }

    /// Changes the access list of a directory and returns the new list. Deleted users and groups
    /// are removed, as OpenAFS's `fs` does.
    ///
    /// # Errors
    /// Not a directory, an unknown name, more than 20 entries, or the caller has no permission.
    pub async fn set_access_list(&self, path: &str, change: &AclChange) -> Result<Acl> {
        let node = self.find(path).await?;
        if !node.is_directory() {
            return Err(Error::Usage(format!(
                "{path}: only directories have access lists"
            )));
        }
        let mut acl = if change.clear {
            Acl::default()
        } else {
            self.acl_of(&node, path).await?
        };
        self.clean(&node, path, &mut acl).await?;
        for (name, rights) in &change.entries {
            acl.change(name, *rights, change.negative);
        }
        self.store_acl(&node, path, &acl).await?;
        Ok(acl)
    }

    /// Adds the entries of one directory's access list to that of another, and returns the new
    /// list.
    ///
    /// # Errors
    /// As [`Files::set_access_list`].
    pub async fn copy_access_list(&self, from: &str, to: &str, clear: bool) -> Result<Acl> {
        let node = self.find(from).await?;
        let mut source = self.acl_of(&node, from).await?;
        self.clean(&node, from, &mut source).await?;
        let node = self.find(to).await?;
        let mut acl = if clear {
            Acl::default()
        } else {
            self.acl_of(&node, to).await?
        };
        self.clean(&node, to, &mut acl).await?;
        for (list, negative) in [(&source.normal, false), (&source.negative, true)] {
            for entry in list {
                acl.set(&entry.name, entry.rights, negative);
            }
        }
        self.store_acl(&node, to, &acl).await?;
        Ok(acl)
    }

    async fn store_acl(&self, node: &Node, path: &str, acl: &Acl) -> Result<()> {
        let access_list = rxafs::AfsOpaque::new(acl.text()).map_err(|_| {
            Error::Usage(format!(
                "{path}: the access list would be longer than 1024 bytes"
            ))
        })?;
        let (client, volume) = (self.client, &node.volume);
        match client
            .store_access_list(volume, node.fid, access_list, &path)
            .await
        {
            Err(error) if error.code() == Some(cellar_wire::AbortCode::EINVAL) => {
                Err(Error::Usage(format!(
                    "{path}: the file server does not take this list: a name in it may not exist \
                     ('cellar pts examine NAME'), or there are more than 20 entries"
                )))
            }
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }
}
