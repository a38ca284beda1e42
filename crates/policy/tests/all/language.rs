//! The language: what is accepted, what it means, and what is said of what is not.

use cellar_policy::{
    Condition, Form, Kind, Outcome, Pattern, Policy, Rule, Said, Spread, StorageTarget,
};

fn parsed(text: &str) -> Policy {
    Policy::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Text, and how it is printed in short.
const ACCEPTED: &[(&str, &str)] = &[
    // The original's examples.
    ("~'*.root' => location=osd, stop;", "~'*.root'=>o,stop;"),
    (">64M => osd, stripes=4, ssize=19;", ">64m=>o,s=4,ss=19;"),
    (
        "~'*.log' => local, stop; ~/\\.(h5|root)$/ => osd, copies=2;",
        "~'*.log'=>l,stop; ~/\\.(h5|root)$/=>o,c=2;",
    ),
    ("gid=-210 => dynamic, s=2, ss=16;", "gid=-210=>d,s=2,ss=16;"),
    ("use(3); => copies=2;", "use(3); =>c=2;"),
    (">8m => [o,2,16,2] stop;", ">8m=>o,s=2,c=2,ss=16,stop;"),
    // Every spelling of a property.
    ("=>location=o loc=d", ""),
    ("=>loc=o,str=8;", "=>o,s=8;"),
    ("=>l=l;", "=>l;"),
    ("=>l;", "=>l;"),
    ("=>d;", "=>d;"),
    ("=>stripe_size=12;", "=>ss=12;"),
    ("=>ss=4k;", "=>ss=12;"),
    ("=>ss=16MiB;", "=>ss=24;"),
    ("=>ssize=65536;", "=>ss=16;"),
    ("=>c=4 s=32 ss=24 o;", "=>o,s=32,c=4,ss=24;"),
    ("=>o stop;", "=>o,stop;"),
    ("=>o, continue;", "=>o;"),
    ("=>o cont;", "=>o;"),
    ("=>stop;", "=>stop;"),
    ("=>;", "=>;"),
    // Tables with places left open.
    ("=>[o,,,];", "=>o;"),
    ("=>[,,,];", "=>;"),
    ("=>[,8,,2] continue;", "=>s=8,c=2;"),
    ("=>[d,4+2,20,];", "=>d,ec=4+2,ss=20;"),
    // Sizes.
    (">1024=>;", ">1k=>;"),
    ("<1b=>;", "<1=>;"),
    ("<=3G=>;", "<3g=>;"),
    (">=2t=>;", ">2t=>;"),
    (">10KB=>;", ">10k=>;"),
    (">0=>;", ">0=>;"),
    (">18446744073709551615=>;", ">18446744073709551615=>;"),
    // Conditions and how tightly they bind.
    ("uid=1&uid=2|uid=3=>;", "uid=1&uid=2|uid=3=>;"),
    ("uid=1&&(uid=2||!uid=3)=>;", "uid=1&(uid=2|!uid=3)=>;"),
    ("!(uid=1|uid=2)=>;", "!(uid=1|uid=2)=>;"),
    ("!!uid=1=>;", "!!uid=1=>;"),
    ("((uid=1))=>;", "uid=1=>;"),
    ("uid = - 5 => ;", "uid=-5=>;"),
    ("gid=-2147483648=>;", "gid=-2147483648=>;"),
    // Strings.
    ("~\"*.a\" => o;", "~'*.a'=>o;"),
    ("~'it''s' => o;", "~\"it's\"=>o;"),
    ("~'it\\'s' => o;", "~\"it's\"=>o;"),
    ("~\"'\"\"\" => o;", "~'''\"'=>o;"),
    ("~'\\*' => o;", "~'\\*'=>o;"),
    ("~/a\\/b/i => o;", "~/a\\/b/i=>o;"),
    // Elements that the original language does not have.
    ("dir~'/raw/*' => o;", "dir~'/raw/*'=>o;"),
    ("volume ~ /^user\\./ => l;", "volume~/^user\\./=>l;"),
    (
        "name~'*' & owner=7 & group=-3 => o;",
        "~'*'&owner=7&group=-3=>o;",
    ),
    (
        "=> osd, ec=8+3, ss=1m, class=fast;",
        "=>o,ec=8+3,ss=20,class=fast;",
    ),
    ("=> class='two words';", "=>class='two words';"),
    ("=> class='';", "=>class='';"),
    (
        "=> osd, archives=2, archive_class=tape, archive_after=2h;",
        "=>o,archives=2,archive_class=tape,archive_after=2h;",
    ),
    ("=> archive_after=90;", "=>archive_after=90s;"),
    ("=> archives=0;", "=>archives=0;"),
    (
        "=> osd, recall = refuse, archives=1;",
        "=>o,archives=1,recall=refuse;",
    ),
    (
        "=> recall=wait; => recall=retry;",
        "=>recall=wait; =>recall=retry;",
    ),
    (
        "=> steps { 1m: osd; 64m: s=2; 1g: s=4, ss=1m } stop;",
        "=>steps{1m:o;64m:s=2;1g:s=4,ss=20;},stop;",
    ),
    ("# nothing\n=> o; # to objects\n", "=>o;"),
    ("", ""),
];

#[test]
fn is_accepted_and_printed() {
    for (text, short) in ACCEPTED {
        if short.is_empty() && !text.is_empty() {
            assert!(Policy::parse(text).is_err(), "{text}");
            continue;
        }
        let policy = parsed(text);
        assert_eq!(policy.print(Form::Short), *short, "{text}");
        for form in [Form::Short, Form::Human, Form::Tabular] {
            let printed = policy.print(form);
            assert_eq!(parsed(&printed), policy, "{text} as {form:?}: {printed}");
        }
    }
}

#[test]
fn means_what_it_says() {
    let glob = Pattern::new(Kind::Glob, "*.root").expect("a glob");
    assert_eq!(
        parsed("~'*.root' & >8m => osd, stripes=2, stop;").rules,
        vec![Rule::When {
            condition: Some(Condition::All(vec![
                Condition::Name(glob),
                Condition::AtLeast(8 << 20),
            ])),
            verdict: Said::Plain(Outcome {
                place: Some(StorageTarget::Objects),
                spread: Spread::Striped {
                    stripes: Some(2),
                    copies: None,
                },
                unit: None,
                ..Outcome::default()
            }),
            stop: true,
        }]
    );
}

#[test]
fn is_printed_for_people() {
    let policy = parsed(
        "~'*.root'&>64m=>o,s=4,ss=19,stop; gid=-210=>d,c=2; =>steps{1m:o;1g:ec=4+2;}; use(3);",
    );
    assert_eq!(
        policy.to_string(),
        "~'*.root' & >64m => location=osd, stripes=4, stripe_size=512k, stop;\n\
         gid=-210 => location=dynamic, copies=2;\n\
         => steps { 1m: location=osd; 1g: ec=4+2; };\n\
         use(3);"
    );
    assert_eq!(
        policy.print(Form::Tabular),
        "~'*.root' & >64m => [o,4,19,] stop;\n\
         gid=-210 => [d,,,2];\n\
         => steps { 1m: [o,,,]; 1g: [,4+2,,]; };\n\
         use(3);"
    );
    assert_eq!(
        policy.print(Form::Long),
        "Files whose name is like *.root and of 64 MiB or more: in objects, 4 stripes, in units of \
         512 KiB. Then stop.\n\
         Files stored by members of group -210: in objects if they are large enough, 2 copies.\n\
         All files, by size: from 1 MiB in objects; from 1 GiB an erasure code of 4 data and 2 \
         parity objects.\n\
         Then the rules of policy 3."
    );
}

/// Text, line, column, part of what is said.
const REFUSED: &[(&str, u32, u32, &str)] = &[
    (
        "~'*.root' => location=osd, stop",
        1,
        32,
        "expected ; behind stop, found the end",
    ),
    (
        "~'*.root' -> osd;",
        1,
        11,
        "expected & or | and a condition, or =>, found \"-\"",
    ),
    ("=> osd\n=> local;", 2, 1, "found \"=\""),
    ("=> tape;", 1, 4, "found \"tape\""),
    (
        "=> location=tape;",
        1,
        13,
        "expected osd, local or dynamic, found \"tape\"",
    ),
    ("=> stripes=33;", 1, 12, "1 to 32 stripes"),
    ("=> stripes=0;", 1, 12, "1 to 32 stripes"),
    ("=> copies=5;", 1, 11, "1 to 4 copies"),
    ("=> ss=25;", 1, 7, "12 to 24"),
    ("=> ss=3k;", 1, 7, "power of two"),
    ("=> ss=32m;", 1, 7, "16m"),
    ("=> ec=4;", 1, 8, "+ and the number of parity objects"),
    ("=> ec=4+9;", 1, 9, "1 to 8 objects of parity"),
    ("=> ec=4+2, copies=2;", 1, 12, "both in one rule"),
    ("=> s=1, s=2;", 1, 9, "a second time"),
    ("=> [o,2,16,2;", 1, 13, "expected ], found \";\""),
    ("=> colour=red;", 1, 4, "expected location="),
    ("- => osd;", 1, 1, "a condition"),
    ("uid=- => osd;", 1, 7, "an AFS id"),
    ("uid=4294967296 => osd;", 1, 5, "an AFS id"),
    (">64q => osd;", 1, 4, "b, k, m, g or t"),
    (">20000000t => osd;", 1, 2, "a size below"),
    (">99999999999999999999 => osd;", 1, 2, "a size"),
    ("> => osd;", 1, 3, "a size, such as 64m"),
    ("~*.root => osd;", 1, 2, "'glob' or /expression/"),
    ("~'*.root => osd;", 1, 2, "a ' that closes the string"),
    ("~/a => osd;", 1, 2, "a / that closes the expression"),
    ("~/(/ => osd;", 1, 2, "unclosed group"),
    ("~/a{1000}{1000}{1000}/ => osd;", 1, 2, "exceeded limit"),
    ("(uid=1 => osd;", 1, 8, "or )"),
    ("uid=1 & => osd;", 1, 9, "a condition"),
    ("use(1);", 1, 5, "2 or more"),
    ("use 3;", 1, 5, "expected (, found \"3\""),
    ("=> steps { 1m: o; 1k: l; };", 1, 19, "a larger size"),
    (
        "=> class=fast, steps { 1m: o };",
        1,
        16,
        "steps are the only verdict",
    ),
    ("=> steps { 1m o; };", 1, 15, "expected :"),
    (
        "=> ec=8+2, stripe_size=16m;",
        1,
        27,
        "expected a stripe size of at most 8192k with 8 objects of data, found 16384k",
    ),
    ("# two\n  ümlaut => osd;", 2, 3, "found \"ü\""),
    ("=> class=;", 1, 10, "a string in quotes"),
    ("=> archives=5;", 1, 13, "0 to 4 archives"),
    ("=> archives=1, archives=2;", 1, 16, "a second time"),
    ("=> recall=later;", 1, 11, "wait, retry or refuse"),
    ("=> recall=wait, recall=wait;", 1, 17, "a second time"),
    ("=> archive_after=2w;", 1, 18, "a time, such as"),
    ("=> archive_after=99999d;", 1, 18, "a time, such as"),
];

#[test]
fn is_refused_with_place_and_reason() {
    for (text, line, column, said) in REFUSED {
        let error = Policy::parse(text).expect_err(text);
        assert_eq!(
            (error.line, error.column),
            (*line, *column),
            "{text}: {error}"
        );
        assert!(error.to_string().contains(said), "{text}: {error}");
    }
}

#[test]
fn is_bounded() {
    for sign in ["!", "("] {
        let text = format!("{}uid=1 => osd;", sign.repeat(100_000));
        let error = Policy::parse(&text).expect_err("too deep");
        assert!(error.expected.contains("at most 64"), "{error}");
    }
    for (sign, count) in [("(", 500), ("[", 1000), ("a", 10_000)] {
        let text = format!("~/{}/ => osd;", sign.repeat(count));
        assert!(Policy::parse(&text).is_err(), "{count} {sign}");
    }
}

#[test]
fn sizes_are_read_alone() {
    use cellar_policy::parse_size;
    let read = [
        ("64m", 64 << 20),
        (" 1 ", 1024),
        ("7b", 7),
        ("2 GiB", 2 << 30),
        ("0", 0),
    ];
    for (text, size) in read {
        assert_eq!(parse_size(text, 10), Some(size), "{text}");
    }
    for text in [
        "",
        "m",
        "-1",
        "1q",
        "1m1",
        "99999999999t",
        "18446744073709551615",
    ] {
        assert_eq!(parse_size(text, 10), None, "{text}");
    }
}
