//! Volume transactions: exclusive work on a volume, and the restrictions on clients meanwhile.
//!
//! 1. There is one transaction for each volume of a partition. Every call that works in it holds an
//!    [`InUse`]. The server ends a transaction without running calls that was not used for ten
//!    minutes, or the configured time. Reading a transaction, which any caller may do, does not
//!    count as use.
//! 2. A transaction that is ended while a call is running in it ends with that call, as in OpenAFS.
//!    A call that transfers data then gives up.
//! 3. A transaction that ends blocks others from the volume until clients see the state in the
//!    volume's header. Otherwise the end of this transaction would cancel the restrictions of the
//!    next one.
//! 4. A volume that is marked to be destroyed stays when its transaction is ended, because `vos`
//!    continues with it in another one. If the server ends the transaction as abandoned, the volume
//!    was never finished, and is deleted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cellar_volume::Volume;
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{IT_BUSY, IT_CREATE, IT_OFFLINE, IT_READ_ONLY, VT_DELETED};
use cellar_wire::ids::{PartitionId, VolumeId};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::code;
use super::progress::Progress;
use crate::audit;
use crate::limits::VOLUME_TRANSACTIONS;
use crate::services::VolumeServices;
use crate::volumes::{Attached, Special};

/// A volume transaction.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) volume: VolumeId,
    pub(super) partition: PartitionId,
    pub(super) attach_flags: i32,
    /// `VT_*` flags: as SetFlags set them, and whether the volume was deleted.
    pub(super) volume_flags: u8,
    pub(super) began: u32,
    pub(super) used: u32,
    pub(super) last_procedure: &'static str,
    /// Whether it was ended while calls were running.
    pub(super) ended: bool,
    /// The number of calls running in it.
    running: u32,
    /// The progress of calls that transfer data, if any.
    pub(super) progress: Option<Arc<Progress>>,
    /// The volume that takes no changes meanwhile. The reference keeps it attached, because the
    /// restriction exists only in memory.
    held: Option<Arc<Volume>>,
}

impl Transaction {
    /// Marks it as ended; only its end is still running in it.
    fn ending(&mut self) -> Self {
        self.ended = true;
        self.running = 1;
        self.clone()
    }

    fn is_deleted(&self) -> bool {
        i32::from(self.volume_flags) & VT_DELETED != 0
    }
}

/// All volume transactions.
#[derive(Default)]
pub(crate) struct Transactions(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    last: i32,
    open: HashMap<i32, Transaction>,
    volumes: HashMap<(PartitionId, VolumeId), i32>,
}

/// The parameters of a new transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beginning {
    pub(super) volume: VolumeId,
    pub(super) partition: PartitionId,
    /// `IT_*`.
    pub(super) attach_flags: i32,
    /// In seconds since 1970.
    pub(super) now: u32,
    pub(super) procedure: &'static str,
}

impl Transactions {
    /// The number of open transactions.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().open.len()
    }

    /// Opens a transaction, with one call running in it.
    fn begin(&self, beginning: Beginning) -> Result<i32, AbortCode> {
        let Beginning {
            volume,
            partition,
            attach_flags,
            now,
            procedure,
        } = beginning;
        let mut inner = self.0.lock();
        if inner.volumes.contains_key(&(partition, volume)) {
            return Err(AbortCode::VOLSERVOLBUSY);
        }
        if inner.open.len() >= VOLUME_TRANSACTIONS {
            return Err(AbortCode::VOLSERNO_MEMORY);
        }
        // Numbers are positive, and are reused after they wrap.
        let number = loop {
            inner.last = inner.last.checked_add(1).unwrap_or(1);
            if !inner.open.contains_key(&inner.last) {
                break inner.last;
            }
        };
        let transaction = Transaction {
            volume,
            partition,
            attach_flags,
            volume_flags: 0,
            began: now,
            used: now,
            last_procedure: procedure,
            ended: false,
            running: 1,
            progress: None,
            held: None,
        };
        inner.open.insert(number, transaction);
        inner.volumes.insert((partition, volume), number);
        Ok(number)
    }

    /// A transaction for reading. ENOENT for an unknown number, or if its volume was deleted.
    pub(super) fn for_reading(&self, number: i32) -> Result<Transaction, AbortCode> {
        let inner = self.0.lock();
        let open = inner.open.get(&number).filter(|open| !open.is_deleted());
        open.cloned().ok_or(AbortCode::ENOENT)
    }

    /// As [`Self::for_reading`]; in addition a call runs in it until [`Self::leave`].
    fn enter(
        &self,
        number: i32,
        now: u32,
        procedure: &'static str,
    ) -> Result<Transaction, AbortCode> {
        let mut inner = self.0.lock();
        let open = inner.open.get_mut(&number);
        let open = open.filter(|open| !open.is_deleted() && !open.ended);
        let open = open.ok_or(AbortCode::ENOENT)?;
        open.used = now;
        open.last_procedure = procedure;
        open.running += 1;
        Ok(open.clone())
    }

    /// Ends a call. Returns the transaction if it was already ended and this was its last call. The
    /// caller must then close it.
    fn leave(&self, number: i32, now: u32) -> Option<Transaction> {
        let mut inner = self.0.lock();
        let open = inner.open.get_mut(&number)?;
        open.used = open.used.max(now);
        open.running -= 1;
        if open.running > 0 {
            return None;
        }
        open.progress = None;
        open.ended.then(|| open.ending())
    }

    /// Ends a transaction, now or with the call that runs in it. Returns it if it ends now; the
    /// caller must then close it.
    fn end(&self, number: i32) -> Result<Option<Transaction>, AbortCode> {
        let mut inner = self.0.lock();
        let open = inner.open.get_mut(&number).ok_or(AbortCode::ENOENT)?;
        if open.running > 0 {
            open.ended = true;
            if let Some(progress) = &open.progress {
                progress.stop();
            }
            return Ok(None);
        }
        Ok(Some(open.ending()))
    }

    /// Removes an ended transaction, so that the volume may have another one.
    fn close(&self, number: i32) {
        let mut inner = self.0.lock();
        if let Some(closed) = inner.open.remove(&number) {
            inner.volumes.remove(&(closed.partition, closed.volume));
        }
    }

    fn edit(&self, number: i32, edit: impl FnOnce(&mut Transaction)) {
        if let Some(open) = self.0.lock().open.get_mut(&number) {
            edit(open);
        }
    }

    /// Whether a volume has a transaction.
    pub(super) fn is_busy(&self, partition: PartitionId, volume: VolumeId) -> bool {
        self.0.lock().volumes.contains_key(&(partition, volume))
    }

    /// Ends transactions that were not used for `longest`. The caller must close them.
    fn end_idle(&self, now: u32, longest: Duration) -> Vec<(i32, Transaction)> {
        let longest = longest.as_secs();
        let mut inner = self.0.lock();
        let open = inner.open.iter_mut();
        let idle = open.filter(|(_, open)| {
            open.running == 0 && u64::from(now.saturating_sub(open.used)) >= longest
        });
        idle.map(|(number, open)| (*number, open.ending()))
            .collect()
    }

    /// Every transaction, by number.
    pub(super) fn all(&self) -> Vec<(i32, Transaction)> {
        let inner = self.0.lock();
        let open = inner.open.iter();
        let mut all: Vec<_> = open.map(|(number, t)| (*number, t.clone())).collect();
        all.sort_by_key(|(number, _)| *number);
        all
    }
}

/// A call that runs in a transaction. The transaction stays open at least until the last clone is
/// dropped.
#[derive(Clone)]
pub(super) struct InUse(Arc<TransactionUse>);

struct TransactionUse {
    services: Arc<VolumeServices>,
    number: i32,
    volume: VolumeId,
    partition: PartitionId,
    attach_flags: i32,
}

impl InUse {
    /// Begins a transaction in which the call runs.
    pub(super) fn begin(
        services: &Arc<VolumeServices>,
        beginning: Beginning,
    ) -> Result<Self, AbortCode> {
        let number = services.transactions.begin(beginning)?;
        Ok(Self(Arc::new(TransactionUse {
            services: services.clone(),
            number,
            volume: beginning.volume,
            partition: beginning.partition,
            attach_flags: beginning.attach_flags,
        })))
    }

    /// Runs the call in an existing transaction. ENOENT for an unknown number.
    pub(super) fn enter(
        services: &Arc<VolumeServices>,
        number: i32,
        procedure: &'static str,
    ) -> Result<Self, AbortCode> {
        let entered = Self::enter_unaudited(services, number, procedure)?;
        audit::add_detail("transaction", number);
        audit::add_detail("volume", entered.id());
        Ok(entered)
    }

    /// The same for a second transaction of a call, which is not audited as the subject of the
    /// call.
    pub(super) fn enter_unaudited(
        services: &Arc<VolumeServices>,
        number: i32,
        procedure: &'static str,
    ) -> Result<Self, AbortCode> {
        let now = services.now_secs();
        let transaction = services.transactions.enter(number, now, procedure)?;
        Ok(Self(Arc::new(TransactionUse {
            services: services.clone(),
            number,
            volume: transaction.volume,
            partition: transaction.partition,
            attach_flags: transaction.attach_flags,
        })))
    }

    pub(super) fn number(&self) -> i32 {
        self.0.number
    }

    pub(super) fn id(&self) -> VolumeId {
        self.0.volume
    }

    pub(super) fn partition(&self) -> PartitionId {
        self.0.partition
    }

    /// The `IT_*` flags.
    pub(super) fn attach_flags(&self) -> i32 {
        self.0.attach_flags
    }

    /// The volume, if it exists.
    pub(super) fn find(&self) -> cellar_volume::Result<Option<Attached>> {
        let TransactionUse {
            services,
            volume,
            partition,
            ..
        } = &*self.0;
        services.volumes.find_on(*partition, *volume)
    }

    /// The volume.
    pub(super) fn volume(&self) -> Result<Attached, AbortCode> {
        self.find().map_err(code)?.ok_or(AbortCode::VNOVOL)
    }

    /// Attaches the volume, with the restrictions on clients that the transaction needs. When this
    /// returns, changes that had begun are done or refused, and no new one begins. So a dump from
    /// now on contains all changes that were acknowledged to clients.
    pub(super) fn attach(&self, special: Special) -> Result<(), AbortCode> {
        let volume = self.volume()?.volume;
        let TransactionUse {
            services, number, ..
        } = &*self.0;
        let special = Some(special);
        services
            .volumes
            .set_special(self.partition(), self.id(), special);
        if volume.is_writable() {
            volume.refuse_changes(true);
            services
                .transactions
                .edit(*number, |open| open.held = Some(volume));
        }
        Ok(())
    }

    /// After a restore, another volume object has replaced the held one. From now on that one takes
    /// no changes.
    pub(super) fn restored(&self) -> Result<(), AbortCode> {
        let volume = self.volume()?.volume;
        let TransactionUse {
            services, number, ..
        } = &*self.0;
        services.transactions.edit(*number, |open| {
            if let Some(held) = &mut open.held {
                *held = volume;
            }
        });
        Ok(())
    }

    /// Registers the call as one that transfers data. `vos status` shows its progress, together
    /// with that of the others.
    pub(super) fn progress(&self) -> Arc<Progress> {
        let TransactionUse {
            services, number, ..
        } = &*self.0;
        let begun = || Arc::new(Progress::new(services.now_secs()));
        let mut shared = None;
        services.transactions.edit(*number, |open| {
            shared = Some(open.progress.get_or_insert_with(begun).clone());
        });
        shared.unwrap_or_else(begun)
    }

    /// Sets the `VT_*` flags, as SetFlags requires.
    pub(super) fn set_flags(&self, flags: u8) {
        let TransactionUse {
            services, number, ..
        } = &*self.0;
        services
            .transactions
            .edit(*number, |open| open.volume_flags = flags);
    }

    /// Notes that the volume was deleted.
    pub(super) fn set_deleted(&self) {
        let TransactionUse {
            services, number, ..
        } = &*self.0;
        services
            .transactions
            .edit(*number, |open| open.volume_flags |= VT_DELETED as u8);
    }

    /// Ends the transaction with this call: it failed to begin, or was only for the call.
    pub(super) fn end(self) {
        let TransactionUse {
            services, number, ..
        } = &*self.0;
        let _running = services.transactions.end(*number);
    }
}

impl Drop for TransactionUse {
    fn drop(&mut self) {
        let now = self.services.now_secs();
        if let Some(transaction) = self.services.transactions.leave(self.number, now) {
            self.services.close_transaction(self.number, &transaction);
        }
    }
}

impl VolumeServices {
    /// Ends a transaction at its owner's request.
    pub(super) fn end_transaction(&self, number: i32) -> Result<(), AbortCode> {
        if let Some(transaction) = self.transactions.end(number)? {
            self.close_transaction(number, &transaction);
        }
        Ok(())
    }

    /// Removes the restrictions on clients, and lets the volume have another transaction.
    fn close_transaction(&self, number: i32, transaction: &Transaction) {
        let Transaction {
            volume, partition, ..
        } = *transaction;
        if let Some(held) = &transaction.held {
            held.refuse_changes(false);
        }
        self.volumes.set_special(partition, volume, None);
        self.volumes.forget(volume);
        self.transactions.close(number);
    }

    /// Ends transactions that are no longer used.
    pub(crate) fn expire_transactions(self: &Arc<Self>) {
        for (number, transaction) in self
            .transactions
            .end_idle(self.now_secs(), self.transaction_idle)
        {
            let services = self.clone();
            tokio::spawn(cellar_rpc::blocking(move || {
                let volume = transaction.volume;
                let found = services.volumes.find_on(transaction.partition, volume);
                let name = found.ok().flatten().map(|found| found.volume.info().name);
                warn!(transaction = number, %volume, name, "volume transaction timed out");
                if let Err(code) = services.remove_unfinished(&transaction) {
                    warn!(transaction = number, %volume, %code, "unfinished volume not removed");
                }
                services.close_transaction(number, &transaction);
            }));
        }
    }

    fn remove_unfinished(&self, transaction: &Transaction) -> Result<(), AbortCode> {
        let Transaction {
            volume, partition, ..
        } = *transaction;
        if transaction.is_deleted() {
            return Ok(());
        }
        let found = self.volumes.find_on(partition, volume).map_err(code)?;
        if let Some(attached) = found.filter(|found| found.volume.info().destroy_me) {
            let name = attached.volume.info().name;
            info!(%volume, name, %partition, "unfinished volume removed");
            let deleted = attached.partition.delete_volume(volume).map_err(code)?;
            deleted.wait().map_err(code)?;
        }
        Ok(())
    }
}

/// The restrictions on clients while a volume is attached with these flags.
pub(super) fn special_of(flags: i32) -> Option<Special> {
    [
        (IT_CREATE, Special::Secret),
        (IT_BUSY, Special::Busy),
        (IT_READ_ONLY, Special::ReadOnly),
        (IT_OFFLINE, Special::Offline),
    ]
    .into_iter()
    .find(|(flag, _)| flags & flag != 0)
    .map(|(_, special)| special)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITION: PartitionId = PartitionId::MAX;

    fn begin(transactions: &Transactions, volume: u32) -> Result<i32, AbortCode> {
        transactions.begin(Beginning {
            volume: VolumeId(volume),
            partition: PARTITION,
            attach_flags: 1,
            now: 0,
            procedure: "x",
        })
    }

    #[test]
    fn one_transaction_for_each_volume() {
        let transactions = Transactions::default();
        let first = begin(&transactions, 1).unwrap();
        assert!(first > 0);
        assert_eq!(
            begin(&transactions, 1).unwrap_err(),
            AbortCode::VOLSERVOLBUSY
        );
        assert_ne!(begin(&transactions, 2).unwrap(), first);
        assert!(transactions.leave(first, 0).is_none());
        assert!(transactions.enter(first, 5, "y").is_ok());
        transactions.edit(first, |open| open.volume_flags |= VT_DELETED as u8);
        assert!(transactions.leave(first, 5).is_none());
        assert_eq!(
            transactions.enter(first, 5, "y").unwrap_err(),
            AbortCode::ENOENT
        );
        assert_eq!(
            transactions.for_reading(first).unwrap_err(),
            AbortCode::ENOENT
        );
        assert!(transactions.is_busy(PARTITION, VolumeId(1)));
        assert!(transactions.end(first).unwrap().is_some());
        assert_eq!(
            begin(&transactions, 1).unwrap_err(),
            AbortCode::VOLSERVOLBUSY
        );
        assert!(transactions.end(first).unwrap().is_none(), "once");
        transactions.close(first);
        assert!(begin(&transactions, 1).is_ok());
    }

    #[test]
    fn one_that_is_ended_in_the_middle_ends_with_its_call() {
        let transactions = Transactions::default();
        let number = begin(&transactions, 1).unwrap();
        assert!(transactions.end(number).unwrap().is_none());
        assert_eq!(
            transactions.enter(number, 1, "y").unwrap_err(),
            AbortCode::ENOENT
        );
        assert!(transactions.is_busy(PARTITION, VolumeId(1)));
        assert!(transactions.leave(number, 1).is_some());
        assert!(transactions.is_busy(PARTITION, VolumeId(1)));
        transactions.close(number);
        assert!(!transactions.is_busy(PARTITION, VolumeId(1)));
        assert_eq!(transactions.end(number).unwrap_err(), AbortCode::ENOENT);
    }

    #[test]
    fn only_idle_ones_time_out_and_looking_is_no_use() {
        let transactions = Transactions::default();
        let end_idle = |now| transactions.end_idle(now, Duration::from_secs(600));
        let number = begin(&transactions, 1).unwrap();
        assert!(end_idle(100_000).is_empty(), "a call is running");
        transactions.leave(number, 100);
        assert!(transactions.for_reading(number).is_ok());
        assert!(end_idle(699).is_empty());
        assert!(transactions.for_reading(number).is_ok());
        assert_eq!(end_idle(700).len(), 1);
        assert!(end_idle(700).is_empty(), "once");
        transactions.close(number);
        assert_eq!(transactions.count(), 0);
    }

    #[test]
    fn attachment_by_the_strongest_flag() {
        assert_eq!(special_of(IT_OFFLINE | IT_CREATE), Some(Special::Secret));
        assert_eq!(special_of(IT_BUSY | IT_OFFLINE), Some(Special::Busy));
        assert_eq!(
            special_of(IT_READ_ONLY | IT_OFFLINE),
            Some(Special::ReadOnly)
        );
        assert_eq!(special_of(IT_OFFLINE), Some(Special::Offline));
        assert_eq!(special_of(0), None);
    }
}
