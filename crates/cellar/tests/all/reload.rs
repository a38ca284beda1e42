//! SIGHUP: a server without a terminal reads its configuration again.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cellar_until::PATIENCE;

use crate::common::ports::Ports;

/// A server of databases with a configuration file; the test plays its service manager.
struct Server {
    process: Child,
    manager: UnixDatagram,
    home: PathBuf,
}

impl Server {
    fn start(home: &Path, ports: &Ports) -> Self {
        let socket = home.join("notify");
        let manager = UnixDatagram::bind(&socket).expect("socket");
        manager.set_read_timeout(Some(PATIENCE)).expect("time");
        // A session of its own has no terminal. A test that nohup(1) started ignores SIGHUP, and
        // its children would inherit that.
        let process = Command::new("env")
            .args(["--default-signal=HUP", "setsid"])
            .arg(env!("CARGO_BIN_EXE_cellar"))
            .args(["serve", "databases", "--config"])
            .arg(home.join("cellar.toml"))
            .args(["--fileserver-port", &ports.first.to_string(), "--dir"])
            .arg(home.join("cell"))
            .env("NOTIFY_SOCKET", &socket)
            .env_remove("CELLAR_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(home.join("log")).expect("log"))
            .spawn();
        let server = Self {
            process: process.expect("the program starts"),
            manager,
            home: home.to_owned(),
        };
        server.hear("READY=1");
        server
    }

    fn hear(&self, message: &str) {
        let mut text = [0; 1_000];
        let length = self.manager.recv(&mut text).expect("a message");
        let text = String::from_utf8_lossy(&text[..length]);
        assert!(text.starts_with(message), "{text}");
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.expect("kill").success());
    }

    /// Reloads, and returns the lines that the log gets.
    fn reload(&self) -> String {
        let before = self.log().len();
        self.signal("-HUP");
        self.hear("RELOADING=1");
        self.hear("READY=1");
        self.log().split_off(before)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.join("log")).expect("log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

/// The status of a request for metrics with that token.
fn status(port: u16, token: &str) -> String {
    let ask = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /metrics HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n' >&3; head -n 1 <&3"
    );
    let answer = Command::new("bash").args(["-c", &ask]).output();
    String::from_utf8_lossy(&answer.expect("bash").stdout).into_owned()
}

#[test]
fn a_reload_applies_what_can_change_and_names_the_rest() {
    let home = tempfile::tempdir().expect("directory");
    let (file, token) = (home.path().join("cellar.toml"), home.path().join("token"));
    let ports = Ports::reserve();
    let free = TcpListener::bind("127.0.0.1:0").expect("port");
    let place = free.local_addr().expect("address").port();
    drop(free);
    let token_path = token.display();
    let common = format!("metrics = \"{place}\"\nmetrics-token = \"{token_path}\"\n");
    fs::write(&file, &common).expect("file");
    fs::write(&token, "0123456789abcdef").expect("token");
    let mut server = Server::start(home.path(), &ports);
    assert!(status(place, "0123456789abcdef").contains(" 200 "));

    let said = server.reload();
    assert!(
        said.contains("the configuration was read again changes=0"),
        "{said}"
    );

    // A new token, a new filter, and a key that needs a restart.
    fs::write(&token, "fedcba9876543210").expect("token");
    fs::write(&file, format!("{common}log = \"warn\"\nshards = 1\n")).expect("file");
    let said = server.reload();
    assert!(
        said.contains("needs a restart key=\"shards\" value=1"),
        "{said}"
    );
    assert!(status(place, "0123456789abcdef").contains(" 401 "));
    assert!(status(place, "fedcba9876543210").contains(" 200 "));
    assert!(
        !server.reload().contains("read again"),
        "info lines are off"
    );
    fs::write(&file, format!("{common}shards = 1\n")).expect("file");
    let said = server.reload();
    assert!(
        said.contains("the change of this key is in force key=\"log\""),
        "{said}"
    );

    // Wrong contents change nothing.
    fs::write(&token, "short").expect("token");
    fs::write(&file, format!("{common}log = \"debug\"\nshards = 0.5\n")).expect("file");
    let said = server.reload();
    assert!(
        said.contains("nothing changes") && said.contains("cellar.toml:4"),
        "{said}"
    );
    fs::write(&file, &common).expect("file");
    let said = server.reload();
    assert!(said.contains("fewer than 16 characters"), "{said}");
    assert!(status(place, "fedcba9876543210").contains(" 200 "));

    server.signal("-TERM");
    server.hear("STOPPING=1");
    assert!(server.process.wait().expect("end").success());
    // Quiet for a moment: nothing follows.
    let short = Some(Duration::from_millis(1));
    server.manager.set_read_timeout(short).expect("time");
    assert!(server.manager.recv(&mut [0; 10]).is_err());
}
