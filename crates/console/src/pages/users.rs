//! The search for users and groups.

use std::sync::Arc;

use axum::extract::State;
use cellar_admin::pts::Entry;
use maud::{Markup, html};

use crate::auth::{Query, Viewer};
use crate::cell::{Cursor, SEARCH_BYTES_MAX, Site, UserKinds, UserList, UserSearch};
use crate::html::{Page, Section, address, count, empty, pager, problem, scroll};

/// The kinds of entries, with their words in forms.
const KINDS: [(UserKinds, &str, &str); 3] = [
    (UserKinds::Both, "both", "users and groups"),
    (UserKinds::Users, "users", "users"),
    (UserKinds::Groups, "groups", "groups"),
];

pub(crate) async fn show(
    State(site): State<Arc<Site>>,
    Viewer(session): Viewer,
    Query(fields): Query,
) -> Markup {
    let text = fields.word("q");
    let kinds = KINDS
        .iter()
        .find(|(_, word, _)| *word == fields.get("kind"));
    let search = UserSearch {
        text: text.to_ascii_lowercase(),
        kinds: kinds.map_or(UserKinds::Both, |(kinds, _, _)| *kinds),
        from: Cursor {
            index: fields.number("from").unwrap_or(0).max(0),
            skip: fields.number("skip").unwrap_or(0),
        },
    };
    let list = match text.len() > SEARCH_BYTES_MAX {
        true => Arc::new(Err("The text is longer than any name.".to_owned())),
        false => site.user_list(search.clone()).await,
    };
    Page::new(&site, &session, Section::Users, "Users and groups").with(html! {
        form.row method="get" action="/users" role="search" {
            div {
                label for="q" { "Part of the name" }
                input #q type="search" name="q" value=(text) maxlength=(SEARCH_BYTES_MAX);
            }
            div {
                label for="kind" { "Kind" }
                select #kind name="kind" {
                    @for (kinds, word, label) in KINDS {
                        option value=(word) selected[kinds == search.kinds] { (label) }
                    }
                }
            }
            button type="submit" { "Search" }
        }
        section {
            h2 { "Found" }
            @match list.as_ref() {
                Err(sentence) => {
                    (problem(sentence))
                    @if !text.is_empty() {
                        p { a href=(address("/user", &[("id", text)])) { "Look for an entry with exactly this name or number" } }
                    }
                }
                Ok(list) if list.entries.is_empty() => { (empty("No user and no group matches.")) }
                Ok(list) => { (table(&list.entries)) }
            }
            @if let Ok(list) = list.as_ref() {
                @if list.is_cut { p.hint { "The search stopped at its time limit. The next page continues it." } }
                (pages(&search, list))
            }
        }
    })
}

fn pages(search: &UserSearch, list: &UserList) -> Markup {
    let word = KINDS.iter().find(|(kinds, _, _)| *kinds == search.kinds);
    let word = word.map_or("both", |(_, word, _)| *word);
    let fields = [("q", search.text.as_str()), ("kind", word)];
    let first = address("/users", &fields);
    let next = list.next.map(|next| {
        let (index, skip) = (next.index.to_string(), next.skip.to_string());
        let more = [("from", index.as_str()), ("skip", skip.as_str())];
        address("/users", &[fields, more].concat())
    });
    let is_first = search.from == Cursor::default();
    pager((!is_first).then_some(first.as_str()), next.as_deref())
}

fn table(entries: &[Entry]) -> Markup {
    scroll(
        "Users and groups found",
        html! {
            table {
                thead { tr {
                    th scope="col" { "Name" }
                    th scope="col" { "Kind" }
                    th.number scope="col" { "Id" }
                    th.number scope="col" { "Members, or groups" }
                    th scope="col" { "Access" }
                } }
                tbody { @for entry in entries { tr {
                    td { a href=(address("/user", &[("id", &entry.id.0.to_string())])) { (entry.name) } }
                    td { @if entry.is_group() { "group" } @else { "user" } }
                    td.number { (entry.id.0) }
                    td.number { (count(entry.membership.into())) }
                    td { code { (entry.letters()) } }
                } } }
            }
        },
    )
}
