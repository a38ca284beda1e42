//! The language, read.
//!
//! ```text
//! policy     : rule*
//! rule       : "use" "(" number ")" ";"
//!            | [condition] "=>" verdict [","] ["stop" | "continue" | "cont"] ";"
//! verdict    : property*                          with commas between them or without
//!            | "steps" "{" (size ":" property* ";")* "}"
//! property   : ["location=" | "loc=" | "l="] ("osd" | "o" | "local" | "l" | "dynamic" | "d")
//!            | ("stripes=" | "str=" | "s=") number
//!            | ("stripe_size=" | "ssize=" | "ss=") (12..24 | size)
//!            | ("copies=" | "c=") number
//!            | "ec=" number "+" number
//!            | "class=" (word | quoted)
//!            | "archives=" 0..4
//!            | "archive_class=" (word | quoted)
//!            | "archive_after=" time
//!            | "recall=" ("wait" | "retry" | "refuse")
//!            | "[" [location] "," [stripes | data "+" parity] "," [stripe size] "," [copies] "]"
//! condition  : all ("|" all)*                     "||" and "&&" are the same as "|" and "&"
//! all        : not ("&" not)*
//! not        : "!" not | "(" condition ")" | predicate
//! predicate  : (">" | ">=" | "<" | "<=") size     all of them inclusive, as in the original
//!            | ["name" | "dir" | "volume"] "~" (quoted | "/" expression "/" ["i"])
//!            | ("uid" | "gid" | "owner" | "group") "=" ["-"] number
//! size       : number ["b" | "k" | "m" | "g" | "t"]
//! time       : number ["s" | "m" | "h" | "d"]
//! ```
//!
//! Each field is said once in a verdict. `#` begins a comment.

use crate::archiving::RecallMode;
use crate::error::ParseError;
use crate::pattern::{Kind, Pattern};
use crate::rule::{
    ARCHIVES_MAX, COPIES, Condition, DATA, Outcome, PARITY, Policy, Rule, STRIPES, Spread,
    StorageTarget, Verdict, is_unit, unit_max,
};
use crate::text::Text;

/// Conditions within conditions.
const DEPTH_MAX: usize = 64;

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// The position at which the text is not a policy.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut text = Text::new(text);
        let mut rules = Vec::new();
        while !text.is_at_end() {
            rules.push(rule(&mut text)?);
        }
        Ok(Self { rules })
    }
}

impl std::str::FromStr for Policy {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text)
    }
}

/// Parses a size as policies write it, such as `64m`. `plain` is the power of two that a number
/// without a unit counts. `None`: it is no size, or too large.
pub fn parse_size(text: &str, plain: u32) -> Option<u64> {
    let mut text = Text::new(text.trim());
    let number = text.number("a size").ok()?;
    let shift = match text.is_at_end() {
        true => plain,
        false => text.unit().ok()?,
    };
    let size = number.checked_mul(1u64.checked_shl(shift)?)?;
    text.is_at_end().then_some(size)
}

fn rule(text: &mut Text<'_>) -> Result<Rule, ParseError> {
    if text.keyword("use") {
        demand(text, "(")?;
        let here = text.clone();
        let number = text.number("the number of a policy")?;
        let used = match i32::try_from(number) {
            Ok(2..) => number as u32,
            _ => return Err(here.expected("the number of a policy, 2 or more")),
        };
        demand(text, ")")?;
        demand(text, ";")?;
        return Ok(Rule::Use(used));
    }
    let condition = match text.is_next("=>") {
        true => None,
        false => Some(any(text, 0)?),
    };
    if !text.sign("=>") {
        return Err(text.expected(match condition {
            Some(_) => "& or | and a condition, or =>",
            None => "=>",
        }));
    }
    let verdict = match text.keyword("steps") {
        true => Verdict::Steps(steps(text)?),
        false => Verdict::Plain(outcome(text)?),
    };
    text.sign(",");
    if text.clone().keyword("steps") {
        return Err(text.expected("stop or ; (steps are the only verdict of their rule)"));
    }
    let stop = text.keyword("stop");
    if !stop && !text.keyword("continue") {
        text.keyword("cont");
    }
    if !text.sign(";") {
        return Err(text.expected(match stop {
            true => "; behind stop",
            false => "a property (osd, local, dynamic, stripes=, stripe_size=, copies=, ec=, class=, archives=, recall=), stop or ;",
        }));
    }
    Ok(Rule::When {
        condition,
        verdict,
        stop,
    })
}

fn demand(text: &mut Text<'_>, sign: &str) -> Result<(), ParseError> {
    match text.sign(sign) {
        true => Ok(()),
        false => Err(text.expected(sign)),
    }
}

fn any(text: &mut Text<'_>, depth: usize) -> Result<Condition, ParseError> {
    let mut parts = vec![all(text, depth)?];
    while text.sign("||") || text.sign("|") {
        parts.push(all(text, depth)?);
    }
    Ok(join(parts, Condition::Any))
}

fn all(text: &mut Text<'_>, depth: usize) -> Result<Condition, ParseError> {
    let mut parts = vec![not(text, depth)?];
    while text.sign("&&") || text.sign("&") {
        parts.push(not(text, depth)?);
    }
    Ok(join(parts, Condition::All))
}

fn join(mut parts: Vec<Condition>, join: fn(Vec<Condition>) -> Condition) -> Condition {
    match parts.len() {
        1 => parts.remove(0),
        _ => join(parts),
    }
}

fn not(text: &mut Text<'_>, depth: usize) -> Result<Condition, ParseError> {
    if depth == DEPTH_MAX {
        return Err(text.expected(format!("at most {DEPTH_MAX} ! and ( within each other")));
    }
    if text.sign("!") {
        return Ok(Condition::Not(Box::new(not(text, depth + 1)?)));
    }
    if text.sign("(") {
        let condition = any(text, depth + 1)?;
        if !text.sign(")") {
            return Err(text.expected("& or | and a condition, or )"));
        }
        return Ok(condition);
    }
    predicate(text)
}

fn predicate(text: &mut Text<'_>) -> Result<Condition, ParseError> {
    if text.sign(">=") || text.sign(">") {
        return Ok(Condition::AtLeast(size(text)?));
    }
    if text.sign("<=") || text.sign("<") {
        return Ok(Condition::AtMost(size(text)?));
    }
    if text.sign("~") {
        return Ok(Condition::Name(pattern(text)?));
    }
    let here = text.clone();
    let of_pattern: fn(Pattern) -> Condition = match text.word() {
        Some("name") => Condition::Name,
        Some("dir") => Condition::Directory,
        Some("volume") => Condition::Volume,
        Some("uid") => return id(text).map(Condition::User),
        Some("gid") => return id(text).map(Condition::Group),
        Some("owner") => return id(text).map(Condition::Owner),
        Some("group") => return id(text).map(Condition::OwnerGroup),
        _ => {
            return Err(here.expected(
                "a condition (>size, <size, ~'glob', ~/expression/, dir~, volume~, uid=, gid=, owner=, group=) or =>",
            ));
        }
    };
    demand(text, "~")?;
    pattern(text).map(of_pattern)
}

fn id(text: &mut Text<'_>) -> Result<i32, ParseError> {
    const EXPECTED: &str = "an AFS id, from -2147483648 to 2147483647";
    demand(text, "=")?;
    let here = text.clone();
    let negative = text.sign("-");
    let number = i64::try_from(text.number(EXPECTED)?).map_err(|_| here.expected(EXPECTED))?;
    let number = if negative { -number } else { number };
    i32::try_from(number).map_err(|_| here.expected(EXPECTED))
}

fn pattern(text: &mut Text<'_>) -> Result<Pattern, ParseError> {
    let (kind, begin, written);
    if text.is_next("/") {
        begin = text.clone();
        written = text.expression()?;
        kind = match text.any_case() {
            true => Kind::ExpressionAnyCase,
            false => Kind::Expression,
        };
    } else if text.is_next("'") || text.is_next("\"") {
        begin = text.clone();
        written = text.quoted()?;
        kind = Kind::Glob;
    } else {
        return Err(text.expected("'glob' or /expression/"));
    }
    Pattern::new(kind, written)
        .map_err(|wrong| begin.error("a pattern that can be understood", wrong))
}

fn size(text: &mut Text<'_>) -> Result<u64, ParseError> {
    let (number, shift, here) = plain_size(text, "a size, such as 64m")?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| here.expected("a size below 16384 PiB"))
}

/// Number, unit and where they were.
fn plain_size<'a>(text: &mut Text<'a>, expected: &str) -> Result<(u64, u32, Text<'a>), ParseError> {
    text.blanks();
    let here = text.clone();
    let number = text.number(expected)?;
    Ok((number, text.unit()?, here))
}

fn count(text: &mut Text<'_>, (expected, largest): (&str, u32)) -> Result<u32, ParseError> {
    text.blanks();
    let here = text.clone();
    match text.number(expected)? {
        number if (1..=u64::from(largest)).contains(&number) => Ok(number as u32),
        _ => Err(here.expected(expected)),
    }
}

/// A stripe unit: 12 to 24 is the exponent of a power of two.
fn unit(text: &mut Text<'_>) -> Result<u32, ParseError> {
    const EXPECTED: &str =
        "a stripe size: 12 to 24 (the power of two), or a power of two from 4k to 16m";
    let (number, shift, here) = plain_size(text, EXPECTED)?;
    let bytes = match (number, shift) {
        (12..=24, 0) => Some(1 << number),
        _ => number.checked_mul(1 << shift),
    };
    match bytes {
        Some(bytes) if is_unit(bytes) => Ok(bytes as u32),
        _ => Err(here.expected(EXPECTED)),
    }
}

fn steps(text: &mut Text<'_>) -> Result<Vec<(u64, Outcome)>, ParseError> {
    demand(text, "{")?;
    let mut steps: Vec<(u64, Outcome)> = Vec::new();
    while !text.sign("}") {
        text.blanks();
        let here = text.clone();
        let from = size(text)?;
        if steps.last().is_some_and(|(before, _)| *before >= from) {
            return Err(here.expected("a larger size than that of the step before"));
        }
        demand(text, ":")?;
        let outcome = outcome(text)?;
        if !text.sign(";") && !text.is_next("}") {
            return Err(text.expected("a property, ; or }"));
        }
        steps.push((from, outcome));
    }
    Ok(steps)
}

/// Properties, as many as there are.
fn outcome(text: &mut Text<'_>) -> Result<Outcome, ParseError> {
    let mut outcome = Outcome::default();
    loop {
        let before = text.clone();
        text.sign(",");
        if !property(text, &mut outcome)? {
            *text = before;
            return check_row(text, outcome);
        }
    }
}

/// Refuses a verdict whose row of an erasure code would not fit into memory.
fn check_row(here: &Text<'_>, outcome: Outcome) -> Result<Outcome, ParseError> {
    match (outcome.spread, outcome.unit) {
        (Spread::Erasure { data, .. }, Some(unit)) if unit > unit_max(data) => {
            let most = unit_max(data) >> 10;
            let expected = format!("a stripe size of at most {most}k with {data} objects of data");
            Err(here.error(expected, format!("{}k", unit >> 10)))
        }
        _ => Ok(outcome),
    }
}

/// One property, if there is one.
fn property(text: &mut Text<'_>, outcome: &mut Outcome) -> Result<bool, ParseError> {
    text.blanks();
    let here = text.clone();
    if text.sign("[") {
        table(text, &here, outcome)?;
        return Ok(true);
    }
    let Some(word) = text.word() else {
        return Ok(false);
    };
    // `osd =>` is a rule without its `;`.
    if text.is_next("=>") || !text.sign("=") {
        return match place(word) {
            Some(place) => set(&here, "location", &mut outcome.place, place).map(|()| true),
            None => {
                *text = here;
                Ok(false)
            }
        };
    }
    match word {
        "location" | "loc" | "l" => {
            let value = text.clone();
            match text.word().and_then(place) {
                Some(place) => set(&here, "location", &mut outcome.place, place)?,
                None => return Err(value.expected("osd, local or dynamic")),
            }
        }
        "stripes" | "str" | "s" => {
            let stripes = count(text, STRIPES)?;
            spread(&here, outcome, Some(stripes), None)?;
        }
        "copies" | "c" => {
            let copies = count(text, COPIES)?;
            spread(&here, outcome, None, Some(copies))?;
        }
        "stripe_size" | "ssize" | "ss" => {
            let unit = unit(text)?;
            set(&here, "stripe size", &mut outcome.unit, unit)?;
        }
        "ec" => erasure(text, &here, outcome)?,
        "class" => {
            let name = class(text)?;
            set(&here, "class", &mut outcome.class, name)?;
        }
        "archives" => {
            let archives = archives(text)?;
            set(&here, "number of archives", &mut outcome.archives, archives)?;
        }
        "archive_class" => {
            let name = class(text)?;
            set(&here, "class of archives", &mut outcome.archive_class, name)?;
        }
        "archive_after" => {
            let seconds = text.time()?;
            set(
                &here,
                "delay of archives",
                &mut outcome.archive_after,
                seconds,
            )?;
        }
        "recall" => {
            let value = text.clone();
            match text.word().and_then(RecallMode::of_word) {
                Some(mode) => set(&here, "mode of recalls", &mut outcome.recall, mode)?,
                None => return Err(value.expected("wait, retry or refuse")),
            }
        }
        _ => {
            return Err(here.expected(
                "location=, stripes=, stripe_size=, copies=, ec=, class=, archives=, archive_class=, archive_after= or recall=",
            ));
        }
    }
    Ok(true)
}

fn archives(text: &mut Text<'_>) -> Result<u32, ParseError> {
    const EXPECTED: &str = "0 to 4 archives";
    text.blanks();
    let here = text.clone();
    match text.number(EXPECTED)? {
        number @ 0..=ARCHIVES_MAX => Ok(number as u32),
        _ => Err(here.expected(EXPECTED)),
    }
}

fn place(word: &str) -> Option<StorageTarget> {
    match word {
        "osd" | "o" => Some(StorageTarget::Objects),
        "local" | "l" => Some(StorageTarget::Local),
        "dynamic" | "d" => Some(StorageTarget::BySize),
        _ => None,
    }
}

/// Says a field, once.
fn set<T>(here: &Text<'_>, name: &str, field: &mut Option<T>, value: T) -> Result<(), ParseError> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(here.error("each property once", format!("the {name} a second time"))),
    }
}

fn spread(
    here: &Text<'_>,
    outcome: &mut Outcome,
    stripes: Option<u32>,
    copies: Option<u32>,
) -> Result<(), ParseError> {
    let (mut said_stripes, mut said_copies) = match outcome.spread {
        Spread::Unsaid => (None, None),
        Spread::Striped { stripes, copies } => (stripes, copies),
        Spread::Erasure { .. } => return Err(either(here)),
    };
    if let Some(stripes) = stripes {
        set(here, "number of stripes", &mut said_stripes, stripes)?;
    }
    if let Some(copies) = copies {
        set(here, "number of copies", &mut said_copies, copies)?;
    }
    outcome.spread = Spread::Striped {
        stripes: said_stripes,
        copies: said_copies,
    };
    Ok(())
}

fn either(here: &Text<'_>) -> ParseError {
    here.error("either ec= or stripes= and copies=", "both in one rule")
}

/// `4+2`
fn erasure(text: &mut Text<'_>, here: &Text<'_>, outcome: &mut Outcome) -> Result<(), ParseError> {
    let data = count(text, DATA)?;
    if !text.sign("+") {
        return Err(text.expected("+ and the number of parity objects"));
    }
    let parity = count(text, PARITY)?;
    match outcome.spread {
        Spread::Unsaid => outcome.spread = Spread::Erasure { data, parity },
        Spread::Striped { .. } => return Err(either(here)),
        Spread::Erasure { .. } => {
            return Err(here.error("each property once", "ec= a second time"));
        }
    }
    Ok(())
}

/// Bytes of a class's name, as the table of devices has it.
const CLASS_MAX: usize = 63;

fn class(text: &mut Text<'_>) -> Result<String, ParseError> {
    text.blanks();
    let here = text.clone();
    let name = match text.word() {
        Some(word) => word.to_owned(),
        None => text.quoted()?,
    };
    match name.len() {
        0..=CLASS_MAX => Ok(name),
        _ => Err(here.error(
            format!("a class of at most {CLASS_MAX} bytes"),
            "a longer one",
        )),
    }
}

/// `[location, stripes, stripe size, copies]`, behind the bracket.
fn table(text: &mut Text<'_>, here: &Text<'_>, outcome: &mut Outcome) -> Result<(), ParseError> {
    if !text.is_next(",") {
        let value = text.clone();
        match text.word().and_then(place) {
            Some(place) => set(here, "location", &mut outcome.place, place)?,
            None => return Err(value.expected("osd, local, dynamic or a comma")),
        }
    }
    demand(text, ",")?;
    if !text.is_next(",") {
        let before = text.clone();
        let stripes = count(text, STRIPES)?;
        match text.is_next("+") {
            true => {
                *text = before;
                erasure(text, here, outcome)?;
            }
            false => spread(here, outcome, Some(stripes), None)?,
        }
    }
    demand(text, ",")?;
    if !text.is_next(",") {
        let unit = unit(text)?;
        set(here, "stripe size", &mut outcome.unit, unit)?;
    }
    demand(text, ",")?;
    if !text.is_next("]") {
        let copies = count(text, COPIES)?;
        spread(here, outcome, None, Some(copies))?;
    }
    demand(text, "]")
}
