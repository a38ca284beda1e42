//! The pins of a cell.

use cellar_wire::ids::ViceId;
use cellar_wire::osddb::ListPins;
use serde::Serialize;

use super::Osds;
use crate::error::Result;

/// A pin: a file, or a directory with all files below it, that is not wiped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinView {
    /// The fid, in the RW volume.
    pub fid: String,
    /// The id of the owner.
    pub owner_id: i32,
    /// The name of the owner.
    pub owner: String,
    /// When it was set, in seconds since 1970.
    pub made: u64,
    /// When it ends, in seconds since 1970; `None`: never.
    pub until: Option<u64>,
    /// A remark: the path, if the owner gave none.
    pub remark: String,
}

impl Osds<'_> {
    /// The pins of the cell, by file.
    ///
    /// # Errors
    /// The databases do not answer.
    pub async fn pins(&self) -> Result<Vec<PinView>> {
        // No revision has this number.
        let asked = ListPins { known: u64::MAX };
        let listed = self.db(&asked, "cannot list the pins").await?.pins;
        let ids: Vec<ViceId> = listed.iter().map(|pin| pin.owner).collect();
        let users = crate::pts::Protection::new(self.client, self.cell);
        let names = users.names_of(&ids).await?;
        let pins = listed.iter().zip(names).map(|(pin, owner)| PinView {
            fid: pin.fid.to_string(),
            owner_id: pin.owner.0,
            owner,
            made: pin.made,
            until: Some(pin.until).filter(|until| *until > 0),
            remark: pin.reason.to_string(),
        });
        Ok(pins.collect())
    }
}
