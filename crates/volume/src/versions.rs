//! Versions of vnodes and pieces in the order of their keys, each with the viewers that see it.
//!
//! A viewer is an epoch. Of each vnode or piece, it sees the newest version that is not newer than
//! itself. The newest version comes first. So the viewers of a version are the next ones in the
//! list of viewers, newest first, that are not older than the version. Dumps read in this way with
//! one viewer, checks with all.

use bytes::Bytes;
use cellar_wire::ids::VnodeId;

use crate::engine::key::{Key, Kind};
use crate::engine::{Engine, Walk};
use crate::error::Result;
use crate::state::core::GroupId;

use std::ops::Range;
use std::sync::Arc;

/// A walk over versions.
pub(crate) struct Versions {
    walk: Walk,
    /// Newest first.
    viewers: Vec<u64>,
    /// The vnode or piece of the last version, and how many viewers have seen a version of it.
    last: Option<Key>,
    served: usize,
}

/// A version.
pub(crate) struct Version {
    pub(crate) key: Key,
    pub(crate) value: Bytes,
    /// The range of [`Versions::viewers`] that sees it.
    pub(crate) seen_by: Range<usize>,
}

impl Versions {
    /// The versions of the vnodes of a group, from number `first` on.
    pub(crate) fn of_vnodes(
        engine: &Arc<Engine>,
        group: GroupId,
        first: u32,
        viewers: Vec<u64>,
    ) -> Self {
        let from = Key::vnode_prefix(group.0, first);
        Self::of(engine, &from, &Key::of_group(Kind::Vnode, group.0), viewers)
    }

    /// The versions of one vnode.
    pub(crate) fn of_vnode(
        engine: &Arc<Engine>,
        group: GroupId,
        vnode: VnodeId,
        viewers: Vec<u64>,
    ) -> Self {
        let prefix = Key::vnode_prefix(group.0, vnode.0);
        Self::of(engine, &prefix, &prefix, viewers)
    }

    /// The versions of the pieces of one body.
    pub(crate) fn of_body(
        engine: &Arc<Engine>,
        group: GroupId,
        vnode: VnodeId,
        body: u32,
        viewers: Vec<u64>,
    ) -> Self {
        let prefix = Key::body_prefix(group.0, vnode.0, body);
        Self::of(engine, &prefix, &prefix, viewers)
    }

    /// The versions of all pieces of all bodies of a vnode.
    pub(crate) fn of_bodies(
        engine: &Arc<Engine>,
        group: GroupId,
        vnode: VnodeId,
        viewers: Vec<u64>,
    ) -> Self {
        let prefix = Key::bodies_prefix(group.0, vnode.0);
        Self::of(engine, &prefix, &prefix, viewers)
    }

    fn of(engine: &Arc<Engine>, from: &Key, prefix: &Key, mut viewers: Vec<u64>) -> Self {
        viewers.sort_unstable_by(|one, other| other.cmp(one));
        viewers.dedup();
        Self {
            walk: engine.walk(from, prefix),
            viewers,
            last: None,
            served: 0,
        }
    }

    /// The viewers, newest first.
    pub(crate) fn viewers(&self) -> &[u64] {
        &self.viewers
    }

    /// The next version, seen by a viewer or not.
    pub(crate) fn next(&mut self) -> Result<Option<Version>> {
        let Some((key, value)) = self.walk.next()? else {
            return Ok(None);
        };
        let of = key.of_all_versions();
        if self.last != Some(of) {
            self.last = Some(of);
            self.served = 0;
        }
        let begin = self.served;
        let rest = &self.viewers[begin..];
        self.served += rest.partition_point(|&viewer| viewer >= key.epoch());
        Ok(Some(Version {
            key,
            value,
            seen_by: begin..self.served,
        }))
    }

    /// The next version that a viewer sees.
    pub(crate) fn next_visible(&mut self) -> Result<Option<Version>> {
        while let Some(version) = self.next()? {
            if !version.seen_by.is_empty() {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Goes on at `key`, which is not before the present place: behind a damaged part.
    pub(crate) fn skip_to(&mut self, key: Key) {
        self.walk.skip_to(key);
    }
}
