//! The configuration file of a daemon: TOML, with one key for each option of the command line.
//!
//! ```toml
//! cell = "example.org"
//! bind = "192.0.2.10"
//! metrics = "9100"
//! open-statistics = true
//! ```
//!
//! 1. A key is the long name of an option, without the dashes. Thus every option has a key, and the
//!    parser of the option is the only one of its value.
//! 2. The keys become words in front of those of the command line. A word that comes later wins, so
//!    the command line overrides the file, and the file overrides the environment.
//! 3. Options for one start only ([`ONE_START`]) have no key: they would act at each start.
//! 4. Each key is checked by itself, so that an error names its line.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Command};
use toml::de::{DeTable, DeValue};

use crate::failure::{Failure, Outcome};

/// Options for one start. A file that had them would repeat them at each start.
const ONE_START: [&str; 11] = [
    "config",
    "drop-damaged-journal",
    "first-volumes",
    "forget",
    "help",
    "join",
    "new-cell",
    "new-database",
    "new-partition",
    "new-server-etc",
    "version",
];

/// The least similarity of a key that a message suggests.
const SIMILARITY_MIN: f64 = 0.8;

/// The settings of a file.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    path: PathBuf,
    /// In the order of the file.
    settings: Vec<Setting>,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    key: String,
    value: Value,
    line: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Switch(bool),
    /// Words, each for one use of the option.
    Words(Vec<String>),
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no TOML, or has sections; with the line.
    pub(crate) fn load(path: &Path) -> Outcome<Self> {
        let text = fs::read_to_string(path)
            .map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))?;
        Self::parse(path, &text)
    }

    /// Parses the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// The text is no TOML, or has sections; with the line.
    pub(crate) fn parse(path: &Path, text: &str) -> Outcome<Self> {
        let line = |at: usize| {
            let before = text.get(..at).unwrap_or(text);
            before.matches('\n').count() + 1
        };
        let fault = |at: usize, reason: &str| {
            Failure::usage(format!("{}:{}: {reason}", path.display(), line(at)))
        };
        let table = DeTable::parse(text).map_err(|cause| {
            let at = cause.span().map_or(0, |span| span.start);
            fault(at, cause.message())
        })?;
        let mut settings = Vec::new();
        for (key, value) in table.get_ref() {
            let at = key.span().start;
            let value = value_of(value.get_ref()).map_err(|reason| fault(at, reason))?;
            settings.push(Setting {
                key: key.get_ref().to_string(),
                value,
                line: line(at),
            });
        }
        settings.sort_by_key(|setting| setting.line);
        Ok(Self {
            path: path.to_owned(),
            settings,
        })
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.settings.len()
    }

    /// The line of a key, if the file has it.
    pub(crate) fn line_of(&self, key: &str) -> Option<usize> {
        let mut settings = self.settings.iter();
        let setting = settings.find(|setting| setting.key == key)?;
        Some(setting.line)
    }

    /// The keys with their lines.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, usize)> {
        let settings = self.settings.iter();
        settings.map(|setting| (&*setting.key, setting.line))
    }

    /// Whether there is such a key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.line_of(key).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// The settings whose keys `keep` selects.
    pub(crate) fn only(&self, keep: impl Fn(&str) -> bool) -> Self {
        let kept = self.settings.iter().filter(|setting| keep(&setting.key));
        Self {
            path: self.path.clone(),
            settings: kept.cloned().collect(),
        }
    }

    /// Removes a key. Returns whether it was there.
    pub(crate) fn remove(&mut self, key: &str) -> bool {
        let before = self.len();
        self.settings.retain(|setting| setting.key != key);
        self.len() < before
    }

    /// Turns a switch on.
    pub(crate) fn set_switch(&mut self, key: &str) {
        self.set(key, Value::Switch(true));
    }

    /// Sets the words of a key.
    pub(crate) fn set_words(&mut self, key: &str, words: Vec<String>) {
        self.set(key, Value::Words(words));
    }

    fn set(&mut self, key: &str, value: Value) {
        self.remove(key);
        self.settings.push(Setting {
            key: key.to_owned(),
            value,
            line: 0,
        });
    }

    /// The settings as lines of a file, in the order of the keys.
    pub(crate) fn to_toml(&self) -> String {
        let mut settings: Vec<_> = self.settings.iter().collect();
        settings.sort_by_key(|setting| &setting.key);
        let line = |setting: &&Setting| {
            let value = match &setting.value {
                Value::Switch(on) => (*on).into(),
                Value::Words(words) => json_of(words),
            };
            format!("{} = {value}\n", setting.key)
        };
        settings.iter().map(line).collect()
    }

    /// The words of a key.
    pub(crate) fn words_of(&self, key: &str) -> &[String] {
        let mut settings = self.settings.iter();
        match settings.find(|setting| setting.key == key) {
            Some(Setting {
                value: Value::Words(words),
                ..
            }) => words,
            _ => &[],
        }
    }

    /// The settings as words for `command`, which has the options of a daemon. All are checked;
    /// `except` names keys that get no words, because something else gives their values.
    ///
    /// # Errors
    /// The first key that `command` does not know, or whose value it refuses, with its line.
    pub(crate) fn words(&self, command: &Command, except: &[&str]) -> Outcome<Vec<OsString>> {
        let mut all = Vec::new();
        for setting in &self.settings {
            let words = setting.words(command);
            let words = words.and_then(|words| accepted(command, &words).map(|()| words));
            let words = words.map_err(|reason| {
                let (path, line) = (self.path.display(), setting.line);
                Failure::usage(format!("{path}:{line}: {}: {reason}", setting.key))
            })?;
            if !except.contains(&&*setting.key) {
                all.extend(words);
            }
        }
        Ok(all)
    }
}

/// The keys that a file may have for `command`.
pub(crate) fn keys(command: &Command) -> impl Iterator<Item = &clap::Arg> {
    command.get_arguments().filter(|argument| {
        let long = argument.get_long();
        long.is_some_and(|long| !is_for_one_start(long)) && !argument.is_hide_set()
    })
}

/// Whether an option acts at one start only.
pub(crate) fn is_for_one_start(key: &str) -> bool {
    ONE_START.contains(&key)
}

/// Words in the form of the file: null for none, a list for more than one.
pub(crate) fn json_of<S: AsRef<str>>(words: &[S]) -> serde_json::Value {
    let json = |word: &S| match word.as_ref().parse::<u64>() {
        // A number with a sign or zeros in front is a word.
        Ok(number) if number.to_string() == word.as_ref() => number.into(),
        _ => serde_json::Value::from(word.as_ref()),
    };
    match words {
        [] => serde_json::Value::Null,
        [word] => json(word),
        words => words.iter().map(json).collect(),
    }
}

impl Setting {
    fn words(&self, command: &Command) -> Result<Vec<OsString>, String> {
        if is_for_one_start(&self.key) {
            return Err("this option is for one start: give it on the command line".to_owned());
        }
        let mut keys = keys(command);
        let Some(argument) = keys.find(|argument| argument.get_long() == Some(&self.key)) else {
            return Err(unknown(command, &self.key));
        };
        let is_switch = matches!(argument.get_action(), ArgAction::SetTrue);
        match &self.value {
            Value::Switch(on) if is_switch => {
                let word = on.then(|| OsString::from(format!("--{}", self.key)));
                Ok(word.into_iter().collect())
            }
            Value::Switch(_) => {
                Err("the value is a word or a number, not true or false".to_owned())
            }
            Value::Words(_) if is_switch => Err("the value is true or false".to_owned()),
            Value::Words(words) => {
                let words = words.iter();
                let word = |word| OsString::from(format!("--{}={word}", self.key));
                Ok(words.map(word).collect())
            }
        }
    }
}

fn value_of(value: &DeValue<'_>) -> Result<Value, &'static str> {
    let word = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        _ => None,
    };
    match value {
        DeValue::Boolean(on) => Ok(Value::Switch(*on)),
        DeValue::Array(values) => {
            let words = values.iter().map(|value| word(value.get_ref()));
            let words: Option<Vec<_>> = words.collect();
            words
                .map(Value::Words)
                .ok_or("a list consists of words in quotes and of numbers")
        }
        DeValue::Table(_) => Err("sections are not used: write each key in a line of its own"),
        value => word(value)
            .map(|word| Value::Words(vec![word]))
            .ok_or("the value is a word in quotes, a number, true, false, or a list"),
    }
}

/// Whether the command accepts these words alone. The message has one line.
fn accepted(command: &Command, words: &[OsString]) -> Result<(), String> {
    let name = OsString::from(command.get_name());
    let alone = command.clone().mut_args(|argument| {
        // The requirements hold for all keys together, and are checked then.
        argument.required(false)
    });
    let words = std::iter::once(name).chain(words.iter().cloned());
    match alone.try_get_matches_from(words) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == clap::error::ErrorKind::MissingRequiredArgument => Ok(()),
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            Err(line.trim_start_matches("error: ").to_owned())
        }
    }
}

/// The message for an unknown key, with the nearest known one.
fn unknown(command: &Command, key: &str) -> String {
    let known = keys(command).filter_map(clap::Arg::get_long);
    let near = known.map(|name| (strsim::jaro_winkler(name, key), name));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((similarity, name)) if similarity > SIMILARITY_MIN => {
            format!("there is no such key; did you mean '{name}'?")
        }
        _ => "there is no such key; 'cellar config show' prints all keys".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn command() -> Command {
        Command::new("cellar up")
            .arg(
                Arg::new("bind")
                    .long("bind")
                    .value_parser(clap::value_parser!(std::net::IpAddr)),
            )
            .arg(
                Arg::new("osds")
                    .long("osds")
                    .value_parser(clap::value_parser!(u32).range(..=64)),
            )
            .arg(
                Arg::new("sysname")
                    .long("sysname")
                    .action(ArgAction::Append),
            )
            .arg(
                Arg::new("open")
                    .long("open-statistics")
                    .action(ArgAction::SetTrue),
            )
            .arg(Arg::new("join").long("join"))
            .arg(Arg::new("needed").long("needed").required(true))
    }

    fn words(text: &str) -> Result<Vec<String>, String> {
        let settings = Settings::parse(Path::new("c.toml"), text);
        let words = settings.and_then(|settings| settings.words(&command(), &[]));
        let words = words.map_err(|failure| failure.to_string())?;
        let words = words.into_iter();
        Ok(words
            .map(|word| word.into_string().expect("text"))
            .collect())
    }

    #[test]
    fn each_kind_of_value_becomes_words() {
        let text = "# a comment\nosds = 2\nbind = \"192.0.2.1\"\nopen-statistics = true\nsysname = [\"a\", \"b\"]\n";
        let expected = [
            "--osds=2",
            "--bind=192.0.2.1",
            "--open-statistics",
            "--sysname=a",
            "--sysname=b",
        ];
        assert_eq!(words(text).as_deref(), Ok(&expected.map(str::to_owned)[..]));
        assert_eq!(words("open-statistics = false").as_deref(), Ok(&[][..]));
        let settings = Settings::parse(Path::new("c.toml"), text).expect("settings");
        let some = settings.words(&command(), &["osds", "sysname"]);
        assert_eq!(some.expect("words").len(), 2);
        assert_eq!(settings.words_of("sysname"), ["a", "b"]);
        assert_eq!(settings.words_of("bind"), ["192.0.2.1"]);
    }

    #[test]
    fn changed_settings_are_a_file_again() {
        let text = "osds = 2\nbind = \"192.0.2.1\"\nsysname = [\"a\", \"b\"]\n";
        let mut settings = Settings::parse(Path::new("c.toml"), text).expect("settings");
        settings.set_switch("open-statistics");
        settings.set_words("osds", vec!["03".to_owned()]);
        assert!(settings.remove("bind") && !settings.remove("bind"));
        let printed = settings.to_toml();
        let expected = "open-statistics = true\nosds = \"03\"\nsysname = [\"a\",\"b\"]\n";
        assert_eq!(printed, expected);
        let again = Settings::parse(Path::new("c.toml"), &printed).expect("settings");
        assert_eq!(again.only(|key| key != "osds").len(), 2);
    }

    #[test]
    fn an_error_names_its_line_and_the_key() {
        for (text, error) in [
            (
                "\nbind = 7",
                "c.toml:2: bind: invalid value '7' for '--bind <bind>': invalid IP address syntax",
            ),
            (
                "osds = 65",
                "c.toml:1: osds: invalid value '65' for '--osds <osds>': 65 is not in 0..=64",
            ),
            (
                "osds = true",
                "c.toml:1: osds: the value is a word or a number, not true or false",
            ),
            (
                "open-statistics = 1",
                "c.toml:1: open-statistics: the value is true or false",
            ),
            (
                "osd = 1",
                "c.toml:1: osd: there is no such key; did you mean 'osds'?",
            ),
            (
                "zzz = 1",
                "c.toml:1: zzz: there is no such key; 'cellar config show' prints all keys",
            ),
            (
                "join = \"/x\"",
                "c.toml:1: join: this option is for one start: give it on the command line",
            ),
            (
                "osds = 1.5",
                "c.toml:1: the value is a word in quotes, a number, true, false, or a list",
            ),
            (
                "\n[metrics]\nx = 1",
                "c.toml:2: sections are not used: write each key in a line of its own",
            ),
            ("osds = 1\nosds = 2", "c.toml:2: duplicate key"),
        ] {
            assert_eq!(words(text), Err(error.to_owned()), "{text}");
        }
        assert!(words("bind = ").is_err_and(|error| error.starts_with("c.toml:1: ")));
    }
}
