//! The repairs of objects on the page of jobs, as `cellar osd repair-status` has them.
//!
//! A repair has no cancel. A server makes its queue from the layouts of its files. An object that
//! leaves the queue would come back with the next examination of the files.

use std::net::IpAddr;

use cellar_admin::osd::RepairView;
use cellar_admin::table::short_size;
use maud::{Markup, html};

use crate::cell::{ServerWork, Site};
use crate::html::{count, empty, scroll};
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
