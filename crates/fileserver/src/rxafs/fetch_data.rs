//! FetchData (130) and FetchData64 (65537): the bytes of a file, of a directory's pages, or of a
//! link's target; then its status, with a promise.
//!
//! 1. Rights are checked and the promise is given for one version of the file. A reader of the same
//!    version sends the bytes, for as long as it takes and despite later stores.
//! 2. Nothing is sent before the version that is read is durable.
//! 3. The length is sent first and is binding: exactly so many bytes follow.
//! 4. A slow client blocks only its own call: pieces are read only when there is room for them.

use std::sync::Arc;

use cellar_fileobjects::Objects;
use cellar_fileobjects::{Fetching, ReadGuard};
use cellar_rpc::IncomingCall;
use cellar_volume::{Error, Reader, VnodeStatus, Volume, nonblocking};
use cellar_wire::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;
use cellar_wire::rxafs::{
    AfsFetchStatus, Callback, FetchData, FetchData64, FetchData64Reply, FetchDataReply, VolSync,
};
use cellar_wire::serve::HandleStream;
use tokio::time::Instant;

use super::FileService;
use super::common::{run, status_and_access};
use super::promise::with_promise;
use crate::abort_map::Refusal;
use crate::limits::FETCH_PIECE_BYTES;
use crate::load;
use crate::recall::with_recall;
use crate::services::FileServices;
use crate::session::Session;
use crate::statistics::Direction;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;

/// Up to this many bytes are sent together with the length before and the status after them.
/// Copying them costs less than the additional packets.
const SMALL_FETCH: u64 = 16 * 1024;

/// The source of the bytes.
enum Source {
    Here(Reader),
    Objects(Box<Fetching>),
}

impl Source {
    fn length(&self) -> u64 {
        match self {
            Self::Here(reader) => reader.length(),
            Self::Objects(fetching) => fetching.length(),
        }
    }
}

/// A file that is open for reading.
enum Opened {
    Here(Reader),
    /// Its bytes are in these objects, which are kept while [`ReadGuard`] exists.
    Objects(Box<(VnodeStatus, Arc<Layout>)>, ReadGuard),
}

impl Opened {
    fn status(&self) -> &VnodeStatus {
        match self {
            Self::Here(reader) => reader.status(),
            Self::Objects(found, _) => &found.0,
        }
    }
}

struct Fetch {
    source: Source,
    status: AfsFetchStatus,
    callback: Callback,
    sync: VolSync,
}

impl HandleStream<FetchData, IncomingCall> for FileService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: FetchData,
    ) -> Result<FetchDataReply, Refusal> {
        let services = &self.services;
        let FetchData {
            fid,
            position,
            length,
        } = arguments;
        let range = range(position.into(), length.into())?;
        let session = services.sessions.session(call).await?;
        let fetch = open(services, &session, fid, range).await?;
        let length = u32::try_from(fetch.source.length()).map_err(|_| Refusal::TooBig)?;
        call.reply(&length);
        let (status, callback, sync) = send(services, call, fetch).await?;
        Ok(FetchDataReply {
            status,
            callback,
            sync,
        })
    }
}

impl HandleStream<FetchData64, IncomingCall> for FileService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: FetchData64,
    ) -> Result<FetchData64Reply, Refusal> {
        let services = &self.services;
        let FetchData64 {
            fid,
            position,
            length,
        } = arguments;
        let range = range(position, length)?;
        let session = services.sessions.session(call).await?;
        let fetch = open(services, &session, fid, range).await?;
        call.reply(&fetch.source.length());
        let (status, callback, sync) = send(services, call, fetch).await?;
        Ok(FetchData64Reply {
            status,
            callback,
            sync,
        })
    }
}

/// Position and length. They must not be negative, nor extend beyond the largest file.
fn range(position: i64, length: i64) -> Result<(u64, u64), Refusal> {
    let position = u64::try_from(position).map_err(|_| Refusal::TooBig)?;
    let length = u64::try_from(length).map_err(|_| Refusal::TooBig)?;
    match position.checked_add(length) {
        Some(end) if end <= i64::MAX as u64 => Ok((position, length)),
        _ => Err(Refusal::TooBig),
    }
}

async fn open(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
    range: (u64, u64),
) -> Result<Fetch, Refusal> {
    let open = async || open_once(services, session, fid, range).await;
    with_recall(services, session, fid, open).await
}

async fn open_once(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
    (position, length): (u64, u64),
) -> Result<Fetch, Refusal> {
    let asked = (position, length);
    let (here, session) = (services.clone(), session.clone());
    let (opened, rest, durable) = run(&services.callbacks.clone(), move || {
        let services = &here;
        let attached = services.volumes.of(fid, VolumeAccess::Read)?;
        let volume = &attached.volume;
        let read = || {
            let (status, _, access) = status_and_access(services, &session, &attached, fid)?;
            if !session
                .identity()
                .may_fetch_data(&status, access.caller, volume.owner())
            {
                return Err(Refusal::NoRight);
            }
            let opened = open_file(&services.objects, volume, fid, position, length)?;
            // The status of the version that is read, which may be newer than the one that was
            // checked.
            let status = services.callbacks.show(&session, opened.status(), access);
            Ok((opened, status))
        };
        let opened = with_promise(&services.callbacks, &session, volume, fid, false, read);
        if matches!(opened, Ok(_) | Err(Refusal::NoRight)) {
            volume.count_read(session.origin());
        }
        let ((opened, status), callback) = opened?;
        let rest = (status, callback, vol_sync(volume));
        Ok((opened, rest, volume.last_change(fid.vnode)))
    })
    .await?;
    durable.await?;
    let source = match opened {
        Opened::Here(reader) => Source::Here(reader),
        Opened::Objects(found, read_guard) => {
            let (status, layout) = *found;
            let fetching = Fetching::begin(&services.objects, &status, &layout, asked, read_guard);
            Source::Objects(Box::new(fetching.await?))
        }
    };
    let (status, callback, sync) = rest;
    Ok(Fetch {
        source,
        status,
        callback,
        sync,
    })
}

fn open_file(
    objects: &Objects,
    volume: &Arc<Volume>,
    fid: Fid,
    position: u64,
    length: u64,
) -> Result<Opened, Refusal> {
    match volume.read_file(fid, position, length) {
        Err(Error::InObjects(_)) => {}
        reader => return Ok(Opened::Here(reader?)),
    }
    loop {
        let (status, Some(layout)) = volume.status_and_layout(fid)? else {
            // The bytes have just moved back to this server.
            return Ok(Opened::Here(volume.read_file(fid, position, length)?));
        };
        let read_guard = objects.hold(fid, &layout);
        // A task that removes old versions after a change checks for readers. The layout is
        // unchanged, so such a task sees this reader.
        if volume.layout(fid)?.as_ref() == Some(&layout) {
            return Ok(Opened::Objects(Box::new((status, layout)), read_guard));
        }
    }
}

/// Sends the bytes after the data that the reply already holds.
async fn send(
    services: &FileServices,
    call: &mut IncomingCall,
    fetch: Fetch,
) -> Result<(AfsFetchStatus, Callback, VolSync), Refusal> {
    let Fetch {
        source,
        status,
        callback,
        sync,
    } = fetch;
    let mut reader = match source {
        Source::Here(reader) => reader,
        Source::Objects(fetching) => {
            send_objects(services, call, *fetching).await?;
            return Ok((status, callback, sync));
        }
    };
    let (length, begun) = (reader.length(), Instant::now());
    let mut sent = 0;
    let outcome = loop {
        if sent == length {
            break Ok(());
        }
        let piece = match nonblocking(|| reader.next(FETCH_PIECE_BYTES)) {
            Err(Error::WouldBlock) => {
                let (back, piece) = cellar_rpc::blocking(move || {
                    let piece = reader.next(FETCH_PIECE_BYTES);
                    (reader, piece)
                })
                .await;
                reader = back;
                piece
            }
            piece => piece,
        };
        let piece = match piece {
            Ok(Some(piece)) => piece,
            // The reader should deliver the announced length. If it does not, the client must not
            // take the following bytes for data.
            Ok(None) => break Err(Refusal::Store(Error::Changed(reader.status().fid))),
            Err(error) => break Err(error.into()),
        };
        sent += piece.len() as u64;
        if length <= SMALL_FETCH {
            call.append(&piece);
        } else if let Err(code) = call.write(piece).await {
            break Err(Refusal::Call(code));
        }
    };
    load::note_bytes(sent);
    services
        .statistics
        .transfer(Direction::Fetch, sent, outcome.is_ok(), begun.elapsed());
    outcome.map(|()| (status, callback, sync))
}

/// Sends bytes from objects.
async fn send_objects(
    services: &FileServices,
    call: &mut IncomingCall,
    mut fetching: Fetching,
) -> Result<(), Refusal> {
    let (length, begun) = (fetching.length(), Instant::now());
    let mut sent = 0;
    let outcome = loop {
        match fetching.next().await {
            Ok(Some(piece)) => {
                sent += piece.len() as u64;
                if length <= SMALL_FETCH {
                    call.append(&piece);
                } else if let Err(code) = call.write(piece).await {
                    break Err(Refusal::Call(code));
                }
            }
            Ok(None) if sent == length => break Ok(()),
            Ok(None) => break Err(Refusal::Objects(AbortCode::EIO)),
            Err(failure) => break Err(failure.into()),
        }
    };
    load::note_bytes(sent);
    services
        .statistics
        .transfer(Direction::Fetch, sent, outcome.is_ok(), begun.elapsed());
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_beyond_the_largest_file_are_refused() {
        assert_eq!(range(0, i64::MAX).unwrap(), (0, i64::MAX as u64));
        assert_eq!(range(5, 7).unwrap(), (5, 7));
        for (position, length) in [(-1, 1), (0, -1), (1, i64::MAX), (i64::MAX, i64::MAX)] {
            assert!(matches!(range(position, length), Err(Refusal::TooBig)));
        }
    }
}
