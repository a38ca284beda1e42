//! The end of the audit log of a server, for administrators.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use crate::auth::{Query, Viewer};
use crate::cell::Site;
use crate::html::{Page, Section, bare, empty, problem, scroll};

/// The most records on the page.
const RECORDS_MAX: usize = 200;

pub(crate) async fn show(
    State(site): State<Arc<Site>>,
    Viewer(session): Viewer,
    Query(fields): Query,
) -> Response {
    if !session.may_change() {
        let page = bare("Refused", "The audit log is for administrators.");
        return (StatusCode::FORBIDDEN, page).into_response();
    }
    let overview = site.servers().await;
    let status = &overview.status;
    let databases = status.database_servers.iter().map(|server| server.address);
    let files = status.file_servers.iter();
    let files = files.filter_map(|server| server.answered.or(server.addresses.first().copied()));
    let mut servers: Vec<IpAddr> = databases.chain(files).collect();
    servers.sort();
    servers.dedup();
    let named = fields.number::<IpAddr>("server");
    // Only servers of the cell are asked.
    let server = named
        .filter(|server| servers.contains(server))
        .or(servers.first().copied());
    let text = fields.word("q");
    let hosts = site.hosts();
    let log = match server {
        Some(server) => site.audit(server).await,
        None => Arc::new(Err("The cell has no server that answers.".to_owned())),
    };
    let page = Page::new(&site, &session, Section::Audit, "Audit").with(html! {
        form.row method="get" action="/audit" role="search" {
            div {
                label for="server" { "Server" }
                select #server name="server" {
                    @for known in &servers {
                        option value=(known) selected[server == Some(*known)] { (hosts.name(*known)) }
                    }
                }
            }
            div {
                label for="q" { "Text in the record" }
                input #q type="search" name="q" value=(text);
            }
            button type="submit" { "Show" }
        }
        section {
            h2 { "Administrative acts, the newest first" }
            @match log.as_ref() {
                Err(sentence) => { (problem(sentence)) }
                Ok(log) => { (records(log, text)) }
            }
        }
    });
    page.into_response()
}

fn records(log: &str, text: &str) -> Markup {
    let wanted = text.to_lowercase();
    let lines = log.lines().rev();
    let matching = lines.filter(|line| line.to_lowercase().contains(&wanted));
    let records: Vec<Value> = matching
        .filter_map(|line| serde_json::from_str(line).ok())
        .take(RECORDS_MAX)
        .collect();
    if records.is_empty() {
        return empty("The end of the log has no such record.");
    }
    html! {
        (scroll("Administrative acts", html! {
            table {
                thead { tr {
                    th scope="col" { "Time" }
                    th scope="col" { "Act" }
                    th scope="col" { "Caller" }
                    th scope="col" { "From" }
                    th scope="col" { "Result" }
                    th scope="col" { "Details" }
                } }
                tbody { @for record in &records { tr {
                    td { (word(record, "time")) }
                    td { (word(record, "act")) }
                    td { (word(record, "who")) }
                    td { (word(record, "peer")) }
                    td { (result(record)) }
                    td.wrap { (details(record)) }
                } } }
            }
        }))
        @if records.len() == RECORDS_MAX {
            p.hint { "The newest " (RECORDS_MAX) " records; 'cellar bos getlog SERVER AuditLog' prints all." }
        }
    }
}

fn word<'r>(record: &'r Value, key: &str) -> &'r str {
    record.get(key).and_then(Value::as_str).unwrap_or("–")
}

fn result(record: &Value) -> Markup {
    let code = record.get("code").and_then(Value::as_i64);
    html! {
        @match (record.get("allowed").and_then(Value::as_bool), code) {
            (Some(true), _) => { span.state.well { "done" } }
            (Some(false), Some(code)) => { span.state.bad { "refused, " (code) } }
            _ => { "–" }
        }
    }
}

fn details(record: &Value) -> String {
    let Some(details) = record.get("details").and_then(Value::as_object) else {
        return String::new();
    };
    let parts = details.iter().map(|(key, value)| match value {
        Value::String(text) => format!("{key} {text}"),
        value => format!("{key} {value}"),
    });
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_filtered_and_escaped() {
        let log = "{\"time\":\"1\",\"act\":\"PR_NewEntry\",\"who\":\"<b>x\",\"peer\":null,\"allowed\":true,\
                   \"code\":0,\"details\":{\"name\":\"<script>\",\"id\":7}}\nnot JSON\n\
                   {\"time\":\"2\",\"act\":\"PR_Delete\",\"who\":\"y\",\"allowed\":false,\"code\":267269}\n";
        let all = records(log, "").into_string();
        assert!(all.find("PR_Delete") < all.find("PR_NewEntry"), "{all}");
        assert!(all.contains("&lt;b&gt;x"), "{all}");
        assert!(all.contains("id 7, name &lt;script&gt;"), "{all}");
        assert!(!all.contains("<script>"), "{all}");
        assert!(all.contains("refused, 267269"), "{all}");
        let one = records(log, "newentry").into_string();
        assert!(!one.contains("PR_Delete"), "{one}");
        assert!(
            records(log, "nothing")
                .into_string()
                .contains("no such record")
        );
    }
}
