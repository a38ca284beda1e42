//! Patterns of names: shell globs and POSIX extended regular expressions.
//!
//! 1. Both become one kind of expression (`regex-syntax`), so one automaton holds all patterns of
//!    all policies.
//! 2. A glob must match the whole name. `*` takes slashes and leading dots, too; `?` and `.` are
//!    one character of UTF-8. `*` also matches names that are not UTF-8.
//! 3. In the brackets of a POSIX expression a backslash is a character like others, and so are `&`,
//!    `~` and `[`. They are rewritten into the engine's form.

use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_syntax::hir::Hir;

/// Bytes of a pattern; names have 255 at most.
const TEXT_BYTES_MAX: usize = 1024;
/// Bytes of automaton that one pattern may need.
const AUTOMATON_BYTES_MAX: usize = 256 << 10;
/// Groups within groups.
const NEST_MAX: u32 = 64;

/// A pattern as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    kind: Kind,
    text: String,
}

/// The kind of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `'*.root'`
    Glob,
    /// `/\.root$/`
    Expression,
    /// `/\.root$/i`: upper and lower case are the same.
    ExpressionAnyCase,
}

impl Pattern {
    /// A pattern, if it is well-formed.
    ///
    /// # Errors
    /// The fault of the pattern.
    pub fn new(kind: Kind, text: impl Into<String>) -> Result<Self, String> {
        let pattern = Self {
            kind,
            text: text.into(),
        };
        if pattern.text.len() > TEXT_BYTES_MAX {
            return Err(format!("more than {TEXT_BYTES_MAX} bytes"));
        }
        let hir = pattern.hir()?;
        let limits = thompson::Config::new()
            .utf8(false)
            .nfa_size_limit(Some(AUTOMATON_BYTES_MAX));
        thompson::Compiler::new()
            .configure(limits)
            .build_from_hir(&hir)
            .map_err(|error| error.to_string())?;
        Ok(pattern)
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its text, without delimiters.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The engine's form of it.
    pub(crate) fn hir(&self) -> Result<Hir, String> {
        let expression = match self.kind {
            Kind::Glob => of_glob(&self.text),
            Kind::Expression | Kind::ExpressionAnyCase => of_posix(&self.text),
        };
        let config = syntax::Config::new()
            .utf8(false)
            .dot_matches_new_line(true)
            .case_insensitive(self.kind == Kind::ExpressionAnyCase)
            .nest_limit(NEST_MAX);
        syntax::parse_with(&expression, &config).map_err(|error| match error {
            regex_syntax::Error::Parse(error) => error.kind().to_string(),
            regex_syntax::Error::Translate(error) => error.kind().to_string(),
            error => error.to_string(),
        })
    }
}

/// Puts a character into an expression as itself.
fn literal(out: &mut String, c: char) {
    if regex_syntax::is_meta_character(c) {
        out.push('\\');
    }
    out.push(c);
}

/// The expression of a glob.
fn of_glob(glob: &str) -> String {
    let mut out = String::with_capacity(glob.len() + 16);
    out.push_str("\\A(?:");
    let mut rest = glob.chars();
    while let Some(c) = rest.next() {
        match c {
            '*' => out.push_str("(?-u:.)*"),
            '?' => out.push('.'),
            '\\' => literal(&mut out, rest.next().unwrap_or('\\')),
            '[' => match bracket(rest.as_str(), true) {
                Some((set, behind)) => {
                    out.push_str(&set);
                    rest = behind.chars();
                }
                None => literal(&mut out, '['),
            },
            c => literal(&mut out, c),
        }
    }
    out.push_str(")\\z");
    out
}

/// The engine's form of a POSIX extended expression.
fn of_posix(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len() + 16);
    let mut rest = expression.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => {
                out.push(c);
                out.extend(rest.next());
            }
            '[' => match bracket(rest.as_str(), false) {
                Some((set, behind)) => {
                    out.push_str(&set);
                    rest = behind.chars();
                }
                // The engine says that it is not closed.
                None => out.push(c),
            },
            c => out.push(c),
        }
    }
    out
}

/// The engine's form of the bracket expression whose opening bracket is before `text`, and what is
/// behind it; `None` if it is not closed.
fn bracket(text: &str, glob: bool) -> Option<(String, &str)> {
    let mut out = String::from("[");
    let mut rest = text;
    if let Some(behind) = rest
        .strip_prefix('^')
        .or_else(|| rest.strip_prefix('!').filter(|_| glob))
    {
        out.push('^');
        rest = behind;
    }
    let mut first = true;
    loop {
        if !first && let Some(behind) = rest.strip_prefix(']') {
            out.push(']');
            return Some((out, behind));
        }
        first = false;
        if let Some(inner) = rest.strip_prefix("[:")
            && let Some((class, behind)) = inner.split_once(":]")
            && class.bytes().all(|byte| byte.is_ascii_lowercase())
        {
            out.push_str("[:");
            out.push_str(class);
            out.push_str(":]");
            rest = behind;
            continue;
        }
        let (low, behind) = member(rest, glob)?;
        rest = behind;
        push_member(&mut out, low);
        if let Some(behind) = rest.strip_prefix('-')
            && !behind.starts_with(']')
        {
            let (high, behind) = member(behind, glob)?;
            rest = behind;
            out.push('-');
            push_member(&mut out, high);
        }
    }
}

/// The next character of a bracket expression.
fn member(text: &str, glob: bool) -> Option<(char, &str)> {
    let mut rest = text.chars();
    let mut c = rest.next()?;
    if glob && c == '\\' {
        c = rest.next()?;
    }
    Some((c, rest.as_str()))
}

fn push_member(out: &mut String, c: char) {
    // `\<` is the beginning of a word; `<` itself means nothing.
    if c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
        out.push('\\');
    }
    out.push(c);
}
