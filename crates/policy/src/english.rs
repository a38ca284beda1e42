//! Rules as sentences.

use cellar_wire::object::Shape;

use crate::archiving::RecallMode;
use crate::pattern::{Kind, Pattern};
use crate::rule::{Condition, Outcome, Rule, Spread, StorageTarget, Verdict};

/// A rule as a sentence.
pub(crate) fn rule(rule: &Rule) -> String {
    let (condition, verdict, stop) = match rule {
        Rule::Use(used) => return format!("Then the rules of policy {used}."),
        Rule::When {
            condition,
            verdict,
            stop,
        } => (condition, verdict, *stop),
    };
    let mut out = match condition {
        None => "All files".to_owned(),
        Some(condition) => format!("Files {}", describe_condition(condition)),
    };
    match verdict {
        Verdict::Plain(outcome) if outcome.is_empty() => {
            out.push_str(": nothing more is said about them");
        }
        Verdict::Plain(outcome) => out.extend([": ", &fields(outcome)]),
        Verdict::Steps(steps) => {
            let steps: Vec<String> = steps
                .iter()
                .map(|(from, outcome)| format!("from {} {}", bytes(*from), fields(outcome)))
                .collect();
            out.extend([", by size: ", &steps.join("; ")]);
        }
    }
    out.push_str(if stop { ". Then stop." } else { "." });
    out
}

fn describe_condition(condition: &Condition) -> String {
    let within = |part: &Condition| match part {
        Condition::All(_) | Condition::Any(_) => format!("({})", describe_condition(part)),
        part => describe_condition(part),
    };
    let join = |parts: &[Condition], word: &str| {
        let parts: Vec<String> = parts.iter().map(within).collect();
        parts.join(word)
    };
    match condition {
        Condition::Not(inner) => format!("not {}", within(inner)),
        Condition::All(parts) => join(parts, " and "),
        Condition::Any(parts) => join(parts, " or "),
        Condition::AtLeast(size) => format!("of {} or more", bytes(*size)),
        Condition::AtMost(size) => format!("of {} or less", bytes(*size)),
        Condition::Name(pattern) => matches("whose name", pattern),
        Condition::Directory(pattern) => matches("whose directory", pattern),
        Condition::Volume(pattern) => matches("whose volume", pattern),
        Condition::User(id) | Condition::Group(id) if *id < 0 => {
            format!("stored by members of group {id}")
        }
        Condition::User(id) | Condition::Group(id) => format!("stored by user {id}"),
        Condition::Owner(id) => format!("owned by user {id}"),
        Condition::OwnerGroup(id) => format!("of the UNIX group {id}"),
    }
}

fn matches(what: &str, pattern: &Pattern) -> String {
    let text = pattern.text();
    match pattern.kind() {
        Kind::Glob => format!("{what} is like {text}"),
        Kind::Expression => format!("{what} matches {text}"),
        Kind::ExpressionAnyCase => format!("{what} matches {text} in any case"),
    }
}

fn fields(outcome: &Outcome) -> String {
    let mut said = Vec::new();
    said.extend(outcome.place.map(|place| {
        match place {
            StorageTarget::Local => "on the file server's own disk",
            StorageTarget::Objects => "in objects",
            StorageTarget::BySize => "in objects if they are large enough",
        }
        .to_owned()
    }));
    match outcome.spread {
        Spread::Unsaid => {}
        Spread::Striped { stripes, copies } => {
            said.extend(stripes.map(|n| count(n, "stripe", "stripes")));
            said.extend(copies.map(|n| count(n, "copy", "copies")));
        }
        Spread::Erasure { data, parity } => said.push(erasure(data, parity)),
    }
    said.extend(
        outcome
            .unit
            .map(|unit| format!("in units of {}", bytes(unit.into()))),
    );
    said.extend(outcome.class.as_ref().map(|class| match class.as_str() {
        "" => "on devices of any class".to_owned(),
        class => format!("on devices of class {class}"),
    }));
    said.extend(outcome.archives.map(|n| match n {
        0 => "no copy in archives".to_owned(),
        n => format!("copies in {}", count(n, "archive", "archives")),
    }));
    said.extend(
        outcome
            .archive_class
            .as_ref()
            .map(|class| match class.as_str() {
                "" => "in archives of any class".to_owned(),
                class => format!("in archives of class {class}"),
            }),
    );
    let after = outcome.archive_after.map(crate::print::time);
    said.extend(after.map(|time| format!("archived {time} after the last change")));
    let recall = outcome.recall.map(|mode| match mode {
        RecallMode::Wait => "recalled while the reader waits",
        RecallMode::Retry => "recalled while the reader tries again",
        RecallMode::Refuse => "not recalled by opening",
    });
    said.extend(recall.map(str::to_owned));
    match said.is_empty() {
        true => "nothing is said".to_owned(),
        false => said.join(", "),
    }
}

fn count(n: u32, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn erasure(data: u32, parity: u32) -> String {
    format!("an erasure code of {data} data and {parity} parity objects")
}

/// A shape in words, such as `4 stripes of 1 MiB in 2 copies`.
pub fn shape(shape: &Shape) -> String {
    use cellar_wire::object::Scheme;
    let unit = bytes(shape.unit.into());
    match (shape.scheme, shape.stripes, shape.copies) {
        (Scheme::Erasure, data, parity) => format!("{}, in units of {unit}", erasure(data, parity)),
        (Scheme::Striped, 1, 1) => "one object".to_owned(),
        (Scheme::Striped, 1, copies) => format!("one object in {copies} copies"),
        (Scheme::Striped, stripes, 1) => format!("{stripes} stripes in units of {unit}"),
        (Scheme::Striped, stripes, copies) => {
            format!("{stripes} stripes in units of {unit}, in {copies} copies")
        }
    }
}

/// A size as people say it: exact, in the largest unit that is.
pub fn bytes(size: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units
        .iter()
        .find(|(shift, _)| size > 0 && size.trailing_zeros() >= *shift);
    match unit {
        Some((shift, unit)) => format!("{} {unit}", size >> shift),
        None => format!("{size} bytes"),
    }
}
