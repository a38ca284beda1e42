//! The network: database servers, file servers, clocks, names, and Kerberos.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cellar_admin::status::{CLOCK_SECONDS_MAX, CellStatus, DatabaseServer, FileServer, Limits};
use cellar_client::{Cell, DNS_TIME};
use cellar_kerberos::programs::{KdcAnswer, ask_kdc};
use cellar_kerberos::{DomainRealm, KerberosPrincipal};

use super::{Finding, Server, kdc_clock, keys};
use crate::failure::Outcome;
use crate::session::{As, CellOptions};

const DATABASES: &str = "databases";
const SERVERS: &str = "servers";
const CLOCK: &str = "clock";
const DNS: &str = "dns";
const KDC: &str = "kdc";

/// The difference of clocks from which Kerberos refuses tickets. Source: the default `clockskew` of
/// krb5.conf(5).
const SKEW_ERROR: u64 = 300;
/// The longest time for one reverse lookup.
const REVERSE_TIME: Duration = Duration::from_secs(2);
/// The longest time for the KDC.
const KDC_TIME: Duration = Duration::from_secs(5);

pub(super) async fn check(
    options: &CellOptions,
    timeout: Duration,
    server: Option<&Server>,
) -> Outcome<Vec<Finding>> {
    let session = options.session(None, As::Anybody).await?;
    let limits = Limits {
        answer: timeout,
        listing: timeout * 2,
        volumes: false,
    };
    let cell = &session.cell;
    let status = CellStatus::collect(&session.client, cell, limits);
    let names = names(options, cell);
    let kerberos = async {
        match server {
            Some(server) if keys::is_alone(server) => None,
            _ => Some(kdc(cell).await),
        }
    };
    let (status, names, kerberos) = futures_util::join!(status, names, kerberos);
    let mut findings: Vec<_> = status.database_servers.iter().map(database).collect();
    findings.extend(status.file_servers.iter().map(file_server));
    if status.file_servers.is_empty() && findings.iter().any(|f| f.severity == super::Severity::Ok)
    {
        findings.push(Finding::note(SERVERS, "the VLDB has no file servers"));
    }
    findings.extend(clocks(&status));
    findings.extend(names);
    findings.extend(kerberos.into_iter().flatten());
    drop(session);
    Ok(findings)
}

fn database(server: &DatabaseServer) -> Finding {
    let address = server.address;
    let silent = match (server.location, server.protection) {
        (true, true) => {
            let version = server
                .version
                .as_deref()
                .unwrap_or("a server without a version");
            let text = format!("the database server {address} answers: {version}");
            return Finding::ok(DATABASES, text);
        }
        (true, false) => "the protection server",
        (false, true) => "the volume location server",
        (false, false) => "the database server",
    };
    let text = format!(
        "{silent} {address} does not answer; it is down, or a firewall drops its UDP ports"
    );
    Finding::error(DATABASES, text).mended_by(["cellar", "bos", "status", &address.to_string()])
}

fn file_server(server: &FileServer) -> Finding {
    let address = server.answered.or(server.addresses.first().copied());
    let name = address.map_or_else(
        || "without an address".to_owned(),
        |address| address.to_string(),
    );
    if !server.reachable {
        let text = format!(
            "the file server {name} does not answer; it is down, or a firewall drops its UDP port"
        );
        let finding = Finding::error(SERVERS, text);
        return match address {
            Some(_) => finding.mended_by(["cellar", "bos", "status", &name]),
            None => finding,
        };
    }
    if !server.volume_server {
        let text = format!("the volume server {name} does not answer");
        return Finding::warning(SERVERS, text).mended_by(["cellar", "bos", "status", &name]);
    }
    let own = format!("Cellar {}", env!("CARGO_PKG_VERSION"));
    match server.version.as_deref() {
        Some(version) if version.starts_with("Cellar ") && version != own => {
            let text = format!("the file server {name} has another version: {version}, here {own}");
            Finding::note(SERVERS, text)
        }
        version => {
            let version = version.unwrap_or("a server without a version");
            Finding::ok(
                SERVERS,
                format!("the file server {name} answers: {version}"),
            )
        }
    }
}

/// Compares this machine's clock with those of the file servers.
fn clocks(status: &CellStatus) -> Vec<Finding> {
    let reported = status.file_servers.iter();
    let reported =
        reported.filter_map(|server| Some((server.answered?, server.clock_offset_seconds?)));
    let mut findings = Vec::new();
    let mut compared = 0;
    for (address, offset) in reported {
        compared += 1;
        findings.extend(skewed(&address.to_string(), offset, "tokens are refused"));
    }
    if findings.is_empty() && compared > 0 {
        let text = format!("the clocks of all file servers ({compared}) agree with this machine's");
        findings.push(Finding::ok(CLOCK, text));
    }
    findings
}

/// The finding about a clock that is `offset` seconds ahead of this machine's, unless they agree.
/// `effect` is that of a difference that Kerberos does not accept.
fn skewed(machine: &str, offset: i64, effect: &str) -> Option<Finding> {
    let seconds = offset.unsigned_abs();
    let direction = if offset > 0 { "ahead of" } else { "behind" };
    let text = format!("the clock of {machine} is {seconds} s {direction} this machine's");
    let finding = match seconds {
        SKEW_ERROR.. => Finding::error(CLOCK, format!("{text}: {effect}")),
        seconds if seconds > CLOCK_SECONDS_MAX => Finding::warning(CLOCK, text),
        _ => return None,
    };
    Some(finding.mended_by(["timedatectl", "set-ntp", "true"]))
}

/// The records of the cell in the DNS, and the names of its database servers.
async fn names(options: &CellOptions, cell: &Cell) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(dns) = options.dns() else {
        return findings;
    };
    let found = tokio::time::timeout(DNS_TIME, dns.cell(&cell.name)).await;
    let record = format!("_afs3-vlserver._udp.{}", cell.name);
    findings.push(match found.ok().flatten() {
        None => Finding::note(
            DNS,
            format!("the DNS has no SRV records {record}: clients need a CellServDB"),
        ),
        Some(found) => {
            let mut listed = found.database_servers;
            let mut own = cell.database_servers.clone();
            listed.sort_unstable();
            own.sort_unstable();
            match listed == own {
                true => Finding::ok(DNS, format!("the SRV records {record} are right")),
                false => Finding::warning(
                    DNS,
                    format!(
                        "the SRV records {record} name {}, and this machine's list {}",
                        list(&listed),
                        list(&own)
                    ),
                ),
            }
        }
    });
    for address in &cell.database_servers {
        let address = *address;
        if address.is_loopback() {
            continue;
        }
        let lookup = tokio::task::spawn_blocking(move || cellar_admin::reverse_name(address));
        let name = tokio::time::timeout(REVERSE_TIME, lookup).await;
        findings.push(match name {
            Ok(Ok(Some(name))) => Finding::ok(DNS, format!("{address} is {name}")),
            Ok(_) => Finding::note(DNS, format!("{address} has no name in the DNS")),
            Err(_) => Finding::warning(
                DNS,
                format!("the reverse lookup of {address} takes longer than 2 s: commands without -noresolve wait for it"),
            ),
        });
    }
    findings
}

fn list(addresses: &[IpAddr]) -> String {
    let all: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    all.join(", ")
}

/// Asks the KDC of the cell's realm for the cell's principal, and compares its clock.
async fn kdc(cell: &Cell) -> Vec<Finding> {
    let domains = DomainRealm::load();
    let realm = domains.realm_of(cell.name.as_str()).map(str::to_owned);
    let realm = realm.unwrap_or_else(|| cell.name.as_str().to_ascii_uppercase());
    let service = KerberosPrincipal::afs_service(Some(cell.name.as_str()), &realm);
    let add = ["kadmin", "addprinc", "-randkey", &service.to_string()].map(str::to_owned);
    let (answer, address) = match ask_kdc(&service, KDC_TIME).await {
        Ok((answer, address)) => (Ok(answer), address),
        Err(cause) => (Err(cause), None),
    };
    let principal = match answer {
        Ok(KdcAnswer::Known) => {
            Finding::ok(KDC, format!("a KDC of {realm} answers and has {service}"))
        }
        Ok(KdcAnswer::Unknown) => {
            let text = format!("a KDC of {realm} answers and does not have {service}");
            Finding::warning(KDC, text).mended_by(add)
        }
        Ok(KdcAnswer::Silent(reason)) => {
            let text = format!("no KDC of {realm} answers ({reason}): users cannot log in");
            Finding::warning(KDC, text).mended_by([
                "env",
                "KRB5_TRACE=/dev/stderr",
                "kinit",
                &format!("user@{realm}"),
            ])
        }
        Err(cause) => Finding::note(KDC, format!("the KDC was not asked: {cause}")),
    };
    let mut findings = vec![principal];
    if let Some(address) = address {
        let offset = kdc_clock::offset(address, &realm).await;
        findings.push(kdc_clock_finding(address, offset));
    }
    findings
}

/// The finding about the clock of a KDC.
fn kdc_clock_finding(address: SocketAddr, offset: Option<i64>) -> Finding {
    let machine = format!("the KDC {address}");
    let Some(offset) = offset else {
        let text =
            format!("{machine} does not tell its time over UDP, so clocks were not compared");
        return Finding::note(CLOCK, text);
    };
    skewed(&machine, offset, "users cannot log in").unwrap_or_else(|| {
        Finding::ok(
            CLOCK,
            format!("the clock of {machine} agrees with this machine's"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    #[test]
    fn a_wrong_clock_of_the_kdc_is_a_finding_with_its_command() {
        let address = SocketAddr::from(([127, 0, 0, 1], 88));
        for (offset, severity, part) in [
            (Some(3), Severity::Ok, "agrees"),
            (Some(-60), Severity::Warning, "60 s behind"),
            (
                Some(400),
                Severity::Error,
                "400 s ahead of this machine's: users cannot",
            ),
            (None, Severity::Note, "not compared"),
        ] {
            let finding = kdc_clock_finding(address, offset);
            assert_eq!(finding.severity, severity, "{finding:?}");
            assert!(finding.text.contains(part), "{finding:?}");
            let has_remedy = severity >= Severity::Warning;
            assert_eq!(finding.remedy.is_some(), has_remedy, "{finding:?}");
        }
    }
}
