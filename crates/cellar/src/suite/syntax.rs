//! The command syntax of the AFS suites (`vos`, `pts`, `fs`, `bos`, `osd`).
//!
//! Administrators know this syntax by heart. It differs from `getopt`:
//!
//! 1. A switch has one dash and a whole word (`-server`). Any prefix that fits only one switch of
//!    the command works too (`-ser`), and so do two dashes.
//! 2. Every value also has a position. Words before the first switch with a value fill the
//!    parameters in their declared order: `vos create srv a name` is `vos create -server srv
//!    -partition a -name name`. The position after the last parameter is the cell's name.
//! 3. A list takes one word by position, or all words that follow its switch. The last list of a
//!    command (`Expands`) takes all remaining words by position too.
//! 4. `-205` is a value, not a switch, because groups have negative ids.
//! 5. If an operation has a switch with the name of cellar's own `--dir`, one dash means the
//!    operation's switch (`fs setacl -dir PATH`). Two dashes mean the cell's directory.
//! 6. Switches with two dashes that all operations have may come before the operation. `--server`
//!    means a database server, unless the operation has its own `-server`.
//! 7. An operation's own switch hides a common switch of the same name (`fs mkmount -cell`).
//!    Switches without effect do not make a shortened switch ambiguous (`-c` is `-cell`, not
//!    `-config`).
//!
//! A suite is a table. This module parses words against it and prints the help from it. Refusals
//! have the wording and, through [`SyntaxError`], the exit statuses of the original suites, because
//! scripts check both.

pub(crate) mod help;

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The number of values that a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// None: the switch is present or absent.
    Flag,
    /// Exactly one.
    Single,
    /// One by position, one or more after its switch.
    List,
    /// One or more, by position or after its switch.
    Expands,
}

/// One parameter of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    /// The switch, without dashes.
    pub(crate) name: &'static str,
    /// The number of values that it takes.
    pub(crate) kind: Kind,
    /// Whether the command is refused without it.
    pub(crate) required: bool,
    /// The label of the value in the help, a colon, and a short explanation.
    pub(crate) value: &'static str,
    /// Other names of the switch, which the help does not show.
    pub(crate) aliases: &'static [&'static str],
}

impl Parameter {
    /// The same parameter with further names.
    pub(crate) const fn also(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The name in help and advice.
    pub(crate) fn shown(&self) -> &'static str {
        match self.name {
            CELL_DIRECTORY => "dir",
            name => name,
        }
    }

    fn is(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    fn begins(&self, name: &str) -> bool {
        self.name.starts_with(name) || self.aliases.iter().any(|alias| alias.starts_with(name))
    }
}

/// A required parameter with one value.
pub(crate) const fn one(name: &'static str, value: &'static str) -> Parameter {
    Parameter {
        name,
        kind: Kind::Single,
        required: true,
        value,
        aliases: &[],
    }
}

/// An optional parameter with one value.
pub(crate) const fn optional(name: &'static str, value: &'static str) -> Parameter {
    Parameter {
        name,
        kind: Kind::Single,
        required: false,
        value,
        aliases: &[],
    }
}

/// A required list: one value by position.
pub(crate) const fn list(name: &'static str, value: &'static str) -> Parameter {
    Parameter {
        name,
        kind: Kind::List,
        required: true,
        value,
        aliases: &[],
    }
}

/// A required list that takes every remaining word.
pub(crate) const fn expands(name: &'static str, value: &'static str) -> Parameter {
    Parameter {
        name,
        kind: Kind::Expands,
        required: true,
        value,
        aliases: &[],
    }
}

/// An optional list that takes every remaining word.
pub(crate) const fn optional_list(name: &'static str, value: &'static str) -> Parameter {
    Parameter {
        name,
        kind: Kind::Expands,
        required: false,
        value,
        aliases: &[],
    }
}

/// A switch without a value.
pub(crate) const fn flag(name: &'static str, value: &'static str) -> Parameter {
    Parameter {
        name,
        kind: Kind::Flag,
        required: false,
        value,
        aliases: &[],
    }
}

/// The key under which the cell's directory is stored: see rule 5.
pub(crate) const CELL_DIRECTORY: &str = "celldir";

/// The switch for the local administrator. It has two dashes: `-a` means other switches.
pub(crate) const ADMINISTRATOR: &str = "admin";

/// The switch for a database server, which is `--server` in operations that have no `-server`.
pub(crate) const DATABASE_SERVER: &str = "dbserver";

/// Marks a switch that is accepted and has no effect.
pub(crate) const IGNORED: &str = "accepted, for scripts";

/// One command of a suite.
#[derive(Debug)]
pub(crate) struct Command {
    /// The name, and the short names of the original suites (`sa` for `setacl`).
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
    /// A one-line description.
    pub(crate) about: &'static str,
    /// In the order of their positions.
    pub(crate) parameters: &'static [Parameter],
    /// Arguments of example command lines, without the leading `cellar SUITE COMMAND`.
    pub(crate) examples: &'static [&'static str],
}

impl Command {
    /// Whether the operation has a parameter of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.parameters.iter().any(|p| p.name == name)
    }
}

/// A suite: its commands, and the switches that all of them take.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) commands: &'static [Command],
    pub(crate) common: &'static [Parameter],
}

/// A parsed command line.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// The command's full name.
    pub(crate) command: &'static str,
    parameters: &'static [Parameter],
    values: BTreeMap<&'static str, Vec<String>>,
}

/// The outcomes of parsing other than an invocation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Help was requested: print it on standard output and succeed.
    Help(String),
    /// The command line is empty: print this on standard output and fail.
    Bare(String),
    /// The command line is wrong: print it on standard error and fail.
    Usage(SyntaxError, String),
}

/// The error in a command line. The numbers are the low bytes of libcmd's codes `CMD_*`, which are
/// the exit statuses of the original `fs` and `bos`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyntaxError {
    /// A second value for a switch that takes one.
    NotList = 2,
    /// A value for a switch that takes none, or more words than positions.
    TooMany = 3,
    /// No operation was named.
    Bare = 4,
    /// The operation is unknown or ambiguous.
    Operation = 5,
    /// The switch is unknown or ambiguous.
    Switch = 6,
    /// A required parameter, or the value of a switch, is missing.
    TooFew = 8,
}

impl Invocation {
    /// The value of a single parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.values
            .get(name)
            .and_then(|values| values.first())
            .map(String::as_str)
    }

    /// The value of a required single parameter. Parsing has ensured that it is present.
    pub(crate) fn required(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// The values of a list, empty if not given.
    pub(crate) fn list(&self, name: &str) -> &[String] {
        self.values.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns whether the operation itself has a parameter of this name.
    pub(crate) fn has_own(&self, name: &str) -> bool {
        self.parameters.iter().any(|p| p.name == name)
    }

    /// Returns whether a flag, or any value of a parameter, was given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
}

impl Suite {
    /// Parses the words after `cellar SUITE`.
    pub(crate) fn parse(&'static self, words: &[String]) -> Result<Invocation, Refusal> {
        let words = &self.operation_first(words);
        let Some((first, rest)) = words.split_first() else {
            return Err(Refusal::Bare(format!(
                "{suite}: Type 'cellar {suite} help' or 'cellar {suite} help <topic>' for help\n",
                suite = self.name
            )));
        };
        if is_help(first) || first == "help" {
            return Err(self.topics(rest));
        }
        if first == "apropos" {
            return Err(self.apropos(rest));
        }
        if matches!(first.as_str(), "version" | "-version" | "--version") {
            return Err(Refusal::Help(format!(
                "cellar {}\n",
                env!("CARGO_PKG_VERSION")
            )));
        }
        let command = self.command(first)?;
        if rest.iter().any(|word| is_help(word)) {
            return Err(Refusal::Help(self.command_help(command)));
        }
        self.arguments(command, rest)
    }

    /// The words with the operation first: common switches with two dashes may come before it.
    fn operation_first(&self, words: &[String]) -> Vec<String> {
        let mut at = 0;
        while let Some(switch) = words.get(at).and_then(|word| word.strip_prefix("--")) {
            let (name, attached) = match switch.split_once('=') {
                Some((name, _)) => (name, true),
                None => (switch, false),
            };
            let name = match name {
                "server" => DATABASE_SERVER,
                name => name,
            };
            let known = self.common.iter().find(|p| p.shown() == name);
            match known.map(|p| p.kind) {
                _ if name == "help" => break,
                Some(Kind::Single) if !attached => at += 2,
                Some(_) => at += 1,
                None => break,
            }
        }
        match words.split_at_checked(at) {
            Some((before, [operation, rest @ ..])) => {
                let operation = std::slice::from_ref(operation);
                [operation, before, rest].concat()
            }
            Some((before, [])) if !before.is_empty() => Vec::new(),
            _ => words.to_vec(),
        }
    }

    /// The help for the named operations, or for the suite.
    fn topics(&'static self, topics: &[String]) -> Refusal {
        let topics = topics.iter().filter(|word| as_switch(word).is_none());
        let mut text = String::new();
        for topic in topics {
            match self.command(topic) {
                Ok(command) => text.push_str(&self.command_help(command)),
                Err(_) => {
                    let problem = format!("{}: Unknown topic '{topic}'\n", self.name);
                    return Refusal::Usage(SyntaxError::Operation, problem);
                }
            }
        }
        Refusal::Help(if text.is_empty() { self.help() } else { text })
    }

    /// The operations whose name or description contains a word.
    fn apropos(&self, words: &[String]) -> Refusal {
        let Some(word) = words.iter().find(|word| as_switch(word).is_none()) else {
            let problem = format!("{}: Missing required parameter '-topic'\n", self.name);
            return Refusal::Usage(SyntaxError::TooFew, problem);
        };
        let word = word.to_lowercase();
        let has = |c: &&Command| c.name.contains(&word) || c.about.to_lowercase().contains(&word);
        let found: String = self
            .commands
            .iter()
            .filter(has)
            .map(|c| format!("{}: {}\n", c.name, c.about))
            .collect();
        Refusal::Help(match found.as_str() {
            "" => "Sorry, no commands found\n".to_owned(),
            _ => found,
        })
    }

    fn command(&'static self, word: &str) -> Result<&'static Command, Refusal> {
        if let Some(exact) = self
            .commands
            .iter()
            .find(|c| c.name == word || c.aliases.contains(&word))
        {
            return Ok(exact);
        }
        let fitting: Vec<_> = self
            .commands
            .iter()
            .filter(|c| c.name.starts_with(word))
            .collect();
        let suite = self.name;
        let problem = match fitting[..] {
            [only] => return Ok(only),
            [] => {
                let known = self.commands.iter().map(|c| c.name);
                let meant = did_you_mean(word, known);
                format!(
                    "{suite}: Unrecognized operation '{word}'; type 'cellar {suite} help' for list{meant}\n"
                )
            }
            _ => format!(
                "{suite}: Ambiguous operation '{word}'; type 'cellar {suite} help' for list. It could be {}\n",
                names(fitting.iter().map(|c| c.name))
            ),
        };
        Err(Refusal::Usage(SyntaxError::Operation, problem))
    }

    fn arguments(
        &'static self,
        command: &'static Command,
        words: &[String],
    ) -> Result<Invocation, Refusal> {
        let mut values: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        // The last switch that takes values. After the first such switch, words without a switch
        // are its values.
        let mut open: Option<&'static Parameter> = None;
        // An option with two dashes takes the next word only. OpenAFS's commands have none.
        let mut option: Option<&'static Parameter> = None;
        for word in words {
            if let Some(switch) = as_switch(word) {
                let (name, attached) = match switch.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (switch, None),
                };
                let parameter = self.switch(command, word, name)?;
                let is_option = parameter.kind == Kind::Single && word.starts_with("--");
                let entry = values.entry(parameter.name).or_default();
                match (parameter.kind, attached) {
                    (Kind::Flag, None) => {}
                    (Kind::Flag, Some(_)) => {
                        let problem =
                            format!("Switch '-{}' doesn't take an argument", parameter.name);
                        return Err(self.usage(command, SyntaxError::TooMany, &problem));
                    }
                    (_, Some(value)) => {
                        entry.push(value);
                        open = if is_option { open } else { Some(parameter) };
                    }
                    (_, None) if is_option => option = Some(parameter),
                    (_, None) => open = Some(parameter),
                }
                continue;
            }
            let parameter = match option.take().or(open) {
                Some(parameter) => parameter,
                None => self.place(command, &values)?,
            };
            let entry = values.entry(parameter.name).or_default();
            if parameter.kind == Kind::Single && !entry.is_empty() {
                let problem = format!("Too many values after switch -{}", parameter.name);
                return Err(self.usage(command, SyntaxError::NotList, &problem));
            }
            entry.push(word.clone());
        }
        let own = |p: &&Parameter| command.parameters.iter().any(|own| own.name == p.name);
        let common = self.common.iter().filter(|p| !own(p));
        let all = command.parameters.iter().chain(common);
        for parameter in all.filter(|p| p.kind != Kind::Flag) {
            let given = values.get(parameter.name);
            if given.is_some_and(Vec::is_empty) {
                let problem = format!("The field '-{}' isn't completed properly", parameter.name);
                return Err(self.usage(command, SyntaxError::TooFew, &problem));
            }
            if parameter.kind == Kind::Single && given.is_some_and(|v| v.len() > 1) {
                let problem = format!("Too many values after switch -{}", parameter.name);
                return Err(self.usage(command, SyntaxError::NotList, &problem));
            }
            if parameter.required && given.is_none() {
                let problem = format!("Missing required parameter '-{}'", parameter.name);
                return Err(self.usage(command, SyntaxError::TooFew, &problem));
            }
        }
        Ok(Invocation {
            command: command.name,
            parameters: command.parameters,
            values,
        })
    }

    /// The parameter that the next word without a switch belongs to. The cell's name has the
    /// position after a command's own parameters.
    fn place(
        &'static self,
        command: &'static Command,
        values: &BTreeMap<&'static str, Vec<String>>,
    ) -> Result<&'static Parameter, Refusal> {
        let has_cell = !matches!(self.name, "fs" | "osd");
        let cell = self.common.iter().filter(|p| has_cell && p.name == "cell");
        let free = command.parameters.iter().chain(cell).find(|p| {
            p.kind != Kind::Flag && (!values.contains_key(p.name) || p.kind == Kind::Expands)
        });
        free.ok_or_else(|| {
            let list = command.parameters.iter().find(|p| p.kind == Kind::List);
            let hint = list.map_or_else(String::new, |list| {
                format!("; write -{} first to give several values", list.name)
            });
            let problem = format!("Too many arguments{hint}");
            self.usage(command, SyntaxError::TooMany, &problem)
        })
    }

    fn switch(
        &'static self,
        command: &'static Command,
        word: &str,
        name: &str,
    ) -> Result<&'static Parameter, Refusal> {
        let two_dashes = word.starts_with("--");
        let name = match name {
            "dir" if two_dashes || !command.has("dir") => CELL_DIRECTORY,
            "server" if two_dashes && !command.has("server") => DATABASE_SERVER,
            name => name,
        };
        let all = || command.parameters.iter().chain(self.common);
        if let Some(exact) = all().find(|p| p.is(name)) {
            return Ok(exact);
        }
        let whole_only = [CELL_DIRECTORY, ADMINISTRATOR];
        let fits = |p: &&Parameter| !whole_only.contains(&p.name) && p.begins(name);
        let mut fitting: Vec<_> = all().filter(fits).collect();
        // A prefix that fits a switch of the command and a common one means the command's.
        if fitting.len() > 1 {
            let own = |p: &&&Parameter| command.parameters.iter().any(|own| std::ptr::eq(own, **p));
            let own: Vec<_> = fitting.iter().filter(own).copied().collect();
            if own.len() == 1 {
                fitting = own;
            }
        }
        // A user who shortens a switch means one that has an effect.
        if fitting.iter().any(|p| p.value != IGNORED) {
            fitting.retain(|p| p.value != IGNORED);
        }
        let mut problem = match fitting[..] {
            [only] => return Ok(only),
            _ => format!(
                "Unrecognized or ambiguous switch '{word}'; type 'cellar {} help {}' for detailed help",
                self.name, command.name
            ),
        };
        if fitting.is_empty() {
            let effective = all().filter(|p| p.value != IGNORED);
            problem.push_str(&did_you_mean(name, effective.map(|p| p.shown())));
        } else {
            let fitting = names(fitting.iter().map(|p| p.name));
            let _ = write!(problem, ". It could be -{fitting}");
        }
        Err(self.usage(command, SyntaxError::Switch, &problem))
    }

    fn usage(&self, command: &Command, wrong: SyntaxError, problem: &str) -> Refusal {
        let text = format!(
            "{suite}: {problem}\nUsage: {usage}\n'cellar {suite} {name} --help' describes the operation.\n",
            suite = self.name,
            name = command.name,
            usage = self.usage_line(command)
        );
        Refusal::Usage(wrong, text)
    }
}

/// The word without its dashes, if it is a switch.
fn as_switch(word: &str) -> Option<&str> {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    // "--" alone is a switch, which no operation has.
    (name.is_empty() && word.len() == 2 || name.starts_with(|c: char| c.is_ascii_alphabetic()))
        .then_some(name)
}

fn is_help(word: &str) -> bool {
    matches!(word, "--help" | "-help" | "-h")
}

/// The least similarity of a name that a message suggests.
const SIMILARITY_MIN: f64 = 0.85;

/// A question for the known name that is most like a wrong one; empty if none is like it.
fn did_you_mean(wrong: &str, known: impl Iterator<Item = &'static str>) -> String {
    let near = known.map(|name| (strsim::jaro_winkler(name, wrong), name));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((similarity, name)) if similarity > SIMILARITY_MIN => {
            format!(". Did you mean '{name}'?")
        }
        _ => String::new(),
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests;
