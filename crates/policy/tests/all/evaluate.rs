//! The evaluation of policies for files.

use cellar_policy::{Facts, Policies, PolicyError, Reason, RecallMode, StorageTarget, Verdict};
use cellar_wire::object::{Scheme, Shape};
use cellar_wire::osddb::PolicyEntry;
use cellar_xdr::AfsString;

fn entry(id: u32, text: &str) -> PolicyEntry {
    PolicyEntry {
        id,
        name: AfsString::new(format!("p{id}")).expect("short"),
        text: AfsString::new(text.to_owned()).expect("short"),
        revision: 1,
    }
}

fn compiled(texts: &[(u32, &str)]) -> Policies {
    let entries: Vec<PolicyEntry> = texts.iter().map(|(id, text)| entry(*id, text)).collect();
    Policies::compile(&entries).expect("good policies")
}

fn refused(texts: &[(u32, &str)]) -> PolicyError {
    let entries: Vec<PolicyEntry> = texts.iter().map(|(id, text)| entry(*id, text)).collect();
    Policies::compile(&entries).expect_err("bad policies")
}

/// The outcome of one policy.
fn verdict(text: &str, facts: &Facts<'_>) -> Verdict {
    compiled(&[(2, text)]).evaluate(&[2], facts)
}

fn named(name: &str) -> Facts<'_> {
    Facts {
        name: name.as_bytes(),
        directory: b"/raw/2026",
        volume: b"user.anna",
        size: 8 << 20,
        ids: &[7, -210, -101],
        owner: 7,
        group: 100,
    }
}

fn holds(condition: &str, facts: &Facts<'_>) -> bool {
    verdict(&format!("{condition} => osd;"), facts).place == StorageTarget::Objects
}

#[test]
fn conditions_hold() {
    let table: &[(&str, &str, bool)] = &[
        ("~'*.root'", "a.root", true),
        ("~'*.root'", "a.root.gz", false),
        ("~'*.root'", ".root", true),
        ("~'*.ROOT'", "a.root", false),
        ("~'run?.dat'", "run7.dat", true),
        ("~'run?.dat'", "runü.dat", true),
        ("~'run?.dat'", "run.dat", false),
        ("~'run[0-9][!0-9]'", "run1a", true),
        ("~'run[0-9][!0-9]'", "run12", false),
        ("~'[]x]*'", "]a", true),
        ("~'[[:digit:]]*'", "7a", true),
        ("~'a\\*b'", "a*b", true),
        ("~'a\\*b'", "axb", false),
        ("~'a[b'", "a[b", true),
        ("~'a.b'", "axb", false),
        ("~'*'", "with space\nand line", true),
        ("~''", "a", false),
        ("~/\\.(h5|root)$/", "x.h5", true),
        ("~/\\.(h5|root)$/", "x.h5.txt", false),
        ("~/oo/", "a.root", true),
        ("~/^oo/", "a.root", false),
        ("~/ROOT$/i", "a.root", true),
        ("~/ROOT$/", "a.root", false),
        ("~/Ä/i", "xä", true),
        ("~/[\\.]x/", "\\x", true),
        ("~/[[a]z/", "[z", true),
        ("~/[a&&b]c/", "&c", true),
        ("~/[]a-c-]$/", "-", true),
        ("~/[^[:alpha:]]/", "ab1", true),
        ("~/a{2,3}/", "aa", true),
        ("~//", "anything", true),
        (">8m", "", true),
        (">8388609", "", false),
        ("<8m", "", true),
        ("<8388607", "", false),
        ("uid=7", "", true),
        ("uid=8", "", false),
        ("gid=-210", "", true),
        ("gid=-211", "", false),
        ("gid=7", "", true),
        ("owner=7", "", true),
        ("owner=8", "", false),
        ("group=100", "", true),
        ("group=-210", "", false),
        ("dir~'/raw/*'", "", true),
        ("dir~'/raw'", "", false),
        ("dir~/2026$/", "", true),
        ("volume~'user.*'", "", true),
        ("volume~'root.*'", "", false),
        // The original aborted when all parts of a conjunction held.
        ("~'*.root' & >1m", "a.root", true),
        ("~'*.root' & >1m & uid=7 & gid=-210", "a.root", true),
        ("~'*.root' & >1g", "a.root", false),
        ("~'*.root' | >1g", "a.root", true),
        ("~'*.log' | >1g", "a.root", false),
        ("!~'*.log'", "a.root", true),
        ("!(~'*.log' | ~'*.root')", "a.root", false),
        ("uid=8 & uid=8 | uid=7", "", true),
        ("uid=8 & (uid=8 | uid=7)", "", false),
    ];
    for (condition, name, expected) in table {
        assert_eq!(
            holds(condition, &named(name)),
            *expected,
            "{condition} of {name}"
        );
    }
}

#[test]
fn names_need_not_be_text() {
    let name = b"run\xff.root";
    let facts = Facts { name, ..named("") };
    assert!(holds("~'*.root'", &facts));
    assert!(holds("~/root$/", &facts));
    assert!(!holds("~'run?.root'", &facts));
}

#[test]
fn later_rules_overwrite_what_they_name() {
    let text = "=> osd, stripes=4, copies=2; >1m => stripe_size=64k; >1g => local; => class=fast;";
    let said = verdict(text, &named("a"));
    assert_eq!(said.place, StorageTarget::Objects);
    assert_eq!(
        said.shape,
        Some(Shape {
            scheme: Scheme::Striped,
            stripes: 4,
            copies: 2,
            unit: 64 << 10
        })
    );
    assert_eq!(said.class.as_deref(), Some("fast"));
    let rules = said.why.iter().map(|reason| match reason {
        Reason::Rule { policy, rule, stop } => (*policy, *rule, *stop),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        rules.collect::<Vec<_>>(),
        [(2, 1, false), (2, 2, false), (2, 4, false)]
    );

    let said = verdict("=> s=4,c=2; => ec=4+2;", &named("a"))
        .shape
        .expect("a shape");
    assert_eq!(
        (said.scheme, said.stripes, said.copies),
        (Scheme::Erasure, 4, 2)
    );
    let said = verdict("=> ec=4+2; => c=3;", &named("a"))
        .shape
        .expect("a shape");
    assert_eq!(
        (said.scheme, said.stripes, said.copies),
        (Scheme::Striped, 1, 3)
    );
    let said = verdict("=> class=fast; => class='';", &named("a"));
    assert_eq!(
        (said.class, said.shape, said.place),
        (None, None, StorageTarget::BySize)
    );
}

#[test]
fn archives_are_named_by_rules_and_their_highest_number_is_known() {
    let text = "=> archives=1; >1g => archives=2, archive_class=tape, archive_after=2d;";
    let small = verdict(text, &named("a")).archiving;
    assert_eq!((small.archives, small.class, small.after), (1, None, 3600));
    let facts = Facts {
        size: 2 << 30,
        ..named("a")
    };
    let large = verdict(text, &facts).archiving;
    assert_eq!(
        (large.archives, large.class.as_deref(), large.after),
        (2, Some("tape"), 172_800)
    );
    assert_eq!(verdict("=> osd;", &named("a")).archiving.archives, 0);

    let policies = compiled(&[
        (2, text),
        (3, "=> osd;"),
        (4, "use(3); use(2);"),
        (5, "=> steps { 1m: archives=3; 1g: osd };"),
    ]);
    let max = |ids: &[u32]| policies.archives_max(ids);
    assert_eq!((max(&[2]), max(&[3]), max(&[4]), max(&[5])), (2, 0, 2, 3));
    assert_eq!((max(&[3, 2]), max(&[1, 0]), max(&[99])), (2, 0, 0));
}

#[test]
fn the_last_rule_that_names_it_says_how_files_are_recalled() {
    let text = "=> recall=retry; ~'*.raw' => recall=refuse; ~'x*' => recall=wait;";
    let mode = |name| verdict(text, &named(name)).archiving.recall;
    assert_eq!(mode("a"), RecallMode::Retry);
    assert_eq!(mode("a.raw"), RecallMode::Refuse);
    assert_eq!(mode("x.raw"), RecallMode::Wait);
    let unsaid = verdict("=> osd, archives=1;", &named("a")).archiving;
    assert_eq!(unsaid.recall, RecallMode::Wait);
    // The policy of the directory comes behind that of the volume.
    let policies = compiled(&[(2, "=> recall=refuse, stop;"), (3, "=> recall=retry;")]);
    let both = |ids: &[u32]| policies.evaluate(ids, &named("a")).archiving.recall;
    assert_eq!(both(&[2, 0]), RecallMode::Refuse);
    assert_eq!(both(&[2, 3]), RecallMode::Retry);
    assert_eq!(both(&[0, 3]), RecallMode::Wait);
}

#[test]
fn steps_are_taken_by_size() {
    let text = "=> steps { 1m: osd; 64m: osd, s=2; 1g: osd, s=4 };";
    let at = |size| {
        let said = verdict(text, &Facts { size, ..named("a") });
        (said.place, said.shape.map_or(0, |shape| shape.stripes))
    };
    assert_eq!(at((1 << 20) - 1), (StorageTarget::BySize, 0));
    assert_eq!(at(1 << 20), (StorageTarget::Objects, 0));
    assert_eq!(at((64 << 20) - 1), (StorageTarget::Objects, 0));
    assert_eq!(at(64 << 20), (StorageTarget::Objects, 2));
    assert_eq!(at(u64::MAX), (StorageTarget::Objects, 4));
}

#[test]
fn stop_ends_the_policy_and_who_uses_it() {
    let policies = compiled(&[
        (2, "use(3); => copies=2;"),
        (3, "~'*.log' => local, stop; => osd;"),
        (4, "=> class=slow;"),
    ]);
    let said = policies.evaluate(&[2, 4], &named("a.log"));
    assert_eq!((said.place, said.shape), (StorageTarget::Local, None));
    // The directory's policy runs all the same.
    assert_eq!(said.class.as_deref(), Some("slow"));
    assert_eq!(
        said.why,
        [
            Reason::Rule {
                policy: 3,
                rule: 1,
                stop: true
            },
            Reason::Rule {
                policy: 4,
                rule: 1,
                stop: false
            },
        ]
    );
    let said = policies.evaluate(&[2], &named("a.root"));
    assert_eq!(
        (said.place, said.shape.map(|shape| shape.copies)),
        (StorageTarget::Objects, Some(2))
    );
    let unrolled = policies.unrolled(2).expect("it is there");
    assert_eq!(
        unrolled.to_string(),
        "~'*.log' => location=local, stop;\n=> location=osd;\n=> copies=2;"
    );
    assert!(policies.needs(&[2]).name);
    assert!(!policies.needs(&[4]).name);
}

#[test]
fn volume_and_directory() {
    let policies = compiled(&[(2, "=> osd, copies=2;"), (3, "=> local;")]);
    let facts = named("a");
    let place = |ids: &[u32]| policies.evaluate(ids, &facts).place;
    assert_eq!(place(&[]), StorageTarget::BySize);
    assert_eq!(place(&[0, 2]), StorageTarget::Local);
    assert_eq!(place(&[1]), StorageTarget::BySize);
    assert_eq!(place(&[1, 0]), StorageTarget::BySize);
    assert_eq!(place(&[1, 2]), StorageTarget::Objects);
    assert_eq!(place(&[2, 3]), StorageTarget::Local);
    assert_eq!(place(&[3, 2]), StorageTarget::Objects);
    assert_eq!(
        policies.evaluate(&[0], &facts).why,
        [Reason::VolumeUsesNone]
    );
    assert_eq!(
        policies.evaluate(&[9], &facts).why,
        [Reason::Missing { policy: 9 }]
    );
}

#[test]
fn contradicting_options_are_refused() {
    let id = |id| move |error: &PolicyError| matches!(error, PolicyError::Syntax { id: found, .. } if *found == id);
    assert!(id(3)(&refused(&[(2, "=> osd;"), (3, "=> osd")])));
    assert_eq!(refused(&[(1, "=> osd;")]), PolicyError::Reserved { id: 1 });
    assert_eq!(
        refused(&[(2, "=>;"), (2, "=>;")]),
        PolicyError::Twice { id: 2 }
    );
    assert_eq!(
        refused(&[(2, "use(3);")]),
        PolicyError::Missing { id: 2, used: 3 }
    );
    assert_eq!(refused(&[(2, "use(2);")]), PolicyError::Cycle(vec![2]));
    let circle = refused(&[(5, "use(2);"), (2, "use(3);"), (3, "=> osd; use(2);")]);
    assert_eq!(
        circle.to_string(),
        "policies use each other in a circle: 2 → 3 → 2"
    );

    // Thirty policies, each using the next twice, would be a thousand million rules.
    let doubling: Vec<(u32, String)> = (2..32)
        .map(|id| match id {
            31 => (id, "=> osd;".to_owned()),
            id => (id, format!("use({n}); use({n});", n = id + 1)),
        })
        .collect();
    let doubling: Vec<(u32, &str)> = doubling.iter().map(|(id, text)| (*id, &**text)).collect();
    assert!(matches!(refused(&doubling), PolicyError::TooLarge { .. }));
    let chain: Vec<(u32, String)> = (2..4000)
        .map(|id| (id, format!("use({});", id + 1)))
        .chain([(4000, "=> osd;".to_owned())])
        .collect();
    let chain: Vec<(u32, &str)> = chain.iter().map(|(id, text)| (*id, &**text)).collect();
    assert!(matches!(refused(&chain), PolicyError::TooLarge { .. }));
}

#[test]
fn a_row_is_never_larger_than_a_writer_can_hold() {
    for data in [1, 4, 5, 8, 31, 32] {
        let text = format!("=> osd, stripe_size=16m; => ec={data}+2;");
        let shape = verdict(&text, &named("a")).shape.expect("a shape");
        shape.check().expect("a shape that can be stored");
        assert_eq!((shape.stripes, shape.scheme), (data, Scheme::Erasure));
    }
    let said = verdict("=> osd, stripe_size=16m; => ec=4+2;", &named("a"));
    assert_eq!(said.shape.map(|shape| shape.unit), Some(16 << 20));
}
