//! As much of Kerberos' configuration (`krb5.conf`) as says to which realm a cell belongs.
//!
//! MIT's programs have no way to ask the library for a host's realm, so `[domain_realm]` is read here:
//! the host's own line, else the line of the nearest domain above it, with or without a dot before its name.
//! `KRB5_CONFIG` may name several files; the first that says something counts, within a file the first
//! line. `include` and `includedir` are followed, to a depth. Files that cannot be read are left out, as
//! the library does. Source: krb5.conf(5), sections "Structure" and "domain_realm".

use std::fs;
use std::path::{Path, PathBuf};

/// How deep files include others.
const DEPTH_MAX: u32 = 8;
/// The longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Lines of `[domain_realm]` that are kept.
const LINES_MAX: usize = 10_000;

/// What `[domain_realm]` says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DomainRealm(Vec<(String, String)>);

impl DomainRealm {
    /// Reads this machine's configuration, or that which `KRB5_CONFIG` names.
    pub fn load() -> Self {
        let files = std::env::var("KRB5_CONFIG").unwrap_or_else(|_| "/etc/krb5.conf".to_owned());
        let mut found = Self::default();
        for file in files.split(':').filter(|file| !file.is_empty()) {
            let mut section = Section::default();
            found.read(Path::new(file), &mut section, 0);
        }
        found
    }

    /// The realm of a host or cell, by its name.
    pub fn realm_of(&self, name: &str) -> Option<&str> {
        let name = name.to_ascii_lowercase();
        let line = |wanted: &str| {
            let found = self.0.iter().find(|(domain, _)| domain == wanted);
            found.map(|(_, realm)| realm.as_str())
        };
        // A domain's own name stands for its hosts too. A cell is called as its domain mostly, so the
        // domain's line (with a dot) counts for the name itself as well, which no host would need.
        line(&name)
            .or_else(|| line(&format!(".{name}")))
            .or_else(|| {
                let above = name.match_indices('.').map(|(at, _)| &name[at..]);
                above
                    .flat_map(|domain| [domain, &domain[1..]])
                    .find_map(line)
            })
    }

    fn read(&mut self, path: &Path, section: &mut Section, depth: u32) {
        let readable = fs::metadata(path).is_ok_and(|about| about.len() <= FILE_BYTES_MAX);
        if depth > DEPTH_MAX || !readable {
            return;
        }
        if let Ok(text) = fs::read_to_string(path) {
            self.lines(&text, section, depth);
        }
    }

    fn lines(&mut self, text: &str, section: &mut Section, depth: u32) {
        for line in text.lines().map(str::trim) {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("include"), Some(file)) => {
                    self.read(Path::new(file), &mut Section::default(), depth + 1);
                    continue;
                }
                (Some("includedir"), Some(directory)) => {
                    for file in included(Path::new(directory)) {
                        self.read(&file, &mut Section::default(), depth + 1);
                    }
                    continue;
                }
                _ => {}
            }
            if let Some(name) = line.strip_prefix('[') {
                *section = Section {
                    wanted: name.split(']').next() == Some("domain_realm"),
                };
            } else if section.wanted
                && !line.starts_with(['#', ';'])
                && self.0.len() < LINES_MAX
                && let Some((domain, realm)) = line.split_once('=')
            {
                let realm = realm.trim().trim_matches('"');
                if !realm.is_empty() {
                    self.0
                        .push((domain.trim().to_ascii_lowercase(), realm.to_owned()));
                }
            }
        }
    }
}

/// Whether the lines that come are of the section that is looked for.
#[derive(Default)]
struct Section {
    wanted: bool,
}

/// The files of an included directory: names of letters, digits, dashes and underscores, or ending in
/// `.conf`.
fn included(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                return false;
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            name.chars().all(plain) || (name.ends_with(".conf") && !name.starts_with('.'))
        })
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> DomainRealm {
        let mut found = DomainRealm::default();
        found.lines(text, &mut Section::default(), 0);
        found
    }

    #[test]
    fn hosts_before_domains_and_near_before_far() {
        let found = parsed(
            "[libdefaults]\n .x = WRONG\n[domain_realm]\n # .x = NO\n .example.org = FAR\n\
             .near.example.org = NEAR\n db1.near.example.org = HOST\n example.net = NET\n\
             [realms]\n .y = WRONG\n",
        );
        assert_eq!(found.realm_of("DB1.near.example.org"), Some("HOST"));
        assert_eq!(found.realm_of("db2.near.example.org"), Some("NEAR"));
        assert_eq!(found.realm_of("near.example.org"), Some("NEAR"));
        assert_eq!(found.realm_of("www.example.org"), Some("FAR"));
        assert_eq!(found.realm_of("example.net"), Some("NET"));
        assert_eq!(found.realm_of("a.example.net"), Some("NET"));
        assert_eq!(found.realm_of("x"), None);
    }

    #[test]
    fn included_files_are_read() {
        let home = tempfile::tempdir().expect("tempdir");
        let parts = home.path().join("parts");
        fs::create_dir(&parts).expect("mkdir");
        fs::write(parts.join("one"), "[domain_realm]\n.a = A\n").expect("write");
        fs::write(parts.join("two.conf"), "[domain_realm]\n.b = B\n").expect("write");
        fs::write(parts.join("three~"), "[domain_realm]\n.c = C\n").expect("write");
        let top = home.path().join("krb5.conf");
        // It includes itself as well: that ends.
        let text = format!(
            "includedir {}\ninclude {}\n[domain_realm]\n.d = D\n",
            parts.display(),
            top.display()
        );
        fs::write(&top, text).expect("write");
        let mut found = DomainRealm::default();
        found.read(&top, &mut Section::default(), 0);
        let realm = |name| found.realm_of(name).map(str::to_owned);
        assert_eq!(realm("x.a").as_deref(), Some("A"));
        assert_eq!(realm("x.b").as_deref(), Some("B"));
        assert_eq!(realm("x.c"), None);
        assert_eq!(realm("x.d").as_deref(), Some("D"));
    }
}
