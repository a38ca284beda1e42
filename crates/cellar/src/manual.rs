//! `cellar manual`: writes a manual page for each command, from the declarations that parse it.
//!
//! Page names have dashes: `cellar db export` has the page `cellar-db-export(1)`. Servers, mounts
//! and the configuration file are in sections 8 and 5.

mod suites;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use crate::failure::{Failure, Outcome};
use crate::serve::{Role, roles_of_key};
use crate::{osd_serve, reload, settings, suite};

/// The title at the top of each page.
const MANUAL: &str = "Cellar";
/// The source at the foot of each page.
const SOURCE: &str = concat!("cellar ", env!("CARGO_PKG_VERSION"));
/// Commands of section 8: they run for as long as a service does, or need root.
const ADMINISTRATION: [&str; 6] = [
    "cellar up",
    "cellar serve",
    "cellar stand-in",
    "cellar osd serve",
    "cellar mount",
    "cellar umount",
];

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar manual /usr/local/share/man        writes man1/cellar.1, man1/cellar-vos-create.1, ...")]
pub(crate) struct Options {
    /// The directory; it is made if it is missing.
    directory: PathBuf,
}

/// Runs the command. `program` is the whole command line of cellar.
pub(crate) fn run(options: &Options, mut program: Command) -> Outcome {
    program.build();
    let pages = Pages {
        directory: &options.directory,
    };
    pages.of_tree(&program)?;
    for suite in suite::ALL {
        for page in suites::pages(suite) {
            pages.write(&page.name, 1, &page.text)?;
        }
    }
    let mut server = osd_serve::command().bin_name("cellar osd serve");
    server.build();
    pages.of_command(&server)?;
    if let Some(serve) = program.find_subcommand("serve") {
        pages.write("cellar.toml", 5, &configuration(serve))?;
    }
    // The helper of mount(8) has the options of `cellar mount`.
    pages.write("mount.cellar", 8, ".so man8/cellar-mount.8\n")
}

/// The directory of the pages.
struct Pages<'a> {
    directory: &'a Path,
}

impl Pages<'_> {
    /// The pages of a command and of the commands below it. Suites have tables of their own.
    fn of_tree(&self, command: &Command) -> Outcome {
        self.of_command(command)?;
        for below in command.get_subcommands().filter(|below| is_shown(below)) {
            let is_suite = suite::ALL
                .iter()
                .any(|suite| suite.name == below.get_name());
            if !is_suite {
                self.of_tree(below)?;
            }
        }
        Ok(())
    }

    fn of_command(&self, command: &Command) -> Outcome {
        let name = command.get_bin_name().unwrap_or(command.get_name());
        let page = name.replace(' ', "-");
        let section = section(name);
        let titled = command
            .clone()
            .display_name(page.clone())
            .version(None::<&str>);
        let man = Man::new(titled)
            .title(page.to_uppercase())
            .section(section.to_string())
            .source(SOURCE)
            .manual(MANUAL);
        let mut text = Vec::new();
        man.render_title(&mut text)?;
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        if command
            .get_arguments()
            .any(|argument| !argument.is_hide_set())
        {
            man.render_options_section(&mut text)?;
        }
        let mut more = Roff::new();
        let below: Vec<_> = command.get_subcommands().filter(|c| is_shown(c)).collect();
        if !below.is_empty() {
            more.control("SH", ["COMMANDS"]);
        }
        for below in below {
            let name = below.get_bin_name().unwrap_or(below.get_name());
            let about = below
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            reference(&mut more, name, &about);
        }
        if let Some(end) = command.get_after_help() {
            sections(&mut more, &end.to_string());
        }
        more.to_writer(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        self.write(&page, section, &text)
    }

    fn write(&self, name: &str, section: u8, text: &str) -> Outcome {
        let folder = self.directory.join(format!("man{section}"));
        let file = folder.join(format!("{name}.{section}"));
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&file, text))
            .map_err(|cause| Failure::new(format!("{}: {cause}", file.display())))
    }
}

/// Whether a command has a page: it is not hidden, and not clap's own `help`.
fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// The section of a command's page.
fn section(command: &str) -> u8 {
    if ADMINISTRATION.contains(&command) {
        8
    } else {
        1
    }
}

/// An entry that names the page of another command.
fn reference(roff: &mut Roff, command: &str, about: &str) {
    let page = format!("{}({})", command.replace(' ', "-"), section(command));
    roff.control("TP", []);
    roff.text([bold(page)]);
    roff.text([roman(about)]);
}

/// The end of a help text, in which a line such as `Examples:` begins a section.
fn sections(roff: &mut Roff, text: &str) {
    let mut is_open = false;
    for line in text.lines() {
        let heading = line.strip_suffix(':').filter(|_| !line.starts_with(' '));
        match heading {
            Some(heading) => {
                if is_open {
                    roff.control("fi", []);
                }
                roff.control("SH", [heading.to_uppercase().as_str()]);
                roff.control("nf", []);
                is_open = true;
            }
            None => {
                if !is_open {
                    roff.control("SH", ["NOTES"]);
                    roff.control("nf", []);
                    is_open = true;
                }
                roff.text([roman(line)]);
            }
        }
    }
    if is_open {
        roff.control("fi", []);
    }
}

/// A page's title and its name section.
fn beginning(name: &str, section: u8, about: &str) -> Roff {
    let mut roff = Roff::new();
    let section = section.to_string();
    let title = name.to_uppercase();
    roff.control("TH", [title.as_str(), section.as_str(), "", SOURCE, MANUAL]);
    roff.control("SH", ["NAME"]);
    let about = about.trim_end_matches('.');
    roff.text([roman(format!("{name} - {about}"))]);
    roff
}

/// The page of the configuration file.
fn configuration(serve: &Command) -> String {
    let mut roff = beginning("cellar.toml", 5, "configuration file of Cellar's servers");
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([
        bold("cellar serve"),
        roman(" reads "),
        bold("/etc/cellar/cellar.toml"),
        roman(
            ". The file is TOML without sections. A key is the name of an option without the \
             dashes. A list is written [\"a\", \"b\"]; a switch is true or false. Options of the \
             command line override the file. 'cellar config check' names the first wrong line.",
        ),
    ]);
    roff.control("SH", ["KEYS"]);
    for argument in settings::keys(serve) {
        let key = argument.get_long().unwrap_or_default();
        let help = argument.get_long_help().or(argument.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        let names = argument.get_value_names().unwrap_or_default();
        let takes = argument.get_action().takes_values();
        roff.control("TP", []);
        let value = match names.first() {
            Some(name) if takes => format!(" = {name}"),
            _ => " = true | false".to_owned(),
        };
        roff.text([bold(key), roman(value)]);
        let roles: Vec<_> = roles_of_key(key).iter().map(Role::to_string).collect();
        let when = match reload::APPLIED.contains(&key) {
            true => "A reload applies a change.",
            false => "A change needs a restart.",
        };
        let help = help.trim_end_matches('.');
        roff.text([roman(format!(
            "{help}. Roles: {}. {when}",
            roles.join(", ")
        ))]);
    }
    roff.control("SH", ["EXAMPLE"]);
    roff.control("nf", []);
    for line in [
        "roles = [\"databases\", \"fileserver\"]",
        "cell = \"example.org\"",
        "bind = \"192.0.2.10\"",
    ] {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("cellar-serve(8), cellar-config(1)")]);
    roff.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page() {
        use clap::CommandFactory as _;
        let place = tempfile::tempdir().expect("tempdir");
        let options = Options {
            directory: place.path().to_owned(),
        };
        run(&options, crate::Cli::command()).expect("pages");
        let page = |name: &str| {
            let file = place.path().join(name);
            fs::read_to_string(&file).unwrap_or_else(|cause| panic!("{name}: {cause}"))
        };
        for (name, part) in [
            ("man1/cellar.1", "cellar\\-vos(1)"),
            ("man1/cellar-db-export.1", "with\\-keys"),
            ("man1/cellar-vos-create.1", "\\-maxquota"),
            ("man1/cellar-vos-create.1", ".SH EXAMPLES"),
            ("man1/cellar-vos.1", "cellar\\-vos\\-release(1)"),
            ("man1/cellar-osd-policy-test.1", "policy"),
            ("man8/cellar-serve.8", "\\-\\-bind"),
            ("man8/cellar-osd-serve.8", "\\-\\-join"),
            ("man8/cellar-stand-in.8", "\\-\\-dir"),
            ("man8/mount.cellar.8", ".so man8/cellar-mount.8"),
            ("man5/cellar.toml.5", "metrics\\-token"),
        ] {
            assert!(page(name).contains(part), "{name} has no {part}");
        }
        assert!(!place.path().join("man1/cellar-mount-guard.1").exists());
        assert!(!place.path().join("man1/cellar-help.1").exists());
    }
}
