//! Counters that a file server returns: GetStatistics, GetStatistics64, GetXStats.

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, List, Opaque, xdr_struct};

/// The version of both sides of GetXStats.
pub const XSTAT_VERSION: i32 = 2;

/// Counters of a file server's xstat collection.
pub type XStats = List<i32, 1024>;

/// The counters that GetStatistics64 returns. Servers accept only this value as version.
pub const STATISTICS64_LEN: usize = 16;

/// The counters of GetStatistics64, in this order:
///
/// * current time, boot time, start time;
/// * connections;
/// * fetches, data fetches, bytes fetched, fetch rate;
/// * stores, data stores, bytes stored, store rate;
/// * calls, workstations, active workstations, size of the process.
pub type Statistics64 = List<u64, STATISTICS64_LEN>;

/// A partition (`ViceDisk`, 10 words).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViceDisk {
    /// KiB free.
    pub blocks_available: i32,
    /// KiB in all.
    pub total_blocks: i32,
    /// `/vicepa`, filled up with NULs to 32 bytes on the wire.
    pub name: Opaque<32>,
}

impl Encode for ViceDisk {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.i32(self.blocks_available);
        out.i32(self.total_blocks);
        let mut name = [0; 32];
        for (byte, given) in name.iter_mut().zip(self.name.iter()) {
            *byte = *given;
        }
        out.fixed_opaque(&name);
    }
}

impl Decode for ViceDisk {
    const MIN_SIZE: usize = 40;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let [blocks_available, total_blocks] = d.words()?;
        let name = d.fixed_opaque(32)?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let name = Opaque::try_from(name).map_err(|_| DecodeError::Invalid("a name of a disk"))?;
        Ok(Self {
            blocks_available: blocks_available as i32,
            total_blocks: total_blocks as i32,
            name,
        })
    }
}

xdr_struct! {
    /// The figures that `scout` shows (`ViceStatistics`, 45 words and 10 partitions). Counters wrap
    /// at 2^32.
    #[derive(Default)]
    pub struct ViceStatistics {
        /// Unused.
        pub current_msg_number: u32,
        /// Unused.
        pub oldest_msg_number: u32,
        /// Now, seconds since 1970.
        pub current_time: u32,
        /// When the machine started; servers repeat the start time.
        pub boot_time: u32,
        /// When the server started.
        pub start_time: u32,
        /// Connections.
        pub current_connections: i32,
        /// Calls.
        pub total_vice_calls: u32,
        /// FetchData, FetchACL and FetchStatus calls.
        pub total_fetches: u32,
        /// FetchData calls.
        pub fetch_datas: u32,
        /// Bytes fetched.
        pub fetched_bytes: u32,
        /// Bytes fetched per second.
        pub fetch_data_rate: i32,
        /// StoreData, StoreACL and StoreStatus calls.
        pub total_stores: u32,
        /// StoreData calls.
        pub store_datas: u32,
        /// Bytes stored.
        pub stored_bytes: u32,
        /// Bytes stored per second.
        pub store_data_rate: i32,
        /// Bytes sent in all.
        pub total_rpc_bytes_sent: u32,
        /// Bytes received in all.
        pub total_rpc_bytes_received: u32,
        /// Packets sent.
        pub total_rpc_packets_sent: u32,
        /// Packets received.
        pub total_rpc_packets_received: u32,
        /// Packets lost.
        pub total_rpc_packets_lost: u32,
        /// Packets refused.
        pub total_rpc_bogus_packets: u32,
        /// Ticks in the system.
        pub system_cpu: i32,
        /// Ticks in programs.
        pub user_cpu: i32,
        /// Ticks in programs of low priority.
        pub nice_cpu: i32,
        /// Ticks without work.
        pub idle_cpu: i32,
        /// Disk operations.
        pub total_io: i32,
        /// Memory in use.
        pub active_vm: i32,
        /// Memory in all.
        pub total_vm: i32,
        /// Errors on the network.
        pub ethernet_total_errors: i32,
        /// Packets written to the network.
        pub ethernet_total_writes: i32,
        /// Interrupts from the network.
        pub ethernet_total_interrupts: i32,
        /// Packets read from the network.
        pub ethernet_good_reads: i32,
        /// Bytes written to the network.
        pub ethernet_total_bytes_written: i32,
        /// Bytes read from the network.
        pub ethernet_total_bytes_read: i32,
        /// Size of the process in KiB.
        pub process_size: i32,
        /// Known hosts.
        pub workstations: i32,
        /// Hosts that called in the last quarter of an hour.
        pub active_workstations: i32,
        /// Spare.
        pub spares: [i32; 8],
        /// Ten partitions; unused ones are all zero.
        pub disks: ViceDisks,
    }
}

/// The ten slots for partitions in [`ViceStatistics`]. If there are more partitions, the first ten
/// count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViceDisks(
    /// The partitions, without the empty slots at the end.
    pub List<ViceDisk, 10>,
);

impl Encode for ViceDisks {
    fn encode(&self, out: &mut Encoder<'_>) {
        let empty = ViceDisk::default();
        for slot in 0..10 {
            self.0.get(slot).unwrap_or(&empty).encode(out);
        }
    }
}

impl Decode for ViceDisks {
    const MIN_SIZE: usize = 10 * ViceDisk::MIN_SIZE;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut disks = Vec::with_capacity(10);
        for _ in 0..10 {
            disks.push(ViceDisk::decode(d)?);
        }
        let used = disks.iter().rposition(|disk| *disk != ViceDisk::default());
        disks.truncate(used.map_or(0, |last| last + 1));
        Ok(Self(List::from_iter_cut(disks)))
    }
}
