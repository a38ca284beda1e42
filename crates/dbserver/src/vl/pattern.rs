//! Basic regular expressions for names, as in ListAttributesN2.
//!
//! The syntax has `.`, `[...]`, `*`, `\{m,n\}`, `\(...\)`, `\|`, `\+`, `\?`, and `\` before any
//! other character. `^` and `$` at the ends have no effect, because the whole name must match.
//! References to groups are refused.
//!
//! A name is short, so the set of positions that a match may have reached is one word of bits. Each
//! element of the expression maps such a set to the next set. Therefore the time is at most the
//! length of the expression times the square of the name's length.

/// The longest text that can be matched: the positions from 0 to its length fit into one word.
pub(crate) const TEXT_MAX: usize = 127;
/// The highest count in `\{m,n\}`.
const REPEAT_MAX: u32 = 255;
/// The deepest nesting of groups.
const DEPTH_MAX: usize = 16;

/// A set of positions in a text, as bits.
type PositionSet = u128;

/// A parsed expression.
#[derive(Debug)]
pub struct Pattern(Alternatives);

/// A text that is not a valid expression.
#[derive(Debug, PartialEq, Eq)]
pub struct BadPattern;

type Alternatives = Vec<Vec<Repeated>>;

#[derive(Debug)]
struct Repeated {
    element: Element,
    min: u32,
    /// `None` for no limit.
    max: Option<u32>,
}

#[derive(Debug)]
enum Element {
    /// One byte of the set.
    OneOf(Box<[bool; 256]>),
    Group(Alternatives),
}

impl Pattern {
    /// Parses an expression.
    ///
    /// # Errors
    /// [`BadPattern`]: an unfinished bracket, group or count, a reference, or too deep.
    pub fn parse(text: &[u8]) -> Result<Self, BadPattern> {
        let text = text.strip_prefix(b"^").unwrap_or(text);
        let text = match text.strip_suffix(b"$") {
            Some(before) if !before.ends_with(b"\\") => before,
            _ => text,
        };
        let mut parser = Parser { text, at: 0 };
        let alternatives = parser.alternatives(0)?;
        if parser.at < text.len() {
            Err(BadPattern)
        } else {
            Ok(Self(alternatives))
        }
    }

    /// Whether the whole `text` matches. A text of more than 127 bytes does not match.
    pub fn matches(&self, text: &[u8]) -> bool {
        text.len() <= TEXT_MAX && step_any(&self.0, text, 1) >> text.len() & 1 == 1
    }
}

fn step_any(alternatives: &Alternatives, text: &[u8], from: PositionSet) -> PositionSet {
    alternatives.iter().fold(0, |reached, sequence| {
        reached
            | sequence
                .iter()
                .fold(from, |places, repeated| repeated.step(text, places))
    })
}

impl Repeated {
    fn step(&self, text: &[u8], from: PositionSet) -> PositionSet {
        let mut places = from;
        for _ in 0..self.min {
            places = self.element.step(text, places);
        }
        let mut reached = places;
        // Each further turn reaches a new position, or the search ends.
        for _ in self.min..self.max.unwrap_or(u32::MAX) {
            places = self.element.step(text, places);
            if places & !reached == 0 {
                break;
            }
            reached |= places;
        }
        reached
    }
}

impl Element {
    fn step(&self, text: &[u8], from: PositionSet) -> PositionSet {
        match self {
            Self::OneOf(set) => {
                let here = text
                    .iter()
                    .enumerate()
                    .filter(|(at, byte)| from >> at & 1 == 1 && set[usize::from(**byte)]);
                here.fold(0, |reached, (at, _)| reached | 2 << at)
            }
            Self::Group(alternatives) => step_any(alternatives, text, from),
        }
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &[u8] {
        &self.text[self.at..]
    }

    fn take(&mut self, expected: &[u8]) -> bool {
        let found = self.rest().starts_with(expected);
        if found {
            self.at += expected.len();
        }
        found
    }

    fn next(&mut self) -> Result<u8, BadPattern> {
        let byte = *self.rest().first().ok_or(BadPattern)?;
        self.at += 1;
        Ok(byte)
    }

    fn alternatives(&mut self, depth: usize) -> Result<Alternatives, BadPattern> {
        if depth > DEPTH_MAX {
            return Err(BadPattern);
        }
        let mut alternatives = vec![self.sequence(depth)?];
        while self.take(b"\\|") {
            alternatives.push(self.sequence(depth)?);
        }
        Ok(alternatives)
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<Repeated>, BadPattern> {
        let mut sequence = Vec::new();
        while !self.rest().is_empty()
            && !self.rest().starts_with(b"\\|")
            && !self.rest().starts_with(b"\\)")
        {
            // A star without an element before it stands for itself.
            let element = self.element(depth)?;
            let (min, max) = self.repetition()?;
            sequence.push(Repeated { element, min, max });
        }
        Ok(sequence)
    }

    fn element(&mut self, depth: usize) -> Result<Element, BadPattern> {
        if self.take(b"\\(") {
            let group = self.alternatives(depth + 1)?;
            return if self.take(b"\\)") {
                Ok(Element::Group(group))
            } else {
                Err(BadPattern)
            };
        }
        let mut set = Box::new([false; 256]);
        match self.next()? {
            b'.' => set.fill(true),
            b'[' => self.bracket(&mut set)?,
            b'\\' => match self.next()? {
                b'1'..=b'9' | b'{' | b'}' => return Err(BadPattern),
                literal => set[usize::from(literal)] = true,
            },
            literal => set[usize::from(literal)] = true,
        }
        Ok(Element::OneOf(set))
    }

    fn bracket(&mut self, set: &mut [bool; 256]) -> Result<(), BadPattern> {
        let negated = self.take(b"^");
        let mut first = true;
        loop {
            let low = match self.next()? {
                b']' if !first => break,
                b'[' if self.rest().starts_with(b":") => {
                    self.class(set)?;
                    first = false;
                    continue;
                }
                byte => byte,
            };
            first = false;
            let is_range = self.rest().starts_with(b"-") && !self.rest().starts_with(b"-]");
            let high = if is_range {
                self.at += 1;
                self.next()?
            } else {
                low
            };
            if low > high {
                return Err(BadPattern);
            }
            set[usize::from(low)..=usize::from(high)].fill(true);
        }
        if negated {
            set.iter_mut().for_each(|member| *member = !*member);
        }
        Ok(())
    }

    fn class(&mut self, set: &mut [bool; 256]) -> Result<(), BadPattern> {
        type Test = fn(&u8) -> bool;
        let classes: [(&[u8], Test); 7] = [
            (b":alpha:]", u8::is_ascii_alphabetic),
            (b":digit:]", u8::is_ascii_digit),
            (b":alnum:]", u8::is_ascii_alphanumeric),
            (b":lower:]", u8::is_ascii_lowercase),
            (b":upper:]", u8::is_ascii_uppercase),
            (b":punct:]", u8::is_ascii_punctuation),
            (b":xdigit:]", u8::is_ascii_hexdigit),
        ];
        let found = classes
            .iter()
            .find(|(name, _)| self.rest().starts_with(name));
        let (name, test) = *found.ok_or(BadPattern)?;
        self.at += name.len();
        (0..=255u8)
            .filter(test)
            .for_each(|byte| set[usize::from(byte)] = true);
        Ok(())
    }

    fn repetition(&mut self) -> Result<(u32, Option<u32>), BadPattern> {
        let mut range = (1, Some(1));
        loop {
            range = if self.take(b"*") {
                (0, None)
            } else if self.take(b"\\+") {
                (range.0.min(1), None)
            } else if self.take(b"\\?") {
                (0, range.1)
            } else if self.take(b"\\{") {
                self.counts()?
            } else {
                return Ok(range);
            };
        }
    }

    fn counts(&mut self) -> Result<(u32, Option<u32>), BadPattern> {
        let min = self.count()?.ok_or(BadPattern)?;
        let max = if self.take(b",") {
            self.count()?
        } else {
            Some(min)
        };
        if !self.take(b"\\}") || max.is_some_and(|max| max < min) {
            return Err(BadPattern);
        }
        Ok((min, max))
    }

    fn count(&mut self) -> Result<Option<u32>, BadPattern> {
        let digits = self
            .rest()
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if digits == 0 {
            return Ok(None);
        }
        let text = std::str::from_utf8(&self.rest()[..digits]).map_err(|_| BadPattern)?;
        let count = text
            .parse()
            .ok()
            .filter(|count| *count <= REPEAT_MAX)
            .ok_or(BadPattern)?;
        self.at += digits;
        Ok(Some(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_a_basic_expression_does() {
        for (pattern, yes, no) in [
            (
                "root.afs",
                vec!["root.afs", "rootxafs"],
                vec!["root.afs2", "aroot.afs"],
            ),
            ("root\\.afs", vec!["root.afs"], vec!["rootxafs"]),
            (".*", vec!["", "a", "user.jane"], vec![]),
            (
                "user\\..*",
                vec!["user.", "user.jane"],
                vec!["userjane", "auser.x"],
            ),
            ("^u[a-cx]*$", vec!["u", "uabcx"], vec!["ud"]),
            ("u[^0-9]", vec!["ua"], vec!["u1", "u", "uab"]),
            ("[]a]*", vec!["]a]"], vec!["b"]),
            ("a\\{2,3\\}", vec!["aa", "aaa"], vec!["a", "aaaa"]),
            ("a\\{2\\}", vec!["aa"], vec!["a", "aaa"]),
            ("a\\{2,\\}", vec!["aa", "aaaaa"], vec!["a"]),
            ("\\(ab\\)*c", vec!["c", "ababc"], vec!["abac"]),
            ("\\(a\\|bc\\)d", vec!["ad", "bcd"], vec!["bd", "acd"]),
            ("x\\+y\\?", vec!["x", "xxy"], vec!["y", "xyy"]),
            ("*a", vec!["*a"], vec!["a"]),
            ("a+b(c)", vec!["a+b(c)"], vec!["aab", "abc"]),
            ("[[:digit:]]*x", vec!["12x", "x"], vec!["ax"]),
            ("a\\$", vec!["a$"], vec!["a"]),
            ("", vec![""], vec!["a"]),
        ] {
            let parsed = Pattern::parse(pattern.as_bytes()).unwrap();
            yes.iter()
                .for_each(|t| assert!(parsed.matches(t.as_bytes()), "{pattern} {t}"));
            no.iter()
                .for_each(|t| assert!(!parsed.matches(t.as_bytes()), "{pattern} not {t}"));
        }
    }

    #[test]
    fn refuses_what_is_unfinished_or_refers_back() {
        for wrong in [
            "[a",
            "[",
            "\\(a",
            "a\\)",
            "a\\{2",
            "a\\{3,2\\}",
            "a\\{999\\}",
            "\\(a\\)\\1",
            "\\",
            "[z-a]",
            "[[:foo:]]",
            "a\\{\\}",
        ] {
            assert!(Pattern::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let deep = "\\(".repeat(30);
        assert!(Pattern::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn no_expression_takes_long() {
        let text = [b'a'; 73];
        for evil in [
            "\\(\\(a*\\)*\\)*b",
            "\\(a\\{1,255\\}\\)\\{255\\}",
            "a*a*a*a*a*a*a*a*a*a*a*a*b",
        ] {
            assert!(!Pattern::parse(evil.as_bytes()).unwrap().matches(&text));
        }
        assert!(!Pattern::parse(b".*").unwrap().matches(&[b'a'; 200]));
    }

    #[test]
    fn no_text_makes_it_panic() {
        use rand::rngs::StdRng;
        use rand::{Rng, SeedableRng};
        let mut random = StdRng::seed_from_u64(1);
        let alphabet = b"ab.*\\()[]{}^$|+?-,:019\xff";
        let mut understood = 0;
        for _ in 0..20_000 {
            let length = random.random_range(0..20);
            let text: Vec<u8> = (0..length)
                .map(|_| alphabet[random.random_range(0..alphabet.len())])
                .collect();
            if let Ok(pattern) = Pattern::parse(&text) {
                understood += 1;
                pattern.matches(b"ab.readonly");
            }
        }
        assert!(understood > 1000);
    }
}
