//! Helpers for tests of object storage: devices in the cell's process or in their own, files in
//! objects, and the locations of these.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use sha2::{Digest, Sha256};

use cellar_until::until_blocking;

use super::Cell;

/// The directory of the files.
pub(crate) const TOP: &str = "/afs/test.cell/scratch";

/// Waits until `count` devices are in that state.
pub(crate) fn devices_are(cell: &Cell, count: usize, state: &str) {
    until_blocking(&format!("{count} devices {state}"), || {
        let devices = cell.json("osd list -json");
        let devices = devices.as_array().expect("devices");
        let so = devices.iter().filter(|device| device["state"] == state);
        so.count() == count
    });
}

/// Waits until all `count` devices are up and the file server knows it. Its volume may use objects
/// then.
pub(crate) fn ready(cell: &Cell, count: usize) {
    devices_are(cell, count, "up");
    cell.ok("vos setfields scratch -osdpolicy 1");
    let (path, _) = local(cell, "probe", 5000);
    let probe = format!(
        "cp --admin --layout stripes={count} {} {TOP}/probe",
        path.display()
    );
    until_blocking("the file server knows the devices", || {
        cell.run(probe.split(' ')).status == 0
    });
    cell.ok(&format!("rm {TOP}/probe"));
}

/// A file of this machine with bytes that never repeat.
pub(crate) fn local(cell: &Cell, name: &str, length: usize) -> (PathBuf, Vec<u8>) {
    let mut bytes = Vec::with_capacity(length + 32);
    let mut block = 0u64;
    while bytes.len() < length {
        bytes.extend_from_slice(&Sha256::digest(format!("{name} {block}")));
        block += 1;
    }
    bytes.truncate(length);
    let path = cell.local(name);
    fs::write(&path, &bytes).expect("a local file");
    (path, bytes)
}

/// Copies a file out of the cell, and compares it.
pub(crate) fn comes_back(cell: &Cell, name: &str, bytes: &[u8]) {
    let back = cell.local("back");
    cell.ok(&format!("cp {TOP}/{name} {}", back.display()));
    assert!(
        fs::read(&back).expect("the copy") == bytes,
        "{name} differs"
    );
}

/// The location of a file.
pub(crate) fn pieces(cell: &Cell, name: &str) -> Value {
    cell.json(&format!("fs osd {TOP}/{name} -json"))[0].take()
}

/// The devices of a file, in the order of its layout.
pub(crate) fn devices_of(cell: &Cell, name: &str) -> Vec<u64> {
    let all = pieces(cell, name);
    let all = all["pieces"].as_array().expect("pieces");
    let numbers = all.iter().map(|piece| piece["osd"].as_u64());
    numbers.map(|number| number.expect("a number")).collect()
}

/// Changes a byte of some stored bytes on a stopped device.
pub(crate) fn spoil(device: &Path, bytes: &[u8]) {
    let found = fs::read_dir(device).expect("a device").find_map(|entry| {
        let entry = entry.expect("an entry");
        // Not in the journal, which may hold the bytes too.
        let is_blocks = entry.file_name().to_string_lossy().starts_with("blocks");
        let path = entry.path();
        let all = is_blocks.then(|| fs::read(&path).expect("blocks"))?;
        let at = all.windows(bytes.len()).position(|part| part == bytes);
        at.map(|at| (path, at))
    });
    let (path, at) = found.expect("the bytes are on the device");
    let file = File::options().write(true).open(path).expect("open");
    file.write_all_at(&[!bytes[0]], at as u64).expect("write");
}

/// Processes with one device each.
pub(crate) struct Servers<'a> {
    cell: &'a Cell,
    /// Further options of `osd serve`.
    options: &'a [&'a str],
    running: Vec<(u64, Option<Child>)>,
}

impl<'a> Servers<'a> {
    pub(crate) fn start(cell: &'a Cell, count: u16) -> Self {
        Self::start_with(cell, count, &[])
    }

    pub(crate) fn start_with(cell: &'a Cell, count: u16, options: &'a [&'a str]) -> Self {
        let running = (1..=count).map(|n| {
            let port = cell.port + 10 + n;
            let created = cell.json(&format!("osd create disk{n} 127.0.0.1 -port {port} -json"));
            (created["id"].as_u64().expect("a number"), None)
        });
        let running = running.collect();
        let mut servers = Self {
            cell,
            options,
            running,
        };
        for place in 0..servers.running.len() {
            servers.begin(place);
        }
        servers
    }

    pub(crate) fn begin(&mut self, place: usize) {
        let id = self.running[place].0;
        let port = self.cell.port + 11 + place as u16;
        let server = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args(["osd", "serve", "--dir"])
            .arg(self.directory(place))
            .args(["--id", &id.to_string(), "--port", &port.to_string()])
            .args(["--fileserver-port", &self.cell.port.to_string()])
            .arg("--join")
            .arg(self.cell.directory().join("server-etc"))
            .args(self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        self.running[place].1 = Some(server);
    }

    fn directory(&self, place: usize) -> PathBuf {
        self.cell.local(format!("disk{place}"))
    }

    /// The directory of a device.
    pub(crate) fn disk(&self, place: usize) -> PathBuf {
        let id = self.running[place].0;
        self.directory(place).join(format!("osd{id}"))
    }

    /// The numbers of the devices.
    pub(crate) fn devices(&self) -> Vec<u64> {
        self.running.iter().map(|(id, _)| *id).collect()
    }

    pub(crate) fn of(&self, device: u64) -> usize {
        let place = self.running.iter().position(|(id, _)| *id == device);
        place.expect("a device of ours")
    }

    pub(crate) fn kill(&mut self, place: usize) {
        let mut server = self.running[place].1.take().expect("it runs");
        server.kill().expect("kill");
        server.wait().expect("wait");
    }

    /// Stops one in the way of an administrator.
    pub(crate) fn stop(&mut self, place: usize) {
        self.signal(place, "-INT");
        let mut server = self.running[place].1.take().expect("it runs");
        assert!(server.wait().expect("wait").success());
    }

    /// Stops one until the result is dropped.
    pub(crate) fn hold(&self, place: usize) -> Held {
        Held::begin(self.running[place].1.as_ref().expect("it runs"))
    }

    pub(crate) fn signal(&self, place: usize, signal: &str) {
        let server = self.running[place].1.as_ref().expect("it runs");
        let sent = Command::new("kill")
            .args([signal, &server.id().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    }
}

/// A stopped process, which runs only in the turns that a test gives it. Its work thus lasts for
/// many turns, whatever the speed of the machine. It continues when this is dropped.
pub(crate) struct Held(OwnedFd);

impl Held {
    fn begin(process: &Child) -> Self {
        let id = Pid::from_child(process);
        let held = Held(pidfd_open(id, PidfdFlags::empty()).expect("it runs"));
        held.send(Signal::STOP);
        held
    }

    /// Lets the process run for 20 ms.
    pub(crate) fn turn(&self) {
        self.send(Signal::CONT);
        std::thread::sleep(Duration::from_millis(20));
        self.send(Signal::STOP);
    }

    fn send(&self, signal: Signal) {
        // The process may be killed meanwhile: then the signal has no receiver.
        let _ = pidfd_send_signal(&self.0, signal);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.send(Signal::CONT);
    }
}

impl Drop for Servers<'_> {
    fn drop(&mut self) {
        for server in self
            .running
            .iter_mut()
            .filter_map(|(_, child)| child.as_mut())
        {
            let _ended = server.kill();
            let _status = server.wait();
        }
    }
}

/// The objects that `osd objects` lists for a device, if the device answers.
pub(crate) fn seen_on(cell: &Cell, device: u64) -> Option<Vec<String>> {
    let listed = cell.run(["osd", "objects", &device.to_string(), "-json"]);
    let listed: Value = serde_json::from_str(&listed.out).ok()?;
    let object = |one: &Value| one["object"].as_str().expect("an object").to_owned();
    Some(listed.as_array()?.iter().map(object).collect())
}

/// The objects of a device that must answer.
pub(crate) fn objects_on(cell: &Cell, device: u64) -> Vec<String> {
    seen_on(cell, device).expect("a list of objects")
}

/// The objects of a file, in the order of its layout.
pub(crate) fn objects_of(cell: &Cell, name: &str) -> Vec<String> {
    let all = pieces(cell, name);
    let all = all["pieces"].as_array().expect("pieces");
    let object = |one: &Value| one["object"].as_str().expect("an object").to_owned();
    all.iter().map(object).collect()
}

/// The repair queue of the cell's file server.
pub(crate) fn repairs(cell: &Cell) -> Value {
    cell.json("osd repair-status -json")["servers"][0].take()
}
