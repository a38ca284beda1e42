//! The queues of recalls of file servers. The operation of `cellar hsm queue`.

use std::net::IpAddr;

use cellar_wire::afsosd::{ListRecalls, RECALLS_AT_ONCE_MAX};
use cellar_wire::ids::ViceId;
use serde::Serialize;

use crate::error::Result;
use crate::jobs::{Job, Jobs};

/// A recall that waits or runs. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recall {
    /// The file server.
    pub server: IpAddr,
    /// The number of its job on that server.
    pub job: u64,
    /// The archive that is asked first.
    pub archive: String,
    /// `queued`, `running` or `waiting`; `cancelling` if a user has cancelled it.
    pub state: String,
    /// The place among the queued recalls of the archive, from 1; `None`: it is not in the queue.
    pub place: Option<u64>,
    /// The user who opened the file: an id, or `system`.
    pub user: String,
    /// The fid of the file.
    pub fid: String,
    /// The name of its volume, if the server has it.
    pub volume: Option<String>,
    /// The path of the file in the volume, if it is known.
    pub path: Option<String>,
    /// Length in bytes.
    pub bytes: u64,
    /// The time when it was queued.
    pub created: u64,
    /// The time when it started.
    pub started: Option<u64>,
    /// The last error.
    pub error: Option<String>,
}

impl Recall {
    /// The id of the user; `None`: the server itself.
    pub fn user_id(&self) -> Option<ViceId> {
        self.user.parse().ok().map(ViceId)
    }

    /// The file for people: volume and path, or the fid.
    pub fn file(&self) -> String {
        match (&self.volume, &self.path) {
            (Some(volume), Some(path)) => format!("{volume}:{path}"),
            (Some(volume), None) => format!("{volume}:{}", self.fid),
            _ => self.fid.clone(),
        }
    }

    /// Its order among others: by server and archive, those that run first, then by place.
    fn order(&self) -> (IpAddr, String, bool, u64, u64) {
        let place = self.place.unwrap_or(u64::MAX);
        let is_running = self.started.is_some() && self.place.is_none();
        let archive = self.archive.clone();
        (self.server, archive, !is_running, place, self.job)
    }
}

impl Jobs<'_> {
    /// The recalls of a file server that wait or run: by archive, those that run first, the others
    /// in the order in which they will start.
    ///
    /// # Errors
    /// As [`Jobs::list`].
    pub async fn recalls(&self, server: IpAddr) -> Result<Vec<Recall>> {
        let (mut recalls, mut after) = (Vec::new(), 0);
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        loop {
            let asked = ListRecalls {
                after,
                limit: RECALLS_AT_ONCE_MAX as u32,
            };
            let page = self.call(server, &asked).await?;
            for view in page.recalls.iter() {
                let job = Job::of(server, &view.job);
                recalls.push(Recall {
                    server,
                    job: job.id,
                    archive: job.resource,
                    state: match job.cancelling {
                        true => "cancelling".to_owned(),
                        false => job.state,
                    },
                    place: Some(view.place).filter(|place| *place > 0),
                    user: job.user,
                    fid: view.fid.to_string(),
                    volume: some(view.volume.to_string()),
                    path: some(view.path.to_string()),
                    bytes: view.length,
                    created: job.created,
                    started: job.started,
                    error: job.error,
                });
            }
            match page.recalls.last() {
                Some(last) if page.more && last.job.id > after => after = last.job.id,
                _ => break,
            }
        }
        recalls.sort_by_key(Recall::order);
        count_places(&mut recalls);
        Ok(recalls)
    }
}

/// Turns places among all jobs into places among the recalls of an archive.
fn count_places(recalls: &mut [Recall]) {
    let mut last = (String::new(), 0);
    for recall in recalls {
        if recall.archive != last.0 {
            last = (recall.archive.clone(), 0);
        }
        if recall.place.is_some() {
            last.1 += 1;
            recall.place = Some(last.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_recalls_come_first_and_queued_ones_by_place() {
        let recall = |job, archive: &str, place, started| Recall {
            server: IpAddr::from([127, 0, 0, 1]),
            job,
            archive: archive.to_owned(),
            state: String::new(),
            place,
            user: "system".to_owned(),
            fid: "1.2.3".to_owned(),
            volume: None,
            path: None,
            bytes: 0,
            created: 0,
            started,
            error: None,
        };
        let mut all = [
            recall(1, "tape2", None, Some(5)),
            recall(2, "tape1", Some(7), None),
            recall(3, "tape1", Some(2), Some(4)),
            recall(4, "tape1", None, Some(9)),
            recall(5, "tape1", None, None),
        ];
        all.sort_by_key(Recall::order);
        count_places(&mut all);
        let places = all.map(|recall| (recall.job, recall.place));
        assert_eq!(
            places,
            [(4, None), (3, Some(1)), (2, Some(2)), (5, None), (1, None)]
        );
    }

    #[test]
    fn a_file_is_named_as_well_as_it_is_known() {
        let mut recall = Recall {
            server: IpAddr::from([127, 0, 0, 1]),
            job: 1,
            archive: "tape".to_owned(),
            state: "queued".to_owned(),
            place: Some(1),
            user: "7".to_owned(),
            fid: "1.2.3".to_owned(),
            volume: None,
            path: None,
            bytes: 0,
            created: 0,
            started: None,
            error: None,
        };
        assert_eq!(recall.file(), "1.2.3");
        assert_eq!(recall.user_id(), Some(ViceId(7)));
        recall.volume = Some("data".to_owned());
        assert_eq!(recall.file(), "data:1.2.3");
        recall.path = Some("/a/b".to_owned());
        assert_eq!(recall.file(), "data:/a/b");
        recall.user = "system".to_owned();
        assert_eq!(recall.user_id(), None);
    }
}
