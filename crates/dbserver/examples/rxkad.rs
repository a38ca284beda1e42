//! Tests rxkad between Cellar and other implementations, with the keys of a server's directory.
//!
//! `rxkad serve DIRECTORY CELL ADDRESS` answers calls to the protection service (e.g. on port 7002)
//! with "permission denied", and prints the caller of each. `rxkad call DIRECTORY CELL ADDRESS
//! [clear|auth|crypt]` creates and removes a user on a protection server, as a holder of the key.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use cellar_auth::{Authority, Level};
use cellar_rpc::{IncomingCall, LocalBoxFuture, PortConfig, Runtime, RuntimeConfig, Service};
use cellar_wire::package::Package;
use cellar_wire::pr;
use cellar_wire::{AbortCode, ViceId};

const USAGE: &str = "rxkad serve|call DIRECTORY CELL ADDRESS [clear|auth|crypt]";

struct WhoCalls(Authority);

impl Service for WhoCalls {
    fn package(&self) -> &'static Package {
        &pr::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            let opcode = call.opcode().await?;
            let identity = self.0.identify(call.caller());
            println!("{}: opcode {opcode}: {identity:?}", call.peer().address);
            Err(AbortCode::PRPERM)
        })
    }
}

async fn change_and_undo(
    runtime: &Runtime,
    authority: &Authority,
    address: SocketAddr,
    level: Level,
) -> Result<(), Box<dyn Error>> {
    let security = authority.localauth(level)?;
    let connection = runtime.connect(address, pr::PACKAGE.service_id, security)?;
    let name = pr::PrNameArgument::try_from(&b"cellar.probe"[..])?;
    let made = connection
        .call(&pr::NewEntry {
            name,
            flag: 0,
            owner: ViceId(0),
        })
        .await?;
    println!("made user {:?} at level {level:?}", made.id);
    connection.call(&pr::Delete { id: made.id }).await?;
    println!("removed it");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [what, directory, cell, address, rest @ ..] = &words[..] else {
        return Err(USAGE.into());
    };
    let authority = Authority::open(Path::new(directory), cell)?;
    let address: SocketAddr = address.parse()?;
    println!("keys: {:?}", authority.keys().list());
    match *what {
        "serve" => {
            let runtime = Runtime::start(RuntimeConfig::default())?;
            let config = PortConfig::new(address)
                .service(Arc::new(WhoCalls(authority.clone())))
                .security(2, authority.server_security());
            let _port = runtime.open(config)?;
            loop {
                tokio::time::sleep(std::time::Duration::from_secs(10)).await;
                println!("{:?}", authority.figures());
            }
        }
        "call" => {
            let level = match rest {
                [] | ["crypt"] => Level::Crypt,
                ["auth"] => Level::Auth,
                ["clear"] => Level::Clear,
                _ => return Err(USAGE.into()),
            };
            let runtime = Runtime::client_only()?;
            change_and_undo(&runtime, &authority, address, level).await
        }
        _ => Err(USAGE.into()),
    }
}
