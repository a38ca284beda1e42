//! `cellar db status`: where the databases are, and the state of their cluster.

use std::fmt::Write as _;

use cellar_etcd::{Certificate, Place, Status, Validity};
use serde_json::json;

use super::failure;
use crate::cell_directory::CellDirectory;
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::suite::print_json;
use crate::up::engine::EtcdPlace;

/// Runs the command. The server may run.
pub(super) fn run(directory: &CellDirectory, as_json: bool) -> Outcome {
    let Some(place) = EtcdPlace::load(directory)? else {
        let file = directory.database_file();
        if as_json {
            return print_json(&json!({ "engine": "file", "file": file }));
        }
        outln!("engine: file, {}", file.display());
        return Ok(());
    };
    let db = place.open().map_err(|cause| failure(&cause))?;
    let status = db.look().map_err(|cause| failure(&cause))?;
    if as_json {
        let tables = db.tables().into_iter();
        let tables: serde_json::Map<_, _> = tables
            .map(|(table, rows)| (table.name().to_owned(), rows.into()))
            .collect();
        let mut shown = shown(&status);
        shown["id"] = db.id().to_string().into();
        shown["tables"] = tables.into();
        print_json(&shown)?;
    } else {
        let rows: usize = db.tables().iter().map(|(_, rows)| rows).sum();
        outln!("{}{rows} rows", text(&status));
    }
    let is_well = status.alarms.is_empty()
        && status.places.iter().all(|place| place.fault.is_none())
        && status
            .certificates
            .iter()
            .all(|one| one.validity == Validity::Valid);
    match is_well {
        true => Ok(()),
        false => Err(Failure::new("the etcd cluster needs attention")),
    }
}

fn text(status: &Status) -> String {
    let mut text = format!(
        "engine: etcd, {}\nafter transaction {}, read {} ago\n",
        status.prefix,
        status.revision,
        humantime::format_duration(milliseconds(status.staleness)),
    );
    for place in &status.places {
        let Place {
            address,
            version,
            bytes,
            fault,
            behind,
            answered_in,
        } = place;
        let _ = match fault {
            Some(reason) => writeln!(text, "endpoint {address}: {reason}"),
            None => writeln!(
                text,
                "endpoint {address}: etcd {version}, {bytes} bytes, {behind} entries behind, \
                 answered in {}",
                humantime::format_duration(milliseconds(*answered_in))
            ),
        };
    }
    for member in &status.members {
        let role = if member.is_leader { ", leader" } else { "" };
        let _ = writeln!(
            text,
            "member {}: {}{role}",
            member.name,
            member.addresses.join(" ")
        );
    }
    for (member, alarm) in &status.alarms {
        let _ = writeln!(text, "alarm {alarm} of member {member}");
    }
    for certificate in &status.certificates {
        let (file, end) = (certificate.file.display(), end_of(certificate));
        let _ = match certificate.validity {
            Validity::Valid => writeln!(text, "certificate {file}: valid until {end}"),
            Validity::ExpiresSoon => writeln!(text, "certificate {file}: expires soon, {end}"),
            Validity::Expired => writeln!(text, "certificate {file}: expired since {end}"),
        };
    }
    text
}

fn end_of(certificate: &Certificate) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(certificate.not_after)
}

/// Whole milliseconds.
fn milliseconds(time: std::time::Duration) -> std::time::Duration {
    std::time::Duration::from_millis(time.as_millis().try_into().unwrap_or(u64::MAX))
}

fn shown(status: &Status) -> serde_json::Value {
    let places = status.places.iter().map(|place| {
        json!({
            "address": place.address, "version": place.version, "bytes": place.bytes,
            "fault": place.fault, "behind": place.behind,
            "answered_in_seconds": place.answered_in.as_secs_f64(),
        })
    });
    let members = status.members.iter().map(|member| {
        json!({ "name": member.name, "addresses": member.addresses, "leader": member.is_leader })
    });
    let alarms = status.alarms.iter();
    let alarms = alarms.map(|(member, alarm)| json!({ "member": member, "alarm": alarm }));
    let certificates = status.certificates.iter().map(|certificate| {
        json!({
            "file": certificate.file, "not_after": end_of(certificate).to_string(),
            "expired": certificate.validity == Validity::Expired,
        })
    });
    json!({
        "engine": "etcd",
        "prefix": status.prefix,
        "transaction": status.revision,
        "staleness_seconds": status.staleness.as_secs_f64(),
        "reachable": status.is_reachable,
        "endpoints": places.collect::<Vec<_>>(),
        "members": members.collect::<Vec<_>>(),
        "leader": status.leader().map(|member| &member.name),
        "alarms": alarms.collect::<Vec<_>>(),
        "certificates": certificates.collect::<Vec<_>>(),
    })
}
