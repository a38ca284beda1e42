//! Access checks: rights from access lists, owners, administrators and mode bits.
//!
//! * The caller's rights are those that the directory's list grants to its identity and groups, and
//!   to the groups of its host. A file is governed by the list of its directory.
//! * Members of `system:administrators` also have lookup, and the configured *implicit* rights.
//!   They may change every list, owner and group, and set the set-id bits; mode bits do not
//!   restrict them. They read and write files only if a list lets them. If a host is in the group,
//!   that makes no user on it an administrator.
//! * Drop box: the owner of a file who also has the insert right may finish writing it. The owner
//!   may also read it, unless the owner is anonymous, which is every unauthenticated user. So an
//!   owner reads there only its own files, and a user with insert alone sees no file of another
//!   user.
//! * The owner of a volume may look up and change every list in it.
//! * Only the owner's mode bits count, and only on files. To read, a caller other than the owner
//!   needs bit 0400 or 0100. To write, every caller needs bit 0200, except in a drop box.
//! * Set-id bits that non-administrators request are refused. The exception is an owner that is
//!   finishing a file, as `cp -p` and `tar` do: there the bits are silently omitted.
//!
//! Source: FS/CM specification, protection; observed of OpenAFS 1.8's file server.

use std::sync::OnceLock;

use cellar_volume::{AccessList, FileType, VnodeStatus};
use cellar_wire::acl::{Cps, Rights};
use cellar_wire::ids::ViceId;

/// A caller with all its groups.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) id: ViceId,
    pub(crate) cps: Cps,
    /// Groups of the host; `None` if it has none.
    pub(crate) host_cps: Option<Cps>,
    pub(crate) administrator: bool,
    pub(crate) implicit: Rights,
}

/// The rights in a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Rights of the caller.
    pub(crate) caller: Rights,
    /// Rights of every user.
    pub(crate) anonymous: Rights,
}

const OWNER_READ_OR_EXECUTE: u16 = 0o500;
const OWNER_WRITE: u16 = 0o200;
const SET_ID_BITS: u32 = 0o6000;

/// The groups of every user, without building the list for each call.
fn anyuser() -> &'static Cps {
    static ANYUSER: OnceLock<Cps> = OnceLock::new();
    ANYUSER.get_or_init(Cps::anonymous)
}

/// The groups of which a host itself is a member. The groups of every user are omitted: a host's
/// rights are added to the caller's, and would restore rights that a negative entry removes.
/// `system:administrators` is omitted too; alone it would be [`Cps::superuser`].
fn own_groups(cps: Cps) -> Option<Cps> {
    let everybody = [
        ViceId::ANYUSER,
        ViceId::AUTHUSER,
        ViceId::ANONYMOUS,
        ViceId::ADMINISTRATORS,
    ];
    let own: Vec<ViceId> = cps
        .ids()
        .iter()
        .copied()
        .filter(|id| !everybody.contains(id))
        .collect();
    if own.is_empty() {
        None
    } else {
        Some(Cps::new(own))
    }
}

impl Identity {
    /// A caller without credentials.
    pub(crate) fn anonymous(host_cps: Option<Cps>) -> Self {
        let cps = Cps::new(vec![ViceId::ANYUSER, ViceId::ANONYMOUS]);
        Self::new(ViceId::ANONYMOUS, cps, host_cps, Rights::NONE)
    }

    /// The local administrator, who has every right.
    pub(crate) fn superuser() -> Self {
        Self::new(
            ViceId::ADMINISTRATORS,
            Cps::superuser(),
            None,
            Rights::EVERYTHING,
        )
    }

    pub(crate) fn new(id: ViceId, cps: Cps, host_cps: Option<Cps>, implicit: Rights) -> Self {
        let administrator = cps.is_administrator();
        let host_cps = host_cps.and_then(own_groups);
        Self {
            id,
            cps,
            host_cps,
            administrator,
            implicit,
        }
    }

    /// The caller's and everybody's rights under a list.
    pub(crate) fn access(&self, list: &AccessList) -> Access {
        let mut caller = list.rights(&self.cps);
        let mut anonymous = list.rights(anyuser());
        if let Some(host) = &self.host_cps {
            let host = list.rights(host);
            caller |= host;
            anonymous |= host;
        }
        if self.administrator {
            caller |= self.implicit | Rights::LOOKUP;
        }
        Access { caller, anonymous }
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.id == ViceId::ANONYMOUS
    }

    /// Whether the caller owns the vnode. The anonymous user owns vnodes that anonymous users
    /// created.
    pub(crate) fn owns(&self, status: &VnodeStatus) -> bool {
        status.owner == self.id
    }

    /// Whether the caller owns the volume, that is, its root directory. The owner may be a group.
    pub(crate) fn owns_volume(&self, owner: ViceId) -> bool {
        if owner.is_group() {
            return self.cps.contains(owner);
        }
        !self.is_anonymous() && owner == self.id
    }

    /// The caller's rights in a status. On anything but a directory, `a` says that the caller owns
    /// it.
    pub(crate) fn shown(&self, status: &VnodeStatus, caller: Rights) -> Rights {
        match status.kind {
            FileType::Directory => caller,
            _ if self.owns(status) => caller | Rights::ADMINISTER,
            _ => caller.difference(Rights::ADMINISTER),
        }
    }

    /// The drop box: the caller owns the file and has the insert right.
    pub(crate) fn has_dropped(&self, status: &VnodeStatus, caller: Rights) -> bool {
        status.kind == FileType::File && caller.contains(Rights::INSERT) && self.owns(status)
    }

    /// As [`Self::has_dropped`], for reading.
    fn may_read_dropped(&self, status: &VnodeStatus, caller: Rights) -> bool {
        !self.is_anonymous() && self.has_dropped(status, caller)
    }

    fn may_look_up(&self, caller: Rights, volume_owner: ViceId) -> bool {
        caller.contains(Rights::LOOKUP) || self.owns_volume(volume_owner)
    }

    /// FetchStatus. Always allowed on a directory.
    pub(crate) fn may_fetch_status(
        &self,
        status: &VnodeStatus,
        caller: Rights,
        volume_owner: ViceId,
    ) -> bool {
        match status.kind {
            FileType::Directory => true,
            FileType::Symlink => self.administrator || self.may_look_up(caller, volume_owner),
            FileType::File => {
                self.administrator
                    || caller.contains(Rights::READ)
                    || self.may_read_dropped(status, caller)
            }
        }
    }

    /// FetchData.
    pub(crate) fn may_fetch_data(
        &self,
        status: &VnodeStatus,
        caller: Rights,
        volume_owner: ViceId,
    ) -> bool {
        if status.kind != FileType::File {
            return self.may_look_up(caller, volume_owner);
        }
        let by_list = caller.contains(Rights::READ) || self.may_read_dropped(status, caller);
        let by_mode =
            status.mode & OWNER_READ_OR_EXECUTE != 0 || self.administrator || self.owns(status);
        by_list && by_mode
    }

    /// FetchACL.
    pub(crate) fn may_fetch_acl(
        &self,
        status: &VnodeStatus,
        caller: Rights,
        volume_owner: ViceId,
    ) -> bool {
        match status.kind {
            FileType::Directory => self.administrator || self.may_look_up(caller, volume_owner),
            _ => self.may_fetch_status(status, caller, volume_owner),
        }
    }

    /// StoreACL.
    pub(crate) fn may_store_acl(&self, caller: Rights, volume_owner: ViceId) -> bool {
        caller.contains(Rights::ADMINISTER) || self.administrator || self.owns_volume(volume_owner)
    }

    /// StoreData.
    pub(crate) fn may_store_data(&self, status: &VnodeStatus, caller: Rights) -> bool {
        if self.has_dropped(status, caller) {
            return true;
        }
        caller.contains(Rights::WRITE) && (self.administrator || status.mode & OWNER_WRITE != 0)
    }

    /// StoreStatus of the fields that need no administrator: mode and times.
    pub(crate) fn may_store_status(&self, status: &VnodeStatus, caller: Rights) -> bool {
        if status.kind == FileType::Directory {
            return caller.intersects(Rights::DELETE | Rights::INSERT);
        }
        self.has_dropped(status, caller) || caller.contains(Rights::WRITE)
    }

    /// Whether a mode may be requested: only administrators may set set-id bits.
    pub(crate) fn may_set_mode(&self, status: &VnodeStatus, caller: Rights, mode: u32) -> bool {
        self.administrator || mode & SET_ID_BITS == 0 || self.has_dropped(status, caller)
    }

    /// A read lock, or a write lock.
    pub(crate) fn may_lock(&self, status: &VnodeStatus, caller: Rights, write: bool) -> bool {
        caller.contains(Rights::WRITE)
            || (!write && caller.contains(Rights::LOCK))
            || self.has_dropped(status, caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellar_wire::acl::AclEntry;
    use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId};

    fn list(positive: &[(i32, &str)], negative: &[(i32, &str)]) -> AccessList {
        let entries = |list: &[(i32, &str)]| {
            let entry = |&(id, rights): &(i32, &str)| AclEntry {
                id: ViceId(id),
                rights: Rights::parse(rights).unwrap(),
            };
            list.iter().map(entry).collect()
        };
        AccessList::new(entries(positive), entries(negative)).unwrap()
    }

    fn user(id: i32, groups: &[i32]) -> Identity {
        let mut ids: Vec<ViceId> = groups.iter().copied().map(ViceId).collect();
        ids.extend([ViceId(id), ViceId::ANYUSER, ViceId::AUTHUSER]);
        Identity::new(ViceId(id), Cps::new(ids), None, Rights::LOOKUP)
    }

    fn status(kind: FileType, owner: i32, mode: u16) -> VnodeStatus {
        VnodeStatus {
            fid: Fid::new(1, 2, 3),
            kind,
            mode,
            link_count: 1,
            length: 0,
            data_version: 0,
            author: ViceId(owner),
            owner: ViceId(owner),
            group: ViceId(0),
            parent: VnodeId(1),
            parent_uniquifier: Uniquifier(1),
            client_time: AfsTime(0),
            server_time: AfsTime(0),
        }
    }

    #[test]
    fn negative_entries_take_away_and_administrators_look_up() {
        let list = list(&[(-101, "rl"), (7, "rlidwka")], &[(7, "a"), (-300, "r")]);
        let rights = |identity: &Identity| identity.access(&list).caller.to_string();
        assert_eq!(rights(&user(7, &[])), "rlidwk");
        assert_eq!(rights(&user(7, &[-300])), "lidwk");
        assert_eq!(rights(&user(8, &[])), "rl");
        assert_eq!(rights(&user(8, &[-300])), "l");
        assert_eq!(rights(&Identity::anonymous(None)), "rl");
        let nothing = self::list(&[], &[]);
        assert_eq!(user(8, &[-204]).access(&nothing).caller, Rights::LOOKUP);
        assert_eq!(
            Identity::superuser().access(&nothing).caller,
            Rights::EVERYTHING
        );
    }

    #[test]
    fn a_host_s_groups_count_for_everybody_on_it() {
        let list = list(&[(-500, "rl"), (9, "w")], &[]);
        let host = Cps::new(vec![ViceId(-500), ViceId::ADMINISTRATORS]);
        let mut identity = user(9, &[]);
        identity.host_cps = own_groups(host);
        let access = identity.access(&list);
        assert_eq!(access.caller.to_string(), "rlw");
        assert_eq!(access.anonymous.to_string(), "rl");
        // The groups of every user in a host's subdomain override no negative entry.
        let list = self::list(&[(-101, "rl")], &[(9, "r")]);
        let everybody = Cps::new(vec![ViceId::ANYUSER]);
        let cps = Cps::new(vec![ViceId(9), ViceId::ANYUSER]);
        let identity = Identity::new(ViceId(9), cps, Some(everybody), Rights::NONE);
        assert_eq!(identity.access(&list).caller.to_string(), "l");
    }

    /// The table of operations and the rights that they need, for each kind of vnode.
    #[test]
    fn rights_and_operations() {
        use FileType::{Directory, File, Symlink};
        type Check = fn(&Identity, &VnodeStatus, Rights) -> bool;
        let fetch_status: Check = |i, s, r| i.may_fetch_status(s, r, ViceId(1));
        let fetch_data: Check = |i, s, r| i.may_fetch_data(s, r, ViceId(1));
        let fetch_acl: Check = |i, s, r| i.may_fetch_acl(s, r, ViceId(1));
        let store_acl: Check = |i, _, r| i.may_store_acl(r, ViceId(1));
        let store_data: Check = |i, s, r| i.may_store_data(s, r);
        let store_status: Check = |i, s, r| i.may_store_status(s, r);
        let read_lock: Check = |i, s, r| i.may_lock(s, r, false);
        let write_lock: Check = |i, s, r| i.may_lock(s, r, true);
        // The object belongs to another user and has mode 0600. In each row, one of the named
        // rights is needed.
        let rows: &[(&str, Check, FileType, &str)] = &[
            ("FetchStatus", fetch_status, File, "r"),
            ("FetchStatus", fetch_status, Symlink, "l"),
            ("FetchData", fetch_data, File, "r"),
            ("FetchData", fetch_data, Symlink, "l"),
            ("FetchData", fetch_data, Directory, "l"),
            ("FetchACL", fetch_acl, Directory, "l"),
            ("StoreACL", store_acl, Directory, "a"),
            ("StoreData", store_data, File, "w"),
            ("StoreStatus", store_status, File, "w"),
            ("StoreStatus", store_status, Symlink, "w"),
            ("StoreStatus", store_status, Directory, "id"),
            ("SetLock read", read_lock, File, "kw"),
            ("SetLock write", write_lock, File, "w"),
        ];
        let other = user(8, &[]);
        for &(name, check, kind, needed) in rows {
            let status = status(kind, 7, 0o600);
            for letter in "rlidwka".chars() {
                let rights = Rights::parse(&letter.to_string()).unwrap();
                let expected = needed.contains(letter);
                assert_eq!(
                    check(&other, &status, rights),
                    expected,
                    "{name} {kind:?} {letter}"
                );
            }
        }
        assert!(fetch_status(&other, &status(Directory, 7, 0), Rights::NONE));
    }

    #[test]
    fn the_owner_of_a_drop_box_file_finishes_it_and_anonymous_reads_nothing_back() {
        let file = status(FileType::File, 7, 0o600);
        let (owner, other) = (user(7, &[]), user(8, &[]));
        for (who, allowed) in [(&owner, true), (&other, false)] {
            assert_eq!(who.may_store_data(&file, Rights::INSERT), allowed);
            assert_eq!(
                who.may_fetch_data(&file, Rights::INSERT, ViceId(1)),
                allowed
            );
            assert_eq!(who.may_store_status(&file, Rights::INSERT), allowed);
            assert_eq!(who.may_lock(&file, Rights::INSERT, true), allowed);
            assert!(!who.may_store_data(&file, Rights::NONE));
        }
        let anonymous = Identity::anonymous(None);
        let file = status(FileType::File, ViceId::ANONYMOUS.0, 0o600);
        assert!(anonymous.may_store_data(&file, Rights::INSERT));
        assert!(!anonymous.may_fetch_data(&file, Rights::INSERT, ViceId::ANONYMOUS));
        assert!(!anonymous.may_fetch_status(&file, Rights::INSERT, ViceId::ANONYMOUS));
        assert!(!anonymous.owns_volume(ViceId::ANONYMOUS));
        assert!(user(7, &[-400]).owns_volume(ViceId(-400)));
    }

    #[test]
    fn mode_bits_hold_everybody_but_owner_and_administrators() {
        let rights = Rights::READ | Rights::WRITE;
        let (other, owner, admin) = (user(8, &[]), user(7, &[]), user(9, &[-204]));
        let unreadable = status(FileType::File, 7, 0o222);
        assert!(!other.may_fetch_data(&unreadable, rights, ViceId(1)));
        assert!(owner.may_fetch_data(&unreadable, rights, ViceId(1)));
        assert!(admin.may_fetch_data(&unreadable, rights, ViceId(1)));
        let executable = status(FileType::File, 7, 0o100);
        assert!(other.may_fetch_data(&executable, rights, ViceId(1)));
        let unwritable = status(FileType::File, 7, 0o444);
        assert!(!other.may_store_data(&unwritable, rights));
        assert!(!owner.may_store_data(&unwritable, rights));
        assert!(admin.may_store_data(&unwritable, rights));
        let file = status(FileType::File, 7, 0o644);
        let insert = rights | Rights::INSERT;
        assert!(!other.may_set_mode(&file, insert, 0o4755));
        assert!(other.may_set_mode(&file, insert, 0o777));
        assert!(admin.may_set_mode(&file, Rights::NONE, 0o4755));
        assert!(!owner.may_set_mode(&file, rights, 0o2755));
        assert!(owner.may_set_mode(&file, insert, 0o2755), "left out later");
    }
}
