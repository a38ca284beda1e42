//! The part of bash's completion for the suites: operations, and switches with one dash or two.

use std::fmt::Write as _;

use super::switches as switches_of;
use crate::suite::syntax::Suite;

/// The end of the script: it chooses between the suites and the other commands.
const CHOICE: &str = r#"
_cellar_or_suite() {
    local suite=${COMP_WORDS[0]##*/} at=1
    if [[ $suite == cellar && $COMP_CWORD -gt 1 ]]; then
        suite=${COMP_WORDS[1]} at=2
    fi
    if [[ $suite == osd && ${COMP_WORDS[at]} == policy && $COMP_CWORD -gt $at ]]; then
        suite='osd policy' at=$((at + 1))
    fi
    case $suite in
    vos | pts | fs | bos | osd | 'osd policy') ;;
    *)
        _cellar "$@"
        return
        ;;
    esac
    local word=${COMP_WORDS[COMP_CWORD]} words
    if [[ $COMP_CWORD -eq $at ]]; then
        words=$(_cellar_operations "$suite")
    elif [[ $word == -* ]]; then
        words=$(_cellar_switches "$suite ${COMP_WORDS[at]}")
        [[ $word != --* ]] || words=$(printf '%s' "$words" | sed 's/\(^\| \)-/\1--/g')
    else
        # File names come from the default of 'complete'.
        COMPREPLY=()
        return
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}

complete -F _cellar_or_suite -o bashdefault -o default cellar vos pts fs bos osd
"#;

/// The functions of the suites.
pub(super) fn suites(all: &[&Suite]) -> String {
    let mut operations = String::new();
    let mut switches = String::new();
    for suite in all {
        let name = suite.name;
        let mut names: Vec<_> = suite.commands.iter().map(|c| c.name).collect();
        names.extend(["help", "apropos", "version"]);
        if name == "osd" {
            names.extend(["policy", "serve"]);
        }
        let _ = writeln!(operations, "    '{name}') echo '{}' ;;", names.join(" "));
        for command in suite.commands {
            let all = switches_of(suite, command).into_iter();
            let all: Vec<_> = all.map(|(name, _)| format!("-{name}")).collect();
            let _ = writeln!(
                switches,
                "    '{name} {}') echo '{}' ;;",
                command.name,
                all.join(" ")
            );
        }
    }
    format!(
        "\n_cellar_operations() {{\n    case $1 in\n{operations}    esac\n}}\n\
         \n_cellar_switches() {{\n    case $1 in\n{switches}    esac\n}}\n{CHOICE}"
    )
}
