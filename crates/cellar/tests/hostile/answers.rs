//! Well-formed requests for what cannot be: each gets the code that AFS has for it.
//!
//! The same list can be put to another server, for the differences:
//! `HOSTILE_PEER=192.0.2.2 HOSTILE_VOLUME=scratch cargo test -p cellar --test hostile compare -- --nocapture`.
//! The volume's root directory must give anybody `rlidwka`.

use std::sync::Arc;

use cellar_rpc::{Connection, IncomingCall, LocalBoxFuture, Runtime, Service};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::package::{Package, Procedure};
use cellar_wire::{afsvol, bozo, disk, pr, rxafs, rxafscb, rxstats, vl, vote};

use crate::cell::{Cell, Target, code_of, mode, name, run, within};

mod servers;

use servers::{databases, volumes_and_overseer};

const OK: i32 = 0;
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const EXDEV: i32 = 18;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const ENAMETOOLONG: i32 = 36;
const ELOOP: i32 = 90;
const EOPNOTSUPP: i32 = 122;
const ECONNREFUSED: i32 = 130;
const VNOVNODE: i32 = 102;
const VNOVOL: i32 = 103;
const SS_UNMARSHAL: i32 = -453;
const OPCODE: i32 = -455;
const VL_NOENT: i32 = 363_524;
const VL_BADNAME: i32 = 363_527;
const VL_BADVOLTYPE: i32 = 363_529;
const VL_PERM: i32 = 363_546;
const VL_BADMASK: i32 = 363_551;
const PRNOENT: i32 = 267_268;
const PRPERM: i32 = 267_269;
const VOLSERBAD_ACCESS: i32 = 1_492_325_127;
const BZNOENT: i32 = 39_425;
const BZACCESS: i32 = 39_430;
const BZDOM: i32 = 39_429;

/// A request, word by word: also what our own types refuse to hold.
#[derive(Clone)]
pub struct Words(Vec<u8>);

impl Words {
    pub fn opcode(opcode: u32) -> Self {
        Self(opcode.to_be_bytes().to_vec())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn word(mut self, word: u32) -> Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub fn words<const N: usize>(self, words: [u32; N]) -> Self {
        words.into_iter().fold(self, Self::word)
    }

    pub fn long(self, long: u64) -> Self {
        self.word((long >> 32) as u32).word(long as u32)
    }

    pub fn fid(self, fid: Fid) -> Self {
        self.words([fid.volume.0, fid.vnode.0, fid.uniquifier.0])
    }

    /// Length, bytes, padding.
    pub fn text(mut self, text: &[u8]) -> Self {
        self = self.word(text.len() as u32);
        self.0.extend(text);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// An `AFSStoreStatus` that sets the mode.
    pub fn status(self, bits: u32) -> Self {
        self.words([8, 0, 0, 0, bits, 0])
    }
}

struct Case {
    what: String,
    offset: u16,
    package: &'static Package,
    request: Words,
    /// What is expected, from us.
    code: i32,
}

struct Cases(Vec<Case>);

impl Cases {
    fn add(
        &mut self,
        package: &'static Package,
        offset: u16,
        what: impl Into<String>,
        code: i32,
        request: Words,
    ) {
        self.0.push(Case {
            what: what.into(),
            offset,
            package,
            request,
            code,
        });
    }

    fn files(&mut self, what: impl Into<String>, code: i32, request: Words) {
        self.add(&rxafs::PACKAGE, 0, what, code, request);
    }
}

/// Objects that the cases are about.
struct Objects {
    dir: Fid,
    file: Fid,
    sub: Fid,
    link: Fid,
}

async fn make_objects(target: &Target, client: &Runtime) -> Objects {
    let files = target.connect(client, 0, &rxafs::PACKAGE);
    let root = target.root(client).await;
    let dir = rxafs::MakeDir {
        dir_fid: root,
        name: name(format!("hostile-{}-{}", std::process::id(), target.base)),
        in_status: mode(0o755),
    };
    let dir = within(files.call(&dir))
        .await
        .expect("rlidwka in the root")
        .fid;
    let file = rxafs::CreateFile {
        dir_fid: dir,
        name: name("file"),
        in_status: mode(0o644),
    };
    let file = files.call(&file).await.unwrap().fid;
    let sub = rxafs::MakeDir {
        dir_fid: dir,
        name: name("sub"),
        in_status: mode(0o755),
    };
    let sub = files.call(&sub).await.unwrap().fid;
    let inside = rxafs::CreateFile {
        dir_fid: sub,
        name: name("inside"),
        in_status: mode(0o644),
    };
    files.call(&inside).await.unwrap();
    let link = rxafs::Symlink {
        dir_fid: dir,
        name: name("link"),
        link_contents: "target".try_into().unwrap(),
        in_status: mode(0o755),
    };
    let link = files.call(&link).await.unwrap().fid;
    Objects {
        dir,
        file,
        sub,
        link,
    }
}

fn names(cases: &mut Cases, objects: &Objects) {
    let Objects { dir, file, .. } = *objects;
    cases.files(
        "CreateFile over a file",
        EEXIST,
        Words::opcode(137).fid(dir).text(b"file").status(0o644),
    );
    cases.files(
        "CreateFile over a directory",
        EEXIST,
        Words::opcode(137).fid(dir).text(b"sub").status(0o644),
    );
    let long_256 = [b'x'; 256];
    let long_257 = [b'x'; 257];
    let bad: [(&str, &[u8], i32); 8] = [
        ("empty", b"", EINVAL),
        (".", b".", EINVAL),
        ("..", b"..", EINVAL),
        ("a/b", b"a/b", EINVAL),
        ("a NUL b", b"a\0b", EINVAL),
        ("x.@sys", b"x.@sys", EINVAL),
        ("256 bytes", &long_256, ENAMETOOLONG),
        ("257 bytes", &long_257, SS_UNMARSHAL),
    ];
    for (title, text, code) in bad {
        let is_new = |what: &str| format!("{what} named {title}");
        cases.files(
            is_new("CreateFile"),
            code,
            Words::opcode(137).fid(dir).text(text).status(0o644),
        );
        cases.files(
            is_new("MakeDir"),
            code,
            Words::opcode(141).fid(dir).text(text).status(0o755),
        );
        let symlink = Words::opcode(139)
            .fid(dir)
            .text(text)
            .text(b"t")
            .status(0o755);
        cases.files(is_new("Symlink"), code, symlink);
        cases.files(
            is_new("Link"),
            code,
            Words::opcode(140).fid(dir).text(text).fid(file),
        );
        let rename = Words::opcode(138)
            .fid(dir)
            .text(b"file")
            .fid(dir)
            .text(text);
        cases.files(is_new("Rename to one"), code, rename);
        let missing = match title {
            "x.@sys" => ENOENT,
            _ => code,
        };
        cases.files(
            is_new("RemoveFile"),
            missing,
            Words::opcode(136).fid(dir).text(text),
        );
        cases.files(
            is_new("RemoveDir"),
            missing,
            Words::opcode(142).fid(dir).text(text),
        );
        let rename = Words::opcode(138).fid(dir).text(text).fid(dir).text(b"new");
        cases.files(is_new("Rename of one"), missing, rename);
    }
    cases.files(
        "Symlink to 1025 bytes",
        SS_UNMARSHAL,
        Words::opcode(139)
            .fid(dir)
            .text(b"l")
            .text(&[b'x'; 1025])
            .status(0o755),
    );
}

fn fids(cases: &mut Cases, objects: &Objects) {
    let Objects {
        dir,
        file,
        sub,
        link,
    } = *objects;
    let with = |volume: u32, vnode: u32, unique: u32| Fid::new(volume, vnode, unique);
    let (volume, vnode, unique) = (file.volume.0, file.vnode.0, file.uniquifier.0);
    let bad = [
        ("volume 0", with(0, vnode, unique), EINVAL),
        ("vnode 0", with(volume, 0, unique), EINVAL),
        ("a volume that is not there", with(1, vnode, unique), VNOVOL),
        (
            "a vnode that is not there",
            with(volume, 0x7fff_fffe, 1),
            VNOVNODE,
        ),
        (
            "the largest even vnode",
            with(volume, 0xffff_fffe, 1),
            VNOVNODE,
        ),
        ("the largest vnode", with(volume, u32::MAX, 1), VNOVNODE),
        (
            "a stale uniquifier",
            with(volume, vnode, unique.wrapping_add(77)),
            VNOVNODE,
        ),
        ("uniquifier 0", with(volume, vnode, 0), VNOVNODE),
    ];
    for (title, fid, code) in bad {
        let of = |what: &str| format!("{what}: {title}");
        cases.files(of("FetchStatus"), code, Words::opcode(132).fid(fid));
        cases.files(
            of("FetchData64"),
            code,
            Words::opcode(65537).fid(fid).long(0).long(10),
        );
        cases.files(of("FetchACL"), code, Words::opcode(131).fid(fid));
        cases.files(
            of("StoreStatus"),
            code,
            Words::opcode(135).fid(fid).status(0o600),
        );
        cases.files(
            of("StoreACL"),
            code,
            Words::opcode(164)
                .fid(fid)
                .text(b"1\n0\nsystem:anyuser\t127\n\0"),
        );
        cases.files(
            of("CreateFile in"),
            code,
            Words::opcode(137).fid(fid).text(b"n").status(0o644),
        );
        cases.files(
            of("RemoveFile in"),
            code,
            Words::opcode(136).fid(fid).text(b"n"),
        );
        cases.files(of("SetLock"), code, Words::opcode(156).fid(fid).word(0));
        cases.files(of("ExtendLock"), code, Words::opcode(157).fid(fid));
        cases.files(of("ReleaseLock"), code, Words::opcode(158).fid(fid));
        cases.files(of("BulkStatus"), code, Words::opcode(155).word(1).fid(fid));
        cases.files(
            of("InlineBulkStatus"),
            OK,
            Words::opcode(65536).word(1).fid(fid),
        );
    }
    cases.files(
        "CreateFile in a file",
        ENOTDIR,
        Words::opcode(137).fid(file).text(b"n").status(0o644),
    );
    cases.files(
        "RemoveFile in a file",
        ENOTDIR,
        Words::opcode(136).fid(file).text(b"n"),
    );
    cases.files(
        "MakeDir in a link",
        ENOTDIR,
        Words::opcode(141).fid(link).text(b"n").status(0o755),
    );
    cases.files(
        "RemoveFile of a directory",
        EISDIR,
        Words::opcode(136).fid(dir).text(b"sub"),
    );
    cases.files(
        "RemoveDir of a file",
        ENOTDIR,
        Words::opcode(142).fid(dir).text(b"file"),
    );
    cases.files(
        "RemoveDir of a full one",
        EEXIST,
        Words::opcode(142).fid(dir).text(b"sub"),
    );
    cases.files(
        "Link to a directory",
        EISDIR,
        Words::opcode(140).fid(dir).text(b"n").fid(sub),
    );
    cases.files(
        "Link to another directory's file",
        EXDEV,
        Words::opcode(140).fid(sub).text(b"n").fid(file),
    );
    cases.files(
        "Link to another volume",
        EXDEV,
        Words::opcode(140).fid(dir).text(b"n").fid(with(1, 2, 3)),
    );
    cases.files(
        "Rename into itself",
        ELOOP,
        Words::opcode(138).fid(dir).text(b"sub").fid(sub).text(b"n"),
    );
    cases.files(
        "Rename of what is not there",
        ENOENT,
        Words::opcode(138).fid(dir).text(b"no").fid(dir).text(b"n"),
    );
    cases.files(
        "Rename to another volume",
        EXDEV,
        Words::opcode(138)
            .fid(dir)
            .text(b"file")
            .fid(with(1, 1, 1))
            .text(b"n"),
    );
    cases.files(
        "Rename of a file over a directory",
        EISDIR,
        Words::opcode(138)
            .fid(dir)
            .text(b"file")
            .fid(dir)
            .text(b"sub"),
    );
    cases.files(
        "Rename of a directory over a file",
        ENOTDIR,
        Words::opcode(138)
            .fid(dir)
            .text(b"sub")
            .fid(dir)
            .text(b"file"),
    );
    cases.files(
        "StoreACL on a file",
        ENOTDIR,
        Words::opcode(164)
            .fid(file)
            .text(b"1\n0\nsystem:anyuser\t127\n\0"),
    );
}

fn lengths_and_rest(cases: &mut Cases, objects: &Objects) {
    let Objects { dir, file, .. } = *objects;
    let fetch =
        |position: u64, length: u64| Words::opcode(65537).fid(file).long(position).long(length);
    let store = |fid: Fid, position: u64, length: u64, file_length: u64| {
        Words::opcode(65538)
            .fid(fid)
            .words([0; 6])
            .long(position)
            .long(length)
            .long(file_length)
    };
    cases.files("FetchData64 from -1", EFBIG, fetch(u64::MAX, 1));
    cases.files("FetchData64 of -1", EFBIG, fetch(0, u64::MAX));
    cases.files("FetchData64 beyond 2^63", EFBIG, fetch(1 << 62, 1 << 62));
    cases.files("FetchData64 beyond the end", OK, fetch(1 << 40, 100));
    cases.files(
        "FetchData from -1",
        EFBIG,
        Words::opcode(130).fid(file).words([u32::MAX, 1]),
    );
    cases.files("StoreData64 at 2^63", EFBIG, store(file, 1 << 63, 0, 0));
    cases.files(
        "StoreData64 of 2^64 - 1",
        EFBIG,
        store(file, 0, u64::MAX, 0),
    );
    cases.files("StoreData64 that wraps", EFBIG, store(file, u64::MAX, 2, 0));
    cases.files(
        "StoreData beyond 2^31",
        EFBIG,
        Words::opcode(133)
            .fid(file)
            .words([0; 6])
            .words([0x7fff_ffff, 1, 0]),
    );
    cases.files("StoreData64 to a directory", EISDIR, store(dir, 0, 0, 0));
    cases.files("BulkStatus of nothing", EINVAL, Words::opcode(155).word(0));
    cases.files(
        "InlineBulkStatus of nothing",
        EINVAL,
        Words::opcode(65536).word(0),
    );
    cases.files(
        "InlineBulkStatus of 51",
        SS_UNMARSHAL,
        (0..51).fold(Words::opcode(65536).word(51), |w, _| w.fid(file)),
    );
    cases.files(
        "InlineBulkStatus of 2^32 - 1",
        SS_UNMARSHAL,
        Words::opcode(65536).word(u32::MAX).fid(file),
    );
    cases.files(
        "GiveUpCallBacks of fewer fids",
        EINVAL,
        Words::opcode(147).word(0).word(1).words([1, 0, 1]),
    );
    cases.files(
        "SetLock of type 9",
        EINVAL,
        Words::opcode(156).fid(file).word(9),
    );
    cases.files("ExtendLock of none", EINVAL, Words::opcode(157).fid(file));
    cases.files("GetVolumeStatus of 0", EINVAL, Words::opcode(149).word(0));
    cases.files(
        "GetVolumeStatus of none",
        VNOVOL,
        Words::opcode(149).word(1),
    );
    let set = |volume: u32| {
        Words::opcode(150)
            .word(volume)
            .words([2, 0, 10])
            .text(b"")
            .text(b"")
            .text(b"")
    };
    cases.files("SetVolumeStatus by anybody", EACCES, set(file.volume.0));
    cases.files("SetVolumeStatus of 0", EINVAL, set(0));
    cases.files(
        "StoreStatus with an owner, by anybody",
        EPERM,
        Words::opcode(135).fid(file).words([2, 0, 5, 0, 0, 0]),
    );
    cases.files("GetRootVolume", EOPNOTSUPP, Words::opcode(151));
    cases.files(
        "CheckToken",
        ECONNREFUSED,
        Words::opcode(152).word(1).text(b"x"),
    );
    cases.files(
        "FlushCPS by anybody",
        EPERM,
        Words::opcode(162).word(0).word(0).word(0),
    );
    cases.files(
        "FlushCPS of 11",
        SS_UNMARSHAL,
        Words::opcode(162).word(11).words([0; 11]).word(0).word(0),
    );
    cases.files(
        "GetXStats of collection 99",
        1,
        Words::opcode(160).words([2, 99]),
    );
    cases.files(
        "GetStatistics64 of version 3",
        EINVAL,
        Words::opcode(65542).word(3),
    );
    cases.files("Lookup", EINVAL, Words::opcode(161).fid(dir).text(b"file"));
    cases.files("FsCmd cut short", SS_UNMARSHAL, Words::opcode(220).fid(dir));
    for (title, text, code) in [
        ("without NUL", &b"1\n0\nsystem:anyuser\t127\n"[..], EINVAL),
        ("that is no list", b"hello\0", EINVAL),
        ("with a negative count", b"-1\n0\n\0", EINVAL),
        (
            "with fewer entries than it says",
            b"3\n0\nsystem:anyuser\t127\n\0",
            EINVAL,
        ),
        (
            "with an unknown name",
            b"2\n0\nsystem:anyuser\t127\nno-such-user\t1\n\0",
            EINVAL,
        ),
        ("of nothing", b"", EINVAL),
    ] {
        cases.files(
            format!("StoreACL {title}"),
            code,
            Words::opcode(164).fid(dir).text(text),
        );
    }
}

async fn cases(target: &Target, client: &Runtime) -> (Objects, Vec<Case>) {
    let objects = make_objects(target, client).await;
    let mut cases = Cases(Vec::new());
    fids(&mut cases, &objects);
    lengths_and_rest(&mut cases, &objects);
    databases(&mut cases);
    volumes_and_overseer(&mut cases, &objects);
    // Last, because a server that allows one of them has changed the directory by it.
    names(&mut cases, &objects);
    (objects, cases.0)
}

async fn answers(target: &Target, client: &Runtime, cases: &[Case]) -> Vec<i32> {
    let mut answers = Vec::new();
    for case in cases {
        let connection: Connection = target.connect(client, case.offset, case.package);
        answers.push(code_of(&connection, case.package, case.request.0.clone()).await);
    }
    answers
}

#[test]
fn what_cannot_be_is_refused_with_its_code() {
    run(async {
        let mut cell = Cell::start();
        let client = Runtime::client_only().unwrap();
        let target = cell.target.clone();
        let (objects, cases) = cases(&target, &client).await;
        // Anybody may change this list, so that what is refused is the list.
        let socket = cell.directory().join("admin.sock");
        let administrator = cellar_rpc::local::connect(&socket);
        let everything = rxafs::StoreACL {
            fid: objects.dir,
            access_list: "1\n0\nsystem:anyuser\t127\n\0".try_into().unwrap(),
        };
        administrator
            .await
            .unwrap()
            .call(&everything)
            .await
            .unwrap();
        let before = cell.statistics();
        let answers = answers(&target, &client, &cases).await;
        let wrong: Vec<_> = cases
            .iter()
            .zip(&answers)
            .filter(|(case, answer)| case.code != **answer)
            .map(|(case, answer)| format!("{}: {answer}, not {}", case.what, case.code))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let after = cell.statistics();
        let refused = |snapshot: &serde_json::Value, kind: &str| {
            snapshot["files"]["refused"][kind].as_u64().unwrap()
        };
        for (kind, least) in [
            ("invalid", 30),
            ("no_fid", 20),
            ("stale_fid", 40),
            ("volume", 10),
            ("wrong_kind", 10),
            ("name", 5),
            ("bad_arguments", 10),
            ("no_right", 3),
        ] {
            let more = refused(&after, kind) - refused(&before, kind);
            assert!(more >= least, "{kind}: {more}\n{}", after["files"]);
        }
        cell.assert_well(&client).await;
    });
}

/// A cache manager that answers as little as a file server is content with.
struct Callbacks;

impl Service for Callbacks {
    fn package(&self) -> &'static Package {
        &rxafscb::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            match call.opcode().await? {
                rxafscb::CallBack::OPCODE
                | rxafscb::InitCallBackState::OPCODE
                | rxafscb::InitCallBackState3::OPCODE
                | rxafscb::Probe::OPCODE => Ok(()),
                _ => Err(AbortCode::RXGEN_OPCODE),
            }
        })
    }
}

/// Prints where another server answers differently.
#[test]
fn compare_with_another_server() {
    run(async {
        let Ok(address) = std::env::var("HOSTILE_PEER") else {
            eprintln!("skipped: no HOSTILE_PEER to compare with");
            return;
        };
        let volume = std::env::var("HOSTILE_VOLUME").unwrap_or("scratch".to_owned());
        let peer = Target {
            address: address.parse().unwrap(),
            base: 7000,
            volume,
        };
        let client = Runtime::client_only().unwrap();
        let port = client.client_port().unwrap();
        port.add_service(&(Arc::new(Callbacks) as Arc<dyn Service>));
        let (_, cases) = cases(&peer, &client).await;
        let answers = answers(&peer, &client, &cases).await;
        for (case, answer) in cases.iter().zip(&answers) {
            if case.code != *answer {
                println!("{}: {answer}; Cellar {}", case.what, case.code);
            }
        }
    });
}
