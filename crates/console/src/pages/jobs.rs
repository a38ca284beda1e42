//! Operations on volumes, jobs of file servers, and repairs, with their progress; cancel and retry.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use cellar_admin::date::to_the_minute;
use cellar_admin::jobs::{Change as JobChange, Details, Job};
use cellar_admin::recalls::Recall;
use cellar_admin::table::short_size;
use http::StatusCode;
use maud::{Markup, html};

use super::{operations, repairs, transactions};
use crate::auth::{Change, Query, Session, Viewer};
use crate::cell::{JOBS_MAX, Site, Work};
use crate::html::{Page, Section, address, bare, count, empty, form_token, problem, scroll};
use crate::plot;

/// The most files of a job on its page.
const ITEMS_MAX: usize = 200;
/// The most recalls on the page.
const RECALLS_MAX: usize = 100;
/// The most characters of the arguments of a job on its page.
const ARGUMENT_CHARS_MAX: usize = 400;
/// Seconds between two loads of the page, if the user wants that.
const REFRESH_SECONDS: u32 = 5;

/// The changes of a job, with their words in forms and on buttons.
const CHANGES: [(JobChange, &str, &str); 4] = [
    (JobChange::Cancel, "cancel", "Cancel"),
    (JobChange::Retry, "retry", "Run again"),
    (JobChange::First, "first", "To the front"),
    (JobChange::Last, "last", "To the end"),
];

pub(crate) async fn show(
    State(site): State<Arc<Site>>,
    Viewer(session): Viewer,
    Query(fields): Query,
) -> Markup {
    let (ended, is_live) = (fields.get("ended") == "on", fields.get("live") == "on");
    let (work, overview) = tokio::join!(site.work(ended), site.servers());
    let mut page = Page::new(&site, &session, Section::Jobs, "Jobs");
    page.refresh = is_live.then_some(REFRESH_SECONDS);
    page.with(html! {
        form.row method="get" action="/jobs" {
            label.check { input type="checkbox" name="ended" value="on" checked[ended]; "with jobs that have ended" }
            label.check { input type="checkbox" name="live" value="on" checked[is_live]; "load again every 5 s" }
            button.plain type="submit" { "Show" }
        }
        (operations::list(&site, &session))
        @match work.as_ref() {
            Err(sentence) => { (problem(sentence)) }
            Ok(work) => {
                (transactions::list(&site, &session, &work.servers))
                (jobs(&site, &session, work, ended))
                (recalls(&site, work))
                (repairs::drains(&session, overview.status.devices.as_deref()))
                (repairs::list(&site, &work.servers))
            }
        }
    })
}

fn jobs(site: &Site, session: &Session, work: &Work, ended: bool) -> Markup {
    let servers = &work.servers;
    let all: Vec<&Job> = servers
        .iter()
        .flat_map(|server| server.jobs.iter().flatten())
        .collect();
    let hosts = site.hosts();
    html! {
        section {
            h2 { "Jobs of file servers" }
            @for server in servers {
                @if let Err(sentence) = &server.jobs { p.problem { (hosts.name(server.server)) ": " (sentence) } }
                @if server.jobs.as_ref().is_ok_and(|jobs| jobs.len() >= JOBS_MAX) {
                    p.hint { (hosts.name(server.server)) " has more jobs; 'cellar jobs list' shows all." }
                }
            }
            @if all.is_empty() {
                (empty(if ended { "There are no jobs." } else { "No job waits or runs." }))
            } @else {
                (scroll("Jobs", html! {
                    table {
                        thead { tr {
                            th.number scope="col" { "Job" }
                            th scope="col" { "Server" }
                            th scope="col" { "Kind" }
                            th scope="col" { "User" }
                            th scope="col" { "Device" }
                            th scope="col" { "State" }
                            th scope="col" { "Progress" }
                            th.number scope="col" { "Failed" }
                            th scope="col" { "Since" }
                            @if session.may_change() { th scope="col" { "Change" } }
                        } }
                        tbody { @for job in &all { tr {
                            td.number { a href=(link(job)) { (job.id) } }
                            td { (hosts.name(job.server)) }
                            td { (job.kind) }
                            td { (user(job, work.user(&job.user))) }
                            td { (job.resource) }
                            td { (state(job)) }
                            td { (progress(job)) }
                            td.number { (count(job.failed)) }
                            td { (since(job)) }
                            @if session.may_change() { td { (buttons(session, job, true)) } }
                        } } }
                    }
                }))
            }
        }
    }
}

/// The user of a job; its number leads to the entry.
fn user(job: &Job, name: &str) -> Markup {
    html! {
        @if job.user.parse::<i32>().is_ok() {
            a href=(address("/user", &[("id", &job.user)])) { (name) }
        } @else { (name) }
    }
}

fn link(job: &Job) -> String {
    let (server, id) = (job.server.to_string(), job.id.to_string());
    address("/job", &[("server", &server), ("id", &id)])
}

fn since(job: &Job) -> String {
    to_the_minute(job.ended.or(job.started).unwrap_or(job.created) / 1000)
}

fn word(job: &Job) -> &str {
    match job.cancelling {
        true => "cancelling",
        false => &job.state,
    }
}

fn state(job: &Job) -> Markup {
    let class = match word(job) {
        "failed" => "state bad",
        "done" | "running" => "state well",
        _ => "state",
    };
    html! {
        span class=(class) { (word(job)) }
        @if let Some(error) = &job.error { br; span.note { (error) } }
    }
}

fn progress(job: &Job) -> Markup {
    let of = |done: String, all: String, is_known: bool| match is_known {
        true => format!("{done} of {all}"),
        false => done,
    };
    let files = of(
        count(job.files),
        count(job.expected_files),
        job.expected_files > 0,
    );
    let bytes = of(
        short_size(job.bytes),
        short_size(job.expected_bytes),
        job.expected_bytes > 0,
    );
    html! {
        @if job.expected_bytes > 0 {
            (plot::progress("Progress", job.bytes, job.expected_bytes))
        } @else if job.expected_files > 0 {
            (plot::progress("Progress", job.files, job.expected_files))
        }
        span.note { (files) " files, " (bytes) }
    }
}

/// Whether the state of a job permits a change.
fn permits(job: &Job, change: JobChange) -> bool {
    match change {
        JobChange::Cancel => {
            !job.cancelling && matches!(job.state.as_str(), "queued" | "running" | "waiting")
        }
        JobChange::Retry => matches!(job.state.as_str(), "failed" | "cancelled"),
        JobChange::First | JobChange::Last => job.state == "queued",
    }
}

fn buttons(session: &Session, job: &Job, is_short: bool) -> Markup {
    let permitted = CHANGES.iter().filter(|(change, _, _)| {
        let is_frequent = matches!(change, JobChange::Cancel | JobChange::Retry);
        permits(job, *change) && (is_frequent || !is_short)
    });
    html! {
        form method="post" action="/job/change" {
            (form_token(session))
            input type="hidden" name="server" value=(job.server);
            input type="hidden" name="id" value=(job.id);
            @for (change, name, label) in permitted {
                @let class = if *change == JobChange::Cancel { "small danger" } else { "small plain" };
                button class=(class) type="submit" name="change" value=(name)
                    aria-label=(format!("{label}: job {}", job.id)) { (label) }
                " "
            }
        }
    }
}

fn recalls(site: &Site, work: &Work) -> Markup {
    let all: Vec<&Recall> = work
        .servers
        .iter()
        .flat_map(|server| &server.recalls)
        .collect();
    if all.is_empty() {
        return html! {};
    }
    let hosts = site.hosts();
    html! {
        section {
            h2 { "Recalls of wiped files" }
            (scroll("Recalls of wiped files", html! {
                table {
                    thead { tr {
                        th scope="col" { "Archive" }
                        th.number scope="col" { "Place" }
                        th scope="col" { "State" }
                        th scope="col" { "File" }
                        th.number scope="col" { "Size" }
                        th scope="col" { "User" }
                        th scope="col" { "Since" }
                        th scope="col" { "Server" }
                    } }
                    tbody { @for recall in all.iter().take(RECALLS_MAX) { tr {
                        td { (recall.archive) }
                        td.number {
                            @match recall.place { Some(place) => { (count(place)) } None => { "–" } }
                        }
                        td {
                            (recall.state)
                            @if let Some(error) = &recall.error { br; span.note { (error) } }
                        }
                        td.wrap { (recall.file()) }
                        td.number { (short_size(recall.bytes)) }
                        td { (work.user(&recall.user)) }
                        td { (to_the_minute(recall.created / 1000)) }
                        td { (hosts.name(recall.server)) }
                    } } }
                }
            }))
            @if all.len() > RECALLS_MAX {
                p.hint { "and " (count((all.len() - RECALLS_MAX) as u64)) " more; 'cellar hsm queue' lists all" }
            }
        }
    }
}

pub(crate) async fn show_one(
    State(site): State<Arc<Site>>,
    Viewer(session): Viewer,
    Query(fields): Query,
) -> Response {
    let place = fields.number::<IpAddr>("server").zip(fields.number("id"));
    let Some((server, id)) = place else {
        let page = bare("No such job", "The address names no server and job.");
        return (StatusCode::NOT_FOUND, page).into_response();
    };
    let found = site.job(server, id).await;
    let title = format!("Job {id}");
    let page = Page::new(&site, &session, Section::Jobs, &title).with(html! {
        @match &found {
            Err(sentence) => { (problem(sentence)) }
            Ok(details) => { (facts(&site, &session, details)) (items(details)) }
        }
        p { a href="/jobs" { "To the jobs" } }
    });
    page.into_response()
}

fn facts(site: &Site, session: &Session, details: &Details) -> Markup {
    let job = &details.job;
    let time = |millis: u64| to_the_minute(millis / 1000);
    html! {
        section {
            h2 { "Facts" }
            dl.facts {
                dt { "Server" } dd { (site.hosts().name(job.server)) }
                dt { "State" } dd { (state(job)) }
                dt { "Kind" } dd { (job.kind) }
                dt { "User" } dd { (user(job, &job.user)) }
                dt { "Device" } dd { (job.resource) }
                dt { "Progress" } dd { (progress(job)) ", " (count(job.failed)) " failed" }
                dt { "Submitted" } dd { (time(job.created)) }
                @if let Some(at) = job.started { dt { "Started" } dd { (time(at)) } }
                @if let Some(at) = job.until { dt { "Waits until" } dd { (time(at)) } }
                @if let Some(at) = job.ended { dt { "Ended" } dd { (time(at)) } }
                @if !details.arguments.is_null() {
                    dt { "Arguments" } dd { code { (arguments(details)) } }
                }
            }
            @if session.may_change() { (buttons(session, job, false)) }
        }
    }
}

/// The beginning of the arguments. Those of many files are long.
fn arguments(details: &Details) -> String {
    let text = details.arguments.to_string();
    match text.chars().count() > ARGUMENT_CHARS_MAX {
        true => text.chars().take(ARGUMENT_CHARS_MAX).chain(['…']).collect(),
        false => text,
    }
}

fn items(details: &Details) -> Markup {
    html! {
        section {
            h2 { "Files" }
            @if details.items.is_empty() { (empty("No file has a result yet.")) } @else {
                (scroll("Files", html! {
                    table {
                        thead { tr { th scope="col" { "File" } th scope="col" { "Result" } } }
                        tbody { @for item in details.items.iter().take(ITEMS_MAX) { tr {
                            td { (item.file) }
                            td.wrap { (item.error.as_deref().unwrap_or("done")) }
                        } } }
                    }
                }))
                @if details.items.len() > ITEMS_MAX {
                    p.hint { "and " (count((details.items.len() - ITEMS_MAX) as u64)) " more; 'cellar jobs show' lists all" }
                }
            }
        }
    }
}

pub(crate) async fn change(State(site): State<Arc<Site>>, change: Change) -> Response {
    let fields = &change.fields;
    let place = fields.number::<IpAddr>("server").zip(fields.number("id"));
    let wanted = CHANGES
        .iter()
        .find(|(_, name, _)| *name == fields.get("change"));
    let (Some((server, id)), Some((wanted, _, _))) = (place, wanted) else {
        let page = bare("Refused", "The form names no job and no change.");
        return (StatusCode::BAD_REQUEST, page).into_response();
    };
    match site.change_job(server, id, *wanted).await {
        Ok(()) => Redirect::to("/jobs").into_response(),
        Err(sentence) => {
            let page =
                Page::new(&site, &change.session, Section::Jobs, "Job not changed").with(html! {
                    (problem(&sentence))
                    p { a href="/jobs" { "To the jobs" } }
                });
            (StatusCode::CONFLICT, page).into_response()
        }
    }
}
