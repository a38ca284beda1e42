//! The rights: every right with every operation, for two users, anonymous, an administrator and a
//! superuser; and the rules besides the rights.

use std::future::Future;
use std::pin::Pin;

use crate::common::{ALICE, Cell, Machine, OPEN, list, mode, name, quota, run, store};
use cellar_rpc::Connection;
use cellar_wire::Procedure;
use cellar_wire::acl::{AccessList, AclEntry, Rights};
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::rxafs::{self, AfsStoreStatus};

const BOB: i32 = 8;
const CAROL: i32 = 9;
const FRIENDS: i32 = -300;
const ADMINISTRATORS: i32 = -204;

/// The targets of the operations. All of them belong to another user.
#[derive(Clone, Copy)]
struct Objects {
    dir: Fid,
    file: Fid,
    link: Fid,
}

/// The code of a call, 0 if it succeeds.
async fn code<P: Procedure>(connection: &Connection, call: P) -> i32 {
    match connection.call(&call).await {
        Ok(_) => 0,
        Err(cause) => cause.code().0,
    }
}

type Outcome<'a> = Pin<Box<dyn Future<Output = i32> + 'a>>;

/// Tries an operation. The last argument makes new names.
type Attempt = for<'a> fn(&'a Connection, Objects, &'a str) -> Outcome<'a>;

struct Operation {
    title: &'static str,
    /// Any of these rights is enough.
    rights: &'static str,
    /// Members of `system:administrators` need no right for it.
    administrators: bool,
    attempt: Attempt,
}

const fn operation(
    title: &'static str,
    rights: &'static str,
    administrators: bool,
    attempt: Attempt,
) -> Operation {
    Operation {
        title,
        rights,
        administrators,
        attempt,
    }
}

fn set_mode(fid: Fid) -> rxafs::StoreStatus {
    let in_status = mode(0o666);
    rxafs::StoreStatus { fid, in_status }
}

fn set_lock(fid: Fid, lock_type: i32) -> rxafs::SetLock {
    rxafs::SetLock { fid, lock_type }
}

async fn fetch(connection: &Connection, fid: Fid) -> i32 {
    let call = rxafs::FetchData64 {
        fid,
        position: 0,
        length: 10,
    };
    let fetched = async {
        let mut call = connection.open(&call).await?;
        let length: u64 = call.read().await?;
        call.read_exact(length, |_| {}).await?;
        call.read::<rxafs::FetchData64Reply>().await
    };
    fetched.await.map_or_else(|cause| cause.code().0, |_| 0)
}

fn symlink(dir: Fid, title: &str, bits: u32) -> rxafs::Symlink {
    rxafs::Symlink {
        dir_fid: dir,
        name: name(title),
        link_contents: "#root.cell.".try_into().unwrap(),
        in_status: mode(bits),
    }
}

fn store_list(fid: Fid, text: &str) -> rxafs::StoreACL {
    let access_list = rxafs::AfsOpaque::try_from(text).unwrap();
    rxafs::StoreACL { fid, access_list }
}

const OPERATIONS: &[Operation] = &[
    operation("FetchStatus of a directory", "-rlidwka", true, |c, o, _| {
        Box::pin(code(c, rxafs::FetchStatus { fid: o.dir }))
    }),
    operation("FetchStatus of a file", "r", true, |c, o, _| {
        Box::pin(code(c, rxafs::FetchStatus { fid: o.file }))
    }),
    operation("FetchStatus of a link", "l", true, |c, o, _| {
        Box::pin(code(c, rxafs::FetchStatus { fid: o.link }))
    }),
    operation("FetchData of a directory", "l", true, |c, o, _| {
        Box::pin(fetch(c, o.dir))
    }),
    operation("FetchData of a file", "r", false, |c, o, _| {
        Box::pin(fetch(c, o.file))
    }),
    operation("FetchACL", "l", true, |c, o, _| {
        Box::pin(code(c, rxafs::FetchACL { fid: o.dir }))
    }),
    operation("StoreData", "w", false, |c, o, _| {
        Box::pin(async move {
            let stored = store(c, o.file, 0, b"x").await;
            stored.map_or_else(|cause| cause.code().0, |_| 0)
        })
    }),
    operation("StoreStatus of a file", "w", true, |c, o, _| {
        Box::pin(code(c, set_mode(o.file)))
    }),
    operation("StoreStatus of a directory", "id", true, |c, o, _| {
        Box::pin(code(c, set_mode(o.dir)))
    }),
    operation("SetLock read", "kw", false, |c, o, _| {
        Box::pin(async move {
            let outcome = code(c, set_lock(o.file, 0)).await;
            code(c, rxafs::ReleaseLock { fid: o.file }).await;
            outcome
        })
    }),
    operation("SetLock write", "w", false, |c, o, _| {
        Box::pin(async move {
            let outcome = code(c, set_lock(o.file, 1)).await;
            code(c, rxafs::ReleaseLock { fid: o.file }).await;
            outcome
        })
    }),
    operation("CreateFile", "i", false, |c, o, n| {
        let call = rxafs::CreateFile {
            dir_fid: o.dir,
            name: name(format!("file-{n}")),
            in_status: mode(0o644),
        };
        Box::pin(code(c, call))
    }),
    operation("MakeDir", "i", false, |c, o, n| {
        let call = rxafs::MakeDir {
            dir_fid: o.dir,
            name: name(format!("dir-{n}")),
            in_status: mode(0o755),
        };
        Box::pin(code(c, call))
    }),
    operation("Symlink", "i", false, |c, o, n| {
        Box::pin(code(c, symlink(o.dir, &format!("symlink-{n}"), 0o755)))
    }),
    operation("Link", "i", false, |c, o, n| {
        let call = rxafs::Link {
            dir_fid: o.dir,
            name: name(format!("link-{n}")),
            existing_fid: o.file,
        };
        Box::pin(code(c, call))
    }),
    operation("RemoveFile", "d", false, |c, o, n| {
        let call = rxafs::RemoveFile {
            dir_fid: o.dir,
            name: name(format!("victim-{n}")),
        };
        Box::pin(code(c, call))
    }),
    operation("RemoveDir", "d", false, |c, o, n| {
        let call = rxafs::RemoveDir {
            dir_fid: o.dir,
            name: name(format!("victims-{n}")),
        };
        Box::pin(code(c, call))
    }),
    operation("StoreACL", "a", true, |c, o, _| {
        Box::pin(code(c, store_list(o.dir, "1\n0\nsystem:anyuser\t0\n\0")))
    }),
];

/// Creates a directory of the superuser with everything that the operations need.
async fn objects(admin: &Connection, tags: &[String]) -> Objects {
    let make = |dir: Fid, title: String| rxafs::MakeDir {
        dir_fid: dir,
        name: name(title),
        in_status: mode(0o755),
    };
    let create = |dir: Fid, title: String| rxafs::CreateFile {
        dir_fid: dir,
        name: name(title),
        in_status: mode(0o666),
    };
    let dir = make(Fid::root(OPEN), "d".into());
    let dir = admin.call(&dir).await.unwrap().fid;
    for tag in tags {
        let victim = create(dir, format!("victim-{tag}"));
        admin.call(&victim).await.unwrap();
        let victims = make(dir, format!("victims-{tag}"));
        admin.call(&victims).await.unwrap();
    }
    let file = create(dir, "file".into());
    let link = symlink(dir, "link", 0o755);
    Objects {
        dir,
        file: admin.call(&file).await.unwrap().fid,
        link: admin.call(&link).await.unwrap().fid,
    }
}

#[test]
fn every_right_against_every_operation() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    cell.names.join(BOB, FRIENDS);
    cell.names.join(CAROL, ADMINISTRATORS);
    run(async {
        let admin = cell.admin().await;
        let letters: Vec<String> = "-rlidwka".chars().map(String::from).collect();
        // The callers get rights by a user entry, by a group, not at all, and, for the last two,
        // without any list.
        let callers = [
            ("alice", machine.user("alice")),
            ("bob", machine.user("bob")),
            ("anonymous", machine.connection.clone()),
            ("carol", machine.user("carol")),
            ("local administrator", admin.clone()),
        ];
        let tag = |letter: &str, caller: &str| format!("{letter}-{caller}");
        let tags: Vec<String> = letters
            .iter()
            .flat_map(|letter| callers.iter().map(move |(who, _)| tag(letter, who)))
            .collect();
        let objects = objects(&admin, &tags).await;
        let mut tried = 0;
        for letter in &letters {
            let granted = letter.trim_matches('-');
            for (who, connection) in &callers {
                for operation in OPERATIONS {
                    cell.set_list(objects.dir, list(&[(ALICE, granted), (FRIENDS, granted)]));
                    let allowed = match *who {
                        "alice" | "bob" => operation.rights.contains(letter.as_str()),
                        "anonymous" => operation.rights.contains('-'),
                        "carol" => operation.administrators,
                        _ => true,
                    };
                    let tag = tag(letter, who);
                    let code = (operation.attempt)(connection, objects, &tag).await;
                    let expected = if allowed { 0 } else { 13 };
                    let title = operation.title;
                    assert_eq!(code, expected, "{title} by {who} with '{granted}'");
                    tried += 1;
                }
            }
        }
        assert_eq!(tried, 8 * 5 * OPERATIONS.len());
    });
}

#[test]
fn negative_rights_take_away_what_anything_else_gives() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    cell.names.join(ALICE, FRIENDS);
    run(async {
        let root = Fid::root(OPEN);
        let entry = |id: i32, rights: &str| AclEntry {
            id: ViceId(id),
            rights: Rights::parse(rights).unwrap(),
        };
        let positive = vec![entry(-101, "rlidwk"), entry(ALICE, "rlidwka")];
        let negative = vec![entry(ALICE, "a"), entry(FRIENDS, "idw")];
        cell.set_list(root, AccessList::new(positive, negative).unwrap());
        let rights = async |who: &Connection| {
            let status = who.call(&rxafs::FetchStatus { fid: root }).await.unwrap();
            assert_eq!(status.status.anonymous_access.to_string(), "rlidwk");
            status.status.caller_access.to_string()
        };
        assert_eq!(rights(&machine.user("alice")).await, "rlk");
        assert_eq!(rights(&machine.user("bob")).await, "rlidwk");
        // Without a token alice is anonymous, as everywhere in AFS.
        assert_eq!(rights(&machine.connection).await, "rlidwk");
        // Without entry, a user is anonymous too: no authuser.
        cell.set_list(root, list(&[(-102, "l")]));
        assert_eq!(rights_of(&machine.user("stranger"), root).await, "");
        assert_eq!(rights_of(&machine.user("bob"), root).await, "l");
    });
}

async fn rights_of(who: &Connection, fid: Fid) -> String {
    let status = who.call(&rxafs::FetchStatus { fid }).await.unwrap();
    status.status.caller_access.to_string()
}

/// Insert without read: the collector sees the files that users put there. Their owners see them as
/// long as they own them.
#[test]
fn a_drop_box_takes_and_does_not_show() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        cell.set_list(root, list(&[(-101, "li"), (CAROL, "rlidwk")]));
        let (alice, bob) = (machine.user("alice"), machine.user("bob"));
        let carol = machine.user("carol");
        let new = |title: &str, bits| rxafs::CreateFile {
            dir_fid: root,
            name: name(title),
            in_status: mode(bits),
        };
        // Also a file that is read-only from the beginning.
        let file = alice.call(&new("of alice", 0o444)).await.unwrap().fid;
        store(&alice, file, 0, b"secret").await.unwrap();
        assert_eq!(fetch(&alice, file).await, 0, "her own");
        assert_eq!(code(&alice, set_mode(file)).await, 0, "finishing it");
        let give = AfsStoreStatus {
            owner: Some(ViceId(BOB)),
            ..AfsStoreStatus::default()
        };
        let give = rxafs::StoreStatus {
            fid: file,
            in_status: give,
        };
        assert_eq!(
            code(&alice, give).await,
            1,
            "only administrators change owners"
        );
        for other in [&bob, &machine.connection] {
            assert_eq!(fetch(other, file).await, 13);
            assert_eq!(code(other, rxafs::FetchStatus { fid: file }).await, 13);
            let stored = store(other, file, 0, b"x").await;
            assert_eq!(stored.unwrap_err().code().0, 13);
            assert_eq!(code(other, set_mode(file)).await, 13);
        }
        let remove = rxafs::RemoveFile {
            dir_fid: root,
            name: name("of alice"),
        };
        assert_eq!(
            code(&alice, remove.clone()).await,
            13,
            "what is in stays in"
        );
        assert_eq!(fetch(&carol, file).await, 0);
        // The anonymous user may finish a file that it created, and not read it, because every
        // unauthenticated user is anonymous.
        let anonymous = &machine.connection;
        let file = anonymous.call(&new("of nobody", 0o644)).await.unwrap().fid;
        store(anonymous, file, 0, b"secret").await.unwrap();
        assert_eq!(fetch(anonymous, file).await, 13);
        assert_eq!(code(&carol, remove).await, 0);
    });
}

#[test]
fn modes_and_owners() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    cell.names.join(CAROL, ADMINISTRATORS);
    run(async {
        let root = Fid::root(OPEN);
        cell.set_list(root, list(&[(-102, "rlidwk")]));
        let (alice, bob) = (machine.user("alice"), machine.user("bob"));
        let carol = machine.user("carol");
        let new = rxafs::CreateFile {
            dir_fid: root,
            name: name("f"),
            in_status: AfsStoreStatus {
                owner: Some(ViceId(BOB)),
                ..mode(0o6755)
            },
        };
        let made = alice.call(&new).await.unwrap();
        assert_eq!(made.status.owner.0, ALICE, "the creator is the owner");
        assert_eq!(made.status.unix_mode, 0o755, "without set-id bits");
        assert!(made.status.caller_access.contains(Rights::ADMINISTER));
        let fid = made.fid;
        let set = |in_status| rxafs::StoreStatus { fid, in_status };
        let status = async |who: &Connection| {
            let reply = who.call(&rxafs::FetchStatus { fid }).await.unwrap();
            reply.status
        };
        // The owner's bits restrict all callers except administrators; the owner can read
        // nevertheless.
        assert_eq!(code(&bob, set(mode(0o077))).await, 0);
        assert_eq!(fetch(&bob, fid).await, 13);
        assert_eq!(fetch(&alice, fid).await, 0);
        assert_eq!(fetch(&carol, fid).await, 0, "an administrator");
        let stored = store(&bob, fid, 0, b"x").await;
        assert_eq!(stored.unwrap_err().code().0, 13);
        assert!(
            store(&alice, fid, 0, b"x").await.is_ok(),
            "owner and insert"
        );
        // 0100 is enough to read, because an executable file must be fetched.
        assert_eq!(code(&bob, set(mode(0o100))).await, 0);
        assert_eq!(fetch(&bob, fid).await, 0);
        // Owners and groups and set-id bits are for administrators.
        let owner = |id| AfsStoreStatus {
            owner: Some(ViceId(id)),
            ..AfsStoreStatus::default()
        };
        let group = AfsStoreStatus {
            group: Some(ViceId(-300)),
            ..AfsStoreStatus::default()
        };
        for (who, in_status, expected) in [
            (&alice, owner(BOB), 1),
            (&alice, owner(ALICE), 0),
            (&bob, owner(BOB), 1),
            (&bob, group, 1),
            (&bob, mode(0o4755), 13),
            (&bob, mode(0o2755), 13),
            (&carol, owner(BOB), 0),
            (&carol, group, 0),
            (&carol, mode(0o6711), 0),
        ] {
            assert_eq!(code(who, set(in_status)).await, expected, "{in_status:?}");
        }
        let now = status(&bob).await;
        assert_eq!((now.owner.0, now.group.0), (BOB, -300));
        assert_eq!(now.unix_mode, 0o6711);
        assert!(
            now.caller_access.contains(Rights::ADMINISTER),
            "the present owner's"
        );
        assert!(
            !status(&alice)
                .await
                .caller_access
                .contains(Rights::ADMINISTER)
        );
        // A store by another user removes the set-id bits.
        store(&bob, fid, 0, b"x").await.unwrap();
        assert_eq!(status(&bob).await.unix_mode, 0o711);
        // The owner's `a` on a file is no right to the directory's list.
        assert_eq!(code(&bob, store_list(root, "0\n0\n\0")).await, 13);
    });
}

/// The owner of the root directory owns the volume. It may look up and change every list in it, and
/// so can get all other rights.
#[test]
fn the_owner_of_a_volume_administers_it() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let admin = cell.admin().await;
        let alice = machine.user("alice");
        cell.set_list(root, list(&[(ADMINISTRATORS, "rlidwka")]));
        let list_of_alice = store_list(root, "1\n0\nalice\t127\n\0");
        assert_eq!(code(&alice, list_of_alice.clone()).await, 13);
        let give = rxafs::StoreStatus {
            fid: root,
            in_status: AfsStoreStatus {
                owner: Some(ViceId(ALICE)),
                ..AfsStoreStatus::default()
            },
        };
        admin.call(&give).await.unwrap();
        assert_eq!(fetch(&alice, root).await, 0);
        assert_eq!(code(&alice, rxafs::FetchACL { fid: root }).await, 0);
        assert_eq!(rights_of(&alice, root).await, "", "no right by itself");
        assert_eq!(code(&alice, list_of_alice).await, 0);
        assert_eq!(rights_of(&alice, root).await, "rlidwka");
        let bob = machine.user("bob");
        assert_eq!(fetch(&bob, root).await, 13);
        // A group can be the owner like a user.
        let give = rxafs::StoreStatus {
            in_status: AfsStoreStatus {
                owner: Some(ViceId(FRIENDS)),
                ..AfsStoreStatus::default()
            },
            ..give
        };
        admin.call(&give).await.unwrap();
        cell.names.join(BOB, FRIENDS);
        assert_eq!(fetch(&bob, root).await, 0);
        // The owner may not change the quota.
        assert_eq!(code(&alice, quota(10)).await, 13);
        cell.names.join(ALICE, ADMINISTRATORS);
        assert_eq!(code(&alice, quota(10)).await, 0);
    });
}
