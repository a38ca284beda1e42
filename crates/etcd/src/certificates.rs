//! The certificates of this server for etcd: read from files, read again after a change, and
//! watched for their end.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tonic::transport::{Certificate as Pem, ClientTlsConfig, Identity};
use x509_cert::Certificate as X509;

/// The remaining time from which a certificate needs attention.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);

/// The certificates for members whose address begins with `https://`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The certificate of the authority that signed the members' certificates (PEM).
    pub ca: Option<PathBuf>,
    /// The certificate of this client (PEM).
    pub certificate: Option<PathBuf>,
    /// The private key of that certificate (PEM).
    pub key: Option<PathBuf>,
}

/// The state of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// It ends in 14 days or later.
    Valid,
    /// It ends within 14 days.
    ExpiresSoon,
    /// Its time is over.
    Expired,
}

/// A file with certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The file.
    pub file: PathBuf,
    /// The end of the certificate in it that ends first.
    pub not_after: SystemTime,
    /// Its state when it was looked at.
    pub validity: Validity,
}

/// Length and time of change of each file. A replaced file has others.
pub(crate) type Stamps = Vec<Option<(u64, SystemTime)>>;

impl Tls {
    fn files(&self) -> impl Iterator<Item = &Path> {
        let files = [&self.ca, &self.certificate, &self.key];
        files.into_iter().filter_map(Option::as_deref)
    }

    pub(crate) fn stamps(&self) -> Stamps {
        let stamp = |file: &Path| {
            let status = std::fs::metadata(file).ok()?;
            Some((status.len(), status.modified().ok()?))
        };
        self.files().map(stamp).collect()
    }

    /// Reads the files. Fails with a sentence.
    pub(crate) fn config(&self) -> Result<ClientTlsConfig, String> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|cause| format!("{}: {cause}", path.display()))
        };
        let Some(ca) = &self.ca else {
            return Err(
                "an address of etcd with https:// needs the certificate of its authority".into(),
            );
        };
        let config = ClientTlsConfig::new().ca_certificate(Pem::from_pem(read(ca)?));
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                Ok(config.identity(Identity::from_pem(read(certificate)?, read(key)?)))
            }
            (None, None) => Ok(config),
            _ => Err("a client's certificate for etcd and its key belong together".into()),
        }
    }

    /// The readable files with certificates.
    pub(crate) fn certificates(&self, now: SystemTime) -> Vec<Certificate> {
        let files = [&self.ca, &self.certificate].into_iter().flatten();
        let found = files.filter_map(|file| {
            let chain = X509::load_pem_chain(&std::fs::read(file).ok()?).ok()?;
            let ends = chain
                .iter()
                .map(|one| one.tbs_certificate().validity().not_after.to_system_time());
            let not_after = ends.min()?;
            Some(Certificate {
                file: file.clone(),
                not_after,
                validity: validity(not_after, now),
            })
        });
        found.collect()
    }
}

fn validity(not_after: SystemTime, now: SystemTime) -> Validity {
    match not_after.duration_since(now) {
        Err(_) => Validity::Expired,
        Ok(left) if left < EXPIRES_SOON => Validity::ExpiresSoon,
        Ok(_) => Validity::Valid,
    }
}

/// Logs each certificate once for each state that needs attention.
pub(crate) fn log_changes(before: &[Certificate], now: &[Certificate]) {
    for certificate in now {
        let Certificate {
            file,
            not_after,
            validity,
        } = certificate;
        let known = before.iter().find(|known| known.file == *file);
        let was = known.map_or(Validity::Valid, |known| known.validity);
        let (file, not_after) = (
            file.display(),
            humantime::format_rfc3339_seconds(*not_after),
        );
        match (was, validity) {
            (Validity::Valid | Validity::ExpiresSoon, Validity::Expired) => {
                tracing::error!(%file, %not_after, "a certificate for etcd has expired");
            }
            (Validity::Valid, Validity::ExpiresSoon) => {
                tracing::warn!(%file, %not_after, "a certificate for etcd expires soon");
            }
            _ => {}
        }
    }
}
