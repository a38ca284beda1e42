//! The operations of this console: their list on the page of jobs, a page for each one, their start
//! and their end.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State as Extract;
use axum::response::{IntoResponse as _, Redirect, Response};
use cellar_admin::date::ctime;
use cellar_admin::table::short_size;
use cellar_admin::vos::Location;
use cellar_wire::ids::PartitionId;
use http::StatusCode;
use maud::{Markup, html};

use crate::auth::{Change, Query, Session, Viewer};
use crate::cell::{Site, Wish};
use crate::html::{Page, Section, address, bare, empty, form_token, problem, scroll};
use crate::operations::{Kind, OperationView, State};
use crate::plot;

/// Seconds between two loads of a page while its operation runs.
pub(crate) const REFRESH_SECONDS: u32 = 3;

/// The section of the page of jobs.
pub(crate) fn list(site: &Site, session: &Session) -> Markup {
    let all = site.operations();
    html! {
        section {
            h2 { "Operations of this console" }
            @if all.is_empty() {
                (empty("The console has moved, released and backed up no volume since its start."))
            } @else {
                (scroll("Operations of this console", html! {
                    table {
                        thead { tr {
                            th.number scope="col" { "Operation" }
                            th scope="col" { "Kind" }
                            th scope="col" { "Volume" }
                            th scope="col" { "State" }
                            th scope="col" { "Progress" }
                            th.number scope="col" { "Session" }
                            th scope="col" { "Started" }
                            @if session.may_change() { th scope="col" { "Change" } }
                        } }
                        tbody { @for view in &all { tr {
                            td.number { a href=(link(view.id)) { (view.id) } }
                            td { (view.order.kind.word()) }
                            td { a href=(volume_link(view)) { (view.order.name) } }
                            td.wrap { (state(view)) }
                            td { (progress(view)) }
                            td.number { (view.order.session) }
                            td { (ctime(view.order.started)) }
                            @if session.may_change() { td { (cancel_button(session, view, "small danger")) } }
                        } } }
                    }
                }))
            }
        }
    }
}

/// The section of the page of a volume on which an operation runs.
pub(crate) fn running(session: &Session, view: &OperationView) -> Markup {
    html! {
        section {
            h2 { "Operation " a href=(link(view.id)) { (view.id) } }
            (facts(view))
            p.hint { "This page loads itself again." }
            @if session.may_change() { (cancel_button(session, view, "danger")) }
        }
    }
}

pub(crate) async fn show(
    Extract(site): Extract<Arc<Site>>,
    Viewer(session): Viewer,
    Query(fields): Query,
) -> Response {
    let found = fields.number("id").and_then(|id| site.operation(id));
    let Some(view) = found else {
        let sentence = "The console has no such operation. It keeps the last 100 that have ended, \
                        and none from before its start.";
        return (StatusCode::NOT_FOUND, bare("No such operation", sentence)).into_response();
    };
    let title = format!("Operation {}", view.id);
    let mut page = Page::new(&site, &session, Section::Jobs, &title);
    page.refresh = (!view.state.is_ended()).then_some(REFRESH_SECONDS);
    let page = page.with(html! {
        section {
            h2 { "Facts" }
            (facts(&view))
            @if !view.state.is_ended() { p.hint { "This page loads itself again." } }
            @if session.may_change() { (cancel_button(&session, &view, "danger")) }
        }
        @if !view.progress.messages.is_empty() {
            section {
                h2 { "Messages" }
                ul { @for line in &view.progress.messages { li { (line) } } }
            }
        }
        p { a href="/jobs" { "To the jobs" } }
    });
    page.into_response()
}

fn facts(view: &OperationView) -> Markup {
    html! {
        dl.facts {
            dt { "Kind" } dd { (view.order.kind.word()) }
            dt { "Volume" } dd { a href=(volume_link(view)) { (view.order.name) } }
            @if let Kind::Move { from, to } = view.order.kind {
                dt { "From" } dd { (from) }
                dt { "To" } dd { (to) }
            }
            dt { "State" } dd { (state(view)) }
            dt { "Progress" } dd { (progress(view)) }
            dt { "Started" } dd { (ctime(view.order.started)) ", by session " (view.order.session) }
            @if let Some(ended) = view.ended { dt { "Ended" } dd { (ctime(ended)) } }
        }
    }
}

fn link(id: u64) -> String {
    address("/operation", &[("id", &id.to_string())])
}

fn volume_link(view: &OperationView) -> String {
    address("/volume", &[("id", &view.order.volume.0.to_string())])
}

fn state(view: &OperationView) -> Markup {
    let class = match view.state {
        State::Running | State::Done => "state well",
        State::Failed => "state bad",
        State::Cancelling | State::Cancelled => "state",
    };
    html! {
        span class=(class) { (view.state.word()) }
        @if !view.sentence.is_empty() { br; span.note { (view.sentence) } }
    }
}

fn progress(view: &OperationView) -> Markup {
    let progress = &view.progress;
    // A transfer of changes is shorter than the volume.
    let sent = match view.state {
        State::Done => progress.whole,
        _ => progress.sent.min(progress.whole),
    };
    html! {
        @if progress.whole > 0 {
            (plot::progress("Progress", sent, progress.whole))
            @if view.state != State::Done {
                span.note { (short_size(progress.sent)) " of " (short_size(progress.whole)) " sent" }
                br;
            }
        }
        span.note {
            @if progress.step.is_empty() { "no step done yet" } @else { "last step: " (progress.step) }
        }
    }
}

fn cancel_button(session: &Session, view: &OperationView, class: &str) -> Markup {
    html! {
        @if view.state == State::Running {
            form method="post" action="/operation/cancel" {
                (form_token(session))
                input type="hidden" name="id" value=(view.id);
                button class=(class) type="submit" name="change" value="cancel-operation"
                    aria-label=(format!("Cancel: operation {}", view.id)) { "Cancel" }
            }
        }
    }
}

pub(crate) async fn cancel(Extract(site): Extract<Arc<Site>>, change: Change) -> Response {
    let Some(id) = change.fields.number("id") else {
        let page = bare("Refused", "The form names no operation.");
        return (StatusCode::BAD_REQUEST, page).into_response();
    };
    match site.cancel_operation(id) {
        Ok(()) => Redirect::to(&link(id)).into_response(),
        Err(sentence) => not_started(&site, &change, "Operation not cancelled", &sentence),
    }
}

pub(crate) async fn start_move(Extract(site): Extract<Arc<Site>>, change: Change) -> Response {
    // The value of a choice: the address of the server and the partition.
    let to = change
        .fields
        .word("to")
        .split_once(' ')
        .and_then(|(server, partition)| {
            let server: IpAddr = server.parse().ok()?;
            Location::new(server, PartitionId::parse(partition)?).ok()
        });
    match to {
        Some(to) => start(&site, &change, Wish::Move(to)).await,
        None => {
            let page = bare("Refused", "The form names no server and partition.");
            (StatusCode::BAD_REQUEST, page).into_response()
        }
    }
}

pub(crate) async fn start_release(Extract(site): Extract<Arc<Site>>, change: Change) -> Response {
    let resume = change.fields.get("resume") == "on";
    start(&site, &change, Wish::Release { resume }).await
}

pub(crate) async fn start_backup(Extract(site): Extract<Arc<Site>>, change: Change) -> Response {
    start(&site, &change, Wish::Backup).await
}

async fn start(site: &Arc<Site>, change: &Change, wish: Wish) -> Response {
    let volume = change.fields.word("volume");
    let session = change.session.number;
    match site.start_operation(volume, wish, session).await {
        Ok(id) => Redirect::to(&link(id)).into_response(),
        Err(sentence) => not_started(site, change, "Operation not started", &sentence),
    }
}

fn not_started(site: &Site, change: &Change, title: &str, sentence: &str) -> Response {
    let page = Page::new(site, &change.session, Section::Jobs, title).with(html! {
        (problem(sentence))
        p { a href="/jobs" { "To the jobs" } }
    });
    (StatusCode::CONFLICT, page).into_response()
}
