//! Searches for volumes, and the facts about one.

use std::net::IpAddr;
use std::sync::Arc;

use cellar_admin::vos::{Entry, EntryFilter, Site as EntrySite, VolumeInfo, Volumes, site_flags};
use cellar_wire::ids::VolumeId;
use futures_util::stream::{self, StreamExt as _};
use tokio::time::{Instant, timeout_at};

use super::{Answer, Site, sentence};

/// Volumes on a page.
pub(crate) const PAGE_ROWS: usize = 100;
/// Questions to volume servers at one time, for one page.
const QUESTIONS_MAX: usize = 16;
/// The longest text of a search in bytes. Names are shorter.
pub(crate) const SEARCH_BYTES_MAX: usize = 64;

/// The place in a listing where a page begins: the index in the VLDB, and entries to leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cursor {
    pub(crate) index: i32,
    pub(crate) skip: usize,
}

/// A search for volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct VolumeSearch {
    /// A part of the name; empty for all.
    pub(crate) text: String,
    /// Only volumes with a site on this server.
    pub(crate) server: Option<IpAddr>,
    pub(crate) from: Cursor,
}

/// A volume of a list: its entry, and the facts of the read-write volume or its first site.
pub(crate) struct VolumeRow {
    pub(crate) entry: Entry,
    pub(crate) info: Option<VolumeInfo>,
}

/// A page of a search.
#[derive(Default)]
pub(crate) struct VolumeList {
    pub(crate) rows: Vec<VolumeRow>,
    /// The beginning of the next page.
    pub(crate) next: Option<Cursor>,
    /// The search stopped at its time limit.
    pub(crate) is_cut: bool,
}

/// A site of a volume, and its volume there.
pub(crate) struct SiteView {
    pub(crate) site: EntrySite,
    pub(crate) info: Answer<VolumeInfo>,
}

/// A volume family.
pub(crate) struct VolumeView {
    pub(crate) entry: Entry,
    pub(crate) sites: Vec<SiteView>,
    /// The backup volume.
    pub(crate) backup: Option<Answer<VolumeInfo>>,
}

impl Site {
    fn volumes(&self) -> Volumes<'_> {
        Volumes::new(&self.client, &self.cell)
    }

    /// A page of a search.
    pub(crate) async fn volume_list(&self, search: VolumeSearch) -> Arc<Answer<VolumeList>> {
        let ask = self.search_volumes(&search);
        self.volume_lists.get(search.clone(), ask).await
    }

    async fn search_volumes(&self, search: &VolumeSearch) -> Answer<VolumeList> {
        let deadline = Instant::now() + self.limits.listing;
        let filter = EntryFilter {
            server: search.server,
            ..EntryFilter::default()
        };
        let volumes = self.volumes();
        let (mut found, mut is_cut) = (Vec::new(), false);
        let mut at = Some(search.from);
        while let Some(from) = at.filter(|_| found.len() < PAGE_ROWS) {
            let page = volumes.entry_page(filter, &search.text, from.index);
            let page = match timeout_at(deadline, page).await {
                Ok(page) => page.map_err(|error| sentence(&error))?,
                Err(_) if from == search.from => return Err(self.late("the VLDB")),
                Err(_) => {
                    is_cut = true;
                    break;
                }
            };
            let room = PAGE_ROWS - found.len();
            let mut entries = page.entries.into_iter().skip(from.skip);
            found.extend(entries.by_ref().take(room));
            at = match entries.next() {
                Some(_) => Some(Cursor {
                    index: from.index,
                    skip: from.skip + room,
                }),
                None => page.next.map(|index| Cursor { index, skip: 0 }),
            };
        }
        // A whole list is sorted by name. Pages of a longer one are in the order of the VLDB.
        if at.is_none() && search.from == Cursor::default() {
            found.sort_by(|one, other| one.name.cmp(&other.name));
        }
        let deadline = Instant::now() + self.limits.listing;
        let rows = stream::iter(found).map(async |entry| {
            let info = match main_site(&entry) {
                Some((site, id)) => {
                    let ask = volumes.volume_on(site.server, site.partition, id, false);
                    let asked = timeout_at(deadline, ask).await;
                    asked.ok().and_then(Result::ok)
                }
                None => None,
            };
            VolumeRow { entry, info }
        });
        Ok(VolumeList {
            rows: rows.buffered(QUESTIONS_MAX).collect().await,
            next: at,
            is_cut,
        })
    }

    /// A volume family, by name or number.
    pub(crate) async fn volume(&self, name: &str) -> Arc<Answer<VolumeView>> {
        let ask = async {
            let volumes = self.volumes();
            let entry = self.within("the VLDB", volumes.entry(name)).await?;
            let sites = entry.sites.iter().map(async |site| {
                let info = self.info(site, id_at(&entry, site)).await;
                SiteView {
                    site: site.clone(),
                    info,
                }
            });
            let sites = futures_util::future::join_all(sites).await;
            let has_backup = entry.flags & cellar_admin::vos::entry_flags::BACKUP_EXISTS != 0;
            let backup = match entry.read_write_site().filter(|_| has_backup) {
                Some(site) => Some(self.info(site, entry.backup).await),
                None => None,
            };
            Ok(VolumeView {
                sites,
                backup,
                entry: entry.clone(),
            })
        };
        self.volume_views.get(name.to_owned(), ask).await
    }

    async fn info(&self, site: &EntrySite, id: VolumeId) -> Answer<VolumeInfo> {
        let volumes = self.volumes();
        let ask = volumes.volume_on(site.server, site.partition, id, true);
        super::within(self.limits.answer, "the volume server", ask).await
    }

    fn late(&self, what: &str) -> String {
        let seconds = self.limits.listing.as_secs();
        format!("{what}: no answer within {seconds} s")
    }
}

/// The number of the volume at a site.
pub(crate) fn id_at(entry: &Entry, site: &EntrySite) -> VolumeId {
    match site.flags & site_flags::READ_WRITE != 0 {
        true => entry.read_write,
        false => entry.read_only,
    }
}

/// The site of the read-write volume, or the first one, with the number of its volume.
fn main_site(entry: &Entry) -> Option<(&EntrySite, VolumeId)> {
    let site = entry.read_write_site().or(entry.sites.first())?;
    Some((site, id_at(entry, site)))
}
