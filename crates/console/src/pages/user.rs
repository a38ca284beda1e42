//! The page of one user or group: its entry, memberships, and the change of members.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use http::StatusCode;
use maud::{Markup, html};

use crate::auth::{Change, Query, Session, Viewer};
use crate::cell::{NAMES_MAX, Names, Site, UserView};
use crate::html::{Page, Section, address, count, empty, form_token, problem};

pub(crate) async fn show(
    State(site): State<Arc<Site>>,
    Viewer(session): Viewer,
    Query(fields): Query,
) -> Markup {
    let found = site.user(fields.word("id")).await;
    let title = match &found {
        Ok(view) if view.entry.is_group() => format!("Group {}", view.entry.name),
        Ok(view) => format!("User {}", view.entry.name),
        Err(_) => "User or group".to_owned(),
    };
    Page::new(&site, &session, Section::Users, &title).with(html! {
        @match &found {
            Err(sentence) => { (problem(sentence)) }
            Ok(view) => { (facts(view)) (lists(&session, view)) }
        }
        p { a href="/users" { "To the search for users" } }
    })
}

fn link(id: i32) -> String {
    address("/user", &[("id", &id.to_string())])
}

fn facts(view: &UserView) -> Markup {
    let entry = &view.entry;
    html! {
        section {
            h2 { "Entry" }
            dl.facts {
                dt { "Id" } dd { (entry.id.0) }
                dt { "Owner" } dd { a href=(link(entry.owner.0)) { (view.owner) } }
                dt { "Creator" } dd { a href=(link(entry.creator.0)) { (view.creator) } }
                dt { "Access" }
                dd {
                    code { (entry.letters()) }
                    span.note {
                        " in this order: see the status, the owned groups, the members; add members; remove members. "
                        "A capital letter is for all, a small one for members, a dash for the owner and administrators."
                    }
                }
                @if !entry.is_group() {
                    dt { "Groups it may still create" } dd { (count(entry.group_quota.into())) }
                }
            }
        }
    }
}

fn lists(session: &Session, view: &UserView) -> Markup {
    let is_group = view.entry.is_group();
    html! {
        section {
            h2 { @if is_group { "Members" } @else { "Groups" } }
            (names(&view.membership, if is_group { "The group has no members." } else { "The user is in no group." },
                (is_group && session.may_change()).then_some((session, view))))
            @if is_group && session.may_change() {
                form.row method="post" action="/user/member" {
                    (form_token(session))
                    input type="hidden" name="group" value=(view.entry.name);
                    input type="hidden" name="group_id" value=(view.entry.id.0);
                    div {
                        label for="member" { "User or group" }
                        input #member type="text" name="member" required maxlength="63" autocomplete="off";
                    }
                    button type="submit" name="change" value="add" { "Add to the group" }
                }
            }
        }
        @if let Some(groups) = &view.super_groups {
            section { h2 { "Member of groups" } (names(groups, "The group is in no other group.", None)) }
        }
        section { h2 { "Owned groups" } (names(&view.owned, "It owns no group.", None)) }
    }
}

fn names(
    names: &Result<Names, String>,
    none: &str,
    removable: Option<(&Session, &UserView)>,
) -> Markup {
    html! {
        @match names {
            Err(sentence) => { (problem(sentence)) }
            Ok(names) if names.all == 0 => { (empty(none)) }
            Ok(names) => {
                ul.names {
                    @for (id, name) in &names.shown {
                        li {
                            a href=(link(id.0)) { (name) }
                            @if let Some((session, view)) = removable {
                                form method="post" action="/user/member" {
                                    (form_token(session))
                                    input type="hidden" name="group" value=(view.entry.name);
                                    input type="hidden" name="group_id" value=(view.entry.id.0);
                                    input type="hidden" name="member" value=(name);
                                    button.small.danger type="submit" name="change" value="remove"
                                        aria-label=(format!("Remove {name} from the group")) { "Remove" }
                                }
                            }
                        }
                    }
                }
                @if names.all > NAMES_MAX {
                    p.hint { "The first " (count(NAMES_MAX as u64)) " of " (count(names.all as u64)) "; 'cellar pts membership' lists all." }
                }
            }
        }
    }
}

pub(crate) async fn change_member(State(site): State<Arc<Site>>, change: Change) -> Response {
    let fields = &change.fields;
    let (group, member) = (fields.get("group"), fields.word("member"));
    let add = match fields.get("change") {
        "add" => true,
        "remove" => false,
        _ => {
            let page = crate::html::bare("Refused", "The form names no change.");
            return (StatusCode::BAD_REQUEST, page).into_response();
        }
    };
    let back = link(fields.number("group_id").unwrap_or(0));
    match site.change_member(group, member, add).await {
        Ok(()) => Redirect::to(&back).into_response(),
        Err(sentence) => {
            let page = Page::new(
                &site,
                &change.session,
                Section::Users,
                "Members not changed",
            );
            let page = page.with(html! {
                (problem(&sentence))
                p { a href=(back) { "To the group" } }
            });
            (StatusCode::CONFLICT, page).into_response()
        }
    }
}
