//! An entry of the volume location database, and its form in the output of `vos`.

use std::fmt::Write as _;
use std::net::IpAddr;

use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::vl;
use serde::Serialize;

use crate::host_names::HostNames;

/// Flags of an entry. Source: afs-rpcs §8.1.
pub mod entry_flags {
    /// The read-write volume exists.
    pub const RW_EXISTS: u32 = 0x1000;
    /// Read-only volumes exist.
    pub const RO_EXISTS: u32 = 0x2000;
    /// The backup volume exists.
    pub const BACKUP_EXISTS: u32 = 0x4000;
    /// All operations for which an entry can be locked.
    pub const LOCKED: u32 = 0x10 | 0x20 | 0x40 | 0x80 | 0x100;
}

/// Flags of a site. Source: afs-rpcs §8.1.
pub mod site_flags {
    /// The site already has the new image of a release that is under way.
    pub const NEW_RELEASE: u32 = 0x01;
    /// A read-only volume's site.
    pub const READ_ONLY: u32 = 0x02;
    /// The read-write volume's site.
    pub const READ_WRITE: u32 = 0x04;
    /// The server is named by UUID.
    pub const UUID: u32 = 0x10;
    /// Clients must not use the site: it has no release yet.
    pub const DONT_USE: u32 = 0x20;
}

/// A site: the place of a volume of the family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// The file server.
    pub server: IpAddr,
    /// Its partition, as `/vicepa`.
    #[serde(serialize_with = "crate::json::display")]
    pub partition: PartitionId,
    /// [`site_flags`]; in JSON their names.
    #[serde(serialize_with = "site_names")]
    pub flags: u32,
}

/// A volume family's entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The name without suffix.
    pub name: String,
    /// Read-write volume id.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub read_write: VolumeId,
    /// Read-only volume id; reserved even while there is none.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub read_only: VolumeId,
    /// Backup volume id; reserved even while there is none.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub backup: VolumeId,
    /// The clone from which a release sends; 0 if no release is under way.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub clone: VolumeId,
    /// [`entry_flags`]; in JSON their names.
    #[serde(serialize_with = "entry_names")]
    pub flags: u32,
    /// The sites, in the order of the entry.
    pub sites: Vec<Site>,
}

fn site_names<S: serde::Serializer>(flags: &u32, s: S) -> Result<S::Ok, S::Error> {
    const NAMES: [(u32, &str); 5] = [
        (site_flags::READ_WRITE, "read_write"),
        (site_flags::READ_ONLY, "read_only"),
        (site_flags::NEW_RELEASE, "new_release"),
        (site_flags::DONT_USE, "not_released"),
        (site_flags::UUID, "uuid"),
    ];
    crate::json::bits(*flags, &NAMES, s)
}

fn entry_names<S: serde::Serializer>(flags: &u32, s: S) -> Result<S::Ok, S::Error> {
    const NAMES: [(u32, &str); 8] = [
        (entry_flags::RW_EXISTS, "read_write_exists"),
        (entry_flags::RO_EXISTS, "read_only_exists"),
        (entry_flags::BACKUP_EXISTS, "backup_exists"),
        (vl::VLOP_MOVE, "locked_move"),
        (vl::VLOP_RELEASE, "locked_release"),
        (vl::VLOP_BACKUP, "locked_backup"),
        (vl::VLOP_DELETE, "locked_delete"),
        (vl::VLOP_DUMP, "locked_dump"),
    ];
    crate::json::bits(*flags, &NAMES, s)
}

impl Entry {
    /// The site of the read-write volume.
    pub fn read_write_site(&self) -> Option<&Site> {
        self.sites
            .iter()
            .find(|site| site.flags & site_flags::READ_WRITE != 0)
    }

    /// Whether the entry is locked.
    pub fn is_locked(&self) -> bool {
        self.flags & entry_flags::LOCKED != 0
    }

    /// The block of `vos listvldb`: an empty line, the name, and [`Entry::body`].
    pub fn listing(&self, hosts: &HostNames) -> String {
        format!("\n{} \n{}", self.name, self.body(hosts))
    }

    /// The block without the name: the second half of `vos examine`.
    pub fn body(&self, hosts: &HostNames) -> String {
        let mut text = String::new();
        let exists = |flag| self.flags & flag != 0;
        let mut ids = String::new();
        if exists(entry_flags::RW_EXISTS) {
            let _ = write!(ids, "    RWrite: {:<10}", self.read_write.0);
        }
        if exists(entry_flags::RO_EXISTS) {
            let _ = write!(ids, "    ROnly: {:<10}", self.read_only.0);
        }
        if exists(entry_flags::BACKUP_EXISTS) {
            let _ = write!(ids, "    Backup: {:<10}", self.backup.0);
        }
        if exists(entry_flags::RO_EXISTS) && self.clone.0 != 0 {
            let _ = write!(ids, "    RClone: {:<10}", self.clone.0);
        }
        let _ = writeln!(text, "{ids}");
        let _ = writeln!(text, "    number of sites -> {}", self.sites.len());
        let releasing = self
            .sites
            .iter()
            .any(|s| s.flags & site_flags::NEW_RELEASE != 0);
        for site in &self.sites {
            let kind = if site.flags & site_flags::READ_WRITE != 0 {
                "RW"
            } else {
                "RO"
            };
            let note = if releasing {
                if site.flags & site_flags::NEW_RELEASE != 0 {
                    " -- New release"
                } else if kind == "RO" {
                    " -- Old release"
                } else {
                    ""
                }
            } else if site.flags & site_flags::DONT_USE != 0 {
                " -- Not released"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "       server {} partition {} {kind} Site {note}",
                hosts.name(site.server),
                site.partition
            );
        }
        if self.is_locked() {
            text.push_str("    Volume is currently LOCKED  \n");
            let operations = [
                (0x10, "move"),
                (0x20, "release"),
                (0x40, "backup"),
                (0x80, "delete/misc"),
                (0x100, "dump/restore"),
            ];
            for (bit, operation) in operations {
                if self.flags & bit != 0 {
                    let _ = writeln!(text, "    Volume is locked for a {operation} operation");
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> HostNames {
        let mut hosts = HostNames::new(true);
        hosts.insert(IpAddr::from([10, 93, 0, 2]), "afs1.test.cell".to_owned());
        hosts.insert(IpAddr::from([10, 93, 0, 4]), "afs2.test.cell".to_owned());
        hosts
    }

    fn site(last: u8, flags: u32) -> Site {
        let partition = PartitionId::new(0).expect("vicepa");
        Site {
            server: IpAddr::from([10, 93, 0, last]),
            partition,
            flags,
        }
    }

    fn samp() -> Entry {
        Entry {
            name: "samp".to_owned(),
            read_write: VolumeId(536870918),
            read_only: VolumeId(536870919),
            backup: VolumeId(536870920),
            clone: VolumeId(0),
            flags: 0x7000,
            sites: vec![site(2, 4), site(2, 2), site(4, 2 | 0x20)],
        }
    }

    /// The expected texts are the output of OpenAFS 1.8.9's `vos listvldb` on such entries.
    #[test]
    fn prints_as_vos_does() {
        assert_eq!(
            samp().listing(&hosts()),
            "\nsamp \n    RWrite: 536870918     ROnly: 536870919     Backup: 536870920 \n    \
             number of sites -> 3\n       server afs1.test.cell partition /vicepa RW Site \n       \
             server afs1.test.cell partition /vicepa RO Site \n       \
             server afs2.test.cell partition /vicepa RO Site  -- Not released\n"
        );
        let locked = Entry {
            name: "t.volV".to_owned(),
            read_write: VolumeId(536870942),
            flags: 0x1080,
            sites: vec![site(2, 4)],
            ..samp()
        };
        assert_eq!(
            locked.listing(&hosts()),
            "\nt.volV \n    RWrite: 536870942 \n    number of sites -> 1\n       \
             server afs1.test.cell partition /vicepa RW Site \n    \
             Volume is currently LOCKED  \n    \
             Volume is locked for a delete/misc operation\n"
        );
        let only_ro = Entry {
            name: "r3".to_owned(),
            read_only: VolumeId(536870924),
            flags: 0x2000,
            sites: vec![site(2, 2)],
            ..samp()
        };
        assert!(
            only_ro
                .body(&hosts())
                .starts_with("    ROnly: 536870924 \n")
        );
    }

    #[test]
    fn a_release_under_way_is_marked() {
        let mut entry = samp();
        entry.clone = VolumeId(536870999);
        entry.sites = vec![site(2, 4 | 1), site(2, 2 | 1), site(4, 2)];
        let text = entry.body(&hosts());
        assert!(text.contains("    RClone: 536870999 \n"), "{text}");
        assert!(text.contains("RW Site  -- New release\n"), "{text}");
        assert!(text.contains("afs2.test.cell partition /vicepa RO Site  -- Old release\n"));
    }
}
