//! Pages of a search in the VLDB, for callers that show a part of a long list.

use cellar_wire::{AbortCode, vl};

use super::location::EntryFilter;
use super::{Entry, Volumes, entry_from_wire};
use crate::error::{Error, Result};

/// A part of a listing of the VLDB, in its own order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPage {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The index at which the next page begins; `None` at the end.
    pub next: Option<i32>,
}

impl Volumes<'_> {
    /// The entries from an index on (0: the first) whose name contains a text. The VLDB chooses the
    /// length of a page. It searches only for administrators; for others, this call reads a page
    /// and searches in it, so a page may be empty before the end.
    ///
    /// # Errors
    /// The VLDB does not answer, or knows no such server, or the text is longer than a name.
    pub async fn entry_page(
        &self,
        filter: EntryFilter,
        containing: &str,
        from: i32,
    ) -> Result<EntryPage> {
        let attributes = filter.attributes()?;
        let page = async |volumename| {
            let arguments = vl::ListAttributesN2 {
                attributes,
                volumename,
                startindex: from,
            };
            self.vl(&arguments, "unable to list the VLDB").await
        };
        let all = vl::VolumeNameArgument::default;
        let reply = if containing.is_empty() {
            page(all()).await?
        } else {
            let wanted = vl::VolumeNameArgument::try_from(pattern(containing).as_str());
            let wanted =
                wanted.map_err(|_| Error::Usage("the text is longer than a name".to_owned()))?;
            match page(wanted).await {
                Err(error) if error.code() == Some(AbortCode::VL_PERM) => page(all()).await?,
                reply => reply?,
            }
        };
        let entries = reply.blkentries.iter().map(entry_from_wire);
        Ok(EntryPage {
            entries: entries
                .filter(|entry| entry.name.contains(containing))
                .collect(),
            // -1 ends the list. An index that does not grow would never end it.
            next: Some(reply.nextindex).filter(|next| *next > from),
        })
    }
}

/// The basic regular expression of names that contain a text.
fn pattern(text: &str) -> String {
    let mut pattern = ".*".to_owned();
    for letter in text.chars() {
        if matches!(letter, '.' | '[' | '*' | '^' | '$' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push_str(".*");
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_searched_as_they_are() {
        assert_eq!(pattern("home.a"), ".*home\\.a.*");
        assert_eq!(pattern("[*\\"), ".*\\[\\*\\\\.*");
    }
}
