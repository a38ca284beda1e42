//! OpenAFS's own `vos`, `pts` and `udebug` against Cellar's servers, on the default ports.
//!
//! The tools find a cell through files in `/etc/openafs`. Therefore the test runs itself again in
//! its own network and mount namespaces. There it can replace these files and use the ports 7002
//! and 7003. It needs root, `unshare`, `mount`, `ip` and Debian's openafs-client and
//! openafs-dbserver (for udebug). Without them it prints the reason and passes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cellar_celldb::{CellDb, Embedded};
use cellar_dbserver::{Clock, DiskService, Identity, Pr, PrService, Vl, VlService, VoteService};
use cellar_rpc::{PortConfig, Runtime, RuntimeConfig};
use cellar_wire::vl::{
    CreateEntryN, NvldbEntry, RegisterAddrs, SetLock, Site, VLF_BACKEXISTS, VLF_ROEXISTS,
    VLF_RWEXISTS, VLOP_MOVE, VLSF_DONTUSE, VLSF_ROVOL, VLSF_RWVOL,
};
use cellar_wire::{AfsTime, AfsUuid, List, ViceId, VolumeId, pr};

const INSIDE: &str = "CELLAR_TEST_IN_NAMESPACE";
/// 10.0.0.1, because the tools refuse loopback addresses for servers.
const HERE: u32 = 0x0a00_0001;
const ADMIN: Identity = Identity::Superuser;

#[test]
fn stock_tools_understand_our_databases() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    if let Err(reason) = can_run() {
        eprintln!("skipped: {reason}");
        return;
    }
    let outcome = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "openafs_tools::stock_tools_understand_our_databases",
            "--nocapture",
        ])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    print!("{}{}", text(&outcome.stdout), text(&outcome.stderr));
    assert!(outcome.status.success());
}

fn can_run() -> Result<(), String> {
    for tool in ["unshare", "mount", "ip", "vos", "pts", "udebug"] {
        let found = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
            .iter()
            .any(|directory| Path::new(directory).join(tool).exists());
        if !found {
            return Err(format!("{tool} is not installed"));
        }
    }
    if !Path::new("/etc/openafs").is_dir() {
        return Err("/etc/openafs is missing".to_owned());
    }
    let namespace = Command::new("unshare")
        .args(["--net", "--mount", "true"])
        .output();
    match namespace {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("namespaces cannot be made here (not root?)".to_owned()),
    }
}

/// Runs a command and returns its output, followed by its errors.
fn run(command: &str) -> String {
    let output = Command::new("timeout")
        .arg("60")
        .args(command.split_whitespace())
        .env("TZ", "UTC")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text + &String::from_utf8_lossy(&output.stderr);
    println!("$ {command}\n{text}");
    text
}

#[track_caller]
fn expect(command: &str, expected: &[&str]) {
    let text = run(command);
    for line in expected {
        assert!(
            text.lines().any(|l| l.trim_end() == *line),
            "{command}: no line {line:?}"
        );
    }
}

struct Servers {
    vl: Arc<Vl>,
    pr: Arc<Pr>,
    _runtime: Runtime,
    _directory: tempfile::TempDir,
}

fn serve() -> Servers {
    let directory = tempfile::tempdir().unwrap();
    let open = |name| -> Arc<dyn CellDb> {
        Arc::new(Embedded::open(&directory.path().join(name)).unwrap())
    };
    let clock: Clock = Arc::new(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        AfsTime(now.map_or(0, |since| since.as_secs() as u32))
    });
    let vl = Arc::new(Vl::open(open("vl"), clock.clone()).unwrap());
    let pr = Arc::new(Pr::open(open("pr"), clock.clone(), "test.cell").unwrap());
    let runtime = Runtime::start(RuntimeConfig::default()).unwrap();
    let port = |number| PortConfig::new(SocketAddr::from(([10, 0, 0, 1], number)));
    let vote = |database| VoteService::new(database, clock.clone(), vec![HERE]);
    let vl_port = port(7003)
        .service(Arc::new(VlService::new(vl.clone())))
        .service(Arc::new(vote(vl.clone())))
        .service(Arc::new(DiskService));
    let pr_port = port(7002)
        .service(Arc::new(PrService::new(pr.clone())))
        .service(Arc::new(vote(pr.clone())))
        .service(Arc::new(DiskService));
    runtime.open(vl_port).unwrap();
    runtime.open(pr_port).unwrap();
    Servers {
        vl,
        pr,
        _runtime: runtime,
        _directory: directory,
    }
}

fn inside() {
    for arguments in ["link set lo up", "address add 10.0.0.1/8 dev lo"] {
        let ip = Command::new("ip").args(arguments.split(' ')).status();
        assert!(ip.unwrap().success());
    }
    let etc = tempfile::tempdir().unwrap();
    std::fs::write(etc.path().join("ThisCell"), "test.cell\n").unwrap();
    let servers = ">test.cell        #A test\n10.0.0.1    #here\n";
    std::fs::write(etc.path().join("CellServDB"), servers).unwrap();
    std::fs::create_dir(etc.path().join("server")).unwrap();
    std::fs::write(etc.path().join("server/ThisCell"), "test.cell\n").unwrap();
    std::fs::write(etc.path().join("server/CellServDB"), servers).unwrap();
    let mount = Command::new("mount")
        .arg("--bind")
        .arg(etc.path())
        .arg("/etc/openafs")
        .status();
    assert!(mount.unwrap().success());
    let servers = serve();
    locations(&servers);
    protection(&servers);
    votes(&servers);
}

fn volume(name: &str, id: u32, sites: &[Site], flags: u32) -> CreateEntryN {
    CreateEntryN {
        newentry: NvldbEntry {
            name: name.try_into().unwrap(),
            sites: List::try_from(sites).unwrap(),
            volume_ids: [id, id + 1, id + 2].map(VolumeId),
            clone_id: VolumeId(0),
            flags,
            match_index: 0,
        },
    }
}

fn locations(servers: &Servers) {
    let vl = &servers.vl;
    let addrs = List::from_iter_cut([HERE, 0x0a00_0002]);
    let uuid = AfsUuid([0x11; 16]);
    vl.ask(
        ADMIN,
        RegisterAddrs {
            uuid,
            spare1: 0,
            addrs,
        },
    )
    .unwrap();
    let site = |server, partition, flags| Site {
        server,
        partition,
        flags,
    };
    let rw = site(HERE, 0, VLSF_RWVOL);
    let other = 0x0a00_0009;
    for entry in [
        volume("root.afs", 536870912, &[rw], VLF_RWEXISTS),
        volume(
            "user.jane",
            536870915,
            &[
                rw,
                site(HERE, 0, VLSF_ROVOL),
                site(other, 26, VLSF_ROVOL | VLSF_DONTUSE),
            ],
            VLF_RWEXISTS | VLF_ROEXISTS | VLF_BACKEXISTS,
        ),
    ] {
        vl.ask(ADMIN, entry).unwrap();
    }
    let lock = SetLock {
        volid: VolumeId(536870912),
        voltype: -1,
        voloper: VLOP_MOVE as i32,
    };
    vl.ask(ADMIN, lock).unwrap();
    expect(
        "vos listvldb -noauth -noresolve",
        &[
            "VLDB entries for all servers",
            "root.afs",
            "    RWrite: 536870912",
            "    number of sites -> 1",
            "       server 10.0.0.1 partition /vicepa RW Site",
            "    Volume is currently LOCKED",
            "    Volume is locked for a move operation",
            "user.jane",
            "    RWrite: 536870915     ROnly: 536870916     Backup: 536870917",
            "       server 10.0.0.1 partition /vicepa RO Site",
            "       server 10.0.0.9 partition /vicepaa RO Site  -- Not released",
            "Total entries: 2",
        ],
    );
    expect(
        "vos listvldb -name user.jane.readonly -noauth -noresolve",
        &["user.jane", "    number of sites -> 3"],
    );
    expect(
        "vos listvldb -name 536870917 -noauth -noresolve",
        &["user.jane"],
    );
    expect(
        "vos listvldb -server 10.0.0.9 -noauth -noresolve",
        &["Total entries: 1"],
    );
    expect(
        "vos listvldb -server 10.0.0.1 -partition b -noauth",
        &["Total entries: 0"],
    );
    expect(
        "vos listvldb -locked -noauth -noresolve",
        &["root.afs", "Total entries: 1"],
    );
    expect(
        "vos listvldb -name nobody -noauth",
        &["VLDB: no such entry"],
    );
    expect(
        "vos listaddrs -printuuid -noauth -noresolve",
        &[
            "UUID: 11111111-1111-1111-11-11-111111111111",
            "10.0.0.1",
            "10.0.0.2",
        ],
    );
    // The server of the volume does not run; the location follows the error about that.
    expect(
        "vos examine root.afs -noauth -noresolve",
        &[
            "    RWrite: 536870912",
            "       server 10.0.0.1 partition /vicepa RW Site",
        ],
    );
    let refused = run("vos unlock root.afs -noauth");
    assert!(
        refused.contains("no permission access for call"),
        "{refused}"
    );
    let many =
        (0..1200).map(|n| volume(&format!("v{n}"), 600_000_000 + 3 * n, &[rw], VLF_RWEXISTS));
    std::thread::scope(|scope| {
        let many: Vec<_> = many.collect();
        for some in many.chunks(100) {
            let some = some.to_vec();
            scope.spawn(|| {
                for new in some {
                    vl.ask(ADMIN, new).unwrap();
                }
            });
        }
    });
    expect(
        "vos listvldb -noauth -noresolve -quiet",
        &["v0", "v1199", "user.jane"],
    );
    expect("vos listvldb -noauth -noresolve", &["Total entries: 1202"]);
}

fn protection(servers: &Servers) {
    let pr = &servers.pr;
    let new = |name: &str, flag: u32, owner| {
        let (name, flag) = (name.try_into().unwrap(), flag as i32);
        pr.ask(ADMIN, pr::NewEntry { name, flag, owner })
            .unwrap()
            .id
    };
    let jane = new("jane", 0, ViceId(0));
    let john = new("john", 0, ViceId(0));
    let group = new("jane:friends", pr::PRGRP, jane);
    pr.ask(
        ADMIN,
        pr::AddToGroup {
            uid: john,
            gid: group,
        },
    )
    .unwrap();
    let open = pr::SetFieldsEntry {
        id: jane,
        mask: pr::PR_SF_ALLBITS,
        flags: pr::PRP_STATUS_ANY | pr::PRP_OWNED_ANY | pr::PRP_MEMBER_ANY,
        ngroups: 0,
        nusers: 0,
        spare1: 0,
        spare2: 0,
    };
    pr.ask(ADMIN, open).unwrap();
    expect(
        "pts examine jane john jane:friends system:administrators -noauth",
        &[
            "Name: jane, id: 1, owner: system:administrators, creator: system:administrators,",
            "  membership: 0, flags: SOM--, group quota: 20.",
            "Name: john, id: 2, owner: system:administrators, creator: system:administrators,",
            "  membership: 1, flags: S----, group quota: 20.",
            "Name: jane:friends, id: -206, owner: jane, creator: system:administrators,",
            "  membership: 1, flags: S-M--, group quota: 0.",
            "Name: system:administrators, id: -204, owner: system:administrators, \
             creator: system:administrators,",
        ],
    );
    expect(
        "pts membership jane:friends -noauth",
        &["Members of jane:friends (id: -206) are:", "  john"],
    );
    expect(
        "pts membership jane -noauth",
        &["Groups jane (id: 1) is a member of:"],
    );
    expect(
        "pts listowned jane -noauth",
        &["Groups owned by jane (id: 1) are:", "  jane:friends"],
    );
    expect(
        "pts listmax -noauth",
        &["Max user id is 2 and max group id is -206."],
    );
    for refused in [
        "pts membership john -noauth",
        "pts listentries -noauth",
        "pts createuser eve -noauth",
        "pts adduser jane jane:friends -noauth",
        "pts delete jane -noauth",
    ] {
        let text = run(refused);
        assert!(text.contains("Permission denied"), "{refused}: {text}");
    }
    let unknown = run("pts examine nobody -noauth");
    assert!(unknown.contains("User or group doesn't exist"), "{unknown}");
}

fn votes(servers: &Servers) {
    let version = |port: &str| {
        let text = run(&format!("udebug 10.0.0.1 {port}"));
        for expected in [
            "Host's addresses are: 10.0.0.1",
            "I am sync site forever (1 server)",
            "Recovery state 1f",
            "0 locked pages, 0 of them for write",
        ] {
            assert!(
                text.lines().any(|line| line.trim_end() == expected),
                "no {expected:?}"
            );
        }
        assert!(text.contains("Last yes vote for 10.0.0.1 was 0 secs ago (sync site);"));
        let local = text
            .lines()
            .find_map(|line| line.strip_prefix("Local db version is "));
        let (_, counter) = local.unwrap().split_once('.').unwrap();
        counter.parse::<u64>().unwrap()
    };
    let before = [version("7003"), version("7002")];
    servers
        .vl
        .ask(ADMIN, volume("one.more", 700_000_000, &[], 0))
        .unwrap_err();
    let site = Site {
        server: HERE,
        partition: 0,
        flags: VLSF_RWVOL,
    };
    servers
        .vl
        .ask(
            ADMIN,
            volume("one.more", 700_000_000, &[site], VLF_RWEXISTS),
        )
        .unwrap();
    assert_eq!(version("7003"), before[0] + 1);
    assert_eq!(version("7002"), before[1]);
}
