//! The text form that FetchACL returns and StoreACL takes.
//!
//! ```text
//! <positive>\n<negative>\n
//! name\trights\n          (positive entries, then negative ones; rights in decimal)
//! ```
//!
//! Names come from the protection database, so each direction has two steps:
//!
//! * To write, the caller looks up the name of each id ([`AccessList::ids`]).
//! * To read, [`AclText::parse`] returns names. The caller looks them up together and then calls
//!   [`AclText::resolve`] with the ids.
//!
//! The parser is lenient like that of OpenAFS. Any white space separates. The text after the rights
//! of a line is skipped, and so is the `dfs:` mark of translators after the first number. The
//! parser is also safe: it refuses missing lines and absurd numbers.

use super::{AccessList, AclEntry, ENTRIES_MAX, Rights};
use crate::abort::AbortCode;
use crate::ids::ViceId;

/// Bytes of the text with its NUL.
pub const TEXT_MAX: usize = 1024;

/// Bytes of a name.
const NAME_MAX: usize = 63;

/// An access list whose names are not looked up yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclText {
    /// Names and rights that grant.
    pub positive: Vec<(String, Rights)>,
    /// Names and rights that take away.
    pub negative: Vec<(String, Rights)>,
}

/// Why a text is not an access list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclTextError {
    /// The text does not begin with two counts.
    #[error("an access list begins with the counts of its entries")]
    Counts,
    /// More than 20 entries.
    #[error("an access list has at most 20 entries")]
    TooMany,
    /// An entry is missing or is not a name and a number.
    #[error("entry {0} of the access list is not a name and a number")]
    Entry(usize),
    /// No user or group has that name.
    #[error("there is no user or group {0}")]
    UnknownName(String),
    /// The text would be over 1023 bytes.
    #[error("the access list is too long as text")]
    TooLong,
}

impl AclTextError {
    /// The abort code for the client.
    pub const fn abort_code(&self) -> AbortCode {
        match self {
            Self::TooLong => AbortCode::E2BIG,
            _ => AbortCode::EINVAL,
        }
    }
}

impl AclText {
    /// Reads a text up to its first NUL or its end.
    ///
    /// # Errors
    /// [`AclTextError`], all but `UnknownName` and `TooLong`.
    pub fn parse(text: &[u8]) -> Result<Self, AclTextError> {
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        let mut rest = Rest(text);
        let positive = rest.count().ok_or(AclTextError::Counts)?;
        rest.skip_translator_mark();
        let negative = rest.count().ok_or(AclTextError::Counts)?;
        if positive.saturating_add(negative) > ENTRIES_MAX {
            return Err(AclTextError::TooMany);
        }
        let mut entries = Vec::with_capacity(positive + negative);
        for index in 0..positive + negative {
            entries.push(rest.entry().ok_or(AclTextError::Entry(index + 1))?);
        }
        let negative = entries.split_off(positive);
        Ok(Self {
            positive: entries,
            negative,
        })
    }

    /// Every name, so that the caller can look them up together.
    pub fn names(&self) -> impl Iterator<Item = &str> + '_ {
        self.positive
            .iter()
            .chain(&self.negative)
            .map(|(name, _)| name.as_str())
    }

    /// Replaces names by ids.
    ///
    /// # Errors
    /// [`AclTextError::UnknownName`] when `id_of` does not know a name, or maps it to the anonymous
    /// user.
    pub fn resolve(
        &self,
        mut id_of: impl FnMut(&str) -> Option<ViceId>,
    ) -> Result<AccessList, AclTextError> {
        let mut entries = |list: &[(String, Rights)]| {
            list.iter()
                .map(|(name, rights)| match id_of(name) {
                    Some(id) if id != ViceId::ANONYMOUS => Ok(AclEntry {
                        id,
                        rights: *rights,
                    }),
                    _ => Err(AclTextError::UnknownName(name.clone())),
                })
                .collect::<Result<Vec<_>, _>>()
        };
        let positive = entries(&self.positive)?;
        let negative = entries(&self.negative)?;
        AccessList::new(positive, negative).map_err(|_| AclTextError::TooMany)
    }

    /// The text, without a NUL.
    pub fn to_text(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("{}\n{}\n", self.positive.len(), self.negative.len());
        for (name, rights) in self.positive.iter().chain(&self.negative) {
            // The rights as a C program prints an int.
            let _ = writeln!(text, "{name}\t{}", rights.0 as i32);
        }
        text
    }
}

impl AccessList {
    /// The text form, NUL included, as FetchACL returns it. An id that `name_of` does not know is
    /// written in decimal.
    ///
    /// # Errors
    /// [`AclTextError::TooLong`] when the text would be over 1024 bytes.
    pub fn to_text(
        &self,
        mut name_of: impl FnMut(ViceId) -> Option<String>,
    ) -> Result<Vec<u8>, AclTextError> {
        let mut entries = |list: &[AclEntry]| {
            list.iter()
                .map(|entry| {
                    let name = name_of(entry.id).unwrap_or_else(|| entry.id.to_string());
                    (name, entry.rights)
                })
                .collect()
        };
        let positive = entries(self.positive());
        let negative = entries(self.negative());
        let mut text = AclText { positive, negative }.to_text().into_bytes();
        text.push(0);
        if text.len() > TEXT_MAX {
            Err(AclTextError::TooLong)
        } else {
            Ok(text)
        }
    }
}

/// The part of the text that was not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn skip_space(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    fn word(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        let end = self
            .0
            .iter()
            .position(u8::is_ascii_whitespace)
            .unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    /// A number as `%d` reads it: the digits, without the characters that follow.
    fn number(&mut self) -> Option<i64> {
        self.skip_space();
        let sign = usize::from(matches!(self.0.first(), Some(b'-' | b'+')));
        let digits = self
            .0
            .iter()
            .skip(sign)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let (number, rest) = self.0.split_at(sign + digits);
        self.0 = rest;
        std::str::from_utf8(number).ok()?.parse().ok()
    }

    fn count(&mut self) -> Option<usize> {
        self.number()
            .and_then(|number| usize::try_from(number).ok())
    }

    fn skip_line(&mut self) {
        let end = self
            .0
            .iter()
            .position(|&byte| byte == b'\n')
            .map_or(self.0.len(), |at| at + 1);
        self.0 = self.0.get(end..).unwrap_or_default();
    }

    fn skip_translator_mark(&mut self) {
        if self.0.trim_ascii_start().starts_with(b"dfs:") {
            self.skip_line();
        }
    }

    fn entry(&mut self) -> Option<(String, Rights)> {
        let name = self.word().filter(|name| name.len() <= NAME_MAX)?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let rights = self.number()?;
        let rights = u32::try_from(rights)
            .or_else(|_| i32::try_from(rights).map(|rights| rights as u32))
            .ok()?;
        self.skip_line();
        Some((name, Rights(rights)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(name: &str) -> Option<ViceId> {
        match name {
            "system:administrators" => Some(ViceId::ADMINISTRATORS),
            "system:anyuser" => Some(ViceId::ANYUSER),
            "anonymous" => Some(ViceId::ANONYMOUS),
            "mallory" => Some(ViceId(66)),
            "alice" => Some(ViceId(7)),
            _ => None,
        }
    }

    fn name_of(id: ViceId) -> Option<String> {
        [
            "system:administrators",
            "system:anyuser",
            "mallory",
            "alice",
        ]
        .into_iter()
        .find(|name| resolve(name) == Some(id))
        .map(str::to_owned)
    }

    #[test]
    fn text_goes_both_ways_and_is_sorted() {
        let text = b"2\n2\nalice 63\nsystem:anyuser 9\nmallory\t6\nalice\t-2147483648\n\0rubbish";
        let acl = AclText::parse(text).unwrap().resolve(resolve).unwrap();
        assert_eq!(
            acl.to_text(name_of).unwrap(),
            b"2\n2\nsystem:anyuser\t9\nalice\t63\nalice\t-2147483648\nmallory\t6\n\0"
        );
        assert_eq!(
            acl.to_text(|_| None).unwrap(),
            b"2\n2\n-101\t9\n7\t63\n7\t-2147483648\n66\t6\n\0"
        );
    }

    #[test]
    fn reads_what_clients_send() {
        let one = AclText {
            positive: vec![("alice".into(), Rights(9))],
            negative: vec![],
        };
        for text in [
            &b"1\n0\nalice 9\n"[..],
            b"1\n0\nalice\t9",
            b"1 0 alice 9",
            b"  1\n\n0\n\n alice   9 trailing words\n",
            b"1 dfs:5 example.org\n0\nalice 9\n\0",
            b"+1\n0\nalice 9\nsurplus 1\n",
        ] {
            assert_eq!(
                AclText::parse(text).as_ref(),
                Ok(&one),
                "{}",
                text.escape_ascii()
            );
        }
        assert_eq!(AclText::parse(b"0\n0\n"), Ok(AclText::default()));
    }

    #[test]
    fn refuses_what_is_no_list() {
        let long = format!("1\n0\n{} 1\n", "x".repeat(64));
        for text in [
            &b""[..],
            b"\0",
            b"1",
            b"x\n0\n",
            b"-1\n0\n",
            b"21\n0\n",
            b"10\n11\n",
            b"99999999999999999999\n0\n",
            b"9223372036854775807\n9223372036854775807\n",
            b"1\n0\n",
            b"1\n0\nalice",
            b"1\n0\nalice nine\n",
            b"2\n0\nalice 9\n",
            b"1\n0\nalice 4294967296\n",
            b"1\n0\n\xff\xfe 1\n",
            long.as_bytes(),
        ] {
            let error = AclText::parse(text).expect_err(&text.escape_ascii().to_string());
            assert_eq!(error.abort_code(), AbortCode::EINVAL);
        }
        for name in ["nobody", "anonymous"] {
            let text = format!("1\n0\n{name} 1\n");
            let error = AclText::parse(text.as_bytes())
                .unwrap()
                .resolve(resolve)
                .unwrap_err();
            assert_eq!(error, AclTextError::UnknownName(name.into()));
        }
        let many = (0..20)
            .map(|id| AclEntry {
                id: ViceId(id),
                rights: Rights(1),
            })
            .collect();
        let acl = AccessList::new(many, vec![]).unwrap();
        let error = acl.to_text(|_| Some("y".repeat(60))).unwrap_err();
        assert_eq!(error.abort_code(), AbortCode::E2BIG);
    }
}
