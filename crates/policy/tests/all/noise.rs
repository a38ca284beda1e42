//! Policies made by chance: what is printed is read back, and no text makes the parser fail other
//! than by saying what is wrong. The seeds are fixed: a run that fails fails again.

use cellar_policy::{
    Condition, Facts, Form, Kind, Outcome, Pattern, Policies, Policy, RecallMode, Rule, Said,
    Spread, StorageTarget,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

fn one<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    *of.choose(rng).expect("not empty")
}

const RECALLS: [Option<RecallMode>; 4] = [
    None,
    Some(RecallMode::Wait),
    Some(RecallMode::Retry),
    Some(RecallMode::Refuse),
];

fn pattern(rng: &mut StdRng) -> Pattern {
    let (kind, texts): (Kind, &[&str]) = match rng.random_range(0..3) {
        0 => (
            Kind::Glob,
            &[
                "*.root", "it's", "\"", "'\"", "a\\*", "[!a-z]?", "", "ä ß", "\\\\'", "x;=>",
            ],
        ),
        1 => (
            Kind::Expression,
            &["\\.(h5|root)$", "a/b", "\\\\/", "[/]", "", "^x{2}"],
        ),
        _ => (Kind::ExpressionAnyCase, &["\\.H5$", "a/b", "x|y"]),
    };
    Pattern::new(kind, one(rng, texts)).expect("a pattern")
}

fn condition(rng: &mut StdRng, depth: u32) -> Condition {
    let parts = |rng: &mut StdRng| {
        let count = rng.random_range(2..4);
        (0..count).map(|_| condition(rng, depth - 1)).collect()
    };
    match rng.random_range(if depth == 0 { 3 } else { 0 }..12) {
        0 => Condition::Not(Box::new(condition(rng, depth - 1))),
        1 => Condition::All(parts(rng)),
        2 => Condition::Any(parts(rng)),
        3 => Condition::AtLeast(rng.random::<u64>() >> rng.random_range(0..64)),
        4 => Condition::AtMost(rng.random_range(0..4000u64) << one(rng, &[0, 10, 20, 30, 40])),
        5 => Condition::Name(pattern(rng)),
        6 => Condition::Directory(pattern(rng)),
        7 => Condition::Volume(pattern(rng)),
        8 => Condition::User(rng.random()),
        9 => Condition::Group(rng.random()),
        10 => Condition::Owner(rng.random()),
        _ => Condition::OwnerGroup(rng.random()),
    }
}

fn outcome(rng: &mut StdRng) -> Outcome {
    let stripes = rng.random::<bool>().then(|| rng.random_range(1..=32));
    let copies = rng.random::<bool>().then(|| rng.random_range(1..=4));
    let spread = match (rng.random_range(0..3), stripes, copies) {
        (0, ..) => Spread::Erasure {
            data: rng.random_range(1..=32),
            parity: rng.random_range(1..=8),
        },
        (_, None, None) => Spread::Unsaid,
        _ => Spread::Striped { stripes, copies },
    };
    // A row of an erasure code has 64 MiB at most.
    let largest: u32 = match spread {
        Spread::Erasure { data, .. } => 24.min(26 - data.next_power_of_two().ilog2()),
        _ => 24,
    };
    let places = [
        None,
        Some(StorageTarget::Local),
        Some(StorageTarget::Objects),
        Some(StorageTarget::BySize),
    ];
    let classes = [
        None,
        Some("fast"),
        Some(""),
        Some("a b"),
        Some("it's"),
        Some("stop"),
    ];
    Outcome {
        place: one(rng, &places),
        spread,
        unit: rng
            .random::<bool>()
            .then(|| 1 << rng.random_range(12..=largest)),
        class: one(rng, &classes).map(str::to_owned),
        archives: rng.random::<bool>().then(|| rng.random_range(0..=4)),
        archive_class: one(rng, &classes).map(str::to_owned),
        archive_after: rng
            .random::<bool>()
            .then(|| rng.random_range(0..=u32::MAX) / rng.random_range(1..=86_400)),
        recall: one(rng, &RECALLS),
    }
}

fn rule(rng: &mut StdRng) -> Rule {
    if rng.random_range(0..10) == 0 {
        return Rule::Use(rng.random_range(2..=i32::MAX as u32));
    }
    let verdict = match rng.random_range(0..4) {
        0 => {
            let mut from = 0;
            let steps = (0..rng.random_range(0..5)).map(|_| {
                from += rng.random_range(1..1u64 << 40);
                (from, outcome(rng))
            });
            Said::Steps(steps.collect())
        }
        _ => Said::Plain(outcome(rng)),
    };
    Rule::When {
        condition: (rng.random_range(0..5) > 0).then(|| condition(rng, 4)),
        verdict,
        stop: rng.random(),
    }
}

#[test]
fn printed_values_parse_to_themselves() {
    let mut rng = StdRng::seed_from_u64(20090525);
    for _ in 0..1000 {
        let count = rng.random_range(0..6);
        let policy = Policy {
            rules: (0..count).map(|_| rule(&mut rng)).collect(),
        };
        for form in [Form::Short, Form::Human, Form::Tabular] {
            let printed = policy.print(form);
            match Policy::parse(&printed) {
                Ok(read) => assert_eq!(read, policy, "{printed}"),
                Err(error) => panic!("{error}: {printed}"),
            }
        }
        assert_eq!(policy.print(Form::Long).is_empty(), policy.rules.is_empty());
    }
}

#[test]
fn any_text_is_answered() {
    const PIECES: &[&str] = &[
        "=>",
        "=",
        ">",
        "<",
        "~",
        "'",
        "\"",
        "/",
        "/i",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "!",
        "&",
        "|",
        ";",
        ",",
        "-",
        "+",
        "\\",
        "#",
        "\n",
        " ",
        "use",
        "stop",
        "osd",
        "l",
        "s=",
        "ss=",
        "c=",
        "ec=",
        "class=",
        "archives=",
        "archive_class=",
        "archive_after=",
        "recall=",
        "retry",
        "2h",
        "uid=",
        "dir",
        "steps",
        "4",
        "64m",
        "18446744073709551616",
        "ä",
        "\u{0}",
        "*.root",
        ":",
        "^",
        "[:alpha:]",
        "[a-",
    ];
    let mut rng = StdRng::seed_from_u64(8031973);
    let mut accepted = 0;
    for _ in 0..10_000 {
        let count = rng.random_range(0..24);
        let text: String = (0..count).map(|_| one(&mut rng, PIECES)).collect();
        if let Ok(policy) = Policy::parse(&text) {
            accepted += 1;
            let printed = policy.print(Form::Short);
            assert_eq!(
                Policy::parse(&printed).as_ref(),
                Ok(&policy),
                "{text:?}: {printed}"
            );
        }
    }
    assert!(accepted > 3, "the pieces make no policies");
}

#[test]
fn damaged_policies_are_answered() {
    let text = "~'*.root' & (>64m | !uid=-7) => osd, stripes=4, ssize=19, class=fast, stop; \
                ~/\\.(h5|root)$/i => [o,4+2,20,] cont; => steps { 1m: osd; 1g: ec=4+2 }; use(3);";
    let mut rng = StdRng::seed_from_u64(24011977);
    for _ in 0..5_000 {
        let mut characters: Vec<char> = text.chars().collect();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..characters.len());
            match rng.random_range(0..3) {
                0 => drop(characters.remove(at)),
                1 => characters.insert(at, one(&mut rng, &characters.clone())),
                _ => characters[at] = char::from(rng.random_range(1..128u8)),
            }
        }
        let damaged: String = characters.into_iter().collect();
        if let Ok(policy) = Policy::parse(&damaged)
            && !policy.rules.iter().any(|rule| matches!(rule, Rule::Use(_)))
        {
            let policies = Policies::of(vec![(2, String::new(), policy)]).expect("no uses");
            policies.evaluate(
                &[2],
                &Facts {
                    name: b"a.root",
                    ..Facts::default()
                },
            );
        }
    }
}
