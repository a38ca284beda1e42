//! The volumes in which a user may not change owners, remembered for a while.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use cellar_client::volume::Volume;

/// How long a refusal to change owners in a volume is remembered for a user. So an archive of
/// thousands of files is unpacked without a call for each, and a user who becomes an administrator
/// does not wait long. A user with new tokens counts as another user.
const OWNERS_TIME: Duration = Duration::from_secs(10);
/// The most volumes for which that is remembered for one user.
const OWNERS_MAX: usize = 256;
/// The volumes in which a user may not change owners.
#[derive(Debug, Default)]
pub(crate) struct Owners(parking_lot::Mutex<Vec<(Arc<Volume>, Instant)>>);

impl Owners {
    pub(super) fn were_refused(&self, volume: &Volume, now: Instant) -> bool {
        let refused = self.0.lock();
        refused.iter().any(|(other, at)| {
            let is_it = other.id == volume.id && other.cell == volume.cell;
            is_it && now.duration_since(*at) < OWNERS_TIME
        })
    }

    pub(super) fn refused(&self, volume: &Arc<Volume>, now: Instant) {
        let mut refused = self.0.lock();
        refused.retain(|(other, _)| other.id != volume.id || other.cell != volume.cell);
        if refused.len() >= OWNERS_MAX {
            refused.remove(0);
        }
        refused.push((volume.clone(), now));
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::ids::VolumeId;

    use super::*;
    use cellar_client::cell::CellName;
    use cellar_client::mount_point::VolumeKind;

    #[test]
    fn a_refused_change_of_owner_is_checked_again_soon() {
        let volume = |id| {
            Arc::new(Volume {
                cell: CellName::new("test.cell").expect("name"),
                name: "volume".to_owned(),
                kind: VolumeKind::ReadWrite,
                id: VolumeId(id),
            })
        };
        let owners = Owners::default();
        let now = Instant::now();
        owners.refused(&volume(1), now);
        for (id, seconds, refused) in [(1, 0, true), (2, 0, false), (1, 9, true), (1, 11, false)] {
            let later = now + Duration::from_secs(seconds);
            let known = owners.were_refused(&volume(id), later);
            assert_eq!(known, refused, "volume {id} after {seconds} s");
        }
    }
}
