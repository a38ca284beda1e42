//! The overseer's calls for superusers only: the list of superusers, the cell's keys, and logs.
//!
//! Operations that are not possible are refused with a code that `bos` explains. The code is
//! BZACCESS where OpenAFS's overseer in restricted mode returns it too (programs, commands,
//! instances), and for DES keys, which nothing here uses. It is BZBUSY for stopping a role while
//! the process runs: without the overseer in it, no call could start the role again. A restart of
//! a role or of the overseer restarts the process, after the reply.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use cellar_auth::Superusers;
use cellar_auth::audit::{Details, Record};
use cellar_auth::audit_details;
use cellar_rpc::{IncomingCall, blocking};
use cellar_wire::AbortCode;
use cellar_wire::bozo::*;
use cellar_wire::ids::AfsTime;
use cellar_wire::package::Procedure;
use cellar_wire::serve::{Handle, HandleStream};

use super::audited::Audited;
use super::{NEVER, Overseer};
use crate::up::wall_clock;

/// EEXIST: the user is a superuser already.
const EXISTS: AbortCode = AbortCode(17);
/// ENOENT: the user is not a superuser.
const MISSING: AbortCode = AbortCode(2);
/// EINVAL: the name is not a user's name.
const INVALID: AbortCode = AbortCode(22);
/// AFSCONF_NOTFOUND: no key of that version.
const NO_KEY: AbortCode = AbortCode(70_354_689);

/// Bytes of a text that are read at a time.
const TEXT_CHUNK: usize = 64 << 10;

/// One handler for each call that only superusers may make: `Procedure(arguments) -> results`.
macro_rules! acts {
    ($this:ident: $($procedure:ident($arguments:pat) -> $reply:ident => $outcome:expr;)*) => {$(
        impl Handle<$procedure, IncomingCall> for Overseer {
            async fn handle(
                &self,
                call: &IncomingCall,
                arguments: $procedure,
            ) -> Result<$reply, AbortCode> {
                let $this = self;
                $this.act(call, arguments, async |$arguments| $outcome).await
            }
        }
    )*};
}

acts! {
    this:
    AddSUser(user) -> AddSUserReply => {
        let changed = this.change_superusers(user.name, Superusers::add, EXISTS).await;
        changed.map(|()| AddSUserReply {})
    };
    DeleteSUser(user) -> DeleteSUserReply => {
        let changed = this.change_superusers(user.name, Superusers::remove, MISSING).await;
        changed.map(|()| DeleteSUserReply {})
    };
    ListKeys(asked) -> ListKeysReply => this.list_keys(&asked).await;
    DeleteKey(key) -> DeleteKeyReply => this.delete_key(key).await;
    SetStatus(asked) -> SetStatusReply => {
        this.set_status(&asked.instance, asked.status).map(|()| SetStatusReply {})
    };
    SetTStatus(asked) -> SetTStatusReply => {
        this.set_status(&asked.instance, asked.status).map(|()| SetTStatusReply {})
    };
    Restart(asked) -> RestartReply => {
        this.instance(&asked.instance)?;
        this.restart.ask();
        Ok(RestartReply {})
    };
    ShutdownAll(_) -> ShutdownAllReply => Err(AbortCode::BZBUSY);
    RestartAll(_) -> RestartAllReply => {
        this.restart.ask();
        Ok(RestartAllReply {})
    };
    ReBozo(_) -> ReBozoReply => {
        this.restart.ask();
        Ok(ReBozoReply {})
    };
    // All roles run whenever a call is answered.
    StartupAll(_) -> StartupAllReply => Ok(StartupAllReply {});
    WaitAll(_) -> WaitAllReply => Ok(WaitAllReply {});
    SetNoAuthFlag(asked) -> SetNoAuthFlagReply => match asked.flag {
                0 => Ok(SetNoAuthFlagReply {}),
                _ => Err(AbortCode::BZACCESS),
            };
    SetRestartTime(asked) -> SetRestartTimeReply => match asked.time.mask {
                NEVER => Ok(SetRestartTimeReply {}),
                _ => Err(AbortCode::BZACCESS),
            };
    AddKey(_) -> AddKeyReply => Err(AbortCode::BZACCESS);
    CreateBnode(_) -> CreateBnodeReply => Err(AbortCode::BZACCESS);
    DeleteBnode(_) -> DeleteBnodeReply => Err(AbortCode::BZACCESS);
    SetCellName(_) -> SetCellNameReply => Err(AbortCode::BZACCESS);
    AddCellHost(_) -> AddCellHostReply => Err(AbortCode::BZACCESS);
    DeleteCellHost(_) -> DeleteCellHostReply => Err(AbortCode::BZACCESS);
    UnInstall(_) -> UnInstallReply => Err(AbortCode::BZACCESS);
    Exec(_) -> ExecReply => Err(AbortCode::BZACCESS);
    Prune(_) -> PruneReply => Err(AbortCode::BZACCESS);
    SetRestrictedMode(_) -> SetRestrictedModeReply => Err(AbortCode::BZACCESS);
}

impl Overseer {
    /// Does `work` for a superuser, and records the call and the caller.
    async fn act<P: Audited, T>(
        &self,
        call: &IncomingCall,
        arguments: P,
        work: impl AsyncFnOnce(P) -> Result<T, AbortCode>,
    ) -> Result<T, AbortCode> {
        let who = self.authority.identify(call.caller());
        let details = arguments.details();
        // `bos listkeys` asks for each key and for the end of the list.
        let is_act = arguments.is_act();
        let outcome = match who.is_superuser() {
            true => work(arguments).await,
            false => Err(AbortCode::BZACCESS),
        };
        // The end of a list is not a refusal.
        let refused = outcome.as_ref().err().copied();
        let refused = refused.filter(|code| *code != AbortCode::BZDOM);
        if is_act {
            self.record(call, P::QUALIFIED_NAME, &who, details, refused);
        }
        outcome
    }

    fn record(
        &self,
        call: &IncomingCall,
        act: &'static str,
        who: &cellar_auth::Identity,
        details: Details,
        refused: Option<AbortCode>,
    ) {
        let now = AfsTime::after_1970(wall_clock());
        let code = refused.map_or(0, |code| code.0);
        let record = Record::new(now, act, who, call.address(), code);
        self.audit.record(record.with_all(details));
    }

    /// Changes the list of superusers; `none` is the code if nothing changes.
    async fn change_superusers(
        &self,
        name: BozoString,
        change: fn(&Superusers, &str) -> cellar_auth::Result<bool>,
        none: AbortCode,
    ) -> Result<(), AbortCode> {
        let authority = self.authority.clone();
        let changed = blocking(move || {
            let name = String::from_utf8_lossy(&name);
            change(authority.superusers(), &name).map_err(|error| code(&error))
        });
        changed.await?.then_some(()).ok_or(none)
    }

    /// Lists only the versions of the cell's keys. It returns neither the keys, which are not DES
    /// keys, nor checksums with which a key could be searched for.
    async fn list_keys(&self, asked: &ListKeys) -> Result<ListKeysReply, AbortCode> {
        let mut versions: Vec<u32> = self
            .authority
            .keys()
            .list()
            .iter()
            .map(|key| key.kvno)
            .collect();
        versions.dedup();
        let index = usize::try_from(asked.index).map_err(|_| AbortCode::BZDOM)?;
        let kvno = versions.get(index).ok_or(AbortCode::BZDOM)?;
        let path = self.key_file.clone();
        let changed = blocking(move || path.metadata()?.modified()).await;
        let changed = changed
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(ListKeysReply {
            kvno: *kvno as i32,
            key: BozoKey::default(),
            key_info: BozoKeyInfo {
                modified_seconds: changed.map_or(0, |since| since.as_secs() as i32),
                ..BozoKeyInfo::default()
            },
        })
    }

    async fn delete_key(&self, key: DeleteKey) -> Result<DeleteKeyReply, AbortCode> {
        let authority = self.authority.clone();
        let kvno = u32::try_from(key.kvno).map_err(|_| NO_KEY)?;
        let retired = move || authority.keys().retire(kvno).map_err(|error| code(&error));
        match blocking(retired).await? {
            0 => Err(NO_KEY),
            _ => Ok(DeleteKeyReply {}),
        }
    }

    /// Roles run for as long as the process does.
    fn set_status(&self, instance: &BozoString, status: i32) -> Result<(), AbortCode> {
        self.instance(instance)?;
        match status {
            GOAL_NORMAL => Ok(()),
            _ => Err(AbortCode::BZBUSY),
        }
    }
}

impl HandleStream<Install, IncomingCall> for Overseer {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: Install,
    ) -> Result<InstallReply, AbortCode> {
        self.act(call, arguments, async |_| Err(AbortCode::BZACCESS))
            .await
    }
}

impl HandleStream<GetLog, IncomingCall> for Overseer {
    /// Streams a log, with a NUL at its end.
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        asked: GetLog,
    ) -> Result<GetLogReply, AbortCode> {
        let who = self.authority.identify(call.caller());
        let path = self
            .logs
            .iter()
            .find(|(name, _)| name.as_bytes() == asked.name.as_bytes());
        let is_elsewhere = asked.name.as_bytes().contains(&b'/');
        let outcome = match (who.is_superuser() && !is_elsewhere, path) {
            (false, _) => Err(AbortCode::BZACCESS),
            (true, None) => Err(AbortCode::BZNOENT),
            (true, Some((_, path))) => Ok(path),
        };
        self.record(
            call,
            GetLog::QUALIFIED_NAME,
            &who,
            audit_details!(asked: name),
            outcome.as_ref().err().copied(),
        );
        let mut log = TextFile::open(outcome?).await?;
        while let Some(bytes) = log.next().await? {
            call.write(bytes).await?;
        }
        call.write(Bytes::from_static(&[0])).await?;
        Ok(GetLogReply {})
    }
}

impl HandleStream<ExportDatabases, IncomingCall> for Overseer {
    /// Streams a copy of the databases with all changes up to this call. BZNOENT: this process has
    /// no databases, or they are in etcd. BZIO: the copy cannot be written; the log has the reason.
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        asked: ExportDatabases,
    ) -> Result<ExportDatabasesReply, AbortCode> {
        let copied = self.act(call, asked, async |_| {
            let copier = self.copier.clone().ok_or(AbortCode::BZNOENT)?;
            let copied = blocking(move || copier.copy_now()).await;
            copied.map_err(|_logged| AbortCode::BZIO)
        });
        let mut copy = TextFile::open(&copied.await?).await?;
        while let Some(bytes) = copy.next().await? {
            call.write(bytes).await?;
        }
        Ok(ExportDatabasesReply {})
    }
}

/// The code for `bos` when a file of ours cannot be changed.
fn code(error: &cellar_auth::Error) -> AbortCode {
    if matches!(error, cellar_auth::Error::Name(_)) {
        return INVALID;
    }
    tracing::error!(%error, "the overseer cannot change a file");
    AbortCode::BZIO
}

/// A file of text up to its length at the time of opening. Later lines are not read.
struct TextFile {
    file: Option<File>,
    left: u64,
}

impl TextFile {
    async fn open(path: &Path) -> Result<Self, AbortCode> {
        let path = PathBuf::from(path);
        let opened = blocking(move || {
            let file = cellar_private::read(&path)?;
            let left = file.metadata()?.len();
            Ok::<_, io::Error>((file, left))
        });
        let (file, left) = opened.await.map_err(|_| AbortCode::BZNOENT)?;
        Ok(Self {
            file: Some(file),
            left,
        })
    }

    /// The next bytes, without NULs.
    async fn next(&mut self) -> Result<Option<Bytes>, AbortCode> {
        let Some(mut file) = self.file.take().filter(|_| self.left > 0) else {
            return Ok(None);
        };
        let wanted = self.left.min(TEXT_CHUNK as u64);
        let read = blocking(move || {
            let mut bytes = Vec::new();
            (&mut file).take(wanted).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>((file, bytes))
        });
        let (file, mut bytes) = read.await.map_err(|_| AbortCode::BZIO)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.left -= bytes.len() as u64;
        self.file = Some(file);
        bytes.retain(|byte| *byte != 0);
        Ok(Some(bytes.into()))
    }
}
