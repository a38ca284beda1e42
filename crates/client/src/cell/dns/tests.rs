//! Lookups at a small name server of the test: UDP on the loopback device, with answers built by
//! hand.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;

use cellar_until::until;

use super::*;
use crate::cell::KnownCells;

const A: u16 = 1;
const SRV: u16 = 33;
const NO_SUCH_NAME: u8 = 3;

/// The records of a server: name, type, time to live, data.
type Records = Vec<(String, u16, u32, Vec<u8>)>;

struct NameServer {
    address: SocketAddr,
    records: Arc<Mutex<Records>>,
    /// The names and types of the queries.
    asked: Arc<Mutex<Vec<(String, u16)>>>,
}

impl NameServer {
    fn start() -> Self {
        Self::start_with(|answer| answer)
    }

    /// `spoil` changes each answer before it is sent.
    fn start_with(spoil: impl Fn(Vec<u8>) -> Vec<u8> + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let address = socket.local_addr().expect("address");
        let server = Self {
            address,
            records: Arc::default(),
            asked: Arc::default(),
        };
        let (records, asked) = (server.records.clone(), server.asked.clone());
        std::thread::spawn(move || {
            let mut packet = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut packet) {
                let (name, kind, end) = question(&packet[..length]);
                asked.lock().push((name.clone(), kind));
                let answer = answer(&packet[..end], &name, kind, &records.lock());
                let _gone = socket.send_to(&spoil(answer), from);
            }
        });
        server
    }

    fn has(&self, name: &str, kind: u16, life: u32, data: Vec<u8>) {
        let mut records = self.records.lock();
        records.push((name.to_owned(), kind, life, data));
    }

    fn has_address(&self, name: &str, address: [u8; 4]) {
        self.has(name, A, 3600, address.to_vec());
    }

    fn has_service(&self, cell: &str, rank: (u16, u16), port: u16, target: &str) {
        let mut data = Vec::new();
        for number in [rank.0, rank.1, port] {
            data.extend(number.to_be_bytes());
        }
        data.extend(encoded(target));
        self.has(&format!("_afs3-vlserver._udp.{cell}"), SRV, 7200, data);
    }

    fn has_database(&self, cell: &str, subtype: u16, target: &str) {
        let mut data = subtype.to_be_bytes().to_vec();
        data.extend(encoded(target));
        self.has(cell, AFSDB, 7200, data);
    }

    fn asked(&self) -> usize {
        self.asked.lock().len()
    }

    fn dns(&self) -> Dns {
        Dns::at(self.address)
    }
}

/// Name, type and end of the one question in a message.
fn question(message: &[u8]) -> (String, u16, usize) {
    let (mut at, mut labels) = (12, Vec::new());
    while message[at] != 0 {
        let end = at + 1 + usize::from(message[at]);
        labels.push(String::from_utf8_lossy(&message[at + 1..end]).to_lowercase());
        at = end;
    }
    let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
    (labels.join("."), kind, at + 5)
}

fn encoded(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes
}

fn answer(asked: &[u8], name: &str, kind: u16, records: &Records) -> Vec<u8> {
    let of_name: Vec<_> = records.iter().filter(|record| record.0 == name).collect();
    let wanted: Vec<_> = of_name.iter().filter(|record| record.1 == kind).collect();
    let code = if of_name.is_empty() { NO_SUCH_NAME } else { 0 };
    let mut message = asked.to_vec();
    // Flags: authoritative answer, recursion available.
    message[2..4].copy_from_slice(&[0x85, 0x80 | code]);
    message[4..12].copy_from_slice(&[0, 1, 0, wanted.len() as u8, 0, 0, 0, 0]);
    for (_, kind, life, data) in wanted {
        // The name is a pointer to the name in the question.
        message.extend([0xc0, 12]);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1]);
        message.extend(life.to_be_bytes());
        message.extend((data.len() as u16).to_be_bytes());
        message.extend(data);
    }
    message
}

fn name(text: &str) -> CellName {
    CellName::new(text).expect(text)
}

fn servers(cell: &Cell) -> Vec<String> {
    cell.location_servers()
        .map(|address| address.to_string())
        .collect()
}

#[tokio::test]
async fn services_in_order_of_priority_then_weight() {
    let server = NameServer::start();
    server.has_service("first.org", (20, 0), 7003, "db3.first.org");
    server.has_service("first.org", (10, 5), 7003, "db2.first.org");
    server.has_service("first.org", (10, 50), 7003, "db1.first.org");
    server.has_service("first.org", (30, 0), 9999, "elsewhere.first.org");
    server.has_database("first.org", 1, "old.first.org");
    for number in 1..=3 {
        server.has_address(&format!("db{number}.first.org"), [192, 0, 2, number]);
    }
    server.has_address("elsewhere.first.org", [192, 0, 2, 9]);
    server.has_address("old.first.org", [192, 0, 2, 10]);
    let found = server.dns().discover(&name("first.org")).await;
    let found = found.expect("found");
    let expected = ["192.0.2.1:7003", "192.0.2.2:7003", "192.0.2.3:7003"];
    assert_eq!(servers(&found.cell), expected);
    assert_eq!(found.cell.ports, Ports::default());
    assert_eq!(found.life, Duration::from_secs(7200));
}

#[tokio::test]
async fn another_port_moves_all_of_the_cell() {
    let server = NameServer::start();
    server.has_service("moved.org", (0, 0), 17003, "db.moved.org");
    server.has_address("db.moved.org", [192, 0, 2, 1]);
    let cell = server.dns().cell(&name("moved.org")).await.expect("found");
    assert_eq!(servers(&cell), ["192.0.2.1:17003"]);
    assert_eq!(cell.ports.fileserver, 17000);
}

#[tokio::test]
async fn databases_where_there_are_no_services() {
    let server = NameServer::start();
    server.has_database("old.org", 2, "dce.old.org");
    server.has_database("old.org", 1, "db1.old.org");
    server.has_database("old.org", 1, "gone.old.org");
    server.has_address("db1.old.org", [192, 0, 2, 1]);
    server.has_address("dce.old.org", [192, 0, 2, 2]);
    let cell = server.dns().cell(&name("old.org")).await.expect("found");
    assert_eq!(servers(&cell), ["192.0.2.1:7003"]);
}

#[tokio::test]
async fn a_service_that_is_declared_absent() {
    let server = NameServer::start();
    server.has_service("none.org", (0, 0), 0, ".");
    server.has_database("none.org", 1, "db.none.org");
    server.has_address("db.none.org", [192, 0, 2, 1]);
    assert_eq!(server.dns().cell(&name("none.org")).await, None);
}

#[tokio::test]
async fn a_missing_name_is_asked_for_once() {
    let server = NameServer::start();
    let dns = server.dns();
    assert_eq!(dns.cell(&name("autorun.inf")).await, None);
    let asked = server.asked();
    assert_eq!(asked, 2, "a service, then a database");
    server.has_service("autorun.inf", (0, 0), 7003, "db");
    server.has_address("db", [192, 0, 2, 1]);
    assert_eq!(dns.cell(&name("autorun.inf")).await, None);
    assert_eq!(server.asked(), asked);
}

#[tokio::test]
async fn a_name_that_is_no_domain_is_never_resolved() {
    let server = NameServer::start();
    let dns = server.dns();
    for no_domain in ["trash", "192.0.2.1", "a..b", "example.org.", "v1.2"] {
        assert_eq!(dns.cell(&name(no_domain)).await, None, "{no_domain}");
    }
    assert_eq!(server.asked(), 0);
}

#[tokio::test]
async fn a_silent_server_is_waited_for_once_and_not_long() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let dns = Dns::at(silent.local_addr().expect("address"));
    let begun = Instant::now();
    assert_eq!(dns.cell(&name("first.org")).await, None);
    assert!(begun.elapsed() < DNS_TIME + Duration::from_secs(2));
    let begun = Instant::now();
    assert_eq!(dns.cell(&name("first.org")).await, None);
    assert!(begun.elapsed() < Duration::from_millis(100));
}

#[tokio::test]
async fn damaged_answers_are_none() {
    for cut in [1, 4, 20] {
        let server = NameServer::start_with(move |mut answer| {
            answer.truncate(answer.len().saturating_sub(cut));
            answer
        });
        server.has_service("first.org", (0, 0), 7003, "db.first.org");
        server.has_address("db.first.org", [192, 0, 2, 1]);
        assert_eq!(server.dns().cell(&name("first.org")).await, None, "{cut}");
    }
}

#[test]
fn hosts_in_the_bytes_of_records() {
    let record = |text: &str| [vec![0, 1], encoded(text)].concat();
    let host = database_host(&record("db1.example.org"));
    assert_eq!(host.as_deref(), Some("db1.example.org."));
    assert_eq!(database_host(&record("")), None);
    assert_eq!(database_host(&record("a b.example.org")), None);
    // A compressed name, which is not allowed.
    assert_eq!(database_host(&[0, 1, 2, b'd', b'b', 0xc0, 12]), None);
    let whole = record("db1.example.org");
    for length in 0..whole.len() {
        assert_eq!(database_host(&whole[..length]), None, "{length}");
    }
    assert_eq!(database_host(&[whole, vec![0]].concat()), None);
}

#[tokio::test]
async fn cells_are_found_numbered_and_found_again() {
    let server = NameServer::start();
    server.has_service("far.org", (0, 0), 7003, "db.far.org");
    server.has_address("db.far.org", [192, 0, 2, 1]);
    let home = Cell {
        name: name("home.org"),
        database_servers: vec![Ipv4Addr::LOCALHOST.into()],
        ports: Ports::default(),
    };
    let cells = KnownCells::new(vec![home]);
    assert!(cells.find(&name("far.org")).await.is_err());
    cells.discover(server.dns());
    let far = cells.find(&name("far.org")).await.expect("found");
    assert_eq!(servers(&far), ["192.0.2.1:7003"]);
    assert_eq!(cells.number(&name("far.org")).expect("number").0, 1);
    // A known cell is not looked up.
    let asked = server.asked();
    assert!(cells.find(&name("home.org")).await.is_ok());
    assert!(cells.find(&name("far.org")).await.is_ok());
    assert_eq!(server.asked(), asked);
    // The records expire, and the cell has moved.
    let mut records = std::mem::take(&mut *server.records.lock());
    records.retain(|record| record.1 != A);
    *server.records.lock() = records;
    server.has_address("db.far.org", [192, 0, 2, 7]);
    cells.expire(&name("far.org"));
    let before = cells.find(&name("far.org")).await.expect("known");
    assert_eq!(before, far);
    until("the new address", async || {
        cells.find(&name("far.org")).await.expect("known") != far
    })
    .await;
    let now = cells.find(&name("far.org")).await.expect("known");
    assert_eq!(servers(&now), ["192.0.2.7:7003"]);
    assert_eq!(cells.number(&name("far.org")).expect("number").0, 1);
    assert_eq!(cells.count(), 2);
}

#[tokio::test]
async fn an_alias_is_another_name_of_a_cell() {
    let server = NameServer::start();
    server.has_service("far.org", (0, 0), 7003, "db.far.org");
    server.has_address("db.far.org", [192, 0, 2, 1]);
    let cells = KnownCells::new(Vec::new());
    cells.discover(server.dns());
    cells.alias([(name("f"), name("far.org"))].into());
    let cell = cells.find(&name("f")).await.expect("found");
    assert_eq!(cell.name, name("far.org"));
    assert_eq!(cells.aliases()[0].0, name("f"));
}
