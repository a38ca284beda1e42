//! `docs/reference/errors.md` lists every abort code with its meaning.
//!
//! `CELLAR_UPDATE=1 cargo test -p cellar-wire --test all error_codes` rewrites the page.

use std::collections::BTreeMap;
use std::fmt::Write;

use cellar_wire::abort::AbortCode;
use cellar_wire::uae;

/// The largest errno number of Linux that has a universal form.
const LAST_ERRNO: i32 = 124;

fn row(page: &mut String, code: AbortCode) {
    let name = code.name().unwrap_or_default();
    let sentence = code.sentence().unwrap_or_default().replace('<', "&lt;");
    let _ = writeln!(page, "| {} | `{name}` | {sentence} |", code.0);
}

#[test]
fn the_page_names_every_code() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/errors.md"
    );
    let current = std::fs::read_to_string(path).unwrap_or_default();
    let mut page = String::from(
        "# Error codes\n\n\
         The codes that servers send, generated from `crates/wire`. A command prints the name and the meaning; tools of others may\n\
         print the number alone. `CELLAR_UPDATE=1 cargo test -p cellar-wire --test all error_codes` rewrites this page.\n",
    );
    // Rx has negative codes, errno numbers end at 511; above, each table has 256 places.
    let mut tables: BTreeMap<i32, Vec<AbortCode>> = BTreeMap::new();
    for (code, _) in AbortCode::all() {
        let table = match code.0 {
            ..0 => i32::MIN,
            0..=511 => 0,
            large => large & !0xff,
        };
        tables.entry(table).or_default().push(code);
    }
    for (table, mut codes) in tables {
        codes.sort();
        let family = match table {
            i32::MIN => "Rx and its stubs",
            0 => "File server and volume server",
            1024 => "File server, about connections",
            5376 => "Databases as a whole",
            39424 => "Overseer",
            267_264 => "Protection database",
            363_520 => "Location database",
            19_270_400 => "rxkad: tickets and tokens",
            1_233_242_880 => "rxgk",
            1_492_325_120 => "Volume server",
            other => panic!("a title is missing for the table of {other}"),
        };
        let _ = writeln!(
            page,
            "\n## {family}\n\n| code | name | meaning |\n| --- | --- | --- |"
        );
        for code in codes {
            row(&mut page, code);
        }
    }
    let _ = writeln!(
        page,
        "\n## errno numbers\n\nAs plain numbers of Linux; a host that understands it gets the universal number.\n\n\
         | code | universal | name | meaning |\n| --- | --- | --- | --- |"
    );
    for errno in 1..=LAST_ERRNO {
        let code = AbortCode::from_errno(errno);
        let (Some(universal), Some(sentence)) = (uae::from_errno(errno), code.sentence()) else {
            continue;
        };
        let name = uae::name(universal).unwrap_or_default();
        let _ = writeln!(
            page,
            "| {errno} | {} | `{name}` | {sentence} |",
            universal.0
        );
    }
    if std::env::var_os("CELLAR_UPDATE").is_some() {
        std::fs::write(path, &page).expect("docs/reference/errors.md can be written");
    } else {
        assert_eq!(current, page, "docs/reference/errors.md is stale");
    }
}
