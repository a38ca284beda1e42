//! Transactions on the rows of jobs. All functions block.

use std::ops::Bound;

use cellar_celldb::{CellDb, Transaction, View};

use crate::error::Error;
use crate::job::{Item, Job, JobId, State, Time};
use crate::limits::{ITEMS_MAX, ROWS_AT_A_TIME_MAX};
use crate::record::{
    ENDED, ITEM, LIVE, Live, META, NEXT, SPEC, Spec, UNIQUE, bad_row, from_row, item_row, job, key,
    key_of_two, number_at, to_row, unique_key,
};

/// The result of a submission: the job, and whether it is new.
pub(crate) struct Submitted {
    pub(crate) id: JobId,
    pub(crate) new: Option<Live>,
}

/// Adds jobs in one transaction. `live` gets its order here. A job whose unique name is in use is
/// not added.
pub(crate) fn submit(db: &dyn CellDb, jobs: &[(Spec, Live)]) -> Result<Vec<Submitted>, Error> {
    let (submitted, _) = db.write(|transaction| {
        let mut next = match transaction.get(META, NEXT)? {
            None => 1,
            Some(row) => number_at(&row, 0)
                .ok_or_else(|| bad_row(JobId(0), &"the next number has not eight bytes"))?,
        };
        let mut submitted = Vec::with_capacity(jobs.len());
        for (spec, live) in jobs {
            if let Some(id) = existing(transaction, spec)? {
                submitted.push(Submitted { id, new: None });
                continue;
            }
            let id = JobId(next);
            next += 1;
            let live = Live {
                order: i64::try_from(id.0).unwrap_or(i64::MAX),
                ..live.clone()
            };
            transaction.put(SPEC, key(id), to_row(id, spec)?);
            transaction.put(LIVE, key(id), to_row(id, &live)?);
            if let Some(name) = &spec.unique {
                transaction.put(UNIQUE, unique_key(&spec.kind, name), key(id));
            }
            submitted.push(Submitted {
                id,
                new: Some(live),
            });
        }
        transaction.put(META, NEXT, next.to_be_bytes().to_vec());
        Ok::<_, Error>(submitted)
    })?;
    Ok(submitted)
}

fn existing(transaction: &Transaction<'_>, spec: &Spec) -> Result<Option<JobId>, Error> {
    let Some(name) = &spec.unique else {
        return Ok(None);
    };
    let row = transaction.get(UNIQUE, &unique_key(&spec.kind, name))?;
    Ok(row.and_then(|row| number_at(&row, 0)).map(JobId))
}

fn read_spec(view: &(impl View + ?Sized), id: JobId) -> Result<Spec, Error> {
    let row = view.get(SPEC, &key(id))?.ok_or(Error::NoSuchJob(id))?;
    from_row(id, &row)
}

fn read_live(view: &(impl View + ?Sized), id: JobId) -> Result<Live, Error> {
    let row = view.get(LIVE, &key(id))?.ok_or(Error::NoSuchJob(id))?;
    from_row(id, &row)
}

/// Changes a job in one transaction, and appends items. Keeps the index of ended jobs and of unique
/// names.
pub(crate) fn modify<T>(
    db: &dyn CellDb,
    id: JobId,
    items: &[Item],
    mut change: impl FnMut(&Spec, &mut Live) -> Result<T, Error>,
) -> Result<(Live, T), Error> {
    let (done, _) = db.write(|transaction| {
        let spec = read_spec(transaction, id)?;
        let mut live = read_live(transaction, id)?;
        let before = (live.state, live.ended);
        let result = change(&spec, &mut live)?;
        let room = usize::try_from(ITEMS_MAX.saturating_sub(live.items)).unwrap_or(usize::MAX);
        for item in items.iter().take(room) {
            let (key, row) = item_row(id, live.items, item)?;
            transaction.put(ITEM, key, row);
            live.items += 1;
        }
        index(transaction, id, &spec, before, &live)?;
        transaction.put(LIVE, key(id), to_row(id, &live)?);
        Ok::<_, Error>((live, result))
    })?;
    Ok(done)
}

/// Keeps the tables of ended jobs and of unique names after a change of state.
fn index(
    transaction: &mut Transaction<'_>,
    id: JobId,
    spec: &Spec,
    before: (State, Option<Time>),
    live: &Live,
) -> Result<(), Error> {
    let (was_ended, is_ended) = (before.0.is_ended(), live.state.is_ended());
    let name = spec.unique.as_ref();
    let name = name.map(|name| unique_key(&spec.kind, name));
    if is_ended && !was_ended {
        let time = live.ended.unwrap_or_default();
        transaction.put(ENDED, key_of_two(time.0, id.0), Vec::new());
        if let Some(name) = name {
            transaction.delete(UNIQUE, name);
        }
    } else if was_ended && !is_ended {
        let time = before.1.unwrap_or_default();
        transaction.delete(ENDED, key_of_two(time.0, id.0));
        if let Some(name) = name {
            if transaction.get(UNIQUE, &name)?.is_some() {
                return Err(Error::WrongState {
                    id,
                    state: before.0.word(),
                    reason: "another job with its unique name is not finished",
                });
            }
            transaction.put(UNIQUE, name, key(id));
        }
    }
    Ok(())
}

/// One job, as its rows say.
pub(crate) fn read(db: &dyn CellDb, id: JobId) -> Result<Job, Error> {
    read_rows(db, id).map(|(spec, live)| job(id, spec, live))
}

/// The rows of a job.
pub(crate) fn read_rows(db: &dyn CellDb, id: JobId) -> Result<(Spec, Live), Error> {
    db.read(|view, _| Ok((read_spec(view, id)?, read_live(view, id)?)))
}

/// Jobs after a number in the order of their numbers: at most `most`, for which `is_wanted` holds.
pub(crate) fn list(
    db: &dyn CellDb,
    after: JobId,
    most: usize,
    is_wanted: impl Fn(&Job) -> bool,
) -> Result<Vec<Job>, Error> {
    db.read(|view, _| {
        let mut found = Vec::new();
        let mut after = after;
        while found.len() < most {
            let rows = rows_after(view, after)?;
            let Some((last, _)) = rows.last() else { break };
            after = *last;
            for (id, live) in rows {
                let job = job(id, read_spec(view, id)?, live);
                if found.len() < most && is_wanted(&job) {
                    found.push(job);
                }
            }
        }
        Ok(found)
    })
}

/// The next rows of the jobs after a number.
fn rows_after(view: &dyn View, after: JobId) -> Result<Vec<(JobId, Live)>, Error> {
    let low = key(after);
    let range = (Bound::Excluded(&low[..]), Bound::Unbounded);
    let rows = view.scan(LIVE, range, ROWS_AT_A_TIME_MAX)?;
    rows.into_iter()
        .map(|(key, row)| {
            let id = JobId(number_at(&key, 0).unwrap_or_default());
            Ok((id, from_row(id, &row)?))
        })
        .collect()
}

/// Items of a job from a number on, at most `most`.
pub(crate) fn items(
    db: &dyn CellDb,
    id: JobId,
    from: u64,
    most: usize,
) -> Result<Vec<Item>, Error> {
    db.read(|view, _| {
        let (low, high) = (key_of_two(id.0, from), key_of_two(id.0, u64::MAX));
        let range = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
        let rows = view.scan(ITEM, range, most)?;
        rows.iter().map(|(_, row)| from_row(id, row)).collect()
    })
}

/// The jobs at an opening.
pub(crate) struct Loaded {
    /// Unfinished jobs, in the order of their numbers. Those that ran are queued again.
    pub(crate) unfinished: Vec<(JobId, Spec, Live)>,
    /// Jobs in the history.
    pub(crate) ended: usize,
}

/// Reads all unfinished jobs, and queues those that a crash or a stop interrupted.
pub(crate) fn load(db: &dyn CellDb) -> Result<Loaded, Error> {
    let mut loaded = Loaded {
        unfinished: Vec::new(),
        ended: 0,
    };
    let mut interrupted = Vec::new();
    db.read(|view, _| {
        let mut after = JobId(0);
        loop {
            let rows = rows_after(view, after)?;
            let Some((last, _)) = rows.last() else { break };
            after = *last;
            for (id, mut live) in rows {
                if live.state.is_ended() {
                    loaded.ended += 1;
                    continue;
                }
                if live.state == State::Running {
                    live.state = State::Queued;
                    interrupted.push(id);
                }
                loaded.unfinished.push((id, read_spec(view, id)?, live));
            }
        }
        Ok::<_, Error>(())
    })?;
    for some in interrupted.chunks(ROWS_AT_A_TIME_MAX) {
        db.write(|transaction| {
            for id in some {
                let live = read_live(transaction, *id)?;
                let queued = Live {
                    state: State::Queued,
                    ..live
                };
                transaction.put(LIVE, key(*id), to_row(*id, &queued)?);
            }
            Ok::<_, Error>(())
        })?;
    }
    Ok(loaded)
}

/// Removes ended jobs from the history: those before `before`, and the oldest above `most` of
/// `present`. Returns the number of removed jobs; at most a few thousand at a time.
pub(crate) fn prune(
    db: &dyn CellDb,
    present: usize,
    most: usize,
    before: Time,
) -> Result<usize, Error> {
    let surplus = present.saturating_sub(most);
    let ended = db.read(|view, _| {
        let all = (Bound::Unbounded, Bound::Unbounded);
        view.scan(ENDED, all, ROWS_AT_A_TIME_MAX / 4)
    })?;
    let mut removed = 0;
    let mut rows = Vec::new();
    for (at, (end, _)) in ended.iter().enumerate() {
        let (Some(time), Some(id)) = (number_at(end, 0), number_at(end, 8)) else {
            continue;
        };
        if at >= surplus && time >= before.0 {
            break;
        }
        remove_items(db, JobId(id))?;
        rows.push((end.clone(), JobId(id)));
        removed += 1;
    }
    if !rows.is_empty() {
        db.write(|transaction| {
            for (end, id) in &rows {
                transaction.delete(ENDED, end.clone());
                transaction.delete(SPEC, key(*id));
                transaction.delete(LIVE, key(*id));
            }
            Ok::<_, Error>(())
        })?;
    }
    Ok(removed)
}

/// Removes all items of a job. A crash in between leaves a job with fewer items.
fn remove_items(db: &dyn CellDb, id: JobId) -> Result<(), Error> {
    loop {
        let rows = db.read(|view, _| view.scan_prefix(ITEM, &key(id), ROWS_AT_A_TIME_MAX))?;
        if rows.is_empty() {
            return Ok(());
        }
        db.write(|transaction| {
            rows.iter()
                .for_each(|(key, _)| transaction.delete(ITEM, key.clone()));
            Ok::<_, Error>(())
        })?;
    }
}
