//! `cellar cp` of files in objects that does not reach its end: interrupted, killed, resumed, and
//! compared.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use crate::common::devices::{Servers, TOP, comes_back, devices_of, local, pieces, ready};
use crate::common::{Answer, Cell};
use cellar_until::{PATIENCE, until_blocking};
use serde_json::json;

const MIB: usize = 1 << 20;
/// The log line of a copy that has begun a store.
const BEGINS: &str = "a store begins";
/// The message of a copy while another store of the file is open.
const WAITS: &str = "waits for another store";
/// The message of a copy that could not clean up in time, on a busy machine.
const LATE: &str = "do not answer";
const ATTEMPTS: usize = 10;

/// A copy that runs while the test continues.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    said: String,
}

impl Running {
    fn start(cell: &Cell, line: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args(line.split(' '))
            .env("CELLAR_DIR", cell.directory())
            .env("CELLAR_CELLSERVDB", "/nonexistent")
            .env("CELLAR_LOG", "warn,cellar_client::objects=debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let errors = BufReader::new(child.stderr.take().expect("its messages"));
        let (says, lines) = mpsc::sync_channel(4096);
        std::thread::spawn(move || {
            for line in errors.lines() {
                let _gone = says.send(line.expect("a line"));
            }
        });
        Self {
            child,
            lines,
            said: String::new(),
        }
    }

    /// Waits until it has printed `text`. Returns false if it ended before.
    fn says(&mut self, text: &str) -> bool {
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.said += &format!("{line}\n");
            if line.contains(text) {
                return true;
            }
        }
        false
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        // It may have ended, and still exists until it is waited for.
        let sent = Command::new("kill")
            .args([signal, &pid])
            .stderr(Stdio::null())
            .status();
        sent.expect("kill");
    }

    fn end(mut self) -> Answer {
        let status = self.child.wait().expect("it ends");
        self.said.extend(self.lines.iter().map(|line| line + "\n"));
        assert!(!self.said.contains("panicked"), "{}", self.said);
        Answer {
            status: status.code().unwrap_or(-1),
            out: String::new(),
            err: self.said,
        }
    }
}

/// A file of a cell on one of two devices, which can be made silent: then no copy of the file can
/// end.
struct Source<'a> {
    cell: &'a Cell,
    servers: Servers<'a>,
    device: usize,
    bytes: Vec<u8>,
}

impl<'a> Source<'a> {
    fn on(cell: &'a Cell) -> Self {
        let servers = Servers::start(cell, 2);
        ready(cell, 2);
        let (path, bytes) = local(cell, "large", 3 * MIB + 7);
        let path = path.display();
        cell.ok(&format!(
            "cp --admin --layout stripes=1 {path} {TOP}/source"
        ));
        let device = servers.of(devices_of(cell, "source")[0]);
        Self {
            cell,
            servers,
            device,
            bytes,
        }
    }

    fn answers(&self) {
        self.servers.signal(self.device, "-CONT");
        ready(self.cell, 2);
    }

    /// Starts a copy of it into AFS while its device, which answered shortly before, is silent.
    /// Returns the copy when it has begun to store.
    fn copied_to(&self, name: &str) -> Running {
        self.answers();
        self.servers.signal(self.device, "-STOP");
        // To both devices, since a copy does not check first whether the silent one answers.
        let line = format!("cp --admin --layout copies=2 {TOP}/source {TOP}/{name}");
        let mut running = Running::start(self.cell, &line);
        assert!(running.says(BEGINS), "{}", running.said);
        running
    }

    /// Copies to names that `name` makes, until an interrupted copy has cleaned up in time.
    fn interrupted(&self, signal: &str, name: impl Fn(usize) -> String) -> (String, Answer) {
        for attempt in 0..ATTEMPTS {
            let name = name(attempt);
            let running = self.copied_to(&name);
            running.signal(signal);
            let answer = running.end();
            if !answer.err.contains(LATE) {
                return (name, answer);
            }
        }
        panic!("the servers never answer in time");
    }
}

fn is_there(cell: &Cell, name: &str) -> bool {
    cell.ok(&format!("ls -a {TOP}"))
        .lines()
        .any(|line| line == name)
}

#[test]
fn a_copy_that_is_interrupted_gives_its_store_up() {
    let cell = Cell::with(&[]);
    let source = Source::on(&cell);
    for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
        let (name, answer) = source.interrupted(signal, |attempt| format!("new{signal}{attempt}"));
        assert_eq!(answer.status, status, "{}", answer.err);
        // The file was new, and it was removed.
        assert!(!is_there(&cell, &name), "{name}");
        assert!(!is_there(&cell, &format!(".{name}.cellar-part")), "{name}");
    }
    // An existing file stays, and can be stored into at once.
    let (small, _) = local(&cell, "small", 1000);
    let (name, answer) = source.interrupted("-INT", |attempt| {
        let name = format!("old{attempt}");
        cell.ok(&format!("cp {} {TOP}/{name}", small.display()));
        name
    });
    assert_eq!(answer.status, 130, "{}", answer.err);
    source.answers();
    let again = Running::start(&cell, &format!("cp --resume {TOP}/source {TOP}/{name}"));
    let again = again.end();
    assert_eq!(again.status, 0, "{}", again.err);
    assert!(!again.err.contains(WAITS), "{}", again.err);
    comes_back(&cell, &name, &source.bytes);

    // The same for a copy into a file of this machine.
    source.servers.signal(source.device, "-STOP");
    let back = cell.local("broken-off");
    let line = format!("cp {TOP}/source {}", back.display());
    let running = Running::start(&cell, &line);
    let part = cell.local(".broken-off.cellar-part");
    until_blocking("a file to copy to", || fs::exists(&part).expect("look"));
    running.signal("-INT");
    let answer = running.end();
    assert_eq!(answer.status, 130, "{}", answer.err);
    assert!(
        !fs::exists(&back).expect("look"),
        "a part has the final name"
    );
    source.answers();
    cell.ok(&format!("cp --resume {TOP}/source {}", back.display()));
    assert!(!fs::exists(&part).expect("look"), "the part is left");
    assert!(fs::read(&back).expect("the copy") == source.bytes);
}

/// The store is not aborted. The next one waits until the file server has given it up, and reports
/// that.
#[test]
fn a_copy_says_that_it_waits_for_one_that_was_killed() {
    let cell = Cell::with(&[]);
    let source = Source::on(&cell);
    let killed = source.copied_to("copy");
    killed.signal("-KILL");
    killed.end();
    source.servers.signal(source.device, "-CONT");
    // Without --resume the part of the killed copy is replaced, which waits for no store.
    let line = format!("cp --admin --resume {TOP}/source {TOP}/copy");
    let mut next = Running::start(&cell, &line);
    assert!(next.says(WAITS), "{}", next.said);
    assert!(next.said.contains("after a minute"), "{}", next.said);
    // The wait can be interrupted.
    next.signal("-INT");
    let answer = next.end();
    assert_eq!(answer.status, 130, "{}", answer.err);
}

/// Bytes that a copy stored: those that the server of both devices wrote.
fn written(cell: &Cell) -> u64 {
    let figures = cell.json("osd statistics 2 -json");
    figures["bytes_written"].as_u64().expect("a number")
}

/// The bytes that a copy reports as copied and resumed.
fn copied(cell: &Cell, line: &str) -> (u64, u64) {
    let done = cell.json(&format!("cp --json {line}"));
    assert_eq!((&done["files"], &done["left_out"]), (&json!(1), &json!(0)));
    assert!(done["seconds"].as_f64() > Some(0.0), "{done}");
    let number = |field: &str| done[field].as_u64().expect(field);
    (number("bytes"), number("resumed"))
}

#[test]
fn a_copy_goes_on_behind_what_is_there_if_that_is_right() {
    let cell = Cell::with(&["--osds", "2"]);
    ready(&cell, 2);
    let (whole, bytes) = local(&cell, "whole", 9 * MIB + 77);
    let whole = whole.display();
    let all = bytes.len() as u64;
    let part = 6 * MIB + 5;
    let put = |name: &str, bytes: &[u8]| {
        let path = cell.local(name);
        fs::write(&path, bytes).expect("a local file");
        cell.ok(&format!(
            "cp --admin --layout stripes=2,stripe-size=64K {} {TOP}/{name}",
            path.display()
        ));
    };
    let to = |name: &str| format!("--resume {whole} {TOP}/{name}");

    // The first part of the file; it keeps its layout.
    put("begun", &bytes[..part]);
    let before = written(&cell);
    let rest = all - part as u64;
    assert_eq!(copied(&cell, &to("begun")), (rest, part as u64));
    assert_eq!(written(&cell) - before, rest);
    comes_back(&cell, "begun", &bytes);
    let shape = &pieces(&cell, "begun")["shape"];
    assert_eq!(shape, &json!("2 stripes in units of 64 KiB"));

    // The complete file.
    let before = written(&cell);
    assert_eq!(copied(&cell, &to("begun")), (0, all));
    assert_eq!(written(&cell), before);
    comes_back(&cell, "begun", &bytes);

    // A partial file whose last MiB differs, or that is longer.
    let mut other = bytes[..part].to_vec();
    other[part - MIB / 2] ^= 1;
    put("other", &other);
    assert_eq!(copied(&cell, &to("other")), (all, 0));
    comes_back(&cell, "other", &bytes);
    let longer = [bytes.as_slice(), &[7; MIB]].concat();
    put("longer", &longer);
    assert_eq!(copied(&cell, &to("longer")), (all, 0));
    comes_back(&cell, "longer", &bytes);

    // The same for a copy out of the cell.
    let back = cell.local("into");
    let from = format!("--resume {TOP}/begun {}", back.display());
    let came = |there: &[u8]| {
        fs::write(&back, there).expect("a local file");
        let done = copied(&cell, &from);
        assert!(fs::read(&back).expect("the copy") == bytes);
        done
    };
    assert_eq!(came(&bytes[..part]), (rest, part as u64));
    assert_eq!(came(&bytes), (0, all));
    assert_eq!(came(&other), (all, 0));
    assert_eq!(came(&longer), (all, 0));
    assert_eq!(came(&[]), (all, 0));

    // Only the last MiB is compared. For all bytes there is `--verify`.
    other[part - MIB / 2] ^= 1;
    other[3 * MIB] ^= 1;
    for verify in ["--verify ", ""] {
        let name = format!("wrong{}", verify.len());
        put(&name, &other);
        let copied = |what: &str| {
            let answer = cell.run(format!("cp {verify}{what}").split_whitespace());
            let refused = i32::from(!verify.is_empty());
            assert_eq!(answer.status, refused, "{}", answer.err);
            answer
        };
        let answer = copied(&to(&name));
        if !verify.is_empty() {
            let place = format!("at byte {} or after it", 3 * MIB);
            assert!(answer.err.contains(&place), "{}", answer.err);
        }
        fs::write(&back, &other).expect("a local file");
        copied(&from);
    }
    cell.ok(&format!("cp --verify {whole} {TOP}/wrong0"));
    let error = cell.fails(&format!("cp --resume - {TOP}/x"));
    assert!(
        error.contains("standard input cannot be read twice"),
        "{error}"
    );
}

#[test]
fn stored_parts_of_a_copy_are_kept() {
    let cell = Cell::with(&["--osds", "1"]);
    ready(&cell, 1);
    // Each MiB is different.
    let path = cell.local("large");
    let mut bytes = vec![1; 160 * MIB];
    for (number, block) in bytes.chunks_mut(MIB).enumerate() {
        block[..8].copy_from_slice(&(number as u64).to_be_bytes());
    }
    fs::write(&path, &bytes).expect("a local file");
    let path = path.display();
    let first = 64 * MIB as u64;
    for attempt in 0..ATTEMPTS {
        let name = format!("copy{attempt}");
        let mut running = Running::start(&cell, &format!("cp {path} {TOP}/{name}"));
        assert!(
            running.says(BEGINS) && running.says(BEGINS),
            "no second part"
        );
        running.signal("-INT");
        let answer = running.end();
        if answer.status == 0 || answer.err.contains(LATE) {
            continue;
        }
        assert_eq!(answer.status, 130, "{}", answer.err);
        assert!(!is_there(&cell, &name), "a part has the final name");
        let part = format!(".{name}.cellar-part");
        assert!(answer.err.contains(&part), "{}", answer.err);
        let length = pieces(&cell, &part)["length"].as_u64();
        assert_eq!(length, Some(first), "{}", answer.err);
        let done = copied(&cell, &format!("--resume {path} {TOP}/{name}"));
        assert_eq!(done, (bytes.len() as u64 - first, first));
        comes_back(&cell, &name, &bytes);
        return;
    }
    panic!("the copy always ended before the signal");
}

#[test]
fn a_file_on_the_file_server_comes_by_several_streams() {
    let cell = Cell::new();
    let (path, bytes) = local(&cell, "large", 21 * MIB);
    cell.ok(&format!("cp {} {TOP}/large", path.display()));
    let back = cell.local("back");
    let mut before = 0;
    let mut fetches = |streams: &str| {
        let back = back.display();
        cell.ok(&format!("cp --streams {streams} {TOP}/large {back}"));
        assert!(fs::read(cell.local("back")).expect("the copy") == bytes);
        let now = cell.json("statistics --json")["files"]["fetched"]["transfers"].as_u64();
        let now = now.expect("a number");
        let news = now - before;
        before = now;
        news
    };
    fetches("1");
    let alone = fetches("1");
    // Pieces of 8 MiB.
    assert!(fetches("2") >= alone + 2);
    assert!(fetches("16") >= alone + 2);
    let error = cell.fails(&format!("cp --streams 17 {TOP}/large {}", back.display()));
    assert!(error.contains("17"), "{error}");
}
