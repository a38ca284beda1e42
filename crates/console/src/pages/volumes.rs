//! The search for volumes.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use cellar_admin::vos::{Entry, VolumeInfo, VolumeState, entry_flags, site_flags};
use maud::{Markup, html};

use crate::auth::{Query, Viewer};
use crate::cell::{Cursor, SEARCH_BYTES_MAX, Site, VolumeList, VolumeRow, VolumeSearch, id_at};
use crate::html::{Page, Section, address, count, empty, kib, pager, problem, scroll};

pub(crate) async fn show(
    State(site): State<Arc<Site>>,
    Viewer(session): Viewer,
    Query(fields): Query,
) -> Response {
    let text = fields.word("q");
    // A number is that of one volume.
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Redirect::to(&address("/volume", &[("id", text)])).into_response();
    }
    let search = VolumeSearch {
        text: text.to_owned(),
        server: fields.number::<IpAddr>("server"),
        from: Cursor {
            index: fields.number("from").unwrap_or(0).max(0),
            skip: fields.number("skip").unwrap_or(0),
        },
    };
    let list = match text.len() > SEARCH_BYTES_MAX {
        true => Arc::new(Err("The text is longer than any name.".to_owned())),
        false => site.volume_list(search.clone()).await,
    };
    let overview = site.servers().await;
    let servers = overview.status.file_servers.iter();
    let servers: Vec<IpAddr> = servers
        .filter_map(|server| server.addresses.first().copied())
        .collect();
    let hosts = site.hosts();
    let page = Page::new(&site, &session, Section::Volumes, "Volumes").with(html! {
        form.row method="get" action="/volumes" role="search" {
            div {
                label for="q" { "Part of the name, or a number" }
                input #q type="search" name="q" value=(text) maxlength=(SEARCH_BYTES_MAX);
            }
            div {
                label for="server" { "Server" }
                select #server name="server" {
                    option value="" { "all" }
                    @for server in &servers {
                        option value=(server) selected[search.server == Some(*server)] { (hosts.name(*server)) }
                    }
                }
            }
            button type="submit" { "Search" }
        }
        section {
            h2 { "Volumes found" }
            @match list.as_ref() {
                Err(sentence) => { (problem(sentence)) }
                Ok(list) if list.rows.is_empty() => { (empty(nothing(&search, list))) }
                Ok(list) => { (table(&site, list)) }
            }
            @if let Ok(list) = list.as_ref() {
                @if list.is_cut && !list.rows.is_empty() {
                    p.hint { "The search stopped at its time limit. The next page continues it." }
                }
                (pages(&search, list))
            }
        }
    });
    page.into_response()
}

fn nothing(search: &VolumeSearch, list: &VolumeList) -> &'static str {
    match (
        search.text.is_empty() && search.server.is_none(),
        list.is_cut,
    ) {
        (_, true) => "No volume was found in the time limit. The next page continues the search.",
        (true, false) => "The VLDB has no volumes.",
        (false, false) => "No volume matches.",
    }
}

fn pages(search: &VolumeSearch, list: &VolumeList) -> Markup {
    let server = search.server.map(|server| server.to_string());
    let mut fields = vec![("q", search.text.as_str())];
    if let Some(server) = &server {
        fields.push(("server", server.as_str()));
    }
    let first = address("/volumes", &fields);
    let next = list.next.map(|next| {
        let (index, skip) = (next.index.to_string(), next.skip.to_string());
        let mut fields = fields.clone();
        fields.extend([("from", index.as_str()), ("skip", skip.as_str())]);
        address("/volumes", &fields)
    });
    let is_first = search.from == Cursor::default();
    pager((!is_first).then_some(first.as_str()), next.as_deref())
}

/// The number under which the page of a volume finds it.
pub(crate) fn key(entry: &Entry) -> String {
    let site = entry.read_write_site().or(entry.sites.first());
    match site.map(|site| id_at(entry, site)) {
        Some(id) if id.0 != 0 => id.0.to_string(),
        _ => entry.name.clone(),
    }
}

fn table(site: &Site, list: &VolumeList) -> Markup {
    let hosts = site.hosts();
    scroll(
        "Volumes found",
        html! {
            table {
                thead { tr {
                    th scope="col" { "Name" }
                    th scope="col" { "State" }
                    th.number scope="col" { "Size" }
                    th.number scope="col" { "Quota" }
                    th scope="col" { "Place" }
                    th scope="col" { "Read-only sites" }
                    th scope="col" { "Backup" }
                    th.number scope="col" { "Files" }
                    th.number scope="col" { "Accesses today" }
                    th.number scope="col" { "Number" }
                } }
                tbody { @for row in &list.rows {
                    @let entry = &row.entry;
                    @let info = row.info.as_ref().filter(|info| info.state == VolumeState::Ok);
                    tr {
                        td { a href=(address("/volume", &[("id", &key(entry))])) { (entry.name) } }
                        td { (state(row)) }
                        td.number { (figure(info, |info| kib(info.size_kib.into()))) }
                        td.number { (figure(info, |info| quota(info.quota_kib))) }
                        td {
                            @match entry.read_write_site().or(entry.sites.first()) {
                                Some(place) => { (hosts.name(place.server)) " " (place.partition) }
                                None => { "no site" }
                            }
                        }
                        td { (read_only(entry)) }
                        td {
                            @if entry.flags & entry_flags::BACKUP_EXISTS != 0 { "yes" } @else { "–" }
                        }
                        td.number { (figure(info, |info| count(info.file_count.into()))) }
                        td.number { (figure(info, |info| count(info.day_use.into()))) }
                        td.number { (entry.read_write.0) }
                    }
                } }
            }
        },
    )
}

fn figure(info: Option<&VolumeInfo>, text: impl Fn(&VolumeInfo) -> String) -> String {
    info.map_or_else(|| "–".to_owned(), text)
}

/// A quota in words.
pub(crate) fn quota(kib_of_quota: u32) -> String {
    match kib_of_quota {
        0 => "none".to_owned(),
        size => kib(size.into()),
    }
}

fn read_only(entry: &Entry) -> String {
    let sites = || {
        let sites = entry.sites.iter();
        sites.filter(|site| site.flags & site_flags::READ_ONLY != 0)
    };
    let unreleased = sites().filter(|site| site.flags & site_flags::DONT_USE != 0);
    match (sites().count(), unreleased.count()) {
        (0, _) => "–".to_owned(),
        (all, 0) => all.to_string(),
        (all, none) => format!("{all}, {none} not released"),
    }
}

fn state(row: &VolumeRow) -> Markup {
    let (word, class) = match &row.info {
        _ if row.entry.is_locked() => ("locked", "state bad"),
        None => ("no answer", "state"),
        Some(info) => state_of(info),
    };
    html! { span class=(class) { (word) } }
}

/// The state of a volume, and its class in the style sheet.
pub(crate) fn state_of(info: &VolumeInfo) -> (&'static str, &'static str) {
    match info.state {
        VolumeState::Busy => ("busy", "state"),
        VolumeState::Unattachable => ("damaged", "state bad"),
        VolumeState::Ok if info.needs_salvage => ("damaged", "state bad"),
        VolumeState::Ok if !info.in_use => ("off line", "state bad"),
        VolumeState::Ok => ("on line", "state well"),
    }
}
