//! The overview: what needs attention, and the cell in figures.

use std::sync::Arc;

use axum::extract::State;
use cellar_admin::date::ctime;
use cellar_admin::status::{CellStatus, Finding, FindingKind, Verdict};
use cellar_admin::table::short_size;
use maud::{Markup, html};

use crate::auth::Viewer;
use crate::cell::Site;
use crate::html::{Page, Section, address, bytes_of_kib, count, counted};
use crate::plot;

/// The most findings of one kind on the page.
const SHOWN_MAX: usize = 10;

pub(crate) async fn show(State(site): State<Arc<Site>>, Viewer(session): Viewer) -> Markup {
    let overview = site.overview().await;
    let status = &overview.status;
    Page::new(&site, &session, Section::Overview, "Overview").with(html! {
        (health(status))
        (findings(status))
        (figures(status))
        @if !status.not_known.is_empty() {
            section {
                h2 { "Not known" }
                ul { @for line in &status.not_known { li { (line) } } }
            }
        }
        p.hint { "State at " (ctime(overview.at)) ". " a href="/" { "Look again" } }
    })
}

/// The judgement in one line.
fn health(status: &CellStatus) -> Markup {
    let (class, text) = match (status.verdict, status.findings.len()) {
        (Verdict::Well, _) => ("health well", "All is well.".to_owned()),
        (Verdict::Attention, 1) => ("health attention", "One thing needs attention.".to_owned()),
        (Verdict::Attention, count) => (
            "health attention",
            format!("{count} things need attention."),
        ),
        (Verdict::Unknown, _) => (
            "health unknown",
            "No database server answers, so the cell cannot be judged.".to_owned(),
        ),
    };
    html! { p class=(class) role="status" { strong { (text) } } }
}

fn findings(status: &CellStatus) -> Markup {
    if status.findings.is_empty() {
        return html! {};
    }
    let groups = status
        .findings
        .chunk_by(|one, other| one.kind == other.kind);
    html! {
        section {
            h2 { "Needs attention" }
            ul.findings {
                @for group in groups {
                    @for finding in group.iter().take(SHOWN_MAX) {
                        li {
                            span.tag { (kind(finding.kind)) } " "
                            a href=(link(finding)) { (finding.text) }
                        }
                    }
                    @if group.len() > SHOWN_MAX {
                        li { "and " (count((group.len() - SHOWN_MAX) as u64)) " more of this kind" }
                    }
                }
            }
        }
    }
}

fn kind(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::DatabaseServerDown
        | FindingKind::FileServerDown
        | FindingKind::VolumeServerDown => "silent",
        FindingKind::Clock => "clock",
        FindingKind::PartitionFull | FindingKind::DeviceFull | FindingKind::QuotaFull => "full",
        FindingKind::DeviceDown => "down",
        FindingKind::DeviceReadonly => "read-only",
        FindingKind::Degraded => "repair",
        FindingKind::ScrubDamage | FindingKind::VolumeDamaged => "damage",
        FindingKind::VolumeOffLine => "off line",
        FindingKind::SiteOutdated => "outdated",
        FindingKind::VolumeMissing => "missing",
        FindingKind::VolumeUnlisted => "not in the VLDB",
    }
}

/// The page that has more about a finding.
fn link(finding: &Finding) -> String {
    match finding.kind {
        FindingKind::VolumeDamaged
        | FindingKind::VolumeOffLine
        | FindingKind::QuotaFull
        | FindingKind::SiteOutdated
        | FindingKind::VolumeMissing
            if !finding.subject.is_empty() =>
        {
            let name = finding.subject.as_str();
            let suffixes = [".readonly", ".backup"];
            let family = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            address("/volume", &[("id", family.unwrap_or(name))])
        }
        _ => "/servers".to_owned(),
    }
}

fn figures(status: &CellStatus) -> Markup {
    let answering = |yes: usize, all: usize| format!("{yes} of {all} answer");
    let databases = &status.database_servers;
    let database_up = databases
        .iter()
        .filter(|server| server.location && server.protection);
    let files = &status.file_servers;
    let file_up = files
        .iter()
        .filter(|server| server.reachable && server.volume_server);
    let spaces: Vec<_> = files
        .iter()
        .flat_map(|server| server.partitions.iter().flatten())
        .collect();
    let total: u64 = spaces.iter().map(|s| bytes_of_kib(s.total_kib)).sum();
    let free: u64 = spaces.iter().map(|s| bytes_of_kib(s.free_kib)).sum();
    let devices = status.devices.as_deref().unwrap_or_default();
    let disks = || devices.iter().filter(|device| !device.archival);
    let device_total: u64 = disks().map(|device| device.total).sum();
    let device_free: u64 = disks().map(|device| device.free).sum();
    html! {
        section {
            h2 { "The cell" }
            dl.tiles {
                (tile("Database servers", &answering(database_up.count(), databases.len()), html! {}))
                (tile("File servers", &answering(file_up.count(), files.len()), html! {}))
                (tile("Partitions", &counted(spaces.len() as u64, "partition", "partitions"), room("Partitions", total, free)))
                @if !devices.is_empty() {
                    (tile("Devices", &counted(devices.len() as u64, "device", "devices"), room("Devices", device_total, device_free)))
                }
                (tile("Volumes", &counted(status.volumes.examined, "volume examined", "volumes examined"), volumes(status)))
            }
        }
    }
}

fn tile(name: &str, figure: &str, more: Markup) -> Markup {
    html! {
        div.tile {
            dt { (name) }
            dd { span.figure { (figure) } (more) }
        }
    }
}

fn room(name: &str, total: u64, free: u64) -> Markup {
    let used = total.saturating_sub(free);
    if total == 0 {
        return html! {};
    }
    html! {
        (plot::fill(name, plot::percent(used, total)))
        span.note { (short_size(used)) " of " (short_size(total)) " used" }
    }
}

fn volumes(status: &CellStatus) -> Markup {
    let volumes = &status.volumes;
    let rows = [
        (volumes.damaged.count, "damaged"),
        (volumes.off_line.count, "off line"),
        (volumes.quota_full.count, "with a full quota"),
        (volumes.outdated_sites.count, "out of date"),
        (volumes.unreleased.count, "changed since their release"),
        (volumes.locked, "locked"),
        (volumes.busy, "busy"),
    ];
    let present = rows.into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = present
        .map(|(number, what)| format!("{} {what}", count(number)))
        .collect();
    html! { @if !parts.is_empty() { span.note { (parts.join(", ")) } } }
}
