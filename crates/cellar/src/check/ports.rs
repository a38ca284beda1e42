//! The UDP ports of a server: free, or held by the running server.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use procfs::process::{FDTarget, all_processes};

use super::{Finding, Server};

const CHECK: &str = "ports";

/// A process that holds a port.
struct Holder {
    pid: i32,
    name: String,
}

pub(super) fn check(server: &Server) -> Vec<Finding> {
    let identity = &server.identity;
    let ports = identity.cell.ports;
    let mut all = vec![(ports.overseer, "overseer")];
    if identity.part.has_fileserver() {
        all.push((ports.fileserver, "files"));
        all.push((ports.volume, "volumes"));
    }
    if identity.part.has_databases() {
        all.push((ports.protection, "users"));
        all.push((ports.location, "locations"));
    }
    all.sort_unstable();
    let own = running_server(server);
    let (mut free, mut held, mut findings) = (Vec::new(), Vec::new(), Vec::new());
    for (port, role) in all {
        let address = SocketAddr::new(identity.bind, port);
        let cause = match UdpSocket::bind(address) {
            Ok(_socket) => {
                free.push(port.to_string());
                continue;
            }
            Err(cause) => cause,
        };
        let holder = holder_of(port);
        let finding = match (cause.kind(), holder) {
            (ErrorKind::AddrInUse, Some(holder)) if Some(holder.pid) == own => {
                held.push(port.to_string());
                continue;
            }
            // Only root sees the sockets of other accounts.
            (ErrorKind::AddrInUse, None) if own.is_some() => {
                held.push(port.to_string());
                continue;
            }
            (ErrorKind::AddrInUse, Some(Holder { pid, name })) => {
                let text = format!("UDP port {port} ({role}) is held by {name}, process {pid}");
                Finding::error(CHECK, text).mended_by(["kill", &pid.to_string()])
            }
            (ErrorKind::AddrInUse, None) => {
                let text = format!("UDP port {port} ({role}) is held by another program");
                Finding::error(CHECK, text).mended_by(["ss", "-ulpn", &format!("sport = :{port}")])
            }
            (ErrorKind::AddrNotAvailable, _) => {
                let text = format!("this machine does not have the address {}", identity.bind);
                let words = ["cellar", "up", "--bind", "0.0.0.0", "--dir"].map(OsStr::new);
                let directory = server.directory.path().as_os_str();
                let words = words.into_iter().chain([directory]);
                findings.push(Finding::error(CHECK, text).mended_by(words));
                break;
            }
            _ => Finding::error(CHECK, format!("UDP port {port} ({role}): {cause}")),
        };
        findings.push(finding);
    }
    match own {
        // A server that runs has all its ports.
        Some(pid) if !held.is_empty() => {
            let text = format!(
                "the running server, process {pid}, holds UDP ports {}",
                held.join(", ")
            );
            findings.push(Finding::ok(CHECK, text));
        }
        _ if !free.is_empty() => {
            let text = format!("UDP ports {} are free", free.join(", "));
            findings.push(Finding::ok(CHECK, text));
        }
        _ => {}
    }
    findings
}

/// The process of the cell's running server. The lock file names it while the lock is held.
fn running_server(server: &Server) -> Option<i32> {
    let path = server.directory.lock_file();
    let pid: i32 = std::fs::read_to_string(&path).ok()?.trim().parse().ok()?;
    // An attempt to take the lock could hinder a server that starts, so its process is looked for.
    let is_open = || {
        let process = procfs::process::Process::new(pid).ok()?;
        let path = path.canonicalize().ok()?;
        let mut open = process.fd().ok()?.flatten();
        open.find(|fd| matches!(&fd.target, FDTarget::Path(target) if *target == path))
    };
    is_open().map(|_| pid)
}

fn holder_of(port: u16) -> Option<Holder> {
    let four = procfs::net::udp().unwrap_or_default();
    let six = procfs::net::udp6().unwrap_or_default();
    let entries = four.into_iter().chain(six);
    let inodes: Vec<u64> = entries
        .filter(|entry| entry.local_address.port() == port)
        .map(|entry| entry.inode)
        .collect();
    if inodes.is_empty() {
        return None;
    }
    for process in all_processes().ok()?.flatten() {
        let Ok(mut open) = process.fd() else { continue };
        let is_socket =
            |target: &FDTarget| matches!(target, FDTarget::Socket(inode) if inodes.contains(inode));
        if open.any(|fd| fd.is_ok_and(|fd| is_socket(&fd.target))) {
            let name = process
                .stat()
                .map_or_else(|_| "a program".to_owned(), |stat| stat.comm);
            return Some(Holder {
                pid: process.pid,
                name,
            });
        }
    }
    None
}
