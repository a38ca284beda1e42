//! A console in this process, and requests to it as a browser sends them.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use cellar_client::{Cell, CellName, Client, Config, Ports};
use cellar_console::auth::{Gate, Role};
use cellar_console::{Site, SiteLimits};
use cellar_rpc::Runtime;
use http::header::{CONTENT_TYPE, COOKIE, HOST};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

pub(crate) const HOST_NAME: &str = "console.test:7080";

/// A console of a cell.
pub(crate) struct TestConsole {
    pub(crate) router: Router,
    pub(crate) gate: Arc<Gate>,
    _runtime: Runtime,
}

/// The answer to a request.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().expect("text"))
    }
}

/// A cell whose servers do not answer.
pub(crate) fn silent_cell() -> Cell {
    Cell {
        name: CellName::new("silent.cell").expect("name"),
        database_servers: vec![Ipv4Addr::LOCALHOST.into()],
        ports: Ports::of_location(9).expect("ports"),
    }
}

impl TestConsole {
    pub(crate) fn of(cell: Cell, secure: bool) -> Self {
        let runtime = Runtime::client_only().expect("runtime");
        let port = runtime.client_port().expect("port");
        let config = Config {
            cells: vec![cell.clone()],
            administrator: None,
            security: Default::default(),
            renewal: None,
        };
        let client = Arc::new(Client::new(port, config).expect("client"));
        let limits = SiteLimits {
            answer: Duration::from_millis(200),
            listing: Duration::from_millis(400),
            resolve: false,
        };
        let gate = Arc::new(Gate::new(secure));
        let site = Arc::new(Site::new(client, cell, limits));
        Self {
            router: cellar_console::router(site, gate.clone()),
            gate,
            _runtime: runtime,
        }
    }

    pub(crate) fn silent() -> Self {
        Self::of(silent_cell(), false)
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let answer = self.router.clone().oneshot(request).await.expect("answer");
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await.expect("body").to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).expect("text"),
        }
    }

    /// A page, with the cookie of a session.
    pub(crate) async fn get(&self, address: &str, secret: Option<&str>) -> Answer {
        let mut request = Request::get(address).header(HOST, HOST_NAME);
        if let Some(secret) = secret {
            request = request.header(COOKIE, format!("a=b; cellar-console={secret}"));
        }
        self.send(request.body(Body::empty()).expect("request"))
            .await
    }

    /// A form that the page of a session sends.
    pub(crate) async fn post(&self, address: &str, secret: &str, fields: &str) -> Answer {
        let token = self.form_token(secret);
        let body = format!("form_token={token}&{fields}");
        let request = form(address, secret, body);
        self.send(request.body_of()).await
    }

    pub(crate) fn form_token(&self, secret: &str) -> String {
        self.gate
            .session(secret)
            .map(|session| session.form_token)
            .unwrap_or_default()
    }

    pub(crate) fn session(&self, role: Role) -> String {
        self.gate.open(role)
    }
}

/// A form with the headers of a browser on a page of the console.
pub(crate) struct Form {
    pub(crate) address: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
}

pub(crate) fn form(address: &str, secret: &str, body: String) -> Form {
    Form {
        address: address.to_owned(),
        headers: vec![
            ("host", HOST_NAME.to_owned()),
            ("origin", format!("http://{HOST_NAME}")),
            ("sec-fetch-site", "same-origin".to_owned()),
            ("cookie", format!("cellar-console={secret}")),
        ],
        body,
    }
}

impl Form {
    /// The same form with another value of a header; empty for none.
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        if !value.is_empty() {
            self.headers.push((name, value.to_owned()));
        }
        self
    }

    pub(crate) fn body_of(self) -> Request<Body> {
        let mut request =
            Request::post(self.address).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        request.body(Body::from(self.body)).expect("request")
    }
}
