//! `cellar stand-in` for a killed database server. Without etcd (`dev/etcd`), the test is skipped.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cellar_until::until_blocking;

use crate::common::ports::Ports;
use crate::common::{Cell, SECOND};
use crate::etcd::Member;

/// A running stand-in. It is killed when it is dropped.
struct StandIn(Child);

impl StandIn {
    fn start(of: &Cell) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args(["stand-in", "--dir"])
            .arg(of.directory())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let socket = of.directory().join("stand-in.sock");
        until_blocking("the stand-in listens", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        Self(child)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// The first packet of a call of PR or VL, as a stock client sends it.
const CALL: [u8; 32] = [
    0x80, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 5, 0, 0, 0, 0, 0, 73, 0, 0,
    1, 0xf5,
];

/// A change of PR, which deletes user 32766: the server refuses it to a caller without a ticket.
const CHANGE: [u8; 36] = [
    0x80, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 5, 0, 0, 0, 0, 0, 73, 0, 0,
    1, 0xfa, 0, 0, 0x7f, 0xfe,
];

fn client_of(server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    let patience = Duration::from_millis(200);
    socket.set_read_timeout(Some(patience)).unwrap();
    socket
}

/// Calls a port of a stopped server, and answers a question for the version. Returns `None` if
/// nothing answers.
fn call(server: SocketAddr) -> Option<UdpSocket> {
    let socket = client_of(server);
    socket.send(&CALL).ok()?;
    is_asked(socket)
}

/// Answers a question for the version. Returns `None` if none arrives.
fn is_asked(socket: UdpSocket) -> Option<UdpSocket> {
    let mut question = [0; 100];
    let length = socket.recv(&mut question).ok()?;
    let question = &question[..length];
    assert_eq!((question[20], question[21] & 1), (13, 1), "{question:?}");
    let mut version = question[..28].to_vec();
    version[21] = 4;
    version.extend(b" OpenAFS 1.8.9\0");
    socket.send(&version).ok()?;
    Some(socket)
}

/// The code of the abort of a call; `None` if none arrives.
fn code(socket: &UdpSocket) -> Option<i32> {
    let mut packet = [0; 100];
    // Acknowledgements come first.
    while socket.recv(&mut packet).ok()? >= 32 {
        if packet[20] == 4 {
            assert_eq!(packet[..12], CALL[..12]);
            return Some(i32::from_be_bytes(packet[28..32].try_into().unwrap()));
        }
    }
    None
}

/// Calls of OpenAFS to VL are held for 0.6 s, so the first ones get no code.
fn code_at(server: SocketAddr) -> Option<i32> {
    code(&call(server)?)
}

#[test]
fn a_stand_in_answers_while_its_server_is_away() {
    let Some(member) = Member::start() else {
        return;
    };
    let url = member.url();
    let ports = Ports::reserve();
    let options = ["databases", "--cell", "test.cell", "--etcd", &url];
    let mut first = Cell::serving(ports.first, &options);
    let etc = first.directory().join("server-etc");
    let places = [2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], ports.first + port)));
    let announced = || std::thread::sleep(Duration::from_millis(1500));

    // There is no other server: clients wait for this one.
    let stand_in = StandIn::start(&first);
    announced();
    first.end("-KILL");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(places.map(code_at), [None, None]);
    first.start();

    let join = etc.to_str().unwrap().to_owned();
    let second = Cell::serving(
        ports.first,
        &[
            "databases",
            "--join",
            &join,
            "--bind",
            SECOND,
            "--etcd",
            &url,
        ],
    );
    let list = second.directory().join("server-etc/CellServDB");
    std::fs::copy(list, etc.join("CellServDB")).unwrap();
    first.end("-KILL");
    until_blocking("the stand-in answers", || {
        places.map(code_at) == [Some(-1), Some(-1)]
    });
    // The server gets its ports back, and the stand-in is silent while it runs.
    first.start();
    first.ok("pts createuser ann");

    // The stand-in gets the packets that a killed server has not read.
    let unread = client_of(places[0]);
    first.signal("-STOP");
    std::thread::sleep(Duration::from_millis(50));
    unread.send(&CALL).unwrap();
    first.end("-KILL");
    let asked = is_asked(unread).expect("the stand-in has the packet");
    assert_eq!(code(&asked), Some(-1));
    first.start();

    // It ends calls that the server had received: their clients do not repeat them soon.
    let changing = client_of(places[0]);
    changing.send(&CHANGE).unwrap();
    assert_eq!(code(&changing), Some(267_269));
    first.end("-KILL");
    let asked = is_asked(changing).expect("the stand-in knows the change");
    assert_eq!(code(&asked), Some(-1));
    first.start();

    // A server that is back within 0.6 s executes the calls that it missed.
    let is_executed = (0..10).any(|_| {
        first.end("-KILL");
        let mut held = None;
        until_blocking("a call is held", || {
            held = call(places[1]);
            held.is_some()
        });
        first.start();
        // The arguments are missing, and the server says so.
        held.and_then(|held| code(&held))
            .is_some_and(|code| code != -1)
    });
    assert!(is_executed);

    // A stand-in that starts later learns of the server, also of one that stops in order.
    drop(stand_in);
    let stand_in = StandIn::start(&first);
    announced();
    first.end("-TERM");
    until_blocking("the stand-in answers", || {
        places.map(code_at) == [Some(-1), Some(-1)]
    });
    first.start();
    assert!(first.ok("pts examine ann").contains("Name: ann"));
    drop(stand_in);
}
