//! Policies printed. Short, human and tabular forms are read back as the same policy.

use std::fmt::{self, Write as _};

use crate::english;
use crate::pattern::{Kind, Pattern};
use crate::rule::{Condition, Outcome, Policy, Rule, Spread, StorageTarget, Verdict};

/// How a policy is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// One line, short words: `>64m=>o,s=4,ss=19;`
    Short,
    /// A rule a line, long words: `>64m => location=osd, stripes=4, stripe_size=512k;`
    #[default]
    Human,
    /// A rule a line, verdicts as tables: `>64m => [o,4,19,];`
    Tabular,
    /// English sentences, which are not read back.
    Long,
}

impl Policy {
    /// The policy in a form; rules are separated by line feeds, but for [`Form::Short`].
    pub fn print(&self, form: Form) -> String {
        let mut out = String::new();
        for (index, rule) in self.rules.iter().enumerate() {
            if index > 0 {
                out.push(if form == Form::Short { ' ' } else { '\n' });
            }
            out.push_str(&rule.print(form));
        }
        out
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print(Form::Human))
    }
}

impl Rule {
    /// The rule in a form.
    pub fn print(&self, form: Form) -> String {
        let (condition, verdict, stop) = match self {
            _ if form == Form::Long => return english::rule(self),
            Self::Use(used) => return format!("use({used});"),
            Self::When {
                condition,
                verdict,
                stop,
            } => (condition, verdict, *stop),
        };
        let short = form == Form::Short;
        let mut out = String::new();
        if let Some(condition) = condition {
            push_condition(&mut out, condition, short);
            out.push_str(if short { "" } else { " " });
        }
        out.push_str("=>");
        let said = match verdict {
            Verdict::Plain(outcome) => print_outcome(outcome, form),
            Verdict::Steps(steps) => print_steps(steps, form),
        };
        if !said.is_empty() {
            out.push_str(if short { "" } else { " " });
            out.push_str(&said);
        }
        if stop {
            // `[…] stop` as in the original; words want something between them.
            out.push_str(match (said.is_empty(), form) {
                (true, Form::Short) => "stop",
                (false, Form::Short) => ",stop",
                (false, Form::Human) => ", stop",
                _ => " stop",
            });
        }
        out.push(';');
        out
    }
}

fn push_condition(out: &mut String, condition: &Condition, short: bool) {
    match condition {
        Condition::Not(inner) => {
            out.push('!');
            let parts = matches!(**inner, Condition::All(_) | Condition::Any(_));
            push_part(out, inner, parts, short);
        }
        Condition::All(parts) => {
            for (index, part) in parts.iter().enumerate() {
                if index > 0 {
                    out.push_str(if short { "&" } else { " & " });
                }
                let nested = matches!(part, Condition::All(_) | Condition::Any(_));
                push_part(out, part, nested, short);
            }
        }
        Condition::Any(parts) => {
            for (index, part) in parts.iter().enumerate() {
                if index > 0 {
                    out.push_str(if short { "|" } else { " | " });
                }
                push_part(out, part, matches!(part, Condition::Any(_)), short);
            }
        }
        Condition::AtLeast(bytes) => out.extend([">", &size(*bytes)]),
        Condition::AtMost(bytes) => out.extend(["<", &size(*bytes)]),
        Condition::Name(pattern) => out.extend(["~", &print_pattern(pattern)]),
        Condition::Directory(pattern) => out.extend(["dir~", &print_pattern(pattern)]),
        Condition::Volume(pattern) => out.extend(["volume~", &print_pattern(pattern)]),
        Condition::User(id) => out.extend(["uid=", &id.to_string()]),
        Condition::Group(id) => out.extend(["gid=", &id.to_string()]),
        Condition::Owner(id) => out.extend(["owner=", &id.to_string()]),
        Condition::OwnerGroup(id) => out.extend(["group=", &id.to_string()]),
    }
}

fn push_part(out: &mut String, part: &Condition, parentheses: bool, short: bool) {
    if parentheses {
        out.push('(');
    }
    push_condition(out, part, short);
    if parentheses {
        out.push(')');
    }
}

/// The whole condition, as it is written.
pub(crate) fn print_pattern(pattern: &Pattern) -> String {
    match pattern.kind() {
        Kind::Glob => quote(pattern.text()),
        Kind::Expression => format!("/{}/", slashes(pattern.text())),
        Kind::ExpressionAnyCase => format!("/{}/i", slashes(pattern.text())),
    }
}

/// In quotes that are not in it, if possible.
fn quote(text: &str) -> String {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    let mut out = String::from(quote);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        out.push(c);
        match c {
            '\\' => out.extend(rest.next()),
            c if c == quote => out.push(quote),
            _ => {}
        }
    }
    out.push(quote);
    out
}

fn slashes(expression: &str) -> String {
    let mut out = String::new();
    let mut rest = expression.chars();
    while let Some(c) = rest.next() {
        match c {
            '/' => out.push_str("\\/"),
            '\\' => {
                out.push(c);
                out.extend(rest.next());
            }
            c => out.push(c),
        }
    }
    out
}

/// A size in the largest unit that says it exactly.
fn size(bytes: u64) -> String {
    let units = [(40, 't'), (30, 'g'), (20, 'm'), (10, 'k')];
    let unit = units
        .iter()
        .find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    match unit {
        Some((shift, letter)) => format!("{}{letter}", bytes >> shift),
        None => bytes.to_string(),
    }
}

fn print_steps(steps: &[(u64, Outcome)], form: Form) -> String {
    let short = form == Form::Short;
    let mut out = String::from(if short { "steps{" } else { "steps {" });
    for (from, outcome) in steps {
        let said = print_outcome(outcome, form);
        let _ = match short {
            true => write!(out, "{}:{said};", size(*from)),
            false => write!(out, " {}: {said};", size(*from)),
        };
    }
    out.push_str(if short { "}" } else { " }" });
    out
}

fn print_outcome(outcome: &Outcome, form: Form) -> String {
    if form == Form::Tabular {
        return print_table(outcome);
    }
    let short = form == Form::Short;
    let word =
        |long: &'static str, abbreviated: &'static str| if short { abbreviated } else { long };
    let mut fields = Vec::new();
    if let Some(place) = outcome.place {
        fields.push(match short {
            true => place.letter().to_owned(),
            false => format!("location={}", place.word()),
        });
    }
    match outcome.spread {
        Spread::Unsaid => {}
        Spread::Striped { stripes, copies } => {
            let stripes = stripes.map(|n| format!("{}={n}", word("stripes", "s")));
            let copies = copies.map(|n| format!("{}={n}", word("copies", "c")));
            fields.extend(stripes.into_iter().chain(copies));
        }
        Spread::Erasure { data, parity } => fields.push(format!("ec={data}+{parity}")),
    }
    if let Some(unit) = outcome.unit {
        fields.push(match short {
            true => format!("ss={}", unit.trailing_zeros()),
            false => format!("stripe_size={}", size(unit.into())),
        });
    }
    fields.extend(trailing(outcome));
    fields.join(if short { "," } else { ", " })
}

fn print_table(outcome: &Outcome) -> String {
    let number = |n: Option<u32>| n.map_or(String::new(), |n| n.to_string());
    let (stripes, copies) = match outcome.spread {
        Spread::Unsaid => Default::default(),
        Spread::Striped { stripes, copies } => (number(stripes), number(copies)),
        Spread::Erasure { data, parity } => (format!("{data}+{parity}"), String::new()),
    };
    let place = outcome.place.map_or("", StorageTarget::letter);
    let unit = number(outcome.unit.map(u32::trailing_zeros));
    let mut out = format!("[{place},{stripes},{unit},{copies}]");
    for field in trailing(outcome) {
        out.push(' ');
        out.push_str(&field);
    }
    out
}

/// The fields that are printed in the same way in all forms, behind the others.
fn trailing(outcome: &Outcome) -> impl Iterator<Item = String> {
    let named =
        |key: &str, name: &Option<String>| name.as_deref().map(|name| print_name(key, name));
    let archives = outcome.archives.map(|n| format!("archives={n}"));
    let after = outcome.archive_after;
    let after = after.map(|seconds| format!("archive_after={}", time(seconds)));
    let class = named("class", &outcome.class);
    let archive_class = named("archive_class", &outcome.archive_class);
    let recall = outcome.recall;
    let recall = recall.map(|mode| format!("recall={}", mode.word()));
    [class, archives, archive_class, after, recall]
        .into_iter()
        .flatten()
}

/// A time in seconds as the language writes it: in the largest unit that is exact.
pub fn time(seconds: u32) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m")];
    let mut exact = units.iter();
    match exact.find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit)) {
        Some((unit, letter)) => format!("{}{letter}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

fn print_name(key: &str, class: &str) -> String {
    let is_word = class.starts_with(|c: char| c.is_ascii_alphabetic())
        && class.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match is_word {
        true => format!("{key}={class}"),
        false => format!("{key}={}", quote(class)),
    }
}

impl StorageTarget {
    /// The word of the language.
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Objects => "osd",
            Self::BySize => "dynamic",
        }
    }

    fn letter(self) -> &'static str {
        &self.word()[..1]
    }
}
