//! The layout of a cell database in etcd.
//!
//! ```text
//! PREFIX/meta            format, id and first revision; sealed with a checksum
//! PREFIX/last            written by each transaction: its revision is the database's
//! PREFIX/t/TABLE/KEY     a row: the value and its checksum
//! PREFIX/d/TABLE         written by each transaction that deletes rows of the table
//! PREFIX/w/WRITER/N      the id of the last request of a writer on its slot N
//! PREFIX/plan            the id of a large transaction that is not finished; else empty
//! PREFIX/s/ID/N          part N of the changes of a large transaction
//! ```
//!
//! A comparison over a range of rows does not see that a row is gone. So a transaction that read a
//! range also compares `PREFIX/d/TABLE`.

use bytes::{BufMut, Bytes, BytesMut};
use cellar_celldb::{DatabaseId, Table, sealed};

/// The layout that this program writes.
pub(crate) const FORMAT: u64 = 1;

/// Makes and recognises the keys of one database.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

/// The meaning of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    Meta,
    Last,
    Row { table: &'a str, key: &'a [u8] },
    Deleted { table: &'a str },
    Writer,
    Plan,
    Staged,
}

impl Keys {
    /// Fails with a sentence if the prefix cannot be one.
    pub(crate) fn new(prefix: &str) -> Result<Self, String> {
        let is_one = !prefix.is_empty()
            && !prefix.ends_with('/')
            && prefix.bytes().all(|byte| byte.is_ascii_graphic());
        match is_one {
            true => Ok(Self {
                prefix: prefix.to_owned(),
            }),
            false => Err(format!("'{prefix}' is no prefix of keys in etcd")),
        }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn of(&self, rest: &str) -> Bytes {
        Bytes::from(format!("{}/{rest}", self.prefix))
    }

    pub(crate) fn meta(&self) -> Bytes {
        self.of("meta")
    }

    pub(crate) fn last(&self) -> Bytes {
        self.of("last")
    }

    pub(crate) fn deleted(&self, table: Table) -> Bytes {
        self.of(&format!("d/{}", table.name()))
    }

    pub(crate) fn slot(&self, writer: &str, slot: usize) -> Bytes {
        self.of(&format!("w/{writer}/{slot}"))
    }

    pub(crate) fn plan(&self) -> Bytes {
        self.of("plan")
    }

    /// A part of a large transaction. Keys are in the order of the parts.
    pub(crate) fn staged(&self, id: &str, part: u32) -> Bytes {
        self.of(&format!("s/{id}/{part:08}"))
    }

    /// All parts of one large transaction, as first key and end.
    pub(crate) fn staged_of(&self, id: &str) -> (Bytes, Bytes) {
        (self.of(&format!("s/{id}/")), self.of(&format!("s/{id}0")))
    }

    /// All parts of large transactions, as first key and end.
    pub(crate) fn all_staged(&self) -> (Bytes, Bytes) {
        (self.of("s/"), self.of("s0"))
    }

    /// All keys of the database, as first key and end.
    pub(crate) fn all(&self) -> (Bytes, Bytes) {
        // '0' follows '/'.
        (self.of(""), Bytes::from(format!("{}0", self.prefix)))
    }

    pub(crate) fn row(&self, table: Table, key: &[u8]) -> Bytes {
        let mut bytes =
            BytesMut::with_capacity(self.prefix.len() + table.name().len() + key.len() + 4);
        bytes.put_slice(self.prefix.as_bytes());
        bytes.put_slice(b"/t/");
        bytes.put_slice(table.name().as_bytes());
        bytes.put_u8(b'/');
        bytes.put_slice(key);
        bytes.freeze()
    }

    /// The end of a table's rows.
    pub(crate) fn table_end(&self, table: Table) -> Bytes {
        self.of(&format!("t/{}0", table.name()))
    }

    /// The meaning of a key; `None` for one of a newer program.
    pub(crate) fn parse<'a>(&self, key: &'a [u8]) -> Option<Key<'a>> {
        let rest = key
            .strip_prefix(self.prefix.as_bytes())?
            .strip_prefix(b"/")?;
        if rest == b"meta" {
            return Some(Key::Meta);
        }
        if rest == b"last" {
            return Some(Key::Last);
        }
        if rest == b"plan" {
            return Some(Key::Plan);
        }
        if rest.starts_with(b"s/") {
            return Some(Key::Staged);
        }
        if rest.starts_with(b"w/") {
            return Some(Key::Writer);
        }
        if let Some(table) = rest.strip_prefix(b"d/") {
            let table = table_name(table)?;
            return Some(Key::Deleted { table });
        }
        let row = rest.strip_prefix(b"t/")?;
        let slash = row.iter().position(|byte| *byte == b'/')?;
        let table = table_name(row.get(..slash)?)?;
        let key = row.get(slash + 1..)?;
        Some(Key::Row { table, key })
    }
}

fn table_name(bytes: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(bytes).ok()?;
    (!name.is_empty() && !name.starts_with('_')).then_some(name)
}

/// The contents of `PREFIX/meta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) id: DatabaseId,
    /// Added to etcd's revisions, so that revisions of a database rise when it moves to etcd.
    pub(crate) base: u64,
}

/// Why a database cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadMeta {
    Newer(u64),
    Damaged(&'static str),
}

const META_TABLE: &str = "meta";

impl Meta {
    pub(crate) fn seal(self, key: &[u8]) -> Bytes {
        let text = format!("format {FORMAT}\nid {}\nbase {}\n", self.id, self.base);
        sealed::seal(META_TABLE, key, text.as_bytes()).into()
    }

    pub(crate) fn open(key: &[u8], stored: &[u8]) -> Result<Self, BadMeta> {
        let text = sealed::open(META_TABLE, key, stored).map_err(BadMeta::Damaged)?;
        let text = std::str::from_utf8(text).map_err(|_| BadMeta::Damaged("it is no text"))?;
        let field = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        };
        let format = field("format").and_then(|word| word.parse().ok());
        match format {
            Some(FORMAT) => {}
            Some(newer) => return Err(BadMeta::Newer(newer)),
            None => return Err(BadMeta::Damaged("it names no format")),
        }
        let id = field("id").and_then(|word| word.parse().ok());
        let base = field("base").and_then(|word| word.parse().ok());
        match (id, base) {
            (Some(id), Some(base)) => Ok(Self { id, base }),
            _ => Err(BadMeta::Damaged("it names no id")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_recognised() {
        let keys = Keys::new("/cellar/example.org").unwrap();
        let table = Table::new("vl.entry");
        let row = keys.row(table, b"a/\0b");
        let parsed = Key::Row {
            table: "vl.entry",
            key: b"a/\0b",
        };
        assert_eq!(keys.parse(&row), Some(parsed));
        assert!(row < keys.table_end(table) && keys.row(table, b"") < row);
        assert_eq!(keys.parse(&keys.meta()), Some(Key::Meta));
        assert_eq!(keys.parse(&keys.last()), Some(Key::Last));
        assert_eq!(keys.parse(&keys.slot("a", 1)), Some(Key::Writer));
        assert_eq!(keys.parse(&keys.plan()), Some(Key::Plan));
        let staged = keys.staged("id", 7);
        assert_eq!(keys.parse(&staged), Some(Key::Staged));
        let ends = [keys.staged_of("id"), keys.all_staged(), keys.all()];
        assert!(
            ends.iter()
                .all(|(first, end)| *first <= staged && staged < *end)
        );
        let deleted = Key::Deleted { table: "vl.entry" };
        assert_eq!(keys.parse(&keys.deleted(table)), Some(deleted));
        for strange in [
            "/cellar/example.org",
            "/cellar/example.org/x",
            "/cellar/example.org/t/a",
        ] {
            assert_eq!(keys.parse(strange.as_bytes()), None, "{strange}");
        }
        let (first, end) = keys.all();
        for key in [
            row,
            keys.meta(),
            keys.last(),
            keys.slot("a", 1),
            keys.deleted(table),
        ] {
            assert!(first <= key && key < end);
        }
        assert!(Keys::new("").is_err() && Keys::new("a/").is_err());
    }

    #[test]
    fn a_newer_format_and_damage_are_refused() {
        let meta = Meta {
            id: DatabaseId::random(),
            base: 7,
        };
        let stored = meta.seal(b"key");
        assert_eq!(Meta::open(b"key", &stored), Ok(meta));
        for bit in 0..stored.len() * 8 {
            let mut stored = stored.to_vec();
            stored[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(
                Meta::open(b"key", &stored),
                Err(BadMeta::Damaged(_))
            ));
        }
        let newer = sealed::seal(META_TABLE, b"key", b"format 2\n");
        assert_eq!(Meta::open(b"key", &newer), Err(BadMeta::Newer(2)));
    }
}
