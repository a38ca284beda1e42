//! The details of an act as JSON: numbers as numbers, addresses as addresses, dates as dates.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cellar_wire::ids::{AfsTime, AfsUuid, Fid, ViceId, VolumeId};
use cellar_wire::vl::{NvldbEntry, Site, SiteUpdate, VldbEntry, VldbUpdateEntry};
use cellar_wire::{AfsString, List, WordString};
use serde_json::{Value, json};

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
    /// The fields that `mask` does not name have no meaning, and are shown as they came.
    fn json(&self) -> Value {
        let sites: Vec<_> = self.sites.iter().map(Detail::json).collect();
        json!({
            "mask": format!("{:#x}", self.mask),
            "name": self.name.json(),
            "read_write_id": self.read_write_id.json(),
            "read_only_id": self.read_only_id.json(),
            "backup_id": self.backup_id.json(),
            "clone_id": self.clone_id.json(),
            "flags": self.flags,
            "sites": sites,
        })
    }
}

impl Detail for SiteUpdate {
    fn json(&self) -> Value {
        json!({
            "mask": format!("{:#x}", self.mask),
            "target_server": self.target_server.address(),
            "target_partition": self.target_partition,
            "new_server": self.new_server.address(),
            "new_partition": self.new_partition,
            "new_flags": self.new_flags,
        })
    }
}

impl Detail for NvldbEntry {
    fn json(&self) -> Value {
        let ids: Vec<_> = self.volume_ids.iter().map(Detail::json).collect();
        let sites: Vec<_> = self.sites.iter().map(Detail::json).collect();
        json!({
            "name": self.name.json(),
            "volume_ids": ids,
            "clone_id": self.clone_id.json(),
            "flags": self.flags,
            "sites": sites,
        })
    }
}

impl Detail for VldbEntry {
    /// The old form of an entry is shown as the new one.
    fn json(&self) -> Value {
        NvldbEntry::from(self.clone()).json()
    }
}

impl Detail for Site {
    fn json(&self) -> Value {
        json!({
            "server": self.server.address(),
            "partition": self.partition,
            "flags": self.flags,
        })
    }
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

    #[test]
    fn both_forms_of_an_entry_and_its_update_have_fields() {
        let site = Site {
            server: 0xc000_0201,
            partition: 1,
            flags: 4,
        };
        let old = VldbEntry {
            name: "vol".try_into().expect("a name"),
            sites: List::from_iter_cut([site]),
            volume_ids: [VolumeId(5), VolumeId(6), VolumeId(7)],
            clone_id: VolumeId(0),
            flags: 0x1000,
        };
        let shown = json!({
            "name": "vol",
            "volume_ids": [5, 6, 7],
            "clone_id": 0,
            "flags": 0x1000,
            "sites": [{ "server": "192.0.2.1", "partition": 1, "flags": 4 }],
        });
        assert_eq!(old.json(), shown);
        assert_eq!(NvldbEntry::from(old).json(), shown);
        let update = VldbUpdateEntry {
            mask: 0x20,
            sites: List::from_iter_cut([SiteUpdate {
                mask: 0x400,
                target_server: 0xc000_0201,
                new_server: 0x7f00_0001,
                ..SiteUpdate::default()
            }]),
            ..VldbUpdateEntry::default()
        };
        let shown = update.json();
        assert_eq!(shown["mask"], "0x20");
        assert_eq!(shown["sites"][0]["target_server"], "192.0.2.1");
        assert_eq!(shown["sites"][0]["new_server"], "127.0.0.1");
    }
}
