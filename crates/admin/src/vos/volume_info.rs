//! The information that a volume server gives about a volume, and its form in the output of `vos`.

use std::fmt::Write as _;
use std::net::IpAddr;

use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use serde::Serialize;

use crate::date::{ctime, ctime_or_never};
use crate::host_names::HostNames;

/// Read-write, read-only or backup. Source: `volser_RW` and its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum VolumeType {
    /// Read-write.
    #[serde(rename = "RW")]
    ReadWrite,
    /// Read-only.
    #[serde(rename = "RO")]
    ReadOnly,
    /// Backup.
    #[serde(rename = "BK")]
    Backup,
    /// A type that no AFS server sends.
    #[serde(rename = "?")]
    Unknown,
}

impl VolumeType {
    /// Converts the wire's number.
    pub fn from_wire(number: i32) -> Self {
        match number {
            0 => Self::ReadWrite,
            1 => Self::ReadOnly,
            2 => Self::Backup,
            _ => Self::Unknown,
        }
    }

    /// The two letters of the listings.
    pub fn letters(self) -> &'static str {
        match self {
            Self::ReadWrite => "RW",
            Self::ReadOnly => "RO",
            Self::Backup => "BK",
            Self::Unknown => "??",
        }
    }
}

/// Whether a volume could be read at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// Yes; the other fields are valid.
    Ok,
    /// A volume transaction holds it.
    Busy,
    /// It could not be attached.
    Unattachable,
}

/// Reads and writes from near and far, and their authors: `vos examine -extended`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Same network, same network authenticated, other network, other network authenticated.
    pub reads: [u32; 4],
    /// Writes, in the same four groups.
    pub writes: [u32; 4],
    /// Files written by the author of the previous write. The classes are the age of that write: up
    /// to 60 s, 10 min, 1 h, 1 day, 1 week, longer.
    pub file_same_author: [u32; 6],
    /// Files written by another author.
    pub file_different_author: [u32; 6],
    /// Directories written by the author of the previous write, by the same ages.
    pub directory_same_author: [u32; 6],
    /// Directories written by another author.
    pub directory_different_author: [u32; 6],
}

/// One volume on one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeInfo {
    /// The name with its suffix.
    pub name: String,
    /// Its id.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub id: VolumeId,
    /// Its type.
    pub r#type: VolumeType,
    /// Whether the other fields are valid.
    pub state: VolumeState,
    /// The read-write volume of the family.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub parent: VolumeId,
    /// The read-only volume on this partition, or 0.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub clone: VolumeId,
    /// The backup volume, or 0.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub backup: VolumeId,
    /// The volume is on line.
    pub in_use: bool,
    /// The volume is damaged.
    pub needs_salvage: bool,
    /// The volume will be destroyed.
    pub destroy_me: bool,
    /// Time at which this image of the data was made.
    #[serde(serialize_with = "crate::json::time")]
    pub created: AfsTime,
    /// Time of the last access.
    #[serde(serialize_with = "crate::json::time")]
    pub accessed: AfsTime,
    /// Time of the last change.
    #[serde(serialize_with = "crate::json::time")]
    pub updated: AfsTime,
    /// Time at which the backup volume was made.
    #[serde(serialize_with = "crate::json::time")]
    pub backed_up: AfsTime,
    /// Time at which this volume came to this server.
    #[serde(serialize_with = "crate::json::time")]
    pub copied: AfsTime,
    /// Used space, in KiB.
    pub size_kib: u32,
    /// Quota, in KiB; 0 for none.
    pub quota_kib: u32,
    /// Reserved quota, in KiB.
    pub minimum_quota_kib: u32,
    /// Number of files and directories.
    pub file_count: u32,
    /// Number of accesses since midnight.
    pub day_use: u32,
    /// Number of accesses this week.
    pub week_use: u32,
    /// Flags word. No bit has a name in AFS, so JSON has a list of hexadecimal numbers.
    #[serde(serialize_with = "flag_names")]
    pub flags: u32,
    /// Number of changes of the volume.
    pub update_counter: u32,
    /// The last spare word.
    pub spare: u32,
    /// Only in the extended form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
}

fn flag_names<S: serde::Serializer>(flags: &u32, s: S) -> Result<S::Ok, S::Error> {
    crate::json::bits(*flags, &[], s)
}

/// The place of a volume.
#[derive(Clone, Copy, Debug)]
pub struct NamedLocation<'a> {
    /// The server.
    pub server: IpAddr,
    /// The partition.
    pub partition: PartitionId,
    /// Names of servers.
    pub hosts: &'a HostNames,
}

impl VolumeInfo {
    fn on_line(&self) -> &'static str {
        if self.in_use { "On-line" } else { "Off-line" }
    }

    fn salvage(&self) -> &'static str {
        if self.needs_salvage {
            "**needs salvage**"
        } else {
            ""
        }
    }

    fn unusable(&self) -> Option<String> {
        match self.state {
            VolumeState::Ok => None,
            VolumeState::Busy => Some(format!("**** Volume {} is busy ****\n", self.id.0)),
            VolumeState::Unattachable => {
                Some(format!("**** Could not attach volume {} ****\n", self.id.0))
            }
        }
    }

    /// The beginning of lines and blocks.
    fn head(&self) -> String {
        format!(
            "{:<32} {:>10} {} {:>10} K",
            self.name,
            self.id.0,
            self.r#type.letters(),
            self.size_kib
        )
    }

    /// One line of `vos listvol`.
    pub fn line(&self) -> String {
        self.unusable().unwrap_or_else(|| {
            let (head, on_line) = (self.head(), self.on_line());
            format!("{head} {on_line}{}\n", self.salvage())
        })
    }

    /// The block of `vos examine` and `vos listvol -long`.
    pub fn block(&self, place: NamedLocation<'_>) -> String {
        if let Some(text) = self.unusable() {
            return text;
        }
        let (head, on_line) = (self.head(), self.on_line());
        let mut text = format!("{head}  {on_line}{}\n", self.salvage());
        self.details(&mut text, place, true);
        text
    }

    /// The block of `-extended`, with its tables.
    pub fn extended_block(&self, place: NamedLocation<'_>) -> String {
        if let Some(text) = self.unusable() {
            return text;
        }
        let (head, files, on_line) = (self.head(), self.file_count, self.on_line());
        let mut text = format!("{head} used {files} files {on_line}\n");
        self.details(&mut text, place, false);
        text.push_str(&self.traffic.clone().unwrap_or_default().tables());
        text
    }

    fn details(&self, text: &mut String, place: NamedLocation<'_>, last_access: bool) {
        let _ = writeln!(
            text,
            "    {} {} ",
            place.hosts.name(place.server),
            place.partition
        );
        let _ = writeln!(
            text,
            "    RWrite {:>10} ROnly {:>10} Backup {:>10} ",
            self.parent.0, self.clone.0, self.backup.0
        );
        let _ = writeln!(text, "    MaxQuota {:>10} K ", self.quota_kib);
        let _ = writeln!(text, "    Creation    {}", ctime(self.created));
        let _ = writeln!(text, "    Copy        {}", ctime(self.copied));
        let _ = writeln!(text, "    Backup      {}", ctime_or_never(self.backed_up));
        if last_access && self.accessed.0 != 0 {
            let _ = writeln!(text, "    Last Access {}", ctime(self.accessed));
        }
        let _ = writeln!(text, "    Last Update {}", ctime_or_never(self.updated));
        let _ = writeln!(
            text,
            "    {} accesses in the past day (i.e., vnode references)",
            self.day_use
        );
    }

    /// The lines of `-format`, one `key<TAB>value` each, without `BEGIN_OF_ENTRY`.
    pub fn formatted(&self, place: NamedLocation<'_>) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: String| {
            let tabs = if key.len() < 8 { "\t\t" } else { "\t" };
            let _ = writeln!(text, "{key}{tabs}{value}");
        };
        let server = place.server;
        if self.state == VolumeState::Ok {
            line("name", self.name.clone());
        }
        line("id", self.id.0.to_string());
        line("serv", format!("{server}\t{}", place.hosts.name(server)));
        line("part", place.partition.to_string());
        match self.state {
            VolumeState::Ok => line("status", "OK".to_owned()),
            VolumeState::Busy => {
                line("status", "BUSY".to_owned());
                return text;
            }
            VolumeState::Unattachable => {
                line("status", "UNATTACHABLE".to_owned());
                return text;
            }
        }
        let yes = |flag: bool| if flag { "Y" } else { "N" }.to_owned();
        let date = |time: AfsTime| format!("{:<9}\t{}", time.0, ctime(time));
        let spare = |number: u32| format!("{number}\t(Optional)");
        let extended = self.traffic.is_some();
        line("backupID", self.backup.0.to_string());
        line("parentID", self.parent.0.to_string());
        line("cloneID", self.clone.0.to_string());
        line("inUse", yes(self.in_use));
        if !extended {
            line("needsSalvaged", yes(self.needs_salvage));
            line("destroyMe", yes(self.destroy_me));
        }
        let letters = if self.r#type == VolumeType::Unknown {
            "?"
        } else {
            self.r#type.letters()
        };
        line("type", letters.to_owned());
        line("creationDate", date(self.created));
        line("accessDate", date(self.accessed));
        line("updateDate", date(self.updated));
        line("backupDate", date(self.backed_up));
        line("copyDate", date(self.copied));
        if let Some(traffic) = &self.traffic {
            line("diskused", self.size_kib.to_string());
            line("maxquota", self.quota_kib.to_string());
            line("filecount", self.file_count.to_string());
            line("dayUse", self.day_use.to_string());
            text.push_str(&traffic.formatted());
            return text;
        }
        let flags = if self.flags == 0 {
            "0".to_owned()
        } else {
            format!("{:#x}", self.flags)
        };
        line("flags", format!("{flags}\t(Optional)"));
        line("diskused", self.size_kib.to_string());
        line("maxquota", self.quota_kib.to_string());
        line("minquota", spare(self.minimum_quota_kib));
        line("filecount", self.file_count.to_string());
        line("dayUse", self.day_use.to_string());
        line("weekUse", spare(self.week_use));
        line("spare2", spare(self.update_counter));
        line("spare3", spare(self.spare));
        text
    }
}

impl Traffic {
    fn tables(&self) -> String {
        let rule = "          |-------------------------------------------|\n";
        let columns = "          |----------|----------|----------|----------|\n";
        let row = |title: &str, values: [u32; 4]| {
            let [a, b, c, d] = values;
            format!("{title:<10}| {a:>8} | {b:>8} | {c:>8} | {d:>8} |\n")
        };
        let mut text = format!(
            "\n                      Raw Read/Write Stats\n{rule}\
             \u{20}         |    Same Network     |    Diff Network     |\n{columns}\
             \u{20}         |  Total   |   Auth   |   Total  |   Auth   |\n{columns}"
        );
        text.push_str(&row("Reads", self.reads));
        text.push_str(&row("Writes", self.writes));
        text.push_str(&format!(
            "{rule}\n                   Writes Affecting Authorship\n{rule}\
             \u{20}         |   File Authorship   | Directory Authorship|\n{columns}\
             \u{20}         |   Same   |   Diff   |    Same  |   Diff   |\n{columns}"
        ));
        let ages = [
            "0-60 sec",
            "1-10 min",
            "10min-1hr",
            "1hr-1day",
            "1day-1wk",
            "> 1wk",
        ];
        for (age, title) in ages.into_iter().enumerate() {
            text.push_str(&row(
                title,
                [
                    self.file_same_author[age],
                    self.file_different_author[age],
                    self.directory_same_author[age],
                    self.directory_different_author[age],
                ],
            ));
        }
        text.push_str(rule);
        text
    }

    fn formatted(&self) -> String {
        let mut text = String::new();
        let networks = ["same_net", "same_net_auth", "diff_net", "diff_net_auth"];
        for (operation, counts) in [("reads", self.reads), ("writes", self.writes)] {
            for (network, count) in networks.into_iter().zip(counts) {
                let _ = writeln!(text, "{operation}_{network}\t{count:>8}");
            }
        }
        // The first age has index 0 in memory. OpenAFS prints only the indexes 1 to 5.
        for age in 1..6 {
            let _ = writeln!(
                text,
                "file_same_author_idx_{age}\t{:>8}",
                self.file_same_author[age]
            );
            let _ = writeln!(
                text,
                "file_diff_author_idx_{age}\t{:>8}",
                self.file_different_author[age]
            );
            let _ = writeln!(
                text,
                "dir_same_author_idx_{age}\t{:>8}",
                self.directory_same_author[age]
            );
            let _ = writeln!(
                text,
                "dir_dif_author_idx_{age}\t{:>8}",
                self.directory_different_author[age]
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vol_two() -> VolumeInfo {
        VolumeInfo {
            name: "vol.two".to_owned(),
            id: VolumeId(536870947),
            r#type: VolumeType::ReadWrite,
            state: VolumeState::Ok,
            parent: VolumeId(536870947),
            clone: VolumeId(0),
            backup: VolumeId(0),
            in_use: true,
            needs_salvage: false,
            destroy_me: false,
            created: AfsTime(1795258167),
            accessed: AfsTime(0),
            updated: AfsTime(1795258167),
            backed_up: AfsTime(0),
            copied: AfsTime(1795258167),
            size_kib: 2,
            quota_kib: 5000,
            minimum_quota_kib: 0,
            file_count: 0,
            day_use: 0,
            week_use: 0,
            flags: 0,
            update_counter: 0,
            spare: 0,
            traffic: None,
        }
    }

    fn place(hosts: &HostNames) -> NamedLocation<'_> {
        let partition = PartitionId::new(0).expect("vicepa");
        NamedLocation {
            server: IpAddr::from([10, 93, 0, 4]),
            partition,
            hosts,
        }
    }

    fn hosts() -> HostNames {
        let mut hosts = HostNames::new(true);
        hosts.insert(IpAddr::from([10, 93, 0, 4]), "afs2.test.cell".to_owned());
        hosts
    }

    /// Expected texts: OpenAFS 1.8.9, `vos listvol 10.93.0.4` in its several forms.
    #[test]
    fn the_line_and_the_block() {
        let volume = vol_two();
        assert_eq!(
            volume.line(),
            "vol.two                           536870947 RW          2 K On-line\n"
        );
        let date = ctime(AfsTime(1795258167));
        let hosts = hosts();
        assert_eq!(
            volume.block(place(&hosts)),
            format!(
                "vol.two                           536870947 RW          2 K  On-line
    afs2.test.cell /vicepa\x20
    RWrite  536870947 ROnly          0 Backup          0\x20
    MaxQuota       5000 K\x20
    Creation    {date}
    Copy        {date}
    Backup      Never
    Last Update {date}
    0 accesses in the past day (i.e., vnode references)
"
            )
        );
        let busy = VolumeInfo {
            state: VolumeState::Busy,
            ..volume
        };
        assert_eq!(busy.line(), "**** Volume 536870947 is busy ****\n");
    }

    #[test]
    fn flags_are_no_bare_number_in_json() {
        let mut volume = vol_two();
        let flags = |volume: &VolumeInfo| serde_json::json!(volume)["flags"].clone();
        assert_eq!(flags(&volume), serde_json::json!([]));
        volume.flags = 0x11;
        assert_eq!(flags(&volume), serde_json::json!(["0x11"]));
    }

    #[test]
    fn the_tables_of_the_extended_form() {
        let hosts = hosts();
        let text = vol_two().extended_block(place(&hosts));
        assert!(text.starts_with(
            "vol.two                           536870947 RW          2 K used 0 files On-line\n"
        ));
        assert!(text.ends_with(
            "
                      Raw Read/Write Stats
          |-------------------------------------------|
          |    Same Network     |    Diff Network     |
          |----------|----------|----------|----------|
          |  Total   |   Auth   |   Total  |   Auth   |
          |----------|----------|----------|----------|
Reads     |        0 |        0 |        0 |        0 |
Writes    |        0 |        0 |        0 |        0 |
          |-------------------------------------------|

                   Writes Affecting Authorship
          |-------------------------------------------|
          |   File Authorship   | Directory Authorship|
          |----------|----------|----------|----------|
          |   Same   |   Diff   |    Same  |   Diff   |
          |----------|----------|----------|----------|
0-60 sec  |        0 |        0 |        0 |        0 |
1-10 min  |        0 |        0 |        0 |        0 |
10min-1hr |        0 |        0 |        0 |        0 |
1hr-1day  |        0 |        0 |        0 |        0 |
1day-1wk  |        0 |        0 |        0 |        0 |
> 1wk     |        0 |        0 |        0 |        0 |
          |-------------------------------------------|
"
        ));
    }

    #[test]
    fn the_form_for_programs() {
        let hosts = hosts();
        let text = vol_two().formatted(place(&hosts));
        let epoch = ctime(AfsTime(0));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "name\t\tvol.two");
        assert_eq!(lines[2], "serv\t\t10.93.0.4\tafs2.test.cell");
        assert_eq!(lines[5], "backupID\t0");
        assert!(
            lines.contains(&format!("accessDate\t0        \t{epoch}").as_str()),
            "{text}"
        );
        assert!(lines.contains(&"flags\t\t0\t(Optional)"));
        assert_eq!(lines.last(), Some(&"spare3\t\t0\t(Optional)"));
        let extended = VolumeInfo {
            traffic: Some(Traffic::default()),
            ..vol_two()
        };
        let text = extended.formatted(place(&hosts));
        assert!(text.contains("reads_same_net\t       0\n"));
        assert!(text.ends_with("dir_dif_author_idx_5\t       0\n"));
        assert!(!text.contains("destroyMe"));
    }
}
