//! `cellar stand-in`: answers for a stopped database server that shares its databases with others.
//!
//! The kernel of a machine without a server answers clients with ICMP messages, and stock clients
//! do not read these. They repeat their call for seconds. The stand-in binds the ports of PR and
//! VL as soon as the server has ended, and ends each call. Clients then turn to the next server.
//!
//! | state | event | next |
//! | --- | --- | --- |
//! | idle | a server announces itself | watching |
//! | watching | the server's connection ends | standing in |
//! | watching | another announcement | watching that server |
//! | standing in | a server announces itself | watching; the ports are closed before the answer |
//!
//! The answer has the packets of clients that the stand-in has held. The server processes them.
//!
//! The server announces itself over a Unix socket in its directory ([`announce`]). In a cell with
//! one database server, the ports stay closed: its clients must wait for that server.

pub(crate) mod announce;
mod clients;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellar_client::Ports;
use parking_lot::Mutex;
use sd_notify::NotifyState;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UdpSocket, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::cell_directory::CellDirectory;
use crate::default_directory;
use crate::failure::{Failure, Outcome};
use crate::service_manager;
use crate::up::join;

use announce::{Announcement, Held, Released};
use clients::Clients;

/// The longest time for a server to send its announcement.
const ANNOUNCEMENT: Duration = Duration::from_secs(1);
/// The length of an announcement: some addresses.
const ANNOUNCEMENT_MAX: u64 = 4096;
/// For this long after the end of a server, its ports are tried every millisecond: the kernel
/// closes the sockets of a killed process one after the other.
const EAGER: Duration = Duration::from_millis(500);
/// The time in which a restarted server is back. Clients of the location database are told to use
/// another server only after it ([`clients`]). A cache manager then waits for one more second.
const RESTART: Duration = Duration::from_millis(600);
/// The largest datagram.
const DATAGRAM_MAX: usize = 1 << 16;

/// Answer for the database server of this machine while it is stopped or starts.
///
/// Its clients are told to use another database server at once. Stock clients would otherwise
/// repeat their calls for up to 7 s. Run it beside 'cellar serve', with the same directory; it
/// concerns cells with several database servers.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar stand-in --dir /var/lib/cellar
  systemctl enable --now cellar-stand-in       the same, as a service of Debian's package")]
pub(crate) struct Options {
    /// The directory of the database server. Default: ./cell-data, or /var/lib/cellar.
    #[arg(long, value_name = "DIR", env = "CELLAR_DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command. It ends with a signal.
pub(crate) fn run(options: &Options) -> Outcome {
    let directory = default_directory::named_or_default(options.dir.as_deref())?;
    let path = directory.stand_in_socket();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let listener = cellar_private::socket(&path).and_then(UnixListener::from_std);
    let listener = listener.map_err(|cause| {
        Failure::new(format!(
            "{}: {cause}. Is this the directory of a database server, and does no other stand-in run?",
            path.display()
        ))
    })?;
    tracing::info!(directory = %directory.path().display(), "waiting for the database server");
    service_manager::tell(&[NotifyState::Ready]);
    runtime.block_on(serve(&directory, &listener))
}

enum State {
    Idle,
    Watching(Server),
    StandingIn {
        since: Instant,
        ports: JoinSet<()>,
        clients: Vec<(SocketAddr, Arc<Mutex<Clients>>)>,
    },
}

/// A server that has announced itself.
struct Server {
    announcement: Announcement,
    connection: BufReader<UnixStream>,
}

async fn serve(directory: &CellDirectory, listener: &UnixListener) -> Outcome {
    let (announced, mut announcements) = mpsc::channel(1);
    let mut state = State::Idle;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((connection, _)) => {
                    let announced = announced.clone();
                    tokio::spawn(async move {
                        if let Ok(Some(server)) = timeout(ANNOUNCEMENT, read(connection)).await {
                            let _ended = announced.send(server).await;
                        }
                    });
                }
                Err(cause) => {
                    tracing::warn!(%cause, "a server cannot announce itself");
                    sleep(ANNOUNCEMENT).await;
                }
            },
            Some(server) = announcements.recv() => state = watch(state, server).await,
            announcement = server_ended(&mut state) => state = stand_in(directory, announcement),
        }
    }
}

async fn read(connection: UnixStream) -> Option<Server> {
    let mut connection = BufReader::new(connection);
    let mut line = String::new();
    let mut limited = (&mut connection).take(ANNOUNCEMENT_MAX);
    if limited.read_line(&mut line).await.ok()? == 0 {
        // The server only asked whether a stand-in is there.
        return None;
    }
    match serde_json::from_str::<Announcement>(&line) {
        Ok(announcement) => Some(Server {
            announcement,
            connection,
        }),
        Err(cause) => {
            tracing::warn!(%cause, "an announcement cannot be read");
            None
        }
    }
}

/// Gives the ports to a server.
async fn watch(before: State, mut server: Server) -> State {
    let mut released = Released::default();
    if let State::StandingIn {
        since,
        mut ports,
        clients,
    } = before
    {
        ports.shutdown().await;
        for (to, clients) in clients {
            let held = clients.lock().take_held().into_iter();
            let held = held.map(|(from, packet)| Held { to, from, packet });
            released.held.extend(held);
        }
        let held = released.held.len();
        tracing::info!(after = ?since.elapsed(), held, "the database server is back");
    }
    match serde_json::to_string(&released) {
        // A server that has ended already is noticed as its end.
        Ok(mut answer) => {
            answer.push('\n');
            let _written = server.connection.write_all(answer.as_bytes()).await;
        }
        Err(cause) => tracing::warn!(%cause, "the server cannot be answered"),
    }
    State::Watching(server)
}

/// Waits for the end of the watched server. Returns its announcement.
async fn server_ended(state: &mut State) -> Announcement {
    let State::Watching(server) = state else {
        return std::future::pending().await;
    };
    while let Ok(1..) = server.connection.read(&mut [0; 64]).await {}
    server.announcement
}

fn stand_in(directory: &CellDirectory, announcement: Announcement) -> State {
    let cell = join::cell_of(&directory.server_etc(), Ports::default());
    match cell.map(|cell| cell.database_servers.len()) {
        Ok(2..) => {}
        Ok(_) => {
            tracing::warn!("the database server has ended; CellServDB lists no other");
            return State::Idle;
        }
        Err(cause) => {
            tracing::warn!(%cause, "the database server has ended; the others are not known");
            return State::Idle;
        }
    }
    let Announcement { users, locations } = announcement;
    tracing::warn!(%users, %locations, "the database server has ended; others get its clients");
    let (mut ports, mut clients) = (JoinSet::new(), Vec::new());
    for (address, here) in [(users, Clients::default()), (locations, Clients::patient())] {
        let here = Arc::new(Mutex::new(here));
        clients.push((address, Arc::clone(&here)));
        ports.spawn(answer(address, here));
    }
    State::StandingIn {
        since: Instant::now(),
        ports,
        clients,
    }
}

/// Answers the clients of a port.
async fn answer(address: SocketAddr, clients: Arc<Mutex<Clients>>) {
    let begun = Instant::now();
    let mut is_told = false;
    let socket = loop {
        match UdpSocket::bind(address).await {
            Ok(socket) => break socket,
            Err(_) if begun.elapsed() < EAGER => sleep(Duration::from_millis(1)).await,
            Err(cause) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%address, %cause, "the port of the stopped server is not free");
                }
                sleep(EAGER).await;
            }
        }
    };
    let mut packet = vec![0; DATAGRAM_MAX];
    let restart = sleep(RESTART.saturating_sub(begun.elapsed()));
    tokio::pin!(restart);
    let mut is_restart = true;
    loop {
        let received = tokio::select! {
            () = &mut restart, if is_restart => {
                is_restart = false;
                let aborts = clients.lock().release();
                for (to, abort) in aborts {
                    send(&socket, to, &abort).await;
                }
                continue;
            }
            received = socket.recv_from(&mut packet) => received,
        };
        let (length, from) = match received {
            Ok(received) => received,
            // An ICMP message about a client that has ended, or the machine's network.
            Err(cause) => {
                tracing::debug!(%cause, "nothing received");
                sleep(Duration::from_millis(1)).await;
                continue;
            }
        };
        let answer = packet
            .get(..length)
            .and_then(|packet| clients.lock().answer(from, packet));
        if let Some(answer) = answer {
            send(&socket, from, &answer).await;
        }
    }
}

async fn send(socket: &UdpSocket, to: SocketAddr, answer: &[u8]) {
    if let Err(cause) = socket.send_to(answer, to).await {
        tracing::debug!(%to, %cause, "a client cannot be answered");
    }
}
