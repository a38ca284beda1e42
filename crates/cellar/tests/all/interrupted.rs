//! Commands that end in the middle of their work. After Ctrl-C `cellar vos` cleans up; if it is
//! killed, the server does. Either way the volume is unchanged and nothing else is left. A command
//! that only prints ends at once.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Answer, Cell, SECOND};
use cellar_until::until_blocking;

const FIRST: &str = "127.0.0.1";
/// The number of times that a job may finish before it could be interrupted. It is repeated then.
const ATTEMPTS: usize = 20;

/// Numbers that look random, different for each seed.
fn contents(bytes: usize, seed: u32) -> Vec<u8> {
    let numbers =
        (0..bytes as u32 / 4).map(|n| (n ^ seed.wrapping_mul(77_777)).wrapping_mul(2_654_435_761));
    numbers.flat_map(u32::to_be_bytes).collect()
}

/// A volume with one file, mounted in scratch under its name.
fn volume(cell: &Cell, name: &str) {
    cell.ok(&format!("vos create {FIRST} a {name} -maxquota 0"));
    cell.ok(&format!(
        "fs mkmount /afs/test.cell/scratch/{name} {name} -rw"
    ));
}

fn store(cell: &Cell, volume: &str, contents: &[u8]) {
    let local = cell.local("file");
    fs::write(&local, contents).expect("a file");
    let local = local.display();
    cell.ok(&format!(
        "cp --admin {local} /afs/test.cell/scratch/{volume}/file"
    ));
}

/// Checks the contents of a volume's file.
fn check(cell: &Cell, volume: &str, contents: &[u8]) {
    let back = cell.local("back");
    cell.ok(&format!(
        "cp --admin /afs/test.cell/scratch/{volume}/file {}",
        back.display()
    ));
    assert!(
        fs::read(&back).expect("the copied file") == contents,
        "{volume}"
    );
    fs::remove_file(&back).expect("removed");
}

/// Starts a command that runs while the test continues.
fn spawn(cell: &Cell, line: &str, stdin: Stdio) -> Child {
    Command::new(env!("CARGO_BIN_EXE_cellar"))
        .args(line.split(' '))
        .env("CELLAR_DIR", cell.directory())
        .env("CELLAR_CELLSERVDB", "/nonexistent")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

fn signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill")
        .args([signal, &pid])
        .stderr(Stdio::null())
        .status();
    // It may have ended meanwhile, and still exists until it is waited for.
    sent.expect("kill");
}

fn ended(child: Child) -> Answer {
    let output = child.wait_with_output().expect("it ended");
    Answer {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Starts to restore a dump from standard input, which then neither continues nor ends.
fn half_restored(cell: &Cell, line: &str, dump: &[u8]) -> Child {
    let mut child = spawn(cell, line, Stdio::piped());
    let input = child.stdin.as_mut().expect("its input");
    // More than a pipe holds, so it has been read, and sent as far as it can be.
    input.write_all(&dump[..dump.len() / 2]).expect("it reads");
    until_blocking("a restore begins", || {
        cell.ok("vos status 127.0.0.1").contains("Restore")
    });
    child
}

fn is_idle(cell: &Cell, server: &str) -> bool {
    cell.ok(&format!("vos status {server}")) == format!("No active transactions on {server}\n")
}

/// The volumes on a server, each with its state.
fn volumes(cell: &Cell, server: &str) -> Vec<String> {
    let listed = cell.ok(&format!("vos listvol {server} a"));
    let lines = listed
        .lines()
        .filter(|line| line.contains(" RW ") || line.contains(" RO ") || line.contains(" BK "));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .map(|words| format!("{} {}", words[0], words[words.len() - 1]))
        .collect()
}

/// The volumes that belong to the test.
fn own_volumes(cell: &Cell, server: &str) -> Vec<String> {
    let mut all = volumes(cell, server);
    all.retain(|volume| !volume.starts_with("root.") && !volume.starts_with("scratch"));
    all
}

fn is_locked(cell: &Cell, volume: &str) -> bool {
    cell.ok(&format!("vos listvldb -name {volume}"))
        .contains("LOCKED")
}

/// A cell with a volume, the present contents of its file, and a dump of earlier contents.
fn cell_with_a_dump() -> (Cell, Vec<u8>, Vec<u8>) {
    let cell = Cell::new();
    volume(&cell, "vol");
    store(&cell, "vol", &contents(3_000_000, 1));
    let dump = cell.local("dump");
    cell.ok(&format!("vos dump vol -file {}", dump.display()));
    let later = contents(400_000, 2);
    store(&cell, "vol", &later);
    let dump = fs::read(dump).expect("a dump");
    (cell, later, dump)
}

const RESTORES: [&str; 3] = [
    "vos restore 127.0.0.1 a new",
    "vos restore 127.0.0.1 a vol -overwrite full",
    "vos restore 127.0.0.1 a vol -overwrite incremental",
];

#[test]
fn ctrl_c_in_the_middle_of_a_restore_leaves_what_was() {
    let (cell, now, dump) = cell_with_a_dump();
    for line in RESTORES {
        let child = half_restored(&cell, line, &dump);
        signal(&child, "-INT");
        let said = ended(child);
        assert_eq!(said.status, 130, "{line}: {}{}", said.out, said.err);
        assert!(is_idle(&cell, FIRST), "{line}");
        assert_eq!(own_volumes(&cell, FIRST), ["vol On-line"], "{line}");
        assert!(!is_locked(&cell, "vol"), "{line}");
        cell.fails("vos listvldb -name new");
        check(&cell, "vol", &now);
        store(&cell, "vol", &now);
    }
}

/// The client does not clean up. The server does, after the transaction has been idle long enough.
#[test]
fn a_restore_whose_client_was_killed_goes_by_itself() {
    let (mut cell, now, dump) = cell_with_a_dump();
    assert_eq!(cell.end("-INT"), Some(0));
    // Longer than any pause of a living client, even on a busy machine.
    cell.start_with(&["--transaction-idle", "8"]);
    for line in RESTORES {
        let child = half_restored(&cell, line, &dump);
        signal(&child, "-KILL");
        ended(child);
        until_blocking(&format!("ended: {line}"), || is_idle(&cell, FIRST));
        assert_eq!(own_volumes(&cell, FIRST), ["vol On-line"], "{line}");
        cell.fails("vos listvldb -name new");
        check(&cell, "vol", &now);
        store(&cell, "vol", &now);
    }
    // Only a client died, so the same command works afterwards.
    let mut child = half_restored(&cell, RESTORES[1], &dump);
    let mut input = child.stdin.take().expect("its input");
    input.write_all(&dump[dump.len() / 2..]).expect("it reads");
    drop(input);
    ended(child).ok(RESTORES[1]);
    check(&cell, "vol", &contents(3_000_000, 1));
}

/// Presses Ctrl-C when a job reports that a step is done. Returns `None` if the job ended before it
/// noticed.
fn interrupted_after(cell: &Cell, line: &str, step: &str) -> Option<Answer> {
    let mut child = spawn(cell, line, Stdio::null());
    let mut lines = BufReader::new(child.stderr.take().expect("its messages")).lines();
    let mut said = Vec::new();
    for text in &mut lines {
        said.push(text.expect("a line"));
        if said
            .last()
            .is_some_and(|text| text.split(' ').next() == Some(step))
        {
            signal(&child, "-INT");
            break;
        }
    }
    said.extend(lines.map(|text| text.expect("a line")));
    let answer = ended(child);
    let said = said.join("\n");
    assert!(
        said.lines().any(|text| text.starts_with(step)),
        "{line}: {said}"
    );
    assert!(!said.contains("panicked"), "{line}: {said}");
    (answer.status != 0).then_some(Answer {
        err: said,
        ..answer
    })
}

#[test]
fn ctrl_c_in_the_middle_of_a_move_brings_the_volume_to_one_place() {
    let cell = Cell::new();
    let second = cell.join();
    volume(&cell, "vol");
    let now = contents(24_000_000, 3);
    store(&cell, "vol", &now);
    let (mut from, mut to) = (FIRST, SECOND);
    for _ in 0..ATTEMPTS {
        // All of it is still to be sent.
        let line = format!("vos move vol {from} a {to} a");
        if let Some(answer) = interrupted_after(&cell, &format!("{line} -verbose"), "created") {
            assert_eq!(answer.status, 130, "{}", answer.err);
            assert!(answer.err.contains("cleaning up"), "{}", answer.err);
            for server in [from, to] {
                assert!(is_idle(&cell, server), "{server}: {}", answer.err);
            }
            assert_eq!(own_volumes(&cell, from), ["vol On-line"], "{}", answer.err);
            assert!(own_volumes(&cell, to).is_empty(), "{}", answer.err);
            assert!(!is_locked(&cell, "vol"));
            check(&cell, "vol", &now);
            cell.ok(&line);
            assert_eq!(own_volumes(&cell, to), ["vol On-line"]);
            assert!(own_volumes(&cell, from).is_empty());
            check(&cell, "vol", &now);
            drop(second);
            return;
        }
        (from, to) = (to, from);
    }
    panic!("the job always ended before it noticed Ctrl-C");
}

#[test]
fn ctrl_c_in_the_middle_of_a_release_leaves_sites_whole() {
    let cell = Cell::new();
    let second = cell.join();
    volume(&cell, "vol");
    let mut seed = 4;
    let mut old = contents(400_000, seed);
    store(&cell, "vol", &old);
    cell.ok(&format!("vos addsite {SECOND} a vol"));
    cell.ok("vos release vol");
    cell.ok("fs mkmount /afs/test.cell/scratch/ro vol.readonly");
    for _ in 0..ATTEMPTS {
        seed += 1;
        let new = contents(24_000_000, seed);
        store(&cell, "vol", &new);
        if let Some(answer) = interrupted_after(&cell, "vos release vol -verbose", "opened") {
            for server in [FIRST, SECOND] {
                assert!(is_idle(&cell, server), "{server}: {}", answer.err);
            }
            assert_eq!(
                own_volumes(&cell, SECOND),
                ["vol.readonly On-line"],
                "{}",
                answer.err
            );
            assert_eq!(own_volumes(&cell, FIRST), ["vol On-line"], "{}", answer.err);
            assert!(!is_locked(&cell, "vol"), "{}", answer.err);
            check(&cell, "ro", &old);
            check(&cell, "vol", &new);
            cell.ok("vos release vol");
            assert!(!is_locked(&cell, "vol"));
            assert_eq!(own_volumes(&cell, FIRST), ["vol On-line"], "{}", answer.err);
            check(&cell, "ro", &new);
            drop(second);
            return;
        }
        old = new;
    }
    panic!("the job always ended before it noticed Ctrl-C");
}

/// It waits in the middle of a write to a pipe that is not read.
#[test]
fn a_call_that_waits_for_its_reader_ends_at_a_request() {
    let cell = Cell::new();
    let large = cell.local("large");
    fs::write(&large, contents(1 << 20, 1)).expect("a file");
    cell.ok(&format!(
        "cp {} /afs/test.cell/scratch/large",
        large.display()
    ));
    let mut child = spawn(&cell, "cat /afs/test.cell/scratch/large", Stdio::null());
    let mut output = child.stdout.take().expect("its output");
    output.read_exact(&mut [0]).expect("it has begun");
    // Much longer than it needs to fill the pipe.
    std::thread::sleep(Duration::from_secs(1));
    signal(&child, "-TERM");
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait") {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(20) {
            signal(&child, "-KILL");
            ended(child);
            panic!("the command still runs");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.signal(), Some(15), "{status}");
}
