//! The operations of `cellar vos`: names, parameters and examples.
//!
//! Names, order and abbreviations are those of OpenAFS's `vos`. Parameters of our own come after
//! them.

use super::super::syntax::{
    Command, Kind, Parameter, Suite, flag, list, one, optional, optional_list,
};
use super::super::{self as suite, COMMON};

/// An optional list that takes one word by position.
const fn some(name: &'static str, value: &'static str) -> Parameter {
    Parameter {
        name,
        kind: Kind::List,
        required: false,
        value,
        aliases: &[],
    }
}

const SERVER: Parameter = one("server", "machine name");
const PARTITION: Parameter = one(
    "partition",
    "partition name: a, vicepa, /vicepa or its number",
);
const ANY_SERVER: Parameter = optional("server", "machine name");
const ANY_PARTITION: Parameter = optional("partition", "partition name: default: all");
const ID: Parameter = one("id", "volume name or ID");
const DRY_RUN: Parameter = flag("dryrun", ": print the changes without making them");

/// A command without short names.
const fn command(
    name: &'static str,
    about: &'static str,
    parameters: &'static [Parameter],
    examples: &'static [&'static str],
) -> Command {
    suite::command(name, &[], about, parameters, examples)
}

pub(crate) static SUITE: Suite = Suite {
    name: "vos",
    about: "Create, examine, move, release, dump and remove volumes.",
    common: &COMMON,
    commands: &[
        command(
            "create",
            "Create a read-write volume.",
            &[
                one("server", "machine name: the file server"),
                PARTITION,
                one("name", "volume name: at most 22 characters"),
                optional(
                    "maxquota",
                    "KiB: the quota, a number of KiB or with K, M, G or T; default 5000; 0 for no limit",
                ),
                optional("id", "volume ID: default: the next free one"),
                optional(
                    "roid",
                    "volume ID: reserved for its read-only volume; default: the ID after -id; 0 for none",
                ),
                optional(
                    "osdpolicy",
                    "policy: decides which files become objects; 0: none, 1: by size",
                ),
            ],
            &[
                "127.0.0.1 a user.ann",
                "-server 127.0.0.1 -partition a -name data -maxquota 0",
            ],
        ),
        command(
            "remove",
            "Remove a volume from a server and the VLDB.",
            &[
                optional("server", "machine name: default: its site in the VLDB"),
                optional("partition", "partition name"),
                ID,
            ],
            &["-id user.ann", "127.0.0.1 a user.ann"],
        ),
        command(
            "move",
            "Move volumes to another server or partition while they are in use.",
            &[
                some(
                    "id",
                    "volume name or ID: several are possible after the switch",
                ),
                optional("fromserver", "machine name: default: its site in the VLDB"),
                optional("frompartition", "partition name"),
                one("toserver", "machine name"),
                one("topartition", "partition name"),
                flag(
                    "live",
                    ": send without a clone; writers wait for the whole move",
                ),
                flag(
                    "all",
                    ": every read-write volume of -fromserver and -frompartition",
                ),
                optional(
                    "parallel",
                    "number: volumes moved at the same time; default 8",
                ),
            ],
            &[
                "user.ann 127.0.0.1 a 127.0.0.1 b",
                "-id user.ann user.bob -toserver 192.0.2.4 -topartition a",
                "-all -fromserver 192.0.2.3 -frompartition a -toserver 192.0.2.4 -topartition a -parallel 8",
            ],
        ),
        command(
            "copy",
            "Copy a volume under another name.",
            &[
                one("id", "volume name or ID: the original"),
                one("fromserver", "machine name"),
                one("frompartition", "partition name"),
                one("toname", "volume name: the name of the copy"),
                one("toserver", "machine name"),
                one("topartition", "partition name"),
                flag("offline", ": leave the copy off line"),
                flag("readonly", ": make the copy read-only"),
                flag("live", ": send without a clone; writers wait"),
            ],
            &["user.ann 127.0.0.1 a user.ann2 127.0.0.1 b"],
        ),
        command(
            "shadow",
            "Make or update a copy of a volume that has no VLDB entry.",
            &[
                one("id", "volume name or ID: the original"),
                one("fromserver", "machine name"),
                one("frompartition", "partition name"),
                one("toserver", "machine name"),
                one("topartition", "partition name"),
                optional("toname", "volume name: default: that of the original"),
                optional("toid", "volume ID: default: that of the original"),
                flag("offline", ": leave the shadow off line"),
                flag("readonly", ": make the shadow read-only"),
                flag("live", ": send without a clone; writers wait"),
                flag(
                    "incremental",
                    ": send only the changes since the last shadow",
                ),
            ],
            &["user.ann 192.0.2.3 a 192.0.2.4 a -offline -incremental"],
        ),
        command(
            "backup",
            "Make or update a volume's backup volume.",
            &[ID],
            &["user.ann"],
        ),
        command(
            "clone",
            "Clone a volume on its partition, without a VLDB entry.",
            &[
                ID,
                ANY_SERVER,
                optional("partition", "partition name"),
                optional("toname", "volume name: the name of the clone"),
                optional("toid", "volume ID: the ID of the clone"),
                flag("offline", ": leave the clone off line"),
                flag(
                    "readonly",
                    ": make a read-only volume instead of a backup volume",
                ),
                flag(
                    "readwrite",
                    ": make a read-write volume instead of a backup volume",
                ),
            ],
            &["user.ann -toname user.ann.monday -readonly"],
        ),
        command(
            "release",
            "Release a volume to all its read-only sites at the same time.",
            &[
                optional("id", "volume name or ID"),
                flag(
                    "force",
                    ": send everything, including data that the sites already have",
                ),
                flag(
                    "stayonline",
                    ": keep sites on line; Cellar's sites always stay on line",
                ),
                flag("force-reclone", ": make a new clone; always done"),
                flag(
                    "resume",
                    ": finish a release that did not reach every site; without a volume, finish all such releases",
                ),
            ],
            &["root.cell", "root.cell -resume", "-resume"],
        ),
        command(
            "dump",
            "Write a dump of a volume to a file or to standard output.",
            &[
                ID,
                optional(
                    "time",
                    "date: dump only changes since this date; 0 dumps everything",
                ),
                optional("file", "path: default: standard output"),
                ANY_SERVER,
                optional("partition", "partition name"),
                flag(
                    "clone",
                    ": dump a temporary clone; writers wait only while it is made",
                ),
                flag("omitdirs", ": leave out directories without changes"),
                flag(
                    "metadataonly",
                    ": for files in objects write only the location of the bytes, for a restore in this cell",
                ),
            ],
            &[
                "user.ann -file ann.dump",
                "-id user.ann -time '2026-11-01 12:00' -clone -file ann.increment",
            ],
        ),
        command(
            "restore",
            "Make a volume from a dump, or apply an incremental dump to one.",
            &[
                SERVER,
                PARTITION,
                one("name", "volume name"),
                optional("file", "path: default: standard input"),
                optional("id", "volume ID"),
                optional(
                    "overwrite",
                    "abort | full | incremental: the action if the volume exists",
                ),
                flag("offline", ": leave the volume off line"),
                flag("readonly", ": make it a read-only volume"),
                optional(
                    "creation",
                    "dump | keep | new: the source of its creation date",
                ),
                optional(
                    "lastupdate",
                    "dump | keep | new: the source of the date of its last change",
                ),
                flag("nodelete", ": keep a copy of the volume at another place"),
            ],
            &[
                "127.0.0.1 a user.ann -file ann.dump",
                "127.0.0.1 a user.ann -file ann.increment -overwrite incremental",
            ],
        ),
        Command {
            name: "examine",
            aliases: &["e", "volinfo"],
            about: "Show a volume's header, its VLDB entry, and the owner of a lock on it.",
            parameters: &[
                ID,
                flag("extended", ": add statistics of use"),
                flag("format", ": print a form for programs"),
            ],
            examples: &["root.cell", "scratch -json"],
        },
        command(
            "listvol",
            "List the volumes on a server.",
            &[
                SERVER,
                ANY_PARTITION,
                flag("fast", ": print only ids"),
                flag("long", ": print all fields"),
                flag("quiet", ": omit headings"),
                flag("extended", ": add statistics of use"),
                flag("format", ": print a form for programs"),
            ],
            &["127.0.0.1", "127.0.0.1 a -long"],
        ),
        command(
            "listvldb",
            "List entries of the volume location database.",
            &[
                optional("name", "volume name or ID: list only this volume"),
                optional(
                    "server",
                    "machine name: list only entries with a site there",
                ),
                optional(
                    "partition",
                    "partition name: list only entries with a site there",
                ),
                flag("locked", ": list only locked entries"),
                flag("quiet", ": omit headings"),
                flag("nosort", ": keep the order of the database"),
            ],
            &[
                "",
                "-name root.cell",
                "--cell demo.cell --server 127.0.0.1 --json",
            ],
        ),
        command(
            "scrub",
            "Verify the checksums of all stored data while the volumes are in use.",
            &[
                SERVER,
                PARTITION,
                optional(
                    "id",
                    "volume name or ID: default: every volume of the partition",
                ),
                optional("rate", "KiB a second: the read rate; default: unlimited"),
                flag("refill", ": restore damaged files from other copies"),
            ],
            &[
                "127.0.0.1 a",
                "127.0.0.1 a user.ann -rate 20000",
                "127.0.0.1 a -refill",
            ],
        ),
        command(
            "listpart",
            "List the partitions of a server.",
            &[SERVER],
            &["127.0.0.1"],
        ),
        command(
            "partinfo",
            "Show the free space on a server's partitions.",
            &[SERVER, ANY_PARTITION, flag("summary", ": add the total")],
            &["127.0.0.1"],
        ),
        command(
            "listaddrs",
            "List the file servers that are registered in the VLDB.",
            &[
                optional("uuid", "UUID: list only this server"),
                optional("host", "address: list only the server with this address"),
                flag("printuuid", ": print their UUIDs too"),
            ],
            &["-printuuid -noresolve"],
        ),
        command(
            "changeaddr",
            "Change a server's address in the VLDB, or remove the server.",
            &[
                one("oldaddr", "address"),
                optional("newaddr", "address"),
                flag("remove", ": remove the server"),
                flag(
                    "force",
                    ": allow an address of a server with several addresses",
                ),
            ],
            &["192.0.2.3 192.0.2.9", "192.0.2.3 -remove"],
        ),
        command(
            "setaddrs",
            "Set the addresses of the server with a UUID.",
            &[
                one("uuid", "UUID: the UUID of the server"),
                list("host", "address: several are possible after the switch"),
            ],
            &["-uuid 0057bdf2-6aa1-1c2b-9f-20-0a000002aa77 -host 192.0.2.3 192.0.2.4"],
        ),
        command(
            "remaddrs",
            "Remove the server with a UUID from the VLDB.",
            &[one("uuid", "UUID: the UUID of the server")],
            &["-uuid 0057bdf2-6aa1-1c2b-9f-20-0a000002aa77"],
        ),
        command(
            "addsite",
            "Add a read-only site; the next release fills it.",
            &[
                SERVER,
                PARTITION,
                ID,
                optional("roid", "volume ID: the ID of the read-only volume"),
                flag("valid", ": the site already has the data"),
            ],
            &["127.0.0.1 a root.cell"],
        ),
        command(
            "remsite",
            "Remove a read-only site from the VLDB; the volume there stays.",
            &[SERVER, PARTITION, ID],
            &["127.0.0.1 a root.cell"],
        ),
        command(
            "changeloc",
            "Change the location of a read-write volume in the VLDB; the data is not moved.",
            &[SERVER, PARTITION, ID],
            &["192.0.2.3 a user.ann"],
        ),
        command(
            "rename",
            "Rename a volume.",
            &[
                one("oldname", "volume name or ID"),
                one("newname", "volume name"),
            ],
            &["user.ann user.anna"],
        ),
        command(
            "zap",
            "Delete a volume from a server without a look at the VLDB.",
            &[
                SERVER,
                PARTITION,
                one("id", "volume ID"),
                flag("force", ": delete a volume that cannot be attached too"),
                flag("backup", ": delete its backup volume too"),
            ],
            &["127.0.0.1 a 536870918"],
        ),
        command(
            "offline",
            "Take a volume off line.",
            &[
                SERVER,
                PARTITION,
                ID,
                optional(
                    "sleep",
                    "seconds: bring it back on line after this time; with -busy",
                ),
                flag(
                    "busy",
                    ": answer clients that the volume is busy, not off line",
                ),
            ],
            &[
                "127.0.0.1 a user.ann",
                "127.0.0.1 a user.ann -busy -sleep 10",
            ],
        ),
        command(
            "online",
            "Bring a volume on line.",
            &[SERVER, PARTITION, ID],
            &["127.0.0.1 a user.ann"],
        ),
        command(
            "convertROtoRW",
            "Make the read-only volume of a site the read-write volume.",
            &[
                SERVER,
                PARTITION,
                ID,
                flag("force", ": do not ask for confirmation"),
            ],
            &["192.0.2.4 a user.ann"],
        ),
        command(
            "syncvldb",
            "Correct the VLDB to agree with the volumes on a server.",
            &[
                ANY_SERVER,
                ANY_PARTITION,
                optional("volume", "volume name or ID: check only this volume"),
                DRY_RUN,
            ],
            &["127.0.0.1", "127.0.0.1 a -dryrun", "-volume user.ann"],
        ),
        command(
            "syncserv",
            "Correct a server's entries in the VLDB to agree with its volumes.",
            &[SERVER, ANY_PARTITION, DRY_RUN],
            &["127.0.0.1"],
        ),
        command(
            "delentry",
            "Delete entries from the VLDB; the volumes themselves stay.",
            &[
                some(
                    "id",
                    "volume name or ID: several are possible after the switch",
                ),
                optional(
                    "prefix",
                    "beginning of names: delete the entries with such names on -server",
                ),
                ANY_SERVER,
                ANY_PARTITION,
                flag("noexecute", ": like -dryrun"),
                DRY_RUN,
            ],
            &["user.ann", "-prefix test. -server 127.0.0.1 -dryrun"],
        ),
        command("lock", "Lock a volume's VLDB entry.", &[ID], &["user.ann"]),
        command(
            "unlock",
            "Release the lock of a volume's VLDB entry.",
            &[ID],
            &["user.ann"],
        ),
        command(
            "unlockvldb",
            "Release the locks of all entries, or of those with a site on a server or partition.",
            &[ANY_SERVER, ANY_PARTITION],
            &["127.0.0.1 a"],
        ),
        command(
            "backupsys",
            "Make the backup volumes of many volumes.",
            &[
                optional_list(
                    "prefix",
                    "beginning of names, or ^expression: select only these volumes",
                ),
                ANY_SERVER,
                ANY_PARTITION,
                flag("exclude", ": select all volumes except those of -prefix"),
                optional_list(
                    "xprefix",
                    "beginning of names, or ^expression: leave these out; with -exclude, include them",
                ),
                DRY_RUN,
                optional(
                    "parallel",
                    "number: volumes in work at the same time; default 16",
                ),
            ],
            &[
                "-prefix user",
                "-server 127.0.0.1 -exclude -prefix test. -dryrun",
            ],
        ),
        command(
            "size",
            "Show how large a dump would be.",
            &[
                ID,
                optional("partition", "partition name"),
                ANY_SERVER,
                flag("dump", ": ask the server for the size of a dump"),
                optional("time", "date: count only changes since this date"),
            ],
            &["user.ann -dump"],
        ),
        command(
            "traverse",
            "Show statistics of file sizes, of the places of the bytes, and of files without a second copy.",
            &[
                ANY_SERVER,
                optional("volume", "volume name or ID: only this volume"),
            ],
            &["", "-server 127.0.0.1", "-volume user.ann"],
        ),
        command(
            "status",
            "List the volume transactions of a server.",
            &[SERVER],
            &["127.0.0.1"],
        ),
        command(
            "endtrans",
            "End a volume transaction of any owner.",
            &[SERVER, one("transaction", "number")],
            &["127.0.0.1 17"],
        ),
        command(
            "setfields",
            "Change fields of a volume's header.",
            &[
                ID,
                optional(
                    "maxquota",
                    "KiB: the quota, a number of KiB or with K, M, G or T; 0 for no limit",
                ),
                flag("clearuse", ": reset the count of today's accesses"),
                flag("clearVolUpCounter", ": reset the count of changes"),
                optional(
                    "osdpolicy",
                    "policy: decides which files become objects; 0: none, 1: by size",
                ),
            ],
            &["user.ann -maxquota 100000", "data.run7 -osdpolicy root"],
        ),
    ],
};
