//! The characters of a policy: blanks and comments, words, numbers, quoted strings.
//!
//! There are no tokens: the meaning of a character depends on the expected element (a `/` begins an
//! expression only after `~`). So the parser asks for each possible element. Every function either
//! takes at least one character or reports that it did not.

use crate::error::ParseError;

/// A text and a place in it.
#[derive(Clone)]
pub(crate) struct Text<'a> {
    whole: &'a str,
    /// In bytes; a boundary of characters.
    at: usize,
}

impl<'a> Text<'a> {
    pub(crate) fn new(whole: &'a str) -> Self {
        Self { whole, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.whole[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Passes over blanks and comments (`#` to the end of the line).
    pub(crate) fn blanks(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                let line = self.rest().find('\n').unwrap_or(self.rest().len());
                self.at += line;
            } else if c.is_whitespace() {
                self.at += c.len_utf8();
            } else {
                break;
            }
        }
    }

    /// Whether nothing but blanks is left.
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.blanks();
        self.rest().is_empty()
    }

    /// Takes `sign` if it is next, behind blanks.
    pub(crate) fn sign(&mut self, sign: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(sign);
        if found {
            self.at += sign.len();
        }
        found
    }

    /// Whether `sign` is next, behind blanks.
    pub(crate) fn is_next(&mut self, sign: &str) -> bool {
        self.blanks();
        self.rest().starts_with(sign)
    }

    /// The word that is next, behind blanks: letters, digits and `_`, a letter first.
    pub(crate) fn word(&mut self) -> Option<&'a str> {
        self.blanks();
        let rest = self.rest();
        if !rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += end;
        Some(&rest[..end])
    }

    /// Takes `word` if it is next, as a whole word.
    pub(crate) fn keyword(&mut self, word: &str) -> bool {
        let before = self.at;
        if self.word() == Some(word) {
            return true;
        }
        self.at = before;
        false
    }

    /// The digits that are next, as a number; `expected` says what they stand for.
    pub(crate) fn number(&mut self, expected: &str) -> Result<u64, ParseError> {
        self.blanks();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        match rest[..end].parse() {
            Ok(number) => {
                self.at += end;
                Ok(number)
            }
            Err(_) => Err(self.expected(expected)),
        }
    }

    /// Takes a string in single or double quotes. The quote itself is written twice or after a
    /// backslash. Other backslashes stay, because they have a meaning in a glob.
    pub(crate) fn quoted(&mut self) -> Result<String, ParseError> {
        self.blanks();
        let begin = self.clone();
        let quote = match self.take() {
            Some(quote @ ('\'' | '"')) => quote,
            _ => return Err(begin.expected("a string in quotes")),
        };
        let mut text = String::new();
        while let Some(c) = self.take() {
            match c {
                '\n' => break,
                '\\' => match self.take() {
                    Some(c @ ('\'' | '"')) => text.push(c),
                    Some('\n') | None => break,
                    Some(c) => text.extend(['\\', c]),
                },
                c if c == quote => {
                    if self.peek() != Some(quote) {
                        return Ok(text);
                    }
                    self.take();
                    text.push(quote);
                }
                c => text.push(c),
            }
        }
        Err(begin.error(
            format!("a {quote} that closes the string"),
            "none in this line",
        ))
    }

    /// An expression behind its first `/`, which is next. `\/` is a slash; other backslashes stay.
    pub(crate) fn expression(&mut self) -> Result<String, ParseError> {
        let begin = self.clone();
        self.take();
        let mut text = String::new();
        while let Some(c) = self.take() {
            match c {
                '\n' => break,
                '/' => return Ok(text),
                '\\' => match self.take() {
                    Some('/') => text.push('/'),
                    Some('\n') | None => break,
                    Some(c) => text.extend(['\\', c]),
                },
                c => text.push(c),
            }
        }
        Err(begin.error("a / that closes the expression", "none in this line"))
    }

    /// The `i` directly behind an expression.
    pub(crate) fn any_case(&mut self) -> bool {
        let found = self.rest().starts_with('i');
        self.at += usize::from(found);
        found
    }

    /// Takes the unit of a size directly after its number, as a power of two; 0 if there is none.
    /// Case does not matter: `64m`, `64MB` and `64MiB` are the same.
    pub(crate) fn unit(&mut self) -> Result<u32, ParseError> {
        let begin = self.clone();
        let rest = self.rest();
        if !rest.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Ok(0);
        }
        let word = self.word().unwrap_or_default().to_ascii_lowercase();
        let shift = match word.get(..1) {
            Some("b") => 0,
            Some("k") => 10,
            Some("m") => 20,
            Some("g") => 30,
            Some("t") => 40,
            _ => return Err(begin.expected("b, k, m, g or t behind a size")),
        };
        match (&word[1..], shift) {
            ("", _) | ("b" | "ib", 1..) => Ok(shift),
            _ => Err(begin.expected("b, k, m, g or t behind a size")),
        }
    }

    /// A time in seconds: a number with `s`, `m`, `h`, `d` or nothing behind it.
    pub(crate) fn time(&mut self) -> Result<u32, ParseError> {
        const EXPECTED: &str = "a time, such as 30m, 12h or 7d";
        self.blanks();
        let begin = self.clone();
        let number = self.number(EXPECTED)?;
        let unit = match self.rest().starts_with(|c: char| c.is_ascii_alphanumeric()) {
            true => self.word().unwrap_or_default(),
            false => "s",
        };
        let seconds = match unit {
            "s" => Some(1),
            "m" => Some(60),
            "h" => Some(3600),
            "d" => Some(86_400),
            _ => None,
        };
        let time = seconds.and_then(|seconds| number.checked_mul(seconds));
        let time = time.and_then(|time| u32::try_from(time).ok());
        time.ok_or_else(|| begin.expected(EXPECTED))
    }

    /// The error at this position: the text is not `expected`.
    pub(crate) fn expected(&self, expected: impl Into<String>) -> ParseError {
        let mut here = self.clone();
        here.blanks();
        let rest = here.rest();
        let shown: String = match rest.chars().next() {
            None => "the end".into(),
            Some(c) if c.is_ascii_alphanumeric() => {
                let word = rest
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                let word: String = rest[..word].chars().take(32).collect();
                format!("\"{word}\"")
            }
            Some(c) => format!("\"{}\"", c.escape_debug()),
        };
        here.error(expected, shown)
    }

    /// The error at this position.
    pub(crate) fn error(
        &self,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> ParseError {
        let before = &self.whole[..self.at];
        let line_begins = before.rfind('\n').map_or(0, |at| at + 1);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        ParseError {
            line: count(before.matches('\n').count() + 1),
            column: count(before[line_begins..].chars().count() + 1),
            expected: expected.into(),
            found: found.into(),
        }
    }
}
