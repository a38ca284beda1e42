//! Servers, partitions and devices.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use cellar_admin::date::{ctime, to_the_minute};
use cellar_admin::osd::{Device, State as DeviceState};
use cellar_admin::status::{CellStatus, FileServer};
use cellar_admin::table::{lasting, short_size};
use cellar_admin::vos::PartitionScrub;
use maud::{Markup, html};

use crate::auth::Viewer;
use crate::cell::Site;
use crate::html::{Page, Section, address, bytes_of_kib, count, empty, scroll};
use crate::plot;

pub(crate) async fn show(State(site): State<Arc<Site>>, Viewer(session): Viewer) -> Markup {
    let overview = site.servers().await;
    let status = &overview.status;
    Page::new(&site, &session, Section::Servers, "Servers").with(html! {
        section {
            h2 { "Room on partitions" }
            (partitions(&site, status))
        }
        @if let Some(devices) = status.devices.as_deref().filter(|devices| !devices.is_empty()) {
            section {
                h2 { "Room on devices" }
                (device_plot(devices))
                h3 { "Devices" }
                (device_table(devices))
            }
        }
        section {
            h2 { "File servers" }
            (file_servers(&site, status))
        }
        section {
            h2 { "Database servers" }
            (database_servers(&site, status))
        }
        p.hint { "State at " (ctime(overview.at)) ". " a href="/servers" { "Look again" } }
    })
}

/// The address of a server that answered, or its first one.
fn main_address(server: &FileServer) -> Option<IpAddr> {
    server.answered.or(server.addresses.first().copied())
}

fn name_of(site: &Site, server: &FileServer) -> String {
    main_address(server).map_or_else(|| "without address".to_owned(), |a| site.hosts().name(a))
}

/// A row of a plot of room.
fn bar(name: &str, used: u64, total: u64) -> Markup {
    let percent = plot::percent(used, total);
    html! {
        li {
            span.name { (name) }
            span.amount {
                (short_size(used)) " of " (short_size(total)) " · " (format!("{percent:.0} %"))
            }
            (plot::fill(name, percent))
        }
    }
}

fn bars(rows: Markup) -> Markup {
    html! {
        figure.bars {
            ul { (rows) }
            (plot::fill_axis())
            figcaption {
                "Used share of the room. The line marks 90 %, from which the overview reports it."
            }
        }
    }
}

fn partitions(site: &Site, status: &CellStatus) -> Markup {
    let all = status.file_servers.iter().flat_map(|server| {
        let spaces = server.partitions.iter().flatten();
        spaces.map(move |space| (server, space))
    });
    let rows: Vec<_> = all
        .map(|(server, space)| {
            let name = format!("{} {}", name_of(site, server), space.partition);
            let total = bytes_of_kib(space.total_kib);
            let used = total.saturating_sub(bytes_of_kib(space.free_kib));
            bar(&name, used, total)
        })
        .collect();
    match rows.is_empty() {
        true => empty("No file server reports a partition."),
        false => bars(html! { @for row in rows { (row) } }),
    }
}

fn device_plot(devices: &[Device]) -> Markup {
    bars(html! {
        @for device in devices {
            @let name = format!("{} {}", device.id, device.name);
            @if device.total == 0 {
                li { span.name { (name) } span.amount { "reports no size" } }
            } @else {
                (bar(&name, device.total.saturating_sub(device.free), device.total))
            }
        }
    })
}

fn device_table(devices: &[Device]) -> Markup {
    scroll(
        "Devices",
        html! {
            table {
                thead { tr {
                    th.number scope="col" { "Id" }
                    th scope="col" { "Name" }
                    th scope="col" { "State" }
                    th scope="col" { "Kind" }
                    th scope="col" { "Class" }
                    th.number scope="col" { "Objects" }
                    th.number scope="col" { "Size" }
                    th.number scope="col" { "Free" }
                    th scope="col" { "Server" }
                    th.number scope="col" { "Last report" }
                } }
                tbody { @for device in devices { tr {
                    td.number { (device.id) }
                    td { (device.name) }
                    td { (state(device.state.word(), matches!(device.state, DeviceState::Up))) }
                    td { @if device.archival { "archive" } @else { "disk" } }
                    td { (device.class) }
                    td.number { (count(device.objects)) }
                    td.number { (short_size(device.total)) }
                    td.number { (short_size(device.free)) }
                    td {
                        @match device.addresses.first() {
                            Some(address) => { (address) " " (device.partition) }
                            None => { "has never reported" }
                        }
                    }
                    td.number {
                        @match device.silent_seconds {
                            Some(seconds) => { (lasting(seconds.into())) " ago" }
                            None => { "never" }
                        }
                    }
                } } }
            }
        },
    )
}

/// The state of a thing, marked if it is not the usual one.
fn state(word: &str, is_well: bool) -> Markup {
    let class = if is_well { "state well" } else { "state bad" };
    html! { span class=(class) { (word) } }
}

fn file_servers(site: &Site, status: &CellStatus) -> Markup {
    if status.file_servers.is_empty() {
        return empty("The VLDB lists no file server.");
    }
    scroll(
        "File servers",
        html! {
            table {
                thead { tr {
                    th scope="col" { "Server" }
                    th scope="col" { "State" }
                    th.number scope="col" { "Up for" }
                    th scope="col" { "Version" }
                    th.number scope="col" { "Clock" }
                    th scope="col" { "Repairs" }
                    th scope="col" { "Verification" }
                } }
                tbody { @for server in &status.file_servers { tr {
                    td {
                        @match server.addresses.first() {
                            Some(first) => {
                                @let first = first.to_string();
                                a href=(address("/volumes", &[("server", &first)])) { (name_of(site, server)) }
                            }
                            None => { (name_of(site, server)) }
                        }
                        @if server.addresses.len() > 1 {
                            br; span.note {
                                @for (place, other) in server.addresses.iter().enumerate() {
                                    @if place > 0 { ", " } (other)
                                }
                            }
                        }
                    }
                    td {
                        @match (server.reachable, server.volume_server) {
                            (true, true) => { (state("up", true)) }
                            (true, false) => { (state("volume server silent", false)) }
                            (false, true) => { (state("file server silent", false)) }
                            (false, false) => { (state("silent", false)) }
                        }
                    }
                    td.number {
                        @match server.uptime_seconds {
                            Some(seconds) => { (lasting(seconds)) }
                            None => { "–" }
                        }
                    }
                    td { (server.version.as_deref().unwrap_or("not known")) }
                    td.number {
                        @match server.clock_offset_seconds {
                            Some(seconds) => { (format!("{seconds:+} s")) }
                            None => { "–" }
                        }
                    }
                    td {
                        @match server.repairs {
                            None => { "–" }
                            Some(repairs) => {
                                (count(repairs.waiting)) " wait, " (count(repairs.running)) " run"
                                @if repairs.failed > 0 { ", " (count(repairs.failed)) " failed" }
                            }
                        }
                    }
                    td {
                        @if server.scrubs.is_empty() { "–" }
                        @for scrub in &server.scrubs { div { (scrub_of(scrub)) } }
                    }
                } } }
            }
        },
    )
}

fn scrub_of(scrub: &PartitionScrub) -> Markup {
    html! {
        (scrub.partition) ": "
        @if scrub.running {
            "runs, " (count(scrub.volumes)) " of " (count(scrub.volumes_total)) " volumes"
        } @else {
            @match &scrub.last {
                None => { "none since the start" }
                Some(last) => {
                    (to_the_minute(last.ended.0.into())) ", " (count(last.damaged)) " damaged"
                }
            }
        }
    }
}

fn database_servers(site: &Site, status: &CellStatus) -> Markup {
    let answers = |answers| match answers {
        true => state("up", true),
        false => state("silent", false),
    };
    scroll(
        "Database servers",
        html! {
            table {
                thead { tr {
                    th scope="col" { "Server" }
                    th scope="col" { "Locations" }
                    th scope="col" { "Users" }
                    th scope="col" { "Version" }
                } }
                tbody { @for server in &status.database_servers { tr {
                    td { (site.hosts().name(server.address)) }
                    td { (answers(server.location)) }
                    td { (answers(server.protection)) }
                    td { (server.version.as_deref().unwrap_or("not known")) }
                } } }
            }
        },
    )
}
