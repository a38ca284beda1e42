//! The manual pages of the suites, from their tables.

use roff::{Roff, bold, roman};

use super::{beginning, reference};
use crate::suite::syntax::help::{Rows, rows};
use crate::suite::syntax::{Command, Suite};

/// A manual page of section 1.
pub(super) struct Page {
    pub(super) name: String,
    pub(super) text: String,
}

/// The page of a suite, and those of its operations.
pub(super) fn pages(suite: &Suite) -> Vec<Page> {
    let of_operations = suite
        .commands
        .iter()
        .map(|command| of_operation(suite, command));
    std::iter::once(of_suite(suite))
        .chain(of_operations)
        .collect()
}

/// The name of the page of a command.
fn name_of(command: &str) -> String {
    format!("cellar {command}").replace(' ', "-")
}

fn of_suite(suite: &Suite) -> Page {
    let name = name_of(suite.name);
    let mut roff = beginning(&name, 1, suite.about);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([
        bold(format!("cellar {}", suite.name)),
        roman(" OPERATION ..."),
    ]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(format!(
        "The syntax is that of OpenAFS. Switches have one dash or two and may be shortened. The \
         name of a switch may be left out if the values are in the order of the synopsis. A link \
         to cellar with the name {} is this command.",
        suite.name.split(' ').next().unwrap_or_default()
    ))]);
    roff.control("SH", ["OPERATIONS"]);
    for command in suite.commands {
        reference(
            &mut roff,
            &format!("cellar {} {}", suite.name, command.name),
            command.about,
        );
    }
    Page {
        name,
        text: roff.render(),
    }
}

fn of_operation(suite: &Suite, command: &Command) -> Page {
    let name = name_of(&format!("{} {}", suite.name, command.name));
    let mut roff = beginning(&name, 1, command.about);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman(suite.usage_line(command))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(command.about)]);
    if !command.aliases.is_empty() {
        roff.text([roman(format!(
            "Other names: {}.",
            command.aliases.join(", ")
        ))]);
    }
    if !command.parameters.is_empty() {
        roff.control("SH", ["PARAMETERS"]);
        roff.text([roman("In the order of their positions:")]);
        table(&mut roff, rows(command.parameters));
    }
    roff.control("SH", ["COMMON PARAMETERS"]);
    table(&mut roff, rows(&suite.common_of(command)));
    if !command.examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
        roff.control("nf", []);
        for example in command.examples {
            let line = format!("cellar {} {} {example}", suite.name, command.name);
            roff.text([roman(line.trim_end())]);
        }
        roff.control("fi", []);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(format!("{}(1)", name_of(suite.name)))]);
    Page {
        name,
        text: roff.render(),
    }
}

fn table(roff: &mut Roff, Rows { rows, ignored }: Rows) {
    for (left, about) in rows {
        roff.control("TP", []);
        roff.text([bold(left)]);
        roff.text([roman(about)]);
    }
    if !ignored.is_empty() {
        roff.control("PP", []);
        roff.text([roman(format!(
            "Accepted without effect: {}.",
            ignored.join(" ")
        ))]);
    }
}
