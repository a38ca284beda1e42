//! The addresses of the console, and the headers of all answers.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, StatusCode};

use crate::auth::Gate;
use crate::auth::Viewer;
use crate::cell::Site;
use crate::pages;

/// Nothing but pages, styles and images of this service. No scripts, frames and other addresses.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
                      frame-ancestors 'none'; base-uri 'none'";

/// The state of the console.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) site: Arc<Site>,
    gate: Arc<Gate>,
}

impl FromRef<App> for Arc<Gate> {
    fn from_ref(app: &App) -> Self {
        app.gate.clone()
    }
}

impl FromRef<App> for Arc<Site> {
    fn from_ref(app: &App) -> Self {
        app.site.clone()
    }
}

/// All pages of the console.
pub fn router(site: Arc<Site>, gate: Arc<Gate>) -> Router {
    Router::new()
        .route("/", get(pages::overview::show))
        .route("/servers", get(pages::servers::show))
        .route("/volumes", get(pages::volumes::show))
        .route("/volume", get(pages::volume::show))
        .route("/volume/move", post(pages::operations::start_move))
        .route("/volume/release", post(pages::operations::start_release))
        .route("/volume/backup", post(pages::operations::start_backup))
        .route("/operation", get(pages::operations::show))
        .route("/operation/cancel", post(pages::operations::cancel))
        .route("/transaction/end", post(pages::transactions::end))
        .route("/usage", get(pages::usage::show))
        .route("/usage/start", post(pages::usage::start))
        .route("/usage/stop", post(pages::usage::stop))
        .route("/jobs", get(pages::jobs::show))
        .route("/job", get(pages::jobs::show_one))
        .route("/job/change", post(pages::jobs::change))
        .route("/drain/stop", post(pages::repairs::stop_drain))
        .route("/policies", get(pages::policies::show))
        .route("/policy", get(pages::policies::show_one))
        .route("/policy/test", post(pages::policies::test))
        .route("/policy/store", post(pages::policies::store))
        .route("/policy/delete", post(pages::policies::delete))
        .route("/users", get(pages::users::show))
        .route("/user", get(pages::user::show))
        .route("/user/member", post(pages::user::change_member))
        .route("/audit", get(pages::audit::show))
        .route("/login", get(pages::login::show).post(pages::login::enter))
        .route("/logout", post(pages::login::leave))
        .route("/style.css", get(style))
        .route("/icon.svg", get(icon))
        .fallback(missing)
        .layer(DefaultBodyLimit::max(crate::auth::FORM_BYTES_MAX))
        .layer(axum::middleware::map_response(with_headers))
        .with_state(App { site, gate })
}

async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    // With 'no-referrer', browsers would send 'Origin: null' with forms.
    set(REFERRER_POLICY, "same-origin");
    set(
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    if !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

fn asset(kind: &'static str, bytes: &'static str) -> Response {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "max-age=300")];
    (headers, bytes).into_response()
}

async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("assets/style.css"))
}

async fn icon() -> Response {
    asset("image/svg+xml", include_str!("assets/icon.svg"))
}

async fn missing(_: Viewer) -> Response {
    let sentence = "The console has no such page.";
    (
        StatusCode::NOT_FOUND,
        crate::html::bare("No such page", sentence),
    )
        .into_response()
}
