//! `cellar console`: the web console of a cell.
//!
//! `cellar-console` has the pages. This module finds the cell, opens the sockets, and ends with a
//! signal.

mod login;
mod socket;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cellar_console::auth::Gate;
use cellar_console::{Certificate, LoginSocket, Site, SiteLimits};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Outcome};
use crate::output::errln;
use crate::quantities;
use crate::service_manager;
use crate::session::{As, CellOptions, Session};

/// The place of the console if no option names another.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7080);

/// The longest time at the end of the console in which its operations are cancelled and clean up.
/// It is shorter than the 90 s after which systemd kills a service.
const CLEAN_UP_TIME: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "The console acts in the cell with the identity of this command: through the administrator's
socket of --dir, with the cell's key (--localauth), or with your token. People log in with one-time
tokens of 'cellar console login'. A reader sees the pages; an administrator also makes changes.

Examples:
  cellar console --dir /var/lib/cellar --admin
  cellar console login                       in another terminal: print the address of a login
  cellar console login --read-only
  cellar console --cell example.org --localauth --listen 192.0.2.7:7080 \\
      --tls-certificate /etc/ssl/console.pem --tls-key /etc/ssl/private/console.key \\
      --url https://console.example.org:7080"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeOptions,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print an address with a one-time token, by which a browser logs in.
    #[command(after_help = login::EXAMPLES)]
    Login(login::Options),
}

#[derive(Debug, clap::Args)]
struct ServeOptions {
    /// The address and port of the console. An address that other machines can reach needs TLS.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = LISTEN)]
    listen: SocketAddr,
    /// The certificate of the console, as a PEM file with its chain.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The private key of the certificate, as a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// The address of the console in browsers. Default: that of --listen.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    socket: socket::SocketOption,
    /// The longest time that a server has for an answer.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = quantities::limit)]
    timeout: Duration,
    /// The longest time for a list of volumes.
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = quantities::limit)]
    listing_time: Duration,
    /// Show addresses, not names.
    #[arg(long)]
    noresolve: bool,
    #[command(flatten)]
    cell: CellOptions,
}

impl Options {
    /// Whether the command is the server.
    pub(crate) fn is_server(&self) -> bool {
        self.command.is_none()
    }
}

pub(crate) async fn run(options: Options) -> Outcome {
    match &options.command {
        Some(Command::Login(options)) => login::run(options).await,
        None => serve(&options.serve).await,
    }
}

async fn serve(options: &ServeOptions) -> Outcome {
    let certificate = match (&options.tls_certificate, &options.tls_key) {
        (Some(certificate), Some(key)) => {
            let loaded = Certificate::load(certificate, key);
            Some(Arc::new(loaded.map_err(|cause| {
                Failure::new(format!("--tls-certificate, --tls-key: {cause}"))
            })?))
        }
        _ => None,
    };
    cellar_console::check_address(options.listen, certificate.is_some()).map_err(Failure::usage)?;
    let place = options.listen;
    let failed = |cause: std::io::Error| Failure::new(format!("--listen {place}: {cause}"));
    let listener = TcpListener::bind(place).await.map_err(failed)?;
    let place = listener.local_addr().map_err(failed)?;
    let path = options.socket.path()?;
    let socket = LoginSocket::listen(&path)
        .map_err(|cause| Failure::new(format!("--socket {}: {cause}", path.display())))?;
    let session = options
        .cell
        .session(None, As::AdministratorIfPossible)
        .await?;
    if !session.authenticated {
        errln!(
            "The console has no token: it acts as system:anyuser, so it sees less and changes nothing. \
             Use --dir, --localauth, or log in first."
        );
    }
    let scheme = if certificate.is_some() {
        "https"
    } else {
        "http"
    };
    let url = match &options.url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => format!("{scheme}://{place}"),
    };
    let limits = SiteLimits {
        answer: options.timeout,
        listing: options.listing_time,
        resolve: !options.noresolve,
    };
    let site = Site::new(session.client.clone(), session.cell.clone(), limits);
    let gate = Arc::new(Gate::new(certificate.is_some()));
    let site = Arc::new(site);
    let router = cellar_console::router(site.clone(), gate.clone());
    errln!(
        "Console of cell {} at {url}. 'cellar console login' prints the address of a login.",
        session.cell.name
    );
    service_manager::tell(&[sd_notify::NotifyState::Ready]);
    let mut signals = EndSignals::new()?;
    tokio::select! {
        () = cellar_console::serve(listener, certificate, router) => (),
        () = socket.serve(gate, &url) => (),
        () = signals.next() => (),
    }
    service_manager::tell(&[sd_notify::NotifyState::Stopping]);
    drop(socket);
    // A second signal does not wait for the operations.
    tokio::select! {
        left = site.close_operations(CLEAN_UP_TIME) => left.iter().for_each(|line| errln!("{line}")),
        () = signals.next() => errln!("The console ends at once. Its operations may be unfinished; \
            'cellar vos examine' shows the state of a volume."),
    }
    end(session).await
}

/// A silent server would delay the goodbye, and no file server was asked for a promise.
async fn end(session: Session) -> Outcome {
    drop(session);
    Ok(())
}

/// SIGINT and SIGTERM, which end the console.
struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    fn new() -> Outcome<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
        }
    }
}
