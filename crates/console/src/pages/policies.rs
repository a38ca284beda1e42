//! Policies: the list, the editor, and the test of a policy before it is stored.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use cellar_admin::osd::{PolicyView, Preview};
use cellar_policy::{Form, Policy};
use http::StatusCode;
use maud::{Markup, html};

use crate::auth::{Asked, Change, Fields, Query, Session, Viewer};
use crate::cell::{Site, TestFile};
use crate::html::{Page, Section, address, count, empty, form_token, problem, scroll};

/// The size of the file in an empty test box.
const SIZE: &str = "64m";

pub(crate) async fn show(State(site): State<Arc<Site>>, Viewer(session): Viewer) -> Markup {
    let policies = site.policies().await;
    Page::new(&site, &session, Section::Policies, "Policies").with(html! {
        p {
            "A policy decides by its rules which files become objects, and in which layout. "
            "Volumes and directories name the policy that applies to them."
        }
        section {
            h2 { "Policies of the cell" }
            @match &policies {
                Err(sentence) => { (problem(sentence)) }
                Ok(policies) if policies.is_empty() => {
                    (empty("There are no policies. Files become objects by their size, or not at all."))
                }
                Ok(policies) => { (table(policies)) }
            }
            @if policies.is_ok() && session.may_change() {
                p { a.button href="/policy" { "Write a new policy" } }
            }
        }
    })
}

fn table(policies: &[PolicyView]) -> Markup {
    scroll(
        "Policies of the cell",
        html! {
            table {
                thead { tr {
                    th.number scope="col" { "Id" }
                    th scope="col" { "Name" }
                    th.number scope="col" { "Rules" }
                    th.number scope="col" { "Revision" }
                    th scope="col" { "Begins with" }
                } }
                tbody { @for policy in policies { tr {
                    td.number { (policy.id) }
                    td { a href=(link(policy.id)) { (policy.name) } }
                    td.number { (count(policy.rules as u64)) }
                    td.number { (policy.revision) }
                    td.wrap { code { (policy.text.lines().next().unwrap_or_default()) } }
                } } }
            }
        },
    )
}

fn link(id: u32) -> String {
    address("/policy", &[("id", &id.to_string())])
}

/// A policy in the editor. Number 0 is a new one.
#[derive(Default)]
struct Draft {
    id: u32,
    name: String,
    text: String,
    file: String,
    size: String,
    volume: String,
    user: String,
}

impl Draft {
    fn of(fields: &Fields) -> Self {
        Self {
            id: fields.number("id").unwrap_or(0),
            name: fields.word("name").to_owned(),
            // Forms have lines as MIME has them.
            text: fields.get("text").replace("\r\n", "\n"),
            file: fields.word("file").to_owned(),
            size: fields.word("size").to_owned(),
            volume: fields.word("volume").to_owned(),
            user: fields.word("user").to_owned(),
        }
    }

    fn title(&self) -> String {
        match self.id {
            0 => "New policy".to_owned(),
            id => format!("Policy {id}"),
        }
    }
}

/// The sentence or result above the editor.
enum Outcome {
    None,
    Stored,
    Tested(Box<Preview>, u64),
    Problem(String),
}

pub(crate) async fn show_one(
    State(site): State<Arc<Site>>,
    Viewer(session): Viewer,
    Query(fields): Query,
) -> Response {
    let mut draft = Draft {
        size: SIZE.to_owned(),
        ..Draft::default()
    };
    let mut status = StatusCode::OK;
    let outcome = match fields.number::<u32>("id") {
        None => Outcome::None,
        Some(id) => match site.policies().await {
            Err(sentence) => Outcome::Problem(sentence),
            Ok(policies) => match policies.into_iter().find(|policy| policy.id == id) {
                None => {
                    status = StatusCode::NOT_FOUND;
                    Outcome::Problem(format!("There is no policy {id}."))
                }
                Some(policy) => {
                    draft.id = policy.id;
                    draft.name = policy.name;
                    draft.text = policy.text;
                    match fields.get("stored") {
                        "" => Outcome::None,
                        _ => Outcome::Stored,
                    }
                }
            },
        },
    };
    (status, editor(&site, &session, &draft, &outcome)).into_response()
}

fn editor(site: &Site, session: &Session, draft: &Draft, outcome: &Outcome) -> Markup {
    let title = draft.title();
    Page::new(site, session, Section::Policies, &title).with(html! {
        (shown(outcome))
        form method="post" action="/policy/test" {
            (form_token(session))
            input type="hidden" name="id" value=(draft.id);
            section {
                h2 { "Rules" }
                div.stack {
                    label for="name" { "Name" }
                    input #name type="text" name="name" value=(draft.name) maxlength="63" autocomplete="off"
                        readonly[!session.may_change()];
                    label for="text" { "Text of the rules" }
                    textarea #text name="text" rows="10" spellcheck="false" aria-describedby="language" { (draft.text) }
                    p.hint #language {
                        "For example: " code { "~'*.root' => osd, copies=2;" }
                        " The chapter 'Objects' of the operating manual has the language."
                    }
                }
                @if session.may_change() {
                    button type="submit" formaction="/policy/store" { "Store the policy" }
                }
            }
            section {
                h2 { "Test" }
                p.hint { "Says where a file would be stored under these rules, stored or not. A test changes nothing." }
                div.row {
                    (field("file", "File in the volume", &draft.file, "data/run1.root"))
                    (field("size", "Size", &draft.size, SIZE))
                    (field("volume", "Volume", &draft.volume, "none"))
                    (field("user", "User", &draft.user, "none"))
                    button.plain type="submit" { "Test the rules" }
                }
            }
        }
        (meaning(&draft.text))
        @if draft.id != 0 && session.may_change() {
            section {
                h2 { "Delete" }
                form.row method="post" action="/policy/delete" {
                    (form_token(session))
                    input type="hidden" name="id" value=(draft.id);
                    label.check {
                        input type="checkbox" name="sure" value="yes" required;
                        "Volumes and directories that name policy " (draft.id) " are then treated as without a policy"
                    }
                    button.danger type="submit" { "Delete the policy" }
                }
            }
        }
        p { a href="/policies" { "To the policies" } }
    })
}

/// The rules in the longest form of `cellar osd policy show`.
fn meaning(text: &str) -> Markup {
    html! {
        @if let Ok(policy) = Policy::parse(text) && !policy.rules.is_empty() {
            section {
                h2 { "The rules in words" }
                pre { (policy.print(Form::Long)) }
            }
        }
    }
}

fn field(name: &str, label: &str, value: &str, example: &str) -> Markup {
    html! {
        div {
            label for=(name) { (label) }
            input id=(name) type="text" name=(name) value=(value) placeholder=(example) autocomplete="off";
        }
    }
}

fn shown(outcome: &Outcome) -> Markup {
    html! {
        @match outcome {
            Outcome::None => {}
            Outcome::Stored => { p.done role="status" { "The policy is stored." } }
            Outcome::Problem(sentence) => { (problem(sentence)) }
            Outcome::Tested(preview, size) => {
                section {
                    h2 { "Result of the test" }
                    pre role="status" { (preview.text(*size)) }
                }
            }
        }
    }
}

pub(crate) async fn test(State(site): State<Arc<Site>>, asked: Asked) -> Response {
    let draft = Draft::of(&asked.fields);
    let outcome = match cellar_policy::parse_size(&draft.size, 0) {
        None => Outcome::Problem(format!(
            "'{}' is not a size; write 0, 4k, 64m or 2g",
            draft.size
        )),
        Some(size) => {
            let file = TestFile {
                path: draft.file.clone(),
                size,
                volume: draft.volume.clone(),
                user: draft.user.clone(),
            };
            match site.test_policy(&draft.text, &file).await {
                Ok(preview) => Outcome::Tested(Box::new(preview), size),
                Err(sentence) => Outcome::Problem(sentence),
            }
        }
    };
    editor(&site, &asked.session, &draft, &outcome).into_response()
}

pub(crate) async fn store(State(site): State<Arc<Site>>, change: Change) -> Response {
    let draft = Draft::of(&change.fields);
    let stored = match draft.name.is_empty() {
        true => Err("A policy needs a name.".to_owned()),
        false => site.store_policy(draft.id, &draft.name, &draft.text).await,
    };
    match stored {
        Ok(id) => {
            let id = id.to_string();
            let fields = [("id", id.as_str()), ("stored", "yes")];
            Redirect::to(&address("/policy", &fields)).into_response()
        }
        Err(sentence) => {
            let page = editor(&site, &change.session, &draft, &Outcome::Problem(sentence));
            (StatusCode::CONFLICT, page).into_response()
        }
    }
}

pub(crate) async fn delete(State(site): State<Arc<Site>>, change: Change) -> Response {
    let id: u32 = change.fields.number("id").unwrap_or(0);
    let deleted = match change.fields.get("sure") {
        "yes" => site.delete_policy(id).await,
        _ => Err("The form does not say that you are sure.".to_owned()),
    };
    match deleted {
        Ok(_) => Redirect::to("/policies").into_response(),
        Err(sentence) => {
            let page = Page::new(
                &site,
                &change.session,
                Section::Policies,
                "Policy not deleted",
            );
            let page = page.with(html! {
                (problem(&sentence))
                p { a href=(link(id)) { "To policy " (id) } }
            });
            (StatusCode::CONFLICT, page).into_response()
        }
    }
}
