//! Inodes: the kernel's numbers for vnodes.
//!
//! 1. A number stands for a vnode *at a place*. The directories of a volume that is mounted twice
//!    are different inodes, because the kernel allows a directory only one parent. A place is
//!    identified by the mount point that led into the volume. A file is the same inode everywhere
//!    in its volume.
//! 2. Numbers are computed from the fid, so that they are the same after a restart. If two vnodes
//!    want the same number, the second gets another. All are below 2^63 ([`NUMBERS`]).
//! 3. Programs see the same number for the root of a volume wherever it is mounted. Thus `find` and
//!    `du` notice a volume that is mounted within itself, and do not loop for ever. OpenAFS's
//!    clients show it so too.
//! 4. A listed cell in the dynamic root is only a name until a program reads something in it. Its
//!    inode then becomes the inode of the cell's root directory, with the same number. So listing
//!    the root does not wait for silent cells, and what the kernel holds under the name stays
//!    valid.
//! 5. A file that the kernel reads directly (`passthrough.rs`) is an inode with the contents of
//!    that time. When the file changes, its names lead to another inode, which programs see under
//!    the same number.
//! 6. An inode exists as long as the kernel counts look-ups of it. It records the names under which
//!    the kernel knows its children: notices must name these when they become invalid.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use cellar_cachemanager::{Key, Vnode};
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use parking_lot::Mutex;

mod listings;

pub(crate) use listings::ListingMode;

/// The number of the root. Source: the FUSE protocol.
pub(crate) const ROOT: u64 = 1;
/// The key of the dynamic root in notices, in place of a vnode's.
pub(crate) const CELLS: Key = (
    u32::MAX,
    Fid {
        volume: VolumeId(0),
        vnode: VnodeId(0),
        uniquifier: Uniquifier(0),
    },
);
/// The bits of a number. Programs that keep it in 64 signed bits take a larger one for an error.
const NUMBERS: u64 = (1 << 63) - 1;
/// The largest depth of directories that is counted.
const DEPTH_MAX: usize = 256;
/// Number of absent names that are remembered for a directory.
const ABSENT_MAX: usize = 4_096;

/// A vnode at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct At {
    /// For directories: a hash of the inode with the mount point and of its name; otherwise 0.
    place: u64,
    key: Key,
}

/// The object behind a number.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// The dynamic root.
    Cells,
    /// `.:mount` in the dynamic root, which contains volumes by cell and name.
    Volumes,
    /// A listed cell that no program has read yet: its name there.
    Cell(Bytes),
    Vnode(Arc<Vnode>),
    /// An alias of a cell in the dynamic root: a link with this text.
    Link(Bytes),
}

#[derive(Debug)]
struct Inode {
    node: Node,
    at: Option<At>,
    /// The number that programs see: rule 3.
    shown: u64,
    lookups: u64,
    /// The place of its children.
    place: u64,
    /// Names in it that the kernel may hold, with the inodes they lead to; 0 for an absent name.
    names: HashMap<Bytes, u64>,
    absent: usize,
    /// The names under which the kernel may hold it.
    parents: HashSet<(u64, Bytes)>,
    /// The data version of the pages that the kernel may hold.
    pages: Option<u64>,
    /// Rule 5: [`Vnode::content_generation`] of what the kernel reads directly.
    lent: Option<u64>,
    /// The listing in the kernel's pages of a directory.
    listed: listings::Pages,
}

impl Inode {
    /// An inode of which the kernel holds nothing yet. `place` is the place of its children.
    fn new(node: Node, at: Option<At>, number: u64, place: u64) -> Self {
        Self {
            node,
            at,
            shown: number,
            lookups: 0,
            place,
            names: HashMap::new(),
            absent: 0,
            parents: HashSet::new(),
            pages: None,
            lent: None,
            listed: listings::Pages::default(),
        }
    }
}

/// All inodes that the kernel knows.
#[derive(Debug)]
pub(crate) struct Inodes(Mutex<Table>);

#[derive(Debug)]
struct Table {
    inodes: HashMap<u64, Inode>,
    numbers: HashMap<At, u64>,
    /// The inodes of each vnode.
    of_key: HashMap<Key, Vec<u64>>,
    /// The inodes of links, by name and text.
    links: HashMap<(Bytes, Bytes), u64>,
}

impl Inodes {
    pub(crate) fn new(root: Node) -> Self {
        let mut table = Table {
            inodes: HashMap::new(),
            numbers: HashMap::new(),
            of_key: HashMap::new(),
            links: HashMap::new(),
        };
        let at = match &root {
            Node::Cells | Node::Volumes | Node::Cell(_) | Node::Link(_) => None,
            Node::Vnode(vnode) => Some(At {
                place: ROOT,
                key: vnode.key(),
            }),
        };
        if let Some(at) = at {
            table.numbers.insert(at, ROOT);
            table.of_key.insert(at.key, vec![ROOT]);
        } else {
            table.of_key.insert(CELLS, vec![ROOT]);
        }
        let root = Inode {
            // The root is never forgotten.
            lookups: 1,
            ..Inode::new(root, at, ROOT, ROOT)
        };
        table.inodes.insert(ROOT, root);
        Self(Mutex::new(table))
    }

    /// The object behind a number.
    pub(crate) fn node(&self, number: u64) -> Option<Node> {
        Some(self.0.lock().inodes.get(&number)?.node.clone())
    }

    /// The number of the vnode that `name` in `parent` led to. If `counted`, it counts as looked up
    /// once more.
    pub(crate) fn enter(
        &self,
        parent: u64,
        name: &[u8],
        vnode: &Arc<Vnode>,
        crossed: bool,
        counted: bool,
    ) -> u64 {
        // Only these files are lent.
        let can_be_lent = !vnode.is_directory() && vnode.volume().is_read_only();
        let contents = can_be_lent.then(|| vnode.content_generation());
        let mut table = self.0.lock();
        let above = table.inodes.get(&parent).map_or(ROOT, |inode| inode.place);
        let place = match (vnode.is_directory(), crossed) {
            (false, _) => 0,
            (true, true) => place_of(parent, name),
            (true, false) => above,
        };
        let at = At {
            place,
            key: vnode.key(),
        };
        let number = match table.numbers.get(&at) {
            Some(number) if !table.is_old(*number, contents) => *number,
            _ => table.add(at, vnode.clone(), crossed),
        };
        if counted {
            table.looked_up(parent, name, number);
        }
        number
    }

    /// The number of a listed cell's name in the dynamic root, which counts as looked up once more.
    /// Returns `None` if a vnode is known there.
    pub(crate) fn enter_cell(&self, name: &[u8]) -> Option<u64> {
        let mut table = self.0.lock();
        let root = table.inodes.get(&ROOT)?;
        let number = match root.names.get(name).copied() {
            None | Some(0) => {
                let place = place_of(ROOT, name);
                let node = Node::Cell(Bytes::copy_from_slice(name));
                table.insert(place, node, None, place)
            }
            Some(number) => match table.inodes.get(&number)?.node {
                Node::Cell(_) => number,
                _ => return None,
            },
        };
        table.looked_up(ROOT, name, number);
        Some(number)
    }

    /// The number of a directory of volumes in the dynamic root, which counts as looked up once
    /// more.
    pub(crate) fn enter_volumes(&self, name: &[u8]) -> u64 {
        let mut table = self.0.lock();
        let root = table.inodes.get(&ROOT);
        let number = match root.and_then(|root| root.names.get(name)) {
            Some(number) => *number,
            None => {
                let place = place_of(ROOT, name);
                let number = table.insert(place, Node::Volumes, None, place);
                // When cells change, names of cells may lead to other volumes, and so may the names
                // in this directory.
                table.of_key.entry(CELLS).or_default().push(number);
                number
            }
        };
        table.looked_up(ROOT, name, number);
        number
    }

    /// Rule 4: records the root directory that a listed cell's name leads to.
    pub(crate) fn set_cell_root(&self, number: u64, vnode: &Arc<Vnode>) {
        let mut table = self.0.lock();
        let Some(inode) = table.inodes.get_mut(&number) else {
            return;
        };
        let Node::Cell(_) = inode.node else {
            return;
        };
        let at = At {
            place: inode.place,
            key: vnode.key(),
        };
        inode.node = Node::Vnode(vnode.clone());
        inode.at = Some(at);
        table.numbers.entry(at).or_insert(number);
        table.of_key.entry(at.key).or_default().push(number);
    }

    /// The number of a link in the dynamic root, which counts as looked up once more.
    pub(crate) fn enter_link(&self, name: &[u8], text: &[u8]) -> u64 {
        let mut table = self.0.lock();
        let text = Bytes::copy_from_slice(text);
        let key = (Bytes::copy_from_slice(name), text.clone());
        let number = match table.links.get(&key) {
            Some(number) => *number,
            None => {
                let number = table.insert(place_of(ROOT, name), Node::Link(text), None, 0);
                table.links.insert(key, number);
                number
            }
        };
        table.looked_up(ROOT, name, number);
        number
    }

    /// Records that the kernel may remember the absence of a name. Returns `false` if it must not.
    pub(crate) fn absent(&self, parent: u64, name: &[u8]) -> bool {
        let mut table = self.0.lock();
        let Some(directory) = table.inodes.get_mut(&parent) else {
            return false;
        };
        if directory.absent >= ABSENT_MAX {
            return false;
        }
        if directory.names.insert(Bytes::copy_from_slice(name), 0) != Some(0) {
            directory.absent += 1;
        }
        true
    }

    /// Records that a name was removed.
    pub(crate) fn removed(&self, parent: u64, name: &[u8]) {
        self.0.lock().take(parent, name);
    }

    /// Records that a name was moved. The kernel has moved what it holds.
    pub(crate) fn renamed(&self, from: (u64, &[u8]), to: (u64, &[u8])) {
        let mut table = self.0.lock();
        table.take(to.0, to.1);
        let Some(number) = table.take(from.0, from.1) else {
            return;
        };
        let name = Bytes::copy_from_slice(to.1);
        if let Some(inode) = table.inodes.get_mut(&number) {
            inode.parents.insert((to.0, name.clone()));
        }
        if let Some(directory) = table.inodes.get_mut(&to.0) {
            directory.names.insert(name, number);
        }
    }

    /// The kernel has forgotten some look-ups.
    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        if number == ROOT {
            return;
        }
        let mut table = self.0.lock();
        let Some(inode) = table.inodes.get_mut(&number) else {
            return;
        };
        inode.lookups = inode.lookups.saturating_sub(lookups);
        if inode.lookups > 0 {
            return;
        }
        let Some(inode) = table.inodes.remove(&number) else {
            return;
        };
        if let Node::Link(_) = inode.node {
            table.links.retain(|_, other| *other != number);
        }
        if let Node::Volumes = inode.node
            && let Some(numbers) = table.of_key.get_mut(&CELLS)
        {
            numbers.retain(|other| *other != number);
        }
        if let Some(at) = inode.at {
            if table.numbers.get(&at) == Some(&number) {
                table.numbers.remove(&at);
            }
            if let Some(numbers) = table.of_key.get_mut(&at.key) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    table.of_key.remove(&at.key);
                }
            }
        }
        for (parent, name) in inode.parents {
            if let Some(directory) = table.inodes.get_mut(&parent)
                && directory.names.get(&name) == Some(&number)
            {
                directory.names.remove(&name);
            }
        }
    }

    /// How often the kernel has looked up a number.
    #[cfg(test)]
    pub(crate) fn lookups(&self, number: u64) -> Option<u64> {
        Some(self.0.lock().inodes.get(&number)?.lookups)
    }

    /// The number of an inode that programs see.
    pub(crate) fn shown(&self, number: u64) -> u64 {
        let table = self.0.lock();
        table
            .inodes
            .get(&number)
            .map_or(number, |inode| inode.shown)
    }

    /// The inodes of a vnode.
    pub(crate) fn of(&self, key: Key) -> Vec<u64> {
        let table = self.0.lock();
        table.of_key.get(&key).cloned().unwrap_or_default()
    }

    /// The names under which the kernel may hold an inode: directories, and the names in them.
    pub(crate) fn names_of(&self, number: u64) -> Vec<(u64, Bytes)> {
        let table = self.0.lock();
        let inode = table.inodes.get(&number);
        inode.map_or_else(Vec::new, |inode| inode.parents.iter().cloned().collect())
    }

    /// The number of directories above an inode, by one of its names.
    pub(crate) fn depth(&self, number: u64) -> usize {
        let table = self.0.lock();
        let mut at = number;
        let above = std::iter::from_fn(|| {
            let inode = table.inodes.get(&at).filter(|_| at != ROOT)?;
            at = inode.parents.iter().next()?.0;
            Some(())
        });
        above.take(DEPTH_MAX).count()
    }

    /// Takes the names in a directory that the kernel may hold. Removes the absent names.
    pub(crate) fn take_names(&self, number: u64) -> Vec<Bytes> {
        let mut table = self.0.lock();
        let Some(directory) = table.inodes.get_mut(&number) else {
            return Vec::new();
        };
        let names = directory.names.keys().cloned().collect();
        directory.names.retain(|_, number| *number != 0);
        directory.absent = 0;
        names
    }

    /// Like [`Self::take_names`], but keeps the numbers behind the names.
    pub(crate) fn names_in(&self, number: u64) -> Vec<Bytes> {
        let table = self.0.lock();
        let directory = table.inodes.get(&number);
        directory.map_or_else(Vec::new, |directory| {
            directory.names.keys().cloned().collect()
        })
    }

    /// The subset of `names` that the kernel may hold in a directory. Removes the absent ones of
    /// them.
    pub(crate) fn take_these_names(&self, number: u64, names: &[Bytes]) -> Vec<Bytes> {
        let mut table = self.0.lock();
        let Some(directory) = table.inodes.get_mut(&number) else {
            return Vec::new();
        };
        let known = names.iter().filter(|name| {
            let found = directory.names.get(*name).copied();
            if found == Some(0) {
                directory.names.remove(*name);
                directory.absent = directory.absent.saturating_sub(1);
            }
            found.is_some()
        });
        known.cloned().collect()
    }

    /// The number of names in a directory that the kernel may hold.
    pub(crate) fn names_known(&self, number: u64) -> usize {
        let table = self.0.lock();
        table
            .inodes
            .get(&number)
            .map_or(0, |directory| directory.names.len())
    }

    /// Records the contents that the kernel reads directly, or that it does so no longer.
    pub(crate) fn lent(&self, number: u64, contents: Option<u64>) {
        let mut table = self.0.lock();
        if let Some(inode) = table.inodes.get_mut(&number) {
            inode.lent = contents;
        }
    }

    /// Returns whether the kernel reads the inode directly.
    pub(crate) fn is_lent(&self, number: u64) -> bool {
        let table = self.0.lock();
        table
            .inodes
            .get(&number)
            .is_some_and(|inode| inode.lent.is_some())
    }

    /// Returns whether a name leads to the inode, as far as the kernel was told.
    pub(crate) fn has_name(&self, number: u64) -> bool {
        let table = self.0.lock();
        let leads = |(parent, name): &(u64, Bytes)| {
            let directory = table.inodes.get(parent);
            directory.and_then(|directory| directory.names.get(name)) == Some(&number)
        };
        let inode = table.inodes.get(&number);
        inode.is_some_and(|inode| inode.parents.iter().any(leads))
    }

    /// The state of the pages that the kernel may hold of an inode. They count as pages of
    /// `version` from now on.
    pub(crate) fn pages_are(&self, number: u64, version: u64) -> Pages {
        let mut table = self.0.lock();
        let inode = table.inodes.get_mut(&number);
        match inode.map(|inode| inode.pages.replace(version)) {
            Some(Some(before)) if before == version => Pages::Right,
            Some(None) => Pages::None,
            _ => Pages::Others,
        }
    }
}

/// Pages that the kernel may hold of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Pages of the present version.
    Right,
    /// None: the inode was never opened.
    None,
    /// Pages of another version.
    Others,
}

impl Table {
    /// Removes a name from a directory. Returns the inode that it led to.
    fn take(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        let directory = self.inodes.get_mut(&parent)?;
        let (name, number) = directory.names.remove_entry(name)?;
        if number == 0 {
            directory.absent -= 1;
            return None;
        }
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.parents.remove(&(parent, name));
        }
        Some(number)
    }

    /// Rule 5: returns whether the inode is lent with other contents.
    fn is_old(&self, number: u64, contents: Option<u64>) -> bool {
        let lent = self.inodes.get(&number).and_then(|inode| inode.lent);
        lent.is_some() && lent != contents
    }

    fn add(&mut self, at: At, vnode: Arc<Vnode>, is_root: bool) -> u64 {
        let fid = at.key.1;
        // Rules 3 and 5.
        let is_same = is_root || !vnode.is_directory();
        let number = self.insert(wanted(fid), Node::Vnode(vnode), Some(at), at.place);
        self.numbers.insert(at, number);
        let others = self.of_key.entry(at.key).or_default();
        // If one of them is above this one, it is the first: the kernel holds all parents of what
        // it holds.
        let first = others.first().copied();
        others.push(number);
        if is_same && let Some(first) = first {
            let shown = self.inodes.get(&first).map_or(first, |inode| inode.shown);
            if let Some(inode) = self.inodes.get_mut(&number) {
                inode.shown = shown;
            }
        }
        number
    }

    /// Counts a look-up of a name.
    fn looked_up(&mut self, parent: u64, name: &[u8], number: u64) {
        let name = Bytes::copy_from_slice(name);
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.lookups += 1;
            inode.parents.insert((parent, name.clone()));
        }
        if let Some(directory) = self.inodes.get_mut(&parent)
            && directory.names.insert(name, number) == Some(0)
        {
            directory.absent -= 1;
        }
    }

    fn insert(&mut self, wanted: u64, node: Node, at: Option<At>, place: u64) -> u64 {
        let mut number = wanted & NUMBERS;
        while number <= ROOT || self.inodes.contains_key(&number) {
            // An odd constant: adding it reaches every number.
            number = number.wrapping_add(0x9e37_79b9_7f4a_7c15) & NUMBERS;
        }
        self.inodes
            .insert(number, Inode::new(node, at, number, place));
        number
    }
}

/// The preferred number for a fid.
pub(crate) fn wanted(fid: Fid) -> u64 {
    (u64::from(fid.volume.0) << 32 | u64::from(fid.vnode.0)) & NUMBERS
}

/// A number for a mount point (FNV-1a).
fn place_of(parent: u64, name: &[u8]) -> u64 {
    let bytes = parent.to_le_bytes();
    let all = bytes.iter().chain(name);
    all.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positive_in_64_signed_bits() {
        let mut table = Table {
            inodes: HashMap::new(),
            numbers: HashMap::new(),
            of_key: HashMap::new(),
            links: HashMap::new(),
        };
        let fid = Fid::new(u32::MAX, 1, 1);
        for wanted in [wanted(fid), u64::MAX, 1 << 63, 0, ROOT] {
            // Two vnodes want the same number.
            for _ in 0..50 {
                let number = table.insert(wanted, Node::Cells, None, 0);
                assert!(number > ROOT && i64::try_from(number).is_ok(), "{number}");
            }
        }
        assert_eq!(table.inodes.len(), 250);
    }
}
