//! One record of the index: length and checksum (four bytes each, little-endian), kind, and
//! numbers.

use std::sync::Arc;

use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::rxafs::AfsStoreStatus;

/// Stands for an absent number.
pub(crate) const NONE: u64 = u64::MAX;
/// The bytes of length and checksum.
const FRAME: usize = 8;
/// The most bytes of a record: the longest ones hold the name of a cell or a file.
const LENGTH_MAX: usize = 1_024;

/// The bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// An event of a file of the cache. `Entry::apply` defines the effect of each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[rustfmt::skip]
pub(crate) enum Record {
    /// The boot of the machine in which the following records were written.
    Boot { id: [u8; 16] },
    /// The identity of the file with this number.
    File { number: u64, cell: Arc<str>, fid: Fid },
    /// Bytes of a version are here, with their checksum.
    Valid { number: u64, version: u64, start: u64, end: u64, sum: u32 },
    /// The checksums over these bytes are void.
    Void { number: u64, start: u64, end: u64 },
    /// A program wrote.
    Dirty { number: u64, version: u64, writer: u64, start: u64, end: u64, length: u64, modified: u64 },
    /// A program set the length. `cut` is the shortest length that the server does not know.
    Length { number: u64, version: u64, writer: u64, length: u64, cut: u64, modified: u64 },
    /// All attributes that programs set and no server has; [`NONE`] for one that was not set. They
    /// replace those of earlier records.
    Attributes { number: u64, version: u64, writer: u64, length: u64, modified: u64, mode: u64, owner: u64, group: u64, time: u64 },
    /// A piece is being stored. `cut` is the cut that the call applies.
    Storing { number: u64, start: u64, end: u64, cut: u64 },
    /// The store failed.
    Failed { number: u64 },
    /// The store succeeded: the versions before and after it.
    Stored { number: u64, before: u64, version: u64 },
    /// The server has everything.
    Clean { number: u64 },
    /// The dirty bytes are synced.
    Synced { number: u64 },
    /// The dirty bytes may be damaged.
    Torn { number: u64 },
    /// The file was removed from the cache.
    Gone { number: u64 },
    /// A local create in a directory of the same volume, with a mode and a name.
    LocalCreate { number: u64, directory: u64, uniquifier: u64, mode: u64, name: Arc<[u8]> },
    /// The server knows the local create.
    Created { number: u64 },
}

impl Record {
    /// A record of attributes that `writer` set over `version`.
    pub(crate) fn attributes(
        number: u64,
        (version, writer): (u64, u32),
        length: u64,
        modified: AfsTime,
        set: &AfsStoreStatus,
    ) -> Self {
        let given = |number: Option<u32>| number.map_or(NONE, u64::from);
        let id = |id: Option<ViceId>| given(id.map(|id| id.0 as u32));
        Self::Attributes {
            number,
            version,
            writer: writer.into(),
            length,
            modified: modified.0.into(),
            mode: given(set.unix_mode),
            owner: id(set.owner),
            group: id(set.group),
            time: given(set.client_mod_time.map(|time| time.0)),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Boot { .. } => NONE,
            Self::File { number, .. }
            | Self::Valid { number, .. }
            | Self::Void { number, .. }
            | Self::Dirty { number, .. }
            | Self::Length { number, .. }
            | Self::Attributes { number, .. }
            | Self::Storing { number, .. }
            | Self::Failed { number }
            | Self::Stored { number, .. }
            | Self::Clean { number }
            | Self::Synced { number }
            | Self::Torn { number }
            | Self::Gone { number }
            | Self::LocalCreate { number, .. }
            | Self::Created { number } => *number,
        }
    }
}

#[rustfmt::skip]
fn parts(record: &Record) -> (u8, Vec<u64>, &[u8]) {
    match record {
        Record::Boot { id } => (1, vec![], id.as_slice()),
        Record::File { number, cell, fid } => {
            let fid = [fid.volume.0, fid.vnode.0, fid.uniquifier.0].map(u64::from);
            (2, vec![*number, fid[0], fid[1], fid[2]], cell.as_bytes())
        }
        Record::Valid { number, version, start, end, sum } =>
            (3, vec![*number, *version, *start, *end, u64::from(*sum)], &[]),
        Record::Void { number, start, end } => (4, vec![*number, *start, *end], &[]),
        Record::Dirty { number, version, writer, start, end, length, modified } =>
            (5, vec![*number, *version, *writer, *start, *end, *length, *modified], &[]),
        Record::Length { number, version, writer, length, cut, modified } =>
            (6, vec![*number, *version, *writer, *length, *cut, *modified], &[]),
        Record::Storing { number, start, end, cut } => (7, vec![*number, *start, *end, *cut], &[]),
        Record::Failed { number } => (8, vec![*number], &[]),
        Record::Stored { number, before, version } => (9, vec![*number, *before, *version], &[]),
        Record::Clean { number } => (10, vec![*number], &[]),
        Record::Synced { number } => (11, vec![*number], &[]),
        Record::Torn { number } => (12, vec![*number], &[]),
        Record::Gone { number } => (13, vec![*number], &[]),
        Record::LocalCreate { number, directory, uniquifier, mode, name } =>
            (15, vec![*number, *directory, *uniquifier, *mode], name),
        Record::Created { number } => (16, vec![*number], &[]),
        Record::Attributes { number, version, writer, length, modified, mode, owner, group, time } => {
            let all = vec![*number, *version, *writer, *length, *modified, *mode, *owner, *group, *time];
            (14, all, &[])
        }
    }
}

/// Appends a record.
pub(crate) fn encode(record: &Record, bytes: &mut Vec<u8>) {
    let (kind, numbers, rest) = parts(record);
    let at = bytes.len();
    bytes.extend([0; FRAME]);
    bytes.push(kind);
    for number in numbers {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(rest);
    let body = &bytes[at + FRAME..];
    let frame = [body.len() as u32, crc32c::crc32c(body)].map(u32::to_le_bytes);
    bytes[at..at + FRAME].copy_from_slice(frame.as_flattened());
}

/// Whether bytes can be the beginning of a record: the length must fit the kind.
pub(crate) fn may_begin(bytes: &[u8]) -> bool {
    let Some((&[a, b, c, d, _, _, _, _, kind], _)) = bytes.split_first_chunk::<9>() else {
        return false;
    };
    let numbers = match kind {
        1 => 2,
        2 | 15 => {
            return (4 * 8 + 1..=LENGTH_MAX).contains(&(u32::from_le_bytes([a, b, c, d]) as usize));
        }
        8 | 10..=13 | 16 => 1,
        4 | 9 => 3,
        7 => 4,
        3 => 5,
        6 => 6,
        5 => 7,
        14 => 9,
        _ => return false,
    };
    u32::from_le_bytes([a, b, c, d]) == 8 * numbers + 1
}

#[cfg(test)]
thread_local! {
    /// The number of bytes over which checksums were computed.
    pub(crate) static SUMMED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The first record and the remaining bytes; `None` at the end, or if the last record is truncated.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Record, &[u8])>, Damaged> {
    let Some((frame, rest)) = bytes.split_first_chunk::<FRAME>() else {
        return Ok(None);
    };
    let [length, sum] = [0, 4]
        .map(|at| u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]));
    let length = length as usize;
    if length > LENGTH_MAX {
        return Err(Damaged);
    }
    let Some((body, after)) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    #[cfg(test)]
    SUMMED.set(SUMMED.get() + body.len());
    if crc32c::crc32c(body) != sum {
        // The last record may be on the disk in part only.
        return if after.is_empty() {
            Ok(None)
        } else {
            Err(Damaged)
        };
    }
    let record = parse(body).ok_or(Damaged)?;
    Ok(Some((record, after)))
}

#[rustfmt::skip]
fn parse(body: &[u8]) -> Option<Record> {
    let (kind, rest) = body.split_first()?;
    if *kind == 1 {
        return Some(Record::Boot { id: rest.try_into().ok()? });
    }
    let (words, tail) = rest.as_chunks::<8>();
    let n: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if *kind == 2 {
        let cell = std::str::from_utf8(rest.get(32..)?).ok()?.into();
        let [number, volume, vnode, uniquifier] = *n.first_chunk::<4>()?;
        let small = |number: u64| u32::try_from(number).ok();
        let fid = Fid {
            volume: VolumeId(small(volume)?),
            vnode: VnodeId(small(vnode)?),
            uniquifier: Uniquifier(small(uniquifier)?),
        };
        return Some(Record::File { number, cell, fid });
    }
    if *kind == 15 {
        let [number, directory, uniquifier, mode] = *n.first_chunk::<4>()?;
        let name = rest.get(32..)?.into();
        return Some(Record::LocalCreate { number, directory, uniquifier, mode, name });
    }
    if !tail.is_empty() {
        return None;
    }
    let record = match (*kind, n.as_slice()) {
        (3, &[number, version, start, end, sum]) if start < end =>
            Record::Valid { number, version, start, end, sum: u32::try_from(sum).ok()? },
        (4, &[number, start, end]) => Record::Void { number, start, end },
        (5, &[number, version, writer, start, end, length, modified]) =>
            Record::Dirty { number, version, writer, start, end, length, modified },
        (6, &[number, version, writer, length, cut, modified]) =>
            Record::Length { number, version, writer, length, cut, modified },
        (7, &[number, start, end, cut]) => Record::Storing { number, start, end, cut },
        (8, &[number]) => Record::Failed { number },
        (9, &[number, before, version]) => Record::Stored { number, before, version },
        (10, &[number]) => Record::Clean { number },
        (11, &[number]) => Record::Synced { number },
        (12, &[number]) => Record::Torn { number },
        (13, &[number]) => Record::Gone { number },
        (16, &[number]) => Record::Created { number },
        (14, &[number, version, writer, length, modified, mode, owner, group, time]) =>
            Record::Attributes { number, version, writer, length, modified, mode, owner, group, time },
        _ => return None,
    };
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn records_come_back() {
        let fid = Fid { volume: VolumeId(7), vnode: VnodeId(8), uniquifier: Uniquifier(9) };
        let all = [
            Record::Boot { id: [3; 16] },
            Record::File { number: 1, cell: "test.cell".into(), fid },
            Record::Valid { number: 1, version: 2, start: 3, end: 4, sum: 5 },
            Record::Void { number: 1, start: 2, end: NONE },
            Record::Dirty { number: 1, version: 2, writer: 3, start: 4, end: 5, length: 6, modified: 7 },
            Record::Length { number: 1, version: 2, writer: 3, length: 4, cut: 5, modified: 6 },
            Record::Attributes { number: 1, version: 2, writer: 3, length: 4, modified: 5, mode: 6, owner: NONE, group: 8, time: 9 },
            Record::Storing { number: 1, start: 2, end: 3, cut: 4 },
            Record::Failed { number: 1 },
            Record::Stored { number: 1, before: 2, version: 3 },
            Record::Clean { number: 1 },
            Record::Synced { number: 1 },
            Record::Torn { number: 1 },
            Record::Gone { number: 1 },
            Record::LocalCreate { number: 1, directory: 2, uniquifier: 3, mode: 4, name: b"name".as_slice().into() },
            Record::Created { number: 1 },
        ];
        let mut bytes = Vec::new();
        for record in &all {
            encode(record, &mut bytes);
        }
        let mut rest = &bytes[..];
        for record in &all {
            let (got, after) = decode(rest).expect("undamaged").expect("a record");
            assert_eq!(got, *record);
            // Cut short it is nothing; damaged in the middle it is damage.
            assert!(may_begin(rest), "{record:?}");
            let length = rest.len() - after.len();
            for cut in 0..length {
                assert_eq!(decode(&rest[..cut]), Ok(None));
            }
            let mut damaged = rest.to_vec();
            damaged[FRAME] ^= 1;
            assert_eq!(decode(&damaged).is_err(), !after.is_empty());
            rest = after;
        }
        assert_eq!(decode(rest), Ok(None));
    }
}
