//! The state and quota of a volume, as `fs examine`, `fs listquota`, `fs quota` and `fs diskfree`
//! print them.

use cellar_wire::ids::VolumeId;
use serde::Serialize;

/// The head of `fs listquota`.
pub const QUOTA_HEAD: &str = "Volume Name                    Quota       Used %Used   Partition\n";

/// The head of `fs diskfree`.
pub const DISK_HEAD: &str = "Volume Name                  kbytes      used     avail %used\n";

/// The status of a volume, from its file server. Sizes are in KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeStatus {
    /// The given path.
    pub path: String,
    /// The fid that the path leads to.
    pub fid: String,
    /// The volume.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// The message that users see while it is off-line.
    pub offline_message: String,
    /// Quota, 0 for none.
    pub quota_kib: i32,
    /// In use.
    pub used_kib: i32,
    /// Free on the partition.
    pub partition_available_kib: i32,
    /// Size of the partition.
    pub partition_kib: i32,
}

impl VolumeStatus {
    /// The output of `fs examine`.
    pub fn examined(&self) -> String {
        let offline = match self.offline_message.as_str() {
            "" => String::new(),
            message => format!("Current offline message is {message}\n"),
        };
        let quota = match self.quota_kib {
            0 => "unlimited".to_owned(),
            quota => quota.to_string(),
        };
        format!(
            "File {} ({}) contained in volume {}\nVolume status for vid = {} named {}\n{offline}\
             Current disk quota is {quota}\nCurrent blocks used are {}\n\
             The partition has {} blocks available out of {}\n\n",
            self.path,
            self.fid,
            self.volume.0,
            self.volume.0,
            self.name,
            self.used_kib,
            self.partition_available_kib,
            self.partition_kib
        )
    }

    /// One row of `fs listquota`.
    pub fn row(&self, human: bool) -> String {
        let used = percent(self.used_kib, self.quota_kib);
        let partition = percent(
            self.partition_kib - self.partition_available_kib,
            self.partition_kib,
        );
        let quota = match self.quota_kib {
            0 => "   no limit".to_owned(),
            quota => format!(" {}", size(quota, human)),
        };
        // The column has room for the first 25 characters of a name.
        let name: String = self.name.chars().take(25).collect();
        let (used_mark, partition_mark) = (mark(used > 90.0), mark(partition > 97.0));
        let warning = if used > 90.0 || partition > 97.0 {
            "  <<WARNING"
        } else {
            ""
        };
        format!(
            "{name:<25}{quota} {}{used:>5.0}%{used_mark}{partition:>9.0}%{partition_mark}{warning}\n",
            size(self.used_kib, human)
        )
    }

    /// One row of `fs diskfree`, about the partition of the volume.
    pub fn disk_row(&self, human: bool) -> String {
        let name: String = self.name.chars().take(25).collect();
        let used = self.partition_kib - self.partition_available_kib;
        let sizes = [self.partition_kib, used, self.partition_available_kib];
        let sizes = sizes.map(|kib| size(kib, human)).concat();
        let percent = percent(used, self.partition_kib);
        let warning = if percent > 90.0 { "<<  <<WARNING" } else { "" };
        format!("{name:<25}{sizes} {percent:>4.0}%{warning}\n")
    }

    /// The output of `fs quota`.
    pub fn percentage(&self) -> String {
        format!(
            "{:>2.0}% of quota used.\n",
            percent(self.used_kib, self.quota_kib)
        )
    }
}

/// KiB in ten columns.
fn size(kib: i32, human: bool) -> String {
    if !human {
        return format!("{kib:>10}");
    }
    let mut value = f64::from(kib);
    let mut units = ['K', 'M', 'G', 'T'].into_iter();
    let mut unit = units.next().unwrap_or('K');
    while value.abs() >= 1024.0
        && let Some(next) = units.next()
    {
        value /= 1024.0;
        unit = next;
    }
    format!("{value:>9.1}{unit}")
}

fn percent(part: i32, whole: i32) -> f64 {
    if whole <= 0 {
        0.0
    } else {
        f64::from(part) * 100.0 / f64::from(whole)
    }
}

fn mark(over: bool) -> &'static str {
    if over { "<<" } else { "  " }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> VolumeStatus {
        VolumeStatus {
            path: "/afs/test.cell/u".to_owned(),
            fid: "536870918.1.1".to_owned(),
            volume: VolumeId(536870918),
            name: "samp".to_owned(),
            offline_message: String::new(),
            quota_kib: 5000,
            used_kib: 14,
            partition_available_kib: 72_109_932,
            partition_kib: 95_501_264,
        }
    }

    #[test]
    fn rows_have_the_columns_of_fs() {
        assert_eq!(
            status().row(false),
            "samp                            5000         14    0%         24%  \n"
        );
        let none = VolumeStatus {
            quota_kib: 0,
            ..status()
        };
        assert!(
            none.row(false)
                .starts_with("samp                        no limit         14    0%")
        );
        let full = VolumeStatus {
            used_kib: 4800,
            ..status()
        };
        assert!(
            full.row(false)
                .ends_with("   96%<<       24%    <<WARNING\n"),
            "{:?}",
            full.row(false)
        );
        assert_eq!(full.percentage(), "96% of quota used.\n");
        assert_eq!(status().percentage(), " 0% of quota used.\n");
    }

    #[test]
    fn disks_have_the_columns_of_fs() {
        assert_eq!(
            format!("{DISK_HEAD}{}", status().disk_row(false)),
            "Volume Name                  kbytes      used     avail %used\n\
             samp                       95501264  23391332  72109932   24%\n"
        );
        assert_eq!(
            status().disk_row(true),
            "samp                          91.1G     22.3G     68.8G   24%\n"
        );
        let full = VolumeStatus {
            partition_available_kib: 5_000_000,
            ..status()
        };
        assert!(full.disk_row(false).ends_with("   95%<<  <<WARNING\n"));
        assert_eq!(
            status().row(true),
            "samp                            4.9M      14.0K    0%         24%  \n"
        );
    }

    #[test]
    fn examined_as_fs_does() {
        assert!(status().examined().starts_with(
            "File /afs/test.cell/u (536870918.1.1) contained in volume 536870918\n\
             Volume status for vid = 536870918 named samp\nCurrent disk quota is 5000\n"
        ));
    }
}
