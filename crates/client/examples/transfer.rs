//! Transfers one file, and prints the cost for the client as a line of JSON: seconds and processor
//! seconds. The bytes come from memory and are not written to a disk, so no disk of the client is
//! measured. `bench/objects` runs this program.
//!
//! `cargo run --profile dist -p cellar-client --example transfer -- ADDRESS CELL WAY WHAT PATH MIB
//! [LAYOUT]`
//!
//! - WAY: `direct`, at the devices, with an error if that is not possible; `plain`, through the
//!   file server.
//! - WHAT: `write` creates or overwrites the file; `read` reads it. `sparse` writes 1 MiB at the
//!   end of each GiB, and reads these and the holes before them.
//! - LAYOUT: the layout of a new file: `STRIPES`, `STRIPESxCOPIES` or `DATA+PARITY`; default:
//!   according to the policies.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Instant;

use bytes::Bytes;
use cellar_client::path::split_last;
use cellar_client::{Cell, CellName, Client, Config, Follow, Node, Ports, Source, Upload};
use cellar_rpc::Runtime;
use cellar_wire::object::{Scheme, Shape};
use cellar_wire::rxafs::AfsStoreStatus;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The size of the chunks that are sent.
const CHUNK: usize = 256 << 10;

type Failure = Box<dyn std::error::Error>;

/// A source of bytes in memory: each byte is the low byte of its position in the file.
struct Memory {
    position: u64,
    end: u64,
    chunk: Bytes,
}

impl Memory {
    fn new(position: u64, length: u64) -> Self {
        let end = position + length;
        let chunk: Vec<u8> = (0..CHUNK).map(|at| at as u8).collect();
        Self {
            position,
            end,
            chunk: chunk.into(),
        }
    }
}

impl Source for Memory {
    async fn take(&mut self, max: u64) -> std::io::Result<Vec<Bytes>> {
        let mut left = max.min(self.end - self.position);
        self.position += left;
        let mut taken = Vec::new();
        while left > 0 {
            let chunk = self.chunk.slice(..CHUNK.min(left as usize));
            left -= chunk.len() as u64;
            taken.push(chunk);
        }
        Ok(taken)
    }
}

struct Transfer {
    client: Client,
    direct: bool,
    shape: Option<Shape>,
    path: String,
}

impl Transfer {
    async fn made(&self) -> Result<Node, Failure> {
        let (parent, name) = split_last(&self.path)?;
        let parent = self.client.find(parent, Follow::ALL).await?;
        let place = self.client.place(&parent, name.as_bytes(), &self.path)?;
        match place.create_file(AfsStoreStatus::default()).await {
            Ok(node) => Ok(node),
            Err(_there_already) => Ok(self.client.find(&self.path, Follow::ALL).await?),
        }
    }

    async fn write(&self, node: &Node, position: u64, length: u64) -> Result<(), Failure> {
        let mut source = Memory::new(position, length);
        if self.direct {
            let upload = Upload {
                range: position..position + length,
                shape: self.shape,
                ..Upload::default()
            };
            self.client
                .upload(node, &self.path, &mut source, &upload, |_| {})
                .await?;
        } else {
            self.client
                .store(node, &self.path, &mut source, None, |_| {})
                .await?;
        }
        Ok(())
    }

    /// Reads a range; returns whether its bytes are all zeros, or all as they were written.
    async fn read(&self, node: &Node, position: u64, length: u64) -> Result<bool, Failure> {
        let (mut got, mut zeros, mut written) = (0, true, true);
        let mut look = |bytes: &Bytes| {
            // Only a few bytes of each piece are compared, so the cost of the comparison is not
            // measured.
            for at in [0, bytes.len() / 2, bytes.len() - 1] {
                zeros &= bytes[at] == 0;
                written &= bytes[at] == (position + got + at as u64) as u8;
            }
            got += bytes.len() as u64;
        };
        if self.direct {
            let range = position..position + length;
            let mut download = self.client.download(node, &self.path, range).await?;
            if !download.is_direct() {
                return Err("the file server does not say where the objects are".into());
            }
            while let Some(bytes) = download.next().await? {
                look(&bytes);
            }
        } else {
            let mut fetch = self.client.fetch(node, position, length).await?;
            while let Some(bytes) = fetch.next().await? {
                look(&bytes);
            }
        }
        if got != length {
            return Err(format!("{got} bytes came of {length}").into());
        }
        if !zeros && !written {
            return Err(format!("wrong bytes at {position}").into());
        }
        Ok(zeros)
    }

    async fn sparse(&self, mib: u64) -> Result<(), Failure> {
        let node = self.made().await?;
        let ends = (1..=mib / 1024).map(|gib| gib * GIB);
        for end in ends.clone() {
            self.write(&node, end - MIB, MIB).await?;
        }
        let node = self.client.find(&self.path, Follow::ALL).await?;
        if node.status.length != mib * MIB {
            return Err(format!("the file has {} bytes", node.status.length).into());
        }
        for end in ends {
            if self.read(&node, end - MIB, MIB).await?
                || !self.read(&node, end - 3 * MIB, 2 * MIB).await?
            {
                return Err(format!("wrong bytes before {end}").into());
            }
        }
        Ok(())
    }
}

async fn run(words: &[String]) -> Result<String, Failure> {
    let [address, cell, way, what, path, mib, rest @ ..] = words else {
        return Err("ADDRESS CELL direct|plain write|read|sparse PATH MIB [LAYOUT]".into());
    };
    let runtime = Runtime::client_only()?;
    let config = Config {
        cells: vec![Cell {
            name: CellName::new(cell)?,
            database_servers: vec![address.parse()?],
            ports: Ports::default(),
        }],
        administrator: None,
        security: HashMap::default(),
        renewal: None,
    };
    let transfer = Transfer {
        client: Client::new(runtime.client_port()?, config)?,
        direct: way == "direct",
        shape: rest.first().map(|text| shape(text)).transpose()?,
        path: path.clone(),
    };
    let mib: u64 = mib.parse()?;
    let node = match what.as_str() {
        "write" => Some(transfer.made().await?),
        "read" => Some(transfer.client.find(path, Follow::ALL).await?),
        _ => None,
    };
    let (begin, used) = (Instant::now(), processor_seconds());
    match (what.as_str(), node) {
        ("write", Some(node)) => transfer.write(&node, 0, mib * MIB).await?,
        ("read", Some(node)) => {
            if transfer.read(&node, 0, mib * MIB).await? {
                return Err("only zeros came".into());
            }
        }
        ("sparse", _) => transfer.sparse(mib).await?,
        _ => return Err(format!("{what}: write, read or sparse").into()),
    }
    let (seconds, used) = (begin.elapsed().as_secs_f64(), processor_seconds() - used);
    transfer.client.goodbye().await;
    runtime.shutdown();
    Ok(format!(r#"{{"seconds":{seconds:.6},"cpu":{used:.2}}}"#))
}

fn shape(text: &str) -> Result<Shape, Failure> {
    let (scheme, stripes, copies) = if let Some((data, parity)) = text.split_once('+') {
        (Scheme::Erasure, data, parity)
    } else {
        let (stripes, copies) = text.split_once('x').unwrap_or((text, "1"));
        (Scheme::Striped, stripes, copies)
    };
    Ok(Shape {
        scheme,
        stripes: stripes.parse()?,
        copies: copies.parse()?,
        unit: 1 << 20,
    })
}

/// The processor time of this process so far. Linux counts in hundredths of a second.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind = stat.rsplit(')').next().unwrap_or("");
    let mut fields = behind.split_whitespace().skip(11);
    let mut ticks = || {
        fields
            .next()
            .and_then(|f| f.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks() + ticks()) / 100.0
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let threads = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = threads
        .map_err(Failure::from)
        .and_then(|threads| threads.block_on(run(&words)));
    match outcome {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("transfer: {failure}");
            ExitCode::FAILURE
        }
    }
}
