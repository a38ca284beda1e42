//! Setting attributes and access lists. Data versions stay as they are.

use std::sync::Arc;

use cellar_wire::acl::AccessList;
use cellar_wire::ids::{Fid, VnodeId};

use crate::error::{Error, Result};
use crate::operations::txn::Txn;
use crate::record::VnodeRecord;
use crate::types::{Changed, Context, FileType, SetStatus, VnodeStatus};
use crate::volume::Volume;

/// Enters attributes into a record.
pub(crate) fn set_attributes(record: &mut VnodeRecord, set: &SetStatus) {
    if let Some(mode) = set.mode {
        record.mode = mode & 0o7777;
    }
    if let Some(owner) = set.owner {
        record.owner = owner;
    }
    if let Some(group) = set.group {
        record.group = group;
    }
    if let Some(time) = set.client_time {
        record.client_time = time;
    }
}

impl Volume {
    /// Sets attributes (StoreStatus). A new owner of the root directory becomes the volume's.
    pub fn set_status(
        &self,
        fid: Fid,
        set: &SetStatus,
        context: Context,
    ) -> Result<Changed<VnodeStatus>> {
        self.change_record(fid, context, |record, txn| {
            if record.kind == FileType::Symlink && set.mode.is_some() {
                return Err(Error::Invalid("the mode of a symbolic link"));
            }
            set_attributes(record, set);
            if let Some(owner) = set.owner.filter(|_| fid.vnode == VnodeId::ROOT) {
                txn.set_owner(owner);
            }
            Ok(())
        })
    }

    /// Sets the access list of a directory.
    pub fn set_acl(
        &self,
        dir: Fid,
        acl: AccessList,
        context: Context,
    ) -> Result<Changed<VnodeStatus>> {
        self.change_record(dir, context, |record, _| {
            if record.kind != FileType::Directory {
                return Err(Error::NotDirectory);
            }
            record.acl = Some(Arc::new(acl));
            Ok(())
        })
    }

    pub(crate) fn change_record(
        &self,
        fid: Fid,
        context: Context,
        edit: impl FnOnce(&mut VnodeRecord, &mut Txn<'_>) -> Result<()>,
    ) -> Result<Changed<VnodeStatus>> {
        self.check_fid(fid)?;
        self.check_writable()?;
        let _room = self.core.engine.admit(0)?;
        let slot = self.slot(fid.vnode);
        let mut locked = self.lock(&slot, fid)?;
        let mut txn = Txn::begin(self)?;
        let loaded = locked.get(fid)?;
        let mut record = loaded.record.clone();
        edit(&mut record, &mut txn)?;
        record.author = context.author;
        record.server_time = context.now;
        txn.put_vnode(fid.vnode.0, &record, Some(loaded.epoch));
        let now = txn.now();
        let durable = txn.finish(context.now, 0)?;
        let outcome = record.status(self.id(), fid.vnode);
        locked.set_record(record, now);
        Ok(Changed { outcome, durable })
    }
}
