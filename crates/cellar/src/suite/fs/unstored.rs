//! `fs listunstored`: what programs wrote that is only in the cache of a mount. It is read from the cache's
//! directory, so that it can be seen when nothing is mounted any more.

use std::path::Path;

use cellar_client::cache::unstored_in;
use serde_json::json;

use super::{Invocation, print_json};
use crate::failure::{Failure, Outcome};
use crate::output::outln;

pub(super) fn list(invocation: &Invocation) -> Outcome {
    let directory = Path::new(invocation.required("cachedir"));
    let (unstored, aside) = unstored_in(directory).map_err(|cause| {
        Failure::new(format!(
            "{}: not the cache of a mount: {cause}",
            directory.display()
        ))
    })?;
    if invocation.has("json") {
        let unstored: Vec<_> = unstored
            .iter()
            .map(|one| {
                json!({
                    "cell": one.cell, "fid": one.fid.to_string(), "bytes": one.bytes, "version": one.version,
                    "user": (one.writer != u32::MAX).then_some(one.writer), "torn": one.torn,
                })
            })
            .collect();
        return print_json(&json!({ "unstored": unstored, "aside": aside }));
    }
    for one in &unstored {
        let user = match one.writer {
            u32::MAX => "anybody".to_owned(),
            uid => format!("user {uid}"),
        };
        outln!(
            "{} in cell {}: {} bytes of {user} not stored, over version {}",
            one.fid,
            one.cell,
            one.bytes,
            one.version
        );
    }
    for path in &aside {
        outln!("put aside: {}", path.display());
        if let Ok(text) = std::fs::read_to_string(path) {
            for line in text.lines() {
                outln!("    {line}");
            }
        }
    }
    if unstored.is_empty() && aside.is_empty() {
        outln!("Everything is stored.");
    }
    Ok(())
}
