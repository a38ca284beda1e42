//! Files whose bytes are in objects on other servers. The vnode record names the objects.
//!
//! A store into such a file first writes new versions of objects. Then one change of the record,
//! which names them, makes the store valid. It succeeds only if the file has not changed since the
//! storer read its data version; otherwise the storer begins again from the present contents. A
//! clone has a record of its own, so it still names the versions that it saw. Nothing here contacts
//! the other servers.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;

use crate::error::{Error, Result};
use crate::operations::attributes::set_attributes;
use crate::operations::create::grown;
use crate::operations::store::{LENGTH_MAX, RECORDS_GROWTH, SET_ID_BITS};
use crate::operations::txn::Txn;
use crate::record::{Body, VnodeRecord};
use crate::types::{Changed, Context, FileType, SetStatus, StoreSpec, VnodeStatus};
use crate::volume::Volume;

/// The result of a store into objects.
#[derive(Clone, Debug)]
pub struct LayoutChange {
    /// The objects, with the versions that hold the new contents.
    pub layout: Layout,
    /// Length of the file in bytes.
    pub length: u64,
    /// Attributes that the store sets.
    pub attributes: SetStatus,
    /// Clear the set-user-id and set-group-id bits, as for every caller but administrators.
    pub clear_set_id: bool,
    /// By how much the store may exceed the volume's quota, in blocks of 1 KiB.
    pub quota_slack: u64,
}

impl LayoutChange {
    /// New contents without other changes.
    pub fn new(layout: Layout, length: u64) -> Self {
        Self {
            layout,
            length,
            attributes: SetStatus::default(),
            clear_set_id: false,
            quota_slack: 1024,
        }
    }
}

impl Volume {
    /// Returns the objects of a file; `None` if its bytes are in this store. Needs no disk access
    /// if the status is in memory.
    pub fn layout(&self, fid: Fid) -> Result<Option<Arc<Layout>>> {
        self.with(fid, |loaded| Ok(loaded.record.layout.clone()))
    }

    /// The status of a vnode and its objects, both of the same version.
    pub fn status_and_layout(&self, fid: Fid) -> Result<(VnodeStatus, Option<Arc<Layout>>)> {
        self.with(fid, |loaded| {
            let status = loaded.record.status(self.id(), fid.vnode);
            Ok((status, loaded.record.layout.clone()))
        })
    }

    /// Returns the highest serial number that any object of a file ever had, also while its bytes
    /// are in this store. Returns 0 if this server knows of none.
    pub fn last_serial(&self, fid: Fid) -> Result<u32> {
        self.with(fid, |loaded| Ok(loaded.record.last_serial()))
    }

    /// Makes objects the contents of a file: layout, length and data version in one change. The
    /// objects must be durable already. Bytes of the file in this store are removed.
    ///
    /// `Stale`: the data version is not `expected`; `IsDirectory` for anything but a plain file;
    /// `FileTooBig`, `OverQuota`, `DiskFull`, `ReadOnly`.
    pub fn set_layout(
        &self,
        fid: Fid,
        expected: u64,
        change: &LayoutChange,
        context: Context,
    ) -> Result<Changed<VnodeStatus>> {
        if change.length > LENGTH_MAX {
            return Err(Error::FileTooBig);
        }
        self.change_layout(fid, change.quota_slack, |record, now| {
            if record.data_version != expected {
                return Err(Error::Stale(fid));
            }
            record.length = change.length;
            record.data_version += 1;
            record.author = context.author;
            record.server_time = context.now;
            record.client_time = context.now;
            set_attributes(record, &change.attributes);
            if change.clear_set_id {
                record.mode &= !SET_ID_BITS;
            }
            record.note_cut(now, 0);
            Ok((change.layout.clone(), context.now))
        })
    }

    /// Records that the contents of a file were copied to objects. Its bytes in this store are
    /// removed; the data version stays.
    ///
    /// `Stale`: the data version is not `expected`, or the file is in objects already.
    pub fn adopt_layout(
        &self,
        fid: Fid,
        expected: u64,
        layout: Layout,
    ) -> Result<Changed<VnodeStatus>> {
        self.change_layout(fid, 0, |record, now| {
            if record.data_version != expected || record.contents().is_some() {
                return Err(Error::Stale(fid));
            }
            record.note_cut(now, 0);
            Ok((layout, record.server_time))
        })
    }

    /// Records that the same contents are in other objects, for example after a repair. The data
    /// version stays, and what clients have cached remains valid.
    ///
    /// `Stale`: the layout is not `expected` any more.
    pub fn exchange_layout(
        &self,
        fid: Fid,
        expected: &Layout,
        layout: Layout,
    ) -> Result<Changed<VnodeStatus>> {
        self.change_layout(fid, 0, |record, _| match &record.layout {
            Some(known) if **known == *expected => Ok((layout, record.server_time)),
            _ => Err(Error::Stale(fid)),
        })
    }

    /// Returns the policies that apply in a directory: its own (0: none), and that of the volume.
    pub fn policies(&self, dir: Fid) -> Result<(u32, u32)> {
        let own = self.with(dir, |loaded| match loaded.record.kind {
            FileType::Directory => Ok(loaded.record.policy),
            _ => Err(Error::NotDirectory),
        })?;
        Ok((own, self.policy()))
    }

    /// The policy of the volume.
    pub fn policy(&self) -> u32 {
        self.record().read().info.policy
    }

    /// Sets a directory's policy. Directories that are made in it later start with this policy.
    pub fn set_policy(
        &self,
        dir: Fid,
        policy: u32,
        context: Context,
    ) -> Result<Changed<VnodeStatus>> {
        self.change_record(dir, context, |record, _| {
            if record.kind != FileType::Directory {
                return Err(Error::NotDirectory);
            }
            record.policy = policy;
            Ok(())
        })
    }

    fn change_layout(
        &self,
        fid: Fid,
        slack: u64,
        edit: impl FnOnce(&mut VnodeRecord, u64) -> Result<(Layout, cellar_wire::ids::AfsTime)>,
    ) -> Result<Changed<VnodeStatus>> {
        self.check_fid(fid)?;
        self.check_writable()?;
        let _room = self.core.engine.admit(RECORDS_GROWTH)?;
        let slot = self.slot(fid.vnode);
        let mut locked = self.lock(&slot, fid)?;
        let mut txn = Txn::begin(self)?;
        let loaded = locked.get_mut(fid)?;
        if loaded.record.kind != FileType::File {
            return Err(Error::IsDirectory);
        }
        let old = loaded.record.clone();
        let mut record = old.clone();
        let (layout, date) = edit(&mut record, txn.now())?;
        if layout.shape.check().is_err() || layout.objects.len() != layout.shape.objects() {
            return Err(Error::Invalid("a layout has an object for each place"));
        }
        txn.remove_body(fid.vnode.0, &old)?;
        if matches!(old.body, Body::Inline { .. } | Body::Pieces) {
            record.body_number += 1;
        }
        record.body = Body::Objects;
        record.layout = Some(Arc::new(layout));
        record.serial = 0;
        record.target = Bytes::new();
        txn.put_vnode(fid.vnode.0, &record, Some(loaded.epoch));
        txn.charge(grown(&old, &record), 0);
        let now = txn.now();
        let durable = txn.finish(date, slack)?;
        loaded.body = None;
        loaded.recharge();
        let outcome = record.status(self.id(), fid.vnode);
        locked.set_record(record, now);
        Ok(Changed { outcome, durable })
    }
}

/// Whether a store leaves bytes that the file had before.
pub(crate) fn keeps_bytes(old: &VnodeRecord, spec: &StoreSpec, announced: u64) -> bool {
    let kept = old.length.min(spec.file_length);
    kept > 0 && (spec.position > 0 || announced < kept)
}
