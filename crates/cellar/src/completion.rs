//! `cellar completion`: prints the completion of command lines for a shell, from the declarations
//! that parse them.
//!
//! Bash completes the switches of the suites with one dash, as administrators type them. The other
//! shells complete the same switches with two dashes, which the suites accept too.

mod bash;

use clap::{Arg, ArgAction, Command, ValueEnum};
use clap_complete::{Shell, generate};

use crate::failure::Outcome;
use crate::osd_serve;
use crate::output;
use crate::suite::syntax::{Command as Operation, Kind, Parameter, Suite};
use crate::suite::{self, osd};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar completion bash > /etc/bash_completion.d/cellar
  . <(cellar completion bash)                     for this shell only
  cellar completion zsh > /usr/local/share/zsh/site-functions/_cellar
  cellar completion fish > ~/.config/fish/completions/cellar.fish")]
pub(crate) struct Options {
    /// The shell.
    shell: Name,
}

/// A shell with completion.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// Also for links named vos, pts, fs, bos and osd.
    Bash,
    Zsh,
    Fish,
}

/// Runs the command. `program` is the whole command line of cellar.
pub(crate) fn run(options: &Options, program: Command) -> Outcome {
    output::write(script(options.shell, program).as_bytes());
    Ok(())
}

fn script(shell: Name, program: Command) -> String {
    let mut program = with_suites(program);
    let mut text = Vec::new();
    let kind = match shell {
        Name::Bash => Shell::Bash,
        Name::Zsh => Shell::Zsh,
        Name::Fish => Shell::Fish,
    };
    generate(kind, &mut program, "cellar", &mut text);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if matches!(shell, Name::Bash) {
        text.push_str(&bash::suites(&suite::ALL));
    }
    text
}

/// The command line of cellar with the operations of the suites.
fn with_suites(program: Command) -> Command {
    let shown = program
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let shown: Vec<_> = shown.cloned().collect();
    let all = shown.into_iter().map(|command| {
        let found = suite::ALL
            .iter()
            .find(|suite| suite.name == command.get_name());
        match found {
            Some(suite) if suite.name == osd::SUITE.name => tree(suite)
                .subcommand(tree(&osd::POLICY_SUITE).name("policy"))
                .subcommand(osd_serve::command().name("serve")),
            Some(suite) => tree(suite),
            None => command,
        }
    });
    let options = program.get_arguments().cloned();
    Command::new("cellar")
        .args(options.collect::<Vec<_>>())
        .subcommands(all.collect::<Vec<_>>())
}

fn tree(suite: &'static Suite) -> Command {
    let operations = suite
        .commands
        .iter()
        .map(|command| operation(suite, command));
    Command::new(suite.name)
        .about(suite.about)
        .subcommands(operations)
}

fn operation(suite: &'static Suite, operation: &'static Operation) -> Command {
    // `-help` is one of the common switches.
    let command = Command::new(operation.name).disable_help_flag(true);
    let options = switches(suite, operation).into_iter().map(option);
    command.about(operation.about).args(options)
}

fn option((name, parameter): (&'static str, Parameter)) -> Arg {
    let about = parameter.value.split_once(": ");
    let about = about.map_or(parameter.value, |(_, about)| about);
    let action = match parameter.kind {
        Kind::Flag => ArgAction::SetTrue,
        _ => ArgAction::Append,
    };
    Arg::new(name).long(name).help(about).action(action)
}

/// The switches of an operation, with their names without dashes. An operation's own switch hides a
/// common one of the same name.
fn switches(suite: &Suite, operation: &Operation) -> Vec<(&'static str, Parameter)> {
    let common = suite.common_of(operation);
    let all = operation.parameters.iter().copied().chain(common);
    let mut found: Vec<(&'static str, Parameter)> = Vec::new();
    for parameter in all {
        let name = parameter.shown().trim_start_matches('-');
        if !found.iter().any(|(known, _)| *known == name) {
            found.push((name, parameter));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn each_shell_has_the_operations_and_their_switches() {
        for (shell, parts) in [
            (Name::Bash, ["'vos create')", "-maxquota", "'osd policy'"]),
            (
                Name::Zsh,
                [
                    "_cellar__subcmd__vos__subcmd__create",
                    "--maxquota",
                    "policy",
                ],
            ),
            (Name::Fish, ["create", "maxquota", "policy"]),
        ] {
            let text = script(shell, crate::Cli::command());
            for part in parts {
                assert!(text.contains(part), "{shell:?}: no {part}");
            }
        }
    }

    /// Completes the last word of a line in a real bash.
    fn completed(line: &[&str]) -> Vec<String> {
        let script = script(Name::Bash, crate::Cli::command());
        let words: Vec<_> = line.iter().map(|word| format!("'{word}'")).collect();
        let end = format!(
            "\nCOMP_WORDS=({}); COMP_CWORD={}; COMPREPLY=(); \
             _cellar_or_suite '{}' '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            words.join(" "),
            line.len() - 1,
            line[0],
            line[line.len() - 1],
            line[line.len() - 2],
        );
        let file = tempfile::NamedTempFile::new().expect("file");
        std::fs::write(file.path(), script + &end).expect("script");
        let done = Process::new("bash")
            .arg(file.path())
            .output()
            .expect("bash");
        assert!(
            done.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        let text = String::from_utf8(done.stdout).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn bash_completes_operations_and_switches() {
        assert_eq!(completed(&["vos", "exam"]), ["examine"]);
        assert_eq!(
            completed(&["/usr/lib/cellar/bin/vos", "create", "-maxq"]),
            ["-maxquota"]
        );
        assert_eq!(completed(&["cellar", "vos", "exam"]), ["examine"]);
        assert_eq!(
            completed(&["cellar", "vos", "create", "--maxq"]),
            ["--maxquota"]
        );
        assert_eq!(completed(&["cellar", "osd", "poli"]), ["policy"]);
        assert_eq!(completed(&["cellar", "osd", "policy", "te"]), ["test"]);
        assert_eq!(
            completed(&["cellar", "stat"]),
            ["stat", "status", "statistics"]
        );
        assert_eq!(completed(&["cellar", "db", "exp"]), ["export"]);
        assert_eq!(
            completed(&["cellar", "pts", "examine", "-name", "nosuchfile"]),
            [""]
        );
    }
}
