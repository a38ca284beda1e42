//! `cellar config`: checks a configuration file, and shows the values that are in force.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Command, ValueEnum as _};
use serde_json::{Value, json};

use crate::cell_directory::CellDirectory;
use crate::daemon::CONFIG;
use crate::failure::{Failure, Outcome};
use crate::last_start::{self, LastStart};
use crate::output::outln;
use crate::reload;
use crate::serve::{Role, roles_of_key};
use crate::settings::{self, Settings};

/// The source of values that `cell.json` keeps.
const IDENTITY: &str = "cell.json";

/// `cellar config`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar config check /etc/cellar/cellar.toml     name the first wrong line, if there is one
  cellar config show /etc/cellar/cellar.toml      every key with its value and source
  cellar config check                             the same for /etc/cellar/cellar.toml
  cellar config show                              every key with its default
  cellar config show --dir /var/lib/cellar        the same with the options of the last start
  cellar serve --config /etc/cellar/cellar.toml   use the file")]
pub(crate) struct Options {
    #[command(subcommand)]
    operation: Operation,
}

#[derive(Debug, clap::Subcommand)]
enum Operation {
    /// Check a configuration file. Exit status 2: it has a wrong line.
    Check {
        /// The file.
        #[arg(default_value = CONFIG)]
        file: PathBuf,
    },
    /// Print every key with its value, the source of the value, and the roles that use it.
    Show {
        /// The file. Default: that of the last start in --dir, or none: the defaults are shown.
        file: Option<PathBuf>,
        /// The directory of a server, whose last start had options that are still in force.
        #[arg(long, value_name = "DIRECTORY")]
        dir: Option<PathBuf>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command. `daemon` has the options of `cellar serve`.
pub(crate) fn run(options: &Options, daemon: &Command) -> Outcome {
    match &options.operation {
        Operation::Check { file } => {
            let settings = Settings::load(file)?;
            settings.words(daemon, &[])?;
            outln!("{}: {} keys, all right", file.display(), settings.len());
            for (key, line) in settings.keys() {
                if let Some(roles) = without_use(&settings, key) {
                    let roles = names(roles);
                    outln!(
                        "line {line}: '{key}' is for the role {roles}, which 'roles' does not name"
                    );
                }
            }
            outln!(
                "A reload applies {}; for each other key that changes: restart needed",
                reload::APPLIED.join(", ")
            );
            Ok(())
        }
        Operation::Show { file, dir, json } => show(file.as_deref(), dir.as_deref(), daemon, *json),
    }
}

fn show(file: Option<&Path>, dir: Option<&Path>, daemon: &Command, as_json: bool) -> Outcome {
    let mut last = dir.map(LastStart::load).transpose()?;
    let file = file.map(Path::to_owned);
    let file = file.or_else(|| last.as_ref().and_then(LastStart::config));
    let settings = file.as_deref().map(Settings::load).transpose()?;
    let mut words = vec![daemon.get_name().into()];
    if let Some(settings) = &settings {
        words.extend(settings.words(daemon, &[])?);
    }
    if let Some(last) = &mut last {
        if let Some(settings) = &settings {
            last.leave_to(settings);
        }
        words.extend(last.words(daemon, &[])?);
    }
    let has_identity = dir.is_some_and(|dir| CellDirectory::new(dir).identity_file().exists());
    let matches = daemon.clone().try_get_matches_from(words);
    let matches = matches.map_err(Failure::usage)?;
    let mut rows = Vec::new();
    for argument in settings::keys(daemon) {
        let Some(key) = argument.get_long() else {
            continue;
        };
        let line = settings.as_ref().and_then(|settings| settings.line_of(key));
        let is_of_last = last.as_ref().is_some_and(|last| last.has(key));
        let mut value = value_of(argument, &matches);
        let source = match (line, matches.value_source(argument.get_id().as_str())) {
            (Some(line), _) => format!("line {line}"),
            (None, _) if is_of_last => "last start".to_owned(),
            (None, _) if has_identity && last_start::is_in_identity(key) => {
                value = Value::Null;
                IDENTITY.to_owned()
            }
            (None, Some(ValueSource::EnvVariable)) => "environment".to_owned(),
            (None, _) => "default".to_owned(),
        };
        rows.push((key, value, source));
    }
    if as_json {
        let rows = rows.into_iter();
        let rows = rows.map(|(key, value, source)| {
            let roles: Vec<_> = roles_of_key(key).iter().map(Role::to_string).collect();
            let is_applied = reload::APPLIED.contains(&key);
            let row = json!({
                "value": value, "source": source, "roles": roles, "reload": is_applied,
            });
            (key.to_owned(), row)
        });
        outln!("{}", Value::Object(rows.collect()));
        return Ok(());
    }
    for (key, value, source) in rows {
        // A key without a value is a comment, so that the output can be used as a file.
        let roles = roles_of_key(key);
        let about = match roles.len() == Role::value_variants().len() {
            true => String::new(),
            false => format!("; {}", names(roles)),
        };
        let unset = if source == IDENTITY {
            "kept in cell.json"
        } else {
            "not set"
        };
        match value {
            Value::Null => outln!("{:<50} # {unset}{about}", format!("# {key}")),
            value => outln!("{:<50} # {source}{about}", format!("{key} = {value}")),
        }
    }
    Ok(())
}

/// The roles of a key, if the file names roles and none of these.
fn without_use(settings: &Settings, key: &str) -> Option<&'static [Role]> {
    let named = settings.words_of("roles");
    let roles = roles_of_key(key);
    let is_used = roles.iter().any(|role| named.contains(&role.to_string()));
    (!named.is_empty() && !is_used).then_some(roles)
}

fn names(roles: &[Role]) -> String {
    let names: Vec<_> = roles.iter().map(Role::to_string).collect();
    names.join(", ")
}

/// The value of an option in the form of the file; null if it has none.
pub(crate) fn value_of(argument: &clap::Arg, matches: &ArgMatches) -> Value {
    let id = argument.get_id().as_str();
    if matches!(argument.get_action(), clap::ArgAction::SetTrue) {
        return matches.get_flag(id).into();
    }
    let words = matches.get_raw(id).into_iter().flatten();
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    settings::json_of(&words)
}
