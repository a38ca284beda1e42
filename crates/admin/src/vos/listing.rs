//! Information from volume servers: their partitions, volumes and transactions.

use std::fmt::Write as _;
use std::net::IpAddr;

use cellar_wire::afsvol;
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use serde::{Serialize, Serializer};

use super::{Traffic, VolumeInfo, VolumeState, VolumeType, Volumes};
use crate::date::ctime;
use crate::error::{Error, Result};

/// Space on a partition, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionSpace {
    /// The partition.
    #[serde(serialize_with = "crate::json::display")]
    pub partition: PartitionId,
    /// Free space.
    pub free_kib: i64,
    /// Total space.
    pub total_kib: i64,
}

/// A volume transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transaction {
    /// Its number.
    pub id: i32,
    /// Time of its creation.
    #[serde(serialize_with = "crate::json::time")]
    pub created: AfsTime,
    /// Time of its last call.
    #[serde(serialize_with = "crate::json::time")]
    pub active: AfsTime,
    /// Its return code; 0 if it has none. In JSON its meaning.
    #[serde(serialize_with = "crate::json::code")]
    pub return_code: i32,
    /// Its volume.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub volume: VolumeId,
    /// The volume's partition; in JSON as `/vicepa`.
    #[serde(serialize_with = "partition_name")]
    pub partition: i32,
    /// `IT_*`; in JSON their names.
    #[serde(serialize_with = "attach_names")]
    pub attach_flags: u32,
    /// `VT_*`; in JSON their names.
    #[serde(serialize_with = "volume_names")]
    pub volume_flags: u32,
    /// `TT_*`; in JSON their names.
    #[serde(serialize_with = "transaction_names")]
    pub transaction_flags: u32,
    /// The last procedure called in it.
    pub procedure: String,
    /// The data that calls in it transfer; none if no such call runs.
    pub transfer: Option<Transfer>,
}

/// The data that calls in a transaction have transferred so far. Servers count packets, so the
/// bytes are approximate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Transfer {
    /// Received bytes.
    pub received: u64,
    /// Sent bytes.
    pub sent: u64,
    /// Time of the last packet in either direction.
    #[serde(serialize_with = "crate::json::time")]
    pub last: AfsTime,
}

/// Bytes of data in a packet on an Ethernet.
const PACKET_BYTES: u64 = 1412;

impl Transfer {
    fn of(info: &afsvol::TransDebugInfo) -> Option<Self> {
        // The numbers are those of the next packets, and begin with 1.
        let bytes = |next: i32| u64::from(count(next).saturating_sub(1)) * PACKET_BYTES;
        (info.call_valid != 0).then(|| Self {
            received: bytes(info.read_next),
            sent: bytes(info.transmit_next),
            last: AfsTime(count(info.last_send_time.max(info.last_receive_time))),
        })
    }
}

/// A partition as `/vicepa`. A number that no partition has is shown as a number.
fn partition_text(number: i32) -> String {
    PartitionId::new(number).map_or_else(|| number.to_string(), |partition| partition.to_string())
}

fn partition_name<S: Serializer>(number: &i32, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str(&partition_text(*number))
}

fn attach_names<S: Serializer>(flags: &u32, s: S) -> std::result::Result<S::Ok, S::Error> {
    const NAMES: [(u32, &str); 5] = [
        (afsvol::IT_OFFLINE as u32, "offline"),
        (afsvol::IT_BUSY as u32, "busy"),
        (afsvol::IT_READ_ONLY as u32, "read_only"),
        (afsvol::IT_CREATE as u32, "create"),
        (afsvol::IT_CREATE_VOLUME_ID as u32, "create_volume_id"),
    ];
    crate::json::bits(*flags, &NAMES, s)
}

fn volume_names<S: Serializer>(flags: &u32, s: S) -> std::result::Result<S::Ok, S::Error> {
    const NAMES: [(u32, &str); 3] = [
        (afsvol::VT_DELETE_ON_SALVAGE as u32, "delete_on_salvage"),
        (afsvol::VT_OUT_OF_SERVICE as u32, "out_of_service"),
        (afsvol::VT_DELETED as u32, "deleted"),
    ];
    crate::json::bits(*flags, &NAMES, s)
}

fn transaction_names<S: Serializer>(flags: &u32, s: S) -> std::result::Result<S::Ok, S::Error> {
    crate::json::bits(*flags, &[(afsvol::TT_DELETED as u32, "deleted")], s)
}

impl Transaction {
    /// The block of `vos status`.
    pub fn block(&self) -> String {
        let mut text = format!(
            "--------------------------------------\ntransaction: {}  created: {}\n\
             lastActiveTime: {}\n",
            self.id,
            ctime(self.created),
            ctime(self.active)
        );
        if self.return_code != 0 {
            let _ = writeln!(text, "returnCode: {}", self.return_code);
        }
        let words = |flags: u32, names: &[(u32, &str)]| -> String {
            let named = names.iter().filter(|(bit, _)| flags & bit != 0);
            named.map(|(_, name)| format!("{name} ")).collect()
        };
        if self.attach_flags != 0 {
            let names = [
                (0x01, "offline"),
                (0x02, "busy"),
                (0x08, "readonly"),
                (0x10, "create"),
                (0x1000, "create volid"),
            ];
            let _ = writeln!(text, "attachFlags:  {}", words(self.attach_flags, &names));
        }
        if self.volume_flags != 0 {
            let names = [(1, "deleteOnSalvage"), (2, "outOfService"), (4, "deleted")];
            let _ = writeln!(text, "volumeStatus: {}", words(self.volume_flags, &names));
        }
        if self.transaction_flags & 1 != 0 {
            text.push_str("transactionFlags: delete\n");
        }
        let partition = partition_text(self.partition);
        let _ = writeln!(
            text,
            "volume: {}  partition: {partition}  procedure: {}",
            self.volume.0, self.procedure
        );
        text.push_str("--------------------------------------\n\n");
        text
    }
}

impl Volumes<'_> {
    /// The partitions of a server.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn partitions(&self, server: IpAddr) -> Result<Vec<PartitionId>> {
        let what = format!("Could not fetch the list of partitions from {server}");
        let reply = self
            .server(server, &afsvol::XListPartitions {}, &what)
            .await?;
        Ok(reply
            .partitions
            .iter()
            .filter_map(|number| PartitionId::new(*number))
            .collect())
    }

    /// Space on one partition.
    ///
    /// # Errors
    /// There is no such partition, or the server does not answer.
    pub async fn partition_space(
        &self,
        server: IpAddr,
        partition: PartitionId,
    ) -> Result<PartitionSpace> {
        let what = format!("could not get information on partition {partition} of {server}");
        let name = afsvol::PartitionName::try_from(partition.to_string())
            .map_err(|_| Error::Usage(what.clone()))?;
        let reply = self
            .server(server, &afsvol::PartitionInfo64 { name }, &what)
            .await?;
        // minFree carries the size; totalUsable is 0 in OpenAFS.
        Ok(PartitionSpace {
            partition,
            free_kib: reply.partition.free,
            total_kib: reply.partition.min_free,
        })
    }

    /// The volumes on a partition, sorted by name.
    ///
    /// # Errors
    /// There is no such partition, or the server does not answer.
    pub async fn volumes_on(
        &self,
        server: IpAddr,
        partition: PartitionId,
        extended: bool,
    ) -> Result<Vec<VolumeInfo>> {
        let what =
            format!("Could not fetch the list of volumes on partition {partition} of {server}");
        let number = partition.number();
        let mut volumes: Vec<VolumeInfo> = if extended {
            let arguments = afsvol::XListVolumes {
                partition: number,
                flags: 1,
            };
            let reply = self.server(server, &arguments, &what).await?;
            reply.entries.iter().map(from_extended).collect()
        } else {
            let arguments = afsvol::ListVolumes {
                partition: number,
                flags: 1,
            };
            let reply = self.server(server, &arguments, &what).await?;
            reply.entries.iter().map(from_plain).collect()
        };
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    /// One volume on a partition.
    ///
    /// # Errors
    /// It is not there, or the server does not answer.
    pub async fn volume_on(
        &self,
        server: IpAddr,
        partition: PartitionId,
        volume: VolumeId,
        extended: bool,
    ) -> Result<VolumeInfo> {
        let what = format!("Could not fetch the information about volume {volume} from the server");
        let number = partition.number();
        let found = if extended {
            let arguments = afsvol::XListOneVolume {
                partition: number,
                volume,
            };
            let reply = self.server(server, &arguments, &what).await?;
            reply.entries.first().map(from_extended)
        } else {
            let arguments = afsvol::ListOneVolume {
                partition: number,
                volume,
            };
            let reply = self.server(server, &arguments, &what).await?;
            reply.entries.first().map(from_plain)
        };
        found.ok_or_else(|| {
            let code = cellar_wire::AbortCode::ENODEV;
            Error::refused(what, cellar_rpc::CallError::Aborted(code))
        })
    }

    /// The bytes that a server has sent so far in its transfers of a volume or of its clones.
    /// `None`: there is no transfer.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn bytes_sent(&self, server: IpAddr, volume: VolumeId) -> Result<Option<u64>> {
        let reply = self.server(server, &afsvol::Monitor {}, "status").await?;
        let sending = reply
            .entries
            .iter()
            .filter(|info| info.call_valid != 0 && info.last_procedure.starts_with(b"Forward"));
        let of_volume = sending.clone().filter(|info| info.volume == volume);
        // A temporary clone has an id of its own. If the server sends only one volume, it is that
        // one.
        let bytes = |info| Transfer::of(info).map(|transfer| transfer.sent);
        Ok(of_volume.filter_map(bytes).max().or_else(|| {
            let mut all = sending.filter_map(bytes);
            let first = all.next()?;
            all.next().is_none().then_some(first)
        }))
    }

    /// The volume transactions of a server.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn transactions(&self, server: IpAddr) -> Result<Vec<Transaction>> {
        let what = format!("Could not access status information about the server {server}");
        let reply = self.server(server, &afsvol::Monitor {}, &what).await?;
        let transaction = |info: &afsvol::TransDebugInfo| Transaction {
            id: info.trans,
            created: info.creation_time,
            active: info.time,
            return_code: info.return_code,
            volume: info.volume,
            partition: info.partition,
            attach_flags: info.attach_flags as u16 as u32,
            volume_flags: info.volume_flags.into(),
            transaction_flags: info.trans_flags.into(),
            procedure: info.last_procedure.to_string(),
            transfer: Transfer::of(info),
        };
        Ok(reply.entries.iter().map(transaction).collect())
    }
}

fn state(status: i32) -> VolumeState {
    match status {
        afsvol::STATUS_OK => VolumeState::Ok,
        afsvol::STATUS_BUSY => VolumeState::Busy,
        _ => VolumeState::Unattachable,
    }
}

fn count(number: i32) -> u32 {
    number.max(0) as u32
}

/// A volume of a list, with the fields that both forms of a list have.
macro_rules! common_fields {
    ($info:expr) => {
        VolumeInfo {
            name: $info.name.to_string(),
            id: $info.volume,
            r#type: VolumeType::from_wire($info.volume_type),
            state: state($info.status),
            parent: $info.parent,
            clone: $info.clone,
            backup: $info.backup,
            in_use: $info.in_use != 0,
            needs_salvage: false,
            destroy_me: false,
            created: $info.creation_date,
            accessed: $info.access_date,
            updated: $info.update_date,
            backed_up: $info.backup_date,
            copied: $info.copy_date,
            size_kib: count($info.size),
            quota_kib: count($info.max_quota),
            minimum_quota_kib: 0,
            file_count: count($info.file_count),
            day_use: count($info.day_use),
            week_use: 0,
            flags: 0,
            update_counter: 0,
            spare: 0,
            traffic: None,
        }
    };
}

fn from_plain(info: &afsvol::VolumeInfo) -> VolumeInfo {
    VolumeInfo {
        needs_salvage: info.needs_salvaged != 0,
        destroy_me: info.destroy_me == afsvol::DESTROY_ME,
        minimum_quota_kib: count(info.min_quota),
        week_use: count(info.week_use),
        flags: info.flags as u32,
        update_counter: count(info.update_counter),
        spare: count(info.spare3),
        ..common_fields!(info)
    }
}

fn from_extended(info: &afsvol::VolumeInfoX) -> VolumeInfo {
    VolumeInfo {
        traffic: Some(Traffic {
            reads: info.stat_reads.map(count),
            writes: info.stat_writes.map(count),
            file_same_author: info.stat_file_same_author.map(count),
            file_different_author: info.stat_file_diff_author.map(count),
            directory_same_author: info.stat_dir_same_author.map(count),
            directory_different_author: info.stat_dir_diff_author.map(count),
        }),
        ..common_fields!(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_as_vos_prints_it() {
        let transaction = Transaction {
            id: 7,
            created: AfsTime(1795257920),
            active: AfsTime(1795257921),
            return_code: 0,
            volume: VolumeId(536870918),
            partition: 0,
            attach_flags: 3,
            volume_flags: 0,
            transaction_flags: 1,
            procedure: "CreateVolume".to_owned(),
            transfer: None,
        };
        let text = transaction.block();
        assert!(
            text.contains("attachFlags:  offline busy \ntransactionFlags: delete\n"),
            "{text}"
        );
        assert!(text.contains("volume: 536870918  partition: /vicepa  procedure: CreateVolume\n"));
        let json = serde_json::to_value(&transaction).expect("JSON");
        assert_eq!(
            json,
            serde_json::json!({
                "id": 7,
                "created": 1_795_257_920,
                "active": 1_795_257_921,
                "return_code": null,
                "volume": 536_870_918,
                "partition": "/vicepa",
                "attach_flags": ["offline", "busy"],
                "volume_flags": [],
                "transaction_flags": ["deleted"],
                "procedure": "CreateVolume",
                "transfer": null,
            })
        );
        let failed = Transaction {
            return_code: 101,
            partition: 300,
            volume_flags: 0x12,
            ..transaction
        };
        let json = serde_json::to_value(&failed).expect("JSON");
        let code = json["return_code"].as_str().expect("text");
        assert!(code.contains("VSALVAGE"), "{code}");
        assert_eq!(json["partition"], "300");
        let info = afsvol::TransDebugInfo {
            call_valid: 1,
            read_next: 1,
            transmit_next: 3,
            last_send_time: 7,
            last_receive_time: 5,
            ..Default::default()
        };
        let transfer = Transfer::of(&info).expect("a call runs");
        assert_eq!((transfer.received, transfer.sent), (0, 2 * PACKET_BYTES));
        assert_eq!(transfer.last, AfsTime(7));
        assert_eq!(Transfer::of(&afsvol::TransDebugInfo::default()), None);
        assert_eq!(
            json["volume_flags"],
            serde_json::json!(["out_of_service", "0x10"])
        );
    }
}
