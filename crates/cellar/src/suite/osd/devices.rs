//! list, examine, create, set, drain, remove: the devices themselves.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cellar_admin::Error;
use cellar_admin::osd::{Device, State, address_words, devices_long, devices_table, set_flag};
use cellar_wire::osddb::{OSD_ARCHIVAL, OSD_OBSOLETE, OSD_SOFT_DELETE, OSD_WIPEABLE, OsdEntry};
use cellar_wire::{AfsString, List};
use serde_json::json;

use super::super::{number, partition, print_json, server_address};
use super::Osd;
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};
use crate::progress::Progress;

/// Weights of a new device.
const PRIORITY: u32 = 80;
/// High-water mark of a new archival or wipeable device, in thousandths.
const MARK: u16 = 800;
/// The smallest file that is wiped from a new wipeable device.
const MIN_WIPE_SIZE: u64 = 64 << 20;
/// The time without any progress after which a drain whose repairs fail is given up.
const STUCK: Duration = Duration::from_secs(30);
/// Interval at which the progress of a drain is checked.
const LOOK: Duration = Duration::from_secs(2);

impl Osd<'_> {
    pub(super) async fn list(&self) -> Outcome {
        let wanted = self.invocation.list("id");
        let mut devices = self.osds.list().await?;
        for name in wanted {
            if !devices.iter().any(|device| is(device, name)) {
                return Err(Failure::new(format!("there is no device {name}")));
            }
        }
        let is_wanted = |device: &Device| wanted.iter().any(|name| is(device, name));
        devices.retain(|device| match wanted.is_empty() {
            false => is_wanted(device),
            true => {
                (self.invocation.has("obsolete") || !device.obsolete)
                    && (!self.invocation.has("wipeable") || device.wipeable)
            }
        });
        match (self.json, self.invocation.has("long")) {
            (true, _) => return print_json(&devices),
            (false, true) => out!("{}", devices_long(&devices)),
            (false, false) => out!("{}", devices_table(&devices)),
        }
        Ok(())
    }

    pub(super) async fn examine(&self) -> Outcome {
        let id = self.invocation.required("id");
        if let Some(object) = self.invocation.get("object") {
            let object = self.osds.object(id, object).await?;
            return match self.json {
                true => print_json(&object),
                false => {
                    out!("{}", object.examined());
                    Ok(())
                }
            };
        }
        self.print(&self.osds.device(id).await?)
    }

    fn print(&self, device: &Device) -> Outcome {
        if self.json {
            return print_json(device);
        }
        out!("{}", device.examined());
        Ok(())
    }

    pub(super) async fn create(&self) -> Outcome {
        let has = |switch| self.invocation.has(switch);
        let id = self.invocation.get("id").map(|text| number("-id", text));
        let mut entry = OsdEntry {
            id: id.transpose()?.unwrap_or(0),
            name: self.text("name")?.unwrap_or_default(),
            allocation_priority: PRIORITY,
            read_priority: PRIORITY,
            ..OsdEntry::default()
        };
        set_flag(&mut entry, OSD_ARCHIVAL, has("archival"));
        set_flag(&mut entry, OSD_WIPEABLE, has("wipeable"));
        set_flag(&mut entry, OSD_SOFT_DELETE, has("dont_unlink"));
        if has("archival") || has("wipeable") {
            entry.marks.high = MARK;
        }
        if has("wipeable") {
            entry.min_wipe_size = MIN_WIPE_SIZE;
        }
        self.fields()?.apply(&mut entry);
        let id = self.osds.create(entry).await?;
        if self.json {
            return print_json(&json!({ "id": id }));
        }
        outln!(
            "Device {} has number {id}",
            self.invocation.required("name")
        );
        Ok(())
    }

    pub(super) async fn set(&self) -> Outcome {
        let fields = self.fields()?;
        let mut switches = Vec::new();
        for (switch, flag) in [
            ("archival", OSD_ARCHIVAL),
            ("wipeable", OSD_WIPEABLE),
            ("dont_unlink", OSD_SOFT_DELETE),
            ("obsolete", OSD_OBSOLETE),
        ] {
            if let Some(text) = self.invocation.get(switch) {
                switches.push((flag, on_or_off(switch, text)?));
            }
        }
        let device = self.osds.change(self.invocation.required("id"), |entry| {
            let before = entry.clone();
            fields.apply(entry);
            for (flag, on) in &switches {
                set_flag(entry, *flag, *on);
            }
            match *entry == before {
                true => Err(Error::Usage(
                    "nothing changes; 'cellar osd set --help' lists what can be set".to_owned(),
                )),
                false => Ok(()),
            }
        });
        self.print(&device.await?)
    }

    fn text<const LIMIT: usize>(&self, switch: &str) -> Outcome<Option<AfsString<LIMIT>>> {
        let Some(text) = self.invocation.get(switch) else {
            return Ok(None);
        };
        let text = AfsString::new(text.to_owned())
            .map_err(|_| Failure::usage(format!("-{switch}: at most {LIMIT} bytes")))?;
        Ok(Some(text))
    }

    fn number(&self, switch: &str) -> Outcome<Option<u32>> {
        let text = self.invocation.get(switch);
        text.map(|text| number(&format!("-{switch}"), text))
            .transpose()
    }

    /// A fill level in thousandths.
    fn mark(&self, switch: &str) -> Outcome<Option<u16>> {
        let mark = self.number(switch)?.map(u16::try_from).transpose();
        mark.map_err(|_| Failure::usage(format!("-{switch}: a number up to 1000")))
    }

    /// The fields that `create` and `set` have in common.
    fn fields(&self) -> Outcome<Fields> {
        let addresses = self
            .invocation
            .list("ip")
            .iter()
            .map(|text| server_address(text));
        let addresses: Vec<IpAddr> = addresses.collect::<Outcome<_>>()?;
        let lun = self.invocation.get("lun").map(partition).transpose()?;
        Ok(Fields {
            name: self.text("name")?,
            addresses,
            partition: lun.and_then(|partition| u32::try_from(partition.number()).ok()),
            port: self.number("port")?,
            min_size: self.size("minsize", 10)?,
            max_size: self.size("maxsize", 10)?,
            allocation_priority: self.number("wrprior")?,
            read_priority: self.number("rdprior")?,
            high_water_mark: self.mark("highwatermark")?,
            low_water_mark: self.mark("lowwatermark")?,
            min_wipe_size: self.size("minwipesize", 20)?,
            owner: self.text("owner")?,
            location: self.text("location")?,
            class: self.text("class")?,
        })
    }

    pub(super) async fn drain(&self) -> Outcome {
        let stop = self.invocation.has("stop");
        let wait = self.invocation.has("wait");
        if stop && wait {
            return Err(Failure::usage("-wait and -stop cannot be combined"));
        }
        let device = self
            .osds
            .drain(self.invocation.required("id"), !stop)
            .await?;
        if wait {
            return self.wait_until_empty(&device).await;
        }
        if self.json {
            return print_json(&device);
        }
        match stop {
            true => outln!("Device {} ({}) is used again", device.id, device.name),
            false => outln!(
                "Device {} ({}) is being emptied of {} objects; 'cellar osd drain {} -wait' shows the \
                 progress",
                device.id,
                device.name,
                device.objects,
                device.id
            ),
        }
        Ok(())
    }

    async fn wait_until_empty(&self, device: &Device) -> Outcome {
        let mut first = None;
        let mut last = (usize::MAX, Instant::now());
        let progress = Progress::bytes(None);
        progress.name(&format!("device {}", device.id));
        loop {
            let on_it = self.osds.files_on(device.id, usize::MAX).await?;
            let left = on_it.files.len();
            let all = *first.get_or_insert(left);
            let (queues, _) = self.osds.repairs().await?;
            let failed: u64 = queues.iter().map(|queue| queue.failed).sum();
            let running: u64 = queues.iter().map(|queue| queue.running).sum();
            if left != last.0 || failed == 0 || running > 0 {
                last = (left, Instant::now());
            }
            if left > 0 && last.1.elapsed() > STUCK {
                progress.finish();
                return Err(self.why_stuck(device, left).await);
            }
            let stuck = match failed {
                0 => String::new(),
                failed => format!(", {failed} objects cannot be moved now"),
            };
            progress.name(&format!(
                "device {}: {left} of {all} files left{stuck}",
                device.id
            ));
            if let (0, Some(silent)) = (left, on_it.silent.first()) {
                progress.finish();
                return Err(Failure::new(format!(
                    "file server {silent} does not answer; its files may have objects there"
                )));
            }
            if left == 0 {
                progress.finish();
                if self.json {
                    return print_json(&json!({ "id": device.id, "files": 0 }));
                }
                outln!("Device {} ({}) is empty", device.id, device.name);
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The reason why a drain makes no progress.
    async fn why_stuck(&self, device: &Device, left: usize) -> Failure {
        let mut others = self.osds.list().await.unwrap_or_default();
        others.retain(|other| other.id != device.id && other.state != State::Local);
        let up = others.iter().filter(|other| other.state == State::Up);
        let where_to = match (up.count(), others.len()) {
            (_, 0) => "the cell has no other device".to_owned(),
            (0, others) => format!("none of the {others} other devices is up"),
            (up, others) => format!(
                "{up} of {others} other devices are up, and none of those takes the objects: they are full, are for \
                 other sizes of files, or hold other objects of the same files"
            ),
        };
        let Device { id, name, .. } = device;
        Failure::new(format!(
            "device {id} ({name}) still holds objects of {left} files, and they cannot be moved: {where_to}. 'cellar osd \
             list' shows the devices and their room. When there is room, the servers continue by themselves; 'cellar osd \
             drain {id} -stop' ends the drain"
        ))
    }

    pub(super) async fn remove(&self) -> Outcome {
        let force = self.invocation.has("force");
        let device = self
            .osds
            .remove(self.invocation.required("id"), force)
            .await?;
        if self.json {
            return print_json(&device);
        }
        outln!("Device {} ({}) is out of use", device.id, device.name);
        Ok(())
    }
}

fn is(device: &Device, name_or_id: &str) -> bool {
    device.name == *name_or_id || name_or_id.parse() == Ok(device.id)
}

fn on_or_off(switch: &str, text: &str) -> Outcome<bool> {
    match text {
        "on" | "yes" | "1" => Ok(true),
        "off" | "no" | "0" => Ok(false),
        _ => Err(Failure::usage(format!("-{switch}: write on or off"))),
    }
}

/// The fields that were given.
struct Fields {
    name: Option<AfsString<64>>,
    addresses: Vec<IpAddr>,
    partition: Option<u32>,
    port: Option<u32>,
    min_size: Option<u64>,
    max_size: Option<u64>,
    allocation_priority: Option<u32>,
    read_priority: Option<u32>,
    high_water_mark: Option<u16>,
    low_water_mark: Option<u16>,
    min_wipe_size: Option<u64>,
    owner: Option<AfsString<64>>,
    location: Option<AfsString<256>>,
    class: Option<AfsString<64>>,
}

impl Fields {
    fn apply(&self, entry: &mut OsdEntry) {
        fn set<T: Clone>(field: &mut T, value: Option<&T>) {
            if let Some(value) = value {
                field.clone_from(value);
            }
        }
        set(&mut entry.name, self.name.as_ref());
        set(&mut entry.partition, self.partition.as_ref());
        set(&mut entry.port, self.port.as_ref());
        set(&mut entry.min_size, self.min_size.as_ref());
        set(&mut entry.max_size, self.max_size.as_ref());
        set(
            &mut entry.allocation_priority,
            self.allocation_priority.as_ref(),
        );
        set(&mut entry.read_priority, self.read_priority.as_ref());
        set(&mut entry.marks.high, self.high_water_mark.as_ref());
        set(&mut entry.marks.low, self.low_water_mark.as_ref());
        set(&mut entry.min_wipe_size, self.min_wipe_size.as_ref());
        set(&mut entry.owner, self.owner.as_ref());
        set(&mut entry.location, self.location.as_ref());
        set(&mut entry.class, self.class.as_ref());
        if !self.addresses.is_empty() {
            let words = self.addresses.iter().copied().map(address_words);
            entry.addresses = List::from_iter_cut(words);
        }
    }
}
