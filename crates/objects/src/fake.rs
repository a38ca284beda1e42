//! A device in memory, behind a real server, whose failures tests choose.
//!
//! It stores objects and versions as [`cellar_wire::osd`] defines, without capabilities, checksums
//! or a disk.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::{IncomingCall, LocalBoxFuture, Port, PortConfig, Runtime, Security, Service};
use cellar_wire::List;
use cellar_wire::abort::AbortCode;
use cellar_wire::object::ObjectId;
use cellar_wire::osd::{
    self, Checksum, ChecksumReply, Copy, CopyReply, Examine, ExamineReply, GetSpace, GetSpaceReply,
    ObjectInfo, Prune, PruneReply, Read, ReadReply, Remove, RemoveReply, Space, Truncate,
    TruncateReply, VersionInfo, Write, WriteReply, digest_words,
};
use cellar_wire::osddb::{OsdEntry, OsdListed, OsdState};
use cellar_wire::package::{Package, Procedure};
use md5::Md5;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::devices::{address_of, words_of};

/// Failure mode of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No failure.
    #[default]
    None,
    /// Calls are accepted and never answered.
    Silent,
    /// Calls are answered after this time.
    Slow(Duration),
    /// Calls end with this code.
    Abort(AbortCode),
    /// Reads return half of the bytes and end with this code; writes end with it after all data has
    /// arrived.
    Midway(AbortCode),
    /// Writes end with this code; reads do not fail.
    Writes(AbortCode),
    /// Writes are executed after this time, reads at once.
    SlowWrites(Duration),
    /// The disk has failed: changes end with EIO, no space is free, reads do not fail.
    Stopped,
    /// Removals of versions or objects are executed after this time, even if their caller has gone.
    SlowPrunes(Duration),
}

impl Fault {
    /// Returns the fault that applies to changes.
    fn of_changes(self) -> Self {
        match self {
            Self::Stopped => Self::Writes(AbortCode::EIO),
            other => other,
        }
    }
}

type Versions = BTreeMap<u64, Vec<u8>>;

struct State {
    id: u32,
    objects: Mutex<HashMap<ObjectId, Versions>>,
    fault: Mutex<Fault>,
    calls: AtomicUsize,
}

/// A device and its server.
pub struct FakeOsd {
    state: Arc<State>,
    port: Port,
}

impl FakeOsd {
    /// Starts device `id` on the loopback address, at a port that the system chooses.
    ///
    /// # Errors
    /// No socket could be opened.
    pub fn start(runtime: &Runtime, id: u32) -> io::Result<Self> {
        let state = Arc::new(State {
            id,
            objects: Mutex::default(),
            fault: Mutex::default(),
            calls: AtomicUsize::new(0),
        });
        let service: Arc<dyn Service> = Arc::new(FakeService(state.clone()));
        let config = PortConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))).service(service);
        let port = runtime.open(config)?;
        Ok(Self { state, port })
    }

    /// Returns its entry in the database.
    #[must_use]
    pub fn listed(&self) -> OsdListed {
        let address = self.port.local_address();
        let mut entry = OsdEntry {
            id: self.state.id,
            port: u32::from(address.port()),
            allocation_priority: 64,
            read_priority: 64,
            ..OsdEntry::default()
        };
        // One address always fits.
        let _fits = entry.addresses.push(words_of(address.ip()));
        let state = OsdState {
            id: self.state.id,
            total: 1 << 40,
            free: 1 << 39,
            writable: true,
            ..OsdState::default()
        };
        OsdListed {
            entry,
            state,
            dead: false,
        }
    }

    /// Sets the failure mode.
    pub fn set_fault(&self, fault: Fault) {
        *self.state.fault.lock() = fault;
    }

    /// Returns the number of calls received, answered or not.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.state.calls.load(Ordering::Relaxed)
    }

    /// Closes its server: nothing listens on its port any more.
    pub fn kill(&self) {
        self.port.close();
    }

    /// Gives `look` access to the objects and the bytes of their versions.
    pub fn objects<T>(
        &self,
        look: impl FnOnce(&mut HashMap<ObjectId, BTreeMap<u64, Vec<u8>>>) -> T,
    ) -> T {
        look(&mut self.state.objects.lock())
    }
}

struct FakeService(Arc<State>);

impl Service for FakeService {
    fn package(&self) -> &'static Package {
        &osd::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            let fault = *self.0.fault.lock();
            self.0.calls.fetch_add(1, Ordering::Relaxed);
            match fault {
                Fault::Silent => std::future::pending::<()>().await,
                Fault::Slow(time) => tokio::time::sleep(time).await,
                Fault::Abort(code) => return Err(code),
                Fault::None | Fault::Midway(_) => {}
                Fault::Writes(_) | Fault::SlowWrites(_) => {}
                Fault::Stopped | Fault::SlowPrunes(_) => {}
            }
            match call.opcode().await? {
                Read::OPCODE => self.read(call, fault).await,
                Write::OPCODE => self.write(call, fault).await,
                Truncate::OPCODE => self.truncate(call, fault).await,
                Copy::OPCODE => self.copy(call).await,
                Checksum::OPCODE => self.checksum(call).await,
                osd::Digest::OPCODE => self.digest(call).await,
                Examine::OPCODE => self.examine(call).await,
                Prune::OPCODE => self.prune(call, fault).await,
                Remove::OPCODE => self.remove(call, fault).await,
                GetSpace::OPCODE => self.get_space(call, fault).await,
                _ => Err(AbortCode::RXGEN_OPCODE),
            }
        })
    }
}

impl FakeService {
    async fn get_space(&self, call: &mut IncomingCall, fault: Fault) -> Result<(), AbortCode> {
        let GetSpace {} = call.arguments().await?;
        let space = Space {
            osd: self.0.id,
            total: 1 << 40,
            free: if fault == Fault::Stopped { 0 } else { 1 << 39 },
            objects: 0,
        };
        call.reply(&GetSpaceReply {
            devices: List::from_iter_cut([space]),
        });
        Ok(())
    }

    async fn read(&self, call: &mut IncomingCall, fault: Fault) -> Result<(), AbortCode> {
        let arguments: Read = call.arguments().await?;
        let bytes = {
            let objects = self.0.objects.lock();
            let versions = objects.get(&arguments.object).ok_or(AbortCode::ENOENT)?;
            let whole = versions.get(&arguments.version).ok_or(AbortCode::ENOENT)?;
            let begin = (arguments.position as usize).min(whole.len());
            let end = begin + (arguments.length as usize).min(whole.len() - begin);
            Bytes::copy_from_slice(&whole[begin..end])
        };
        call.reply(&(bytes.len() as u64));
        if let Fault::Midway(code) = fault {
            call.write(bytes.slice(..bytes.len() / 2)).await?;
            return Err(code);
        }
        if !bytes.is_empty() {
            call.write(bytes).await?;
        }
        call.reply(&ReadReply {});
        Ok(())
    }

    async fn write(&self, call: &mut IncomingCall, fault: Fault) -> Result<(), AbortCode> {
        let arguments: Write = call.arguments().await?;
        let mut bytes = Vec::new();
        call.read_exact(arguments.length, |piece| bytes.extend_from_slice(&piece))
            .await?;
        if let Fault::Midway(code) | Fault::Writes(code) = fault.of_changes() {
            return Err(code);
        }
        if let Fault::SlowWrites(time) = fault {
            tokio::time::sleep(time).await;
        }
        let (object, base, version) = (arguments.object, arguments.base, arguments.version);
        self.change(object, base, version, |whole| {
            let (begin, end) = (arguments.position as usize, bytes.len());
            let end = begin + end;
            if whole.len() < end {
                whole.resize(end, 0);
            }
            whole[begin..end].copy_from_slice(&bytes);
        })?;
        call.reply(&WriteReply {
            length: arguments.length,
        });
        Ok(())
    }

    async fn truncate(&self, call: &mut IncomingCall, fault: Fault) -> Result<(), AbortCode> {
        let arguments: Truncate = call.arguments().await?;
        if let Fault::Midway(code) | Fault::Writes(code) = fault.of_changes() {
            return Err(code);
        }
        let (object, base, version) = (arguments.object, arguments.base, arguments.version);
        self.change(object, base, version, |whole| {
            whole.resize(arguments.length as usize, 0);
        })?;
        call.reply(&TruncateReply {});
        Ok(())
    }

    fn change(
        &self,
        object: ObjectId,
        base: u64,
        version: u64,
        edit: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), AbortCode> {
        let mut objects = self.0.objects.lock();
        let versions = match objects.get_mut(&object) {
            Some(versions) => versions,
            None if base == 0 => objects.entry(object).or_default(),
            None => return Err(AbortCode::ENOENT),
        };
        // An abandoned store may arrive late.
        if versions.keys().any(|other| *other > version) {
            return Err(AbortCode::ESTALE);
        }
        versions.retain(|other, _| *other <= base || *other == version);
        if !versions.contains_key(&version) {
            let from = match versions.get(&base) {
                Some(from) => from.clone(),
                None if base == 0 => Vec::new(),
                None => return Err(AbortCode::ESTALE),
            };
            versions.insert(version, from);
        }
        edit(versions.entry(version).or_default());
        Ok(())
    }

    async fn copy(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let arguments: Copy = call.arguments().await?;
        let port = call.port().cloned().ok_or(AbortCode::EINVAL)?;
        let source_port = u16::try_from(arguments.port).map_err(|_| AbortCode::EINVAL)?;
        let source = SocketAddr::new(address_of(&arguments.host), source_port);
        let connection = port.connect(source, osd::PACKAGE.service_id, Security::null());
        let read = Read {
            capability: arguments.source_capability,
            object: arguments.source,
            version: arguments.source_version,
            position: 0,
            length: u64::MAX,
        };
        let copied = async {
            let mut from = connection.open(&read).await?;
            let length: u64 = from.read().await?;
            let mut bytes = Vec::new();
            from.read_exact(length, |piece| bytes.extend_from_slice(&piece))
                .await?;
            from.results::<ReadReply>().await?;
            Ok::<_, cellar_rpc::CallError>(bytes)
        };
        let bytes = copied.await.map_err(|failure| failure.code())?;
        let length = bytes.len() as u64;
        let versions = BTreeMap::from([(arguments.version, bytes)]);
        self.0.objects.lock().insert(arguments.object, versions);
        call.reply(&CopyReply { length });
        Ok(())
    }

    async fn examine(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let Examine { object, .. } = call.arguments().await?;
        let objects = self.0.objects.lock();
        let versions = objects.get(&object).ok_or(AbortCode::ENOENT)?;
        let known = versions.iter().map(|(version, bytes)| VersionInfo {
            version: *version,
            length: bytes.len() as u64,
            written: 0,
        });
        let info = ObjectInfo {
            object,
            versions: List::from_iter_cut(known),
            ..ObjectInfo::default()
        };
        call.reply(&ExamineReply { info });
        Ok(())
    }

    async fn prune(&self, call: &mut IncomingCall, fault: Fault) -> Result<(), AbortCode> {
        let Prune { needed, .. } = call.arguments().await?;
        if let Fault::SlowPrunes(time) = fault {
            tokio::time::sleep(time).await;
        }
        let mut objects = self.0.objects.lock();
        let mut freed = 0;
        for needed in needed.iter() {
            if let Some(versions) = objects.get_mut(&needed.object) {
                versions.retain(|version, bytes| {
                    let stays = *version >= needed.below || needed.keep.contains(version);
                    freed += if stays { 0 } else { bytes.len() as u64 };
                    stays
                });
                if versions.is_empty() {
                    objects.remove(&needed.object);
                }
            }
        }
        call.reply(&PruneReply { freed });
        Ok(())
    }

    async fn remove(&self, call: &mut IncomingCall, fault: Fault) -> Result<(), AbortCode> {
        let Remove { objects: named, .. } = call.arguments().await?;
        if let Fault::SlowPrunes(time) = fault {
            tokio::time::sleep(time).await;
        }
        let mut objects = self.0.objects.lock();
        let removed = named.iter().filter(|id| objects.remove(id).is_some());
        let removed = removed.count() as u32;
        call.reply(&RemoveReply { removed });
        Ok(())
    }

    async fn checksum(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let arguments: Checksum = call.arguments().await?;
        let objects = self.0.objects.lock();
        let versions = objects.get(&arguments.object).ok_or(AbortCode::ENOENT)?;
        let whole = versions.get(&arguments.version).ok_or(AbortCode::ENOENT)?;
        call.reply(&ChecksumReply {
            length: whole.len() as u64,
            crc32c: crc32c::crc32c(whole),
            sha256: digest_words(&Sha256::digest(whole)),
            md5: digest_words(&Md5::digest(whole)),
        });
        Ok(())
    }

    async fn digest(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let arguments: osd::Digest = call.arguments().await?;
        let objects = self.0.objects.lock();
        let versions = objects.get(&arguments.object).ok_or(AbortCode::ENOENT)?;
        let whole = versions.get(&arguments.version).ok_or(AbortCode::ENOENT)?;
        call.reply(&osd::DigestReply {
            length: whole.len() as u64,
            blake3: digest_words(blake3::hash(whole).as_bytes()),
            md5: digest_words(&Md5::digest(whole)),
        });
        Ok(())
    }
}
