//! `vldb.DB0`, the location database of OpenAFS.

use cellar_wire::vl::{VLF_RWEXISTS, VLSF_RWVOL};

use super::ubik::{Contents, id_bucket, name_bucket};
use crate::databases::population::{FIRST_SERVER, SERVERS, volume_ids, volume_name, volume_site};

/// The form with 13 sites and servers without UUIDs.
const VERSION: u32 = 3;
const HEADER_BYTES: usize = 132_120;
const ENTRY_BYTES: usize = 148;
const SITES: usize = 13;
const NAME_BASE: u32 = 63;

/// Places in the header.
mod header {
    pub(super) const VERSION: usize = 0;
    pub(super) const SIZE: usize = 4;
    pub(super) const END: usize = 12;
    pub(super) const NEXT_VOLUME_ID: usize = 24;
    pub(super) const ADDRESSES: usize = 40;
    pub(super) const NAMES: usize = 1060;
    pub(super) const IDS: usize = 33_824;
    pub(super) const IDS_BYTES: usize = 8191 * 4;
}

/// Places in an entry.
mod entry {
    pub(super) const FLAGS: usize = 12;
    pub(super) const NEXT_ID: usize = 28;
    pub(super) const NEXT_NAME: usize = 40;
    pub(super) const NAME: usize = 44;
    pub(super) const SERVERS: usize = 109;
    pub(super) const PARTITIONS: usize = 122;
    pub(super) const SITE_FLAGS: usize = 135;
}

/// The file.
pub(super) fn database(volumes: u32) -> Vec<u8> {
    let mut out = Contents::new(HEADER_BYTES);
    out.put(header::VERSION, VERSION);
    out.put(header::SIZE, HEADER_BYTES as u32);
    out.put(header::NEXT_VOLUME_ID, volume_ids(volumes)[0]);
    for server in 0..SERVERS {
        let at = header::ADDRESSES + 4 * server as usize;
        out.put(at, FIRST_SERVER + server);
    }
    for number in 0..volumes {
        add(&mut out, number);
    }
    out.put(header::END, out.len());
    out.into_file()
}

fn add(out: &mut Contents, number: u32) {
    let place = out.grow(ENTRY_BYTES);
    out.put(place + entry::FLAGS, VLF_RWEXISTS);
    for (kind, id) in volume_ids(number).into_iter().enumerate() {
        out.put(place + 4 * kind, id);
        let head = header::IDS + kind * header::IDS_BYTES + 4 * id_bucket(id as i32);
        out.push(head, place, entry::NEXT_ID + 4 * kind);
    }
    let name = volume_name(number);
    out.put_bytes(place + entry::NAME, name.as_bytes());
    let head = header::NAMES + 4 * name_bucket(name.as_bytes(), NAME_BASE);
    out.push(head, place, entry::NEXT_NAME);
    let (server, partition) = volume_site(number);
    for (at, byte) in [
        (entry::SERVERS, server),
        (entry::PARTITIONS, partition),
        (entry::SITE_FLAGS, VLSF_RWVOL as u8),
    ] {
        out.put_bytes(place + at, &[0xff; SITES]);
        out.put_bytes(place + at, &[byte]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_by_its_chains() {
        let file = database(20_000);
        assert_eq!((file.len() - 64) % 1024, 0);
        let word = |at: u32| {
            let at = 64 + at as usize;
            u32::from_be_bytes(file[at..at + 4].try_into().unwrap())
        };
        for number in [0, 7, 19_999] {
            let id = volume_ids(number)[2];
            let head = header::IDS + 2 * header::IDS_BYTES + 4 * id_bucket(id as i32);
            let mut place = word(head as u32);
            while word(place + 8) != id {
                assert_ne!(place, 0);
                place = word(place + entry::NEXT_ID as u32 + 8);
            }
            let name = 64 + place as usize + entry::NAME;
            assert!(file[name..].starts_with(volume_name(number).as_bytes()));
        }
    }
}
