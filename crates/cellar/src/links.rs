//! The names under which links start this program. `ln -s cellar vos` makes a `vos`: AFS's commands
//! behave as the originals do, and `mount.cellar` is the helper of mount(8).

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::failure::{Failure, Outcome};

/// The suites, whose syntax is that of the originals.
const SUITES: [&str; 5] = ["vos", "pts", "fs", "bos", "osd"];
/// Options of `aklog` without a meaning here.
const AKLOG_IGNORED: [&str; 8] = [
    "-d",
    "-force",
    "-hosts",
    "-zsubs",
    "-linked",
    "-524",
    "-insecure_des",
    "-insecure-des",
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
        "aklog" => words(&["cellar", "login", "--aklog"], &aklog(rest)?),
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

/// The options of `aklog`, in the form of `cellar login`.
fn aklog(words: &[OsString]) -> Outcome<Vec<OsString>> {
    let mut options: Vec<OsString> = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        let mut value = || {
            let value = words.next().and_then(|word| word.to_str());
            value.ok_or_else(|| Failure::usage(format!("aklog: {text} needs a value")))
        };
        match text {
            "-c" | "-cell" => options.push(format!("--cell={}", value()?).into()),
            "-k" => options.push(format!("--realm={}", value()?).into()),
            "-p" | "-path" => options.push(cell_of(value()?)?),
            "-noprdb" => options.push("--no-register".into()),
            "-help" => options.push("--help".into()),
            ignored if AKLOG_IGNORED.contains(&ignored) => {}
            "-setpag" | "-noauth" => {
                return Err(Failure::usage(format!(
                    "aklog: {text} is not supported; 'cellar login -- COMMAND' runs a command with tokens of its own"
                )));
            }
            option if option.starts_with("--") => options.push(word.clone()),
            option if option.starts_with('-') => {
                return Err(Failure::usage(format!("aklog: unknown option {option}")));
            }
            place if place.contains('/') => options.push(cell_of(place)?),
            cell => options.push(format!("--cell={cell}").into()),
        }
    }
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
    let cell = cell.ok_or_else(|| Failure::usage(format!("aklog: {path} is in no cell")))?;
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
                "aklog -d -c a.b -k A.B -noprdb",
                "cellar login --aklog --cell=a.b --realm=A.B --no-register",
            ),
            (
                "aklog a.b /afs/.c.d/x -force",
                "cellar login --aklog --cell=a.b --cell=c.d",
            ),
            (
                "/sbin/mount.cellar a.b /mnt -o rw",
                "cellar mount-helper a.b /mnt -o rw",
            ),
        ] {
            assert_eq!(of(line), wanted, "{line}");
        }
        for line in ["aklog -setpag", "aklog -c", "aklog -nosuch"] {
            let line = line.split(' ').map(OsString::from).collect();
            assert!(words(line).is_err());
        }
    }
}
