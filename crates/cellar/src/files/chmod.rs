//! `cellar chmod`: changes mode bits.
//!
//! In AFS the access list of the directory decides who may read and write. The mode bits of the
//! owner limit these rights, and the other bits are information for programs.

use cellar_client::{Client, Follow, Node};
use cellar_wire::rxafs::AfsStoreStatus;

use super::tree::{Across, Visit, walk};
use crate::failure::{Failure, Failures, Outcome};
use crate::session::{CellOptions, Session};

/// The bits that `chmod` changes.
const BITS: u32 = 0o7777;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The mode, in octal or symbolic: 644, u+x, go-w, a=rX.
    #[arg(value_name = "MODE", allow_hyphen_values = true)]
    mode: Mode,
    /// Files or directories below /afs; '*', '?' and '[...]' stand for names.
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Change directories with all their contents. Links and mount points are left alone.
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

/// A change of mode bits.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    Octal(u32),
    Symbolic(Vec<Clause>),
}

/// One clause of a symbolic mode: `u+rw`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clause {
    /// The bits that the clause may change.
    mask: u32,
    sign: char,
    letters: String,
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(mode) = u32::from_str_radix(text, 8)
            && mode <= BITS
        {
            return Ok(Self::Octal(mode));
        }
        let clause = |clause: &str| {
            let at = clause.find(['+', '-', '='])?;
            let (who, change) = clause.split_at(at);
            let sign = change.chars().next()?;
            let letters = &change[1..];
            let mask = who.chars().try_fold(0, |mask, letter| {
                Some(
                    mask | match letter {
                        'u' => 0o4700,
                        'g' => 0o2070,
                        'o' => 0o1007,
                        'a' => BITS,
                        _ => return None,
                    },
                )
            })?;
            letters
                .chars()
                .all(|letter| "rwxXst".contains(letter))
                .then(|| Clause {
                    mask: if who.is_empty() { BITS } else { mask },
                    sign,
                    letters: letters.to_owned(),
                })
        };
        let clauses: Option<Vec<_>> = text.split(',').map(clause).collect();
        clauses.map(Self::Symbolic).ok_or_else(|| {
            format!(
                "'{text}' is not a mode: write octal digits, for example 644, or u+x, go-w, a=rX"
            )
        })
    }
}

impl Mode {
    /// The bits after the change.
    fn apply(&self, before: u32, is_directory: bool) -> u32 {
        let clauses = match self {
            Self::Octal(mode) => return *mode,
            Self::Symbolic(clauses) => clauses,
        };
        clauses.iter().fold(before & BITS, |now, clause| {
            let bits = clause.letters.chars().fold(0, |bits, letter| {
                bits | match letter {
                    'r' => 0o444,
                    'w' => 0o222,
                    'x' => 0o111,
                    'X' if is_directory || now & 0o111 != 0 => 0o111,
                    's' => 0o6000,
                    't' => 0o1000,
                    _ => 0,
                }
            }) & clause.mask;
            match clause.sign {
                '+' => now | bits,
                '-' => now & !bits,
                _ => now & !clause.mask | bits,
            }
        })
    }
}

pub(super) async fn run(session: &Session, options: Options) -> Outcome {
    let client = &session.client;
    let mut failures = Failures::of("cellar chmod");
    for path in &options.paths {
        let Some(top) = failures.note(client.find(path, Follow::ALL).await) else {
            continue;
        };
        let depth_max = if options.recursive { usize::MAX } else { 0 };
        let change = async |visit: &Visit, failures: &mut Failures| {
            let changed = change(client, &visit.path, &visit.node, &options.mode).await;
            failures.note(changed);
            Ok(())
        };
        let (top, mut across) = ((path.as_str(), top), Across::Nothing);
        walk(client, top, depth_max, &mut across, &mut failures, change).await?;
    }
    failures.end()
}

/// Changes one file. Bits that the file server does not store are a failure.
async fn change(client: &Client, path: &str, node: &Node, mode: &Mode) -> Outcome {
    if node.is_link() || node.is_mount_point() {
        return Ok(());
    }
    let wanted = mode.apply(node.status.unix_mode, node.is_directory());
    let status = AfsStoreStatus {
        unix_mode: Some(wanted),
        ..AfsStoreStatus::default()
    };
    let now = client.set_status(node, status, path).await?.unix_mode & BITS;
    match wanted & !now {
        0 => Ok(()),
        lost => Err(Failure::new(format!(
            "{path}: the file server did not set the bits {lost:04o}; the mode is {now:04o}. Set-id bits are \
             kept for superusers of the cell and, on files, for their owner"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_chmod_takes_them() {
        for (text, before, is_directory, wanted) in [
            ("644", 0o777, false, 0o644),
            ("4755", 0, false, 0o4755),
            ("u+x", 0o644, false, 0o744),
            ("+x", 0o644, false, 0o755),
            ("go-w,o-r", 0o666, false, 0o640),
            ("a=r", 0o755, false, 0o444),
            ("g=", 0o2775, true, 0o705),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o600, true, 0o711),
            ("u+s", 0o755, false, 0o4755),
            ("ug-s", 0o6755, false, 0o755),
            ("+t", 0o777, true, 0o1777),
        ] {
            let mode: Mode = text.parse().expect(text);
            let now = mode.apply(before, is_directory);
            assert_eq!(now, wanted, "{text}: {now:04o}");
        }
        for text in ["", "8", "10000", "x", "u", "u+q", "z+r", "u+r,", "-1"] {
            assert!(text.parse::<Mode>().is_err(), "{text}");
        }
    }
}
