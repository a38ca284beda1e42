//! A transaction on a volume server, on the client's side.
//!
//! Every transaction is ended, also after a failure: [`Trans::finish`] ends it and passes on the
//! outcome of the work in it. If the client dies, the server ends the transaction after ten
//! minutes. The next run of a job may end it earlier ([`super::orphans`]).

use std::time::Duration;

use cellar_wire::afsvol::{self, VolserStatus};
use cellar_wire::ids::VolumeId;
use cellar_wire::{AbortCode, Procedure};

use super::{Location, Volumes};
use crate::error::{Error, Result};

/// The pauses between attempts to open a transaction on a busy volume. OpenAFS's `vos` waits
/// equally long.
const BUSY_WAITS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(3),
];

/// An open transaction.
pub(super) struct Trans<'a> {
    volumes: Volumes<'a>,
    pub(super) at: Location,
    pub(super) volume: VolumeId,
    pub(super) number: i32,
}

impl<'a> Volumes<'a> {
    /// Opens a transaction on a volume, with `IT_*` flags. If another transaction has the volume,
    /// retries a few times.
    pub(super) async fn begin(
        &self,
        at: Location,
        volume: VolumeId,
        flags: i32,
    ) -> Result<Trans<'a>> {
        let what = format!("Failed to start a transaction on volume {volume} on {at}");
        let arguments = afsvol::TransCreate {
            volume,
            partition: at.partition.number(),
            flags,
        };
        let mut waits = BUSY_WAITS.iter();
        let number = loop {
            match self.server(at.server.into(), &arguments, &what).await {
                Ok(reply) => break reply.trans,
                Err(error) if error.code() == Some(AbortCode::VOLSERVOLBUSY) => {
                    match waits.next() {
                        Some(wait) => tokio::time::sleep(*wait).await,
                        None => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        };
        Ok(Trans {
            volumes: *self,
            at,
            volume,
            number,
        })
    }

    /// [`Volumes::begin`], or `None` if there is no such volume.
    pub(super) async fn begin_if_there(
        &self,
        at: Location,
        volume: VolumeId,
        flags: i32,
    ) -> Result<Option<Trans<'a>>> {
        match self.begin(at, volume, flags).await {
            Ok(trans) => Ok(Some(trans)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a volume, in a transaction. Until its flags are set to 0, the volume is off line,
    /// and it is deleted when its transaction ends.
    pub(super) async fn begin_new(
        &self,
        at: Location,
        volume: VolumeId,
        name: &str,
        volume_type: i32,
        parent: VolumeId,
    ) -> Result<Trans<'a>> {
        let what = format!("Failed to create the volume {name} {volume} on {at}");
        let arguments = afsvol::CreateVolume {
            partition: at.partition.number(),
            name: name_argument(name)?,
            volume_type,
            parent,
            volume,
        };
        let reply = match self.server(at.server.into(), &arguments, &what).await {
            Ok(reply) => reply,
            Err(error) => return Err(self.why_not_made(error, at, volume).await),
        };
        Ok(Trans {
            volumes: *self,
            at,
            volume,
            number: reply.trans,
        })
    }

    /// Improves the error of a failed creation. A server returns the same code for all causes. The
    /// usual one is a volume with the same id on another of its partitions.
    async fn why_not_made(&self, error: Error, at: Location, volume: VolumeId) -> Error {
        let unclear = [AbortCode::EIO, AbortCode::EXDEV, AbortCode::VVOLEXISTS];
        if !error.code().is_some_and(|code| unclear.contains(&code)) {
            return error;
        }
        match self.on_other_partition(at, volume).await {
            Some(there) => Error::Usage(format!(
                "{error}. Volume {volume} is on {there} already, and a server has one of an id; if it is not needed \
                 there, 'vos remove {} {} {volume}' removes it",
                there.server, there.partition
            )),
            None => error,
        }
    }

    /// Another partition of the server that has a volume with this id; also none if the server does
    /// not answer.
    pub(super) async fn on_other_partition(
        &self,
        at: Location,
        volume: VolumeId,
    ) -> Option<Location> {
        let found = self.find_on(at.server, volume).await.ok()?;
        let places = found.into_iter().map(|(there, _)| there);
        places.into_iter().find(|there| *there != at)
    }

    /// Deletes a volume from a server. Returns its status before, or `None` if it was not there.
    pub(super) async fn delete_from(
        &self,
        at: Location,
        volume: VolumeId,
    ) -> Result<Option<VolserStatus>> {
        let Some(trans) = self.begin_if_there(at, volume, afsvol::IT_OFFLINE).await? else {
            return Ok(None);
        };
        let deleted = async {
            let status = trans.status().await?;
            trans.delete().await?;
            Ok(Some(status))
        }
        .await;
        trans.finish(deleted).await
    }

    /// Deletes a volume, if it is there and `wanted` accepts its header.
    pub(super) async fn delete_if(
        &self,
        at: Location,
        volume: VolumeId,
        wanted: impl AsyncFnOnce(&Trans<'a>, &VolserStatus) -> Result<bool>,
    ) -> Result<()> {
        let Some(trans) = self.begin_if_there(at, volume, afsvol::IT_OFFLINE).await? else {
            return Ok(());
        };
        let deleted = async {
            let status = trans.status().await?;
            if wanted(&trans, &status).await? {
                trans.delete().await?;
            }
            Ok(())
        }
        .await;
        trans.finish(deleted).await
    }

    /// Brings a volume on line or off line.
    pub(super) async fn set_service(
        &self,
        at: Location,
        volume: VolumeId,
        on_line: bool,
    ) -> Result<()> {
        let trans = self.begin(at, volume, afsvol::IT_OFFLINE).await?;
        let flags = if on_line {
            0
        } else {
            afsvol::VT_OUT_OF_SERVICE
        };
        let set = trans.set_flags(flags).await;
        trans.finish(set).await
    }
}

impl Trans<'_> {
    /// Makes a call in the transaction.
    pub(super) async fn call<P: Procedure>(&self, arguments: &P, what: &str) -> Result<P::Reply> {
        let server = self.at.server.into();
        self.volumes.server(server, arguments, what).await
    }

    /// The fields of the volume's header.
    pub(super) async fn status(&self) -> Result<VolserStatus> {
        let what = format!(
            "Failed to get the status of volume {} on {}",
            self.volume, self.at
        );
        let trans = self.number;
        Ok(self.call(&afsvol::GetStatus { trans }, &what).await?.status)
    }

    /// The volume's name.
    pub(super) async fn name(&self) -> Result<String> {
        let what = format!(
            "Failed to get the name of volume {} on {}",
            self.volume, self.at
        );
        let trans = self.number;
        Ok(self
            .call(&afsvol::GetName { trans }, &what)
            .await?
            .name
            .to_string())
    }

    /// Sets the volume's `VT_*` flags.
    pub(super) async fn set_flags(&self, flags: i32) -> Result<()> {
        let what = format!(
            "Failed to set the flags of volume {} on {}",
            self.volume, self.at
        );
        let trans = self.number;
        self.call(&afsvol::SetFlags { trans, flags }, &what).await?;
        Ok(())
    }

    /// Deletes the volume. If the server dies during that, it finishes after its restart.
    pub(super) async fn delete(&self) -> Result<()> {
        let flags = afsvol::VT_DELETE_ON_SALVAGE | afsvol::VT_OUT_OF_SERVICE;
        self.set_flags(flags).await?;
        self.delete_closed().await
    }

    /// Deletes a volume that is out of service.
    pub(super) async fn delete_closed(&self) -> Result<()> {
        let what = format!("Failed to delete volume {} on {}", self.volume, self.at);
        let trans = self.number;
        self.call(&afsvol::DeleteVolume { trans }, &what).await?;
        Ok(())
    }

    /// Gives the volume its name, type and relatives.
    pub(super) async fn set_ids(
        &self,
        name: &str,
        volume_type: i32,
        parent: VolumeId,
        clone: VolumeId,
        backup: VolumeId,
    ) -> Result<()> {
        let what = format!(
            "Failed to set the name and ids of volume {} on {}",
            self.volume, self.at
        );
        let arguments = afsvol::SetIdsTypes {
            trans: self.number,
            name: name_argument(name)?,
            volume_type,
            parent,
            clone,
            backup,
        };
        self.call(&arguments, &what).await?;
        Ok(())
    }

    /// Clones the volume on its partition. The clone is off line and is deleted later if no call
    /// finishes it.
    pub(super) async fn clone_to(&self, new_type: i32, name: &str, clone: VolumeId) -> Result<()> {
        let what = format!("Failed to clone volume {} on {}", self.volume, self.at);
        let arguments = afsvol::Clone {
            trans: self.number,
            purge_volume: VolumeId(0),
            new_type,
            new_name: name_argument(name)?,
            new_volume: clone,
        };
        self.call(&arguments, &what).await?;
        Ok(())
    }

    /// Gives an existing clone the present contents of the volume.
    pub(super) async fn reclone(&self, clone: VolumeId) -> Result<()> {
        let what = format!(
            "Failed to clone volume {} on {} into {clone}",
            self.volume, self.at
        );
        let trans = self.number;
        self.call(&afsvol::ReClone { trans, clone }, &what).await?;
        Ok(())
    }

    /// Sends the volume, or its changes since a date, into a transaction on another server or
    /// partition.
    pub(super) async fn forward(
        &self,
        from_date: u32,
        to: &Trans<'_>,
        cookie: &afsvol::RestoreCookie,
    ) -> Result<()> {
        let what = format!(
            "Failed to send volume {} from {} to {}",
            self.volume, self.at, to.at
        );
        let arguments = afsvol::Forward {
            from_trans: self.number,
            from_date: from_date as i32,
            destination: afsvol::DestServer {
                host: to.at.server.into(),
                port: i32::from(self.volumes.cell.ports.volume),
                ssid: 1,
            },
            dest_trans: to.number,
            cookie: cookie.clone(),
        };
        self.call(&arguments, &what).await?;
        Ok(())
    }

    /// Ends the transaction.
    pub(super) async fn end(self) -> Result<()> {
        let what = format!(
            "Could not end the transaction on volume {} on {}",
            self.volume, self.at
        );
        self.volumes
            .end(self.at.server.into(), self.number, &what)
            .await
    }

    /// Ends the transaction after work in it. An error of the work comes before an error of the
    /// end.
    pub(super) async fn finish<T>(self, work: Result<T>) -> Result<T> {
        let ended = self.end().await;
        let done = work?;
        ended.map(|()| done)
    }
}

/// Whether an operation failed because the volume is not there.
pub(crate) fn is_missing(error: &Error) -> bool {
    matches!(error.code(), Some(AbortCode::VNOVOL | AbortCode::ENODEV))
}

/// The date for a dump with all changes after `date`: two seconds earlier, because clocks count
/// whole seconds and a write may take one.
pub(super) fn with_margin(date: cellar_wire::ids::AfsTime) -> u32 {
    date.0.saturating_sub(2)
}

/// Converts a volume's name into an argument.
pub(super) fn name_argument(name: &str) -> Result<afsvol::VolumeNameArgument> {
    afsvol::VolumeNameArgument::try_from(name)
        .ok()
        .filter(|_| name.len() <= NAME_BYTES_MAX)
        .ok_or_else(|| {
            Error::Usage(format!(
                "'{name}' is too long for a volume: at most {NAME_BYTES_MAX} characters"
            ))
        })
}

/// The longest name in a volume's header. Source: `VNAMESIZE` (32) with its NUL.
pub(super) const NAME_BYTES_MAX: usize = 31;

/// Converts a volume's name into the form in records.
pub(super) fn name_record(name: &str) -> Result<afsvol::VolumeName> {
    afsvol::VolumeName::try_from(name)
        .map_err(|_| Error::Usage(format!("'{name}' is too long for a volume")))
}
