//! The command line of a daemon: its own words behind those of the last start and of a
//! configuration file.
//!
//! | source | overrides |
//! | --- | --- |
//! | command line | all others |
//! | configuration file | the last start, environment and defaults |
//! | last start ([`crate::last_start`]) | environment and defaults |
//!
//! `cellar serve` reads `/etc/cellar/cellar.toml` if no file is named and that one exists. `cellar
//! up` reads it only if it runs the cell in `/var/lib/cellar`. Otherwise the file of the machine's
//! service would change a cell for trial in `./cell-data`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use crate::cell_directory;
use crate::default_directory;
use crate::failure::Outcome;
use crate::last_start::LastStart;
use crate::settings::Settings;

/// The configuration file of the servers that this machine runs as a service.
pub(crate) const CONFIG: &str = "/etc/cellar/cellar.toml";

/// A command that runs servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Daemon {
    Up,
    Serve,
    OsdServe,
}

impl Daemon {
    /// The word of the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Serve | Self::OsdServe => "serve",
        }
    }
}

/// The time of a look at the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Start,
    /// The server serves. Its start has forgotten what `--forget` names.
    Reload,
}

/// The words to put in front of those of the command line, and the options to keep for later
/// starts. `given` is the parsed command line.
pub(crate) fn words(
    daemon: Daemon,
    command: &Command,
    given: &ArgMatches,
    phase: Phase,
) -> Outcome<(Vec<OsString>, LastStart)> {
    // Not every daemon has every option.
    let has = |id: &str| {
        command
            .get_arguments()
            .any(|argument| argument.get_id() == id)
    };
    let on_line = |id: &str| has(id) && given.value_source(id) == Some(ValueSource::CommandLine);
    let path = |id: &str| {
        let path = has(id).then(|| given.get_one::<PathBuf>(id));
        path.flatten().cloned()
    };
    let named = path("config").map(|file| Settings::load(&file));
    let mut settings = named.transpose()?;
    if settings.is_none() && daemon == Daemon::Serve {
        settings = existing(Path::new(CONFIG))?;
    }
    let in_file = |settings: &Option<Settings>| {
        let words = settings.as_ref().map(|settings| settings.words_of("dir"));
        words.and_then(|words| words.last()).map(PathBuf::from)
    };
    let mut directory = match on_line("dir") {
        true => path("dir"),
        false => in_file(&settings).or_else(|| path("dir")),
    };
    if directory.is_none() {
        directory = match daemon {
            Daemon::Serve => Some(cell_directory::SYSTEM.into()),
            Daemon::Up => {
                let found = default_directory::named_or_default(None)?;
                let is_system = found.path() == Path::new(cell_directory::SYSTEM);
                if is_system && settings.is_none() {
                    settings = existing(Path::new(CONFIG))?;
                    // The file may be for servers in another directory.
                    let own = in_file(&settings);
                    settings = settings.filter(|_| own.is_none_or(|own| own == found.path()));
                }
                is_system.then(|| found.path().to_owned())
            }
            Daemon::OsdServe => None,
        };
    }
    let place = directory.as_deref();
    let mut last = LastStart::load(place.unwrap_or(Path::new(cell_directory::DEFAULT)))?;
    let forgotten = given.get_many::<String>("forget").into_iter().flatten();
    if phase == Phase::Start {
        last.forget(&forgotten.cloned().collect::<Vec<_>>())?;
    }
    if !on_line("config")
        && has("config")
        && let Some(file) = last.config()
    {
        let advice = "the last start used this file; --forget config drops it";
        let named = Settings::load(&file).map_err(|failure| failure.but(advice))?;
        settings = Some(named);
    }
    let mut except: Vec<&str> = command
        .get_arguments()
        .filter(|argument| on_line(argument.get_id().as_str()))
        .filter_map(clap::Arg::get_long)
        .collect();
    if on_line("named") {
        except.push("roles");
    }
    except.push("dir");
    if let Some(settings) = &settings {
        last.leave_to(settings);
    }
    let mut words = last.words(command, &except)?;
    if let Some(settings) = &settings {
        words.extend(settings.words(command, &except)?);
    }
    last.give(command, given);
    if let Some(directory) = directory.filter(|_| !on_line("dir")) {
        let mut word = OsString::from("--dir=");
        word.push(directory);
        words.push(word);
    }
    Ok((words, last))
}

/// The settings of a file, if it exists.
fn existing(file: &Path) -> Outcome<Option<Settings>> {
    match file.try_exists() {
        Ok(false) => Ok(None),
        _ => Settings::load(file).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn command() -> Command {
        let list = |name| {
            let list = Arg::new(name).long(name).action(ArgAction::Append);
            list.value_delimiter(',')
        };
        let path = |name| {
            let path = Arg::new(name).long(name);
            path.value_parser(clap::value_parser!(PathBuf))
        };
        Command::new("serve")
            .args_override_self(true)
            .arg(Arg::new("named").action(ArgAction::Append))
            .arg(path("config"))
            .arg(path("dir"))
            .arg(list("roles"))
            .arg(list("id"))
            .arg(list("forget"))
            .arg(Arg::new("osds").long("osds"))
    }

    fn words_for(line: &[&str]) -> Vec<String> {
        let line = std::iter::once(&"serve").chain(line);
        let given = command().try_get_matches_from(line).expect("line");
        let (words, _last) = words(Daemon::Serve, &command(), &given, Phase::Start).expect("words");
        let words = words.into_iter();
        words
            .map(|word| word.into_string().expect("text"))
            .collect()
    }

    #[test]
    fn the_line_overrides_the_file_also_in_lists() {
        let home = tempfile::tempdir().expect("directory");
        let file = home.path().join("c.toml");
        let text = "roles = [\"databases\"]\nid = [7, 8]\nosds = 2\ndir = \"/srv/a\"\n";
        std::fs::write(&file, text).expect("file");
        let file = file.to_str().expect("text");
        let all = words_for(&["--config", file]);
        let expected = [
            "--roles=databases",
            "--id=7",
            "--id=8",
            "--osds=2",
            "--dir=/srv/a",
        ];
        assert_eq!(all, expected);
        let some = words_for(&[
            "--config",
            file,
            "--id",
            "9",
            "--dir",
            "/srv/b",
            "fileserver",
        ]);
        assert_eq!(some, ["--osds=2"]);
    }
}
