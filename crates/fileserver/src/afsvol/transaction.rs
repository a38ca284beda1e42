//! Volume transactions: who works on a volume, and what clients may do meanwhile.
//!
//! 1. One transaction for each volume of a partition. Every call that works in it holds an
//!    [`InUse`]; one that nobody used for ten minutes, or as long as is configured, and in which no
//!    call is running, is ended by the server. Looking at a transaction, which everybody may, is no use of it.
//! 2. A transaction that is ended while a call is running in it ends with that call, as OpenAFS's
//!    do; a call that moves data gives up then.
//! 3. One that ends keeps others from the volume until clients see that as its header says: the next
//!    transaction would lose what it keeps clients from otherwise.
//! 4. A volume that is marked to be destroyed stays when its transaction is ended: `vos` goes on
//!    with it in another one. When its transaction is forgotten instead, it was never finished, and
//!    is deleted.

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
use crate::server::Server;
use crate::volumes::{Attached, Special};

/// A volume transaction.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) volume: VolumeId,
    pub(super) partition: PartitionId,
    pub(super) attach_flags: i32,
    /// `VT_*`: as SetFlags set them, and whether the volume was deleted.
    pub(super) volume_flags: u8,
    pub(super) began: u32,
    pub(super) used: u32,
    pub(super) last_procedure: &'static str,
    /// Somebody ended it while calls were running.
    pub(super) ended: bool,
    /// Calls running in it.
    running: u32,
    /// The calls that move data, if any do.
    pub(super) progress: Option<Arc<Progress>>,
    /// The volume that takes no changes meanwhile: held, because only an attached one knows it.
    held: Option<Arc<Volume>>,
}

impl Transaction {
    /// Nothing runs in it any more but its end.
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

/// What a new transaction is about.
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
    /// Transactions open.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().open.len()
    }

    /// Opens one, with one call running in it.
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
        // Numbers are above 0, and those of long ago may come again.
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

    /// A transaction to look at. An unknown number, or one whose volume was deleted: ENOENT.
    pub(super) fn look(&self, number: i32) -> Result<Transaction, AbortCode> {
        let inner = self.0.lock();
        let open = inner.open.get(&number).filter(|open| !open.is_deleted());
        open.cloned().ok_or(AbortCode::ENOENT)
    }

    /// As [`Self::look`], and a call runs in it until [`Self::leave`].
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

    /// A call has ended. Answers the transaction if that was the last thing that kept it: it is to be
    /// closed.
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

    /// Ends one, now or with the call that runs in it: that is when the transaction is answered, and
    /// is to be closed.
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

    /// Takes out one that has ended: the volume may have another.
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

    /// Ends those that nobody used for the longest time that is allowed: they are to be closed.
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

/// A call that runs in a transaction. The transaction lasts at least as long as the last clone.
#[derive(Clone)]
pub(super) struct InUse(Arc<Held>);

struct Held {
    server: Arc<Server>,
    number: i32,
    volume: VolumeId,
    partition: PartitionId,
    attach_flags: i32,
}

impl InUse {
    /// Begins a transaction, in which the call runs.
    pub(super) fn begin(server: &Arc<Server>, beginning: Beginning) -> Result<Self, AbortCode> {
        let number = server.transactions.begin(beginning)?;
        Ok(Self(Arc::new(Held {
            server: server.clone(),
            number,
            volume: beginning.volume,
            partition: beginning.partition,
            attach_flags: beginning.attach_flags,
        })))
    }

    /// Runs the call in a transaction that is there. An unknown number: ENOENT.
    pub(super) fn enter(
        server: &Arc<Server>,
        number: i32,
        procedure: &'static str,
    ) -> Result<Self, AbortCode> {
        let entered = Self::enter_quietly(server, number, procedure)?;
        audit::about("volume", entered.id());
        Ok(entered)
    }

    /// The same for a second transaction of a call, which is not what the call is about.
    pub(super) fn enter_quietly(
        server: &Arc<Server>,
        number: i32,
        procedure: &'static str,
    ) -> Result<Self, AbortCode> {
        let now = server.now_secs();
        let transaction = server.transactions.enter(number, now, procedure)?;
        Ok(Self(Arc::new(Held {
            server: server.clone(),
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

    /// `IT_*`.
    pub(super) fn attach_flags(&self) -> i32 {
        self.0.attach_flags
    }

    /// The volume, if it is there.
    pub(super) fn find(&self) -> cellar_volume::Result<Option<Attached>> {
        let Held {
            server,
            volume,
            partition,
            ..
        } = &*self.0;
        server.volumes.find_on(*partition, *volume)
    }

    /// The volume.
    pub(super) fn volume(&self) -> Result<Attached, AbortCode> {
        self.find().map_err(code)?.ok_or(AbortCode::VNOVOL)
    }

    /// Attaches the volume: clients are kept from it as the transaction needs it. Changes that have
    /// begun are over when this returns, done or refused, and none begins: what is dumped from now
    /// on has all that clients were told is done.
    pub(super) fn attach(&self, special: Special) -> Result<(), AbortCode> {
        let volume = self.volume()?.volume;
        let Held { server, number, .. } = &*self.0;
        let special = Some(special);
        server
            .volumes
            .set_special(self.partition(), self.id(), special);
        if volume.is_writable() {
            volume.refuse_changes(true);
            server
                .transactions
                .edit(*number, |open| open.held = Some(volume));
        }
        Ok(())
    }

    /// The volume was restored, and so replaced by another opening of it: from now on that one takes
    /// no changes.
    pub(super) fn restored(&self) -> Result<(), AbortCode> {
        let volume = self.volume()?.volume;
        let Held { server, number, .. } = &*self.0;
        server.transactions.edit(*number, |open| {
            if let Some(held) = &mut open.held {
                *held = volume;
            }
        });
        Ok(())
    }

    /// The call moves data: `vos status` is shown how far it is, together with the others that do.
    pub(super) fn progress(&self) -> Arc<Progress> {
        let Held { server, number, .. } = &*self.0;
        let begun = || Arc::new(Progress::new(server.now_secs()));
        let mut shared = None;
        server.transactions.edit(*number, |open| {
            shared = Some(open.progress.get_or_insert_with(begun).clone());
        });
        shared.unwrap_or_else(begun)
    }

    /// `VT_*` as SetFlags says.
    pub(super) fn set_flags(&self, flags: u8) {
        let Held { server, number, .. } = &*self.0;
        server
            .transactions
            .edit(*number, |open| open.volume_flags = flags);
    }

    /// The volume is no more.
    pub(super) fn set_deleted(&self) {
        let Held { server, number, .. } = &*self.0;
        server
            .transactions
            .edit(*number, |open| open.volume_flags |= VT_DELETED as u8);
    }

    /// Ends the transaction with this call: it did not come about, or was only for the call.
    pub(super) fn end(self) {
        let Held { server, number, .. } = &*self.0;
        let _running = server.transactions.end(*number);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let now = self.server.now_secs();
        if let Some(transaction) = self.server.transactions.leave(self.number, now) {
            self.server.close_transaction(self.number, &transaction);
        }
    }
}

impl Server {
    /// Ends a transaction as its owner asks.
    pub(super) fn end_transaction(&self, number: i32) -> Result<(), AbortCode> {
        if let Some(transaction) = self.transactions.end(number)? {
            self.close_transaction(number, &transaction);
        }
        Ok(())
    }

    /// Clients see the volume as its header says, and it may have another transaction.
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

    /// Ends transactions that nobody uses any more.
    pub(crate) fn expire_transactions(self: &Arc<Self>, now: u32) {
        for (number, transaction) in self
            .transactions
            .end_idle(now, self.config.transaction_idle)
        {
            let server = self.clone();
            tokio::spawn(cellar_rpc::blocking(move || {
                let volume = transaction.volume;
                warn!(transaction = number, %volume, "volume transaction timed out");
                if let Err(code) = server.remove_unfinished(&transaction) {
                    warn!(transaction = number, %volume, %code, "unfinished volume not removed");
                }
                server.close_transaction(number, &transaction);
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
            info!(%volume, %partition, "unfinished volume removed");
            let deleted = attached.partition.delete_volume(volume).map_err(code)?;
            deleted.wait().map_err(code)?;
        }
        Ok(())
    }
}

/// What clients may do while a volume is attached with these flags.
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
        assert_eq!(transactions.look(first).unwrap_err(), AbortCode::ENOENT);
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
        assert!(transactions.look(number).is_ok());
        assert!(end_idle(699).is_empty());
        assert!(transactions.look(number).is_ok());
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
