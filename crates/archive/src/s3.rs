//! A bucket of S3 as an archive: its configuration, and the library's client for it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::{BackoffConfig, RetryConfig};

use crate::Error;
use crate::fault::Fault;
use crate::http::Http;
use crate::location::Settings;
use crate::signing::Sha256Only;

/// Attempts after the first one. Longer outages are a matter of the job engine.
const RETRIES: usize = 3;
/// Time after which no further attempt of a request begins.
const RETRY_TIME: Duration = Duration::from_secs(20);
/// Bytes of the file with the credentials, at most.
const CREDENTIALS_BYTES_MAX: u64 = 64 << 10;

/// A bucket of S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Location {
    /// The URL of the server, for instance `http://s3.example.org:7070`.
    pub endpoint: String,
    /// The bucket. It must exist.
    pub bucket: String,
    /// The part of the names in the bucket before those of the archive; may be empty.
    pub prefix: String,
    /// The region, as the server names it. Servers other than Amazon's often want `us-east-1`.
    pub region: String,
    /// The source of the credentials.
    pub credentials: CredentialSource,
    /// Whether the bucket is in the path of a URL, and not in the name of the host.
    pub path_style: bool,
}

/// The source of an access key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// A file in the form of `~/.aws/credentials` with one section, which no other account may
    /// read.
    File(PathBuf),
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, if present, `AWS_SESSION_TOKEN`.
    Environment,
}

/// An access key. `Debug` does not show the secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct AccessKey {
    id: String,
    secret: String,
    token: Option<String>,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl S3Location {
    /// The library's client alone, without the names, sums and checks of an archive. For measuring
    /// it.
    ///
    /// # Errors
    /// `Configuration`.
    pub fn library(&self) -> Result<AmazonS3, Error> {
        client(self, Settings::default().patience)
    }
}

/// The library's client for a bucket.
pub(crate) fn client(at: &S3Location, connect: Duration) -> Result<AmazonS3, Error> {
    let key = access_key(&at.credentials)?;
    let endpoint = endpoint(at)?;
    let http = Http::new(&endpoint, connect)?;
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RETRIES,
        retry_timeout: RETRY_TIME,
    };
    let mut builder = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_bucket_name(&at.bucket)
        .with_region(&at.region)
        .with_access_key_id(key.id)
        .with_secret_access_key(key.secret)
        .with_virtual_hosted_style_request(!at.path_style)
        .with_allow_http(true)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true)
        .with_disable_tagging(true)
        .with_crypto_provider(std::sync::Arc::new(Sha256Only))
        .with_http_connector(http)
        .with_retry(retry);
    if let Some(token) = key.token {
        builder = builder.with_token(token);
    }
    builder.build().map_err(|error| match Fault::from(error) {
        Fault::Other(Error::Down(said)) => Error::Configuration(said),
        fault => fault.unexpected("the client of S3"),
    })
}

/// The URL to which the library adds the names of objects (and the bucket, in path style).
fn endpoint(at: &S3Location) -> Result<String, Error> {
    let wrong = |why: &str| Error::Configuration(format!("endpoint {:?}: {why}", at.endpoint));
    let endpoint = at.endpoint.trim_end_matches('/');
    let (scheme, host) = endpoint
        .split_once("://")
        .ok_or_else(|| wrong("it is no URL"))?;
    if !matches!(scheme, "http" | "https") || host.is_empty() {
        return Err(wrong("its URL begins with http:// or https:// and a host"));
    }
    if at.bucket.is_empty() || at.bucket.contains('/') {
        return Err(Error::Configuration(format!(
            "{:?} is no bucket",
            at.bucket
        )));
    }
    Ok(match at.path_style {
        true => endpoint.to_owned(),
        false => format!("{scheme}://{}.{host}", at.bucket),
    })
}

fn access_key(source: &CredentialSource) -> Result<AccessKey, Error> {
    match source {
        CredentialSource::File(path) => from_file(path),
        CredentialSource::Environment => {
            let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
            let need = |name: &str| {
                let missing = || Error::Configuration(format!("{name} is not set"));
                variable(name).ok_or_else(missing)
            };
            Ok(AccessKey {
                id: need("AWS_ACCESS_KEY_ID")?,
                secret: need("AWS_SECRET_ACCESS_KEY")?,
                token: variable("AWS_SESSION_TOKEN"),
            })
        }
    }
}

fn from_file(path: &Path) -> Result<AccessKey, Error> {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    let wrong = |why: &dyn fmt::Display| {
        Error::Configuration(format!("credentials {}: {why}", path.display()))
    };
    let file = std::fs::File::open(path).map_err(|error| wrong(&error))?;
    let about = file.metadata().map_err(|error| wrong(&error))?;
    if about.permissions().mode() & 0o077 != 0 {
        return Err(wrong(&"other accounts can read the file; use chmod 600"));
    }
    let mut text = String::new();
    let read = file.take(CREDENTIALS_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| wrong(&error))?;
    parse(&text).map_err(|why| wrong(&why))
}

/// Reads `name = value` lines. Comments and the line with the name of the section are skipped.
fn parse(text: &str) -> Result<AccessKey, String> {
    let mut key = AccessKey::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';', '[']) {
            continue;
        }
        let (name, value) = line
            .split_once('=')
            .ok_or(format!("line {number} has no '='"))?;
        let value = value.trim().to_owned();
        match name.trim() {
            "aws_access_key_id" => key.id = value,
            "aws_secret_access_key" => key.secret = value,
            "aws_session_token" => key.token = Some(value),
            other => return Err(format!("line {number}: {other} is not known")),
        }
    }
    for (name, value) in [
        ("aws_access_key_id", &key.id),
        ("aws_secret_access_key", &key.secret),
    ] {
        if value.is_empty() {
            return Err(format!("{name} is missing"));
        }
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_have_the_form_of_amazons_file() {
        let text = "# of the archive\n[default]\naws_access_key_id = AKIA\n\
                    aws_secret_access_key=s3=cret\n";
        let key = parse(text).unwrap();
        assert_eq!(
            (&*key.id, &*key.secret, &key.token),
            ("AKIA", "s3=cret", &None)
        );
        assert!(!format!("{key:?}").contains("cret"));
        for (wrong, why) in [
            ("", "aws_access_key_id is missing"),
            ("aws_access_key_id = A", "aws_secret_access_key is missing"),
            ("nonsense", "line 1 has no '='"),
            ("\npassword = 1", "line 2: password is not known"),
        ] {
            assert_eq!(parse(wrong).unwrap_err(), why);
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("key");
        std::fs::write(&path, "aws_access_key_id = A\naws_secret_access_key = B").unwrap();
        for (mode, is_good) in [(0o644, false), (0o640, false), (0o600, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(from_file(&path).is_ok(), is_good, "{mode:o}");
        }
        assert!(matches!(
            from_file(&home.path().join("none")),
            Err(Error::Configuration(_))
        ));
    }

    #[test]
    fn the_bucket_is_in_the_path_or_in_the_host() {
        let mut at = S3Location {
            endpoint: "https://s3.example.org:7070/".to_owned(),
            bucket: "cell".to_owned(),
            prefix: String::new(),
            region: "us-east-1".to_owned(),
            credentials: CredentialSource::Environment,
            path_style: true,
        };
        assert_eq!(endpoint(&at).unwrap(), "https://s3.example.org:7070");
        at.path_style = false;
        assert_eq!(endpoint(&at).unwrap(), "https://cell.s3.example.org:7070");
        for wrong in ["s3.example.org", "ftp://s3.example.org", "https://"] {
            at.endpoint = wrong.to_owned();
            assert!(
                matches!(endpoint(&at), Err(Error::Configuration(_))),
                "{wrong}"
            );
        }
    }
}
