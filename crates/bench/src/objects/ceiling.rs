//! Limits of the machine itself: UDP over the loopback device, a disk, an erasure code.

use std::io;
use std::net::UdpSocket;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_objects::erasure::Code;
use cellar_wire::object::Shape;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::stream::bytes_at;
use super::{Figures, ObjectsError};
use crate::cpu::Reading;

/// Datagrams of the size that Cellar's packets have on a path that carries it, and as many as one
/// send accepts.
const SEGMENT: usize = 16_376;
const RUN: usize = 3 * SEGMENT;
/// Most bytes in flight.
const WINDOW: u64 = 4 << 20;
/// Time after which missing data counts as lost.
const PATIENCE: Duration = Duration::from_millis(20);
/// Bytes of a shard that are encoded at a time, as in a writer.
const SLICE: u64 = 32 << 10;
/// Size of the writes, bytes.
const PIECE: u64 = 1 << 20;

/// Sends `bytes` from one thread to another, in segmented sends and assembled receives. A waiting
/// thread sleeps. Lost data is sent again.
pub(super) fn udp(bytes: u64) -> Result<Figures, ObjectsError> {
    let any = "127.0.0.1:0";
    let (from, to) = (UdpSocket::bind(any)?, UdpSocket::bind(any)?);
    for socket in [&from, &to] {
        let socket = socket2::SockRef::from(socket);
        // The size that the system permits is enough for the window.
        let _less = socket.set_recv_buffer_size(WINDOW as usize * 4);
        let _less = socket.set_send_buffer_size(WINDOW as usize * 4);
    }
    let sending = UdpSocketState::new(UdpSockRef::from(&from))?;
    let receiving = UdpSocketState::new(UdpSockRef::from(&to))?;
    let destination = to.local_addr()?;
    let before = Reading::take(&[std::process::id()])?;
    let begun = Instant::now();
    let arrived = Arc::new(AtomicU64::new(0));
    let sender = std::thread::current();
    let receiver = {
        let arrived = arrived.clone();
        std::thread::spawn(move || -> io::Result<()> {
            let mut memory = vec![vec![0u8; 65_535]; BATCH_SIZE];
            let mut meta = vec![RecvMeta::default(); BATCH_SIZE];
            let mut all = 0;
            while all < bytes {
                let mut slices: Vec<_> = memory
                    .iter_mut()
                    .map(|memory| io::IoSliceMut::new(memory))
                    .collect();
                match receiving.recv(UdpSockRef::from(&to), &mut slices, &mut meta) {
                    Ok(count) => {
                        let some: usize = meta[..count].iter().map(|one| one.len).sum();
                        all += some as u64;
                        arrived.store(all, Ordering::Release);
                        sender.unpark();
                    }
                    Err(cause) if is_pause(&cause) => wait_for(&to, PollFlags::IN)?,
                    Err(cause) => return Err(cause),
                }
            }
            Ok(())
        })
    };
    let contents = vec![7; RUN];
    let mut sent = 0;
    loop {
        let there = arrived.load(Ordering::Acquire);
        if there >= bytes || receiver.is_finished() {
            break;
        }
        if sent >= there + WINDOW {
            std::thread::park_timeout(PATIENCE);
            if arrived.load(Ordering::Acquire) == there {
                sent = there;
            }
            continue;
        }
        let transmit = Transmit {
            destination,
            ecn: None,
            contents: &contents,
            segment_size: Some(SEGMENT),
            src_ip: None,
        };
        match sending.try_send(UdpSockRef::from(&from), &transmit) {
            Ok(()) => sent += RUN as u64,
            Err(cause) if is_pause(&cause) => wait_for(&from, PollFlags::OUT)?,
            Err(cause) => return Err(cause.into()),
        }
    }
    receiver.join().map_err(|_| ObjectsError::Ended)??;
    figures(bytes, begun, &before)
}

fn wait_for(socket: &UdpSocket, what: PollFlags) -> io::Result<()> {
    let patience = Timespec {
        tv_sec: 0,
        tv_nsec: PATIENCE.as_nanos() as i64,
    };
    match poll(&mut [PollFd::new(socket, what)], Some(&patience)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(cause) => Err(cause.into()),
    }
}

fn is_pause(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Writes `bytes` into a new file in `directory`, and syncs its data.
pub(super) fn disk(bytes: u64, directory: &Path, payload: &Bytes) -> Result<Figures, ObjectsError> {
    let path = directory.join(format!("bench-disk-{}", std::process::id()));
    let file = std::fs::File::create(&path)?;
    // The file is private and disappears with this process.
    std::fs::remove_file(&path)?;
    let before = Reading::take(&[std::process::id()])?;
    let begun = Instant::now();
    let mut at = 0;
    while at < bytes {
        let piece = bytes_at(payload, at, PIECE.min(bytes - at));
        file.write_all_at(&piece, at)?;
        at += piece.len() as u64;
    }
    file.sync_data()?;
    figures(bytes, begun, &before)
}

/// Computes the parity of `bytes` of data, row by row, or reconstructs two data shards of each row.
pub(super) fn erasure(
    bytes: u64,
    shape: &Shape,
    payload: &Bytes,
    decode: bool,
) -> Result<Figures, ObjectsError> {
    let none =
        || ObjectsError::Option("--stripes and --parity must select an erasure code".to_owned());
    let mut code = Code::of(shape).ok_or_else(none)?;
    let (data, parity) = (shape.stripes as usize, shape.copies as usize);
    let misfit = |_| ObjectsError::Option("shards of different lengths".to_owned());
    let row = |number: u64| -> Vec<Bytes> {
        let at = |shard: usize| (number * data as u64 + shard as u64) * SLICE;
        (0..data)
            .map(|shard| bytes_at(payload, at(shard), SLICE))
            .collect()
    };
    let mut encoded = vec![Vec::new(); parity];
    code.encode(&row(0), &mut encoded).map_err(misfit)?;
    let encoded: Vec<Bytes> = encoded.into_iter().map(Bytes::from).collect();
    let missing: Vec<usize> = (0..data.min(parity).min(2)).collect();
    let rows = bytes / (SLICE * data as u64);
    let mut out = vec![Vec::with_capacity(SLICE as usize); parity];
    let before = Reading::take(&[std::process::id()])?;
    let begun = Instant::now();
    for number in 0..rows {
        let row = row(number);
        if decode {
            // The result is not checked; the tests do that.
            let mut have: Vec<_> = row.into_iter().enumerate().skip(missing.len()).collect();
            let spare = encoded.iter().enumerate().take(missing.len());
            have.extend(spare.map(|(number, shard)| (data + number, shard.clone())));
            std::hint::black_box(code.reconstruct(&have, &missing).map_err(misfit)?);
        } else {
            out.iter_mut().for_each(Vec::clear);
            code.encode(&row, &mut out).map_err(misfit)?;
            std::hint::black_box(&out);
        }
    }
    figures(rows * SLICE * data as u64, begun, &before)
}

fn figures(bytes: u64, begun: Instant, before: &Reading) -> Result<Figures, ObjectsError> {
    Ok(Figures {
        bytes,
        elapsed: begun.elapsed(),
        cpu: Reading::take(&[std::process::id()])?.since(before),
        silence: Duration::ZERO,
    })
}
