//! The order in which jobs start.
//!
//! 1. A **pool** is the queue of one kind and one resource. A **lane** is the part of a pool that
//!    belongs to one user and one priority. Its first job is its *head*.
//! 2. The **rank** of a head is the number of running jobs of its user in the pool. So the n-th
//!    unfinished job of a user has rank n - 1 when it becomes the head. Heads start in the order
//!    of priority, rank and ticket: the n-th job of a user competes only with the n-th of others.
//! 3. A **ticket** is the time of an arrival at a rank, as a counter. When a job of a user leaves,
//!    all later ones of that user move to the end of the rank before (the rule of the fetch queue
//!    of AFS/OSD). The lane does not rewrite them: the ticket of a head is the later one of the
//!    first arrival in the lane and of the user's last departure.
//! 4. A pool whose limit is reached, or whose resource is down, is absent from `heads`. So is a
//!    lane whose user has reached a limit. The next job is the first element of one ordered set.
//! 5. **Groups** (tapes): after a job of a group, up to `group_run` - 1 more of the group start
//!    before others of the same priority.
//!
//! A start and a departure touch the lanes of one user in one pool, and all pools of a kind only
//! when a limit is reached or left. Each touch costs a logarithm. There are as many pools as
//! archives and servers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::job::{JobId, Priority, Time};
use crate::kind::Limits;

/// The number of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolId(usize);

/// The place of a head among others: see rule 2.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    priority: Reverse<Priority>,
    rank: usize,
    ticket: u64,
    user: Arc<str>,
}

/// The description of a job that the queue needs.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// The index of the kind.
    pub(crate) kind: usize,
    pub(crate) user: Arc<str>,
    pub(crate) resource: Arc<str>,
    pub(crate) group: Arc<str>,
    pub(crate) priority: Priority,
    /// The place among the jobs of the same user; lower ones start first.
    pub(crate) order: i64,
}

/// A job in the queue, or a running one.
#[derive(Clone, Debug)]
struct Slot {
    placement: Placement,
    pool: PoolId,
    arrival: u64,
    is_running: bool,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    jobs: BTreeSet<(i64, JobId)>,
    /// The tickets of the arrivals, one for each job. The first belongs to the head: a user who
    /// moves a job to the front keeps the place of the lane.
    arrivals: BTreeSet<u64>,
    /// Its entry in the pool's heads.
    place: Option<Place>,
}

#[derive(Clone, Debug, Default)]
struct User {
    running: usize,
    /// The ticket of the last departure.
    left: u64,
    /// Queued jobs.
    queued: usize,
}

/// A queued job in the order of arrival: priority, ticket, number.
type Arrival = (Reverse<Priority>, u64, JobId);

#[derive(Clone, Debug)]
struct Pool {
    kind: usize,
    lanes: BTreeMap<(Arc<str>, Priority), Lane>,
    users: HashMap<Arc<str>, User>,
    heads: BTreeSet<Place>,
    /// Queued jobs by group, for groups with a name.
    groups: HashMap<Arc<str>, BTreeSet<Arrival>>,
    /// The group of the last start, and how many more of it may start.
    current: Option<(Arc<str>, u32)>,
    running: usize,
    held_until: Option<Time>,
    /// Its entry in the queue's heads.
    place: Option<Place>,
}

#[derive(Clone, Debug)]
struct KindState {
    limits: Limits,
    running: usize,
    running_by_user: HashMap<Arc<str>, usize>,
    pools: Vec<PoolId>,
}

/// All unfinished jobs that do not pause.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    kinds: Vec<KindState>,
    pools: Vec<Pool>,
    pool_ids: HashMap<(usize, Arc<str>), PoolId>,
    jobs: HashMap<JobId, Slot>,
    heads: BTreeSet<(Place, PoolId)>,
    tickets: u64,
    running: usize,
    running_max: usize,
    /// Lanes and pools that were touched so far: tests bound it.
    touched: u64,
}

impl Queue {
    pub(crate) fn new(limits: impl IntoIterator<Item = Limits>, running_max: usize) -> Self {
        let kinds = limits.into_iter().map(|limits| KindState {
            limits,
            running: 0,
            running_by_user: HashMap::new(),
            pools: Vec::new(),
        });
        Self {
            kinds: kinds.collect(),
            pools: Vec::new(),
            pool_ids: HashMap::new(),
            jobs: HashMap::new(),
            heads: BTreeSet::new(),
            tickets: 0,
            running: 0,
            running_max,
            touched: 0,
        }
    }

    /// The number of touched lanes and pools so far.
    #[cfg(test)]
    pub(crate) fn touched(&self) -> u64 {
        self.touched
    }

    /// Running jobs.
    #[cfg(test)]
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn pool_of(&mut self, kind: usize, resource: &Arc<str>) -> PoolId {
        let key = (kind, Arc::clone(resource));
        if let Some(id) = self.pool_ids.get(&key) {
            return *id;
        }
        let id = PoolId(self.pools.len());
        self.pools.push(Pool {
            kind,
            lanes: BTreeMap::new(),
            users: HashMap::new(),
            heads: BTreeSet::new(),
            groups: HashMap::new(),
            current: None,
            running: 0,
            held_until: None,
            place: None,
        });
        self.kinds[kind].pools.push(id);
        self.pool_ids.insert(key, id);
        id
    }

    /// Adds a job. It must not be in the queue.
    pub(crate) fn insert(&mut self, id: JobId, placement: Placement) {
        let pool_id = self.pool_of(placement.kind, &placement.resource);
        let arrival = self.ticket();
        let pool = &mut self.pools[pool_id.0];
        let lane_key = (Arc::clone(&placement.user), placement.priority);
        let lane = pool.lanes.entry(lane_key.clone()).or_default();
        lane.jobs.insert((placement.order, id));
        lane.arrivals.insert(arrival);
        pool.users
            .entry(Arc::clone(&placement.user))
            .or_default()
            .queued += 1;
        if !placement.group.is_empty() {
            let group = pool.groups.entry(Arc::clone(&placement.group)).or_default();
            group.insert((Reverse(placement.priority), arrival, id));
        }
        self.jobs.insert(
            id,
            Slot {
                placement,
                pool: pool_id,
                arrival,
                is_running: false,
            },
        );
        self.refresh_lane(pool_id, &lane_key);
        self.refresh_pool(pool_id);
    }

    /// Takes a job out of the queue that does not run. Returns its placement, or `None` if the job
    /// runs or is not there.
    pub(crate) fn remove(&mut self, id: JobId) -> Option<Placement> {
        if self.jobs.get(&id)?.is_running {
            return None;
        }
        let slot = self.jobs.remove(&id)?;
        self.unlink(id, &slot, false);
        let (pool, user) = (slot.pool, Arc::clone(&slot.placement.user));
        self.refresh_user(pool, &user);
        self.refresh_pool(pool);
        self.forget_user(pool, &user);
        Some(slot.placement)
    }

    /// Removes a queued job from its lane and its group. A job that starts, or the head, takes the
    /// first ticket of the lane with it; another job takes the last.
    fn unlink(&mut self, id: JobId, slot: &Slot, starts: bool) {
        let placement = &slot.placement;
        let pool = &mut self.pools[slot.pool.0];
        let lane_key = (Arc::clone(&placement.user), placement.priority);
        if let Some(lane) = pool.lanes.get_mut(&lane_key) {
            let is_head = lane.jobs.first() == Some(&(placement.order, id));
            match starts || is_head {
                true => lane.arrivals.pop_first(),
                false => lane.arrivals.pop_last(),
            };
            lane.jobs.remove(&(placement.order, id));
        }
        if let Some(user) = pool.users.get_mut(&placement.user) {
            user.queued -= 1;
        }
        if let Some(group) = pool.groups.get_mut(&placement.group) {
            group.remove(&(Reverse(placement.priority), slot.arrival, id));
            if group.is_empty() {
                pool.groups.remove(&placement.group);
            }
        }
    }

    /// Starts the next job, if the limits permit one.
    pub(crate) fn next(&mut self) -> Option<JobId> {
        if self.running >= self.running_max {
            return None;
        }
        let (place, pool_id) = self.heads.first()?.clone();
        let id = self.same_group(pool_id, &place).or_else(|| {
            let lane_key = (Arc::clone(&place.user), place.priority.0);
            let lane = self.pools[pool_id.0].lanes.get(&lane_key)?;
            lane.jobs.first().map(|(_, id)| *id)
        })?;
        let mut slot = self.jobs.remove(&id)?;
        self.unlink(id, &slot, true);
        slot.is_running = true;
        let (kind, user) = (slot.placement.kind, Arc::clone(&slot.placement.user));
        self.note_group(pool_id, &slot.placement.group);
        self.jobs.insert(id, slot);
        self.running += 1;
        self.count(pool_id, kind, &user, 1);
        Some(id)
    }

    /// The next job of the group that started last, if it may go before `place`.
    fn same_group(&self, pool_id: PoolId, place: &Place) -> Option<JobId> {
        let pool = &self.pools[pool_id.0];
        let (group, left) = pool.current.as_ref()?;
        let (priority, _, id) = pool.groups.get(group)?.first()?;
        let user = &self.jobs.get(id)?.placement.user;
        let may = *left > 0 && *priority == place.priority && !self.is_limited(pool.kind, user);
        may.then_some(*id)
    }

    fn note_group(&mut self, pool_id: PoolId, group: &Arc<str>) {
        let pool = &mut self.pools[pool_id.0];
        let run = self.kinds[pool.kind].limits.group_run;
        pool.current = match pool.current.take() {
            _ if group.is_empty() || run < 2 => None,
            Some((current, left)) if current == *group => Some((current, left.saturating_sub(1))),
            _ => Some((Arc::clone(group), run - 1)),
        };
    }

    /// A running job leaves: it ended, pauses, or will be inserted again.
    pub(crate) fn leave(&mut self, id: JobId) -> Option<Placement> {
        if !self.jobs.get(&id)?.is_running {
            return None;
        }
        let slot = self.jobs.remove(&id)?;
        let left = self.ticket();
        let user = &slot.placement.user;
        if let Some(state) = self.pools[slot.pool.0].users.get_mut(user) {
            state.left = left;
        }
        self.running -= 1;
        self.count(slot.pool, slot.placement.kind, user, -1);
        self.forget_user(slot.pool, user);
        Some(slot.placement)
    }

    /// Changes the counts of running jobs, and moves the lanes and pools that it concerns.
    fn count(&mut self, pool_id: PoolId, kind_index: usize, user: &Arc<str>, by: isize) {
        let kind = &mut self.kinds[kind_index];
        let kind_before = kind.running >= kind.limits.running;
        kind.running = kind.running.saturating_add_signed(by);
        let kind_flips = kind_before != (kind.running >= kind.limits.running);
        let of_user = kind.running_by_user.entry(Arc::clone(user)).or_default();
        let user_before = *of_user >= kind.limits.running_per_user;
        *of_user = of_user.saturating_add_signed(by);
        let user_flips = user_before != (*of_user >= kind.limits.running_per_user);
        if *of_user == 0 {
            kind.running_by_user.remove(user);
        }
        let pool = &mut self.pools[pool_id.0];
        pool.running = pool.running.saturating_add_signed(by);
        let in_pool = pool.users.entry(Arc::clone(user)).or_default();
        in_pool.running = in_pool.running.saturating_add_signed(by);
        let others = match kind_flips || user_flips {
            true => self.kinds[kind_index].pools.clone(),
            false => Vec::new(),
        };
        for other in others.into_iter().filter(|other| *other != pool_id) {
            if user_flips {
                self.refresh_user(other, user);
            }
            self.refresh_pool(other);
        }
        self.refresh_user(pool_id, user);
        self.refresh_pool(pool_id);
    }

    fn is_limited(&self, kind: usize, user: &Arc<str>) -> bool {
        let kind = &self.kinds[kind];
        let running = kind.running_by_user.get(user).copied().unwrap_or(0);
        running >= kind.limits.running_per_user
    }

    /// Computes the places of all lanes of a user in a pool.
    fn refresh_user(&mut self, pool_id: PoolId, user: &Arc<str>) {
        let from = (Arc::clone(user), Priority(i16::MIN));
        let to = (Arc::clone(user), Priority(i16::MAX));
        let lanes = self.pools[pool_id.0].lanes.range(from..=to);
        let lanes: Vec<_> = lanes.map(|(key, _)| key.clone()).collect();
        for lane in lanes {
            self.refresh_lane(pool_id, &lane);
        }
    }

    /// Computes the place of a lane. An empty lane disappears.
    fn refresh_lane(&mut self, pool_id: PoolId, key: &(Arc<str>, Priority)) {
        self.touched += 1;
        let is_limited = self.is_limited(self.pools[pool_id.0].kind, &key.0);
        let pool = &mut self.pools[pool_id.0];
        let Some(lane) = pool.lanes.get_mut(key) else {
            return;
        };
        if let Some(place) = lane.place.take() {
            pool.heads.remove(&place);
        }
        let Some(arrival) = lane.arrivals.first().copied() else {
            pool.lanes.remove(key);
            return;
        };
        if is_limited {
            return;
        }
        let user = pool.users.get(&key.0);
        let place = Place {
            priority: Reverse(key.1),
            rank: user.map_or(0, |user| user.running),
            ticket: arrival.max(user.map_or(0, |user| user.left)),
            user: Arc::clone(&key.0),
        };
        pool.heads.insert(place.clone());
        lane.place = Some(place);
    }

    /// Computes the place of a pool.
    fn refresh_pool(&mut self, pool_id: PoolId) {
        self.touched += 1;
        let pool = &mut self.pools[pool_id.0];
        if let Some(place) = pool.place.take() {
            self.heads.remove(&(place, pool_id));
        }
        let kind = &self.kinds[pool.kind];
        let is_open = pool.held_until.is_none()
            && kind.running < kind.limits.running
            && pool.running < kind.limits.running_per_resource;
        if let Some(head) = pool.heads.first().filter(|_| is_open) {
            pool.place = Some(head.clone());
            self.heads.insert((head.clone(), pool_id));
        }
    }

    /// Forgets a user without jobs in a pool.
    fn forget_user(&mut self, pool_id: PoolId, user: &Arc<str>) {
        let users = &mut self.pools[pool_id.0].users;
        if users
            .get(user)
            .is_some_and(|u| u.running == 0 && u.queued == 0)
        {
            users.remove(user);
        }
    }

    /// Starts no job of a kind and resource before a time.
    pub(crate) fn hold(&mut self, kind: usize, resource: &Arc<str>, until: Time) -> PoolId {
        let pool_id = self.pool_of(kind, resource);
        let pool = &mut self.pools[pool_id.0];
        pool.held_until = pool.held_until.max(Some(until));
        self.refresh_pool(pool_id);
        pool_id
    }

    /// Returns whether a kind and resource is held at a time.
    pub(crate) fn is_held(&self, kind: usize, resource: &Arc<str>, now: Time) -> bool {
        let pool = self.pool_ids.get(&(kind, Arc::clone(resource)));
        let until = pool.and_then(|pool| self.pools[pool.0].held_until);
        until.is_some_and(|until| until > now)
    }

    /// Ends a hold whose time has come.
    pub(crate) fn release(&mut self, pool_id: PoolId, now: Time) {
        let pool = &mut self.pools[pool_id.0];
        if pool.held_until.is_some_and(|until| until <= now) {
            pool.held_until = None;
            self.refresh_pool(pool_id);
        }
    }

    /// The lowest or highest order among the queued jobs of the same user, kind, resource and
    /// priority.
    pub(crate) fn order_at(&self, placement: &Placement, first: bool) -> i64 {
        let pool = self
            .pool_ids
            .get(&(placement.kind, Arc::clone(&placement.resource)));
        let lane_key = (Arc::clone(&placement.user), placement.priority);
        let lane = pool.and_then(|pool| self.pools[pool.0].lanes.get(&lane_key));
        match lane {
            None => placement.order,
            Some(lane) if first => lane.jobs.first().map_or(0, |(order, _)| order - 1),
            Some(lane) => lane.jobs.last().map_or(0, |(order, _)| order + 1),
        }
    }

    /// The jobs that would start next if none ended and there were no limits, at most `most`.
    pub(crate) fn preview(&self, most: usize) -> Vec<JobId> {
        let mut queue = self.clone();
        queue.running_max = usize::MAX;
        for kind in &mut queue.kinds {
            kind.limits.running = usize::MAX;
            kind.limits.running_per_resource = usize::MAX;
            kind.limits.running_per_user = usize::MAX;
        }
        for pool in 0..queue.pools.len() {
            queue.pools[pool].held_until = None;
            let lanes: Vec<_> = queue.pools[pool].lanes.keys().cloned().collect();
            for lane in lanes {
                queue.refresh_lane(PoolId(pool), &lane);
            }
            queue.refresh_pool(PoolId(pool));
        }
        std::iter::from_fn(|| queue.next()).take(most).collect()
    }
}

#[cfg(test)]
mod tests;
