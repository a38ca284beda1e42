//! The page of one volume: its sites, sizes, accesses, release state and backup, and the forms that
//! start an operation on it.

use std::sync::Arc;

use axum::extract::State;
use cellar_admin::date::{ctime_or_never, to_the_minute};
use cellar_admin::vos::{Site as EntrySite, VolumeInfo, VolumeState, entry_flags, site_flags};
use cellar_wire::ids::AfsTime;
use futures_util::future::join;
use maud::{Markup, html};

use super::operations::{self, REFRESH_SECONDS};
use super::volume_changes;
use super::volumes::{quota, state_of};
use crate::auth::{Query, Viewer};
use crate::cell::{Site, SiteView, VolumeView, id_at};
use crate::html::{Page, Section, bytes_of_kib, count, counted, empty, kib, problem, scroll};
use crate::plot;

pub(crate) async fn show(
    State(site): State<Arc<Site>>,
    Viewer(session): Viewer,
    Query(fields): Query,
) -> Markup {
    let volume = site.volume(fields.word("id"));
    // The places for a move are only for administrators.
    let (found, servers) = match session.may_change() {
        true => {
            let (found, servers) = join(volume, site.servers()).await;
            (found, Some(servers))
        }
        false => (volume.await, None),
    };
    let running = match found.as_ref() {
        Ok(view) => site.operation_of(view.entry.read_write),
        Err(_) => None,
    };
    let title = match found.as_ref() {
        Ok(view) => format!("Volume {}", view.entry.name),
        Err(_) => "Volume".to_owned(),
    };
    let mut page = Page::new(&site, &session, Section::Volumes, &title);
    page.refresh = running.as_ref().map(|_| REFRESH_SECONDS);
    page.with(html! {
        @match found.as_ref() {
            Err(sentence) => { (problem(sentence)) }
            Ok(view) => {
                (facts(view))
                (sites(&site, view))
                @match (&running, &servers) {
                    (Some(running), _) => { (operations::running(&session, running)) }
                    (None, Some(servers)) => { (volume_changes::forms(&site, &session, view, servers)) }
                    (None, None) => {}
                }
                (accesses(view))
            }
        }
        p { a href="/volumes" { "To the search for volumes" } }
    })
}

fn is_read_write(site: &EntrySite) -> bool {
    site.flags & site_flags::READ_WRITE != 0
}

/// The read-write volume, or that of the first site.
fn main_info(view: &VolumeView) -> Option<&VolumeInfo> {
    let main = view.sites.iter().find(|site| is_read_write(&site.site));
    let info = main.or(view.sites.first())?.info.as_ref().ok();
    info.filter(|info| info.state == VolumeState::Ok)
}

fn facts(view: &VolumeView) -> Markup {
    let entry = &view.entry;
    let info = main_info(view);
    let has = |flag| entry.flags & flag != 0;
    html! {
        section {
            h2 { "Facts" }
            dl.facts {
                dt { "Read-write volume" }
                dd { @if has(entry_flags::RW_EXISTS) { (entry.read_write.0) } @else { "none" } }
                dt { "Read-only volume" }
                dd { @if has(entry_flags::RO_EXISTS) { (entry.read_only.0) } @else { "none" } }
                dt { "Backup volume" }
                dd { (backup(view)) }
                @if entry.is_locked() {
                    dt { "Lock" }
                    dd { "An operation holds the entry." }
                }
                @if let Some(info) = info {
                    @let (used, limit) = (bytes_of_kib(info.size_kib.into()), bytes_of_kib(info.quota_kib.into()));
                    dt { "Size" }
                    dd {
                        (kib(info.size_kib.into())) " in " (counted(info.file_count.into(), "file", "files"))
                        @if info.quota_kib > 0 {
                            ", quota " (quota(info.quota_kib))
                            @let percent = plot::percent(used, limit);
                            " (" (format!("{percent:.0} %")) " used)"
                            (plot::fill_to("Quota", percent, plot::QUOTA_FULL_PERCENT))
                        } @else { ", no quota" }
                    }
                    dt { "Created" } dd { (ctime_or_never(info.created)) }
                    dt { "Last change" } dd { (ctime_or_never(info.updated)) }
                    dt { "Last access" } dd { (ctime_or_never(info.accessed)) }
                    dt { "Accesses today" } dd { (count(info.day_use.into())) }
                    dt { "Release" } dd { (release(view)) }
                }
            }
        }
    }
}

fn backup(view: &VolumeView) -> Markup {
    html! {
        @match &view.backup {
            None => { "none" }
            Some(Err(sentence)) => { (view.entry.backup.0) ": " (sentence) }
            Some(Ok(info)) => { (view.entry.backup.0) ", made " (ctime_or_never(info.created)) }
        }
    }
}

/// The date of the newest read-only image.
fn newest(view: &VolumeView) -> Option<AfsTime> {
    let copies = view.sites.iter().filter(|site| !is_read_write(&site.site));
    let infos = copies.filter_map(|site| site.info.as_ref().ok());
    infos.map(|info| info.created).max()
}

fn release(view: &VolumeView) -> String {
    let has_sites = view.sites.iter().any(|site| !is_read_write(&site.site));
    match (newest(view), main_info(view)) {
        _ if !has_sites => "no read-only sites".to_owned(),
        (None, _) => "never released, or no read-only site answers".to_owned(),
        (Some(date), Some(info)) if info.updated > date => {
            format!("released {}, changed since", to_the_minute(date.0.into()))
        }
        (Some(date), _) => format!("released {}, up to date", to_the_minute(date.0.into())),
    }
}

/// The release state of a site.
fn site_release(view: &VolumeView, site: &SiteView) -> (&'static str, &'static str) {
    let flags = site.site.flags;
    if is_read_write(&site.site) {
        return ("–", "");
    }
    let releasing = view
        .sites
        .iter()
        .any(|site| site.site.flags & site_flags::NEW_RELEASE != 0);
    match &site.info {
        _ if flags & site_flags::DONT_USE != 0 => ("not released", "state bad"),
        _ if releasing && flags & site_flags::NEW_RELEASE != 0 => ("new release", "state"),
        _ if releasing => ("old release", "state bad"),
        Err(_) => ("not known", "state"),
        Ok(info) if Some(info.created) < newest(view) => ("out of date", "state bad"),
        Ok(_) => ("released", "state well"),
    }
}

fn sites(site: &Site, view: &VolumeView) -> Markup {
    let hosts = site.hosts();
    html! {
        section {
            h2 { "Sites" }
            @if view.sites.is_empty() { (empty("The entry has no sites.")) } @else {
                (scroll("Sites", html! {
                    table {
                        thead { tr {
                            th scope="col" { "Kind" }
                            th scope="col" { "Server" }
                            th scope="col" { "Partition" }
                            th.number scope="col" { "Volume" }
                            th scope="col" { "State" }
                            th scope="col" { "Release" }
                            th scope="col" { "Image of" }
                            th.number scope="col" { "Size" }
                            th.number scope="col" { "Accesses today" }
                        } }
                        tbody { @for place in &view.sites {
                            @let info = place.info.as_ref().ok();
                            @let whole = info.filter(|info| info.state == VolumeState::Ok);
                            tr {
                                td { @if is_read_write(&place.site) { "read-write" } @else { "read-only" } }
                                td { (hosts.name(place.site.server)) }
                                td { (place.site.partition) }
                                td.number { (id_at(&view.entry, &place.site).0) }
                                td {
                                    @let (word, class) = info.map_or(("no answer", "state"), state_of);
                                    span class=(class) { (word) }
                                }
                                td {
                                    @let (word, class) = site_release(view, place);
                                    span class=(class) { (word) }
                                }
                                td {
                                    @match whole.filter(|_| !is_read_write(&place.site)) {
                                        Some(info) => { (to_the_minute(info.created.0.into())) }
                                        None => { "–" }
                                    }
                                }
                                td.number { (whole.map_or_else(|| "–".to_owned(), |info| kib(info.size_kib.into()))) }
                                td.number { (whole.map_or_else(|| "–".to_owned(), |info| count(info.day_use.into()))) }
                            }
                        } }
                    }
                }))
                @for place in &view.sites {
                    @if let Err(sentence) = &place.info {
                        p.problem { (hosts.name(place.site.server)) " " (place.site.partition) ": " (sentence) }
                    }
                }
            }
        }
    }
}

/// Reads and writes of the read-write volume, by the network of the client.
fn accesses(view: &VolumeView) -> Markup {
    let Some(traffic) = main_info(view).and_then(|info| info.traffic.as_ref()) else {
        return html! {};
    };
    let groups = [
        "Same network",
        "of these with a token",
        "Other networks",
        "of these with a token",
    ];
    html! {
        section {
            h2 { "Accesses by network" }
            (scroll("Accesses by network", html! {
                table {
                    thead { tr {
                        th scope="col" { "Clients" }
                        th.number scope="col" { "Reads" }
                        th.number scope="col" { "Writes" }
                    } }
                    tbody { @for ((group, reads), writes) in groups.iter().zip(traffic.reads).zip(traffic.writes) {
                        tr {
                            td { (group) }
                            td.number { (count(reads.into())) }
                            td.number { (count(writes.into())) }
                        }
                    } }
                }
            }))
        }
    }
}
