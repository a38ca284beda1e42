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
//! | standing in | a server announces itself | watching; the server gets the sockets |
//!
//! The answer has the packets of clients that the stand-in has held. The server processes them.
//!
//! A running server shares its sockets, and logs of the packets that it has received ([`message`]).
//! The stand-in so gets the packets that a killed server has not read, and ends the calls that it
//! has read.
//!
//! The server announces itself over a Unix socket in its directory ([`announce`]). In a cell with
//! one database server, the ports stay closed: its clients must wait for that server.

pub(crate) mod announce;
mod clients;
mod message;
mod server;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellar_client::Ports;
use parking_lot::Mutex;
use sd_notify::NotifyState;
use tokio::net::{UdpSocket, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::cell_directory::CellDirectory;
use crate::default_directory;
use crate::failure::{Failure, Outcome};
use crate::service_manager;
use crate::up::join;

use clients::{Clients, Packet};
use message::{Announcement, Held, Released};
use server::Server;

/// The longest time for a server to send its announcement.
const ANNOUNCEMENT: Duration = Duration::from_secs(1);
/// For this long after the end of a server, its ports are tried every millisecond, if it has ended
/// before it has shared its sockets.
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
        /// The sockets, for the server that is back.
        sockets: Vec<OwnedFd>,
    },
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
                        let server = timeout(ANNOUNCEMENT, Server::announced(connection));
                        if let Ok(Some(server)) = server.await {
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
            () = server_ended(&mut state) => {
                if let State::Watching(server) = std::mem::replace(&mut state, State::Idle) {
                    state = stand_in(directory, server);
                }
            }
        }
    }
}

/// Gives the ports to a server.
async fn watch(before: State, mut server: Server) -> State {
    let mut released = Released::default();
    let sockets = match before {
        State::Idle => Vec::new(),
        State::Watching(before) => before.into_sockets(),
        State::StandingIn {
            since,
            mut ports,
            clients,
            sockets,
        } => {
            ports.shutdown().await;
            for (to, clients) in clients {
                let held = clients.lock().take_held().into_iter();
                let held = held.map(|(from, packet)| Held { to, from, packet });
                released.held.extend(held);
            }
            let held = released.held.len();
            tracing::info!(after = ?since.elapsed(), held, "the database server is back");
            sockets
        }
    };
    server.answer(&released, &sockets).await;
    State::Watching(server)
}

/// Waits for the end of the watched server.
async fn server_ended(state: &mut State) {
    match state {
        State::Watching(server) => server.ended().await,
        State::Idle | State::StandingIn { .. } => std::future::pending().await,
    }
}

fn stand_in(directory: &CellDirectory, server: Server) -> State {
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
    let Announcement { users, locations } = server.announcement;
    tracing::warn!(%users, %locations, "the database server has ended; others get its clients");
    let (mut ports, mut clients) = (JoinSet::new(), Vec::new());
    for (address, mut here) in [(users, Clients::default()), (locations, Clients::patient())] {
        let unanswered = server.unanswered_at(address).into_iter();
        let mut first: Vec<_> = unanswered
            .flat_map(|packet| {
                let client = packet.client;
                let packets = here.end_received(packet).into_iter();
                packets.map(move |packet| (client, packet))
            })
            .collect();
        let here = Arc::new(Mutex::new(here));
        let sockets = server.sockets_at(address);
        if sockets.is_empty() {
            let (here, first) = (Arc::clone(&here), std::mem::take(&mut first));
            ports.spawn(async move { answer(bind(address).await, here, first).await });
        }
        for socket in sockets {
            ports.spawn(answer(
                socket,
                Arc::clone(&here),
                std::mem::take(&mut first),
            ));
        }
        clients.push((address, here));
    }
    State::StandingIn {
        since: Instant::now(),
        ports,
        clients,
        sockets: server.into_sockets(),
    }
}

/// Opens a port of a server that has not shared its sockets.
async fn bind(address: SocketAddr) -> UdpSocket {
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        match UdpSocket::bind(address).await {
            Ok(socket) => return socket,
            Err(_) if begun.elapsed() < EAGER => sleep(Duration::from_millis(1)).await,
            Err(cause) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%address, %cause, "the port of the stopped server is not free");
                }
                sleep(EAGER).await;
            }
        }
    }
}

/// Sends the first packets of a port, and answers its clients.
async fn answer(socket: UdpSocket, clients: Arc<Mutex<Clients>>, first: Vec<Packet>) {
    for (to, packet) in first {
        send(&socket, to, &packet).await;
    }
    let mut packet = vec![0; DATAGRAM_MAX];
    let restart = sleep(RESTART);
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
        let packet = packet.get(..length).unwrap_or_default();
        let answers = clients.lock().answer(from, packet);
        for answer in answers {
            send(&socket, from, &answer).await;
        }
    }
}

async fn send(socket: &UdpSocket, to: SocketAddr, answer: &[u8]) {
    if let Err(cause) = socket.send_to(answer, to).await {
        tracing::debug!(%to, %cause, "a client cannot be answered");
    }
}
