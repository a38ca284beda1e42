//! The repairs of objects on the page of jobs, as `cellar osd repair-status` has them, and the
//! drains of devices, which cause repairs and can be stopped.
//!
//! A single repair has no cancel. A server makes its queue from the layouts of its files. An object
//! that leaves the queue would come back with the next examination of the files.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use cellar_admin::osd::{Device, RepairView};
use cellar_admin::table::short_size;
use http::StatusCode;
use maud::{Markup, html};

use crate::auth::{Change, Session};
use crate::cell::{ServerWork, Site};
use crate::html::{Page, Section, bare, count, empty, form_token, problem, scroll};
use crate::plot;

/// The section of the page of jobs.
pub(crate) fn list(site: &Site, servers: &[ServerWork]) -> Markup {
    let queues = servers
        .iter()
        .filter_map(|server| Some((server.server, server.repairs.as_ref()?)));
    let is_shown = |repairs: &RepairView| repairs.waiting + repairs.running > 0 || repairs.looking;
    let queues: Vec<(IpAddr, &RepairView)> =
        queues.filter(|(_, repairs)| is_shown(repairs)).collect();
    let hosts = site.hosts();
    html! {
        section {
            h2 { "Repairs of objects" }
            @if queues.is_empty() { (empty("No objects wait for their repair.")) } @else {
                (scroll("Repairs of objects", html! {
                    table {
                        thead { tr {
                            th scope="col" { "Server" }
                            th scope="col" { "Progress since the start of the server" }
                            th.number scope="col" { "Waiting" }
                            th.number scope="col" { "Running" }
                            th.number scope="col" { "Failed" }
                            th.number scope="col" { "To copy" }
                            th.number scope="col" { "A second" }
                        } }
                        tbody { @for (server, repairs) in &queues { tr {
                            td { (hosts.name(*server)) }
                            td {
                                @let all = repairs.repaired + repairs.waiting;
                                (plot::progress("Progress", repairs.repaired, all))
                                span.note {
                                    (count(repairs.repaired)) " of " (count(all)) " objects, "
                                    (short_size(repairs.bytes)) " copied"
                                    @if repairs.looking { "; the server examines its files" }
                                }
                            }
                            td.number { (count(repairs.waiting)) }
                            td.number { (count(repairs.running)) }
                            td.number { (count(repairs.failed)) }
                            td.number { (short_size(repairs.waiting_bytes)) }
                            td.number { (short_size(repairs.rate)) }
                        } } }
                    }
                }))
            }
        }
    }
}

/// The section of the drains; nothing if no device is drained.
pub(crate) fn drains(session: &Session, devices: Option<&[Device]>) -> Markup {
    let devices = devices.unwrap_or_default();
    let drained: Vec<&Device> = devices.iter().filter(|device| device.draining).collect();
    html! {
        @if !drained.is_empty() {
            section {
                h2 { "Drains of devices" }
                (scroll("Drains of devices", html! {
                    table {
                        thead { tr {
                            th scope="col" { "Device" }
                            th.number scope="col" { "Objects at its last report" }
                            @if session.may_change() { th scope="col" { "Change" } }
                        } }
                        tbody { @for device in &drained { tr {
                            td { (device.name) }
                            td.number { (count(device.objects)) }
                            @if session.may_change() { td { (stop_button(session, device)) } }
                        } } }
                    }
                }))
                p.hint { "A stopped drain leaves the objects that have moved where they are. The device gets new objects again." }
            }
        }
    }
}

fn stop_button(session: &Session, device: &Device) -> Markup {
    html! {
        form method="post" action="/drain/stop" {
            (form_token(session))
            input type="hidden" name="device" value=(device.id);
            button.small.danger type="submit" name="change" value="stop"
                aria-label=(format!("Cancel: drain of device {}", device.name)) { "Cancel" }
        }
    }
}

pub(crate) async fn stop_drain(State(site): State<Arc<Site>>, change: Change) -> Response {
    let Some(device) = change.fields.number::<u32>("device") else {
        let page = bare("Refused", "The form names no device.");
        return (StatusCode::BAD_REQUEST, page).into_response();
    };
    match site.stop_drain(device).await {
        Ok(()) => Redirect::to("/jobs").into_response(),
        Err(sentence) => {
            let title = "Drain not stopped";
            let page = Page::new(&site, &change.session, Section::Jobs, title).with(html! {
                (problem(&sentence))
                p { a href="/jobs" { "To the jobs" } }
            });
            (StatusCode::CONFLICT, page).into_response()
        }
    }
}
