//! The amplification by forged requests. Every procedure that answers without a ticket is called
//! from an address that acknowledges nothing, like a forged sender.
//!
//! The figures are in `docs/protocol/unverified-addresses.md`. This test checks them;
//! `CELLAR_UPDATE=1 cargo test -p cellar --test all amplification` writes them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellar_client::{BreakHandled, CallbackService, Promises};
use cellar_rpc::{Runtime, Service};
use cellar_wire::ids::{AfsUuid, Fid};
use cellar_wire::package::{AnyRequest, Package};
use cellar_wire::{
    Decoder, afsosd, afsvol, bozo, disk, osd, osddb, pr, rxafs, rxafscb, rxperf, rxstats, vl, vote,
};

use crate::hostile::answers::table::{Objects, request};
use crate::hostile::cell::{Cell, PATIENCE, run};
use crate::hostile::packet::{ABORT, ACK, CLIENT, DATA, LAST, Packet};

const DEBUG: u8 = 8;
const VERSION: u8 = 13;
const IP_AND_UDP: usize = 28;
/// Header and contents of the largest packet.
const PACKET_MAX: usize = 1444;
/// The largest acknowledgement or ping, as in the document.
const ACK_MAX: usize = 82;
/// How long timers may send packets.
const TIMERS: Duration = Duration::from_secs(2);

const PAGE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/protocol/unverified-addresses.md"
);
/// Its reply contains the command line of the cell.
const VARIES: &str = "BOZO.GetInstanceParm";
const HEADING: &str = "## 6. The factor of each procedure\n";

/// A package, with a check whether bytes are the arguments of one of its procedures.
struct PackageParser {
    package: &'static Package,
    parses: fn(u32, &[u8]) -> bool,
}

fn parser_of<R: AnyRequest>() -> PackageParser {
    PackageParser {
        package: R::package(),
        parses: |opcode, arguments| {
            let mut decoder = Decoder::new(arguments);
            R::decode(opcode, &mut decoder).is_ok() && decoder.remaining() == 0
        },
    }
}

impl PackageParser {
    /// The fewest zeros that parse as arguments.
    fn shortest(&self, opcode: u32) -> Option<Vec<u8>> {
        let zeros = (0..4000).map(|words| vec![0; 4 * words]);
        let arguments = zeros
            .into_iter()
            .find(|zeros| (self.parses)(opcode, zeros))?;
        Some([&opcode.to_be_bytes()[..], &arguments].concat())
    }
}

/// The services at a port.
fn services(port: &str) -> Vec<PackageParser> {
    let own = match port {
        "files" => vec![
            parser_of::<rxafs::Request>(),
            parser_of::<afsosd::Request>(),
        ],
        "users" => vec![parser_of::<pr::Request>()],
        "locations" => vec![parser_of::<vl::Request>(), parser_of::<osddb::Request>()],
        "volumes" => vec![parser_of::<afsvol::Request>()],
        "objects" => vec![parser_of::<osd::Request>()],
        "overseer" => vec![parser_of::<bozo::Request>()],
        "callbacks" => vec![parser_of::<rxafscb::Request>()],
        other => panic!("services of the port {other:?} belong here"),
    };
    let everywhere = [
        parser_of::<vote::Request>(),
        parser_of::<disk::Request>(),
        parser_of::<rxstats::Request>(),
        parser_of::<rxperf::Request>(),
    ];
    own.into_iter().chain(everywhere).collect()
}

/// Requests of `requests.txt`, by package and procedure.
fn best_requests(objects: &Objects) -> BTreeMap<(String, String), Vec<u8>> {
    let mut package = "";
    let mut requests = BTreeMap::new();
    for line in include_str!("amplification/requests.txt").lines() {
        if let Some(name) = line.strip_prefix('[') {
            package = name.trim_end_matches(']');
        }
        let Some((procedure, arguments)) = line.split_once('|').filter(|_| !line.starts_with('#'))
        else {
            continue;
        };
        let key = (package.to_owned(), procedure.trim().to_owned());
        // The opcode comes from the caller.
        let words = request(&format!("0 {arguments}"), objects).unwrap_or_else(|| panic!("{line}"));
        requests.insert(key, words.bytes()[4..].to_vec());
    }
    requests
}

/// One request from an address of its own.
struct Probe {
    port: &'static str,
    name: String,
    to: SocketAddr,
    packet: Packet,
    payload: Vec<u8>,
    socket: UdpSocket,
    /// All packets received.
    drawn: Vec<Vec<u8>>,
}

impl Probe {
    fn new(
        (port, to): (&'static str, SocketAddr),
        name: String,
        number: usize,
        header: (u8, u8, u16),
        payload: Vec<u8>,
    ) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let packet = Packet {
            epoch: 0x4100_0000 + number as u32,
            cid: (number as u32 * 0x9e37) << 2,
            call: 1,
            seq: 1,
            serial: 1,
            kind: header.0,
            flags: header.1,
            service: header.2,
        };
        Self {
            port,
            name,
            to,
            packet,
            payload,
            socket,
            drawn: Vec::new(),
        }
    }

    /// The name of the row in the document.
    fn place(&self) -> &'static str {
        match self.packet.kind {
            DATA => self.port,
            _ => "every port",
        }
    }

    fn request_bytes(&self) -> usize {
        28 + self.payload.len()
    }

    fn send(&mut self, serial: u32) {
        let packet = Packet {
            serial,
            ..self.packet
        };
        let bytes = packet.bytes(&self.payload);
        self.socket.send_to(&bytes, self.to).unwrap();
    }

    fn gather(&mut self) {
        let mut buffer = [0; 20_000];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            self.drawn.push(buffer[..len].to_vec());
        }
    }

    /// The first answer larger than an acknowledgement; if there is none, the acknowledgement.
    fn reply(&self) -> &[u8] {
        let mut drawn = self.drawn.iter();
        let reply = drawn.clone().find(|datagram| datagram[20] != ACK);
        reply.or_else(|| drawn.next()).map_or(&[], Vec::as_slice)
    }

    /// Checks the rule after `sent` of our datagrams: section 1 of the document.
    fn assert_rule(&self, sent: usize) {
        let what = format!("{} {}: {:?}", self.port, self.name, self.lengths());
        let (extras, replies): (Vec<_>, Vec<_>) =
            self.drawn.iter().partition(|datagram| datagram[20] == ACK);
        assert!(!self.drawn.is_empty(), "{what}: no answer");
        assert!(replies.len() <= sent, "{what}: replies");
        assert!(self.drawn.len() <= 2 * sent, "{what}: datagrams");
        assert!(
            replies.iter().all(|reply| reply.len() <= PACKET_MAX),
            "{what}: a large reply"
        );
        assert!(
            extras.iter().all(|extra| extra.len() <= ACK_MAX),
            "{what}: extras"
        );
        // If an address is first checked for reachability, that takes the place of the reply.
        let instead = sent - replies.len();
        let extras = extras.iter().skip(instead);
        let extras: usize = extras.map(|extra| extra.len() + IP_AND_UDP).sum();
        let ours = sent * (self.request_bytes() + IP_AND_UDP);
        assert!(extras <= 3 * ours, "{what}: extras");
    }

    fn replies(&self) -> usize {
        let drawn = self.drawn.iter();
        drawn.filter(|datagram| datagram[20] != ACK).count()
    }

    /// Returns whether the handler begins only after the address has answered a ping.
    fn is_asked_first(&self) -> bool {
        let packages = [&rxafs::PACKAGE, &afsosd::PACKAGE];
        let package = self.name.split('.').next();
        packages.iter().any(|asks| package == Some(asks.name))
    }

    /// The code of the abort that was the reply.
    fn abort(&self) -> Option<i32> {
        let code = self.reply().get(28..32)?;
        (self.reply()[20] == ABORT).then(|| i32::from_be_bytes(code.try_into().unwrap()))
    }

    fn lengths(&self) -> Vec<(u8, usize)> {
        let drawn = self.drawn.iter();
        drawn
            .map(|datagram| (datagram[20], datagram.len()))
            .collect()
    }

    /// The ratio of the reply's length to the request's.
    fn factor(&self) -> f64 {
        self.reply().len() as f64 / self.request_bytes() as f64
    }
}

/// All requests to a port.
fn probes(port: (&'static str, SocketAddr), objects: &Objects, from: usize) -> Vec<Probe> {
    let best = best_requests(objects);
    let mut probes = Vec::new();
    let mut probe = |name: String, header, payload| {
        let number = from + probes.len();
        probes.push(Probe::new(port, name, number, header, payload));
    };
    for asked in services(port.0) {
        let package = asked.package;
        for procedure in package.procedures {
            let name = format!("{}.{}", package.name, procedure.name);
            let key = (package.name.to_owned(), procedure.name.to_owned());
            let best = best.get(&key).map(|arguments| {
                assert!(
                    (asked.parses)(procedure.opcode, arguments),
                    "requests.txt: {name}"
                );
                [&procedure.opcode.to_be_bytes()[..], arguments].concat()
            });
            let shortest = asked.shortest(procedure.opcode);
            assert!(best.is_some() || shortest.is_some(), "a request of {name}");
            for request in best.into_iter().chain(shortest) {
                let header = (DATA, CLIENT | LAST, package.service_id);
                // The first packet of a longer request.
                let first = request[..request.len().min(PACKET_MAX - 28)].to_vec();
                probe(name.clone(), header, first);
            }
        }
    }
    for (kind, name) in [
        "statistics",
        "a connection",
        "any connection",
        "figures",
        "a peer",
        "what is not",
    ]
    .into_iter()
    .enumerate()
    {
        let payload = [kind as u32 + 1, 0].map(u32::to_be_bytes).concat();
        probe(format!("debug: {name}"), (DEBUG, CLIENT, 0), payload);
    }
    probe("version".to_owned(), (VERSION, CLIENT, 0), Vec::new());
    probes
}

/// A client without promises.
struct NoPromises;

impl Promises for NoPromises {
    fn broken(&self, _: &[Fid]) -> BreakHandled<'_> {
        Box::pin(async {})
    }

    fn all_broken(&self, _: SocketAddr) -> BreakHandled<'_> {
        Box::pin(async {})
    }
}

/// The callback port of a client with as many addresses as possible.
fn callback_port() -> (Runtime, SocketAddr) {
    let client = Runtime::client_only().unwrap();
    let addresses = (0..32).map(|n| Ipv4Addr::new(192, 0, 2, n).into());
    let service = CallbackService::new(AfsUuid([7; 16]), addresses.collect(), Arc::new(NoPromises));
    let port = client.client_port().unwrap();
    port.add_service(&(Arc::new(service) as Arc<dyn Service>));
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port.local_address().port());
    (client, address)
}

/// Sends the requests of the probes, and collects the answers.
async fn ask(probes: &mut [Probe], serial: u32) {
    // Handlers accept at most 256 calls of unverified addresses at once, so the probes are sent in
    // groups.
    for some in probes.chunks_mut(24) {
        some.iter_mut().for_each(|probe| probe.send(serial));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // At least this long, and longer on a busy machine.
    let start = Instant::now();
    let waits = |probe: &Probe| !probe.is_asked_first() && probe.replies() == 0;
    while start.elapsed() < TIMERS || (start.elapsed() < PATIENCE && probes.iter().any(waits)) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        probes.iter_mut().for_each(Probe::gather);
    }
}

/// The section of the document.
fn section(probes: &[Probe]) -> String {
    let mut page = format!(
        "{HEADING}\n\
         Bytes of the datagrams, without IP and UDP headers, to and from an address that acknowledges nothing. A reply of 1,444 bytes\n\
         is the first packet of a longer one. The shortest call has 32 bytes, so that no factor is above 45.1. The extra packet\n\
         of section 1 is not counted; it is an acknowledgement or a ping, of at most 82 bytes. The cell has three volumes and one device:\n\
         in larger ones further lists fill a packet.\n\
         `CELLAR_UPDATE=1 cargo test -p cellar --test all amplification` writes this section, over every procedure of every port.\n"
    );
    let mut worst: BTreeMap<(&str, &str), &Probe> = BTreeMap::new();
    for probe in probes {
        let known = worst.entry((probe.place(), &probe.name)).or_insert(probe);
        if probe.factor() > known.factor() {
            *known = probe;
        }
    }
    let mut ports: Vec<&str> = worst.keys().map(|(port, _)| *port).collect();
    ports.dedup();
    for port in ports {
        let here = worst.range((port, "")..).map(|(_, probe)| *probe);
        let here: Vec<_> = here.take_while(|probe| probe.place() == port).collect();
        let (asked_first, answered): (Vec<&Probe>, Vec<&Probe>) = here
            .iter()
            .copied()
            .partition(|probe| probe.is_asked_first());
        let mut above: Vec<&Probe> = answered
            .iter()
            .copied()
            .filter(|probe| probe.factor() > 1.0 && probe.name != VARIES)
            .collect();
        above.sort_by(|a, b| {
            b.factor()
                .total_cmp(&a.factor())
                .then_with(|| a.name.cmp(&b.name))
        });
        let _ = write!(
            page,
            "\n### {port}\n\n| Procedure | Request | Reply | Factor |\n|---|---|---|---|\n"
        );
        for probe in &above {
            let (request, reply) = (probe.request_bytes(), probe.reply().len());
            let _ = writeln!(
                page,
                "| {} | {request} | {reply} | {:.1} |",
                probe.name,
                probe.factor()
            );
        }
        if let Some(most) = asked_first
            .iter()
            .max_by(|a, b| a.factor().total_cmp(&b.factor()))
        {
            let _ = writeln!(
                page,
                "| {} more, whose address is pinged before they begin | {} and more | {} | at most {:.1} |",
                asked_first.len(),
                most.request_bytes(),
                most.reply().len(),
                most.factor()
            );
        }
        if here.iter().any(|probe| probe.name == VARIES) {
            let _ = writeln!(page, "| {VARIES} | 44 | with the command's length | |");
        }
        let others = answered.len() - above.len();
        if others > 0 {
            let _ = writeln!(page, "| {others} more | | | at most 1.0 |");
        }
    }
    page
}

#[test]
fn a_forged_request_draws_one_packet_and_a_ping() {
    run(async {
        let cell = Cell::start_with(&["--osds", "1"]);
        let asker = Runtime::client_only().unwrap();
        let objects = Objects::from([("dir", cell.target.root(&asker).await)]);
        let statistics = cell.statistics();
        let mut ports: Vec<(&'static str, SocketAddr)> = Vec::new();
        for port in statistics["ports"].as_array().unwrap() {
            let name = String::leak(port["name"].as_str().unwrap().to_owned());
            ports.push((name, port["address"].as_str().unwrap().parse().unwrap()));
        }
        ports.sort_by_key(|(_, address)| address.port());
        let (_client, callbacks) = callback_port();
        ports.push(("callbacks", callbacks));
        let mut all: Vec<Probe> = Vec::new();
        for port in ports {
            let more = probes(port, &objects, all.len());
            all.extend(more);
        }
        assert!(all.len() > 400, "{}", all.len());
        ask(&mut all, 1).await;
        for probe in &all {
            probe.assert_rule(1);
            let (name, abort) = (&probe.name, probe.abort());
            assert!(probe.factor() < 45.2, "{name}");
            assert!(!probe.is_asked_first() || probe.replies() == 0, "{name}");
            // Its lists are for superusers.
            if name.starts_with("RXSTATS.") && name != "RXSTATS.QueryRPCStatsVersion" {
                assert_eq!(abort, Some(1), "{} {name}", probe.port);
            }
        }
        let section = section(&all);
        // The rule also holds when the packets are repeated.
        ask(&mut all, 2).await;
        all.iter().for_each(|probe| probe.assert_rule(2));
        compare(&section);
    });
}

/// Compares the document with the measured figures.
fn compare(section: &str) {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let before = page.split(HEADING).next().unwrap();
    if std::env::var_os("CELLAR_UPDATE").is_some() {
        std::fs::write(PAGE, format!("{}\n\n{section}", before.trim_end())).unwrap();
    } else {
        let written = &page[before.len()..];
        let first = section.lines().zip(written.lines()).find(|(a, b)| a != b);
        assert!(section == written, "{PAGE} is stale: {first:?}");
    }
}
