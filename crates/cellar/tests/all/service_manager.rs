//! The messages to the service manager, which the test plays.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::catches_signals;
use crate::common::ports::Ports;

/// The service manager's wait for a message.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_cell_is_ready_lives_and_stops() {
    let home = tempfile::tempdir().expect("directory");
    let socket = home.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("time");
    let hear = || {
        let mut text = [0; 1_000];
        let length = manager.recv(&mut text).expect("a message");
        String::from_utf8_lossy(&text[..length])
            .trim_end()
            .to_owned()
    };
    let ports = Ports::reserve();
    let mut server = Command::new(env!("CARGO_BIN_EXE_cellar"))
        .args(["up", "--fileserver-port", &ports.first.to_string(), "--dir"])
        .arg(home.path().join("cell"))
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "200000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    assert_eq!(hear(), "READY=1");
    for _ in 0..3 {
        assert_eq!(hear(), "WATCHDOG=1");
    }
    let pid = server.id().to_string();
    let sent = Command::new("kill").arg(&pid).status().expect("kill");
    assert!(sent.success());
    let last = loop {
        match hear().as_str() {
            "WATCHDOG=1" => {}
            other => break other.to_owned(),
        }
    };
    assert_eq!(last, "STOPPING=1");
    assert!(server.wait().expect("end").success());
}

/// A shell starts background jobs with SIGINT ignored. A signal before the handlers would be lost.
#[test]
fn a_server_with_open_ports_handles_signals() {
    let home = tempfile::tempdir().expect("directory");
    let ports = Ports::reserve();
    let mut server = Command::new(env!("CARGO_BIN_EXE_cellar"))
        .args(["up", "--fileserver-port", &ports.first.to_string(), "--dir"])
        .arg(home.path().join("cell"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    wait_for_answer(ports.first);
    let handles = catches_signals(server.id());
    server.kill().expect("kill");
    server.wait().expect("end");
    assert!(handles);
}

/// Waits until a server answers Rx on the port. A bound socket does not show that: the program
/// binds each port once before, to see whether it is free.
fn wait_for_answer(port: u16) {
    // A VERSION packet: a header of 28 bytes, type 13, CLIENT_INITIATED and LAST_PACKET, and one
    // zero byte.
    let mut question = [0; 29];
    question[20] = 13;
    question[21] = 0x01 | 0x04;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let short = Duration::from_millis(5);
    socket.set_read_timeout(Some(short)).expect("a time");
    let start = Instant::now();
    loop {
        let server = (Ipv4Addr::LOCALHOST, port);
        socket.send_to(&question, server).expect("a question");
        if socket.recv_from(&mut [0; 100]).is_ok() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no answer");
    }
}
