//! The names in a directory, and the text of a symbolic link.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::dir::{Directory, PAGE_SIZE, PAGES_MAX};
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::FileType;

use super::Statuses;
use super::cached_names::Listing;
use crate::request::refused;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_client::error::{Error, Result};

/// The longest text of a symbolic link. Source: `AFSPATHMAX`.
const LINK_TEXT_MAX: u64 = 1024;
/// How often a directory is fetched at most when it changes during each fetch.
const TRIES: u32 = 8;

impl Statuses {
    /// The text of a symbolic link or mount point.
    ///
    /// # Errors
    /// The server's error.
    pub async fn link_text(&self, user: &Arc<User>, link: &Arc<Vnode>) -> Result<Bytes> {
        // The kernel keeps the text.
        link.hold_contents();
        let status = self.status(user, link).await?;
        if status.file_type != FileType::Symlink {
            return Err(refused("not a symbolic link", AbortCode::EINVAL));
        }
        if let Some(text) = link.state.lock().contents.link_text(status.data_version) {
            return Ok(text.clone());
        }
        let (pieces, status) = self.fetch(user, link, 0, LINK_TEXT_MAX).await?;
        let text: Bytes = pieces.concat().into();
        let mut state = link.state.lock();
        state
            .contents
            .set_link_text(status.data_version, text.clone());
        Ok(text)
    }

    /// The names in a directory, without `.` and `..`.
    ///
    /// # Errors
    /// The user has no right to look; it is not a directory; the server's error.
    pub async fn listing(&self, user: &Arc<User>, directory: &Arc<Vnode>) -> Result<Arc<Listing>> {
        for _ in 0..TRIES {
            let status = self.status(user, directory).await?;
            if status.file_type != FileType::Directory {
                return Err(refused("not a directory", AbortCode::ENOTDIR));
            }
            if !status.caller_access.contains(Rights::LOOKUP) {
                return Err(refused(
                    format!("looking into {}", directory.fid()),
                    AbortCode::EACCES,
                ));
            }
            if let Some(listing) = directory.state.lock().contents.listing(status.data_version) {
                self.env.counts.listings.hit();
                return Ok(listing.clone());
            }
            self.env.counts.listings.missed();
            let _alone = directory.alone().await;
            if let Some(listing) = directory.state.lock().contents.listing(status.data_version) {
                return Ok(listing.clone());
            }
            let most = (PAGE_SIZE * PAGES_MAX) as u64;
            let (pieces, after) = self.fetch(user, directory, 0, most).await?;
            // The version is the same before and after the fetch, so the bytes are of that version.
            if after.data_version != status.data_version {
                continue;
            }
            let listing = Arc::new(parse(directory.fid(), &pieces.concat())?);
            let mut state = directory.state.lock();
            state
                .contents
                .set_listing(status.data_version, listing.clone(), user);
            return Ok(listing);
        }
        Err(Error::BadAnswer {
            what: format!("directory {}", directory.fid()),
            detail: "it changes faster than it can be read".to_owned(),
        })
    }
}

fn parse(fid: Fid, bytes: &[u8]) -> Result<Listing> {
    let damaged = |detail: String| Error::BadAnswer {
        what: format!("directory {fid}"),
        detail,
    };
    let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
    if !rest.is_empty() {
        return Err(damaged("not whole pages".to_owned()));
    }
    let pages = pages.to_vec();
    let entries = Directory::new(&pages)
        .entries()
        .map_err(|error| damaged(error.to_string()))?;
    let named = entries
        .into_iter()
        .filter(|(name, _)| name != b"." && name != b"..");
    Ok(named
        .map(|(name, target)| {
            let fid = Fid {
                volume: fid.volume,
                vnode: target.vnode,
                uniquifier: target.uniquifier,
            };
            (Bytes::from(name), fid)
        })
        .collect())
}
