//! The details of an act as JSON: numbers as numbers, addresses as addresses, dates as dates.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cellar_wire::ids::{AfsTime, AfsUuid, Fid, ViceId, VolumeId};
use cellar_wire::vl::{NvldbEntry, Site, VldbEntry, VldbUpdateEntry};
use cellar_wire::{AfsString, List, WordString};
use serde_json::{Map, Value, json};

use super::when;

/// The most bytes of a text in a record.
const TEXT_BYTES_MAX: usize = 512;

/// Details of an act, by name.
pub type Details = Vec<(&'static str, Value)>;

/// A fact that a record can hold.
pub trait Detail {
    /// Its form in the record.
    fn json(&self) -> Value;
}

/// The fields of `$this` with these names, as [`Details`]. `address NAME` is for a number that is
/// an IPv4 address, or a list of such numbers.
#[macro_export]
macro_rules! audit_details {
    ($this:ident: $($field:ident $($name:ident)?),* $(,)?) => {
        vec![$($crate::audit_details!(@one $this $field $($name)?)),*]
    };
    (@one $this:ident $field:ident) => {
        (stringify!($field), $crate::audit::Detail::json(&$this.$field))
    };
    (@one $this:ident address $field:ident) => {
        (stringify!($field), $crate::audit::Address::address(&$this.$field))
    };
}

/// A number, or numbers, that are IPv4 addresses on the wire.
pub trait Address {
    /// The addresses.
    fn address(&self) -> Value;
}

impl Address for u32 {
    fn address(&self) -> Value {
        Ipv4Addr::from(*self).json()
    }
}

impl<const N: usize> Address for List<u32, N> {
    fn address(&self) -> Value {
        self.iter().map(Address::address).collect()
    }
}

/// The text of a value, cut off at [`TEXT_BYTES_MAX`].
fn text(value: impl fmt::Display) -> Value {
    let mut text = value.to_string();
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text.into()
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Detail for $number {
            fn json(&self) -> Value {
                (*self).into()
            }
        }
    )*};
}

macro_rules! texts {
    ($($text:ty),*) => {$(
        impl Detail for $text {
            fn json(&self) -> Value {
                text(self)
            }
        }
    )*};
}

numbers!(bool, i32, u32, u64);
texts!(
    str,
    String,
    Cow<'_, str>,
    fmt::Arguments<'_>,
    IpAddr,
    Ipv4Addr,
    SocketAddr,
    Fid,
    AfsUuid
);

impl<T: Detail + ?Sized> Detail for &T {
    fn json(&self) -> Value {
        (*self).json()
    }
}

impl<const N: usize> Detail for AfsString<N> {
    fn json(&self) -> Value {
        text(self)
    }
}

impl<const N: usize> Detail for WordString<N> {
    fn json(&self) -> Value {
        text(self)
    }
}

impl Detail for VolumeId {
    fn json(&self) -> Value {
        self.0.into()
    }
}

impl Detail for ViceId {
    fn json(&self) -> Value {
        self.0.into()
    }
}

impl Detail for AfsTime {
    fn json(&self) -> Value {
        when(*self).into()
    }
}

impl Detail for VldbUpdateEntry {
    /// Its form without names is rarely used: by no command of OpenAFS 1.8.
    fn json(&self) -> Value {
        text(format_args!("{self:?}"))
    }
}

impl Detail for NvldbEntry {
    fn json(&self) -> Value {
        entry(
            &self.name.json(),
            &self.volume_ids,
            self.clone_id,
            self.flags,
            &self.sites,
        )
    }
}

impl Detail for VldbEntry {
    fn json(&self) -> Value {
        entry(
            &self.name.json(),
            &self.volume_ids,
            self.clone_id,
            self.flags,
            &self.sites,
        )
    }
}

fn entry(name: &Value, ids: &[VolumeId; 3], clone: VolumeId, flags: u32, sites: &[Site]) -> Value {
    let sites: Vec<_> = sites
        .iter()
        .map(|site| {
            json!({
                "server": site.server.address(),
                "partition": site.partition,
                "flags": site.flags,
            })
        })
        .collect();
    let ids: Vec<_> = ids.iter().map(Detail::json).collect();
    let mut object = Map::new();
    object.insert("name".to_owned(), name.clone());
    object.insert("volume_ids".to_owned(), ids.into());
    object.insert("clone_id".to_owned(), clone.json());
    object.insert("flags".to_owned(), flags.into());
    object.insert("sites".to_owned(), sites.into());
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Arguments {
        volume: VolumeId,
        server: u32,
        addrs: List<u32, 4>,
        note: String,
    }

    #[test]
    fn fields_have_their_names_and_types() {
        let arguments = Arguments {
            volume: VolumeId(5),
            server: 0xc000_0201,
            addrs: List::from_iter_cut([0xc000_0201, 0x7f00_0001]),
            note: "ä".repeat(600),
        };
        let details = audit_details!(arguments: volume, address server, address addrs, note);
        assert_eq!(details[0], ("volume", 5.into()));
        assert_eq!(details[1], ("server", "192.0.2.1".into()));
        assert_eq!(details[2], ("addrs", json!(["192.0.2.1", "127.0.0.1"])));
        assert_eq!(details[3].1.as_str().map(str::len), Some(512));
    }
}
