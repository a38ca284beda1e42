//! Tests of the AFS command syntax.

use super::*;

static SUITE: Suite = Suite {
    name: "pts",
    about: "Protection.",
    common: &[
        optional("cell", "cell name"),
        optional(CELL_DIRECTORY, "directory"),
        flag("json", "print JSON"),
        optional("config", IGNORED),
        optional(DATABASE_SERVER, "address"),
        flag(ADMINISTRATOR, "act as administrator"),
    ],
    commands: &[
        Command {
            name: "adduser",
            aliases: &["add"],
            about: "Adds users to groups.",
            parameters: &[list("user", "user"), list("group", "group")],
            examples: &["-user ann -group staff"],
        },
        Command {
            name: "examine",
            aliases: &[],
            about: "Shows entries.",
            parameters: &[expands("nameorid", "user or group"), flag("long", "more")],
            examples: &[],
        },
        Command {
            name: "creategroup",
            aliases: &["cg"],
            about: "Creates a group.",
            parameters: &[
                one("name", "name"),
                optional("owner", "owner"),
                optional("id", "id"),
            ],
            examples: &[],
        },
        Command {
            name: "rmmount",
            aliases: &[],
            about: "Has a switch of cellar's name.",
            parameters: &[
                expands("dir", "mount point").also(&["mountpoint"]),
                optional("cell", "another cell"),
            ],
            examples: &[],
        },
        Command {
            name: "createuser",
            aliases: &["cu"],
            about: "Creates users.",
            parameters: &[one("name", "name")],
            examples: &[],
        },
        Command {
            name: "restart",
            aliases: &[],
            about: "Names a machine.",
            parameters: &[one("server", "machine")],
            examples: &[],
        },
    ],
};

fn parse(line: &str) -> Result<Invocation, Refusal> {
    SUITE.parse(
        &line
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    )
}

fn usage(line: &str) -> String {
    match parse(line) {
        Err(Refusal::Usage(_, text)) => text,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn places_and_switches_mean_the_same() {
    let by_place = parse("adduser ann staff").expect("places");
    let by_switch = parse("adduser -group staff -user ann").expect("switches");
    for invocation in [by_place, by_switch] {
        assert_eq!(invocation.list("user"), ["ann"]);
        assert_eq!(invocation.list("group"), ["staff"]);
    }
    let two = parse("adduser --user ann bob --gr=staff").expect("two dashes, a prefix");
    assert_eq!(two.list("user"), ["ann", "bob"]);
    assert_eq!(two.list("group"), ["staff"]);
}

#[test]
fn last_list_takes_the_rest_and_negative_ids_are_values() {
    let many = parse("examine ann -206 bob -json").expect("list");
    assert_eq!(many.list("nameorid"), ["ann", "-206", "bob"]);
    assert!(many.has("json") && !many.has("long"));
    assert_eq!(
        parse("creategroup a:b -id -300").expect("id").get("id"),
        Some("-300")
    );
}

#[test]
fn prefixes_must_be_unambiguous() {
    assert_eq!(parse("ex ann").expect("prefix").command, "examine");
    assert_eq!(parse("cg a:b").expect("alias").command, "creategroup");
    assert!(usage("create x").contains("creategroup or createuser"));
    assert!(usage("nosuch").contains("Unrecognized operation 'nosuch'"));
    // -o fits only -owner; -c fits -cell, and -config has no effect and does not count.
    assert_eq!(
        parse("cg a:b -o ann -c x").expect("prefixes").get("owner"),
        Some("ann")
    );
}

#[test]
fn other_names_and_own_switches() {
    let by_alias = parse("rmmount -mountpoint /afs/x /afs/y -c a.b").expect("an alias");
    assert_eq!(by_alias.list("dir"), ["/afs/x", "/afs/y"]);
    assert_eq!(by_alias.get("cell"), Some("a.b"));
    assert_eq!(
        parse("rmm -m /afs/x").expect("a prefix").list("dir"),
        ["/afs/x"]
    );
    assert_eq!(parse("cg a:b -conf x").expect("ignored").get("cell"), None);
    let Err(Refusal::Help(help)) = parse("rmmount --help") else {
        panic!("no help");
    };
    assert_eq!(help.matches("-cell <").count(), 2, "{help}");
}

#[test]
fn an_option_with_two_dashes_takes_one_value() {
    for line in [
        "cg --dir /srv a:b ann",
        "cg --dir=/srv a:b ann",
        "cg a:b --dir /srv ann",
    ] {
        let parsed = parse(line).expect(line);
        assert_eq!(parsed.get(CELL_DIRECTORY), Some("/srv"), "{line}");
        assert_eq!(parsed.get("name"), Some("a:b"), "{line}");
        assert_eq!(parsed.get("owner"), Some("ann"), "{line}");
    }
    let listed = parse("rmmount -dir /afs/x --dir /srv /afs/y").expect("a list goes on");
    assert_eq!(listed.list("dir"), ["/afs/x", "/afs/y"]);
}

#[test]
fn one_dash_is_the_operations_dir_and_two_are_the_cells() {
    let both = parse("rmmount -dir /afs/x --dir /srv").expect("both");
    assert_eq!(both.list("dir"), ["/afs/x"]);
    assert_eq!(both.get(CELL_DIRECTORY), Some("/srv"));
    // An operation without a -dir switch accepts either form.
    assert_eq!(
        parse("cg a:b -dir /srv").expect("dir").get(CELL_DIRECTORY),
        Some("/srv")
    );
}

#[test]
fn common_options_may_come_first() {
    for line in [
        "--dir /srv --json cg a:b ann",
        "--json --dir=/srv cg a:b ann",
        "cg a:b ann --dir=/srv --json",
    ] {
        let parsed = parse(line).expect(line);
        assert_eq!(parsed.get(CELL_DIRECTORY), Some("/srv"), "{line}");
        assert_eq!(parsed.get("owner"), Some("ann"), "{line}");
        assert!(parsed.has("json"), "{line}");
    }
    assert!(matches!(parse("--dir /srv"), Err(Refusal::Bare(_))));
    assert!(matches!(parse("--json --help"), Err(Refusal::Help(_))));
    assert!(usage("--nosuch cg a:b").contains("Unrecognized operation '--nosuch'"));
}

#[test]
fn one_name_of_an_option_everywhere() {
    let server = |line| {
        parse(line)
            .expect(line)
            .get(DATABASE_SERVER)
            .map(str::to_owned)
    };
    assert_eq!(
        server("cg a:b --server 192.0.2.1").as_deref(),
        Some("192.0.2.1")
    );
    assert_eq!(
        server("--server=192.0.2.1 cg a:b").as_deref(),
        Some("192.0.2.1")
    );
    assert_eq!(
        server("cg a:b -dbserver 192.0.2.1").as_deref(),
        Some("192.0.2.1")
    );
    // One dash is OpenAFS's meaning.
    assert!(usage("cg a:b -server 192.0.2.1").contains("switch '-server'"));
    let own = parse("restart --server 192.0.2.2 -dbserver 192.0.2.1").expect("both");
    assert_eq!(own.get("server"), Some("192.0.2.2"));
    assert_eq!(own.get(DATABASE_SERVER), Some("192.0.2.1"));
    assert!(parse("cg a:b --admin").expect("admin").has(ADMINISTRATOR));
    assert!(usage("cg a:b -a").contains("switch '-a'"));
}

#[test]
fn near_names_are_suggested() {
    assert!(usage("creategruop a:b").contains("Did you mean 'creategroup'?"));
    assert!(usage("cg a:b -ownre ann").contains("Did you mean 'owner'?"));
    assert!(!usage("zzz").contains("Did you mean"));
    assert!(!usage("cg a:b -zzz").contains("Did you mean"));
}

#[test]
fn refusals_say_what_is_wrong() {
    // The wording is OpenAFS's, and the numbers are the exit statuses of its fs and bos.
    let table = [
        (
            "adduser ann",
            SyntaxError::TooFew,
            "Missing required parameter '-group'",
        ),
        ("cg a b 3 4 5", SyntaxError::TooMany, "Too many arguments"),
        (
            "cg a -owner",
            SyntaxError::TooFew,
            "The field '-owner' isn't completed properly",
        ),
        (
            "cg -owner -id 4",
            SyntaxError::TooFew,
            "Missing required parameter '-name'",
        ),
        (
            "cg -name a -name b",
            SyntaxError::NotList,
            "Too many values after switch -name",
        ),
        (
            "cg -name a b",
            SyntaxError::NotList,
            "Too many values after switch -name",
        ),
        (
            "cg a -nosuch b",
            SyntaxError::Switch,
            "Unrecognized or ambiguous switch '-nosuch'",
        ),
        (
            "examine -- a",
            SyntaxError::Switch,
            "Unrecognized or ambiguous switch '--'",
        ),
        (
            "examine a -json=1",
            SyntaxError::TooMany,
            "Switch '-json' doesn't take an argument",
        ),
        (
            "create x",
            SyntaxError::Operation,
            "Ambiguous operation 'create'",
        ),
        (
            "help nosuch",
            SyntaxError::Operation,
            "Unknown topic 'nosuch'",
        ),
        (
            "apropos",
            SyntaxError::TooFew,
            "Missing required parameter '-topic'",
        ),
    ];
    for (line, wanted, text) in table {
        let Err(Refusal::Usage(wrong, said)) = parse(line) else {
            panic!("{line}");
        };
        assert_eq!(wrong, wanted, "{line}");
        assert!(said.starts_with(&format!("pts: {text}")), "{line}: {said}");
    }
    assert!(matches!(parse(""), Err(Refusal::Bare(text)) if text.contains("pts help <topic>")));
    // After the last position comes the cell's name.
    assert_eq!(
        parse("cg a b 3 c.d").expect("a cell").get("cell"),
        Some("c.d")
    );
    assert!(matches!(parse("adduser --help"), Err(Refusal::Help(text))
        if text.contains("cellar pts adduser -user ann -group staff")));
    assert!(matches!(parse("help"), Err(Refusal::Help(_))));
    assert!(matches!(parse("help cg adduser"), Err(Refusal::Help(text))
        if text.contains("Creates a group.") && text.contains("Adds users")));
    assert_eq!(
        parse("apropos USERS").expect_err("help"),
        Refusal::Help("adduser: Adds users to groups.\ncreateuser: Creates users.\n".to_owned())
    );
    assert!(matches!(parse("apropos zzz"), Err(Refusal::Help(text)) if text.starts_with("Sorry")));
}
