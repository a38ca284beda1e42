//! The words of the command line, before they are parsed: options that all commands share may come
//! before the command too (`cellar --cell demo.cell vos examine root.cell`). They are moved behind
//! the other words of the command.

use std::ffi::{OsStr, OsString};

/// Shared options with a value.
const WITH_VALUE: [&str; 4] = ["--cell", "--server", "--dbserver", "--dir"];
/// Shared options without a value.
const FLAGS: [&str; 7] = [
    "--localauth",
    "--admin",
    "--noauth",
    "--encrypt",
    "--no-dns",
    "--verbose",
    "--json",
];
/// Options of the program itself with a value, which stay in their place.
const OWN: [&str; 2] = ["--log", "--log-format"];

/// Moves shared options that come before the command behind its last word, or before `--`.
pub(crate) fn options_last(line: Vec<OsString>) -> Vec<OsString> {
    let mut words = line.into_iter();
    let mut kept: Vec<OsString> = words.next().into_iter().collect();
    let mut moved: Vec<OsString> = Vec::new();
    let mut rest: Vec<OsString> = Vec::new();
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        let (name, attached) = match text.split_once('=') {
            Some((name, _)) => (name, true),
            None => (text, false),
        };
        if WITH_VALUE.contains(&name) {
            let value = match attached {
                true => None,
                false => words.next(),
            };
            moved.push(match value {
                // Attached, the value is no word of a suite's list.
                Some(value) => joined(&word, &value),
                None => word,
            });
        } else if FLAGS.contains(&text) {
            moved.push(word);
        } else if text == "-v" {
            moved.push("--verbose".into());
        } else if OWN.contains(&name) && !attached {
            kept.push(word);
            kept.extend(words.next());
        } else if OWN.contains(&name) {
            kept.push(word);
        } else {
            rest.push(word);
        }
        if !rest.is_empty() {
            break;
        }
    }
    rest.extend(words);
    let end = rest.iter().position(|word| word == "--");
    let end = end.unwrap_or(rest.len());
    rest.splice(end..end, moved);
    kept.extend(rest);
    kept
}

fn joined(name: &OsStr, value: &OsStr) -> OsString {
    let mut word = name.to_owned();
    word.push("=");
    word.push(value);
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        let words = options_last(words).into_iter();
        let words: Vec<_> = words.map(|w| w.into_string().expect("text")).collect();
        words.join(" ")
    }

    #[test]
    fn shared_options_come_last() {
        for (line, wanted) in [
            ("cellar ls -la /afs", "cellar ls -la /afs"),
            (
                "cellar --cell a.b -v ls --server x /afs",
                "cellar ls --server x /afs --cell=a.b --verbose",
            ),
            (
                "cellar --dir=/srv --log debug --json vos examine -id v",
                "cellar --log debug vos examine -id v --dir=/srv --json",
            ),
            (
                "cellar --cell a.b login --keep -- job --cell x",
                "cellar login --keep --cell=a.b -- job --cell x",
            ),
            ("cellar --cell", "cellar --cell"),
            ("cellar --help", "cellar --help"),
            ("cellar", "cellar"),
        ] {
            assert_eq!(moved(line), wanted, "{line}");
        }
    }
}
