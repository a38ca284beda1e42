//! A cell of its own for each test: a directory, free ports, the real program.

pub(crate) mod devices;
pub(crate) mod ports;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use cellar_until::{PATIENCE, until_blocking};
use ports::Ports;

/// The address of a second server of a cell.
pub(crate) const SECOND: &str = "127.0.0.2";

/// A running cell, which ends when it is dropped.
pub(crate) struct Cell {
    pub(crate) home: tempfile::TempDir,
    pub(crate) port: u16,
    /// `up` or `serve`.
    command: &'static str,
    /// The options of the command.
    options: Vec<String>,
    server: Option<Child>,
    /// The output of its last start.
    pub(crate) banner: String,
    /// The ports of a cell's first server. Other servers have the same ports at other addresses.
    _ports: Option<Ports>,
}

/// The result of a command.
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    /// Runs a command to its end.
    pub(crate) fn of(mut command: Command) -> Self {
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().expect("the program runs");
        Self {
            status: status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&stdout).into_owned(),
            err: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// The output of a command that must have succeeded.
    pub(crate) fn ok(self, line: &str) -> String {
        assert_eq!(self.status, 0, "cellar {line}\n{}{}", self.out, self.err);
        self.out
    }

    /// The message of a command that must have failed.
    pub(crate) fn failure(self, line: &str) -> String {
        assert_ne!(self.status, 0, "cellar {line}\n{}", self.out);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self.err
    }
}

impl Cell {
    /// Makes and starts a cell.
    pub(crate) fn new() -> Self {
        Self::with_partitions(&[])
    }

    /// Makes and starts a cell in a directory that has directories for partitions.
    pub(crate) fn with_partitions(names: &[&str]) -> Self {
        let ports = Ports::reserve();
        let mut cell = Self::prepared(ports.first, &["--cell", "test.cell"]);
        cell._ports = Some(ports);
        for name in names {
            let partition = cell.directory().join(name);
            std::fs::create_dir_all(partition).expect("a partition");
        }
        cell.first_start();
        cell
    }

    /// Makes and starts a cell with these options of `up`.
    pub(crate) fn with(options: &[&str]) -> Self {
        let ports = Ports::reserve();
        let mut all = vec!["--cell", "test.cell"];
        all.extend(options);
        let mut cell = Self::prepared(ports.first, &all);
        cell._ports = Some(ports);
        cell.first_start();
        cell
    }

    /// Makes and starts a server with these words of `serve`.
    pub(crate) fn serving(port: u16, words: &[&str]) -> Self {
        let mut cell = Self::prepared(port, words);
        cell.command = "serve";
        cell.first_start();
        cell
    }

    /// Makes and starts a server at these ports with these options of `up`.
    pub(crate) fn with_options(port: u16, options: &[&str]) -> Self {
        let mut cell = Self::prepared(port, options);
        cell.first_start();
        cell
    }

    /// Starts one more file server of the cell, at another address of this machine, and waits until
    /// the location database knows it.
    pub(crate) fn join(&self) -> Self {
        let etc = self.directory().join("server-etc");
        let etc = etc.to_str().expect("a path of this test");
        let second = Self::with_options(self.port, &["--join", etc, "--bind", SECOND]);
        until_blocking("registered", || {
            self.ok("vos listaddrs -noresolve").contains(SECOND)
        });
        second
    }

    /// A server that is not started yet, in a directory that `fill` makes.
    pub(crate) fn prepared_at(fill: impl FnOnce(&Path)) -> Self {
        let ports = Ports::reserve();
        let mut cell = Self::prepared(ports.first, &[]);
        cell._ports = Some(ports);
        fill(&cell.directory());
        cell
    }

    /// A server that is not started yet, in the directory that an earlier release left:
    /// `testdata/cells`.
    pub(crate) fn of_release(name: &str) -> Self {
        let cells = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cells");
        Self::prepared_at(|directory| {
            std::fs::create_dir(directory).expect("directory");
            let unpacked = Command::new("tar")
                .arg("-xzf")
                .arg(cells.join(format!("{name}.tar.gz")))
                .arg("-C")
                .arg(directory)
                .arg("--no-same-owner")
                .status();
            assert!(unpacked.expect("tar").success());
        })
    }

    fn prepared(port: u16, options: &[&str]) -> Self {
        Self {
            home: tempfile::tempdir().expect("a temporary directory"),
            port,
            command: "up",
            options: options.iter().map(|word| (*word).to_owned()).collect(),
            server: None,
            banner: String::new(),
            _ports: None,
        }
    }

    fn first_start(&mut self) {
        self.start();
        // A later start gives no options.
        self.options.clear();
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.home.path().join("cell")
    }

    /// A file of this machine, in the test's directory.
    pub(crate) fn local(&self, name: impl AsRef<Path>) -> PathBuf {
        self.home.path().join(name)
    }

    /// The log of the server, of all its starts. A failed test prints it.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.local("log")).unwrap_or_default()
    }

    /// Starts the server and waits until it reports that the cell is up.
    pub(crate) fn start(&mut self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.local("log"))
            .expect("a log");
        let mut server = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args([self.command, "--dir"])
            .arg(self.directory())
            .args(&self.options)
            .args(["--fileserver-port", &self.port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let lines = BufReader::new(server.stdout.take().expect("its output")).lines();
        self.banner.clear();
        for line in lines {
            self.banner += &(line.expect("a line") + "\n");
            if self.banner.contains("Ctrl-C stops it") {
                assert!(catches_signals(server.id()), "a signal would be lost");
                self.server = Some(server);
                return;
            }
        }
        panic!("the server ended: {:?}", server.wait());
    }

    /// Like [`Self::start`], with other options of `up`.
    pub(crate) fn start_with(&mut self, options: &[&str]) {
        self.options = options.iter().map(|word| (*word).to_owned()).collect();
        self.first_start();
    }

    /// Sends the server a signal, given by name.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.server.as_ref().expect("a server").id().to_string();
        let sent = Command::new("kill")
            .args([signal, &pid])
            .status()
            .expect("kill");
        assert!(sent.success());
    }

    /// Ends the server with a signal, given by name. Returns its exit code if it has one.
    pub(crate) fn end(&mut self, signal: &str) -> Option<i32> {
        self.signal(signal);
        let mut server = self.server.take().expect("a server");
        let start = Instant::now();
        loop {
            if let Some(status) = server.try_wait().expect("wait") {
                return status.code();
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the server does not stop; its threads:\n{}",
                threads_of(server.id())
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a command on the cell.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Answer {
        run(Some(&self.directory()), words)
    }

    /// Runs a command, given as words separated by blanks, that must succeed. Returns its output.
    pub(crate) fn ok(&self, line: &str) -> String {
        self.run(line.split_whitespace()).ok(line)
    }

    /// Runs a command that must fail. Returns its message.
    pub(crate) fn fails(&self, line: &str) -> String {
        self.run(line.split_whitespace()).failure(line)
    }

    /// The output of a command as JSON.
    pub(crate) fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(line)).expect(line)
    }
}

/// Whether a process has handlers for SIGINT and SIGTERM. Source: proc_pid_status(5), `SigCgt`.
pub(crate) fn catches_signals(pid: u32) -> bool {
    const BOTH: u64 = 1 << 1 | 1 << 14;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = u64::from_str_radix(mask.expect("a mask").trim(), 16).expect("a number");
    mask & BOTH == BOTH
}

/// The threads of a process, each with its name and the kernel function in which it waits.
fn threads_of(pid: u32) -> String {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return "none".to_owned();
    };
    let of_thread = |path: PathBuf| {
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        format!("{} in {}", read("comm").trim(), read("wchan").trim())
    };
    let lines: Vec<_> = threads
        .flatten()
        .map(|thread| of_thread(thread.path()))
        .collect();
    lines.join("\n")
}

impl Drop for Cell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of the server:\n{}", self.log());
        }
        if let Some(mut server) = self.server.take() {
            // It may have ended by itself, as the test has checked.
            let _ended = server.kill();
            let _status = server.wait();
        }
    }
}

/// Runs a command. Suites and file commands find the cell by the environment.
pub(crate) fn run<S: AsRef<OsStr>>(
    directory: Option<&Path>,
    words: impl IntoIterator<Item = S>,
) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cellar"));
    command
        .args(words)
        .env("CELLAR_CELLSERVDB", "/nonexistent")
        .stdin(Stdio::null());
    match directory {
        Some(directory) => command.env("CELLAR_DIR", directory),
        None => command.env_remove("CELLAR_DIR"),
    };
    Answer::of(command)
}
