//! Some devices in memory, and a file on them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_objects::fake::{FakeOsd, Fault};
use cellar_objects::{
    Capabilities, Devices, ObjectSet, ReadOptions, Reader, Result, WriteOptions, Writer, Written,
};
use cellar_rpc::{Runtime, RuntimeConfig};
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::{Capability, Layout, Placed, Scheme, Shape};

pub(crate) struct Cell {
    pub(crate) runtime: Runtime,
    pub(crate) osds: Vec<FakeOsd>,
    pub(crate) devices: Devices,
}

impl Cell {
    /// Starts devices 2 and up.
    pub(crate) fn start(count: u32) -> Self {
        let config = RuntimeConfig {
            shards: 1,
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::start(config).unwrap();
        let osds: Vec<FakeOsd> = (0..count)
            .map(|at| FakeOsd::start(&runtime, at + 2).unwrap())
            .collect();
        let devices = Devices::new(runtime.client_port().unwrap());
        devices.update(&osds.iter().map(FakeOsd::listed).collect::<Vec<_>>());
        Self {
            runtime,
            osds,
            devices,
        }
    }

    /// Replaces the device list by that of a client for which a file server stands in, with no
    /// state except the list.
    pub(crate) fn stand_in(&mut self) {
        self.devices = Devices::with_fallback(self.runtime.client_port().unwrap());
        let list: Vec<_> = self.osds.iter().map(FakeOsd::listed).collect();
        self.devices.update(&list);
    }

    pub(crate) fn osd(&self, id: u32) -> &FakeOsd {
        &self.osds[id as usize - 2]
    }

    /// Creates a layout of that shape, with its objects on the devices in turn.
    pub(crate) fn layout(&self, shape: Shape) -> Layout {
        let objects: Vec<Placed> = (0..shape.objects())
            .map(|place| Placed {
                osd: (place % self.osds.len()) as u32 + 2,
                serial: place as u32 + 1,
                version: 0,
                stale: false,
            })
            .collect();
        Layout {
            shape,
            version: 0,
            serial: objects.len() as u32,
            volume: VolumeId(536_870_912),
            objects: objects.try_into().unwrap(),
        }
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // Unanswered calls would delay the shutdown.
        for osd in &self.osds {
            osd.kill();
        }
        self.runtime.shutdown();
    }
}

pub(crate) fn striped(stripes: u32, copies: u32, unit: u32) -> Shape {
    Shape {
        scheme: Scheme::Striped,
        stripes,
        copies,
        unit,
    }
}

pub(crate) fn erasure(data: u32, parity: u32, unit: u32) -> Shape {
    Shape {
        scheme: Scheme::Erasure,
        stripes: data,
        copies: parity,
        unit,
    }
}

/// A file in objects, as in a file server.
pub(crate) struct File {
    pub(crate) layout: Layout,
    pub(crate) length: u64,
    pub(crate) patience: Duration,
}

impl File {
    pub(crate) fn new(cell: &Cell, shape: Shape) -> Self {
        Self {
            layout: cell.layout(shape),
            length: 0,
            patience: Duration::from_secs(20),
        }
    }

    pub(crate) fn set(&self, layout: Layout) -> ObjectSet {
        let anything = |_| Capability::new(Bytes::from_static(b"all")).unwrap();
        ObjectSet {
            vnode: VnodeId(2),
            uniquifier: Uniquifier(7),
            layout,
            capabilities: Capabilities::Made(Arc::new(anything)),
        }
    }

    pub(crate) fn reader(&self, cell: &Cell, range: Range<u64>) -> Reader {
        let options = ReadOptions {
            patience: self.patience,
            ..ReadOptions::default()
        };
        Reader::new(
            cell.devices.clone(),
            self.set(self.layout.clone()),
            range,
            options,
        )
        .unwrap()
    }

    pub(crate) async fn read(&self, cell: &Cell, range: Range<u64>) -> Result<Vec<u8>> {
        Ok(self.reader(cell, range).rest().await?.concat())
    }

    /// Begins the next store.
    pub(crate) fn writer(&mut self, cell: &Cell) -> Writer {
        self.layout.version += 1;
        let options = WriteOptions {
            patience: self.patience,
            call_bytes: 64 << 10,
            ..WriteOptions::default()
        };
        let set = self.set(self.layout.clone());
        Writer::new(cell.devices.clone(), set, self.length, options).unwrap()
    }

    pub(crate) fn take(&mut self, written: Written) {
        self.layout = written.layout;
        self.length = written.length;
    }

    pub(crate) async fn write(&mut self, cell: &Cell, position: u64, bytes: &[u8]) -> Result<()> {
        let mut writer = self.writer(cell);
        writer.begin(position, bytes.len() as u64).await?;
        for piece in bytes.chunks(10_000) {
            writer.push(Bytes::copy_from_slice(piece)).await?;
        }
        let written = writer.finish().await?;
        self.take(written);
        Ok(())
    }

    pub(crate) async fn truncate(&mut self, cell: &Cell, length: u64) -> Result<()> {
        let mut writer = self.writer(cell);
        writer.truncate(length).await?;
        let written = writer.finish().await?;
        self.take(written);
        Ok(())
    }

    /// Whether the object at a place can be read and written: it is on its device, in the right
    /// version.
    pub(crate) fn is_well(&self, cell: &Cell, place: usize, fault: impl Fn(u32) -> Fault) -> bool {
        let placed = self.layout.objects[place];
        let set = self.set(self.layout.clone());
        let object = set.layout.object(set.vnode, set.uniquifier, &placed);
        let there = placed.version == 0
            || cell.osd(placed.osd).objects(|objects| {
                objects
                    .get(&object)
                    .is_some_and(|versions| versions.contains_key(&placed.version))
            });
        !placed.stale && there && fault(placed.osd) == Fault::None
    }

    /// Whether all bytes are on working devices.
    pub(crate) fn is_safe(&self, cell: &Cell, fault: impl Fn(u32) -> Fault) -> bool {
        let shape = self.layout.shape;
        let well = |place: &usize| self.is_well(cell, *place, &fault);
        match shape.scheme {
            Scheme::Erasure => {
                let left = (0..shape.objects()).filter(well).count();
                left >= shape.stripes as usize
            }
            Scheme::Striped => (0..shape.stripes as usize).all(|stripe| {
                let copies = 0..shape.copies as usize;
                copies
                    .map(|copy| copy * shape.stripes as usize + stripe)
                    .any(|place| well(&place))
            }),
        }
    }
}
