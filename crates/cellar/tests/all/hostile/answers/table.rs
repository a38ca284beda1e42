//! `answers.txt`: requests and their codes. The head of the file describes its form.

use std::collections::HashMap;

use cellar_wire::ids::Fid;
use cellar_wire::package::Package;
use cellar_wire::{afsvol, bozo, disk, pr, rxafs, rxstats, vl, vote};

use crate::hostile::words::Words;

const TABLE: &str = include_str!("../answers.txt");

/// Services by their names in the table, with their ports counted from the file server's.
const SERVICES: [(&str, u16, &Package); 11] = [
    ("files", 0, &rxafs::PACKAGE),
    ("users", 2, &pr::PACKAGE),
    ("users vote", 2, &vote::PACKAGE),
    ("users disk", 2, &disk::PACKAGE),
    ("users rxstats", 2, &rxstats::PACKAGE),
    ("locations", 3, &vl::PACKAGE),
    ("locations vote", 3, &vote::PACKAGE),
    ("locations disk", 3, &disk::PACKAGE),
    ("locations rxstats", 3, &rxstats::PACKAGE),
    ("volumes", 5, &afsvol::PACKAGE),
    ("overseer", 7, &bozo::PACKAGE),
];

const CODES: [(&str, i32); 34] = [
    ("ok", 0),
    ("EPERM", 1),
    ("ENOENT", 2),
    ("EACCES", 13),
    ("EEXIST", 17),
    ("EXDEV", 18),
    ("ENODEV", 19),
    ("ENOTDIR", 20),
    ("EISDIR", 21),
    ("EINVAL", 22),
    ("EFBIG", 27),
    ("EROFS", 30),
    ("ENAMETOOLONG", 36),
    // The numbers that file servers use on every system.
    ("ELOOP", 90),
    ("EOPNOTSUPP", 122),
    ("ECONNREFUSED", 130),
    ("VNOVNODE", 102),
    ("VNOVOL", 103),
    ("UNMARSHAL", -453),
    ("OPCODE", -455),
    ("USYNC", 5381),
    ("PRNOENT", 267_268),
    ("PRPERM", 267_269),
    ("VL_NOENT", 363_524),
    ("VL_BADNAME", 363_527),
    ("VL_BADVOLTYPE", 363_529),
    ("VL_PERM", 363_546),
    ("VL_BADMASK", 363_551),
    ("VOLSERILLEGAL_PARTITION", 1_492_325_125),
    ("VOLSERBAD_ACCESS", 1_492_325_127),
    ("BZNOENT", 39_425),
    ("BZDOM", 39_429),
    ("BZACCESS", 39_430),
    ("BZNET", 39_431),
];

/// A request with its result.
pub(crate) struct Case {
    pub(crate) what: String,
    pub(crate) offset: u16,
    pub(crate) package: &'static Package,
    pub(crate) request: Words,
    /// The codes of Cellar and of OpenAFS.
    pub(crate) codes: [i32; 2],
}

/// Objects in requests, by their names in the table.
pub(crate) type Objects = HashMap<&'static str, Fid>;

/// Every case, for these objects.
pub(crate) fn cases(objects: &Objects) -> Vec<Case> {
    let mut reader = Reader::new(objects);
    for (number, line) in TABLE.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        reader
            .line(line)
            .unwrap_or_else(|| panic!("answers.txt:{}: {line}", number + 1));
    }
    reader.cases
}

/// Parses a request in the form of the table.
pub(crate) fn request(text: &str, objects: &Objects) -> Option<Words> {
    Reader::new(objects).request(text)
}

/// A value that each of the following requests is made with.
struct Each {
    title: String,
    value: String,
    codes: [i32; 2],
}

struct Reader<'a> {
    objects: &'a Objects,
    service: (u16, &'static Package),
    each: Vec<Each>,
    cases: Vec<Case>,
}

impl<'a> Reader<'a> {
    fn new(objects: &'a Objects) -> Self {
        Self {
            objects,
            service: (0, &rxafs::PACKAGE),
            each: Vec::new(),
            cases: Vec::new(),
        }
    }

    fn line(&mut self, line: &str) -> Option<()> {
        if let Some(name) = line.strip_prefix('[') {
            let name = name.strip_suffix(']')?;
            let found = SERVICES.iter().find(|(known, ..)| *known == name)?;
            self.service = (found.1, found.2);
            self.each.clear();
            return Some(());
        }
        if line == "each" {
            self.each.clear();
            return Some(());
        }
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        if let Some(title) = columns[0].strip_prefix('=') {
            let (value, codes) = (columns.get(1)?, codes(columns.get(2..)?)?);
            self.each.push(Each {
                title: title.trim().to_owned(),
                value: (*value).to_owned(),
                codes,
            });
            return Some(());
        }
        let (what, request) = (columns[0], columns.get(1)?);
        let given = columns.get(2..)?;
        if !request.contains('%') {
            return self.case(what.to_owned(), request, codes(given)?);
        }
        let values = std::mem::take(&mut self.each);
        for each in &values {
            let codes = if given.is_empty() {
                each.codes
            } else {
                codes(given)?
            };
            let what = format!("{what} {}", each.title);
            self.case(what, &request.replace('%', &each.value), codes)?;
        }
        self.each = values;
        Some(())
    }

    fn case(&mut self, what: String, request: &str, codes: [i32; 2]) -> Option<()> {
        let (offset, package) = self.service;
        let request = self.request(request)?;
        self.cases.push(Case {
            what,
            offset,
            package,
            request,
            codes,
        });
        Some(())
    }

    fn request(&self, text: &str) -> Option<Words> {
        let mut tokens = tokens(text)?.into_iter();
        let opcode = tokens.next()?.parse().ok()?;
        tokens.try_fold(Words::opcode(opcode), |words, token| {
            self.token(words, &token)
        })
    }

    fn token(&self, words: Words, token: &str) -> Option<Words> {
        if let Some(text) = token.strip_prefix('"') {
            let (text, times) = text.rsplit_once('"')?;
            let times = match times.strip_prefix('*') {
                Some(times) => times.parse().ok()?,
                None => 1,
            };
            return Some(words.text(&unescape(text).repeat(times)));
        }
        if let Some(name) = token.strip_prefix('$') {
            let (name, part) = name.split_once('.').unwrap_or((name, ""));
            let fid = *self.objects.get(name)?;
            return match part {
                "" => Some(words.fid(fid)),
                "volume" => Some(words.word(fid.volume.0)),
                "vnode" => Some(words.word(fid.vnode.0)),
                _ => None,
            };
        }
        if let Some(bits) = token.strip_prefix("mode:") {
            return Some(words.mode(u32::from_str_radix(bits, 8).ok()?));
        }
        if let Some(long) = token.strip_prefix("long:") {
            return Some(words.long(number(long)? as u64));
        }
        let (token, times) = match token.split_once('*') {
            Some((token, times)) => (token, times.parse().ok()?),
            None => (token, 1),
        };
        let word = u32::try_from(number(token)? & 0xffff_ffff).ok()?;
        Some((0..times).fold(words, |words, _| words.word(word)))
    }
}

/// The codes of Cellar and OpenAFS. One code stands for both.
fn codes(columns: &[&str]) -> Option<[i32; 2]> {
    let code = |name: &str| {
        let known = CODES.iter().find(|(known, _)| *known == name);
        known.map_or_else(|| name.parse().ok(), |(_, code)| Some(*code))
    };
    match columns {
        [both] => Some([code(both)?; 2]),
        [ours, theirs] => Some([code(ours)?, code(theirs)?]),
        _ => None,
    }
}

/// Splits a line into words at blanks. Quotes hold words together.
fn tokens(text: &str) -> Option<Vec<String>> {
    let mut tokens = Vec::new();
    let (mut token, mut quoted) = (String::new(), false);
    for letter in text.chars() {
        quoted ^= letter == '"';
        if letter == ' ' && !quoted {
            tokens.extend((!token.is_empty()).then(|| std::mem::take(&mut token)));
        } else {
            token.push(letter);
        }
    }
    tokens.extend((!token.is_empty()).then_some(token));
    (!quoted).then_some(tokens)
}

fn unescape(text: &str) -> Vec<u8> {
    let text = text.replace("\\0", "\0");
    text.replace("\\n", "\n").replace("\\t", "\t").into_bytes()
}

/// Parses a number: decimal, hexadecimal, negative, or a power of two.
fn number(text: &str) -> Option<i128> {
    if let Some(digits) = text.strip_prefix("0x") {
        return i128::from_str_radix(digits, 16).ok();
    }
    if let Some(power) = text.strip_prefix("2^") {
        return Some(1 << power.parse::<u32>().ok()?);
    }
    text.parse().ok()
}
