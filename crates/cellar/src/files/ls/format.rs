//! The forms of a listing: names, long lines, JSON.

use std::collections::BTreeMap;

use cellar_client::CellName;
use cellar_wire::ids::ViceId;
use cellar_wire::rxafs::{AfsFetchStatus, FileType};
use serde_json::{Value, json};

use super::{Listing, Row};
use crate::quantities::human;

/// Names of owners, by cell and id. The protection servers of some cells may not answer.
pub(super) type Owners = BTreeMap<(CellName, ViceId), String>;

pub(super) fn short(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("{}\n", row.name)).collect()
}

pub(super) fn long(rows: &[Row], owners: &Owners, is_human: bool) -> String {
    let owner = |row: &Row| match owner_name(row, owners) {
        Some(name) => name.clone(),
        None => row.status.owner.0.to_string(),
    };
    let length = |row: &Row| match is_human {
        true => human(row.status.length),
        false => row.status.length.to_string(),
    };
    let widest = |text: &dyn Fn(&Row) -> String| {
        rows.iter()
            .map(|row| text(row).chars().count())
            .max()
            .unwrap_or(0)
    };
    let links = widest(&|row| row.status.link_count.to_string());
    let owner_width = widest(&owner);
    let size = widest(&length);
    let line = |row: &Row| {
        if row.status.file_type == FileType::Invalid {
            return format!("?????????? {} ({})\n", row.name, row.status.error_code);
        }
        let arrow = match (&row.target, is_mount(row)) {
            (Some(target), true) => format!(" [{target}]"),
            (Some(target), false) => format!(" -> {target}"),
            (None, _) => String::new(),
        };
        format!(
            "{} {:>links$} {:<owner_width$} {:>size$} {} {}{arrow}\n",
            mode(&row.status),
            row.status.link_count,
            owner(row),
            length(row),
            date(row),
            row.name
        )
    };
    rows.iter().map(line).collect()
}

fn owner_name<'o>(row: &Row, owners: &'o Owners) -> Option<&'o String> {
    owners.get(&(row.cell.clone()?, row.status.owner))
}

fn is_mount(row: &Row) -> bool {
    row.status.file_type == FileType::Symlink
        && cellar_client::mount_point::is_mount_point(row.status.unix_mode)
}

/// The ten letters of a mode. A mount point has the type letter `m`.
pub(in crate::files) fn mode(status: &AfsFetchStatus) -> String {
    let kind = match status.file_type {
        FileType::Directory => 'd',
        FileType::File => '-',
        FileType::Symlink if cellar_client::mount_point::is_mount_point(status.unix_mode) => 'm',
        FileType::Symlink => 'l',
        FileType::Invalid => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = status.unix_mode >> shift & 7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, status.unix_mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `Nov 21 10:45` for dates of this year, `Nov 21  2019` for others.
fn date(row: &Row) -> String {
    let date = cellar_admin::date::ctime(row.status.client_mod_time);
    let this_year = cellar_admin::date::ctime(crate::files::now());
    let (day, time, year) = (date.get(4..10), date.get(11..16), date.get(20..24));
    match (day, time, year) {
        (Some(day), Some(time), Some(year)) if this_year.ends_with(year) => format!("{day} {time}"),
        (Some(day), Some(_), Some(year)) => format!("{day}  {year}"),
        _ => date,
    }
}

pub(super) fn as_json(listings: &[Listing], owners: &Owners) -> Value {
    let row = |row: &Row| {
        json!({
            "name": row.name,
            "fid": row.fid,
            "type": crate::files::stat::kind(&row.status),
            "mode": format!("{:04o}", row.status.unix_mode),
            "links": row.status.link_count,
            "owner": row.status.owner.0,
            "owner_name": owner_name(row, owners),
            "length": row.status.length,
            "modified": row.status.client_mod_time.0,
            "data_version": row.status.data_version,
            "target": row.target,
        })
    };
    let listing = |listing: &Listing| {
        let entries: Vec<Value> = listing.rows.iter().map(row).collect();
        json!({ "path": listing.path, "entries": entries })
    };
    listings.iter().map(listing).collect()
}
