//! The help of the suites, printed from their tables.

use std::fmt::Write as _;

use super::{
    ADMINISTRATOR, CELL_DIRECTORY, Command, DATABASE_SERVER, IGNORED, Kind, Parameter, Suite,
};

impl Suite {
    pub(super) fn usage_line(&self, command: &Command) -> String {
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
        let common = self.common.iter().filter(|p| !command.has(p.name));
        let shown = |p: &Parameter| match p.name {
            DATABASE_SERVER if !command.has("server") => Parameter {
                name: "-server",
                ..*p
            },
            _ => *p,
        };
        describe(&mut text, &common.map(shown).collect::<Vec<_>>());
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

fn describe(text: &mut String, parameters: &[Parameter]) {
    let left = |p: &Parameter| match p.kind {
        _ if p.name == CELL_DIRECTORY => "--dir <directory>".to_owned(),
        _ if p.name == ADMINISTRATOR => "--admin".to_owned(),
        Kind::Flag => format!("-{}", p.name),
        Kind::Single => format!("-{} <{}>", p.name, label(p)),
        Kind::List | Kind::Expands => format!("-{} <{}>+", p.name, label(p)),
    };
    let (ignored, parameters): (Vec<_>, Vec<_>) =
        parameters.iter().copied().partition(|p| p.value == IGNORED);
    let width = parameters.iter().map(|p| left(p).len()).max().unwrap_or(0);
    for parameter in parameters {
        let about = match parameter.value.split_once(": ") {
            Some((_, about)) => about,
            None if parameter.kind == Kind::Flag => parameter.value,
            None => "",
        };
        let about = if about.is_empty() && !parameter.required {
            "optional"
        } else {
            about
        };
        let line = format!("  {:width$}  {about}", left(&parameter));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if !ignored.is_empty() {
        let names: Vec<_> = ignored.iter().map(|p| format!("-{}", p.name)).collect();
        let _ = writeln!(text, "  Accepted without effect: {}", names.join(" "));
    }
}
