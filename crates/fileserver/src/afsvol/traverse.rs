//! Traverse: statistics of the files of a volume, by size and by place. A call of this project.
//!
//! It reads the records of the volume in its present state, and asks no device. Copies in archives
//! count as objects of their archives, also those of older bytes. Copies that are known to be bad
//! do not count.

use std::collections::BTreeMap;

use cellar_objects::arithmetic::length_at;
use cellar_rpc::IncomingCall;
use cellar_volume::{FileType, Since, VnodeImage};
use cellar_wire::afsvol::{
    Amount, DeviceUsage, SIZE_CLASSES, Traverse, TraverseReply, Usage, size_class,
};
use cellar_wire::object::{Layout, Placed, Scheme};
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, List};

use super::VolumeService;
use super::list::partition_of;
use super::{code, on_disk, superuser};
use crate::abort_map::dump_code;

impl Handle<Traverse, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: Traverse,
    ) -> Result<TraverseReply, AbortCode> {
        let services = &self.services;
        let Traverse { partition, volume } = arguments;
        superuser(&services.sessions, call)?;
        let (_, partition) = partition_of(&services.volumes, partition)?;
        let usage = on_disk(move || {
            let volume = partition.volume(volume).map_err(code)?;
            let volume = volume.ok_or(AbortCode::VNOVOL)?;
            let frozen = volume.freeze().map_err(|error| dump_code(&error))?;
            let vnodes = frozen.vnodes(Since::Everything);
            let mut vnodes = vnodes.map_err(|error| dump_code(&error))?;
            let mut sum = Sum::default();
            while let Some(vnode) = vnodes.next().map_err(|error| dump_code(&error))? {
                sum.enter(&vnode.whole());
            }
            Ok(sum.usage())
        });
        Ok(TraverseReply {
            usage: usage.await?,
        })
    }
}

struct Sum {
    sizes: [Amount; SIZE_CLASSES],
    here: Amount,
    in_objects: Amount,
    wiped: Amount,
    devices: BTreeMap<u32, DeviceUsage>,
    others: u64,
}

impl Default for Sum {
    fn default() -> Self {
        Self {
            sizes: [Amount::default(); SIZE_CLASSES],
            here: Amount::default(),
            in_objects: Amount::default(),
            wiped: Amount::default(),
            devices: BTreeMap::new(),
            others: 0,
        }
    }
}

fn add(amount: &mut Amount, bytes: u64) {
    amount.count += 1;
    amount.bytes = amount.bytes.saturating_add(bytes);
}

impl Sum {
    fn enter(&mut self, image: &VnodeImage) {
        if image.kind != FileType::File {
            self.others += 1;
            return;
        }
        add(&mut self.sizes[size_class(image.length)], image.length);
        let archives = self.enter_copies(image);
        let Some(layout) = &image.layout else {
            match image.wiped {
                Some(_) => add(&mut self.wiped, image.length),
                None => add(&mut self.here, image.length),
            }
            return;
        };
        add(&mut self.in_objects, image.length);
        for (place, placed) in layout.objects.iter().enumerate() {
            if placed.version == 0 {
                continue;
            }
            let bytes = length_at(&layout.shape, place, image.length);
            let device = self.device(placed.osd);
            add(&mut device.objects, bytes);
            if archives == 0 && !placed.stale && is_single(layout, place) {
                add(&mut device.single, bytes);
            }
        }
    }

    /// Enters the good copies of a file. Returns the number of archives that have its present
    /// bytes. If that is one archive and the file is wiped, its copy is the only one.
    fn enter_copies(&mut self, image: &VnodeImage) -> usize {
        let contents = match (&image.wiped, &image.layout) {
            (Some(wiped), _) => Some(wiped.contents()),
            (None, Some(layout)) => Some(layout.contents()),
            (None, None) => None,
        };
        let (mut present, mut last) = (0, None);
        let copies = image.copies.iter().flat_map(|copies| copies.iter());
        for copy in copies.filter(|copy| !copy.bad) {
            add(&mut self.device(copy.osd).objects, copy.length);
            if contents.is_some_and(|contents| copy.has(contents)) {
                (present, last) = (present + 1, Some(copy));
            }
        }
        if let (1, Some(copy), Some(_)) = (present, last, &image.wiped) {
            add(&mut self.device(copy.osd).single, copy.length);
        }
        present
    }

    fn device(&mut self, osd: u32) -> &mut DeviceUsage {
        self.devices.entry(osd).or_insert(DeviceUsage {
            osd,
            ..DeviceUsage::default()
        })
    }

    fn usage(self) -> Usage {
        Usage {
            sizes: List::from_iter_cut(self.sizes),
            here: self.here,
            in_objects: self.in_objects,
            wiped: self.wiped,
            devices: List::from_iter_cut(self.devices.into_values()),
            others: self.others,
        }
    }
}

/// Whether bytes are lost with the object at a place, because no other copy has them all, or no
/// parity is left.
fn is_single(layout: &Layout, place: usize) -> bool {
    let sound = |placed: &Placed| placed.version > 0 && !placed.stale;
    let shape = &layout.shape;
    let others = layout.objects.iter().enumerate();
    let mut others = others.filter(|(other, placed)| *other != place && sound(placed));
    match shape.scheme {
        Scheme::Striped => {
            let stripes = shape.stripes as usize;
            !others.any(|(other, _)| other % stripes == place % stripes)
        }
        // Objects that were never written are zeros, and need no device.
        Scheme::Erasure => {
            let unwritten = layout.objects.iter().filter(|placed| placed.version == 0);
            others.count() + unwritten.count() < shape.stripes as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::ids::VolumeId;
    use cellar_wire::object::Shape;

    use super::*;

    fn layout(scheme: Scheme, stripes: u32, copies: u32, stale: &[usize]) -> Layout {
        let shape = Shape {
            scheme,
            stripes,
            copies,
            unit: 4096,
        };
        let placed = (0..shape.objects()).map(|place| Placed {
            osd: place as u32 + 2,
            serial: place as u32 + 1,
            version: 9,
            stale: stale.contains(&place),
        });
        Layout {
            shape,
            version: 9,
            serial: 99,
            volume: VolumeId(7),
            objects: List::from_iter_cut(placed),
        }
    }

    #[test]
    fn losses_with_one_device() {
        let single = |layout: &Layout| {
            let places = 0..layout.objects.len();
            places
                .filter(|place| is_single(layout, *place))
                .collect::<Vec<_>>()
        };
        assert_eq!(single(&layout(Scheme::Striped, 3, 1, &[])), [0, 1, 2]);
        assert_eq!(single(&layout(Scheme::Striped, 2, 2, &[])), [0usize; 0]);
        assert_eq!(single(&layout(Scheme::Striped, 2, 2, &[3])), [1]);
        assert_eq!(single(&layout(Scheme::Erasure, 2, 1, &[])), [0usize; 0]);
        assert_eq!(single(&layout(Scheme::Erasure, 2, 1, &[2])), [0, 1]);
    }
}
