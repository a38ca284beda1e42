//! The options of the last start of a server, in `last-start.toml` of its directory.
//!
//! 1. The file holds the options that the command line of a start gave. Later starts use them,
//!    unless their command line or the configuration file gives the same key.
//! 2. `--forget KEY` removes a key. A key of the configuration file is removed too, so that it has
//!    one owner.
//! 3. The file does not hold options for one start, options of the log, and the values that
//!    `cell.json` keeps ([`IN_IDENTITY`]).
//! 4. It is written when the server serves. A start that fails changes nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use crate::cell_directory::{CellDirectory, replace_file};
use crate::failure::{Failure, Outcome};
use crate::metrics::MetricsAddress;
use crate::settings::{self, Settings};

/// The file.
const FILE: &str = "last-start.toml";
/// The key with the version of the file's format.
const FORMAT_KEY: &str = "format";
const FORMAT: &str = "1";

/// Keys whose value `cell.json` keeps, in a directory that has one.
const IN_IDENTITY: [&str; 5] = ["bind", "cell", "fileserver-port", "location", "owner"];
/// Keys that are not kept: the directory itself, its roles, and the log of a process.
const NOT_KEPT: [&str; 4] = ["dir", "log", "log-format", "roles"];
/// The word for all keys.
const ALL: &str = "all";

/// The options of the last start, and those of this one.
#[derive(Debug, Default)]
pub(crate) struct LastStart {
    file: PathBuf,
    kept: Settings,
    /// The text of the file at this start.
    before: String,
    /// The words that this start takes from the file, for the log.
    in_force: Vec<String>,
}

/// Whether `cell.json` keeps the value of a key, in a directory that has one.
pub(crate) fn is_in_identity(key: &str) -> bool {
    IN_IDENTITY.contains(&key)
}

/// The file in a server's directory.
pub(crate) fn file(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

impl LastStart {
    /// Reads the file of a directory; none is an empty one.
    pub(crate) fn load(directory: &Path) -> Outcome<Self> {
        let file = file(directory);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self {
                    file,
                    ..Self::default()
                });
            }
            Err(cause) => return Err(Failure::new(format!("{}: {cause}", file.display()))),
        };
        let advice = "it holds the options of the last start; remove it to start with the defaults";
        let mut kept = Settings::parse(&file, &text).map_err(|failure| failure.but(advice))?;
        let format = kept.words_of(FORMAT_KEY).concat();
        if format != FORMAT {
            return Err(Failure::new(format!(
                "{}: the format is '{format}', and this release knows {FORMAT}: {advice}",
                file.display()
            )));
        }
        kept.remove(FORMAT_KEY);
        Ok(Self {
            file,
            kept,
            before: text,
            in_force: Vec::new(),
        })
    }

    /// The configuration file of the last start.
    pub(crate) fn config(&self) -> Option<PathBuf> {
        self.kept.words_of("config").last().map(PathBuf::from)
    }

    /// Whether the last start had this option.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.kept.has(key)
    }

    /// Removes keys.
    ///
    /// # Errors
    /// A key is not there.
    pub(crate) fn forget(&mut self, keys: &[String]) -> Outcome {
        for key in keys {
            if key == ALL {
                self.kept = Settings::default();
            } else if IN_IDENTITY.contains(&&**key) && !self.kept.has(key) {
                return Err(Failure::usage(format!(
                    "--forget {key}: cell.json keeps this value; give another with --{key}"
                )));
            } else if !self.kept.remove(key) {
                let known: Vec<_> = self.kept.keys().map(|(key, _)| key).collect();
                return Err(Failure::usage(format!(
                    "--forget {key}: the last start had no such option; it had: {}",
                    match known.is_empty() {
                        true => "none".to_owned(),
                        false => known.join(", "),
                    }
                )));
            }
        }
        Ok(())
    }

    /// Removes the keys of the configuration file.
    pub(crate) fn leave_to(&mut self, settings: &Settings) {
        for (key, _) in settings.keys() {
            self.kept.remove(key);
        }
    }

    /// The words of the kept options that the command line does not give, and that `command` knows.
    pub(crate) fn words(&mut self, command: &Command, except: &[&str]) -> Outcome<Vec<OsString>> {
        let known: Vec<_> = settings::keys(command)
            .filter_map(clap::Arg::get_long)
            .collect();
        let kept = self
            .kept
            .only(|key| known.contains(&key) && !except.contains(&key));
        let words = kept.words(command, &[]).map_err(|failure| {
            failure.but("the last start had this option; --forget KEY drops it")
        })?;
        let in_force = words.iter().map(|word| word.to_string_lossy());
        self.in_force = in_force.map(|word| word.into_owned()).collect();
        Ok(words)
    }

    /// Takes over the options of this start's command line.
    pub(crate) fn give(&mut self, command: &Command, given: &ArgMatches) {
        let is_path = |argument: &clap::Arg, text: &str| {
            let parsed = argument.get_value_parser().type_id();
            parsed == std::any::TypeId::of::<PathBuf>()
                || (parsed == std::any::TypeId::of::<MetricsAddress>() && text.contains('/'))
        };
        for argument in command.get_arguments() {
            let (id, Some(key)) = (argument.get_id().as_str(), argument.get_long()) else {
                continue;
            };
            let is_kept = key == "config" || !settings::is_for_one_start(key);
            if given.value_source(id) != Some(ValueSource::CommandLine)
                || !is_kept
                || NOT_KEPT.contains(&key)
            {
                continue;
            }
            if matches!(argument.get_action(), clap::ArgAction::SetTrue) {
                self.kept.set_switch(key);
                continue;
            }
            let words = given.get_raw(id).into_iter().flatten();
            let words = words.map(|word| {
                let text = word.to_str()?;
                // The next start may have another working directory.
                let absolute = is_path(argument, text).then(|| std::path::absolute(text).ok());
                match absolute.flatten() {
                    Some(path) => path.to_str().map(str::to_owned),
                    None => Some(text.to_owned()),
                }
            });
            match words.collect::<Option<Vec<_>>>() {
                Some(words) => self.kept.set_words(key, words),
                None => tracing::warn!(key, "a value that is no text is not kept for later starts"),
            }
        }
    }

    /// Logs the options of the last start that are in force.
    pub(crate) fn report(&self) {
        if !self.in_force.is_empty() {
            let options = self.in_force.join(" ");
            tracing::info!(%options, "options of the last start are in force; --forget KEY drops one");
        }
    }

    /// Writes the file, if it changes. The server of the directory serves.
    pub(crate) fn save(&mut self, directory: &CellDirectory) -> Outcome {
        if directory.identity_file().exists() {
            for key in IN_IDENTITY {
                self.kept.remove(key);
            }
        }
        let text = format!(
            "# Options of the last start's command line. --forget KEY drops one.\n{FORMAT_KEY} = {FORMAT}\n{}",
            self.kept.to_toml()
        );
        let is_needed = !self.kept.is_empty() || !self.before.is_empty();
        if is_needed && text != self.before {
            replace_file(&self.file, text.as_bytes())?;
            self.before = text;
        }
        Ok(())
    }
}
