//! `cellar serve`: runs the named roles of a cell on this machine, in the foreground.
//!
//! | role | runs |
//! | --- | --- |
//! | `databases` | location database, protection database, OSD database; one machine of the cell |
//! | `fileserver` | file server and volume server, with the partitions of the directory |
//! | `osds` | object storage devices |
//!
//! Every set of roles is one process with one overseer. A directory keeps the roles of its first
//! start; only a file server may be added to databases. A machine with devices alone has neither
//! `cell.json` nor an overseer ([`crate::osd_serve`]).

use std::fmt;
use std::path::Path;

use clap::ValueEnum;

use crate::cell_directory::{CellDirectory, Part};
use crate::failure::{Failure, Outcome};
use crate::up;
use crate::up::osds;

/// A role of this machine in the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Locations of volumes, users and groups, the list of devices.
    Databases,
    /// Files and volumes.
    Fileserver,
    /// Object storage devices.
    Osds,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Databases => "databases",
            Self::Fileserver => "fileserver",
            Self::Osds => "osds",
        })
    }
}

/// The roles of a part, in words.
pub(crate) fn roles_of(part: Part) -> &'static str {
    match part {
        Part::Whole => "the roles databases and fileserver",
        Part::Databases => "the role databases",
        Part::Fileserver => "the role fileserver",
    }
}

// A later option overrides an earlier one: the words of a configuration file come first.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(args_override_self = true)]
#[command(after_help = "Examples:
  cellar serve                                      the roles of the file or of the directory
  cellar serve databases --cell example.org --bind 192.0.2.10
  cellar serve fileserver --bind 192.0.2.11 --join /root/server-etc --first-volumes
  cellar serve osds --id 7,8 --bind 192.0.2.12 --join /root/server-etc
  cellar serve databases fileserver osds --osds 2
  cellar serve --config /srv/cellar.toml            (default: /etc/cellar/cellar.toml)")]
pub(crate) struct Options {
    /// The roles to run. Default: the key 'roles' of the configuration file; otherwise those for
    /// which the directory was made.
    #[arg(value_enum, value_name = "ROLE")]
    named: Vec<Role>,
    #[command(flatten)]
    pub(crate) daemon: up::Options,
}

/// Runs the command.
pub(crate) fn run(options: Options) -> Outcome {
    let mut daemon = options.daemon;
    if !options.named.is_empty() {
        daemon.roles = options.named;
    }
    daemon.must_name_roles = true;
    up::run(daemon)
}

/// Refuses a new directory for which no roles are named.
pub(crate) fn check_named(options: &up::Options, directory: &Path) -> Outcome {
    if !options.must_name_roles || !options.roles.is_empty() || options.join.is_some() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} has no roles yet: name them, for instance 'cellar serve databases fileserver', or write the key 'roles' \
         into the configuration file",
        directory.display()
    )))
}

/// Whether devices are the only role, by name or because the directory was made for them.
pub(crate) fn is_devices_alone(options: &up::Options, directory: &CellDirectory) -> bool {
    if directory.identity_file().exists() {
        return false;
    }
    match &options.roles[..] {
        [] => osds::used_file(directory.path()).exists() && !directory.databases().exists(),
        roles => roles.iter().all(|role| *role == Role::Osds),
    }
}

/// The roles that read a key of the configuration file.
pub(crate) fn roles_of_key(key: &str) -> &'static [Role] {
    use Role::{Databases, Fileserver, Osds};
    match key {
        "transaction-idle" | "repair-after" | "repair-rate" | "collect-every" | "collect-grace"
        | "archive-every" | "archive-rate" | "archive-keep" | "verify-every" | "verify-rate"
        | "recall-limit" | "location" | "owner" => &[Fileserver],
        "etcd" | "etcd-ca" | "etcd-certificate" | "etcd-key" => &[Databases],
        "id" | "archive" | "osd-port" | "osds" | "retention" => &[Osds],
        "durability" | "scrub-every" | "scrub-rate" => &[Fileserver, Osds],
        _ => &[Databases, Fileserver, Osds],
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn parse(words: &[&str]) -> Options {
        let command = Options::augment_args(clap::Command::new("serve"));
        let command = command.mut_arg("dir", |dir| dir.env(None));
        let words = std::iter::once(&"serve").chain(words);
        let matches = command.try_get_matches_from(words).expect("words");
        Options::from_arg_matches(&matches).expect("options")
    }

    #[test]
    fn roles_are_words_or_a_key() {
        let options = parse(&["databases", "osds"]);
        assert_eq!(options.named, [Role::Databases, Role::Osds]);
        let options = parse(&["--roles=fileserver", "--roles=osds"]);
        assert_eq!(options.daemon.roles, [Role::Fileserver, Role::Osds]);
        let options = parse(&["--roles", "fileserver,osds", "databases"]);
        assert_eq!(options.daemon.roles.len(), 2);
        assert_eq!(options.named, [Role::Databases]);
    }

    #[test]
    fn a_directory_of_devices_alone_is_known_by_its_list() {
        let home = tempfile::tempdir().expect("directory");
        let directory = CellDirectory::new(home.path());
        let named = |words: &[&str]| {
            let mut options = parse(words);
            options.daemon.roles.append(&mut options.named);
            is_devices_alone(&options.daemon, &directory)
        };
        assert!(named(&["osds"]));
        assert!(!named(&[]));
        assert!(!named(&["osds", "fileserver"]));
        std::fs::write(osds::used_file(home.path()), "osd7 7\n").expect("list");
        assert!(named(&[]));
        assert!(!named(&["databases"]));
        std::fs::write(directory.identity_file(), "{}").expect("identity");
        assert!(!named(&[]));
        assert!(!named(&["osds"]));
    }

    #[test]
    fn a_new_directory_needs_roles() {
        let place = Path::new("/x");
        let mut options = parse(&[]).daemon;
        assert!(check_named(&options, place).is_ok(), "cellar up");
        options.must_name_roles = true;
        assert!(check_named(&options, place).is_err());
        options.roles = vec![Role::Databases];
        assert!(check_named(&options, place).is_ok());
    }
}
