//! `cellar status`: one screen that says how a cell is.
//!
//! `cellar_admin::status` asks the servers and judges the answers. This module prints the result
//! as tables or as JSON, and turns the verdict into an exit status for probes.

use std::net::IpAddr;
use std::time::Duration;

use cellar_admin::HostNames;
use cellar_admin::osd::devices_table;
use cellar_admin::status::{CellStatus, FindingKind, Limits, Verdict};
use cellar_admin::table::{Side, Table, lasting, short_size};

use crate::failure::{FAILED, Failure, Outcome, USAGE};
use crate::output::{one_line, out};
use crate::quantities;
use crate::session::{As, CellOptions};
use crate::suite::print_json;

/// The most findings of one kind on the screen.
const SHOWN_MAX: usize = 10;
/// The longest time for the names of all servers.
const NAMES_TIME: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status:
  0  nothing needs attention
  1  something needs attention: a server is silent, a partition, device or quota is full, a volume
     is off line or damaged, a read-only site is out of date, objects wait for their repair, a
     volume is not where the VLDB names it, or is not in the VLDB
  2  the cell cannot be judged: no database server answers, or the command line is wrong

All servers are asked in parallel. The command reads the lists of volumes as streams, for at most
--listing-time, and says how many it has read. A fact that a server does not report is 'not known'.

Examples:
  cellar status
  cellar status --cell example.org --json | jq .findings
  cellar status --server 192.0.2.1 --cell example.org
  cellar status > /dev/null || echo 'the cell needs attention'")]
pub(crate) struct Options {
    #[command(flatten)]
    cell: CellOptions,
    /// Print JSON; docs/operating/monitoring.md describes its fields.
    #[arg(long)]
    json: bool,
    /// Print addresses, not names.
    #[arg(long)]
    noresolve: bool,
    /// The longest time that a server has for an answer.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = quantities::limit)]
    timeout: Duration,
    /// The longest time for the lists of volumes.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantities::limit)]
    listing_time: Duration,
}

pub(crate) async fn run(options: Options) -> Outcome {
    let session = options.cell.session(None, As::Anybody).await;
    let session = session.map_err(|failure| failure.coded(USAGE))?;
    let limits = Limits {
        answer: options.timeout,
        listing: options.listing_time,
        volumes: true,
    };
    let status = CellStatus::collect(&session.client, &session.cell, limits).await;
    // A silent server would delay the goodbye, and no file server was asked for a promise.
    let outcome = print(&status, &options).await;
    drop(session);
    outcome?;
    match status.verdict {
        Verdict::Well => Ok(()),
        Verdict::Attention => Err(Failure::ended(FAILED)),
        Verdict::Unknown => Err(Failure::ended(USAGE)),
    }
}

async fn print(status: &CellStatus, options: &Options) -> Outcome {
    if options.json {
        return print_json(status);
    }
    let mut hosts = HostNames::new(!options.noresolve);
    let databases = status.database_servers.iter().map(|server| server.address);
    let files = status
        .file_servers
        .iter()
        .filter_map(|server| server.answered);
    let all: Vec<IpAddr> = databases.chain(files).collect();
    // Names that come too late are left out.
    let _late = tokio::time::timeout(NAMES_TIME, hosts.learn(all)).await;
    out!(
        "{}",
        Screen {
            status,
            hosts: &hosts
        }
    );
    Ok(())
}

/// The screen of a status.
struct Screen<'a> {
    status: &'a CellStatus,
    hosts: &'a HostNames,
}

impl std::fmt::Display for Screen<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let status = self.status;
        let verdict = match (status.verdict, status.findings.len()) {
            (Verdict::Well, _) => "all is well".to_owned(),
            (Verdict::Attention, 1) => "one thing needs attention".to_owned(),
            (Verdict::Attention, count) => format!("{count} things need attention"),
            (Verdict::Unknown, _) => "no database server answers".to_owned(),
        };
        writeln!(f, "Cell {}: {verdict}", status.cell)?;
        write!(f, "\n{}", self.databases())?;
        if !status.file_servers.is_empty() {
            write!(f, "\n{}", self.file_servers())?;
        }
        if let Some(devices) = status
            .devices
            .as_deref()
            .filter(|devices| !devices.is_empty())
        {
            write!(f, "\n{}", devices_table(devices))?;
        }
        if status.verdict != Verdict::Unknown {
            writeln!(f, "\n{}", self.volumes())?;
        }
        self.findings(f)?;
        if !status.not_known.is_empty() {
            writeln!(f, "\nNot known:")?;
            for line in &status.not_known {
                writeln!(f, "  {}", one_line(line))?;
            }
        }
        Ok(())
    }
}

impl Screen<'_> {
    fn databases(&self) -> Table<4> {
        let mut table = Table::new([
            ("Database server", Side::Left),
            ("Locations", Side::Left),
            ("Users", Side::Left),
            ("Version", Side::Left),
        ]);
        let answers = |answers| if answers { "up" } else { "SILENT" }.to_owned();
        for server in &self.status.database_servers {
            table.row([
                self.hosts.name(server.address),
                answers(server.location),
                answers(server.protection),
                known(server.version.as_deref(), server.location),
            ]);
        }
        table
    }

    fn file_servers(&self) -> Table<7> {
        let mut table = Table::new([
            ("File server", Side::Left),
            ("State", Side::Left),
            ("Up for", Side::Right),
            ("Partition", Side::Left),
            ("Size", Side::Right),
            ("Free", Side::Right),
            ("Version", Side::Left),
        ]);
        for server in &self.status.file_servers {
            let address = server.answered.or(server.addresses.first().copied());
            let name = address.map_or_else(|| "-".to_owned(), |address| self.hosts.name(address));
            let up_for = server.uptime_seconds.map(lasting);
            let mut head = [
                name,
                if server.reachable { "up" } else { "SILENT" }.to_owned(),
                known(up_for.as_deref(), server.reachable),
                known(server.version.as_deref(), server.reachable),
            ];
            let size = |kib: i64| short_size(u64::try_from(kib).unwrap_or(0) << 10);
            let spaces = server.partitions.iter().flatten();
            let mut rows: Vec<_> = spaces
                .map(|space| {
                    let partition = space.partition.to_string();
                    [partition, size(space.total_kib), size(space.free_kib)]
                })
                .collect();
            if rows.is_empty() {
                rows.push(["-", "-", "-"].map(str::to_owned));
            }
            for [partition, total, free] in rows {
                let [name, state, up_for, version] = std::mem::take(&mut head);
                table.row([name, state, up_for, partition, total, free, version]);
            }
        }
        table
    }

    fn volumes(&self) -> String {
        let volumes = &self.status.volumes;
        let mut text = format!("Volumes: {} examined", volumes.examined);
        let mut add = |count: u64, what: &str| {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        };
        add(volumes.busy, "busy");
        add(volumes.damaged.count, "damaged");
        add(volumes.off_line.count, "off line");
        add(volumes.quota_full.count, "with a full quota");
        add(volumes.outdated_sites.count, "out of date");
        add(volumes.missing.count, "missing");
        add(volumes.unlisted.count, "not in the VLDB");
        add(volumes.copies.count, "copies that the VLDB names elsewhere");
        add(volumes.unreleased.count, "changed since their release");
        add(volumes.locked, "locked");
        text
    }

    /// The findings, at most [`SHOWN_MAX`] of each kind.
    fn findings(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let findings = &self.status.findings;
        if findings.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nNeeds attention:")?;
        for group in findings.chunk_by(|one, other| one.kind == other.kind) {
            for finding in group.iter().take(SHOWN_MAX) {
                writeln!(f, "  {}", one_line(&finding.text))?;
            }
            let all = group
                .first()
                .map_or(0, |first| self.count(first.kind, group.len()));
            let more = all.saturating_sub(SHOWN_MAX as u64);
            if more > 0 {
                writeln!(f, "  and {more} more of this kind; --json lists a hundred")?;
            }
        }
        Ok(())
    }

    /// The number of findings of a kind, also of those that are not listed.
    fn count(&self, kind: FindingKind, listed: usize) -> u64 {
        let volumes = &self.status.volumes;
        match kind {
            FindingKind::VolumeDamaged => volumes.damaged.count,
            FindingKind::VolumeOffLine => volumes.off_line.count,
            FindingKind::QuotaFull => volumes.quota_full.count,
            FindingKind::SiteOutdated => volumes.outdated_sites.count,
            FindingKind::VolumeMissing => volumes.missing.count,
            FindingKind::VolumeUnlisted => volumes.unlisted.count,
            _ => listed as u64,
        }
    }
}

/// A fact of a server, which may be silent or not report it.
fn known(fact: Option<&str>, answers: bool) -> String {
    match (fact, answers) {
        (Some(fact), _) => one_line(fact).into_owned(),
        (None, true) => "not known".to_owned(),
        (None, false) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_that_are_missing_are_named() {
        assert_eq!(known(Some("1.8\n"), true), "1.8\\u000a");
        assert_eq!(known(None, true), "not known");
        assert_eq!(known(None, false), "-");
    }
}
