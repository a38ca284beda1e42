//! Speed and cost of one stream: MiB/s and processor seconds per GiB of this process, which
//! contains the client and the devices (in memory, without checksums).
//!
//! `cargo run --profile dist -p cellar-objects --features fake --example stream_speed [MiB]`

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cellar_objects::fake::{FakeOsd, Fault};
use cellar_objects::{Capabilities, Devices, ObjectSet, ReadOptions, Reader, WriteOptions, Writer};
use cellar_rpc::{Runtime, RuntimeConfig};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::{Capability, Layout, Placed, Scheme, Shape};

fn main() {
    let mib: u64 = std::env::args()
        .nth(1)
        .and_then(|a| a.parse().ok())
        .unwrap_or(256);
    let runtime = Runtime::start(RuntimeConfig::default()).expect("threads");
    let osds: Vec<FakeOsd> = (0..8)
        .map(|at| FakeOsd::start(&runtime, at + 2).expect("a port"))
        .collect();
    let client = Runtime::client_only().expect("a port");
    let devices = Devices::new(client.client_port().expect("a port"));
    devices.update(&osds.iter().map(FakeOsd::listed).collect::<Vec<_>>());
    let (done, wait) = std::sync::mpsc::sync_channel(1);
    client.spawn(0, move || async move {
        println!(
            "layout            write MiB/s  s/GiB   read MiB/s  s/GiB   degraded MiB/s  s/GiB"
        );
        for (name, scheme, stripes, copies) in [
            ("1 stripe", Scheme::Striped, 1, 1),
            ("4 stripes", Scheme::Striped, 4, 1),
            ("8 stripes", Scheme::Striped, 8, 1),
            ("2 copies", Scheme::Striped, 1, 2),
            ("4+2", Scheme::Erasure, 4, 2),
        ] {
            let shape = Shape {
                scheme,
                stripes,
                copies,
                unit: 1 << 20,
            };
            measure(name, shape, &devices, &osds, mib << 20).await;
            for osd in &osds {
                osd.objects(|objects| objects.clear());
            }
        }
        let _listens = done.send(());
    });
    let _done = wait.recv();
    std::process::exit(0);
}

async fn measure(name: &str, shape: Shape, devices: &Devices, osds: &[FakeOsd], length: u64) {
    let objects: Vec<Placed> = (0..shape.objects())
        .map(|at| Placed {
            osd: at as u32 + 2,
            serial: at as u32 + 1,
            version: 0,
            stale: false,
        })
        .collect();
    let layout = Layout {
        shape,
        version: 1,
        serial: 8,
        volume: VolumeId(1),
        objects: objects.try_into().expect("few objects"),
    };
    let anything = |_| Capability::new(Bytes::from_static(b"all")).expect("short");
    let set = |layout| ObjectSet {
        vnode: VnodeId(2),
        uniquifier: Uniquifier(1),
        layout,
        capabilities: Capabilities::Made(Arc::new(anything)),
    };
    let piece = Bytes::from(vec![7; 256 << 10]);
    let clock = Clock::start();
    let mut writer =
        Writer::new(devices.clone(), set(layout), 0, WriteOptions::default()).expect("a layout");
    writer.begin(0, length).await.expect("devices");
    for _ in 0..length / piece.len() as u64 {
        writer.push(piece.clone()).await.expect("devices");
    }
    let layout = writer.finish().await.expect("devices").layout;
    let write = clock.stop(length);
    let read = read(devices, set(layout.clone()), length).await;
    let degraded = if shape.objects() > shape.stripes as usize {
        osds[0].set_fault(Fault::Abort(AbortCode::VBUSY));
        let figures = self::read(devices, set(layout), length).await;
        osds[0].set_fault(Fault::None);
        devices.succeeded(2);
        format!("{:>14.0} {:>6.2}", figures.0, figures.1)
    } else {
        String::new()
    };
    println!(
        "{name:<16} {:>12.0} {:>6.2} {:>12.0} {:>6.2} {degraded}",
        write.0, write.1, read.0, read.1
    );
}

async fn read(devices: &Devices, set: ObjectSet, length: u64) -> (f64, f64) {
    let clock = Clock::start();
    let mut reader =
        Reader::new(devices.clone(), set, 0..length, ReadOptions::default()).expect("a layout");
    let mut got = 0;
    while let Some(piece) = reader.next().await.expect("devices") {
        got += piece.len() as u64;
    }
    assert_eq!(got, length);
    clock.stop(length)
}

struct Clock(Instant, f64);

impl Clock {
    fn start() -> Self {
        Self(Instant::now(), processor_seconds())
    }

    /// Returns MiB/s, and processor seconds per GiB.
    fn stop(self, bytes: u64) -> (f64, f64) {
        let mib = bytes as f64 / f64::from(1 << 20);
        let used = processor_seconds() - self.1;
        (mib / self.0.elapsed().as_secs_f64(), used / (mib / 1024.0))
    }
}

/// Processor time of this process so far. Linux counts in hundredths of a second.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|f| f.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}
