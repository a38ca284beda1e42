//! The certificate of the console.
//!
//! The files are read again when one of them has changed, so a renewed certificate needs no
//! restart. If the new files are wrong, the old certificate stays in use. The log has the reason.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, or is no PEM file of the right kind.
    #[error("{}: {why}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// The key does not belong to the certificate, or is of an unknown kind.
    #[error("the certificate and the key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

/// The files of a certificate and its key, and their contents.
pub struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    /// The times of the last change of both files.
    changed: [Option<SystemTime>; 2],
}

impl Certificate {
    /// Reads PEM files: the chain of certificates, that of the console first, and its private key.
    ///
    /// # Errors
    /// A file is missing or wrong, or the key does not belong to the certificate.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let loaded = Loaded {
            config: config(certificate, key)?,
            changed: [changed(certificate), changed(key)],
        };
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            loaded: Mutex::new(loaded),
        })
    }

    /// The acceptor of connections, with the present files.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut loaded = self.loaded.lock();
        let changed = [changed(&self.certificate), changed(&self.key)];
        if changed != loaded.changed {
            loaded.changed = changed;
            match config(&self.certificate, &self.key) {
                Ok(config) => {
                    loaded.config = config;
                    tracing::info!("the certificate was read again");
                }
                Err(cause) => tracing::warn!(%cause, "the old certificate stays in use"),
            }
        }
        TlsAcceptor::from(loaded.config.clone())
    }
}

fn changed(file: &Path) -> Option<SystemTime> {
    std::fs::metadata(file)
        .and_then(|about| about.modified())
        .ok()
}

fn config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let wrong = |file: &Path, why: String| TlsError::File {
        file: file.to_owned(),
        why,
    };
    let chain: Result<Vec<_>, _> = match CertificateDer::pem_file_iter(certificate) {
        Ok(chain) => chain.collect(),
        Err(why) => Err(why),
    };
    let chain = chain.map_err(|why| wrong(certificate, why.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(
            certificate,
            "there is no certificate in it".to_owned(),
        ));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|why| wrong(key, why.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
