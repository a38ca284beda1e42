//! Well-formed requests for impossible things: each gets the code that AFS has for it
//! (`answers.txt`).
//!
//! With `HOSTILE_PEER=ADDRESS` the test calls OpenAFS's servers there instead of a cell of its own.
//! `interop/run answers` does so, which verifies the table's codes of OpenAFS.

use std::sync::Arc;

use cellar_rpc::{Connection, IncomingCall, LocalBoxFuture, Runtime, Service};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::package::{Package, Procedure};
use cellar_wire::{rxafs, rxafscb};

use crate::hostile::cell::{Cell, TestedServer, code_of, mode, name, run, within};

pub(crate) mod table;

use table::{Case, Objects, cases};

/// The implementation whose codes are expected.
#[derive(Clone, Copy)]
enum Whose {
    Cellar = 0,
    OpenAfs = 1,
}

async fn make_objects(target: &TestedServer, client: &Runtime) -> Objects {
    let files = target.connect(client, 0, &rxafs::PACKAGE);
    let make_dir = async |dir_fid: Fid, title: String| {
        let call = rxafs::MakeDir {
            dir_fid,
            name: name(title),
            in_status: mode(0o755),
        };
        let made = within(files.call(&call)).await;
        made.expect("rlidwka in the root").fid
    };
    let create = async |dir_fid: Fid, title: &str| {
        let call = rxafs::CreateFile {
            dir_fid,
            name: name(title),
            in_status: mode(0o644),
        };
        files.call(&call).await.unwrap().fid
    };
    let root = target.root(client).await;
    let title = format!("hostile-{}-{}", std::process::id(), target.base);
    let dir = make_dir(root, title).await;
    let (file, sub) = (create(dir, "file").await, make_dir(dir, "sub".into()).await);
    create(sub, "inside").await;
    let link = rxafs::Symlink {
        dir_fid: dir,
        name: name("link"),
        link_contents: "target".try_into().unwrap(),
        in_status: mode(0o755),
    };
    let link = files.call(&link).await.unwrap().fid;
    Objects::from([("dir", dir), ("file", file), ("sub", sub), ("link", link)])
}

/// Makes all requests. Returns those whose code differs from the expected one.
async fn surprises(
    target: &TestedServer,
    client: &Runtime,
    cases: &[Case],
    whose: Whose,
) -> Vec<String> {
    let mut surprises = Vec::new();
    for case in cases {
        let connection: Connection = target.connect(client, case.offset, case.package);
        let request = case.request.bytes().to_vec();
        println!("{}", case.what);
        let code = code_of(&connection, case.package, request).await;
        let expected = case.codes[whose as usize];
        if code != expected {
            surprises.push(format!("{}: {code}, not {expected}", case.what));
        }
    }
    surprises
}

#[test]
fn impossible_requests_are_refused_with_their_codes() {
    match std::env::var("HOSTILE_PEER") {
        Ok(address) => run(openafs_answers(address.parse().expect("an address"))),
        Err(_) => run(cellar_answers()),
    }
}

async fn cellar_answers() {
    let mut cell = Cell::start();
    let client = Runtime::client_only().unwrap();
    let target = cell.target.clone();
    let objects = make_objects(&target, &client).await;
    // Every user may change this list, so that the code is about the list.
    let socket = cell.directory().join("admin.sock");
    let administrator = cellar_rpc::local::connect(&socket).await.unwrap();
    let everything = rxafs::StoreACL {
        fid: objects["dir"],
        access_list: "1\n0\nsystem:anyuser\t127\n\0".try_into().unwrap(),
    };
    administrator.call(&everything).await.unwrap();
    let cases = cases(&objects);
    assert!(cases.len() > 250, "{}", cases.len());
    let before = cell.statistics();
    let surprises = surprises(&target, &client, &cases, Whose::Cellar).await;
    assert!(surprises.is_empty(), "{surprises:#?}");
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
}

/// A cache manager with the fewest answers that a file server accepts.
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

/// Their volume `scratch` gives every user `rlidwka`.
async fn openafs_answers(address: std::net::IpAddr) {
    let peer = TestedServer {
        address,
        base: 7000,
        volume: "scratch".to_owned(),
    };
    let client = Runtime::client_only().unwrap();
    let port = client.client_port().unwrap();
    port.add_service(&(Arc::new(Callbacks) as Arc<dyn Service>));
    let cases = cases(&make_objects(&peer, &client).await);
    let surprises = surprises(&peer, &client, &cases, Whose::OpenAfs).await;
    assert!(surprises.is_empty(), "{surprises:#?}");
}
