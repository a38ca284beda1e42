//! The session of a request, and the forms that change something.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{COOKIE, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::{Gate, Role, SESSION_TIME, Session, is_same};

/// The longest form in bytes. A policy has at most 64 KiB, and each byte may take three.
pub(crate) const FORM_BYTES_MAX: usize = 256 << 10;
/// The name of the cookie over TLS. Browsers accept such a name only from the host itself.
const SECURE_COOKIE: &str = "__Host-cellar-console";
/// The name of the cookie without TLS.
const PLAIN_COOKIE: &str = "cellar-console";
/// The field of a form that has the random number of its session.
pub(crate) const FORM_TOKEN: &str = "form_token";

/// A request with a session.
#[derive(Clone, Debug)]
pub struct Viewer(pub Session);

impl<S> FromRequestParts<S> for Viewer
where
    S: Send + Sync,
    Arc<Gate>: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let gate = Arc::<Gate>::from_ref(state);
        match cookie(&gate, &parts.headers).and_then(|cookie| gate.session(cookie)) {
            Some(session) => Ok(Self(session)),
            None if parts.method == Method::GET => Err(Redirect::to("/login").into_response()),
            None => Err(refused(
                StatusCode::UNAUTHORIZED,
                "The session has ended. Log in again, and repeat the change.",
            )),
        }
    }
}

/// A form that the page of a session sent. It may ask, and change nothing.
#[derive(Debug)]
pub struct Asked {
    /// The session.
    pub session: Session,
    /// The fields of the form.
    pub fields: Fields,
}

impl<S> FromRequest<S> for Asked
where
    S: Send + Sync,
    Arc<Gate>: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let gate = Arc::<Gate>::from_ref(state);
        let (mut parts, body) = request.into_parts();
        let Viewer(session) = Viewer::from_request_parts(&mut parts, state).await?;
        if !is_own_page(&gate, &parts.headers) {
            return Err(refused(
                StatusCode::FORBIDDEN,
                "The form does not come from a page of this console.",
            ));
        }
        let request = Request::from_parts(parts, body);
        let fields: Fields = Fields::from_request(request, state).await?;
        if !is_same(fields.get(FORM_TOKEN), &session.form_token) {
            return Err(refused(
                StatusCode::FORBIDDEN,
                "The form belongs to another session. Open its page again, and repeat the change.",
            ));
        }
        Ok(Self { session, fields })
    }
}

/// A form that an administrator sent from a page of this service.
#[derive(Debug)]
pub struct Change {
    /// The session.
    pub session: Session,
    /// The fields of the form.
    pub fields: Fields,
}

impl<S> FromRequest<S> for Change
where
    S: Send + Sync,
    Arc<Gate>: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let address = request.uri().path().to_owned();
        let Asked { session, fields } = Asked::from_request(request, state).await?;
        if session.role != Role::Administrator {
            return Err(refused(
                StatusCode::FORBIDDEN,
                "A reader makes no changes. 'cellar console login' without --read-only admits an administrator.",
            ));
        }
        tracing::info!(session = session.number, address, "a change");
        Ok(Self { session, fields })
    }
}

/// The fields of a form. In the arguments of a handler: those of the body.
#[derive(Clone, Debug, Default)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// The fields of an encoded text.
    pub fn parse(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().collect())
    }

    /// A field; empty if it is missing.
    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// A field without blanks at its ends.
    pub fn word(&self, name: &str) -> &str {
        self.get(name).trim()
    }

    /// A field that is a number.
    pub fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.word(name).parse().ok()
    }
}

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let body = axum::body::to_bytes(request.into_body(), FORM_BYTES_MAX);
        let too_long = |_| refused(StatusCode::PAYLOAD_TOO_LARGE, "The form is too long.");
        Ok(Self::parse(&body.await.map_err(too_long)?))
    }
}

/// The fields of the query of an address.
#[derive(Clone, Debug)]
pub struct Query(pub Fields);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let query = parts.uri.query().unwrap_or_default();
        Ok(Self(Fields::parse(query.as_bytes())))
    }
}

/// Whether the browser says that a request comes from a page of this service. A request that says
/// neither is refused.
pub fn is_own_page(gate: &Gate, headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if site.is_some_and(|site| site != b"same-origin") {
        return false;
    }
    let scheme = if gate.is_secure() { "https" } else { "http" };
    let text = |name| {
        let value: Option<&HeaderValue> = headers.get(name);
        value.and_then(|value| value.to_str().ok())
    };
    match (headers.contains_key(ORIGIN), text(ORIGIN), text(HOST)) {
        (false, _, _) => site.is_some(),
        (true, Some(origin), Some(host)) => origin == format!("{scheme}://{host}"),
        (true, _, _) => false,
    }
}

fn cookie_name(gate: &Gate) -> &'static str {
    if gate.is_secure() {
        SECURE_COOKIE
    } else {
        PLAIN_COOKIE
    }
}

/// The secret of the session's cookie in a request.
pub fn cookie<'h>(gate: &Gate, headers: &'h HeaderMap) -> Option<&'h str> {
    let name = cookie_name(gate);
    let cookies = headers.get_all(COOKIE).into_iter();
    let mut cookies = cookies
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'));
    cookies.find_map(|cookie| {
        let (known, value) = cookie.trim().split_once('=')?;
        (known == name).then_some(value)
    })
}

/// The header that gives a session to a browser.
pub fn session_cookie(gate: &Gate, secret: &str) -> String {
    attributes(gate, secret, SESSION_TIME.as_secs())
}

/// The header that takes the session from a browser.
pub fn ended_cookie(gate: &Gate) -> String {
    attributes(gate, "", 0)
}

fn attributes(gate: &Gate, secret: &str, seconds: u64) -> String {
    let name = cookie_name(gate);
    let secure = if gate.is_secure() { "; Secure" } else { "" };
    format!("{name}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

fn refused(status: StatusCode, sentence: &str) -> Response {
    (status, crate::html::bare("Refused", sentence)).into_response()
}
