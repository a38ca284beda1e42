//! The messages to the service manager, which the test plays.

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
    let open = format!(":{:04X} ", ports.first);
    let start = Instant::now();
    loop {
        let sockets = std::fs::read_to_string("/proc/net/udp").expect("sockets");
        if sockets.contains(&open) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "no port");
    }
    let handles = catches_signals(server.id());
    server.kill().expect("kill");
    server.wait().expect("end");
    assert!(handles);
}
