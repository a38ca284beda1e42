//! The arguments of the overseer's calls as the audit log shows them.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::bozo::*;
use cellar_wire::package::Procedure;

/// A call that the audit log records.
pub(super) trait Audited: Procedure {
    /// The arguments.
    fn details(&self) -> Details;

    /// Whether this call has a record. A command that asks for a list makes several calls, and the
    /// first of them has it.
    fn is_act(&self) -> bool {
        true
    }
}

macro_rules! audited {
    ($($procedure:ident { $($field:ident),* })*) => {$(
        impl Audited for $procedure {
            fn details(&self) -> Details {
                audit_details!(self: $($field),*)
            }
        }
    )*};
}

audited! {
    AddSUser { name }
    DeleteSUser { name }
    DeleteKey { kvno }
    SetStatus { instance, status }
    SetTStatus { instance, status }
    Restart { instance }
    ShutdownAll {}
    RestartAll {}
    ReBozo {}
    StartupAll {}
    WaitAll {}
    SetNoAuthFlag { flag }
    SetRestartTime { restart_type }
    CreateBnode { bnode_type, instance, p1, p2, p3, p4, p5, p6 }
    DeleteBnode { instance }
    SetCellName { name }
    AddCellHost { name }
    DeleteCellHost { name }
    Install { path, size }
    UnInstall { path }
    Exec { command }
    Prune { flags }
    SetRestrictedMode { mode }
    ExportDatabases {}
}

impl Audited for AddKey {
    /// The key is left out: it must not be written to logs.
    fn details(&self) -> Details {
        audit_details!(self: kvno)
    }
}

impl Audited for ListKeys {
    fn details(&self) -> Details {
        Details::new()
    }

    fn is_act(&self) -> bool {
        self.index == 0
    }
}
