//! The directory of a cell that runs on this machine: its files, and the identity of the cell.
//!
//! ```text
//! DIR/cell.json        name, server UUID, address, ports, roles here; written with a new cell
//! DIR/last-start.toml  options for later starts
//! DIR/lock             held (flock) by the running server
//! DIR/admin.sock       the local administrator's socket, while the server runs
//! DIR/stand-in.sock    the socket at which a database server announces itself to `cellar stand-in`
//! DIR/db/              the cell databases, or their place in etcd, if they are here
//! DIR/vicepa/ ...      partitions
//! DIR/callbacks        promises and locks, kept over a clean restart
//! DIR/server-etc/      KeyFileExt, UserList, krb.conf: keys, superusers; only the owner may read
//! DIR/audit.log        all administrative acts
//! DIR/client-etc/      CellServDB, ThisCell, cacheinfo for stock clients; a copy of cell.json
//! ```
//!
//! All accounts may read `client-etc`; the rest is for the server's account alone
//! (docs/operating/files.md).

mod used;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cellar_client::{Cell, CellName, Ports};
use cellar_wire::ids::PartitionId;
use serde_json::{Value, json};
pub(crate) use used::{Used, letters};

/// The directory of a new cell if no other is named.
pub(crate) const DEFAULT: &str = "cell-data";
/// The directory of the servers that this machine runs as a service.
pub(crate) const SYSTEM: &str = "/var/lib/cellar";

/// The field with the checksum of `cell.json`.
const CHECK: &str = "check";

/// A cell's directory.
#[derive(Clone, Debug)]
pub(crate) struct CellDirectory(PathBuf);

/// The contents of `cell.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The cell.
    pub(crate) cell: Cell,
    /// The part of the cell that runs here.
    pub(crate) part: Part,
    /// The file server's UUID.
    pub(crate) server_uuid: [u8; 16],
    /// The address that clients are given.
    pub(crate) address: IpAddr,
    /// The address that the ports are bound to; unspecified for all addresses of this machine.
    pub(crate) bind: IpAddr,
    /// The location of this server, `site/room/rack/host` or a prefix of it, and its owner; empty
    /// if not known.
    pub(crate) location: String,
    pub(crate) owner: String,
    /// Whether its first volumes were made. False after a crash during the very first start.
    pub(crate) complete: bool,
    /// The pieces that have been used. `None`: the file was written by a release that did not
    /// record them.
    pub(crate) used: Option<Used>,
}

impl Identity {
    /// The server's address in the form of AFS: 192.0.2.1 is 0xc0000201.
    pub(crate) fn v4_address(&self) -> Option<u32> {
        match self.address {
            IpAddr::V4(ip) => Some(u32::from(ip)),
            IpAddr::V6(_) => None,
        }
    }
}

/// The part of a cell that runs out of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Every role.
    Whole,
    /// File, volume and overseer server; the databases are elsewhere.
    Fileserver,
    /// The databases and the overseer; the file servers are elsewhere.
    Databases,
}

impl Part {
    /// Whether the databases are in the directory.
    pub(crate) fn has_databases(self) -> bool {
        matches!(self, Self::Whole | Self::Databases)
    }

    /// Whether partitions are in the directory.
    pub(crate) fn has_fileserver(self) -> bool {
        matches!(self, Self::Whole | Self::Fileserver)
    }

    /// The name in `cell.json`.
    fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Fileserver => "fileserver",
            Self::Databases => "databases",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        let parts = [Self::Whole, Self::Fileserver, Self::Databases];
        parts.into_iter().find(|part| part.name() == name)
    }
}

/// Why a directory cannot be used as a cell's directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirectoryError {
    #[error("{path}: {cause}")]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error(
        "{0} is damaged, or was not written by 'cellar up': restore it from a copy (client-etc/cell.json is one), or choose another --dir"
    )]
    Damaged(PathBuf),
}

impl CellDirectory {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn identity_file(&self) -> PathBuf {
        self.0.join("cell.json")
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.0.join("admin.sock")
    }

    /// The socket of `cellar stand-in`.
    pub(crate) fn stand_in_socket(&self) -> PathBuf {
        self.0.join("stand-in.sock")
    }

    pub(crate) fn databases(&self) -> PathBuf {
        self.0.join("db")
    }

    pub(crate) fn database_file(&self) -> PathBuf {
        self.databases().join("cell.redb")
    }

    /// The place of the databases, if an etcd cluster has them.
    pub(crate) fn etcd_file(&self) -> PathBuf {
        self.databases().join("etcd.json")
    }

    /// The last undamaged copy of the databases.
    pub(crate) fn database_copy(&self) -> PathBuf {
        self.databases().join("cell.copy")
    }

    pub(crate) fn partition(&self, id: PartitionId) -> PathBuf {
        // AFS's name of the partition, but below this directory.
        self.0.join(id.to_string().trim_start_matches('/'))
    }

    pub(crate) fn callback_state(&self) -> PathBuf {
        self.0.join("callbacks")
    }

    /// The directory with the database of the file server's jobs.
    pub(crate) fn jobs(&self) -> PathBuf {
        self.0.join("jobs")
    }

    /// The directory that [`cellar_auth::Authority`] is opened over.
    pub(crate) fn server_etc(&self) -> PathBuf {
        self.0.join("server-etc")
    }

    /// Returns whether this process may read the servers' keys. Then it is a server or an
    /// administrator.
    pub(crate) fn may_read_keys(&self) -> bool {
        fs::read_dir(self.server_etc()).is_ok()
    }

    /// The log of administrative acts, one JSON object a line.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.0.join("audit.log")
    }

    pub(crate) fn client_etc(&self) -> PathBuf {
        self.0.join("client-etc")
    }

    /// The part of `cell.json` that clients of other accounts may read, in the same form.
    pub(crate) fn public_identity_file(&self) -> PathBuf {
        self.client_etc().join("cell.json")
    }

    /// Reads the identity of the cell; `None` if there is no cell here yet.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, DirectoryError> {
        read_identity(self.identity_file())
    }

    /// Like [`Self::identity`], for a client, which may run under another account than the servers.
    pub(crate) fn known_identity(&self) -> Result<Option<Identity>, DirectoryError> {
        match self.identity() {
            Err(DirectoryError::Io { cause, .. })
                if cause.kind() == io::ErrorKind::PermissionDenied =>
            {
                read_identity(self.public_identity_file())
            }
            other => other,
        }
    }

    /// Writes the identity of the cell, and the files that clients need.
    pub(crate) fn write_identity(&self, identity: &Identity) -> Result<(), DirectoryError> {
        let text = print(identity);
        replace_file(&self.identity_file(), text.as_bytes())?;
        let etc = self.client_etc();
        cellar_private::public_directory(&etc).map_err(at(&etc))?;
        publish(&self.public_identity_file(), text.as_bytes())?;
        for (name, text) in cell_files(&identity.cell) {
            publish(&etc.join(name), text.as_bytes())?;
        }
        let cacheinfo = b"/afs:/var/cache/openafs:100000\n";
        publish(&etc.join("cacheinfo"), cacheinfo)
    }

    /// Writes the name of the cell beside the servers' keys, where OpenAFS's commands look for it
    /// with `-localauth -config`.
    pub(crate) fn write_server_etc(&self, identity: &Identity) -> Result<(), DirectoryError> {
        for (name, text) in cell_files(&identity.cell) {
            replace_file(&self.server_etc().join(name), text.as_bytes())?;
        }
        Ok(())
    }
}

/// The files that stock programs read about a cell, with their names.
fn cell_files(cell: &Cell) -> [(&'static str, String); 2] {
    [
        ("CellServDB", cell.cell_serv_db()),
        ("ThisCell", format!("{}\n", cell.name)),
    ]
}

fn read_identity(path: PathBuf) -> Result<Option<Identity>, DirectoryError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(DirectoryError::Io { path, cause }),
    };
    match parse(&text) {
        Some(identity) => Ok(Some(identity)),
        None => Err(DirectoryError::Damaged(path)),
    }
}

/// Replaces a private file in one step: after a crash the file is the old or the new one, never
/// half.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), DirectoryError> {
    cellar_private::replace(path, bytes).map_err(at(path))
}

fn publish(path: &Path, bytes: &[u8]) -> Result<(), DirectoryError> {
    cellar_private::publish(path, bytes).map_err(at(path))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_owned();
    move |cause| DirectoryError::Io { path, cause }
}

fn print(identity: &Identity) -> String {
    let Identity {
        cell,
        part,
        server_uuid,
        address,
        bind,
        location,
        owner,
        complete,
        used,
    } = identity;
    let addresses: Vec<_> = cell
        .database_servers
        .iter()
        .map(IpAddr::to_string)
        .collect();
    let uuid: String = server_uuid
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let value = json!({
        "format": 1,
        "cell": cell.name.as_str(),
        "part": part.name(),
        "addresses": addresses,
        "address": address.to_string(),
        "server_uuid": uuid,
        "bind": bind.to_string(),
        "location": location,
        "owner": owner,
        "complete": complete,
        "used": used.as_ref().map(Used::to_json),
        "ports": {
            "fileserver": cell.ports.fileserver,
            "protection": cell.ports.protection,
            "location": cell.ports.location,
            "volume": cell.ports.volume,
            "overseer": cell.ports.overseer,
        },
    });
    let mut value = value;
    value[CHECK] = check(&value).into();
    format!("{value:#}\n")
}

/// The checksum of all fields except its own. The fields are in the order of their names.
fn check(value: &Value) -> String {
    format!("{:08x}", crc32c::crc32c(value.to_string().as_bytes()))
}

fn parse(text: &str) -> Option<Identity> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    if value["format"] != 1 {
        return None;
    }
    // An older release wrote no checksum.
    if let Some(sum) = value.as_object_mut()?.remove(CHECK)
        && sum != check(&value)
    {
        return None;
    }
    let port = |name: &str| u16::try_from(value["ports"][name].as_u64()?).ok();
    let addresses = value["addresses"].as_array()?;
    let addresses: Option<Vec<IpAddr>> = addresses
        .iter()
        .map(|text| text.as_str()?.parse().ok())
        .collect();
    let uuid = value["server_uuid"]
        .as_str()
        .filter(|uuid| uuid.len() == 32)?;
    let mut server_uuid = [0; 16];
    for (index, byte) in server_uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(uuid.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    let database_servers = addresses.filter(|list| !list.is_empty())?;
    // Cells of older releases have neither `part` nor `address`.
    let part = match &value["part"] {
        Value::Null => Part::Whole,
        part => Part::of_name(part.as_str()?)?,
    };
    let address = match &value["address"] {
        Value::Null => *database_servers.first()?,
        address => address.as_str()?.parse().ok()?,
    };
    // Nor do they have these two.
    let word = |name: &str| match &value[name] {
        Value::Null => Some(String::new()),
        text => text.as_str().map(str::to_owned),
    };
    let used = match &value["used"] {
        Value::Null => None,
        used => Some(Used::from_json(used)?),
    };
    Some(Identity {
        used,
        part,
        address,
        location: word("location")?,
        owner: word("owner")?,
        cell: Cell {
            name: CellName::new(value["cell"].as_str()?).ok()?,
            database_servers,
            ports: Ports {
                fileserver: port("fileserver")?,
                protection: port("protection")?,
                location: port("location")?,
                volume: port("volume")?,
                overseer: port("overseer")?,
            },
        },
        server_uuid,
        bind: value["bind"].as_str()?.parse().ok()?,
        complete: value["complete"].as_bool()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            cell: Cell {
                name: CellName::new("demo.cell").expect("name"),
                database_servers: vec![IpAddr::from([192, 0, 2, 1])],
                ports: Ports::based_at(17000).expect("ports"),
            },
            part: Part::Whole,
            server_uuid: *b"0123456789abcdef",
            address: IpAddr::from([192, 0, 2, 1]),
            bind: IpAddr::from([0, 0, 0, 0]),
            location: "hq/r1".to_owned(),
            owner: "physics".to_owned(),
            complete: true,
            used: Some(Used {
                partitions: [(
                    PartitionId::try_from(1).expect("b"),
                    "00112233445566778899aabbccddeeff".parse().expect("id"),
                )]
                .into(),
                database: Some("ffeeddccbbaa99887766554433221100".parse().expect("id")),
                trust: ["KeyFileExt".to_owned()].into(),
            }),
        }
    }

    #[test]
    fn written_values_are_read_back() {
        let temporary = tempfile::tempdir().expect("tempdir");
        let directory = CellDirectory::new(temporary.path());
        assert_eq!(directory.identity().expect("none yet"), None);
        directory.write_identity(&identity()).expect("write");
        assert_eq!(directory.identity().expect("read"), Some(identity()));
        let list = fs::read_to_string(directory.client_etc().join("CellServDB")).expect("list");
        assert_eq!(list, ">demo.cell\t#Cell name\n192.0.2.1    #192.0.2.1\n");
    }

    #[test]
    fn a_file_server_knows_its_address_beside_those_of_the_databases() {
        let joined = Identity {
            part: Part::Fileserver,
            address: IpAddr::from([192, 0, 2, 9]),
            ..identity()
        };
        assert_eq!(parse(&print(&joined)), Some(joined));
    }

    #[test]
    fn a_cell_from_before_there_were_parts_is_whole() {
        let mut old: Value = serde_json::from_str(&print(&identity())).expect("JSON");
        let fields = old.as_object_mut().expect("an object");
        for new in ["part", "address", "location", "owner", "used", "check"] {
            assert!(fields.remove(new).is_some(), "{new}");
        }
        let nowhere = Identity {
            used: None,
            location: String::new(),
            owner: String::new(),
            ..identity()
        };
        assert_eq!(parse(&old.to_string()), Some(nowhere));
    }

    #[test]
    fn damage_is_not_taken_for_a_new_cell() {
        let temporary = tempfile::tempdir().expect("tempdir");
        let directory = CellDirectory::new(temporary.path());
        let good = print(&identity());
        for bad in [
            String::new(),
            "{}".to_owned(),
            good.replace("demo.cell", "demo cell"),
            good.replace("\"format\": 1", "\"format\": 2"),
            good.replace("\"whole\"", "\"half\""),
            good.replace("17000", "170000"),
            good.replace("0011", "x"),
            good.replace("7000", "7001"),
            good.replace("192.0.2.1", "192.0.2.3"),
            good.replace("ffee", "ffef"),
        ] {
            fs::write(directory.identity_file(), bad).expect("write");
            assert!(matches!(
                directory.identity(),
                Err(DirectoryError::Damaged(_))
            ));
        }
    }
}
