//! The steps of `vos`, as single calls.

use std::sync::Arc;

use bytes::Bytes;
use cellar_auth::{Enctype, SecretKey};
use cellar_rpc::{CallError, Connection, Port, PortConfig, Runtime, RuntimeConfig, Service};
use cellar_wire::acl::{AccessList, ByteOrder};
use cellar_wire::afsvol::{
    self, Clone, CreateVolume, DeleteVolume, DestServer, Dump, DumpV2, EndTrans, Forward, IT_BUSY,
    IT_OFFLINE, READONLY, ReClone, Restore, RestoreCookie, RestoreReply, SetFlags, SetIdsTypes,
    TransCreate, VolumeName,
};
use cellar_wire::dump::{Item, Reader};
use cellar_wire::ids::VolumeId;

use super::{CLONE, Cell, Machine, OPEN};

/// The id of the released volume, or of the clone for it.
pub(crate) const RO: VolumeId = VolumeId(536_870_950);
/// The id of a new volume.
pub(crate) const NEW: VolumeId = VolumeId(536_870_930);

/// A port of the volume server that requires the cell's key.
pub(crate) fn secured(cell: &Cell) -> Port {
    let authority = cell.config.authority.as_ref().unwrap();
    let at = PortConfig::new("127.0.0.1:0".parse().unwrap())
        .service(cell.server.volume_service())
        .security(2, authority.server_security());
    cell.runtime.open(at).unwrap()
}

pub(crate) fn destination(port: &Port) -> DestServer {
    let std::net::SocketAddr::V4(address) = port.local_address() else {
        panic!("IPv4 is used here")
    };
    DestServer {
        host: (*address.ip()).into(),
        port: address.port().into(),
        ssid: 1,
    }
}

pub(crate) fn cookie(name: &str, volume_type: i32, parent: VolumeId) -> RestoreCookie {
    RestoreCookie {
        name: VolumeName::new(name.as_bytes()).unwrap(),
        volume_type,
        clone: VolumeId(0),
        parent,
    }
}

/// An administrator at one server.
pub(crate) struct Volser(pub Connection);

impl Volser {
    pub(crate) async fn begin(&self, volume: VolumeId, flags: i32) -> i32 {
        let call = TransCreate {
            volume,
            partition: 0,
            flags,
        };
        self.0.call(&call).await.unwrap().trans
    }

    pub(crate) async fn end(&self, trans: i32) {
        self.0.call(&EndTrans { trans }).await.unwrap();
    }

    pub(crate) async fn flags(&self, trans: i32, flags: i32) {
        self.0.call(&SetFlags { trans, flags }).await.unwrap();
    }

    /// Creates a volume, and returns its transaction.
    pub(crate) async fn create(
        &self,
        name: &str,
        volume_type: i32,
        parent: VolumeId,
        volume: VolumeId,
    ) -> i32 {
        let call = CreateVolume {
            partition: 0,
            name: name.try_into().unwrap(),
            volume_type,
            parent,
            volume,
        };
        self.0.call(&call).await.unwrap().trans
    }

    pub(crate) async fn clone_of(&self, trans: i32, new_type: i32, name: &str, new: VolumeId) {
        let call = Clone {
            trans,
            purge_volume: VolumeId(0),
            new_type,
            new_name: name.try_into().unwrap(),
            new_volume: new,
        };
        self.0.call(&call).await.unwrap();
    }

    /// Makes the RO volume of the open volume beside it, and puts it on line.
    pub(crate) async fn read_only_clone(&self) {
        let trans = self.begin(OPEN, IT_BUSY).await;
        self.clone_of(trans, READONLY, "scratch.readonly", CLONE)
            .await;
        self.end(trans).await;
        self.online(CLONE).await;
    }

    pub(crate) async fn ids(&self, trans: i32, name: &str, volume_type: i32, parent: VolumeId) {
        let call = SetIdsTypes {
            trans,
            name: name.try_into().unwrap(),
            volume_type,
            parent,
            clone: VolumeId(0),
            backup: VolumeId(0),
        };
        self.0.call(&call).await.unwrap();
    }

    /// Puts a volume on line.
    pub(crate) async fn online(&self, volume: VolumeId) {
        let trans = self.begin(volume, IT_OFFLINE).await;
        self.flags(trans, 0).await;
        self.end(trans).await;
    }

    pub(crate) async fn delete(&self, volume: VolumeId) {
        let trans = self.begin(volume, IT_OFFLINE).await;
        self.flags(trans, 3).await;
        self.0.call(&DeleteVolume { trans }).await.unwrap();
        self.end(trans).await;
    }

    /// The whole dump of a volume.
    pub(crate) async fn dump(&self, trans: i32, from_date: i32) -> Vec<u8> {
        read(self.0.open(&Dump { trans, from_date }).await.unwrap()).await
    }

    pub(crate) async fn dump_v2(&self, trans: i32, from_date: i32, flags: i32) -> Vec<u8> {
        let call = DumpV2 {
            trans,
            from_date,
            flags,
        };
        read(self.0.open(&call).await.unwrap()).await
    }

    /// Sends bytes as a dump, in pieces.
    pub(crate) async fn restore(
        &self,
        trans: i32,
        cookie: RestoreCookie,
        bytes: &[u8],
        piece: usize,
    ) -> Result<(), CallError> {
        let call = Restore {
            trans,
            flags: 1,
            cookie,
        };
        let mut call = self.0.open(&call).await?;
        for piece in bytes.chunks(piece) {
            call.write(Bytes::copy_from_slice(piece)).await?;
        }
        call.finish();
        call.results::<RestoreReply>().await.map(drop)
    }

    pub(crate) async fn forward(
        &self,
        from_trans: i32,
        from_date: i32,
        (port, dest_trans): (&Port, i32),
        cookie: RestoreCookie,
    ) -> Result<(), CallError> {
        let call = Forward {
            from_trans,
            from_date,
            destination: destination(port),
            dest_trans,
            cookie,
        };
        self.0.call(&call).await.map(drop)
    }

    /// Restores a read-write volume from a dump, and puts it on line.
    pub(crate) async fn volume_of(&self, name: &str, volume: VolumeId, dump: &[u8]) {
        let trans = self.create(name, afsvol::READWRITE, volume, volume).await;
        let cookie = cookie(name, afsvol::READWRITE, volume);
        self.restore(trans, cookie, dump, 1000).await.unwrap();
        self.flags(trans, 0).await;
        self.end(trans).await;
    }

    /// The items of a volume's full dump, each contents in one piece.
    pub(crate) async fn items(&self, volume: VolumeId) -> Vec<Item> {
        let trans = self.begin(volume, afsvol::IT_BUSY).await;
        let dump = self.dump(trans, 0).await;
        self.end(trans).await;
        items(&dump)
    }
}

async fn read(mut call: cellar_rpc::OutgoingCall) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(chunk) = call.read_chunk().await.unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

/// The items of a dump, each contents in one piece.
pub(crate) fn items(dump: &[u8]) -> Vec<Item> {
    let mut reader = Reader::new();
    reader.feed(dump);
    let mut items: Vec<Item> = Vec::new();
    while let Some(item) = reader.next_item().unwrap() {
        match (items.last_mut(), item) {
            (Some(Item::Data(before)), Item::Data(more)) => {
                *before = [&before[..], &more].concat().into();
            }
            (_, item) => items.push(item),
        }
    }
    reader.finish().unwrap();
    items
}

/// The vnodes and contents of a dump, without its heads. Access lists are sorted as servers keep
/// them, because the lists in the samples were edited by hand.
pub(crate) fn contents(items: &[Item]) -> Vec<Item> {
    let mut contents = Vec::new();
    for item in items {
        match item {
            Item::Dump(_) | Item::Volume(_) => {}
            Item::Vnode(record) => {
                let mut record = record.clone();
                if let Some(attributes) = &mut record.attributes
                    && let Some(list) = &mut attributes.access_list
                {
                    **list = AccessList::from_bytes(list, ByteOrder::Network)
                        .unwrap()
                        .to_bytes();
                }
                contents.push(Item::Vnode(record));
            }
            item => contents.push(item.clone()),
        }
    }
    contents
}

/// Asserts that two lists of items are equal. Only the first difference is shown.
pub(crate) fn assert_same(left: &[Item], right: &[Item], what: &str) {
    for (left, right) in left.iter().zip(right) {
        assert!(left == right, "{what}: {left:.999?} {right:.999?}");
    }
    assert_eq!(left.len(), right.len(), "{what}");
}

/// A dump written by OpenAFS.
pub(crate) fn sample(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/../../testdata/dumps/{name}.dump",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Two servers with one key, a client of each, and the volume server of the second.
pub(crate) fn two() -> (Cell, Cell, Machine, Machine, Port) {
    let key = SecretKey::random(Enctype::Aes256Sha1);
    let (here, there) = (with_key(&key), with_key(&key));
    let (client, other) = (Machine::new(&here, 1), Machine::new(&there, 2));
    let port = secured(&there);
    (here, there, client, other, port)
}

fn with_key(key: &SecretKey) -> Cell {
    Cell::start_with(|config| {
        let keys = config.authority.as_ref().unwrap().keys();
        keys.add(1, key).unwrap();
        config
    })
}

/// One more server with the same key.
pub(crate) fn one_more(cell: &Cell) -> Cell {
    let keys = cell.config.authority.as_ref().unwrap().keys();
    with_key(&keys.find(1, Enctype::Aes256Sha1.number()).unwrap())
}

/// A server with another service, and the key of this one.
pub(crate) fn another(cell: &Cell, service: Arc<dyn Service>) -> (Runtime, Port) {
    let runtime = Runtime::start(RuntimeConfig {
        shards: 1,
        ..RuntimeConfig::default()
    })
    .unwrap();
    let authority = cell.config.authority.as_ref().unwrap();
    let at = PortConfig::new("127.0.0.1:0".parse().unwrap())
        .service(service)
        .security(2, authority.server_security());
    let port = runtime.open(at).unwrap();
    (runtime, port)
}

/// The bytes of requests that a volume server has received.
pub(crate) fn taken(port: &Port) -> u64 {
    let procedures = port.statistics().procedures();
    procedures
        .iter()
        .map(|figures| figures.bytes_received)
        .sum()
}

pub(crate) fn calls(port: &Port, opcode: u32) -> u64 {
    let procedures = port.statistics().procedures();
    let named = procedures
        .iter()
        .find(|figures| figures.package.procedures[figures.index].opcode == opcode);
    named.map_or(0, |figures| figures.invocations)
}

/// Makes or updates the clone for a release.
pub(crate) async fn clone_for_release(source: &Volser, first: bool) {
    let trans = source.begin(OPEN, IT_BUSY).await;
    if first {
        source
            .clone_of(trans, READONLY, "scratch.readonly", RO)
            .await;
    } else {
        let again = ReClone { trans, clone: RO };
        source.0.call(&again).await.unwrap();
    }
    source.end(trans).await;
    source.online(RO).await;
}

/// The steps of `vos release` for one site.
pub(crate) async fn release(source: &Volser, target: &Volser, port: &Port, from_date: i32) {
    let from = source.begin(RO, IT_BUSY).await;
    let to = target.begin(RO, IT_OFFLINE).await;
    let ids = cookie("scratch.readonly", READONLY, OPEN);
    source
        .forward(from, from_date, (port, to), ids)
        .await
        .unwrap();
    target.ids(to, "scratch.readonly", READONLY, OPEN).await;
    target.flags(to, 0).await;
    target.end(to).await;
    source.end(from).await;
}

/// The steps of `vos move` of the scratch volume.
pub(crate) async fn move_volume(source: &Volser, target: &Volser, port: &Port) {
    let ids = || cookie("scratch", afsvol::READWRITE, OPEN);
    let trans = source.begin(OPEN, IT_BUSY).await;
    source
        .clone_of(trans, READONLY, "move-clone-temp", NEW)
        .await;
    source.end(trans).await;
    let clone = source.begin(NEW, IT_OFFLINE).await;
    let to = target
        .create("scratch", afsvol::READWRITE, OPEN, OPEN)
        .await;
    target.flags(to, 3).await;
    source.forward(clone, 0, (port, to), ids()).await.unwrap();
    source.end(clone).await;
    let trans = source.begin(OPEN, IT_BUSY).await;
    let from = (super::NOW - 2) as i32;
    source
        .forward(trans, from, (port, to), ids())
        .await
        .unwrap();
    source.flags(trans, 2).await;
    target.flags(to, 0).await;
    target.end(to).await;
    let delete = afsvol::DeleteVolume { trans };
    source.0.call(&delete).await.unwrap();
    source.end(trans).await;
    source.delete(NEW).await;
}
