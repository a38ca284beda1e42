//! VLDB entries: the three forms of "this volume group has these ids and these sites".
//!
//! On the wire each form is a fixed structure with a count and parallel arrays of 8 or 13 slots.
//! Here it is a list of sites. Slots after the count and spare words are written as zeros and
//! ignored when read: no peer gives them a meaning.

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, List};

use super::{ENTRIES_MAX, EntryName, OLD_SITES_MAX, SITES_MAX};
use crate::ids::{AfsUuid, VolumeId};

/// A server and partition that hold a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    /// The server's address.
    pub server: u32,
    /// The partition's number.
    pub partition: i32,
    /// `VLSF_*`: which volume of the group, and whether to use it.
    pub flags: u32,
}

/// A site of a `U` entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UuidSite {
    /// The server's UUID if `flags` has VLSF_UUID; else an address, see [`AfsUuid::from_address`].
    pub server: AfsUuid,
    /// Rises when the server's addresses change; earlier results of GetAddrsU are then stale.
    pub uniquifier: u32,
    /// The partition's number.
    pub partition: i32,
    /// `VLSF_*`.
    pub flags: u32,
}

/// The old entry, with at most 8 sites (`vldbentry`, 96 words).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VldbEntry {
    /// The read-write volume's name.
    pub name: EntryName,
    /// The sites of the volumes.
    pub sites: List<Site, OLD_SITES_MAX>,
    /// Ids of the read-write, read-only and backup volume; 0 for none.
    pub volume_ids: [VolumeId; 3],
    /// The clone of a release in progress, or 0.
    pub clone_id: VolumeId,
    /// `VLF_*` and `VLOP_*`.
    pub flags: u32,
}

/// The entry with at most 13 sites. [`NvldbEntry`] names the servers of sites by their addresses,
/// [`UvldbEntry`] by their UUIDs. Everything else is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WideEntry<S> {
    /// The read-write volume's name.
    pub name: EntryName,
    /// The sites of the volumes.
    pub sites: List<S, SITES_MAX>,
    /// Ids of the read-write, read-only and backup volume; 0 for none.
    pub volume_ids: [VolumeId; 3],
    /// The clone of a release in progress, or 0.
    pub clone_id: VolumeId,
    /// `VLF_*` and `VLOP_*`.
    pub flags: u32,
    /// In replies of ListAttributesN2: type << 16 plus the index of the site that matched.
    pub match_index: u32,
}

/// The entry with addresses (`nvldbentry`, 119 words).
pub type NvldbEntry = WideEntry<Site>;

/// The entry with server UUIDs (`uvldbentry`, 262 words).
pub type UvldbEntry = WideEntry<UuidSite>;

/// A site that entries hold as parallel arrays, one for each field.
pub trait SiteColumns: Copy {
    /// Words that one site takes in all arrays together.
    const WORDS: usize;

    /// Writes the arrays of `N` slots.
    fn encode_columns<const N: usize>(sites: &[Self], out: &mut Encoder<'_>);

    /// Reads the arrays. Slots after the used ones have no meaning.
    ///
    /// # Errors
    /// Truncated.
    fn decode_columns<const N: usize>(d: &mut Decoder<'_>) -> Result<[Self; N], DecodeError>;
}

impl SiteColumns for Site {
    const WORDS: usize = 3;

    fn encode_columns<const N: usize>(sites: &[Self], out: &mut Encoder<'_>) {
        out.words(column::<_, N>(sites, |site| site.server));
        out.words(column::<_, N>(sites, |site| site.partition as u32));
        out.words(column::<_, N>(sites, |site| site.flags));
    }

    #[expect(clippy::indexing_slicing, reason = "all arrays have N elements")]
    fn decode_columns<const N: usize>(d: &mut Decoder<'_>) -> Result<[Self; N], DecodeError> {
        let [servers, partitions, flags] = [d.words::<N>()?, d.words::<N>()?, d.words::<N>()?];
        Ok(std::array::from_fn(|i| Self {
            server: servers[i],
            partition: partitions[i] as i32,
            flags: flags[i],
        }))
    }
}

impl SiteColumns for UuidSite {
    const WORDS: usize = 11 + 3;

    fn encode_columns<const N: usize>(sites: &[Self], out: &mut Encoder<'_>) {
        for slot in 0..N {
            let server = sites.get(slot).map_or(AfsUuid::NIL, |site| site.server);
            server.encode(out);
        }
        out.words(column::<_, N>(sites, |site| site.uniquifier));
        out.words(column::<_, N>(sites, |site| site.partition as u32));
        out.words(column::<_, N>(sites, |site| site.flags));
    }

    #[expect(clippy::indexing_slicing, reason = "all arrays have N elements")]
    fn decode_columns<const N: usize>(d: &mut Decoder<'_>) -> Result<[Self; N], DecodeError> {
        let servers = <[AfsUuid; N]>::decode(d)?;
        let [uniquifiers, partitions, flags] = [d.words::<N>()?, d.words::<N>()?, d.words::<N>()?];
        Ok(std::array::from_fn(|i| Self {
            server: servers[i],
            uniquifier: uniquifiers[i],
            partition: partitions[i] as i32,
            flags: flags[i],
        }))
    }
}

/// One array of a structure of arrays: one word of each element, zeros after the last.
fn column<T, const N: usize>(elements: &[T], word: impl Fn(&T) -> u32) -> [u32; N] {
    let mut words = [0; N];
    for (slot, element) in words.iter_mut().zip(elements) {
        *slot = word(element);
    }
    words
}

/// The number of used slots. The slots are read before the count is checked, so that the error for
/// a short structure is always `Truncated`.
fn bounded(count: u32, limit: usize) -> Result<usize, DecodeError> {
    match count as usize {
        len if len > limit => Err(DecodeError::TooLong { limit, len }),
        len => Ok(len),
    }
}

fn encode_sites<S: SiteColumns, const N: usize>(sites: &List<S, N>, out: &mut Encoder<'_>) {
    out.u32(sites.len() as u32);
    S::encode_columns::<N>(sites, out);
}

fn decode_sites<S: SiteColumns, const N: usize>(
    d: &mut Decoder<'_>,
) -> Result<List<S, N>, DecodeError> {
    let count = d.u32()?;
    let slots = S::decode_columns::<N>(d)?;
    Ok(List::from_iter_cut(
        slots.into_iter().take(bounded(count, N)?),
    ))
}

impl Encode for VldbEntry {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.reserve(Self::MIN_SIZE);
        self.name.encode(out);
        out.u32(0);
        encode_sites(&self.sites, out);
        let [rw, ro, backup] = self.volume_ids;
        out.words([rw.0, ro.0, backup.0, self.clone_id.0, self.flags]);
    }
}

impl Decode for VldbEntry {
    const MIN_SIZE: usize = 96 * 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let name = EntryName::decode(d)?;
        let _spare = d.u32()?;
        let sites = decode_sites(d)?;
        let [rw, ro, backup, clone_id, flags] = d.words()?;
        Ok(Self {
            name,
            sites,
            volume_ids: [rw, ro, backup].map(VolumeId),
            clone_id: VolumeId(clone_id),
            flags,
        })
    }
}

impl<S: SiteColumns> Encode for WideEntry<S> {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.reserve(Self::MIN_SIZE);
        self.name.encode(out);
        encode_sites(&self.sites, out);
        let [rw, ro, backup] = self.volume_ids;
        out.words([
            rw.0,
            ro.0,
            backup.0,
            self.clone_id.0,
            self.flags,
            self.match_index,
        ]);
        out.words([0; SPARES]);
    }
}

impl<S: SiteColumns> Decode for WideEntry<S> {
    const MIN_SIZE: usize = (65 + 1 + S::WORDS * SITES_MAX + 6 + SPARES) * 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let name = EntryName::decode(d)?;
        let sites = decode_sites(d)?;
        let [rw, ro, backup, clone_id, flags, match_index] = d.words()?;
        let _spares = d.words::<SPARES>()?;
        Ok(Self {
            name,
            sites,
            volume_ids: [rw, ro, backup].map(VolumeId),
            clone_id: VolumeId(clone_id),
            flags,
            match_index,
        })
    }
}

const SPARES: usize = 8;
const _: () = assert!(NvldbEntry::MIN_SIZE == 119 * 4 && UvldbEntry::MIN_SIZE == 262 * 4);

impl NvldbEntry {
    /// The old form. If there are more than 8 sites, the first 8 are kept, as OpenAFS's server
    /// does.
    pub fn to_old(&self) -> VldbEntry {
        VldbEntry {
            name: self.name.clone(),
            sites: List::from_iter_cut(self.sites.iter().copied()),
            volume_ids: self.volume_ids,
            clone_id: self.clone_id,
            flags: self.flags,
        }
    }
}

impl From<VldbEntry> for NvldbEntry {
    fn from(old: VldbEntry) -> Self {
        Self {
            name: old.name,
            sites: List::from_iter_cut(old.sites),
            volume_ids: old.volume_ids,
            clone_id: old.clone_id,
            flags: old.flags,
            match_index: 0,
        }
    }
}

/// A change to one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteUpdate {
    /// `VLUPDATE_REPS_*`.
    pub mask: u32,
    /// The server of the site to change.
    pub target_server: u32,
    /// Its partition.
    pub target_partition: i32,
    /// The server after the change.
    pub new_server: u32,
    /// The partition after the change.
    pub new_partition: i32,
    /// The flags after the change.
    pub new_flags: u32,
}

/// Changes to an entry (`VldbUpdateEntry`, 120 words).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VldbUpdateEntry {
    /// `VLUPDATE_*`: the fields that count.
    pub mask: u32,
    /// The new name.
    pub name: EntryName,
    /// The new id of the read-write volume, in a word that the interface calls spare.
    pub read_write_id: VolumeId,
    /// The new flags.
    pub flags: u32,
    /// The new read-only volume's id.
    pub read_only_id: VolumeId,
    /// The new backup volume's id.
    pub backup_id: VolumeId,
    /// The new clone's id.
    pub clone_id: VolumeId,
    /// Changes to sites.
    pub sites: List<SiteUpdate, OLD_SITES_MAX>,
}

impl Encode for VldbUpdateEntry {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(self.mask);
        self.name.encode(out);
        out.words([
            0,
            self.flags,
            self.read_only_id.0,
            self.backup_id.0,
            self.clone_id.0,
        ]);
        out.u32(self.sites.len() as u32);
        let fields: [fn(&SiteUpdate) -> u32; 6] = [
            |site| site.mask,
            |site| site.target_server,
            |site| site.target_partition as u32,
            |site| site.new_server,
            |site| site.new_partition as u32,
            |site| site.new_flags,
        ];
        for field in fields {
            out.words(column::<_, OLD_SITES_MAX>(&self.sites, field));
        }
    }
}

impl Decode for VldbUpdateEntry {
    const MIN_SIZE: usize = 120 * 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mask = d.u32()?;
        let name = EntryName::decode(d)?;
        let [
            read_write_id,
            flags,
            read_only_id,
            backup_id,
            clone_id,
            count,
        ] = d.words()?;
        let mut columns = [[0; OLD_SITES_MAX]; 6];
        for column in &mut columns {
            *column = d.words()?;
        }
        let [
            masks,
            servers,
            partitions,
            new_servers,
            new_partitions,
            new_flags,
        ] = columns;
        #[expect(clippy::indexing_slicing, reason = "the bound is that of the arrays")]
        let sites = (0..bounded(count, OLD_SITES_MAX)?).map(|i| SiteUpdate {
            mask: masks[i],
            target_server: servers[i],
            target_partition: partitions[i] as i32,
            new_server: new_servers[i],
            new_partition: new_partitions[i] as i32,
            new_flags: new_flags[i],
        });
        Ok(Self {
            mask,
            name,
            read_write_id: VolumeId(read_write_id),
            flags,
            read_only_id: VolumeId(read_only_id),
            backup_id: VolumeId(backup_id),
            clone_id: VolumeId(clone_id),
            sites: List::from_iter_cut(sites),
        })
    }
}

/// A linked list (`vldb_list` and its kin): word 1 and an element, ..., word 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain<T>(
    /// The elements in their order.
    pub List<T, ENTRIES_MAX>,
);

impl<T: Encode> Encode for Chain<T> {
    fn encode(&self, out: &mut Encoder<'_>) {
        for element in &self.0 {
            out.u32(1);
            element.encode(out);
        }
        out.u32(0);
    }
}

impl<T: Decode> Decode for Chain<T> {
    const MIN_SIZE: usize = 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut elements = List::new();
        while d.u32()? != 0 {
            let element = T::decode(d)?;
            elements
                .push(element)
                .map_err(|over| DecodeError::TooLong {
                    limit: over.limit,
                    len: over.len,
                })?;
        }
        Ok(Self(elements))
    }
}
