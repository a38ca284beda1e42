//! The help of the suites, printed from their tables.

use std::fmt::Write as _;

use super::{
    ADMINISTRATOR, CELL_DIRECTORY, Command, DATABASE_SERVER, IGNORED, Kind, Parameter, Suite,
};

impl Suite {
    /// The common parameters that an operation does not hide, with their names in its help.
    pub(crate) fn common_of(&self, command: &Command) -> Vec<Parameter> {
        let common = self.common.iter().filter(|p| !command.has(p.name));
        let shown = |p: &Parameter| match p.name {
            DATABASE_SERVER if !command.has("server") => Parameter {
                name: "-server",
                ..*p
            },
            _ => *p,
        };
        common.map(shown).collect()
    }

    pub(crate) fn usage_line(&self, command: &Command) -> String {
        let mut line = format!("cellar {} {}", self.name, command.name);
        for parameter in command.parameters {
            let value = label(parameter);
            let more = if matches!(parameter.kind, Kind::List | Kind::Expands) {
                "+"
            } else {
                ""
            };
            let _ = match (parameter.kind, parameter.required) {
                (Kind::Flag, _) => write!(line, " [-{}]", parameter.name),
                (_, true) => write!(line, " -{} <{value}>{more}", parameter.name),
                (_, false) => write!(line, " [-{} <{value}>{more}]", parameter.name),
            };
        }
        line
    }

    pub(super) fn command_help(&self, command: &Command) -> String {
        let mut text = format!("{}\n\nUsage: {}\n", command.about, self.usage_line(command));
        if !command.aliases.is_empty() {
            let _ = writeln!(text, "Also known as: {}", command.aliases.join(", "));
        }
        if !command.parameters.is_empty() {
            text.push_str("\nParameters, in the order of their positions:\n");
            describe(&mut text, command.parameters);
        }
        text.push_str("\nCommon parameters of all operations:\n");
        describe(&mut text, &self.common_of(command));
        if !command.examples.is_empty() {
            text.push_str("\nExamples:\n");
            for example in command.examples {
                let line = format!("  cellar {} {} {example}", self.name, command.name);
                let _ = writeln!(text, "{}", line.trim_end());
            }
        }
        text
    }

    pub(super) fn help(&self) -> String {
        let mut text = format!(
            "{}\n\nUsage: cellar {} OPERATION ...\n\nOperations:\n",
            self.about, self.name
        );
        let width = self
            .commands
            .iter()
            .map(|c| c.name.len())
            .max()
            .unwrap_or(0);
        let more = [
            ("apropos", "Find operations by a word in their description."),
            ("help", "Show this list, or describe operations."),
            ("version", "Show the version."),
        ];
        let own = self.commands.iter().map(|c| (c.name, c.about));
        for (name, about) in own.chain(more) {
            let _ = writeln!(text, "  {name:width$}  {about}");
        }
        let _ = writeln!(
            text,
            "\nSwitches have one dash or two and may be shortened. The name of a switch may be left \
             out if the values are in the order that the help shows.\n'cellar {} OPERATION --help' describes one operation.",
            self.name
        );
        text
    }
}

/// The part of `value` before the colon: the label of the value in a usage line.
fn label(parameter: &Parameter) -> &'static str {
    parameter
        .value
        .split_once(':')
        .map_or(parameter.value, |(label, _)| label)
}

/// The rows of a table of parameters: the switch with its value, and the explanation.
pub(crate) struct Rows {
    pub(crate) rows: Vec<(String, &'static str)>,
    /// Switches without effect.
    pub(crate) ignored: Vec<String>,
}

/// The table of `parameters`.
pub(crate) fn rows(parameters: &[Parameter]) -> Rows {
    let left = |p: &Parameter| match p.kind {
        _ if p.name == CELL_DIRECTORY => "--dir <directory>".to_owned(),
        _ if p.name == ADMINISTRATOR => "--admin".to_owned(),
        Kind::Flag => format!("-{}", p.name),
        Kind::Single => format!("-{} <{}>", p.name, label(p)),
        Kind::List | Kind::Expands => format!("-{} <{}>+", p.name, label(p)),
    };
    let about = |p: &Parameter| match p.value.split_once(": ") {
        Some((_, about)) => about,
        None if p.kind == Kind::Flag => p.value,
        None if !p.required => "optional",
        None => "",
    };
    let (ignored, parameters): (Vec<_>, Vec<_>) =
        parameters.iter().copied().partition(|p| p.value == IGNORED);
    Rows {
        rows: parameters.iter().map(|p| (left(p), about(p))).collect(),
        ignored: ignored.iter().map(|p| format!("-{}", p.name)).collect(),
    }
}

fn describe(text: &mut String, parameters: &[Parameter]) {
    let Rows { rows, ignored } = rows(parameters);
    let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or(0);
    for (left, about) in rows {
        let line = format!("  {left:width$}  {about}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if !ignored.is_empty() {
        let _ = writeln!(text, "  Accepted without effect: {}", ignored.join(" "));
    }
}
