//! A device, as `osd` shows it.

use std::array::from_fn;
use std::net::IpAddr;

use cellar_wire::ids::PartitionId;
use cellar_wire::osddb::{
    OSD_ARCHIVAL, OSD_DRAINING, OSD_OBSOLETE, OSD_SOFT_DELETE, OSD_WIPEABLE, OsdListed,
};
use serde::Serialize;

use super::address_of;
use crate::table::{Side, Table, short_size};

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its server answers and takes writes.
    Up,
    /// Its server answers, but the store has stopped and takes no writes.
    Readonly,
    /// Its server has been silent for too long, or has never reported.
    Down,
    /// Its objects are being moved away.
    Draining,
    /// It was taken out of use.
    Obsolete,
    /// Number 1, which stands for the file servers' own disks.
    Local,
}

impl State {
    /// The name of the state.
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Readonly => "readonly",
            Self::Down => "down",
            Self::Draining => "draining",
            Self::Obsolete => "obsolete",
            Self::Local => "local",
        }
    }
}

/// A device. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: State,
    /// The addresses of its server.
    pub addresses: Vec<IpAddr>,
    /// The port of its server.
    pub port: u32,
    /// Its partition on that machine.
    pub partition: String,
    /// Total space.
    pub total: u64,
    /// Free space.
    pub free: u64,
    /// Number of objects.
    pub objects: u64,
    /// Seconds since the last heartbeat; `None` if there was none.
    pub silent_seconds: Option<u32>,
    /// The smallest file that is stored there.
    pub min_size: u64,
    /// The largest file; 0 for any size.
    pub max_size: u64,
    /// Weight for new objects.
    pub write_priority: u32,
    /// Weight for reading.
    pub read_priority: u32,
    /// It is an archival device.
    pub archival: bool,
    /// Wiping is permitted.
    pub wipeable: bool,
    /// Its objects are being moved away.
    pub draining: bool,
    /// It is out of use.
    pub obsolete: bool,
    /// Removed objects can be restored for some time.
    pub soft_delete: bool,
    /// The fill level above which wiping starts, in thousandths.
    pub high_water_mark: u16,
    /// The fill level at which wiping ends, in thousandths.
    pub low_water_mark: u16,
    /// The smallest file that is wiped.
    pub min_wipe_size: u64,
    /// The owner of the hardware.
    pub owner: String,
    /// The place of the machine.
    pub location: String,
    /// The class, which policies may ask for.
    pub class: String,
}

impl Device {
    /// Converts a device from the wire.
    pub fn of(listed: &OsdListed) -> Self {
        let (entry, reported) = (&listed.entry, &listed.state);
        let has = |flag| entry.flags & flag != 0;
        let state = match () {
            () if entry.id == 1 => State::Local,
            () if has(OSD_OBSOLETE) => State::Obsolete,
            () if listed.dead => State::Down,
            () if has(OSD_DRAINING) => State::Draining,
            () if reported.silence == u32::MAX => State::Down,
            () if !reported.writable => State::Readonly,
            () => State::Up,
        };
        let partition = i32::try_from(entry.partition)
            .ok()
            .and_then(PartitionId::new);
        Self {
            id: entry.id,
            name: entry.name.to_string(),
            state,
            addresses: entry.addresses.iter().copied().map(address_of).collect(),
            port: entry.port,
            partition: match partition {
                _ if entry.id == 1 => "-".to_owned(),
                Some(partition) => partition.to_string(),
                None => entry.partition.to_string(),
            },
            total: reported.total,
            free: reported.free,
            objects: reported.objects,
            silent_seconds: (reported.silence != u32::MAX).then_some(reported.silence),
            min_size: entry.min_size,
            max_size: entry.max_size,
            write_priority: entry.allocation_priority,
            read_priority: entry.read_priority,
            archival: has(OSD_ARCHIVAL),
            wipeable: has(OSD_WIPEABLE),
            draining: has(OSD_DRAINING),
            obsolete: has(OSD_OBSOLETE),
            soft_delete: has(OSD_SOFT_DELETE),
            high_water_mark: entry.marks.high,
            low_water_mark: entry.marks.end(),
            min_wipe_size: entry.min_wipe_size,
            owner: entry.owner.to_string(),
            location: entry.location.to_string(),
            class: entry.class.to_string(),
        }
    }

    fn used(&self) -> String {
        match self.total {
            0 => "-".to_owned(),
            total => {
                let used = total.saturating_sub(self.free) as f64;
                format!("{:.1}%", used * 100.0 / total as f64)
            }
        }
    }

    fn sizes(&self) -> String {
        let size = |bytes| match bytes {
            0 => "0".to_owned(),
            bytes => cellar_policy::bytes(bytes).replace(' ', ""),
        };
        match (self.min_size, self.max_size) {
            (0, 0) => "any".to_owned(),
            (min, 0) => format!("{}-", size(min)),
            (min, max) => format!("{}-{}", size(min), size(max)),
        }
    }

    fn flags(&self) -> String {
        let flags = [
            (self.archival, "archival"),
            (self.wipeable, "wipeable"),
            (self.draining, "draining"),
            (self.obsolete, "obsolete"),
            (self.soft_delete, "softdelete"),
        ];
        let set = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name);
        let set: Vec<_> = set.collect();
        or_dash(&set.join(","))
    }

    fn server(&self) -> String {
        match self.addresses.first() {
            Some(address) => format!("{address}:{}", self.port),
            None => "-".to_owned(),
        }
    }

    /// All fields, one per line.
    pub fn examined(&self) -> String {
        let reported = match self.silent_seconds {
            _ if self.state == State::Local => "the file servers' own disks".to_owned(),
            Some(seconds) => format!("{}, last heartbeat {seconds} s ago", self.state.word()),
            None => format!("{}, no heartbeat yet", self.state.word()),
        };
        let others: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        let wiping = match self.wipeable || self.archival {
            true => format!(
                "above {} per mille, down to {}, files of {} and more",
                self.high_water_mark,
                self.low_water_mark,
                cellar_policy::bytes(self.min_wipe_size)
            ),
            false => "-".to_owned(),
        };
        let space = match self.total {
            0 => "-".to_owned(),
            total => format!(
                "{} of {} free ({} used), {} objects",
                short_size(self.free),
                short_size(total),
                self.used(),
                self.objects
            ),
        };
        let lines = [
            ("State", reported),
            ("Space", space),
            ("Server", or_dash(&others.join(", "))),
            ("Port", self.port.to_string()),
            ("Partition", self.partition.clone()),
            ("File sizes", self.sizes()),
            ("Write priority", self.write_priority.to_string()),
            ("Read priority", self.read_priority.to_string()),
            ("Flags", self.flags()),
            ("Wiping", wiping),
            ("Class", or_dash(&self.class)),
            ("Owner", or_dash(&self.owner)),
            ("Location", or_dash(&self.location)),
        ];
        let mut text = format!("Device {}: {}\n", self.id, self.name);
        for (name, value) in lines {
            text.push_str(&format!("    {name:<15} {value}\n"));
        }
        text
    }
}

fn or_dash(text: &str) -> String {
    match text {
        "" => "-".to_owned(),
        text => text.to_owned(),
    }
}

/// The output of `osd list`.
pub fn devices_table(devices: &[Device]) -> String {
    let mut table = Table::new(HEAD);
    for device in devices {
        table.row(device.cells());
    }
    table.to_string()
}

/// The output of `osd list -long`: the same columns and more.
pub fn devices_long(devices: &[Device]) -> String {
    let mut head = HEAD.into_iter().chain(HEAD_LONG);
    let none = ("", Side::Left);
    let mut table: Table<LONG> = Table::new(from_fn(|_| head.next().unwrap_or(none)));
    for device in devices {
        let mut cells = device.cells().into_iter().chain(device.cells_long());
        table.row(from_fn(|_| cells.next().unwrap_or_default()));
    }
    table.to_string()
}

const HEAD: [(&str, Side); 10] = [
    ("Id", Side::Right),
    ("Name", Side::Left),
    ("State", Side::Left),
    ("Total", Side::Right),
    ("Used", Side::Right),
    ("Objects", Side::Right),
    ("Wrprior", Side::Right),
    ("Rdprior", Side::Right),
    ("File sizes", Side::Left),
    ("Class", Side::Left),
];
const HEAD_LONG: [(&str, Side); 5] = [
    ("Owner", Side::Left),
    ("Location", Side::Left),
    ("Server", Side::Left),
    ("Partition", Side::Left),
    ("Flags", Side::Left),
];
const LONG: usize = HEAD.len() + HEAD_LONG.len();

impl Device {
    fn cells(&self) -> [String; HEAD.len()] {
        let reported = |text: String| match self.total {
            0 => "-".to_owned(),
            _ => text,
        };
        [
            self.id.to_string(),
            self.name.clone(),
            self.state.word().to_owned(),
            reported(short_size(self.total)),
            self.used(),
            reported(self.objects.to_string()),
            self.write_priority.to_string(),
            self.read_priority.to_string(),
            self.sizes(),
            or_dash(&self.class),
        ]
    }

    fn cells_long(&self) -> [String; HEAD_LONG.len()] {
        [
            or_dash(&self.owner),
            or_dash(&self.location),
            self.server(),
            self.partition.clone(),
            self.flags(),
        ]
    }
}
