//! The socket at which `cellar console login` asks a running console for a token.
//!
//! The socket has mode 0600, so root and the account of the console may ask. A request is one line,
//! `login ROLE`. The answer is one line: the address of the page that takes the token.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::auth::{Gate, Role};

/// The longest line of a request or answer in bytes.
const LINE_BYTES_MAX: u64 = 1024;
/// The longest time of a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// The socket. Dropping it removes the file.
#[derive(Debug)]
pub struct LoginSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for LoginSocket {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

impl LoginSocket {
    /// Listens at `path`. Its directory is made if it is missing.
    ///
    /// # Errors
    /// Another console listens there, or the system refuses.
    pub fn listen(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            cellar_private::directory(directory)?;
        }
        let listener = cellar_private::socket(path)?;
        Ok(Self {
            listener: UnixListener::from_std(listener)?,
            path: path.to_owned(),
        })
    }

    /// Answers requests with tokens of `gate`, for the service at `url`.
    pub async fn serve(&self, gate: Arc<Gate>, url: &str) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let answered = tokio::time::timeout(PATIENCE, answer(stream, &gate, url));
                    if let Ok(Err(cause)) = answered.await {
                        tracing::debug!(%cause, "a request for a token failed");
                    }
                }
                Err(cause) => {
                    tracing::debug!(%cause, "cannot accept a request for a token");
                    tokio::time::sleep(PATIENCE).await;
                }
            }
        }
    }
}

async fn answer(stream: UnixStream, gate: &Gate, url: &str) -> io::Result<()> {
    let mut line = String::new();
    let account = stream.peer_cred()?.uid();
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from.take(LINE_BYTES_MAX));
    from.read_line(&mut line).await?;
    let role = line.trim().strip_prefix("login ").and_then(Role::of_word);
    let Some(role) = role else {
        return to.write_all(b"\n").await;
    };
    tracing::info!(role = role.word(), account, "a token for a login is made");
    let token = gate.issue(role);
    to.write_all(format!("{url}/login?token={token}\n").as_bytes())
        .await
}

/// Asks the console that listens at `path` for a token. Returns the address that takes it.
///
/// # Errors
/// No console listens there, or it does not answer.
pub async fn request_login(path: &Path, role: Role) -> io::Result<String> {
    let ask = async {
        let stream = UnixStream::connect(path).await?;
        let (from, mut to) = stream.into_split();
        to.write_all(format!("login {}\n", role.word()).as_bytes())
            .await?;
        let mut line = String::new();
        BufReader::new(from.take(LINE_BYTES_MAX))
            .read_line(&mut line)
            .await?;
        match line.trim() {
            "" => Err(io::Error::new(
                ErrorKind::InvalidData,
                "the console there is of another version; restart it",
            )),
            address => Ok(address.to_owned()),
        }
    };
    let answered = tokio::time::timeout(PATIENCE, ask).await;
    answered.map_err(|_| io::Error::new(ErrorKind::TimedOut, "the console does not answer"))?
}
