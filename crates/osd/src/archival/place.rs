//! The place of an archive, as administrators write it.
//!
//! | text | archive |
//! | --- | --- |
//! | `/mnt/tape` | a directory of this machine |
//! | `https://HOST[:PORT]/BUCKET[/PREFIX][?OPTIONS]` | a bucket of S3 |
//!
//! The options of S3 are `region=R` (default `us-east-1`), `credentials=FILE` (default: the
//! environment), and `style=host` if the bucket is in the name of the host.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use cellar_archive::{CredentialSource, Location, S3Location};
use serde::{Deserialize, Serialize};

/// The region that servers other than Amazon's mostly want.
const REGION: &str = "us-east-1";

/// The place of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Place {
    text: String,
    location: Location,
}

/// A text that names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place of an archive: write /DIRECTORY, or https://HOST/BUCKET[/PREFIX]{1}")]
pub struct NotAPlace(String, &'static str);

impl Place {
    /// The location for the driver.
    pub fn location(&self) -> &Location {
        &self.location
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.text
    }
}

impl TryFrom<String> for Place {
    type Error = NotAPlace;

    fn try_from(text: String) -> Result<Self, NotAPlace> {
        let location = parse(&text).map_err(|why| NotAPlace(text.clone(), why))?;
        Ok(Self { text, location })
    }
}

impl FromStr for Place {
    type Err = NotAPlace;

    fn from_str(text: &str) -> Result<Self, NotAPlace> {
        text.to_owned().try_into()
    }
}

fn parse(text: &str) -> Result<Location, &'static str> {
    if text.starts_with('/') {
        return Ok(Location::Directory(PathBuf::from(text)));
    }
    let (scheme, rest) = text.split_once("://").ok_or("")?;
    if !matches!(scheme, "http" | "https") {
        return Err("");
    }
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, path) = path.split_once('/').ok_or("")?;
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    if host.is_empty() || bucket.is_empty() {
        return Err("");
    }
    let mut found = S3Location {
        endpoint: format!("{scheme}://{host}"),
        bucket: bucket.to_owned(),
        prefix: prefix.trim_matches('/').to_owned(),
        region: REGION.to_owned(),
        credentials: CredentialSource::Environment,
        path_style: true,
    };
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("region", region)) => found.region = region.to_owned(),
            Some(("credentials", file)) => {
                found.credentials = CredentialSource::File(PathBuf::from(file));
            }
            Some(("style", "host")) => found.path_style = false,
            Some(("style", "path")) => found.path_style = true,
            _ => return Err("; its options are region=, credentials= and style="),
        }
    }
    Ok(Location::S3(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_directories_and_buckets() {
        let place: Place = "/mnt/tape".parse().unwrap();
        assert_eq!(place.location(), &Location::Directory("/mnt/tape".into()));
        let text = "https://s3.example.org:7070/cold/afs/?region=ch&credentials=/etc/s3&style=host";
        let place: Place = text.parse().unwrap();
        assert_eq!(place.to_string(), text);
        let wanted = S3Location {
            endpoint: "https://s3.example.org:7070".to_owned(),
            bucket: "cold".to_owned(),
            prefix: "afs".to_owned(),
            region: "ch".to_owned(),
            credentials: CredentialSource::File("/etc/s3".into()),
            path_style: false,
        };
        assert_eq!(place.location(), &Location::S3(wanted));
        for wrong in [
            "",
            "tape",
            "ftp://h/b",
            "https://h",
            "https://h/",
            "https://h/b?colour=red",
        ] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
