//! The HTTP client under the library's client of S3.
//!
//! 1. It is hyper's, which serves the metrics pages too. The library would use `reqwest`.
//! 2. The completion of an upload gets `If-None-Match: *`, so that no copy is overwritten. The
//!    library has no way to ask for it. S3 does not require that the signature covers the header.
//! 3. Endpoints with `https://` are reached through rustls (`tls.rs`).
//! 4. A refusal is turned into our own [`Error`] here, where the code of S3 is at hand. The library
//!    keeps only the status. [`crate::fault`] finds our error in the chain of sources.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{HeaderValue, IF_NONE_MATCH};
use hyper::{Method, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};

use crate::Error;
use crate::fault::message;
use crate::tls;

/// Bytes of an error document, at most.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
/// Time after which an idle connection is closed. Servers close theirs after a minute or more.
const IDLE: Duration = Duration::from_secs(30);

/// Makes clients.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    connector: tls::Connector,
}

impl Http {
    /// Clients that wait `connect` for a connection, at most.
    ///
    /// # Errors
    /// [`Error::Configuration`]: the certificates cannot be read.
    pub(crate) fn new(endpoint: &str, connect: Duration) -> Result<Self, Error> {
        let mut tcp = TcpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(connect));
        let connector = tls::connector(tcp, endpoint.starts_with("https://"))?;
        Ok(Self { connector })
    }
}

impl HttpConnector for Http {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(self.connector.clone());
        Ok(HttpClient::new(Service(client)))
    }
}

#[derive(Debug)]
struct Service(Client<tls::Connector, HttpRequestBody>);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if completes_upload(&request) {
            request
                .headers_mut()
                .insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        let answer = self.0.request(request).await.map_err(of_request)?;
        let (head, body) = answer.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        if !(head.status.is_client_error() || head.status.is_server_error()) {
            return Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)));
        }
        let document = Limited::new(body, REFUSAL_BYTES_MAX).collect().await;
        let document = document.map_or_else(|_| Bytes::new(), |all| all.to_bytes());
        if let Some(error) = refusal(head.status, &String::from_utf8_lossy(&document)) {
            return Err(HttpError::new(HttpErrorKind::Unknown, error));
        }
        let body = Full::new(document).map_err(|never| match never {});
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

/// Returns whether a request is CompleteMultipartUpload.
fn completes_upload(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.method() == Method::POST && query.split('&').any(|pair| pair.starts_with("uploadId="))
}

fn of_request(error: hyper_util::client::legacy::Error) -> HttpError {
    let kind = match error.is_connect() {
        true => HttpErrorKind::Connect,
        false => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error)
}

/// The error for a refusal that the library would not explain. Codes are those of S3, of Ceph
/// (`QuotaExceeded`) and of MinIO (`XMinio…`).
fn refusal(status: StatusCode, document: &str) -> Option<Error> {
    let code = element(document, "Code").unwrap_or_default();
    let text = || {
        let said = element(document, "Message").unwrap_or_default();
        message(&format_args!("{status} {code} {said}"))
    };
    match code {
        "QuotaExceeded"
        | "ServiceQuotaExceeded"
        | "InsufficientStorage"
        | "InsufficientCapacity"
        | "XMinioStorageFull"
        | "XMinioAdminBucketQuotaExceeded" => Some(Error::Full(text())),
        "NoSuchBucket" | "PermanentRedirect" | "AuthorizationHeaderMalformed" => {
            Some(Error::Configuration(text()))
        }
        // A copy in Amazon's Glacier.
        "InvalidObjectState" => Some(Error::Down(text())),
        _ if status == StatusCode::INSUFFICIENT_STORAGE => Some(Error::Full(text())),
        _ if status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED => {
            Some(Error::Refused(text()))
        }
        _ => None,
    }
}

/// The text of the first element of a name in a short XML document.
fn element<'a>(document: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = document.split_once(&format!("<{name}>"))?;
    rest.split('<').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_a_culprit() {
        let document = |code| format!("<Error><Code>{code}</Code><Message>so</Message></Error>");
        let found =
            |status: u16, code| refusal(StatusCode::from_u16(status).unwrap(), &document(code));
        let said = found(403, "QuotaExceeded").unwrap();
        assert!(matches!(&said, Error::Full(text) if text == "403 Forbidden QuotaExceeded so"));
        assert!(matches!(found(507, ""), Some(Error::Full(_))));
        assert!(matches!(
            found(403, "SignatureDoesNotMatch"),
            Some(Error::Refused(_))
        ));
        assert!(matches!(
            found(404, "NoSuchBucket"),
            Some(Error::Configuration(_))
        ));
        assert!(matches!(
            refusal(StatusCode::FORBIDDEN, "<html>"),
            Some(Error::Refused(_))
        ));
        assert!(found(404, "NoSuchKey").is_none());
        assert!(found(503, "SlowDown").is_none());
        assert!(found(412, "PreconditionFailed").is_none());
    }
}
