//! `cellar key`: the keys of a cell's servers. Several versions are valid at a time, so a cell can
//! change its key without a pause. No command prints a key.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use cellar_auth::{Authority, Enctype, SecretKey};
use clap::Subcommand;
use serde_json::json;
use zeroize::Zeroizing;

use crate::default_directory;
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::suite::print_json;

/// The longest text of a key that is read from standard input, in bytes.
const KEY_TEXT_MAX: u64 = 1024;

#[derive(Debug, clap::Args)]
#[command(after_help = "A new key for the cell:
  cellar key import-keytab new.keytab     on every server, before or as soon as the KDC has it
  cellar key retire VERSION               remove the old one after its last ticket has expired

Other examples:
  cellar key list
  cellar key export --keytab-principal afs/example.org@EXAMPLE.ORG /root/afs.keytab
  cellar key list --server-dir /etc/openafs/server --cell example.org
docs/operating/keys.md describes a key change without a pause.")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: KeyCommand,
}

#[derive(Debug, clap::Args)]
struct KeyDirectory {
    /// Directory of the cell on this machine. Default: ./cell-data.
    #[arg(long, value_name = "DIR", env = "CELLAR_DIR")]
    dir: Option<PathBuf>,
    /// Use an OpenAFS server's key directory instead (/etc/openafs/server); needs --cell.
    #[arg(long, value_name = "DIR", requires = "cell")]
    server_dir: Option<PathBuf>,
    /// The cell. Default: the cell in --dir.
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// List versions and types of the keys.
    #[command(after_help = "Examples:
  cellar key list
  cellar key list --json --dir /srv/cell")]
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: KeyDirectory,
    },
    /// Add a key, read in hexadecimal from standard input.
    #[command(after_help = "Example:
  cellar key add --kvno 5 <key.hex         64 digits for the default type")]
    Add {
        /// Version of the key.
        #[arg(long, value_name = "NUMBER")]
        kvno: u32,
        /// Encryption type of the key.
        #[arg(long, value_name = "TYPE", value_parser = enctype, default_value = "aes256-cts-hmac-sha1-96")]
        enctype: Enctype,
        #[command(flatten)]
        place: KeyDirectory,
    },
    /// Add the cell's keys from a keytab: those of afs/CELL and afs, or of --principal.
    #[command(after_help = "Examples:
  cellar key import-keytab afs.keytab
  cellar key import-keytab old.keytab --principal afs@EXAMPLE.ORG")]
    ImportKeytab {
        /// The keytab to read.
        file: PathBuf,
        /// Import the keys of this principal.
        #[arg(long, value_name = "NAME@REALM")]
        principal: Option<String>,
        #[command(flatten)]
        place: KeyDirectory,
    },
    /// Write all keys to a file that only its owner can read.
    #[command(after_help = "Examples:
  cellar key export KeyFileExt             for /etc/openafs/server, or server-etc of another machine
  cellar key export afs.keytab --keytab-principal afs/example.org@EXAMPLE.ORG")]
    Export {
        /// The file to write.
        file: PathBuf,
        /// Write a keytab with this principal. Default: the format of OpenAFS's KeyFileExt.
        #[arg(long, value_name = "NAME@REALM")]
        keytab_principal: Option<String>,
        #[command(flatten)]
        place: KeyDirectory,
    },
    /// Remove all keys of a version. Tickets sealed with them stop working at once.
    #[command(after_help = "Example:
  cellar key retire 4")]
    Retire {
        /// The version to remove.
        kvno: u32,
        /// Remove the version even if no other key is left.
        #[arg(long)]
        last: bool,
        #[command(flatten)]
        place: KeyDirectory,
    },
    /// Make a random key with the next version number, for a cell without a KDC.
    #[command(after_help = "Example:
  cellar key random")]
    Random {
        /// Encryption type of the key.
        #[arg(long, value_name = "TYPE", value_parser = enctype, default_value = "aes256-cts-hmac-sha1-96")]
        enctype: Enctype,
        #[command(flatten)]
        place: KeyDirectory,
    },
}

impl KeyDirectory {
    fn authority(&self) -> Outcome<Authority> {
        if let (Some(directory), Some(cell)) = (&self.server_dir, &self.cell) {
            return Ok(Authority::open(directory, cell)?);
        }
        let directory = default_directory::named_or_default(self.dir.as_deref())?;
        let identity = directory.identity()?.ok_or_else(|| {
            Failure::new(format!(
                "{} holds no cell: give --dir, or --server-dir and --cell for an OpenAFS server",
                directory.path().display()
            ))
        })?;
        if let Some(cell) = &self.cell
            && !cell.eq_ignore_ascii_case(identity.cell.name.as_str())
        {
            return Err(Failure::usage(format!(
                "{} holds cell {}, not {cell}",
                directory.path().display(),
                identity.cell.name
            )));
        }
        let place = directory.server_etc();
        Ok(Authority::open(&place, identity.cell.name.as_str())?)
    }
}

pub(crate) fn run(options: Options) -> Outcome {
    match options.what {
        KeyCommand::List { json, place } => list(&place.authority()?, json),
        KeyCommand::Add {
            kvno,
            enctype,
            place,
        } => {
            let added = place.authority()?.keys().add(kvno, &read_key(enctype)?)?;
            outln!(
                "Key version {kvno}, {enctype}{}",
                if added { "" } else { ": already present" }
            );
            Ok(())
        }
        KeyCommand::ImportKeytab {
            file,
            principal,
            place,
        } => {
            let authority = place.authority()?;
            let cell = authority.cell().to_owned();
            let keys = authority.keys();
            let added = keys.import_keytab(&file, principal.as_deref(), &cell);
            let added = added.map_err(|error| not_imported(error, &file, principal, &cell))?;
            if added.is_empty() {
                outln!("All keys of the keytab were already present.");
            }
            for key in added {
                outln!("Key version {}, {}", key.kvno, key.enctype);
            }
            Ok(())
        }
        KeyCommand::Export {
            file,
            keytab_principal,
            place,
        } => {
            let authority = place.authority()?;
            let count = match keytab_principal {
                Some(principal) => authority.keys().export_keytab(&file, &principal)?,
                None => authority.keys().export_key_file_ext(&file)?,
            };
            let keys = if count == 1 { "key" } else { "keys" };
            outln!("{count} {keys} written to {}", file.display());
            Ok(())
        }
        KeyCommand::Retire { kvno, last, place } => {
            let authority = place.authority()?;
            let keys = authority.keys().list();
            let alone = keys.iter().all(|key| key.kvno == kvno);
            if alone && !keys.is_empty() && !last {
                return Err(Failure::new(
                    "this is the last key, and without a key no user can log in: add the new \
                     one first (--last removes it anyway)",
                ));
            }
            match authority.keys().retire(kvno)? {
                0 => Err(Failure::new(format!("there is no key of version {kvno}"))),
                _ => Ok(()),
            }
        }
        KeyCommand::Random { enctype, place } => {
            let key = place.authority()?.keys().add_random(enctype)?;
            outln!("Key version {}, {}", key.kvno, key.enctype);
            Ok(())
        }
    }
}

/// The failure for a keytab that was not imported, with advice.
fn not_imported(
    error: cellar_auth::Error,
    file: &Path,
    principal: Option<String>,
    cell: &str,
) -> Failure {
    let file = file.display();
    match error {
        cellar_auth::Error::NoKey => {
            let wanted = principal.unwrap_or_else(|| format!("afs/{cell} or afs"));
            Failure::new(format!(
                "{file} has no key of {wanted} ('klist -k {file}' lists its principals; --principal \
                 selects another one)"
            ))
        }
        cellar_auth::Error::KeyExists { kvno, .. } => Failure::new(format!(
            "{error}. If no user has tickets sealed with that one, 'cellar key retire {kvno} --last' makes \
             room; otherwise let the KDC make a key of a higher version"
        )),
        error => error.into(),
    }
}

fn list(authority: &Authority, as_json: bool) -> Outcome {
    let keys = authority.keys().list();
    if as_json {
        let row =
            |key: &cellar_auth::KeyInfo| json!({ "kvno": key.kvno, "enctype": key.enctype.name() });
        return print_json(&keys.iter().map(row).collect::<Vec<_>>());
    }
    if keys.is_empty() {
        outln!("No keys: no user can log in. 'cellar key import-keytab FILE' adds the KDC's keys.");
    }
    for key in keys {
        outln!("Key version {}, {}", key.kvno, key.enctype);
    }
    Ok(())
}

fn enctype(text: &str) -> Result<Enctype, String> {
    let named = |enctype: &Enctype| enctype.name() == text || text.parse() == Ok(enctype.number());
    Enctype::ALL.into_iter().find(named).ok_or_else(|| {
        let names: Vec<_> = Enctype::ALL.iter().map(|enctype| enctype.name()).collect();
        format!("one of {}", names.join(", "))
    })
}

/// Reads a key from standard input. Arguments would be visible to every account of the machine.
fn read_key(enctype: Enctype) -> Outcome<SecretKey> {
    let mut text = Zeroizing::new(String::with_capacity(KEY_TEXT_MAX as usize));
    std::io::stdin()
        .lock()
        .take(KEY_TEXT_MAX)
        .read_to_string(&mut text)?;
    let digits = text.trim();
    let bad = || Failure::usage("the key on standard input is not hexadecimal");
    if !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return Err(bad());
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
    for at in (0..digits.len()).step_by(2) {
        bytes.push(u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| bad())?);
    }
    Ok(SecretKey::new(enctype, &bytes)?)
}
