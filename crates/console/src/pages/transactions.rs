//! The transactions of volume servers: operations that any client commands, with their progress,
//! and their end.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use cellar_admin::date::ctime;
use cellar_admin::table::short_size;
use cellar_wire::ids::AfsTime;
use http::StatusCode;
use maud::{Markup, html};

use crate::auth::{Change, Session};
use crate::cell::{OpenTransaction, ServerWork, Site};
use crate::html::{Page, Section, address, bare, empty, form_token, problem, scroll};
use crate::plot;

/// The section of the page of jobs.
pub(crate) fn list(site: &Site, session: &Session, servers: &[ServerWork]) -> Markup {
    let all: Vec<(IpAddr, &OpenTransaction)> = servers
        .iter()
        .flat_map(|server| {
            let transactions = server.transactions.iter().flatten();
            transactions.map(|transaction| (server.server, transaction))
        })
        .collect();
    let hosts = site.hosts();
    html! {
        section {
            h2 { "Operations on volumes" }
            @for server in servers {
                @if let Err(sentence) = &server.transactions { p.problem { (sentence) } }
            }
            @if all.is_empty() {
                (empty("No volume is being moved, released or dumped."))
            } @else {
                (scroll("Operations on volumes", html! {
                    table {
                        thead { tr {
                            th.number scope="col" { "Transaction" }
                            th scope="col" { "Server" }
                            th scope="col" { "Volume" }
                            th scope="col" { "Last call" }
                            th scope="col" { "Progress" }
                            th scope="col" { "Since" }
                            @if session.may_change() { th scope="col" { "Change" } }
                        } }
                        tbody { @for (server, open) in &all {
                            @let transaction = &open.transaction;
                            tr {
                                td.number { (transaction.id) }
                                td { (hosts.name(*server)) }
                                td { (volume(open)) }
                                td { (transaction.procedure) }
                                td { (progress(open)) }
                                td {
                                    (ctime(transaction.created))
                                    br; span.note { "active " (ctime(active(open))) }
                                }
                                @if session.may_change() { td { (end_button(site, session, *server, open)) } }
                            }
                        } }
                    }
                }))
            }
        }
    }
}

fn volume(open: &OpenTransaction) -> Markup {
    let id = open.transaction.volume.0.to_string();
    let family = open.family.0.to_string();
    html! {
        @if open.name.is_empty() {
            (id) br; span.note { "not in the VLDB" }
        } @else {
            a href=(address("/volume", &[("id", &family)])) { (open.name) }
            br; span.note { (id) }
        }
    }
}

/// The time of the last call or packet.
fn active(open: &OpenTransaction) -> AfsTime {
    let packet = open.transaction.transfer.map(|transfer| transfer.last);
    open.transaction.active.max(packet.unwrap_or_default())
}

fn progress(open: &OpenTransaction) -> Markup {
    let (Some(transfer), Some(moved)) = (open.transaction.transfer, open.moved()) else {
        return html! { "–" };
    };
    let verb = match transfer.received > transfer.sent {
        true => "received",
        false => "sent",
    };
    html! {
        @if let Some(whole) = open.whole { (plot::progress("Progress", moved, whole)) }
        span.note {
            (short_size(moved))
            @if let Some(whole) = open.whole { " of " (short_size(whole)) }
            " " (verb)
        }
    }
}

fn end_button(site: &Site, session: &Session, server: IpAddr, open: &OpenTransaction) -> Markup {
    let transaction = &open.transaction;
    if let Some(own) = site.operation_of(open.family) {
        let href = address("/operation", &[("id", &own.id.to_string())]);
        return html! { a href=(href) { "operation " (own.id) } };
    }
    html! {
        form method="post" action="/transaction/end" {
            (form_token(session))
            input type="hidden" name="server" value=(server);
            input type="hidden" name="id" value=(transaction.id);
            input type="hidden" name="created" value=(transaction.created.0);
            button.small.danger type="submit" name="change" value="end"
                aria-label=(format!("Cancel: transaction {} of {server}", transaction.id)) { "Cancel" }
        }
    }
}

pub(crate) async fn end(State(site): State<Arc<Site>>, change: Change) -> Response {
    let fields = &change.fields;
    let place = fields.number::<IpAddr>("server").zip(fields.number("id"));
    let Some(((server, id), created)) = place.zip(fields.number("created").map(AfsTime)) else {
        let page = bare("Refused", "The form names no transaction.");
        return (StatusCode::BAD_REQUEST, page).into_response();
    };
    match site.end_transaction(server, id, created).await {
        Ok(()) => Redirect::to("/jobs").into_response(),
        Err(sentence) => {
            let title = "Transaction not ended";
            let page = Page::new(&site, &change.session, Section::Jobs, title).with(html! {
                (problem(&sentence))
                p { a href="/jobs" { "To the jobs" } }
            });
            (StatusCode::CONFLICT, page).into_response()
        }
    }
}
