//! `docs/rpc-index.md` lists every procedure that is declared.
//!
//! `CELLAR_UPDATE=1 cargo test -p cellar-wire --test all rpc_index` rewrites the page. A server of
//! a package compiles only with a handler for each procedure that is not declared as refused.

use std::fmt::Write;

use cellar_wire::{Package, Stream};

use crate::packages;

/// The upper three bytes of the opcodes of Cellar's extensions: "CEL".
const OWN: u32 = 0x0043_454c;

fn section(page: &mut String, package: &Package) {
    let port = match package.port {
        0 => "every port of a server".to_owned(),
        port => format!("port {port}"),
    };
    let _ = writeln!(
        page,
        "\n## {}: service {}, {port}\n",
        package.name, package.service_id
    );
    let _ = writeln!(
        page,
        "| Opcode | Procedure | Streams | Status |\n|---|---|---|---|"
    );
    for procedure in package.procedures {
        let stream = match procedure.stream {
            Stream::None => "",
            Stream::Request => "request",
            Stream::Reply => "reply",
            Stream::Both => "both",
            Stream::Results => "results",
        };
        let status = match procedure.refuses {
            Some(code) => format!("refuses ({code})"),
            None if procedure.opcode >> 8 == OWN => "handler; Cellar's own".to_owned(),
            None => "handler".to_owned(),
        };
        let _ = writeln!(
            page,
            "| {} | {} | {stream} | {status} |",
            procedure.opcode, procedure.name
        );
    }
}

#[test]
fn the_index_names_every_procedure() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rpc-index.md");
    let current = std::fs::read_to_string(path).unwrap_or_default();
    let mut page = String::from(
        "# RPC index\n\n\
         The procedures of all packages, generated from the declarations in `crates/wire`. A procedure is answered
\
         in Cellar's server of the package, or every call is refused with the code in brackets. A handler
\
         may refuse calls, too. `CELLAR_UPDATE=1 cargo test -p cellar-wire --test all rpc_index` rewrites this page.
",
    );
    let mut last = "";
    for message in packages::all_messages() {
        if message.package.name != last {
            last = message.package.name;
            section(&mut page, message.package);
        }
    }
    if std::env::var_os("CELLAR_UPDATE").is_some() {
        std::fs::write(path, &page).expect("docs/rpc-index.md can be written");
    } else {
        assert_eq!(current, page, "docs/rpc-index.md is stale");
    }
}
