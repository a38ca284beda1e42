//! Tests of what differs from the release, with a socket in the kernel's place.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::geteuid;
use parking_lot::Mutex;

use crate::*;

/// Opcodes. Source: linux/fuse.h.
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const SETLK: u32 = 32;
const CREATE: u32 = 35;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const FUSE_LK_FLOCK: u32 = 1;
const FATTR_KILL_SUIDGID: u32 = 1 << 11;
const FUSE_OPEN_KILL_SUIDGID: u32 = 1;

/// Writes down what is asked.
#[derive(Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: String) {
        self.0.lock().push(line);
    }
}

impl Filesystem for Log {
    fn interrupt(&self, _req: &Request, unique: RequestId) {
        self.add(format!("interrupt {}", unique.0));
    }

    fn setattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        kill_suidgid: bool,
        reply: ReplyAttr,
    ) {
        self.add(format!("setattr size={size:?} kill={kill_suidgid}"));
        reply.error(Errno::EPERM);
    }

    fn open(
        &self,
        _req: &Request,
        _ino: INodeNo,
        flags: OpenFlags,
        kill_suidgid: bool,
        reply: ReplyOpen,
    ) {
        self.add(format!("open flags={} kill={kill_suidgid}", flags.0));
        reply.error(Errno::EPERM);
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        umask: u32,
        _flags: i32,
        kill_suidgid: bool,
        reply: ReplyCreate,
    ) {
        self.add(format!("create umask={umask} kill={kill_suidgid}"));
        reply.error(Errno::EPERM);
    }

    fn setlk(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        _start: u64,
        _end: u64,
        _typ: i32,
        _pid: u32,
        sleep: bool,
        flock: bool,
        reply: ReplyEmpty,
    ) {
        self.add(format!("setlk sleep={sleep} flock={flock}"));
        reply.ok();
    }
}

/// The kernel's side of a session.
struct Kernel {
    socket: std::fs::File,
    session: BackgroundSession,
    log: Arc<Mutex<Vec<String>>>,
}

/// The body of a request, in the machine's order of bytes.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn send(socket: &mut std::fs::File, opcode: u32, unique: u64, uid: u32, body: &[u8]) {
    let mut packet = words(&[40 + body.len() as u32, opcode]);
    packet.extend(unique.to_ne_bytes());
    packet.extend(1u64.to_ne_bytes());
    packet.extend(words(&[uid, uid, 1, 0]));
    packet.extend(body);
    socket.write_all(&packet).unwrap();
}

/// The number and the error of the next reply.
fn reply(socket: &mut std::fs::File) -> (u64, i32) {
    let mut packet = [0; 4096];
    let size = socket.read(&mut packet).unwrap();
    assert!(size >= 16, "a reply of {size} bytes");
    let error = i32::from_ne_bytes(packet[4..8].try_into().unwrap());
    let unique = u64::from_ne_bytes(packet[8..16].try_into().unwrap());
    (unique, error)
}

impl Kernel {
    fn new(acl: SessionACL) -> Self {
        // One request is one read, as of the device.
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        let (mut socket, theirs): (std::fs::File, OwnedFd) = (ours.into(), theirs);
        let mut init = vec![7, 40, 4096, 0];
        init.resize(16, 0);
        send(&mut socket, INIT, 2, geteuid().as_raw(), &words(&init));
        let log = Log::default();
        let lines = log.0.clone();
        let session = Session::from_fd(log, theirs, acl, Config::default()).unwrap();
        assert_eq!(reply(&mut socket), (2, 0));
        Self {
            socket,
            session: session.spawn().unwrap(),
            log: lines,
        }
    }

    fn send(&mut self, opcode: u32, unique: u64, uid: u32, body: &[u8]) {
        send(&mut self.socket, opcode, unique, uid, body);
    }

    /// Ends the session; answers what the file system was asked.
    fn end(mut self) -> Vec<String> {
        self.send(DESTROY, 1000, 0, &[]);
        assert_eq!(reply(&mut self.socket), (1000, 0), "the next reply");
        self.session.join().unwrap();
        let log = self.log.lock();
        log.clone()
    }
}

#[test]
fn an_interrupt_reaches_the_file_system_and_is_not_answered() {
    // The kernel sends it as root, also where only one user may use the mount.
    for acl in [SessionACL::All, SessionACL::Owner] {
        let mut kernel = Kernel::new(acl);
        kernel.send(INTERRUPT, 5, 0, &4u64.to_ne_bytes());
        kernel.send(INTERRUPT, 7, 77, &6u64.to_ne_bytes());
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(kernel.end(), ["interrupt 4", "interrupt 6"]);
    }
}

#[test]
fn locks_by_flock_are_told_apart() {
    let mut kernel = Kernel::new(SessionACL::All);
    for (unique, flags) in [(4, 0), (6, FUSE_LK_FLOCK)] {
        let mut body = words(&[0; 8]);
        body.extend(words(&[1, 1, flags, 0]));
        kernel.send(SETLK, unique, 0, &body);
        assert_eq!(reply(&mut kernel.socket), (unique, 0));
    }
    let expected = [
        "setlk sleep=false flock=false",
        "setlk sleep=false flock=true",
    ];
    assert_eq!(kernel.end(), expected);
}

#[test]
fn it_is_said_when_set_id_bits_go() {
    let mut kernel = Kernel::new(SessionACL::All);
    let mut unique = 4;
    let mut ask = |kernel: &mut Kernel, opcode, body: &[u8]| {
        kernel.send(opcode, unique, 0, body);
        assert_eq!(reply(&mut kernel.socket), (unique, -1));
        unique += 2;
    };
    for kill in [0, FATTR_KILL_SUIDGID] {
        // With a size: FATTR_SIZE.
        let mut body = words(&[kill | 1 << 3, 0, 0, 0, 7, 0]);
        body.resize(88, 0);
        ask(&mut kernel, SETATTR, &body);
    }
    for kill in [0, FUSE_OPEN_KILL_SUIDGID] {
        ask(&mut kernel, OPEN, &words(&[2, kill]));
        let mut body = words(&[2, 0o644, 0o22, kill]);
        body.extend(b"name\0");
        ask(&mut kernel, CREATE, &body);
    }
    let expected = [
        "setattr size=Some(7) kill=false",
        "setattr size=Some(7) kill=true",
        "open flags=2 kill=false",
        "create umask=18 kill=false",
        "open flags=2 kill=true",
        "create umask=18 kill=true",
    ];
    assert_eq!(kernel.end(), expected);
}

#[test]
fn a_name_alone_has_a_number_and_is_not_looked_up() {
    use crate::ll::reply::{DirEntOffset, DirEntPlusList, DirEntryPlus, Response};
    let attr = FileAttr {
        ino: INodeNo(7),
        size: 0,
        blocks: 0,
        atime: std::time::UNIX_EPOCH,
        mtime: std::time::UNIX_EPOCH,
        ctime: std::time::UNIX_EPOCH,
        crtime: std::time::UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    };
    for node in [0, 7] {
        let mut list = DirEntPlusList::new(4096);
        let entry = DirEntryPlus::new(
            INodeNo(node),
            Generation(0),
            DirEntOffset(1),
            "name",
            Duration::ZERO,
            (&attr).into(),
            Duration::ZERO,
        );
        assert!(!list.push(&entry));
        let response: crate::ll::ResponseData = list.into();
        let bytes = response.with_iovec(crate::ll::RequestId(2), |parts| {
            parts
                .iter()
                .flat_map(|part| part.to_vec())
                .collect::<Vec<u8>>()
        });
        // Behind the reply's header: the entry, of 128 bytes, begins with its node; then the line.
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((word(16), word(16 + 128)), (node, 7));
    }
}
