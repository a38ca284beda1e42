//! TLS towards servers of S3: rustls with ring's cryptography.
//!
//! A server is trusted if the system trusts it (`/etc/ssl/certs` on Debian). The variable
//! `SSL_CERT_FILE` names a file with other certificates, for a certificate of a site's own.

use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, RootCertStore};

use crate::Error;

/// Connections with TLS for `https://`, and without it for `http://`.
pub(crate) type Connector = HttpsConnector<HttpConnector>;

/// Adds TLS to connections. Certificates are read only if `is_https` holds.
///
/// # Errors
/// [`Error::Configuration`]: there are no certificates.
pub(crate) fn connector(mut tcp: HttpConnector, is_https: bool) -> Result<Connector, Error> {
    let mut trusted = RootCertStore::empty();
    if is_https {
        let found = rustls_native_certs::load_native_certs();
        trusted.add_parsable_certificates(found.certs);
        if trusted.is_empty() {
            let why = found
                .errors
                .first()
                .map(ToString::to_string)
                .unwrap_or_default();
            let reason = format!("there are no certificates of authorities for https://: {why}");
            return Err(Error::Configuration(reason));
        }
    }
    tcp.enforce_http(false);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Configuration(error.to_string()))?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let builder = HttpsConnectorBuilder::new().with_tls_config(config);
    Ok(builder.https_or_http().enable_http1().wrap_connector(tcp))
}
