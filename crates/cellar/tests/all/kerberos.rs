//! Users of a cell with a real KDC: MIT's, created for the test in a directory of its own
//! (`interop/kdc/kdc`). Without Debian's krb5-kdc, krb5-admin-server and krb5-user the tests print
//! a message and do nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Answer, Cell};

/// A realm with admin, alice and bob, whose KDC runs until it is dropped.
struct Realm {
    home: tempfile::TempDir,
}

fn kdc_program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/kdc/kdc")
}

impl Realm {
    /// Returns `None` if MIT's programs are not installed.
    fn new(cell: &str) -> Option<Self> {
        let there = |program: &&str| {
            ["/usr/sbin", "/usr/bin"]
                .iter()
                .any(|place| Path::new(place).join(program).exists())
        };
        if let Some(missing) = ["krb5kdc", "kadmin.local", "kinit", "kvno"]
            .iter()
            .find(|p| !there(p))
        {
            eprintln!("skipped: no {missing} (Debian: krb5-kdc, krb5-admin-server, krb5-user)");
            return None;
        }
        let realm = Self {
            home: tempfile::tempdir().expect("a temporary directory"),
        };
        realm.kdc("up", &["--cell", cell]);
        Some(realm)
    }

    fn kdc(&self, verb: &str, more: &[&str]) {
        let mut command = Command::new(kdc_program());
        // It must not inherit our descriptors; otherwise the wait for it would be a wait for the
        // KDC.
        command.arg(verb).arg("--dir").arg(self.file("")).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        assert!(
            command.status().expect("the KDC's script runs").success(),
            "kdc {verb}"
        );
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join("kdc").join(name)
    }

    fn keytab(&self, name: &str) -> String {
        self.file(&format!("{name}.keytab")).display().to_string()
    }

    /// A user of this realm with a credential cache of its own.
    fn user<'a>(&'a self, cell: &'a Cell, name: &str) -> User<'a> {
        User {
            realm: self,
            cell,
            name: name.to_owned(),
            cache: format!("FILE:{}", self.file(&format!("cc-{name}")).display()),
        }
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        self.kdc("down", &[]);
    }
}

struct User<'a> {
    realm: &'a Realm,
    cell: &'a Cell,
    name: String,
    /// The name of the user's credential cache.
    cache: String,
}

impl User<'_> {
    /// Runs a program as the user.
    fn command_line(&self, program: &str, words: &[&str]) -> Answer {
        let mut command = Command::new(program);
        command
            .args(words)
            .env("KRB5_CONFIG", self.realm.file("krb5.conf"))
            .env("KRB5CCNAME", &self.cache)
            .env("CELLAR_CELLSERVDB", "/nonexistent")
            .env("CELLAR_DIR", self.cell.directory())
            .stdin(Stdio::null());
        Answer::of(command)
    }

    fn run(&self, line: &str) -> Answer {
        let words: Vec<_> = line.split_whitespace().collect();
        self.command_line(env!("CARGO_BIN_EXE_cellar"), &words)
    }

    fn ok(&self, line: &str) -> String {
        self.run(line).ok(&format!("{line} (as {})", self.name))
    }

    fn fails(&self, line: &str) -> String {
        self.run(line)
            .failure(&format!("{line} (as {})", self.name))
    }

    fn log_in(&self) -> String {
        self.ok(&format!(
            "login --cell test.cell --keytab {}",
            self.realm.keytab(&self.name)
        ))
    }
}

/// A cell that has the realm's key and the realm's users; admin is its superuser.
fn cell_of(realm: &Realm) -> Cell {
    let cell = Cell::new();
    cell.ok(&format!("key import-keytab {}", realm.keytab("afs")));
    for (name, id) in [("admin", 1), ("alice", 101), ("bob", 102)] {
        cell.ok(&format!("pts createuser {name} {id}"));
    }
    cell.ok("pts adduser admin system:administrators");
    cell.ok("bos adduser 127.0.0.1 admin");
    cell.ok("fs setacl scratch system:anyuser none");
    cell.ok("fs setacl scratch alice rlidwk");
    cell.ok("fs setacl scratch bob rl");
    cell
}

#[test]
fn users_do_what_access_lists_give_them() {
    let Some(realm) = Realm::new("test.cell") else {
        return;
    };
    let cell = cell_of(&realm);
    let (alice, bob) = (realm.user(&cell, "alice"), realm.user(&cell, "bob"));
    let hello = cell.local("hello");
    std::fs::write(&hello, "hello").expect("write");
    let store = format!("cp {} /afs/test.cell/scratch/hello", hello.display());

    // Without a token every user is system:anyuser.
    assert!(alice.fails(&store).contains("permission denied"));
    assert!(alice.ok("tokens").contains("No tokens"));
    assert!(
        alice
            .log_in()
            .contains("alice@TEST.CELL has a token for cell test.cell")
    );
    let tokens = alice.ok("tokens");
    assert!(
        tokens.contains("(key version 1, aes256-cts-hmac-sha1-96)"),
        "{tokens}"
    );
    for level in ["", " --encrypt"] {
        alice.ok(&format!("{store}{level}"));
        assert_eq!(
            alice.ok(&format!("cat /afs/test.cell/scratch/hello{level}")),
            "hello"
        );
    }
    assert!(alice.ok("ls -l /afs/test.cell/scratch").contains(" alice "));
    assert!(
        alice
            .fails(&format!("{store} --noauth"))
            .contains("permission denied")
    );

    bob.log_in();
    assert_eq!(bob.ok("cat /afs/test.cell/scratch/hello"), "hello");
    assert_eq!(bob.run("login").err, "");
    assert!(bob.fails(&store).contains("permission denied"));

    // A token without an entry in the protection database gives no rights, and a message says so.
    cell.ok("pts delete bob");
    assert!(
        bob.run("login")
            .err
            .contains("cell test.cell has no user bob")
    );

    // Tokens are discarded in their cache; the Kerberos ticket stays.
    alice.ok("logout --cell test.cell");
    assert!(
        alice
            .fails("cat /afs/test.cell/scratch/hello")
            .contains("permission denied")
    );
    assert!(alice.fails("logout --cell test.cell").contains("no token"));
    alice.ok("login --cell test.cell");
    alice.ok("cat /afs/test.cell/scratch/hello");
    alice.ok("logout --all");
    assert!(!realm.file("cc-alice").exists());
}

#[test]
fn caches_of_other_kinds_hold_tokens_too() {
    let Some(realm) = Realm::new("test.cell") else {
        return;
    };
    let cell = cell_of(&realm);
    let directory = realm.file("caches");
    std::fs::create_dir(&directory).expect("mkdir");
    let kinds = [
        format!("DIR:{}", directory.display()),
        format!("KEYRING:user:cellar-test-{}", std::process::id()),
    ];
    for cache in kinds {
        let mut alice = realm.user(&cell, "alice");
        alice.cache = cache.clone();
        let login = format!("login --cell test.cell --keytab {}", realm.keytab("alice"));
        let answer = alice.run(&login);
        if answer.status != 0 && cache.starts_with("KEYRING") {
            eprintln!("skipped: no keyrings here: {}", answer.err);
            continue;
        }
        answer.ok(&login);
        assert!(
            alice
                .ok("tokens")
                .contains("alice@TEST.CELL in cell test.cell")
        );
        alice.ok("ls /afs/test.cell/scratch");
        let answer = alice.run("logout");
        if cache.starts_with("DIR") {
            answer.ok("logout");
        } else {
            // Single tickets cannot be removed from this kind of cache, and a message says so.
            assert!(answer.failure("logout").contains("logout --all"));
            alice.ok("logout --all");
        }
        let said = alice.fails("ls /afs/test.cell/scratch");
        assert!(said.contains("permission denied"), "{cache}: {said}");
        alice.ok("logout --all");
    }
}

#[test]
fn administrators_are_who_the_superusers_name_or_hold_the_key() {
    let Some(realm) = Realm::new("test.cell") else {
        return;
    };
    let cell = cell_of(&realm);
    let (admin, alice) = (realm.user(&cell, "admin"), realm.user(&cell, "alice"));
    admin.log_in();
    alice.log_in();
    // -auth: with the token, although the administrator's socket could be used.
    admin.ok("pts createuser carol 103 -auth");
    admin.ok("vos create 127.0.0.1 a made -auth");
    for refused in [
        "pts createuser dave 104 -auth",
        "vos create 127.0.0.1 a other -auth",
        "bos adduser 127.0.0.1 alice -auth",
    ] {
        let said = alice.fails(refused);
        assert!(said.contains("administrator"), "{refused}: {said}");
    }
    assert!(
        alice
            .fails("pts createuser dave 104 -noauth")
            .contains("administrator")
    );
    // A user who can read the key is an administrator, without a KDC.
    alice.ok("pts createuser erin 105 -localauth");
    alice.ok("vos remove 127.0.0.1 a made -localauth");
    alice.ok("fs setacl scratch alice all -localauth");
    let elsewhere = alice.fails("pts examine alice -localauth --dir /nonexistent");
    assert!(elsewhere.contains("holds no cell"), "{elsewhere}");
}

#[test]
fn a_cell_changes_its_key_without_a_pause() {
    let Some(realm) = Realm::new("test.cell") else {
        return;
    };
    let mut cell = cell_of(&realm);
    // The keys survive a restart.
    assert_eq!(cell.end("-TERM"), Some(0));
    cell.start();
    let alice = realm.user(&cell, "alice");
    alice.log_in();
    alice.ok("ls /afs/test.cell/scratch");

    realm.kdc("rekey", &[]);
    let bob = realm.user(&cell, "bob");
    bob.log_in();
    let said = bob.fails("ls /afs/test.cell/scratch");
    assert!(
        said.contains("does not have the key") && said.contains("cellar tokens"),
        "{said}"
    );
    // The new key is added while the server runs: both tickets are valid.
    let added = cell.ok(&format!("key import-keytab {}", realm.keytab("afs")));
    assert!(
        added.contains("Key version 2, aes256-cts-hmac-sha1-96"),
        "{added}"
    );
    assert!(!added.contains("version 1"), "{added}");
    for user in [&alice, &bob] {
        user.ok("ls /afs/test.cell/scratch");
    }
    let list = cell.json("key list --json");
    let versions: Vec<_> = list
        .as_array()
        .expect("list")
        .iter()
        .map(|key| key["kvno"].as_u64())
        .collect();
    assert_eq!(versions, [0, 1, 1, 2, 2].map(Some));

    // The first key of the cell can be retired like any other.
    cell.ok("key retire 0");
    cell.ok("key retire 1");
    bob.ok("ls /afs/test.cell/scratch");
    assert!(
        alice
            .fails("ls /afs/test.cell/scratch")
            .contains("does not have the key")
    );
    assert!(cell.fails("key retire 1").contains("no key of version 1"));
    assert!(cell.fails("key retire 2").contains("this is the last key"));

    // Export and import, through files that only their owner can read.
    let copy = cell.local("copy.keytab");
    cell.ok(&format!(
        "key export {} --keytab-principal afs/test.cell@TEST.CELL",
        copy.display()
    ));
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(&copy)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    cell.ok("key retire 2 --last");
    assert!(
        bob.fails("ls /afs/test.cell/scratch")
            .contains("does not have the key")
    );
    cell.ok(&format!("key import-keytab {}", copy.display()));
    bob.ok("ls /afs/test.cell/scratch");
    assert!(cell.ok("key random").contains("Key version 3"));
}

#[test]
fn tokens_run_out_and_are_kept_fresh() {
    let Some(realm) = Realm::new("test.cell") else {
        return;
    };
    let cell = cell_of(&realm);
    let alice = realm.user(&cell, "alice");
    let keytab = realm.keytab("alice");
    let program = env!("CARGO_BIN_EXE_cellar");
    // Stores a file in `pieces`, with three seconds between them.
    let slowly = |pieces: &str| {
        format!(
            "(for i in {pieces}; do head -c 9000000 /dev/zero; sleep 3; done) | \
             {program} cp - /afs/test.cell/scratch/slow"
        )
    };
    // Long enough for a busy machine to start the command and to renew the ticket.
    alice.ok(&format!("login --cell test.cell --keytab {keytab} -l 10s"));
    alice.ok("ls /afs/test.cell/scratch");
    let cut = alice.command_line("sh", &["-c", &slowly("1 2 3 4 5")]);
    assert_ne!(cut.status, 0);
    assert!(cut.err.contains("your token has expired"), "{}", cut.err);
    assert!(alice.ok("tokens").contains("expired"));
    assert!(
        alice
            .fails("ls /afs/test.cell/scratch")
            .contains("permission denied")
    );

    // A job that runs longer than its tickets: 18 s, with tickets of 15 s.
    let job = format!(
        "for i in 1 2 3 4 5 6; do {program} ls /afs/test.cell/scratch || exit 9; sleep 3; done; exit 7"
    );
    let started = Instant::now();
    let keep = |life: &str, job: &str| {
        let login = [
            "login",
            "--cell",
            "test.cell",
            "--keytab",
            &keytab,
            "-l",
            life,
        ];
        let more = ["--keep", "--", "sh", "-c", job];
        alice.command_line(program, &[&login[..], &more[..]].concat())
    };
    let kept = keep("15s", &job);
    assert_eq!(kept.status, 7, "{}", kept.err);
    assert!(started.elapsed() > Duration::from_secs(17));

    // One command that outlives its token, while another program renews the tickets in the cache.
    let kept = keep("12s", &slowly("1 2 3 4 5"));
    assert_eq!(kept.status, 0, "{}", kept.err);
    let long = realm.user(&cell, "bob");
    long.log_in();
    let stat = long.ok("ls -l /afs/test.cell/scratch/slow");
    assert!(stat.contains(" 45000000 "), "{stat}");
}

#[test]
fn a_user_of_another_realm_can_register_if_the_cell_permits() {
    let Some(realm) = Realm::new("test.cell") else {
        return;
    };
    let Some(other) = Realm::new("other.cell") else {
        return;
    };
    realm.kdc("trust", &["--with", &other.file("").display().to_string()]);
    let cell = cell_of(&realm);
    let stranger = other.user(&cell, "alice");
    let login = format!("login --cell test.cell --keytab {}", other.keytab("alice"));
    // The cell has no group for that realm: the user has a token and no rights.
    let answer = stranger.run(&login);
    assert_eq!(answer.status, 0, "{}", answer.err);
    assert!(
        answer.err.contains("has no user alice@other.cell"),
        "{}",
        answer.err
    );
    cell.ok("pts creategroup system:authuser@other.cell");
    cell.ok("pts setfields system:authuser@other.cell -groupquota 10");
    let answer = stranger.run(&login);
    assert!(
        answer.err.contains("has entered you as alice@other.cell"),
        "{}",
        answer.err
    );
    cell.ok("fs setacl scratch system:authuser@other.cell rl");
    stranger.ok("ls /afs/test.cell/scratch");
    // The user is not the cell's own alice.
    let file = cell.local("f");
    std::fs::write(&file, "x").expect("write");
    let store = format!("cp {} /afs/test.cell/scratch/f", file.display());
    assert!(stranger.fails(&store).contains("permission denied"));
    // The second time the user is known.
    assert_eq!(stranger.run(&login).err, "");
}

#[test]
fn check_compares_the_clock_of_the_kdc() {
    let Some(realm) = Realm::new("test.cell") else {
        return;
    };
    let cell = cell_of(&realm);
    let answer = realm.user(&cell, "alice").run("check --json --no-dns");
    let found: serde_json::Value = serde_json::from_str(&answer.out).expect(&answer.err);
    let findings = found["findings"].as_array().expect("findings").iter();
    let text = |finding: &serde_json::Value| finding["text"].as_str().map(str::to_owned);
    let clock = findings
        .filter(|finding| finding["check"] == "clock")
        .filter_map(text)
        .find(|text| text.contains("the KDC"));
    let clock = clock.unwrap_or_else(|| panic!("{found:#}"));
    assert!(clock.contains("agrees with this machine's"), "{clock}");
}

#[test]
fn a_login_by_a_name_that_servers_refuse_says_so() {
    let Some(realm) = Realm::new("test.cell") else {
        return;
    };
    let cell = cell_of(&realm);
    let keytab = realm.keytab("ann.b");
    realm.kdc("admin", &["--", "addprinc", "-pw", "ann-password", "ann.b"]);
    realm.kdc(
        "admin",
        &["--", "ktadd", "-norandkey", "-k", &keytab, "ann.b"],
    );
    cell.ok("pts createuser ann.b");
    let answer = realm
        .user(&cell, "ann.b")
        .run(&format!("login --cell test.cell --keytab {keytab}"));
    let said =
        "the servers of cell test.cell refuse ann.b@TEST.CELL: servers refuse names with a dot";
    assert!(
        answer.err.contains(said),
        "{} {}",
        answer.status,
        answer.err
    );
    // Names without a dot do not get that message.
    let alice = realm.user(&cell, "alice");
    alice.log_in();
    assert!(!alice.run("login").err.contains("refuse"));
}

#[test]
fn a_link_named_aklog_has_the_effects_and_statuses_of_the_original() {
    let Some(realm) = Realm::new("test.cell") else {
        return;
    };
    let cell = cell_of(&realm);
    let alice = realm.user(&cell, "alice");
    let link = cell.local("aklog");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cellar"), &link).expect("a link");
    let link = link.to_str().expect("a path");
    let aklog = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        alice.command_line(link, &words)
    };
    assert_eq!(aklog("").status, 4, "without a ticket");
    let keytab = realm.keytab("alice");
    let kinit = alice.command_line("kinit", &["-k", "-t", &keytab, "alice"]);
    kinit.ok("kinit");
    assert_eq!(aklog("-noauth").ok("aklog -noauth"), "");
    assert!(alice.ok("tokens").contains("No tokens"));
    assert_eq!(aklog("-force -noprdb").ok("aklog"), "");
    assert!(alice.ok("tokens").contains("alice@"));
    for line in ["-d", "-d test", "-d -c test.cell -k TEST.CELL"] {
        let said = aklog(line).ok(line);
        assert!(
            said.contains("has a token for cell test.cell"),
            "{line}: {said}"
        );
    }
    for (line, status) in [
        ("-nosuch", 1),
        ("-hosts /afs/test.cell", 1),
        ("/tmp", 6),
        ("nosuch.cell", 4),
        ("test.cell nosuch.cell", 2),
    ] {
        let answer = aklog(line);
        assert_eq!(answer.status, status, "{line}: {}", answer.err);
    }
    let session = aklog("-setpag");
    // With an AFS client in the kernel, the parent of aklog gets a session.
    let has_client = !session.err.contains("this kernel has no AFS client");
    let expected = if has_client { 0 } else { 5 };
    assert_eq!(session.status, expected, "{}", session.err);
}
