//! Patterns in paths below /afs. A shell expands patterns in mounted directories only, so the file
//! commands expand those in AFS paths themselves.
//!
//! 1. `*`, `?`, `[...]` and `{a,b}` match within one name. A `*` or `?` at the beginning does not
//!    match a dot, as in shells.
//! 2. A name that exists as it is written is not expanded, so that every name can be named.
//! 3. A pattern that matches nothing is a failure. For `rm -f` it is the name of no file.

use cellar_client::{Client, Follow, Node};
use globset::{GlobBuilder, GlobMatcher};

use super::{is_afs, join, printable};
use crate::failure::{Failure, Outcome};

/// The most paths that one pattern may stand for.
const PATHS_MAX: usize = 100_000;

/// Parses the pattern of a name.
pub(super) fn pattern(text: &str) -> Result<GlobMatcher, String> {
    let glob = GlobBuilder::new(text).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher())
        .map_err(|error| error.to_string())
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '[', '{'])
}

/// Replaces each path that has patterns by the paths that match.
pub(super) async fn expand(client: &Client, paths: &mut Vec<String>, must_match: bool) -> Outcome {
    let mut expanded = Vec::with_capacity(paths.len());
    for path in paths.drain(..) {
        if !is_afs(&path) || !is_pattern(&path) {
            expanded.push(path);
            continue;
        }
        let found = matches(client, &path).await?;
        if found.is_empty() && must_match {
            return Err(Failure::new(format!("{path}: no name matches")));
        }
        expanded.extend(found);
    }
    *paths = expanded;
    Ok(())
}

async fn matches(client: &Client, path: &str) -> Outcome<Vec<String>> {
    let rest = path.strip_prefix("/afs").unwrap_or(path);
    let mut found = vec!["/afs".to_owned()];
    let names: Vec<&str> = rest.split('/').filter(|name| !name.is_empty()).collect();
    for name in &names {
        if !is_pattern(name) {
            found.iter_mut().for_each(|path| *path = join(path, name));
            continue;
        }
        let glob = pattern(name).map_err(|cause| Failure::usage(format!("{path}: {cause}")))?;
        let mut next = Vec::new();
        for above in found {
            // Directories that do not have the rest of the path are left out.
            let node = match client.walk(&above, Follow::ALL).await {
                Ok(Some(node)) if node.is_directory() => node,
                Ok(_) => continue,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error.into()),
            };
            next.extend(names_in(client, &above, &node, name, &glob).await?);
            if next.len() > PATHS_MAX {
                return Err(Failure::new(format!(
                    "{path}: matches more than {PATHS_MAX} paths"
                )));
            }
        }
        found = next;
    }
    let last_is_pattern = names.last().is_some_and(|name| is_pattern(name));
    if !last_is_pattern {
        let mut existing = Vec::new();
        for path in found {
            match client.walk(&path, Follow::NONE).await {
                Ok(_) => existing.push(path),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        found = existing;
    }
    Ok(found)
}

/// The paths of the names in a directory that match.
async fn names_in(
    client: &Client,
    above: &str,
    node: &Node,
    name: &str,
    glob: &GlobMatcher,
) -> Outcome<Vec<String>> {
    if client.lookup_name(node, name.as_bytes()).await?.is_some() {
        return Ok(vec![join(above, name)]);
    }
    let entries = client.read_directory(node).await;
    let entries = entries.map_err(|error| super::ls::named(above, error))?;
    let mut names: Vec<String> = entries
        .into_iter()
        // A name with bytes that no path can have is shown escaped, and cannot be named.
        .filter_map(|entry| String::from_utf8(entry.name.to_vec()).ok())
        .filter(|entry| printable(entry.as_bytes()) == *entry)
        .filter(|entry| !entry.starts_with('.') || name.starts_with('.'))
        .filter(|entry| glob.is_match(entry))
        .collect();
    names.sort();
    Ok(names.iter().map(|name| join(above, name)).collect())
}
