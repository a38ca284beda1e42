//! Server end of rxperf.

use cellar_wire::abort::AbortCode;
use cellar_wire::package::Package;
use cellar_wire::rxperf::{CHUNK_MAX, COOKIE, Command, Measure, PACKAGE, VERSION};

use super::data;
use crate::incoming::IncomingCall;
use crate::service::{LocalBoxFuture, Service, ServiceOptions};

/// The rxperf service. It works on any port; the usual one is 7009.
#[derive(Clone, Copy, Debug, Default)]
pub struct Server;

impl Service for Server {
    fn package(&self) -> &'static Package {
        &PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(measure(call))
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions {
            reach_check: true,
            ..ServiceOptions::default()
        }
    }
}

/// Answer to an unknown version, command or size, and to truncated requests, as in OpenAFS.
const REFUSED: AbortCode = AbortCode(-1);

async fn measure(call: &mut IncomingCall) -> Result<(), AbortCode> {
    if call.opcode().await? != VERSION {
        return Err(REFUSED);
    }
    let Measure { measurement } = call.arguments().await.map_err(short)?;
    if measurement.read_chunk > CHUNK_MAX || measurement.write_chunk > CHUNK_MAX {
        return Err(REFUSED);
    }
    match measurement.command {
        Command::Send { bytes } => take(call, u64::from(bytes)).await?,
        Command::Receive { bytes } => give(call, u64::from(bytes)).await?,
        Command::Rpc { send, receive } => {
            take(call, u64::from(send)).await?;
            give(call, u64::from(receive)).await?;
        }
        Command::File { words } => return file(call, words.into_vec()).await,
    }
    call.reply(&COOKIE);
    Ok(())
}

async fn file(call: &mut IncomingCall, words: Vec<u32>) -> Result<(), AbortCode> {
    let mut to_server = true;
    for word in words {
        let len = u64::from(word) * 4;
        match (word, to_server) {
            (0, _) => to_server = !to_server,
            (_, true) => take(call, len).await?,
            (_, false) => give(call, len).await?,
        }
    }
    Ok(())
}

async fn take(call: &mut IncomingCall, len: u64) -> Result<(), AbortCode> {
    call.read_exact(len, drop).await.map_err(short)
}

async fn give(call: &mut IncomingCall, len: u64) -> Result<(), AbortCode> {
    for piece in data(len) {
        call.write(piece).await?;
    }
    Ok(())
}

fn short(code: AbortCode) -> AbortCode {
    if code == AbortCode::RXGEN_SS_UNMARSHAL {
        REFUSED
    } else {
        code
    }
}
