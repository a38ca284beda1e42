//! `cellar check`: what hinders a server or client of a cell on this machine, and the command that
//! mends it.
//!
//! Each module examines one subject and returns findings. If `--dir` or `./cell-data` holds a cell,
//! the machine is a server, and the checks of servers run too. Nothing is changed, no partition is
//! opened, and a running server is not disturbed.

mod directory;
mod kdc_clock;
mod keys;
mod machine;
mod network;
mod ports;

use std::ffi::OsStr;
use std::time::Duration;

use cellar_admin::table::{Side, Table};
use serde::Serialize;
use serde_json::json;

use crate::cell_directory::{CellDirectory, Identity};
use crate::default_directory;
use crate::failure::{FAILED, Failure, Outcome, USAGE};
use crate::output::{one_line, out, outln};
use crate::quantities;
use crate::session::CellOptions;
use crate::suite::print_json;

/// The version of the form of the JSON. It grows if a field is renamed or removed.
const SCHEMA: u32 = 1;

#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status:
  0  no warning and no error
  1  at least one warning or error
  2  the check cannot run: no cell is known, or the command line is wrong

Each finding has a severity (ok, note, warning, error), one sentence, and the command that mends it.
A server is checked if --dir or ./cell-data holds a cell, whether it runs or not. On other machines
the command checks what a client needs.

Examples:
  cellar check --dir /var/lib/cellar        before or while the server runs
  cellar check --cell example.org           on a client
  cellar check --json | jq '.findings[] | select(.severity == \"error\")'")]
pub(crate) struct Options {
    #[command(flatten)]
    cell: CellOptions,
    /// Print JSON; docs/operating/monitoring.md describes its fields.
    #[arg(long)]
    json: bool,
    /// Print only what is not in order.
    #[arg(long, short)]
    quiet: bool,
    /// The longest time that a server has for an answer.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = quantities::limit)]
    timeout: Duration,
}

/// How urgent a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// In order.
    Ok,
    /// In order, and good to know.
    Note,
    /// Works, but slower or less safely than it could.
    Warning,
    /// Hinders the cell.
    Error,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// The subject: `ports`, `buffers`, `directory`, `disk`, `keys`, `databases`, `servers`,
    /// `clock`, `dns` or `kdc`.
    check: &'static str,
    severity: Severity,
    /// One sentence.
    text: String,
    /// The command that mends it, if there is one.
    remedy: Option<String>,
}

impl Finding {
    fn new(check: &'static str, severity: Severity, text: impl Into<String>) -> Self {
        Self {
            check,
            severity,
            text: text.into(),
            remedy: None,
        }
    }

    fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(check, Severity::Ok, text)
    }

    fn note(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(check, Severity::Note, text)
    }

    fn warning(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, text)
    }

    fn error(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(check, Severity::Error, text)
    }

    /// The same finding with the words of the command that mends it. A shell takes the remedy as it
    /// is printed: words with blanks and other special characters are quoted.
    fn mended_by<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        let words: Vec<W> = words.into_iter().collect();
        self.remedy = command(words.iter().map(AsRef::as_ref));
        self
    }
}

/// The words as a command for a shell. `None`: a word is no text, or has a character that the
/// screen cannot show.
fn command<'a>(words: impl Iterator<Item = &'a OsStr>) -> Option<String> {
    let words: Option<Vec<&str>> = words.map(OsStr::to_str).collect();
    let words = words.filter(|words| !words.concat().contains(char::is_control))?;
    shlex::try_join(words).ok()
}

/// The server of this machine.
struct Server {
    directory: CellDirectory,
    identity: Identity,
}

pub(crate) async fn run(options: Options) -> Outcome {
    let server = server(&options);
    let mut findings = Vec::new();
    match &server {
        Ok(Some(server)) => {
            findings.extend(ports::check(server));
            findings.extend(machine::buffers(server));
            findings.extend(directory::check(server));
            findings.extend(keys::check(server));
        }
        Ok(None) => {}
        // The servers of the cell can be checked in spite of it.
        Err(finding) => findings.push(finding.clone()),
    }
    let is_server = matches!(server, Ok(Some(_)));
    match network::check(
        &options.cell,
        options.timeout,
        server.ok().flatten().as_ref(),
    )
    .await
    {
        Ok(more) => findings.extend(more),
        Err(failure) if findings.is_empty() => return Err(failure.coded(USAGE)),
        Err(failure) => findings.push(Finding::error("databases", failure.to_string())),
    }
    print(&findings, is_server, &options)?;
    let worst = findings.iter().map(|finding| finding.severity).max();
    match worst {
        Some(Severity::Warning | Severity::Error) => Err(Failure::ended(FAILED)),
        _ => Ok(()),
    }
}

/// The server in the named or default directory. The command line may name another cell.
fn server(options: &Options) -> Result<Option<Server>, Finding> {
    let failed = |failure: Failure| Finding::error("directory", failure.to_string());
    let directory = default_directory::named_or_default(options.cell.dir.as_deref());
    let directory = directory.map_err(failed)?;
    let identity = directory.identity();
    let identity = identity.map_err(|cause| failed(Failure::new(cause)))?;
    let Some(identity) = identity else {
        return match &options.cell.dir {
            Some(named) => Err(Finding::error(
                "directory",
                format!("{} holds no cell", named.display()),
            )
            .mended_by([
                "cellar".as_ref(),
                "up".as_ref(),
                "--dir".as_ref(),
                named.as_os_str(),
            ])),
            None => Ok(None),
        };
    };
    let is_other = options
        .cell
        .cell
        .as_deref()
        .is_some_and(|name| !name.eq_ignore_ascii_case(identity.cell.name.as_str()));
    Ok((!is_other).then_some(Server {
        directory,
        identity,
    }))
}

fn print(findings: &[Finding], is_server: bool, options: &Options) -> Outcome {
    let shown = |finding: &&Finding| !options.quiet || finding.severity >= Severity::Warning;
    let shown: Vec<_> = findings.iter().filter(shown).collect();
    if options.json {
        return print_json(&json!({
            "schema": SCHEMA,
            "server": is_server,
            "findings": shown,
        }));
    }
    let mut table = Table::new([
        ("Check", Side::Left),
        ("", Side::Left),
        ("Finding", Side::Left),
    ]);
    for finding in &shown {
        let severity = match finding.severity {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "WARNING",
            Severity::Error => "ERROR",
        };
        table.row([
            finding.check.to_owned(),
            severity.to_owned(),
            one_line(&finding.text).into_owned(),
        ]);
    }
    if !table.is_empty() {
        out!("{table}");
    }
    let mut mended = findings.iter().filter_map(|finding| {
        let remedy = finding.remedy.as_deref()?;
        (finding.severity >= Severity::Warning).then_some((finding, remedy))
    });
    if let Some(first) = mended.next() {
        outln!("\nTo mend:");
        for (finding, remedy) in std::iter::once(first).chain(mended) {
            outln!("  {:<40}  # {}", one_line(remedy), finding.check);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_can_be_pasted_into_a_shell() {
        let home = tempfile::tempdir().expect("tempdir");
        for name in ["plain", "two words", "it's", "$HOME `x` \\ \"", "-rf", "*"] {
            let path = home.path().join(name);
            std::fs::write(&path, "").expect("file");
            let finding = Finding::error("disk", "wrong");
            let remedy = finding.mended_by([OsStr::new("rm"), path.as_os_str()]);
            let remedy = remedy.remedy.expect("a command");
            let shell = std::process::Command::new("sh")
                .args(["-c", &remedy])
                .status();
            assert!(shell.expect("sh").success(), "{remedy}");
            assert!(!path.exists(), "{remedy}");
        }
        let plain = ["mount", "/vicepa"].map(OsStr::new).into_iter();
        assert_eq!(command(plain).as_deref(), Some("mount /vicepa"));
        assert_eq!(command(["mount", "a\nb"].map(OsStr::new).into_iter()), None);
    }
}
