//! `pts interactive` and `pts source`: read operations, one a line, from standard input or a file.
//!
//! As with OpenAFS, a refused operation does not end a script, and the script succeeds. `source`
//! within a script reads the other file first and then continues.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};

use super::run;
use crate::failure::{Failure, Outcome};

/// The deepest nesting of `source`. It bounds a file that reads itself.
const DEPTH_MAX: usize = 16;

/// A source of lines.
type Lines = Box<dyn BufRead + Send>;

pub(super) async fn standard_input() -> Outcome {
    lines(Box::new(BufReader::new(std::io::stdin())), true).await
}

pub(super) async fn file(path: &str) -> Outcome {
    lines(open(path)?, false).await
}

fn open(path: &str) -> Outcome<Lines> {
    let file = File::open(path).map_err(|cause| {
        let text = cause.to_string();
        let reason = text.split(" (os error").next().unwrap_or_default();
        Failure::new(format!("{path}: {reason}"))
    })?;
    Ok(Box::new(BufReader::new(file)))
}

async fn lines(first: Lines, from_terminal: bool) -> Outcome {
    let prompt = from_terminal && std::io::stdin().is_terminal();
    let mut sources = vec![first];
    while let Some(source) = sources.last_mut() {
        if prompt {
            eprint!("pts> ");
        }
        let mut line = String::new();
        if source.read_line(&mut line)? == 0 {
            sources.pop();
            continue;
        }
        let words = words(&line);
        match words.first().map(String::as_str) {
            None => {}
            Some("quit") => break,
            Some("source") if words.len() == 2 => {
                let opened = match sources.len() < DEPTH_MAX {
                    true => open(&words[1]),
                    false => Err(Failure::new(format!(
                        "Error sourcing '{}': files are nested more than {DEPTH_MAX} deep",
                        words[1]
                    ))),
                };
                match opened {
                    Ok(file) => sources.push(file),
                    Err(failure) => _ = failure.report("pts"),
                }
            }
            Some(_) => {
                if let Err(failure) = Box::pin(run(words)).await {
                    failure.report("pts");
                }
            }
        }
    }
    Ok(())
}

/// Splits a line into words. Blanks within double quotes do not separate words.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn quotes_hold_blanks_together() {
        assert_eq!(
            words("  adduser ann  staff \n"),
            ["adduser", "ann", "staff"]
        );
        assert_eq!(words("delete \"a b\" \"\""), ["delete", "a b", ""]);
        assert!(words(" \n").is_empty());
    }
}
