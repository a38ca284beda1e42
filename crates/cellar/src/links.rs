//! The names under which links start this program. `ln -s cellar vos` makes a `vos`: AFS's commands
//! behave as the originals do, and `mount.cellar` is the helper of mount(8).

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::failure::{Failure, Outcome};

/// The suites, whose syntax is that of the originals.
const SUITES: [&str; 5] = ["vos", "pts", "fs", "bos", "osd"];
/// The exit status of `aklog` for a wrong command line. Source: aklog(1).
const AKLOG_USAGE: u8 = 1;
/// The exit status of `aklog` for a path outside AFS.
const AKLOG_BAD_PATH: u8 = 6;
/// Switches of `aklog` that change nothing here. Tokens are always fetched again, and no library of
/// today takes single-DES keys.
const AKLOG_IGNORED: [&str; 2] = ["-force", "-insecure_des"];
/// Switches of `aklog` that are refused, with the reason and the remedy.
const AKLOG_REFUSED: [(&str, &str); 8] = [
    (
        "-524",
        "cells take Kerberos 5 tickets as they are; leave the switch out",
    ),
    (
        "-hosts",
        "'cellar fs whereis PATH' lists the servers of a path",
    ),
    ("-zsubs", "Cellar's servers send no Zephyr notices"),
    (
        "-linked",
        "CellServDB's links to other cells are not read; name both cells",
    ),
    (
        "-config",
        "the variable CELLAR_CELLSERVDB names another CellServDB",
    ),
    (
        "-keytab",
        "on a server, commands act with the cell's key by --localauth; 'cellar login --keytab' takes the key of a user",
    ),
    (
        "-principal",
        "the user is the owner of the tickets; 'cellar login PRINCIPAL' asks for another's password",
    ),
    (
        "-token-lifetime",
        "a token lasts as long as its ticket; 'kinit -l TIME' asks for another time",
    ),
];

/// The command line for a link's name; the line itself under another name.
pub(crate) fn words(line: Vec<OsString>) -> Outcome<Vec<OsString>> {
    let name = line.first().map(Path::new).and_then(Path::file_name);
    let name = name.and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let rest = line.get(1..).unwrap_or_default();
    let words = |first: &[&str], rest: &[OsString]| {
        let first = first.iter().map(OsString::from);
        first.chain(rest.iter().cloned()).collect()
    };
    Ok(match name.as_str() {
        suite if SUITES.contains(&suite) => words(&["cellar", suite], rest),
        "tokens" if rest.is_empty() => words(&["cellar", "tokens", "--original"], &[]),
        "tokens" => words(&["cellar", "tokens"], rest),
        "unlog" => words(&["cellar", "logout"], &unlog(rest)),
        "aklog" => {
            let xlog = std::env::var_os("HOME").map(|home| Path::new(&home).join(".xlog"));
            words(
                &["cellar", "login", "--aklog"],
                &aklog(rest, xlog.as_deref())?,
            )
        }
        "mount.cellar" | "mount.fuse.cellar" => words(&["cellar", "mount-helper"], rest),
        _ => line,
    })
}

/// The options of `unlog`, in the form of `cellar logout`.
fn unlog(words: &[OsString]) -> Vec<OsString> {
    let mut options = Vec::new();
    let mut in_list = false;
    for word in words {
        match word.to_str() {
            Some("-cell" | "-c") => in_list = true,
            Some("-help") => options.push("--help".into()),
            Some(cell) if in_list && !cell.starts_with('-') => {
                options.push(format!("--cell={cell}").into());
            }
            _ => options.push(word.clone()),
        }
    }
    options
}

/// The options of `aklog`, in the form of `cellar login`. Without a cell or path, the cells are
/// those that the file `xlog` lists, one a line.
fn aklog(words: &[OsString], xlog: Option<&Path>) -> Outcome<Vec<OsString>> {
    let wrong = |message: String| Failure::usage(format!("aklog: {message}")).coded(AKLOG_USAGE);
    let mut options: Vec<OsString> = Vec::new();
    let mut cells: Vec<OsString> = Vec::new();
    let mut realms = 0;
    // A realm belongs to the cell before it.
    let mut after_cell = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        let mut value = || {
            let value = words.next().and_then(|word| word.to_str());
            value.ok_or_else(|| wrong(format!("{text} needs a value")))
        };
        let realm_follows = std::mem::take(&mut after_cell);
        match text {
            "-c" | "-cell" => {
                cells.push(format!("--cell={}", value()?).into());
                after_cell = true;
            }
            "-k" if realm_follows => {
                options.push(format!("--realm={}", value()?).into());
                realms += 1;
            }
            "-k" => return Err(wrong("-k REALM follows the cell that it is for".to_owned())),
            "-p" | "-path" => cells.push(cell_of(value()?)?),
            "-noprdb" => options.push("--no-register".into()),
            "-d" => options.push("--debug".into()),
            "-noauth" => options.push("--check".into()),
            "-setpag" => options.push("--setpag".into()),
            "-help" => options.push("--help".into()),
            ignored if AKLOG_IGNORED.contains(&ignored) => {}
            option if option.starts_with("--") => options.push(word.clone()),
            option if option.starts_with('-') => {
                let refused = AKLOG_REFUSED.iter().find(|(name, _)| *name == option);
                return Err(wrong(match refused {
                    Some((name, why)) => format!("{name} is not supported: {why}"),
                    None => format!("unknown option {option}"),
                }));
            }
            place if place.contains('/') || matches!(place, "." | "..") => {
                cells.push(cell_of(place)?);
            }
            cell => {
                cells.push(format!("--cell={cell}").into());
                after_cell = true;
            }
        }
    }
    if realms > 0 && cells.len() > 1 {
        return Err(wrong(
            "-k is for one cell: run aklog once for each cell".to_owned(),
        ));
    }
    if cells.is_empty()
        && let Some(listed) = xlog.and_then(|xlog| std::fs::read_to_string(xlog).ok())
    {
        let listed = listed.split_whitespace();
        cells.extend(listed.map(|cell| format!("--cell={cell}").into()));
    }
    options.extend(cells);
    Ok(options)
}

/// The option for the cell of a path.
fn cell_of(path: &str) -> Outcome<OsString> {
    let named = path.strip_prefix("/afs/").and_then(|rest| {
        let cell = rest.split('/').next()?.trim_start_matches('.');
        (!cell.is_empty()).then(|| cell.to_owned())
    });
    let reported = || crate::mounted::cell_of(path).map(|cell| cell.name.to_string());
    let cell = reported().or(named);
    let cell = cell.ok_or_else(|| {
        let failure = Failure::usage(format!("aklog: {path} is in no cell"));
        failure.coded(AKLOG_BAD_PATH)
    })?;
    Ok(format!("--cell={cell}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> String {
        let line = line.split(' ').map(OsString::from).collect();
        let words = words(line).expect("words").into_iter();
        let words: Vec<_> = words.map(|w| w.into_string().expect("text")).collect();
        words.join(" ")
    }

    #[test]
    fn links_are_the_commands_of_their_names() {
        for (line, wanted) in [
            (
                "/usr/bin/vos examine v -cell a.b",
                "cellar vos examine v -cell a.b",
            ),
            ("./pts help", "cellar pts help"),
            ("cellar vos help", "cellar vos help"),
            ("/opt/cellar-1.0 ls", "/opt/cellar-1.0 ls"),
            ("tokens", "cellar tokens --original"),
            ("tokens --json", "cellar tokens --json"),
            ("unlog", "cellar logout"),
            ("unlog -cell a.b c.d", "cellar logout --cell=a.b --cell=c.d"),
            ("aklog", "cellar login --aklog"),
            (
                "aklog -c a.b -k A.B -noprdb",
                "cellar login --aklog --realm=A.B --no-register --cell=a.b",
            ),
            (
                "aklog -d -noauth -setpag a.b -k A.B",
                "cellar login --aklog --debug --check --setpag --realm=A.B --cell=a.b",
            ),
            (
                "aklog a.b /afs/.c.d/x -force -insecure_des",
                "cellar login --aklog --cell=a.b --cell=c.d",
            ),
            (
                "/sbin/mount.cellar a.b /mnt -o rw",
                "cellar mount-helper a.b /mnt -o rw",
            ),
        ] {
            assert_eq!(of(line), wanted, "{line}");
        }
        for (line, reason) in [
            ("aklog -c", "needs a value"),
            ("aklog -nosuch", "unknown option"),
            ("aklog -k A.B", "follows the cell"),
            ("aklog a.b -noprdb -k A.B", "follows the cell"),
            ("aklog a.b -k A.B c.d", "one cell"),
            ("aklog -hosts /afs/a.b", "fs whereis"),
            ("aklog -zsubs /afs/a.b", "Zephyr"),
            ("aklog -linked", "name both cells"),
            ("aklog -524", "Kerberos 5"),
            ("aklog -keytab x -principal y", "--localauth"),
        ] {
            let line = line.split(' ').map(OsString::from).collect();
            let refused = words(line).expect_err(reason).to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn aklog_without_a_cell_takes_the_cells_of_xlog() {
        let home = tempfile::tempdir().expect("tempdir");
        let xlog = home.path().join(".xlog");
        let of = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            aklog(&words, Some(&xlog)).expect("options")
        };
        assert!(of(&[]).is_empty());
        std::fs::write(&xlog, "a.b\nc.d\n").expect("file");
        assert_eq!(
            of(&["-noprdb"]),
            ["--no-register", "--cell=a.b", "--cell=c.d"]
        );
        assert_eq!(of(&["e.f"]), ["--cell=e.f"]);
    }
}
