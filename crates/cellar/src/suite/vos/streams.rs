//! dump and restore: volumes as files and pipes.

use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::{Bytes, BytesMut};
use cellar_admin::vos::job::{JobContext, Watcher};
use cellar_admin::vos::{DateChoice, DumpOptions, Location, RestoreOptions, site_flags};
use cellar_wire::AbortCode;
use serde_json::json;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::{called_server, partition, print_json};
use super::{Vos, dump_fault, since};
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};
use crate::progress::Progress;

/// Bytes of a file that are read at a time.
const PIECE: usize = 256 * 1024;

/// A standard stream of this process, as a file of its own.
fn as_file(stream: BorrowedFd<'_>) -> std::io::Result<File> {
    Ok(File::from_std(stream.try_clone_to_owned()?.into()))
}

/// Prints the messages of a job above its bar.
pub(crate) struct Speaker<'a>(pub(crate) &'a Progress);

impl Watcher for Speaker<'_> {
    fn say(&self, line: &str) {
        self.0.say(line);
    }
}

impl Vos<'_> {
    pub(super) async fn dump(&self) -> Outcome {
        let volume = self.invocation.required("id");
        let options = DumpOptions {
            since: since(self.invocation.get("time"))?,
            clone: self.invocation.has("clone"),
            omit_directories: self.invocation.has("omitdirs"),
            metadata_only: self.invocation.has("metadataonly"),
        };
        let file = self.invocation.get("file");
        if file.is_none() && std::io::stdout().is_terminal() {
            return Err(Failure::usage(
                "a dump cannot be written to a terminal; write it to a file with -file",
            ));
        }
        let (id, at) = self.volume_and_place(volume).await.map_err(|failure| {
            // These refusals have words of their own in OpenAFS's vos.
            let given = |switch| self.invocation.get(switch);
            let both = given("server").zip(given("partition"));
            match both {
                Some((server, _)) if called_server(self.session, server).is_err() => {
                    Failure::usage(format!("Invalid server name: {failure}"))
                }
                Some((_, part)) if partition(part).is_err() => {
                    Failure::usage(format!("Invalid partition name: {failure}"))
                }
                _ => failure,
            }
        })?;
        // The total is an estimate. An exact one would take the server too long.
        let whole = match (options.since.0, options.metadata_only) {
            (0, false) => self
                .volumes
                .volume_on(at.server.into(), at.partition, id, false)
                .await
                .ok()
                .map(|info| u64::from(info.size_kib) * 1024),
            _ => None,
        };
        let mut target = match file {
            // A file with a dump gives read access to the volume, so it is private.
            Some(path) => cellar_private::create(path.as_ref())
                .map(File::from_std)
                .map_err(|cause| {
                    Failure::new(format!(
                        "Could not create file '{path}': {}: VOLSER: illegal operation",
                        reason(&cause)
                    ))
                })?,
            None => as_file(std::io::stdout().as_fd())?,
        };
        let progress = Progress::bytes(whole);
        progress.name(volume);
        let speaker = Speaker(&progress);
        let volumes = self.volumes;
        let dumped = super::jobs::run(&speaker, async |context: JobContext<'_>| {
            let sink = async |bytes: Bytes| {
                target.write_all(&bytes).await?;
                progress.add(bytes.len() as u64);
                Ok(())
            };
            volumes.dump(at, id, options, context, sink).await?;
            target.flush().await.map_err(cellar_admin::Error::Local)
        })
        .await;
        progress.finish();
        if let (Err(_), Some(path)) = (&dumped, file) {
            // Remove a partial dump: it is useless, and could be taken for a complete one.
            let _removed = tokio::fs::remove_file(path).await;
        }
        dumped?;
        match file {
            Some(path) if self.json() => print_json(&json!({ "id": id.0, "file": path })),
            Some(path) => {
                crate::output::errln!("Dumped volume {volume} in file {path}");
                Ok(())
            }
            None => {
                crate::output::errln!("Dumped volume {volume} in stdout ");
                Ok(())
            }
        }
    }

    pub(super) async fn restore(mut self) -> Outcome {
        let name = self.invocation.required("name");
        let file = self.invocation.get("file");
        let mut options = RestoreOptions {
            id: match self.invocation.get("id") {
                Some(volume) => Some(self.volume(volume).await?),
                None => None,
            },
            incremental: false,
            off_line: self.invocation.has("offline"),
            read_only: self.invocation.has("readonly"),
            creation: self.date_choice("creation")?,
            last_update: self.date_choice("lastupdate")?,
            keep_elsewhere: self.invocation.has("nodelete"),
        };
        let overwrite = self.overwrite_choice()?;
        let at = self.given_location()?;
        self.volumes.check_partition(at).await?;
        cellar_admin::vos::check_restored_name(name)?;
        let mut source = match file {
            Some(path) => {
                let refused = |cause: std::io::Error| {
                    Failure::new(format!("Can't access file {path}: {}", reason(&cause)))
                };
                let source = File::open(path).await.map_err(refused)?;
                if !source.metadata().await.map_err(refused)?.is_file() {
                    return Err(refused(std::io::ErrorKind::InvalidInput.into()));
                }
                source
            }
            None => as_file(std::io::stdin().as_fd())?,
        };
        let size = match file {
            Some(path) => tokio::fs::metadata(path)
                .await
                .ok()
                .map(|about| about.len()),
            None => None,
        };
        options.incremental = self.overwrite(name, overwrite, at, options).await?;
        let plan = self.volumes.plan_restore(name, options).await?;
        self.hosts.learn([at.server.into()]).await;
        if !self.json() {
            out!(
                "Restoring volume {} Id {} on server {} partition {} ..",
                plan.0.name,
                plan.0.volume.0,
                self.hosts.name(at.server.into()),
                at.partition
            );
            std::io::stdout().flush()?;
        }
        let progress = Progress::bytes(size);
        progress.name(name);
        let speaker = Speaker(&progress);
        let volumes = self.volumes;
        let mut refused = None;
        // Only a dump from a pipe is checked while it passes. A file can be read again afterwards.
        let mut check = file.is_none().then(dump_fault::Check::default);
        let restored = super::jobs::run(&speaker, async |context: JobContext<'_>| {
            let read = async || {
                let mut piece = BytesMut::with_capacity(PIECE);
                let count = source.read_buf(&mut piece).await?;
                progress.add(count as u64);
                if let Some(check) = &mut check {
                    check.read(&piece);
                }
                Ok((count > 0).then(|| piece.freeze()))
            };
            let restored = volumes.restore(at, &plan, options, context, read).await;
            restored.inspect_err(|error| refused = error.code())
        })
        .await;
        progress.finish();
        if restored.is_err() && !self.json() {
            outln!();
        }
        if refused == Some(AbortCode::VOLSERREAD_DUMPERROR) {
            let fault = match file {
                Some(path) => dump_fault::of_file(path.as_ref()).await,
                None => check.and_then(dump_fault::Check::fault),
            };
            if let Some(fault) = fault {
                crate::output::errln!("{}: {fault}", file.unwrap_or("standard input"));
            }
        }
        restored?;
        if self.json() {
            return print_json(&plan.0);
        }
        outln!(" done");
        outln!(
            "Restored volume {name} on {} {}",
            self.invocation.required("server"),
            at.partition
        );
        Ok(())
    }

    fn date_choice(&self, switch: &str) -> Outcome<DateChoice> {
        match self.invocation.get(switch) {
            None | Some("n" | "new") => Ok(DateChoice::New),
            Some("d" | "dump") => Ok(DateChoice::Dump),
            Some("k" | "keep") => Ok(DateChoice::Keep),
            Some(other) => Err(Failure::usage(format!(
                "{other} is not a valid argument to -{switch}; write dump, keep or new"
            ))),
        }
    }

    /// The value of -overwrite: a, f or i.
    fn overwrite_choice(&self) -> Outcome<Option<char>> {
        match self.invocation.get("overwrite") {
            None => Ok(None),
            Some("a" | "abort") => Ok(Some('a')),
            Some("f" | "full") => Ok(Some('f')),
            Some("i" | "inc" | "increment" | "incremental") => Ok(Some('i')),
            Some(other) => Err(Failure::usage(format!(
                "{other} is not a valid argument to -overwrite; write abort, full or incremental"
            ))),
        }
    }

    /// Decides what happens to an existing volume. Returns whether the restore is incremental.
    async fn overwrite(
        &self,
        name: &str,
        wanted: Option<char>,
        at: Location,
        options: RestoreOptions,
    ) -> Outcome<bool> {
        let kind = if options.read_only {
            site_flags::READ_ONLY
        } else {
            site_flags::READ_WRITE
        };
        let sites: Vec<_> = match self.volumes.entry(name).await {
            Ok(entry) => entry.sites,
            Err(cellar_admin::Error::NoSuchEntry(_)) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let mut sites = sites
            .iter()
            .filter(|site| site.flags & kind != 0)
            .peekable();
        if sites.peek().is_none() {
            if matches!(wanted, Some('i' | 'a')) {
                crate::output::errln!("Volume does not exist; Will perform a full restore");
            }
            return Ok(false);
        }
        let is_here = sites.any(|site| site.server == at.server && site.partition == at.partition);
        let chosen = match wanted {
            Some(chosen) => chosen,
            None => self.ask(name, is_here)?,
        };
        match chosen {
            'f' => {
                crate::output::errln!("Volume exists; Will perform a full restore in its place");
                Ok(false)
            }
            'i' if is_here => Ok(true),
            'i' => Err(Failure::new(format!(
                "volume {name} already exists on a different server/part; not allowed"
            ))),
            _ => Err(Failure::new("Volume exists; Aborting restore command")),
        }
    }

    fn ask(&self, name: &str, is_here: bool) -> Outcome<char> {
        let asked = self.invocation.has("file") && std::io::stdin().is_terminal();
        if !asked {
            return Err(Failure::new(
                "Volume exists and no -overwrite option specified; Aborting restore command",
            ));
        }
        if is_here {
            crate::output::errln!("The volume {name} already exists in the VLDB");
            eprint!("Do you want to do a full/incremental restore or abort? [fia](a): ");
        } else {
            crate::output::errln!("The volume {name} already exists on a different server/part");
            eprint!("Do you want to do a full restore or abort? [fa](a): ");
        }
        std::io::stderr().flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        Ok(answer.trim_start().chars().next().unwrap_or('a'))
    }
}

/// The system's error text without its number.
fn reason(cause: &std::io::Error) -> String {
    let text = cause.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}
