//! The operations of `cellar bos`: names, parameters and examples, those of OpenAFS's `bos`.

use super::super::COMMON;
use super::super::syntax::{
    Command, Parameter, Suite, expands, flag, one, optional, optional_list,
};

const SERVER: Parameter = one("server", "machine name");
const INSTANCES: Parameter = expands("instance", "server process name");
const ANY_INSTANCES: Parameter = optional_list("instance", "instances: default: all");
const DIRECTORY: Parameter = optional("dir", "destination dir: default: /usr/afs/bin");
const WAIT: Parameter = flag("wait", ": wait until it has stopped");

const fn command(
    name: &'static str,
    aliases: &'static [&'static str],
    about: &'static str,
    parameters: &'static [Parameter],
    examples: &'static [&'static str],
) -> Command {
    Command {
        name,
        aliases,
        about,
        parameters,
        examples,
    }
}

pub(super) static SUITE: Suite = Suite {
    name: "bos",
    about: "What runs on a server machine. The roles of a 'cellar up' live and die with it; what starts, stops, \
            installs and runs is for overseers of OpenAFS.",
    common: &COMMON,
    commands: &[
        command(
            "status",
            &[],
            "Show what runs.",
            &[
                SERVER,
                optional_list("instance", "server process name: default: all"),
                flag("long", ": when it started, and the commands"),
            ],
            &["127.0.0.1", "127.0.0.1 fs -long"],
        ),
        command(
            "start",
            &[],
            "Make instances run, now and after a restart.",
            &[SERVER, INSTANCES],
            &["192.0.2.3 ptserver"],
        ),
        command(
            "stop",
            &[],
            "Stop instances, now and after a restart.",
            &[SERVER, INSTANCES, WAIT],
            &["192.0.2.3 ptserver -wait"],
        ),
        command(
            "startup",
            &[],
            "Make instances run until the overseer is started again.",
            &[SERVER, ANY_INSTANCES],
            &["192.0.2.3"],
        ),
        command(
            "shutdown",
            &[],
            "Stop instances until the overseer is started again.",
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
                flag("bosserver", ": the overseer itself"),
                flag("all", ": every instance"),
            ],
            &["192.0.2.3 ptserver", "192.0.2.3 -all"],
        ),
        command(
            "create",
            &[],
            "Make an instance.",
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
            "Forget instances that are stopped.",
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
            "Take users off the list of superusers.",
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
            "Not applicable: keys of this kind are DES keys.",
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
                    "key version number: the last one too, which 'cellar key retire' refuses",
                ),
            ],
            &["127.0.0.1 1"],
        ),
        command(
            "listkeys",
            &[],
            "Show the versions of the cell's key.",
            &[SERVER, flag("showkey", ": keys are not shown")],
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
            "Give the cell of a server a name.",
            &[SERVER, one("name", "cell name")],
            &[],
        ),
        command(
            "addhost",
            &[],
            "Add database servers to the list that a server has.",
            &[
                SERVER,
                expands("host", "host name"),
                flag("clone", ": its vote does not count"),
            ],
            &["192.0.2.3 db2.example.org"],
        ),
        command(
            "removehost",
            &[],
            "Take database servers off the list that a server has.",
            &[SERVER, expands("host", "host name")],
            &["192.0.2.3 db2.example.org"],
        ),
        command(
            "setauth",
            &[],
            "Say whether administrators must prove who they are.",
            &[SERVER, one("authrequired", "on or off")],
            &["192.0.2.3 on"],
        ),
        command(
            "install",
            &[],
            "Put programs on a server; the old ones stay as .BAK and .OLD.",
            &[SERVER, expands("file", "files to install"), DIRECTORY],
            &["192.0.2.3 dafileserver -dir /usr/afs/bin"],
        ),
        command(
            "uninstall",
            &[],
            "Put the old versions of programs back.",
            &[SERVER, expands("file", "files to uninstall"), DIRECTORY],
            &["192.0.2.3 dafileserver"],
        ),
        command(
            "getlog",
            &[],
            "Show a log of the server.",
            &[
                SERVER,
                one(
                    "file",
                    "log file to examine: a server of Cellar's has AuditLog",
                ),
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
                flag("bak", ": .BAK files"),
                flag("old", ": .OLD files"),
                flag("core", ": core files"),
                flag("all", ": all of them"),
            ],
            &["192.0.2.3 -old -core"],
        ),
        command(
            "setrestart",
            &["setr"],
            "Say when the overseer starts everything again.",
            &[
                SERVER,
                one("time", "time: never, now, \"4:00 am\" or \"sun 4:00\""),
                flag("general", ": everything (the default)"),
                flag("newbinary", ": what has new programs"),
            ],
            &["192.0.2.3 never", "192.0.2.3 \"sun 4:00\" -newbinary"],
        ),
        command(
            "getrestart",
            &["getr"],
            "Show when the overseer starts everything again.",
            &[SERVER],
            &["192.0.2.3"],
        ),
        command(
            "salvage",
            &[],
            "Let a salvager look at a volume, a partition or all. Partitions of Cellar need none.",
            &[
                SERVER,
                optional("partition", "salvage partition"),
                optional("volume", "volume name or ID"),
                optional("file", "salvage log output file"),
                flag("all", ": the whole server"),
                flag("showlog", ": show the salvager's log"),
                optional("parallel", "number: of partitions at a time"),
                optional("tmpdir", "directory to place tmp files"),
                optional("orphans", "ignore | remove | attach"),
                flag("forceDAFS", ": also a server that salvages by itself"),
                flag("salvagedirs", ": write all directories again; with -all"),
            ],
            &["192.0.2.3 a user.ann"],
        ),
        command(
            "getrestricted",
            &[],
            "Show whether programs may be neither installed nor run.",
            &[SERVER],
            &["127.0.0.1"],
        ),
        command(
            "setrestricted",
            &[],
            "Forbid to install and run programs.",
            &[SERVER, one("mode", "mode to set: 1 for on")],
            &["192.0.2.3 1"],
        ),
    ],
};
