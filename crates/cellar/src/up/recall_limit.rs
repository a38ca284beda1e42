//! The option `--recall-limit` of file servers: how much users, groups and volumes may recall.
//!
//! ```text
//! limit   : subject "=" amount ["," amount] "/" time
//! subject : "user:" (name | "*") | "group:" name | "volume:" pattern
//! amount  : size                              as in "2T", in bytes
//!         | number "files"
//! ```

use std::time::Duration;

use cellar_fileserver::{RECALL_LIMIT_TIME_MAX, RecallLimit, RecallSubject};

use crate::quantities;

/// The form of a limit, for messages.
const FORM: &str = "write SUBJECT=AMOUNT/TIME, such as user:*=2T/1d, group:students=100G,500files/1d, volume:data.*=10T/1d";

/// Parses a limit.
pub(crate) fn parse(text: &str) -> Result<RecallLimit, String> {
    // Names may have an equals sign.
    let (subject, amounts) = text.rsplit_once('=').ok_or(FORM)?;
    let (amounts, time) = amounts.split_once('/').ok_or(FORM)?;
    let per = quantities::seconds(time)
        .map(|seconds| Duration::from_secs(seconds.into()))
        .ok_or_else(|| format!("'{time}' is not a time; {}", quantities::FORMS))?;
    if per.is_zero() || per > RECALL_LIMIT_TIME_MAX {
        return Err("the time of a limit is from 1s to 366d".to_owned());
    }
    let (mut bytes, mut files) = (None, None);
    for amount in amounts.split(',') {
        let (kind, place, parsed) = match amount.strip_suffix("files") {
            Some(number) => ("a number of files", &mut files, number.trim().parse().ok()),
            None => ("a size", &mut bytes, quantities::size(amount)),
        };
        let parsed = parsed.ok_or_else(|| {
            format!("'{amount}' is no amount; write bytes as 2T or 500G, files as 1000files")
        })?;
        if place.replace(parsed).is_some() {
            return Err(format!("a limit has {kind} once"));
        }
    }
    Ok(RecallLimit {
        text: text.to_owned(),
        subject: parse_subject(subject)?,
        bytes,
        files,
        per,
    })
}

fn parse_subject(text: &str) -> Result<RecallSubject, String> {
    let (kind, name) = text.split_once(':').ok_or(FORM)?;
    if name.is_empty() {
        return Err(format!("'{text}' names no subject; {FORM}"));
    }
    match (kind, name) {
        ("user", "*") => Ok(RecallSubject::EachUser),
        ("volume", pattern) => Ok(RecallSubject::Volumes(pattern.to_owned())),
        ("user" | "group", name) if name.contains('*') => Err(format!(
            "'{text}': a pattern is for volumes only; user:* is each user"
        )),
        ("user", name) => Ok(RecallSubject::User(name.to_owned())),
        ("group", name) => Ok(RecallSubject::Group(name.to_owned())),
        _ => Err(format!(
            "'{kind}' is no kind of subject: write user:, group: or volume:"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed() {
        let day = Duration::from_secs(86_400);
        for (text, subject, bytes, files, per) in [
            (
                "user:*=2T/1d",
                RecallSubject::EachUser,
                Some(2 << 40),
                None,
                day,
            ),
            (
                "user:alice=0/1s",
                RecallSubject::User("alice".into()),
                Some(0),
                None,
                Duration::from_secs(1),
            ),
            (
                "group:staff:friends=100G,500files/7d",
                RecallSubject::Group("staff:friends".into()),
                Some(100 << 30),
                Some(500),
                7 * day,
            ),
            (
                "volume:data.*=10 files/90",
                RecallSubject::Volumes("data.*".into()),
                None,
                Some(10),
                Duration::from_secs(90),
            ),
        ] {
            let limit = parse(text).expect(text);
            assert_eq!(limit.text, text);
            assert_eq!(
                (limit.subject, limit.bytes, limit.files, limit.per),
                (subject, bytes, files, per)
            );
        }
    }

    #[test]
    fn faults_are_named() {
        for (text, said) in [
            ("", "SUBJECT=AMOUNT/TIME"),
            ("user:*", "SUBJECT=AMOUNT/TIME"),
            ("user:*=2T", "SUBJECT=AMOUNT/TIME"),
            ("2T/1d", "SUBJECT=AMOUNT/TIME"),
            ("users=2T/1d", "SUBJECT=AMOUNT/TIME"),
            ("user:=2T/1d", "names no subject"),
            ("host:x=2T/1d", "no kind of subject"),
            ("group:*=2T/1d", "for volumes only"),
            ("user:*=2X/1d", "no amount"),
            ("user:*=/1d", "no amount"),
            ("user:*=-5files/1d", "no amount"),
            ("user:*=2T,3T/1d", "a size once"),
            ("user:*=2files,3files/1d", "a number of files once"),
            ("user:*=2T/1x", "not a time"),
            ("user:*=2T/0", "from 1s to 366d"),
            ("user:*=2T/9999d", "from 1s to 366d"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
