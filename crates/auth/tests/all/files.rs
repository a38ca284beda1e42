//! The files of a server's configuration directory, changed by us, by others, and by mistake; the
//! audit log.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use cellar_auth::audit::{Audit, Record};
use cellar_auth::{Authority, Enctype, Error, Identity, KeyInfo, Level, Principal, SecretKey};
use cellar_rx::Caller;
use cellar_wire::AfsTime;

const CELL: &str = "demo.cell";

fn open(directory: &Path) -> Authority {
    Authority::open(directory, CELL).unwrap()
}

fn info(kvno: u32, enctype: Enctype) -> KeyInfo {
    KeyInfo { kvno, enctype }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_directory_without_files_has_no_keys_and_no_superusers() {
    let directory = tempfile::tempdir().unwrap();
    let authority = open(directory.path());
    assert!(authority.keys().list().is_empty());
    assert!(authority.superusers().list().is_empty());
    let refused = authority.localauth(Level::Crypt);
    assert!(matches!(refused, Err(Error::NoKey)));
    assert_eq!(authority.keys().retire(1).unwrap(), 0);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn keys_are_added_seen_by_others_and_retired() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, other) = (open(directory.path()), open(directory.path()));
    let first = ours.keys().add_random(Enctype::Aes256Sha1).unwrap();
    assert_eq!(first, info(1, Enctype::Aes256Sha1));
    assert_eq!(mode(&directory.path().join("KeyFileExt")), 0o600);
    assert_eq!(other.keys().list(), [first], "without opening again");
    let key = SecretKey::new(Enctype::Aes128Sha256, &[7; 16]).unwrap();
    assert!(other.keys().add(1, &key).unwrap());
    assert!(!ours.keys().add(1, &key).unwrap(), "the same once more");
    let changed = SecretKey::new(Enctype::Aes128Sha256, &[8; 16]).unwrap();
    let refused = ours.keys().add(1, &changed);
    assert!(matches!(refused, Err(Error::KeyExists { kvno: 1, .. })));
    ours.keys().add_random(Enctype::Aes128Sha1).unwrap();
    let newest = other.keys().newest().unwrap();
    assert_eq!(newest.0, info(2, Enctype::Aes128Sha1));
    assert_eq!(other.keys().find(1, 19), Some(key));
    assert_eq!(other.keys().find(2, 19), None);
    assert_eq!(ours.keys().retire(1).unwrap(), 2);
    assert_eq!(other.keys().list(), [info(2, Enctype::Aes128Sha1)]);
}

#[test]
fn among_keys_of_one_version_localauth_takes_what_openafs_takes() {
    let directory = tempfile::tempdir().unwrap();
    let authority = open(directory.path());
    for enctype in [Enctype::Arcfour, Enctype::Aes256Sha384, Enctype::Aes128Sha1] {
        authority
            .keys()
            .add(3, &SecretKey::random(enctype))
            .unwrap();
    }
    let newest = authority.keys().newest().unwrap().0;
    assert_eq!(newest, info(3, Enctype::Aes128Sha1));
}

#[test]
fn keytabs_are_exported_and_imported() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, cell) = (open(from.path()), open(to.path()));
    for enctype in Enctype::ALL {
        from.keys().add_random(enctype).unwrap();
    }
    let keytab = to.path().join("some.keytab");
    let count = from
        .keys()
        .export_keytab(&keytab, "afs/demo.cell@DEMO.CELL")
        .unwrap();
    assert_eq!((count, mode(&keytab)), (5, 0o600));
    let keys = cell.keys();
    let other = keys.import_keytab(&keytab, None, "other.cell");
    assert!(matches!(other, Err(Error::NoKey)));
    let other = keys.import_keytab(&keytab, Some("afs@DEMO.CELL"), CELL);
    assert!(matches!(other, Err(Error::NoKey)));
    let added = keys.import_keytab(&keytab, None, CELL).unwrap();
    assert_eq!(added, from.keys().list());
    assert_eq!(keys.list(), from.keys().list());
    let again = keys.import_keytab(&keytab, Some("afs/demo.cell@DEMO.CELL"), CELL);
    assert!(again.unwrap().is_empty());
    assert_eq!(keys.find(5, 23), from.keys().find(5, 23));
    let refused = keys.export_keytab(&keytab, "norealm");
    assert!(matches!(refused, Err(Error::Name(_))));
}

#[test]
fn a_keytab_beside_the_key_file_counts() {
    let directory = tempfile::tempdir().unwrap();
    let source = tempfile::tempdir().unwrap();
    let source = open(source.path());
    source.keys().add_random(Enctype::Aes256Sha1).unwrap();
    let path = directory.path().join("rxkad.keytab");
    let authority = open(directory.path());
    source
        .keys()
        .export_keytab(&path, "afs/demo.cell@DEMO")
        .unwrap();
    assert_eq!(authority.keys().list(), source.keys().list());
    assert_eq!(
        authority
            .keys()
            .add_random(Enctype::Aes256Sha1)
            .unwrap()
            .kvno,
        2
    );
    assert_eq!(authority.keys().retire(1).unwrap(), 1);
    assert_eq!(authority.keys().list(), [info(2, Enctype::Aes256Sha1)]);
    let exported = directory.path().join("copy");
    assert_eq!(authority.keys().export_key_file_ext(&exported).unwrap(), 1);
    let original = fs::read(directory.path().join("KeyFileExt")).unwrap();
    assert_eq!(fs::read(exported).unwrap(), original);
}

#[test]
fn keys_of_other_kinds_are_kept_and_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("KeyFileExt");
    // One of type 1 (rxgk), one of single DES.
    let mut bytes = 2u32.to_be_bytes().to_vec();
    for (kind, subtype, length) in [(1u32, 18u32, 32u32), (2, 3, 8)] {
        for word in [16, kind, 9, subtype, length] {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        bytes.extend(std::iter::repeat_n(kind as u8, length as usize));
    }
    fs::write(&path, &bytes).unwrap();
    let authority = open(directory.path());
    assert!(authority.keys().list().is_empty());
    authority.keys().add_random(Enctype::Aes256Sha1).unwrap();
    let changed = fs::read(&path).unwrap();
    assert_eq!(changed[4..bytes.len()], bytes[4..], "both are still there");
    assert_eq!(authority.keys().list().len(), 1);
}

#[test]
fn a_damaged_file_keeps_what_it_said() {
    let directory = tempfile::tempdir().unwrap();
    let authority = open(directory.path());
    authority.keys().add_random(Enctype::Aes256Sha1).unwrap();
    let path = directory.path().join("KeyFileExt");
    let good = fs::read(&path).unwrap();
    fs::write(&path, b"oops").unwrap();
    assert_eq!(authority.keys().list().len(), 1);
    let refused = authority.keys().add_random(Enctype::Aes256Sha1);
    assert!(matches!(refused, Err(Error::Malformed { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"oops", "nothing was overwritten");
    assert!(Authority::open(directory.path(), CELL).is_err());
    fs::write(&path, &good).unwrap();
    authority.keys().add_random(Enctype::Aes256Sha1).unwrap();
    assert_eq!(authority.keys().list().len(), 2);
}

fn user(name: &str, instance: &str, cell: Option<&str>) -> Principal {
    Principal {
        name: name.to_owned(),
        instance: instance.to_owned(),
        cell: cell.map(str::to_owned),
        kvno: 1,
        level: Level::Crypt,
        expires: AfsTime(u32::MAX),
        key_holder: false,
    }
}

#[test]
fn the_user_list_is_openafs_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("UserList");
    fs::write(
        &path,
        "alice\n 2 YWxpY2U= carol\nbob.admin\ndave@Other.Cell\neve@demo.cell\n",
    )
    .unwrap();
    let authority = open(directory.path());
    let superusers = authority.superusers();
    assert_eq!(
        superusers.list(),
        ["alice", "bob.admin", "dave@Other.Cell", "eve@demo.cell"]
    );
    let is = |name: &str, instance: &str, cell: Option<&str>| {
        let caller = Caller::Principal(Arc::new(user(name, instance, cell)));
        authority.identify(&caller).is_superuser()
    };
    assert!(is("alice", "", None));
    assert!(is("bob", "admin", None));
    assert!(is("dave", "", Some("other.cell")));
    assert!(is("eve", "", None));
    assert!(!is("alice", "", Some("other.cell")));
    assert!(!is("alice", "admin", None));
    assert!(!is("Alice", "", None));
    assert!(!is("bob", "", None));
    assert!(!is("dave", "", None));
    assert!(!is("carol", "", None));
    assert!(
        !is("afs", "", None),
        "only the ticket's empty realm makes a holder of the key"
    );

    let inode = fs::metadata(&path).unwrap().ino();
    assert!(superusers.add("frank").unwrap());
    assert!(!superusers.add("frank").unwrap());
    assert_ne!(
        fs::metadata(&path).unwrap().ino(),
        inode,
        "replaced as a whole"
    );
    assert!(is("frank", "", None));
    assert!(superusers.remove("alice").unwrap());
    assert!(!superusers.remove("alice").unwrap());
    assert!(!is("alice", "", None));
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(
        text,
        " 2 YWxpY2U= carol\nbob.admin\ndave@Other.Cell\neve@demo.cell\nfrank\n"
    );
    for bad in ["", "two words", "line\nbreak", &"x".repeat(64)] {
        assert!(
            matches!(superusers.add(bad), Err(Error::Name(_))),
            "{bad:?}"
        );
    }
}

#[test]
fn names_in_the_protection_database() {
    assert_eq!(user("Alice", "", None).vice_name(), "alice");
    assert_eq!(user("alice", "Admin", None).vice_name(), "alice.admin");
    let foreign = user("alice", "", Some("OTHER.CELL"));
    assert_eq!(foreign.vice_name(), "alice@other.cell");
}

#[test]
fn a_principal_excluded_from_our_realm_is_always_excluded() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("krb.conf"), "AD.EXAMPLE.ORG\n").unwrap();
    let excluded = "root@AD.EXAMPLE.ORG\nAlice.admin@AD.EXAMPLE.ORG\n";
    fs::write(directory.path().join("krb.excl"), excluded).unwrap();
    let authority = open(directory.path());
    for name in ["root", "Root", "ROOT", "alice.admin", "Alice.Admin"] {
        for realm in ["AD.EXAMPLE.ORG", "ad.example.org"] {
            assert!(!authority.is_ours(name, realm), "{name}@{realm}");
        }
    }
    for name in ["roots", "root.admin", "alice"] {
        assert!(authority.is_ours(name, "ad.example.org"), "{name}");
    }
}

fn record(n: u32) -> Record {
    let who = Identity::User(Arc::new(user("alice", "", None)));
    let peer = Some("192.0.2.1:7001".parse().unwrap());
    let code = if n.is_multiple_of(2) { 0 } else { 267_269 };
    Record::new(AfsTime(1_800_000_000), "PR_NewEntry", &who, peer, code).with("n", n)
}

#[test]
fn acts_are_written_as_json_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let audit = Audit::open(&path).unwrap();
    for n in 0..3000 {
        audit.record(record(n));
    }
    let lost = audit.lost();
    drop(audit);
    assert_eq!(mode(&path), 0o600);
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count() as u64 + lost, 3000);
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(
        first,
        serde_json::json!({
            "time": "2027-01-15T08:00:00Z", "act": "PR_NewEntry", "who": "alice",
            "peer": "192.0.2.1:7001", "allowed": true, "code": 0, "details": {"n": 0},
        })
    );
    let second: serde_json::Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        (&second["allowed"], &second["code"]),
        (&false.into(), &267_269.into())
    );
}

#[test]
fn a_renamed_audit_log_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let old = directory.path().join("audit.log.1");
    {
        let audit = Audit::open(&path).unwrap();
        audit.record(record(0));
    }
    let audit = Audit::open(&path).unwrap();
    fs::rename(&path, &old).unwrap();
    audit.record(record(1));
    drop(audit);
    assert_eq!(fs::read_to_string(&old).unwrap().lines().count(), 1);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn records_that_cannot_be_written_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let precious = directory.path().join("precious");
    fs::write(&precious, "kept").unwrap();
    let audit = Audit::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&precious, &path).unwrap();
    audit.record(record(0));
    let begin = std::time::Instant::now();
    while audit.lost() == 0 && begin.elapsed().as_secs() < 10 {
        std::thread::yield_now();
    }
    assert_eq!(audit.lost(), 1);
    drop(audit);
    assert_eq!(
        fs::read(&precious).unwrap(),
        b"kept",
        "no log behind a link"
    );
    assert!(Audit::open(&path).is_err());
    let none = Audit::none();
    none.record(record(0));
    assert_eq!(none.lost(), 0);
}
