//! The section `[domain_realm]` of `krb5.conf`: the realm to which a cell belongs.
//!
//! None of MIT's programs prints the realm of a host, so the section is read here:
//!
//! 1. The line of the host itself counts, else the line of the nearest domain above it. The name of
//!    a domain may begin with a dot.
//! 2. `KRB5_CONFIG` may name several files. The first matching line of the first file that has one
//!    counts.
//! 3. `include` and `includedir` are followed down to [`DEPTH_MAX`].
//! 4. Files that cannot be read are ignored, as the library does.
//!
//! Source: krb5.conf(5), sections "Structure" and "domain_realm".

use std::fs;
use std::path::{Path, PathBuf};

/// The most levels of files that include others; a file may include itself.
const DEPTH_MAX: u32 = 8;
/// The most bytes of a file that is read; longer files are ignored.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most lines of `[domain_realm]` that are kept, which bounds the memory.
const LINES_MAX: usize = 10_000;

/// The lines of `[domain_realm]`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DomainRealm(Vec<(String, String)>);

impl DomainRealm {
    /// Reads `/etc/krb5.conf`, or the files that `KRB5_CONFIG` names.
    pub fn load() -> Self {
        let files = std::env::var("KRB5_CONFIG").unwrap_or_else(|_| "/etc/krb5.conf".to_owned());
        let mut found = Self::default();
        for file in files.split(':').filter(|file| !file.is_empty()) {
            let mut section = Section::default();
            found.read(Path::new(file), &mut section, 0);
        }
        found
    }

    /// The realm of a host or cell of this name.
    pub fn realm_of(&self, name: &str) -> Option<&str> {
        let name = name.to_ascii_lowercase();
        let line = |wanted: &str| {
            let found = self.0.iter().find(|(domain, _)| domain == wanted);
            found.map(|(_, realm)| realm.as_str())
        };
        // The name of a domain also matches its hosts. Most cells have the name of their domain. So
        // a line of a domain (with a dot) also matches the name itself, which no host needs.
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

/// Whether the lines that follow belong to `[domain_realm]`.
#[derive(Default)]
struct Section {
    wanted: bool,
}

/// The files of an included directory whose names have only letters, digits, dashes and
/// underscores, or end in `.conf`.
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
        // The file also includes itself, which must end.
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
