//! The login by a one-time token, and the end of a session.
//!
//! The address that `cellar console login` prints leads to a form with the token in it. A look at
//! the address uses nothing up; only the button does.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::header::SET_COOKIE;
use http::{HeaderMap, StatusCode};
use maud::{Markup, html};

use crate::auth::{Fields, Gate, Query, cookie, ended_cookie, is_own_page, session_cookie};
use crate::cell::Site;
use crate::html::{alone, bare};

fn form(site: &Site, token: &str, refusal: Option<&str>) -> Markup {
    alone(
        "Log in",
        html! {
            p { "Web console of the AFS cell " strong { (site.name()) } "." }
            @if let Some(refusal) = refusal { p.problem role="alert" { (refusal) } }
            form.stack method="post" action="/login" {
                label for="token" { "One-time token" }
                input #token name="token" type="text" value=(token) autocomplete="off"
                    autocapitalize="none" spellcheck="false" required
                    aria-describedby="source";
                p.hint #source {
                    "The command " code { "cellar console login" }
                    " on the machine of the console prints an address with a token."
                }
                button type="submit" { "Log in" }
            }
        },
    )
}

pub(crate) async fn show(State(site): State<Arc<Site>>, Query(fields): Query) -> Markup {
    form(&site, fields.word("token"), None)
}

pub(crate) async fn enter(
    State(site): State<Arc<Site>>,
    State(gate): State<Arc<Gate>>,
    headers: HeaderMap,
    fields: Fields,
) -> Response {
    if !is_own_page(&gate, &headers) {
        let sentence = "The form does not come from a page of this console.";
        return (StatusCode::FORBIDDEN, bare("Refused", sentence)).into_response();
    }
    match gate.redeem(fields.word("token")) {
        Some(secret) => {
            let cookie = session_cookie(&gate, &secret);
            ([(SET_COOKIE, cookie)], Redirect::to("/")).into_response()
        }
        None => {
            let refusal = "The token is wrong, was used, or is older than ten minutes.";
            let page = form(&site, "", Some(refusal));
            (StatusCode::FORBIDDEN, page).into_response()
        }
    }
}

pub(crate) async fn leave(State(gate): State<Arc<Gate>>, headers: HeaderMap) -> Response {
    // A forged logout does no harm, but it would be a nuisance.
    if !is_own_page(&gate, &headers) {
        let sentence = "The form does not come from a page of this console.";
        return (StatusCode::FORBIDDEN, bare("Refused", sentence)).into_response();
    }
    if let Some(secret) = cookie(&gate, &headers) {
        gate.close(secret);
    }
    let cookie = ended_cookie(&gate);
    ([(SET_COOKIE, cookie)], Redirect::to("/login")).into_response()
}
