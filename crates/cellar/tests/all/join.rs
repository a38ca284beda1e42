//! One more file server of a cell. It joins with the cell's key, calls the databases over the
//! network, and serves volumes like the first.

use crate::common::{Cell, SECOND, run};

#[test]
fn a_file_server_joins_serves_and_comes_back() {
    let cell = Cell::new();
    let mut second = cell.join();
    // An administrator there needs only its directory, since it contains the key.
    second.ok("vos create 127.0.0.2 a far");
    second.ok("fs setacl far system:anyuser rlidwk");
    let list = cell.json("vos listvldb -server 127.0.0.2 -json");
    assert_eq!(list["entries"][0]["name"], "far");
    assert!(second.ok("bos status 127.0.0.2").contains("fs"));
    let file = cell.local("file");
    std::fs::write(&file, "over there").expect("file");
    let file = file.to_str().expect("path");
    cell.ok("fs mkmount /afs/test.cell/scratch/far far");
    cell.ok(&format!("cp {file} /afs/test.cell/scratch/far/file"));
    assert_eq!(cell.ok("cat /afs/test.cell/scratch/far/file"), "over there");
    // Rights from the first server's protection database: groups, and names in lists.
    cell.ok("pts creategroup friends");
    second.ok("fs setacl far friends rl");
    assert!(cell.ok("fs listacl far").contains("friends rl"));
    assert_eq!(second.end("-INT"), Some(0));
    cell.fails("cat /afs/test.cell/scratch/far/file");
    second.start();
    assert_eq!(cell.ok("cat /afs/test.cell/scratch/far/file"), "over there");
    let count = cell.ok("vos listaddrs -noresolve").matches(SECOND).count();
    assert_eq!(count, 1, "it registered as the same server");
}

#[test]
fn a_refused_join_says_why() {
    let cell = Cell::new();
    let directory = cell.local("other");
    let directory = directory.to_str().expect("path");
    let join = |from: &str, more: &[&str]| {
        let line = ["up", "--dir", directory, "--bind", SECOND, "--join", from];
        run(None, line.iter().chain(more)).failure("up --join")
    };
    assert!(join("/nonexistent", &[]).contains("ThisCell"));
    // Without a key no server of the cell would accept its calls.
    let etc = cell.local("etc");
    std::fs::create_dir(&etc).expect("directory");
    for name in ["ThisCell", "CellServDB"] {
        let from = cell.directory().join("server-etc").join(name);
        std::fs::copy(from, etc.join(name)).expect("copy");
    }
    let etc = etc.to_str().expect("path");
    assert!(join(etc, &[]).contains("KeyFileExt"));
    assert!(join(etc, &["--cell", "other.cell"]).contains("other.cell"));
    let etc = cell.directory().join("server-etc");
    let own = run(
        Some(&cell.directory()),
        ["up", "--join", etc.to_str().expect("path")],
    );
    // The running server has locked the directory. A stopped one is a whole cell, which cannot
    // join.
    own.failure("up --join");
}
