//! `fs listunstored`: lists data that programs wrote and that is only in the cache of a mount. It
//! reads the cache directory, so that it works without a mount, or asks the mount.

use std::path::Path;

use cellar_cachemanager::unstored_in;
use cellar_fuse::control;
use serde_json::json;

use super::table::AT;
use super::{Invocation, print_json};
use crate::failure::{Failure, Outcome};
use crate::mounted::Mounted;
use crate::output::outln;

pub(super) fn list(invocation: &Invocation) -> Outcome {
    let Some(directory) = invocation.get("cachedir") else {
        return of_mount(invocation, invocation.get(AT));
    };
    if Mounted::meant(Some(directory)).is_ok() {
        return of_mount(invocation, Some(directory));
    }
    let directory = Path::new(directory);
    let (unstored, aside) = unstored_in(directory).map_err(|cause| {
        Failure::new(format!(
            "{}: neither in a mount by 'cellar mount' nor the cache of one: {cause}",
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
        say_aside(path);
    }
    if unstored.is_empty() && aside.is_empty() {
        outln!("Everything is stored.");
    }
    Ok(())
}

/// Prints the mount's own list, whose cache may be in memory. Users see their own files; the user
/// who mounted sees all.
fn of_mount(invocation: &Invocation, at: Option<&str>) -> Outcome {
    let mount = Mounted::meant(at)?;
    let (mut all, mut aside) = (Vec::new(), Vec::new());
    let lines = mount.lines(control::UNSTORED)?;
    for line in &lines {
        if let Some(path) = line.strip_prefix("aside ") {
            match invocation.has("json") {
                true => aside.push(path),
                false => say_aside(Path::new(path)),
            }
            continue;
        }
        let words: Vec<_> = line.split(' ').collect();
        let [fid, cell, bytes, version, user, failed] = words[..] else {
            continue;
        };
        let failed: Option<i32> = failed.parse().ok().filter(|errno| *errno != 0);
        let why = failed.map(|errno| std::io::Error::from_raw_os_error(errno).to_string());
        if invocation.has("json") {
            all.push(json!({
                "cell": cell, "fid": fid, "bytes": bytes.parse::<u64>().ok(), "version": version.parse::<u64>().ok(),
                "user": user.parse::<u32>().ok(), "error": why,
            }));
            continue;
        }
        let user = match user {
            "-" => "anybody".to_owned(),
            uid => format!("user {uid}"),
        };
        let why = why.map_or(String::new(), |why| format!("; the last try: {why}"));
        outln!(
            "{fid} in cell {cell}: {bytes} bytes of {user} not stored, over version {version}{why}"
        );
    }
    if invocation.has("json") {
        return print_json(&json!({ "unstored": all, "aside": aside }));
    }
    if lines.is_empty() {
        outln!("Everything is stored.");
    }
    Ok(())
}

/// Prints the path of data that was put aside, and the reason.
fn say_aside(path: &Path) {
    outln!("put aside: {}", path.display());
    if let Ok(text) = std::fs::read_to_string(path) {
        for line in text.lines() {
            outln!("    {line}");
        }
    }
}
