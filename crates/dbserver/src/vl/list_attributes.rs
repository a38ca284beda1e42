//! ListAttributes and LinkedList in their forms: entries selected by server, partition and flags,
//! and in the N2 form by a pattern for names.
//!
//! The older calls return all entries at once, which may be hundreds of thousands. They first
//! collect references and convert each entry while they stream, so that a call needs eight bytes
//! per entry instead of five hundred. Entries are read in batches, so that no listing holds the
//! lock of the model for long. If an entry changes meanwhile, the listing has its old or its new
//! state.

use std::sync::Arc;

use cellar_wire::vl::{
    EntryName, ListAttributesN2, ListAttributesN2Reply, NvldbEntry, VLF_BACKEXISTS, VLF_RWEXISTS,
    VLLIST_FLAG, VLLIST_PARTITION, VLLIST_SERVER, VLLIST_VOLUMEID, VLSF_BACKVOL, VLSF_ROVOL,
    VLSF_RWVOL, VldbListByAttributes,
};
use cellar_wire::{AbortCode, List};

use super::Vl;
use super::entry::{Entry, EntrySite};
use super::limits::{PAGE_ENTRIES, SCAN_ENTRIES};
use super::model::Locations;
use super::pattern::Pattern;
use crate::{Answer, Error, Identity, Kind};

/// The selection of a listing, with the server's number.
#[derive(Clone, Copy)]
struct Choice {
    /// `Some(None)` when no server has the address: nothing matches.
    server: Option<Option<u8>>,
    partition: Option<i32>,
    flags: Option<u32>,
}

impl Choice {
    fn new(model: &Locations, attributes: &VldbListByAttributes) -> Self {
        let asked = |bit| attributes.mask & bit != 0;
        Self {
            server: asked(VLLIST_SERVER).then(|| model.server_with_address(attributes.server)),
            partition: asked(VLLIST_PARTITION).then_some(attributes.partition),
            flags: asked(VLLIST_FLAG).then_some(attributes.flag),
        }
    }

    fn takes_site(&self, place: &EntrySite) -> bool {
        self.server
            .is_none_or(|server| server == Some(place.server))
            && self
                .partition
                .is_none_or(|partition| partition == i32::from(place.partition))
    }

    fn takes_flags(&self, entry: &Entry) -> bool {
        self.flags.is_none_or(|flags| entry.flags & flags != 0)
    }

    /// The older calls return an entry if one of its sites matches.
    fn takes(&self, entry: &Entry) -> bool {
        let any = self.server.is_none() && self.partition.is_none();
        self.takes_flags(entry) && (any || entry.places.iter().any(|place| self.takes_site(place)))
    }
}

impl Vl {
    /// The entries that an older listing returns.
    pub(super) fn gather(
        &self,
        attributes: &VldbListByAttributes,
    ) -> Result<Vec<Arc<Entry>>, Error> {
        let choice = {
            let model = self.replica.read();
            if attributes.mask & VLLIST_VOLUMEID != 0 {
                return Ok(vec![Arc::clone(model.by_id(attributes.volumeid, -1)?)]);
            }
            Choice::new(&model, attributes)
        };
        let mut chosen = Vec::new();
        let mut after = 0;
        loop {
            let some = self.replica.read().after(after, SCAN_ENTRIES);
            let Some(last) = some.last() else {
                return Ok(chosen);
            };
            after = last.number;
            chosen.extend(some.into_iter().filter(|entry| choice.takes(entry)));
        }
    }
}

/// Matches the names of an entry against a pattern, each name at most once.
struct Names<'a> {
    pattern: Option<&'a Pattern>,
    entry: &'a Entry,
    read_only: Option<bool>,
}

impl Names<'_> {
    fn matches(&self, suffix: &[u8]) -> bool {
        let Some(pattern) = self.pattern else {
            return true;
        };
        let mut name = [0; EntryName::LIMIT + b".readonly".len()];
        let (base, rest) = name.split_at_mut(self.entry.name.len());
        base.copy_from_slice(&self.entry.name);
        rest[..suffix.len()].copy_from_slice(suffix);
        let len = self.entry.name.len() + suffix.len();
        pattern.matches(&name[..len])
    }

    fn read_only_matches(&mut self) -> bool {
        if let Some(known) = self.read_only {
            return known;
        }
        let matches = self.matches(b".readonly");
        self.read_only = Some(matches);
        matches
    }
}

/// The site and the volume for which an entry is listed, as `type << 16 | site`, or `None`. If the
/// read-write site matches, it decides, else the last site that matches.
fn match_index(choice: &Choice, pattern: Option<&Pattern>, entry: &Entry) -> Option<u32> {
    let mut names = Names {
        pattern,
        entry,
        read_only: None,
    };
    let mut found = None;
    for (index, place) in entry.places.iter().enumerate() {
        let is_read_write = u32::from(place.flags) & VLSF_RWVOL != 0;
        let volume = if is_read_write {
            if entry.flags & VLF_RWEXISTS != 0 && names.matches(b"") {
                VLSF_RWVOL
            } else if entry.flags & VLF_BACKEXISTS != 0 && names.matches(b".backup") {
                VLSF_BACKVOL
            } else {
                continue;
            }
        } else if u32::from(place.flags) & VLSF_ROVOL != 0 && names.read_only_matches() {
            VLSF_ROVOL
        } else {
            continue;
        };
        if choice.takes_site(place) && choice.takes_flags(entry) {
            found = Some(volume << 16 | index as u32);
            if is_read_write {
                break;
            }
        }
    }
    found
}

impl Answer<Vl> for ListAttributesN2 {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Listing;

    fn answer(self, vl: &Vl, who: Identity) -> Result<ListAttributesN2Reply, Error> {
        let choice = {
            let model = vl.replica.read();
            if self.attributes.mask & VLLIST_VOLUMEID != 0 {
                let entry = model.by_id(self.attributes.volumeid, -1)?;
                return Ok(page(vec![model.to_n(entry)], -1));
            }
            Choice::new(&model, &self.attributes)
        };
        let pattern = parse_pattern(&self.volumename, who)?;
        if choice.server == Some(None) {
            return Ok(page(Vec::new(), -1));
        }
        let mut entries = Vec::new();
        let mut after = self.startindex.max(0) as u32;
        loop {
            let model = vl.replica.read();
            let some = model.after(after, SCAN_ENTRIES);
            if some.is_empty() {
                return Ok(page(entries, -1));
            }
            for entry in some {
                after = entry.number;
                if let Some(match_index) = match_index(&choice, pattern.as_ref(), &entry) {
                    entries.push(NvldbEntry {
                        match_index,
                        ..model.to_n(&entry)
                    });
                }
                if entries.len() >= PAGE_ENTRIES {
                    return Ok(page(entries, after as i32));
                }
            }
        }
    }
}

fn page(entries: Vec<NvldbEntry>, nextindex: i32) -> ListAttributesN2Reply {
    let nentries = entries.len() as i32;
    ListAttributesN2Reply {
        nentries,
        blkentries: List::from_iter_cut(entries),
        nextindex,
    }
}

/// Only administrators may use expressions. Every caller may ask for all names.
fn parse_pattern(text: &[u8], who: Identity) -> Result<Option<Pattern>, Error> {
    if text.is_empty() || text == b".*" {
        return Ok(None);
    }
    Vl::check_administrator(who)?;
    let pattern = Pattern::parse(text).map_err(|_| AbortCode::VL_BADNAME)?;
    Ok(Some(pattern))
}
