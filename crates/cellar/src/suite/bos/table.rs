//! The operations of `cellar bos`: names, parameters and examples. The names are those of OpenAFS's
//! `bos`.

use super::super::syntax::{Parameter, Suite, expands, flag, one, optional, optional_list};
use super::super::{COMMON, command};

const SERVER: Parameter = one("server", "machine name");
const INSTANCES: Parameter = expands("instance", "server process name");
const ANY_INSTANCES: Parameter = optional_list("instance", "instances: default: all");
const DIRECTORY: Parameter = optional("dir", "destination dir: default: /usr/afs/bin");
const WAIT: Parameter = flag("wait", ": wait until the processes have stopped");

pub(crate) static SUITE: Suite = Suite {
    name: "bos",
    about: "Server processes, keys and superusers of a server machine. The roles of a 'cellar up' start and stop \
            with it; operations that start, stop, install or run programs are for overseers of OpenAFS.",
    common: &COMMON,
    commands: &[
        command(
            "status",
            &[],
            "Show the server processes of a machine.",
            &[
                SERVER,
                optional_list("instance", "server process name: default: all"),
                flag("long", ": show start times and commands too"),
            ],
            &["127.0.0.1", "127.0.0.1 fs -long"],
        ),
        command(
            "start",
            &[],
            "Start instances, now and after each restart of the overseer.",
            &[SERVER, INSTANCES],
            &["192.0.2.3 ptserver"],
        ),
        command(
            "stop",
            &[],
            "Stop instances, now and after each restart of the overseer.",
            &[SERVER, INSTANCES, WAIT],
            &["192.0.2.3 ptserver -wait"],
        ),
        command(
            "startup",
            &[],
            "Start instances until the next restart of the overseer.",
            &[SERVER, ANY_INSTANCES],
            &["192.0.2.3"],
        ),
        command(
            "shutdown",
            &[],
            "Stop instances until the next restart of the overseer.",
            &[SERVER, ANY_INSTANCES, WAIT],
            &["192.0.2.3 dafs -wait"],
        ),
        command(
            "restart",
            &[],
            "Stop and start instances.",
            &[
                SERVER,
                ANY_INSTANCES,
                flag("bosserver", ": restart the overseer itself"),
                flag("all", ": restart every instance"),
            ],
            &["192.0.2.3 ptserver", "192.0.2.3 -all"],
        ),
        command(
            "create",
            &[],
            "Create an instance and start it.",
            &[
                SERVER,
                one("instance", "server process name"),
                one("type", "server type: simple, cron, fs or dafs"),
                expands("cmd", "command lines"),
                optional("notifier", "notifier program"),
            ],
            &["192.0.2.3 nightly cron \"/usr/bin/date\" 4:00"],
        ),
        command(
            "delete",
            &[],
            "Delete stopped instances.",
            &[SERVER, INSTANCES],
            &["192.0.2.3 nightly"],
        ),
        command(
            "adduser",
            &[],
            "Add superusers: they may change volumes, servers and all files.",
            &[SERVER, expands("user", "user names")],
            &["127.0.0.1 ann", "127.0.0.1 ann bob"],
        ),
        command(
            "removeuser",
            &[],
            "Remove users from the list of superusers.",
            &[SERVER, expands("user", "user names")],
            &["127.0.0.1 ann"],
        ),
        command(
            "listusers",
            &[],
            "Show the superusers.",
            &[SERVER],
            &["127.0.0.1"],
        ),
        command(
            "addkey",
            &[],
            "Not applicable: this operation sets DES keys.",
            &[
                SERVER,
                optional("key", "key"),
                one("kvno", "key version number"),
            ],
            &[],
        ),
        command(
            "removekey",
            &[],
            "Remove versions of the cell's key.",
            &[
                SERVER,
                expands(
                    "kvno",
                    "key version number: removes even the last key, which 'cellar key retire' refuses",
                ),
            ],
            &["127.0.0.1 1"],
        ),
        command(
            "listkeys",
            &[],
            "Show the versions of the cell's key.",
            &[SERVER, flag("showkey", ": accepted; keys are never shown")],
            &["127.0.0.1"],
        ),
        command(
            "listhosts",
            &["getcell"],
            "Show the cell's name and database servers.",
            &[SERVER],
            &["127.0.0.1"],
        ),
        command(
            "setcellname",
            &[],
            "Set the cell name of a server: 'bos setcellname 192.0.2.3 example.org'.",
            &[SERVER, one("name", "cell name")],
            &[],
        ),
        command(
            "addhost",
            &[],
            "Add database servers to a server's list.",
            &[
                SERVER,
                expands("host", "host name"),
                flag("clone", ": the server has no vote"),
            ],
            &["192.0.2.3 db2.example.org"],
        ),
        command(
            "removehost",
            &[],
            "Remove database servers from a server's list.",
            &[SERVER, expands("host", "host name")],
            &["192.0.2.3 db2.example.org"],
        ),
        command(
            "setauth",
            &[],
            "Set whether administrators must authenticate.",
            &[SERVER, one("authrequired", "on or off")],
            &["192.0.2.3 on"],
        ),
        command(
            "install",
            &[],
            "Install programs on a server; the old versions are kept as .BAK and .OLD.",
            &[SERVER, expands("file", "files to install"), DIRECTORY],
            &["192.0.2.3 dafileserver -dir /usr/afs/bin"],
        ),
        command(
            "uninstall",
            &[],
            "Restore the old versions of programs.",
            &[SERVER, expands("file", "files to uninstall"), DIRECTORY],
            &["192.0.2.3 dafileserver"],
        ),
        command(
            "getlog",
            &[],
            "Show a log of the server.",
            &[
                SERVER,
                one("file", "log file to examine: a Cellar server has AuditLog"),
            ],
            &["127.0.0.1 AuditLog"],
        ),
        command(
            "getdate",
            &[],
            "Show the dates of installed programs.",
            &[SERVER, expands("file", "files to check"), DIRECTORY],
            &["192.0.2.3 dafileserver"],
        ),
        command(
            "exec",
            &[],
            "Run a command on a server.",
            &[SERVER, one("cmd", "command to execute")],
            &["192.0.2.3 /bin/true"],
        ),
        command(
            "prune",
            &[],
            "Remove old programs and core files.",
            &[
                SERVER,
                flag("bak", ": remove .BAK files"),
                flag("old", ": remove .OLD files"),
                flag("core", ": remove core files"),
                flag("all", ": remove all of these"),
            ],
            &["192.0.2.3 -old -core"],
        ),
        command(
            "setrestart",
            &["setr"],
            "Set the time at which the overseer restarts everything.",
            &[
                SERVER,
                one("time", "time: never, now, \"4:00 am\" or \"sun 4:00\""),
                flag("general", ": restart everything (the default)"),
                flag("newbinary", ": restart only processes with new programs"),
            ],
            &["192.0.2.3 never", "192.0.2.3 \"sun 4:00\" -newbinary"],
        ),
        command(
            "getrestart",
            &["getr"],
            "Show the times at which the overseer restarts everything.",
            &[SERVER],
            &["192.0.2.3"],
        ),
        command(
            "salvage",
            &[],
            "Salvage a volume, a partition or a server. Partitions of Cellar need no salvage.",
            &[
                SERVER,
                optional("partition", "salvage partition"),
                optional("volume", "volume name or ID"),
                optional("file", "salvage log output file"),
                flag("all", ": salvage the whole server"),
                flag("showlog", ": show the salvager's log"),
                optional("parallel", "number: partitions salvaged at the same time"),
                optional("tmpdir", "directory to place tmp files"),
                optional("orphans", "ignore | remove | attach"),
                flag("forceDAFS", ": salvage a demand-attach server too"),
                flag("salvagedirs", ": rewrite all directories; with -all"),
            ],
            &["192.0.2.3 a user.ann"],
        ),
        command(
            "getrestricted",
            &[],
            "Show whether installing and running programs is forbidden.",
            &[SERVER],
            &["127.0.0.1"],
        ),
        command(
            "setrestricted",
            &[],
            "Forbid installing and running programs.",
            &[SERVER, one("mode", "mode to set: 1 for on")],
            &["192.0.2.3 1"],
        ),
    ],
};
