//! The tables of `cellar vos traverse`: files by size, usage by place, data without a second copy.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::response::Redirect;
use cellar_admin::date::ctime;
use cellar_admin::osd::Device;
use cellar_admin::table::short_size;
use cellar_admin::vos::{PlaceUsage, SizeClass, Traversed};
use maud::{Markup, html};

use crate::auth::{Change, Session, Viewer};
use crate::cell::{Site, Traversal, Usage, UsageState};
use crate::html::{Page, Section, count, counted, empty, form_token, problem, scroll};
use crate::plot;

/// The most volumes that are listed as not checked.
const MISSED_MAX: usize = 50;
/// Seconds between two loads of the page while a traversal runs.
const REFRESH_SECONDS: u32 = 5;

pub(crate) async fn show(State(site): State<Arc<Site>>, Viewer(session): Viewer) -> Markup {
    let UsageState {
        running,
        last,
        failure,
    } = site.usage();
    let mut page = Page::new(&site, &session, Section::Usage, "Usage");
    page.refresh = running.as_ref().map(|_| REFRESH_SECONDS);
    page.with(html! {
        section {
            h2 { "Count of all files" }
            @if let Some(failure) = failure.filter(|_| running.is_none()) {
                (problem(&format!("The last count has no result: {failure}.")))
            }
            (control(&session, running.as_deref(), last.as_deref()))
        }
        @if let Some(usage) = last.as_deref() { (tables(&usage.found, &usage.devices)) }
    })
}

pub(crate) async fn start(State(site): State<Arc<Site>>, _: Change) -> Redirect {
    site.start_traversal();
    Redirect::to("/usage")
}

pub(crate) async fn stop(State(site): State<Arc<Site>>, _: Change) -> Redirect {
    site.stop_traversal();
    Redirect::to("/usage")
}

fn control(session: &Session, running: Option<&Traversal>, last: Option<&Usage>) -> Markup {
    html! {
        @match (running, last) {
            (Some(running), _) => {
                @let all = running.volumes.load(Ordering::Relaxed);
                @let checked = running.checked.load(Ordering::Relaxed);
                p role="status" {
                    @if all == 0 { "The VLDB lists the volumes." } @else {
                        "A count runs: " (count(checked)) " of " (counted(all, "volume", "volumes")) "."
                    }
                    " This page loads itself again."
                }
                (plot::progress("Progress of the count", checked, all))
            }
            (None, Some(usage)) => { p { "Counted at " (ctime(usage.at)) "." } }
            (None, None) => {
                (empty("The files have not been counted since the start of the console. A count asks each file \
                        server for each read-write volume, as 'cellar vos traverse' does."))
            }
        }
        @if session.may_change() {
            @if running.is_some() {
                form method="post" action="/usage/stop" {
                    (form_token(session))
                    button.danger type="submit" { "Stop the count" }
                }
            } @else {
                form method="post" action="/usage/start" {
                    (form_token(session))
                    button type="submit" { "Count the files now" }
                }
            }
        }
    }
}

fn tables(found: &Traversed, devices: &HashMap<u32, Device>) -> Markup {
    html! {
        section {
            h2 { "Files by size" }
            p {
                (counted(found.volumes, "volume", "volumes")) ": " (counted(found.files, "file", "files"))
                " with " (short_size(found.bytes)) ", " (count(found.files_in_objects))
                " of them in objects; " (counted(found.others, "directory or link", "directories and links")) "."
                @if found.files_wiped > 0 {
                    " Wiped, so that only archives have the bytes: " (counted(found.files_wiped, "file", "files"))
                    " with " (short_size(found.bytes_wiped)) "."
                }
            }
            @if found.sizes.is_empty() { (empty("There are no files.")) } @else {
                (plot::histogram(&found.sizes))
                (sizes(&found.sizes))
            }
        }
        section {
            h2 { "Usage by place" }
            (places("Usage by place", &found.places, devices))
        }
        section {
            h2 { "Data without a second copy" }
            (places("Data without a second copy", &found.single, devices))
        }
        @if !found.missed.is_empty() {
            section {
                h2 { "Volumes that were not counted" }
                ul {
                    @for (volume, why) in found.missed.iter().take(MISSED_MAX) { li { (volume) ": " (why) } }
                    @if found.missed.len() > MISSED_MAX {
                        li { "and " (count((found.missed.len() - MISSED_MAX) as u64)) " more" }
                    }
                }
            }
        }
    }
}

fn sizes(sizes: &[SizeClass]) -> Markup {
    let percent = |percent: f64| format!("{percent:.2}");
    scroll(
        "Files by size",
        html! {
            table {
                thead { tr {
                    th.number scope="col" { "From" }
                    th.number scope="col" { "To" }
                    th.number scope="col" { "Files" }
                    th.number scope="col" { "%" }
                    th.number scope="col" { "Running %" }
                    th.number scope="col" { "Data" }
                    th.number scope="col" { "%" }
                    th.number scope="col" { "Running %" }
                } }
                tbody { @for size in sizes { tr {
                    td.number { (short_size(size.above)) }
                    td.number { (short_size(size.to)) }
                    td.number { (count(size.files)) }
                    td.number { (percent(size.files_percent)) }
                    td.number { (percent(size.files_running)) }
                    td.number { (short_size(size.bytes)) }
                    td.number { (percent(size.bytes_percent)) }
                    td.number { (percent(size.bytes_running)) }
                } } }
            }
        },
    )
}

/// The kind and the name of a place.
fn kind_and_name(devices: &HashMap<u32, Device>, id: u32) -> (&'static str, &str) {
    match (devices.get(&id), id) {
        (Some(device), 1) => ("file server", &device.name),
        (None, 1) => ("file server", "local_disk"),
        (Some(device), _) if device.archival => ("archive", &device.name),
        (Some(device), _) => ("disk", &device.name),
        (None, _) => ("–", "not known"),
    }
}

fn places(name: &str, places: &[PlaceUsage], devices: &HashMap<u32, Device>) -> Markup {
    if places.is_empty() {
        return empty("There is no such data.");
    }
    let objects = places.iter().map(|place| place.objects).sum();
    let bytes = places.iter().map(|place| place.bytes).sum();
    scroll(
        name,
        html! {
            table {
                thead { tr {
                    th scope="col" { "Kind" }
                    th.number scope="col" { "Id" }
                    th scope="col" { "Name" }
                    th.number scope="col" { "Objects" }
                    th.number scope="col" { "Data" }
                } }
                tbody {
                    @for place in places {
                        @let (kind, name) = kind_and_name(devices, place.id);
                        tr {
                            td { (kind) }
                            td.number { (place.id) }
                            td { (name) }
                            td.number { (count(place.objects)) }
                            td.number { (short_size(place.bytes)) }
                        }
                    }
                }
                tfoot { tr {
                    th scope="row" { "Total" } td {} td {}
                    td.number { (count(objects)) }
                    td.number { (short_size(bytes)) }
                } }
            }
        },
    )
}
