//! The forms on the page of a volume that start a move, a release or a backup.

use std::net::IpAddr;

use cellar_admin::vos::{PartitionSpace, entry_flags};
use maud::{Markup, html};

use crate::auth::Session;
use crate::cell::{Overview, Site, VolumeView, has_unfinished_release};
use crate::html::{empty, form_token, kib};

/// The most places in the list of a move.
const PLACES_MAX: usize = 1000;

/// A partition that a volume may be moved to.
struct Place<'a> {
    server: IpAddr,
    space: &'a PartitionSpace,
}

/// The partitions of the servers that answered, without the volume's own.
fn places<'a>(view: &VolumeView, overview: &'a Overview) -> Vec<Place<'a>> {
    let home = view.entry.read_write_site();
    let mut places = Vec::new();
    for server in &overview.status.file_servers {
        // The VLDB names a site by one address of its server.
        let of_home = home.filter(|site| server.addresses.contains(&site.server));
        let address = of_home.map(|site| site.server);
        let Some(address) = address.or(server.addresses.first().copied()) else {
            continue;
        };
        for space in server.partitions.iter().flatten() {
            let is_own = of_home.is_some_and(|site| site.partition == space.partition);
            if !is_own && address.is_ipv4() {
                places.push(Place {
                    server: address,
                    space,
                });
            }
        }
    }
    places
}

/// The section with the forms; nothing for a family without a read-write volume.
pub(crate) fn forms(
    site: &Site,
    session: &Session,
    view: &VolumeView,
    overview: &Overview,
) -> Markup {
    let entry = &view.entry;
    if entry.flags & entry_flags::RW_EXISTS == 0 {
        return html! {};
    }
    let hidden = html! {
        (form_token(session))
        input type="hidden" name="volume" value=(entry.name);
    };
    let places = places(view, overview);
    let has_sites = view
        .entry
        .sites
        .iter()
        .any(|place| place.flags & cellar_admin::vos::site_flags::READ_ONLY != 0);
    let hosts = site.hosts();
    html! {
        section {
            h2 { "Changes" }
            @if entry.is_locked() {
                p.hint { "The entry is locked. If its operation still runs, a further one is refused." }
            }
            h3 { "Move" }
            @if places.is_empty() {
                (empty("No server has told another partition."))
            } @else {
                form.row method="post" action="/volume/move" {
                    (hidden)
                    div {
                        label for="to" { "To server and partition" }
                        select #to name="to" required {
                            @for place in places.iter().take(PLACES_MAX) {
                                @let partition = place.space.partition;
                                option value=(format!("{} {partition}", place.server)) {
                                    (hosts.name(place.server)) " " (partition) ", " (kib(place.space.free_kib)) " free"
                                }
                            }
                        }
                    }
                    button type="submit" { "Move" }
                }
                @if entry.flags & entry_flags::BACKUP_EXISTS != 0 {
                    p.hint { "A move removes the backup volume." }
                }
                @if places.len() > PLACES_MAX {
                    p.hint { "The list has the first " (PLACES_MAX) " partitions; 'cellar vos move' knows all." }
                }
            }
            h3 { "Release" }
            @if has_sites {
                form.row method="post" action="/volume/release" {
                    (hidden)
                    @if has_unfinished_release(entry) {
                        label.check {
                            input type="checkbox" name="resume" value="on" checked;
                            "continue the unfinished release"
                        }
                    }
                    button type="submit" { "Release" }
                }
            } @else {
                (empty("The volume has no read-only sites. 'cellar vos addsite' adds one."))
            }
            h3 { "Backup" }
            form method="post" action="/volume/backup" {
                (hidden)
                button type="submit" { "Make the backup volume" }
            }
        }
    }
}
