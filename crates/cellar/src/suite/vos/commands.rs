//! The operations of `cellar vos`: names, parameters and examples.
//!
//! Names, order and abbreviations are those of OpenAFS's `vos`; what is ours alone comes after its own.

use super::super::COMMON;
use super::super::syntax::{
    Command, Kind, Parameter, Suite, flag, list, one, optional, optional_list,
};

/// An optional list that takes one word by place.
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
const DRY_RUN: Parameter = flag("dryrun", ": list what would be done, don't do it");

const fn command(
    name: &'static str,
    about: &'static str,
    parameters: &'static [Parameter],
    examples: &'static [&'static str],
) -> Command {
    Command {
        name,
        aliases: &[],
        about,
        parameters,
        examples,
    }
}

pub(super) static SUITE: Suite = Suite {
    name: "vos",
    about: "Volumes: where they are, what is in them; making, moving, releasing and removing them.",
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
                    "KiB: quota, or with K, M, G or T; default 5000, 0 for none",
                ),
                optional("id", "volume ID: default: the next free one"),
                optional(
                    "roid",
                    "volume ID: of its read-only volume, later; default: the one after -id; 0 for none",
                ),
                optional(
                    "osdpolicy",
                    "policy: which files become objects; 0 for none, 1 by size",
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
                optional("server", "machine name: default: where the VLDB has it"),
                optional("partition", "partition name"),
                ID,
            ],
            &["-id user.ann", "127.0.0.1 a user.ann"],
        ),
        command(
            "move",
            "Move volumes to another server or partition, while they are in use.",
            &[
                some("id", "volume name or ID: several after the switch"),
                optional("fromserver", "machine name: default: where the VLDB has it"),
                optional("frompartition", "partition name"),
                one("toserver", "machine name"),
                one("topartition", "partition name"),
                flag("live", ": never clone first; writers wait all the while"),
                flag(
                    "all",
                    ": every read-write volume of -fromserver and -frompartition",
                ),
                optional("parallel", "number: volumes moved at a time; default 8"),
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
                one("toname", "volume name: of the copy"),
                one("toserver", "machine name"),
                one("topartition", "partition name"),
                flag("offline", ": the copy stays off line"),
                flag("readonly", ": the copy is read-only"),
                flag("live", ": never clone first"),
            ],
            &["user.ann 127.0.0.1 a user.ann2 127.0.0.1 b"],
        ),
        command(
            "shadow",
            "Make or update a copy of a volume that is in no entry.",
            &[
                one("id", "volume name or ID: the original"),
                one("fromserver", "machine name"),
                one("frompartition", "partition name"),
                one("toserver", "machine name"),
                one("topartition", "partition name"),
                optional("toname", "volume name: default: the original's"),
                optional("toid", "volume ID: default: the original's"),
                flag("offline", ": the shadow stays off line"),
                flag("readonly", ": the shadow is read-only"),
                flag("live", ": never clone first"),
                flag(
                    "incremental",
                    ": send what changed since the shadow was made",
                ),
            ],
            &["user.ann 192.0.2.3 a 192.0.2.4 a -offline -incremental"],
        ),
        command(
            "backup",
            "Make a volume's backup volume, or make it anew.",
            &[ID],
            &["user.ann"],
        ),
        command(
            "clone",
            "Clone a volume on its partition, without an entry.",
            &[
                ID,
                ANY_SERVER,
                optional("partition", "partition name"),
                optional("toname", "volume name: of the clone"),
                optional("toid", "volume ID: of the clone"),
                flag("offline", ": the clone stays off line"),
                flag(
                    "readonly",
                    ": the clone is a read-only volume, not a backup volume",
                ),
                flag("readwrite", ": the clone is a read-write volume"),
            ],
            &["user.ann -toname user.ann.monday -readonly"],
        ),
        command(
            "release",
            "Release a volume to its read-only sites, all at once.",
            &[
                optional("id", "volume name or ID"),
                flag("force", ": send everything, also what the sites have"),
                flag("stayonline", ": sites stay on line; Cellar's always do"),
                flag("force-reclone", ": clone anew; always done"),
                flag(
                    "resume",
                    ": go on with a release that did not reach every site; without a volume, with all such",
                ),
            ],
            &["root.cell", "root.cell -resume", "-resume"],
        ),
        command(
            "dump",
            "Write a volume into a file or to standard output.",
            &[
                ID,
                optional("time", "date: what changed since; 0 is everything"),
                optional("file", "path: default: standard output"),
                ANY_SERVER,
                optional("partition", "partition name"),
                flag(
                    "clone",
                    ": dump a clone; writers wait only while it is made",
                ),
                flag("omitdirs", ": leave out directories that did not change"),
                flag(
                    "metadataonly",
                    ": of files in objects say where the bytes are, for a restore in this cell",
                ),
            ],
            &[
                "user.ann -file ann.dump",
                "-id user.ann -time '2026-11-01 12:00' -clone -file ann.increment",
            ],
        ),
        command(
            "restore",
            "Make a volume from a dump, or bring one up to date.",
            &[
                SERVER,
                PARTITION,
                one("name", "volume name"),
                optional("file", "path: default: standard input"),
                optional("id", "volume ID"),
                optional(
                    "overwrite",
                    "abort | full | incremental: if the volume exists",
                ),
                flag("offline", ": it stays off line"),
                flag("readonly", ": it is a read-only volume"),
                optional("creation", "dump | keep | new: its creation date"),
                optional(
                    "lastupdate",
                    "dump | keep | new: the date of its last change",
                ),
                flag("nodelete", ": a copy elsewhere stays"),
            ],
            &[
                "127.0.0.1 a user.ann -file ann.dump",
                "127.0.0.1 a user.ann -file ann.increment -overwrite incremental",
            ],
        ),
        Command {
            name: "examine",
            aliases: &["e", "volinfo"],
            about: "Show what the volume server and the VLDB say of a volume, and who has it locked.",
            parameters: &[
                ID,
                flag("extended", ": with statistics of use"),
                flag("format", ": for programs"),
            ],
            examples: &["root.cell", "scratch -json"],
        },
        command(
            "listvol",
            "List the volumes on a server.",
            &[
                SERVER,
                ANY_PARTITION,
                flag("fast", ": ids only"),
                flag("long", ": everything"),
                flag("quiet", ": no headings"),
                flag("extended", ": with statistics of use"),
                flag("format", ": for programs"),
            ],
            &["127.0.0.1", "127.0.0.1 a -long"],
        ),
        command(
            "listvldb",
            "List entries of the volume location database.",
            &[
                optional("name", "volume name or ID: only that"),
                optional("server", "machine name: only sites there"),
                optional("partition", "partition name: only sites there"),
                flag("locked", ": only locked entries"),
                flag("quiet", ": no headings"),
                flag("nosort", ": as the database has them"),
            ],
            &[
                "",
                "-name root.cell",
                "--cell demo.cell --server 127.0.0.1 --json",
            ],
        ),
        command(
            "scrub",
            "Verify the checksums of all that volumes store, while they are in use.",
            &[
                SERVER,
                PARTITION,
                optional("id", "volume name or ID: default: every volume there"),
                optional("rate", "KiB a second: default: as fast as it goes"),
                flag("refill", ": put damaged files right from other copies"),
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
            "Show the room on a server's partitions.",
            &[SERVER, ANY_PARTITION, flag("summary", ": and the sum")],
            &["127.0.0.1"],
        ),
        command(
            "listaddrs",
            "List the file servers that are registered.",
            &[
                optional("uuid", "UUID: only that server"),
                optional("host", "address: only the server with it"),
                flag("printuuid", ": and their UUIDs"),
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
                flag("force", ": also an address of several"),
            ],
            &["192.0.2.3 192.0.2.9", "192.0.2.3 -remove"],
        ),
        command(
            "setaddrs",
            "Set the addresses of a server that has a UUID.",
            &[
                one("uuid", "UUID: of the server"),
                list("host", "address: several after the switch"),
            ],
            &["-uuid 0057bdf2-6aa1-1c2b-9f-20-0a000002aa77 -host 192.0.2.3 192.0.2.4"],
        ),
        command(
            "remaddrs",
            "Remove a server that has a UUID from the VLDB.",
            &[one("uuid", "UUID: of the server")],
            &["-uuid 0057bdf2-6aa1-1c2b-9f-20-0a000002aa77"],
        ),
        command(
            "addsite",
            "Add a read-only site, for the next release to fill.",
            &[
                SERVER,
                PARTITION,
                ID,
                optional("roid", "volume ID: of the read-only volume"),
                flag("valid", ": it is filled already"),
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
            "Say in the VLDB that a read-write volume is elsewhere.",
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
            "Delete a volume from a server, whatever the VLDB says.",
            &[
                SERVER,
                PARTITION,
                one("id", "volume ID"),
                flag("force", ": also one that cannot be attached"),
                flag("backup", ": and its backup volume"),
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
                optional("sleep", "seconds: only so long; with -busy"),
                flag("busy", ": busy to clients, not off line"),
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
            "Make the read-only volume of a site the read-write one.",
            &[SERVER, PARTITION, ID, flag("force", ": don't ask")],
            &["192.0.2.4 a user.ann"],
        ),
        command(
            "syncvldb",
            "Make the VLDB agree with the volumes on a server.",
            &[
                ANY_SERVER,
                ANY_PARTITION,
                optional("volume", "volume name or ID: only that"),
                DRY_RUN,
            ],
            &["127.0.0.1", "127.0.0.1 a -dryrun", "-volume user.ann"],
        ),
        command(
            "syncserv",
            "Make the VLDB's entries for a server agree with what is there.",
            &[SERVER, ANY_PARTITION, DRY_RUN],
            &["127.0.0.1"],
        ),
        command(
            "delentry",
            "Delete entries from the VLDB; volumes stay where they are.",
            &[
                some("id", "volume name or ID: several after the switch"),
                optional("prefix", "beginning of names: of entries on -server"),
                ANY_SERVER,
                ANY_PARTITION,
                flag("noexecute", ": as -dryrun"),
                DRY_RUN,
            ],
            &["user.ann", "-prefix test. -server 127.0.0.1 -dryrun"],
        ),
        command("lock", "Lock a volume's entry.", &[ID], &["user.ann"]),
        command(
            "unlock",
            "Release the lock of a volume's entry.",
            &[ID],
            &["user.ann"],
        ),
        command(
            "unlockvldb",
            "Release the locks of all entries, or of those with sites at a place.",
            &[ANY_SERVER, ANY_PARTITION],
            &["127.0.0.1 a"],
        ),
        command(
            "backupsys",
            "Make the backup volumes of many volumes.",
            &[
                optional_list("prefix", "beginning of names, or ^expression: only those"),
                ANY_SERVER,
                ANY_PARTITION,
                flag("exclude", ": all but those"),
                optional_list(
                    "xprefix",
                    "beginning of names, or ^expression: not those; with -exclude, those too",
                ),
                DRY_RUN,
                optional("parallel", "number: volumes at a time; default 16"),
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
                optional("time", "date: what changed since"),
            ],
            &["user.ann -dump"],
        ),
        command(
            "traverse",
            "Say how large files are, where their bytes lie, and what has no second copy.",
            &[
                ANY_SERVER,
                optional("volume", "volume name or ID: only this one"),
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
            "End a volume transaction, whoever began it.",
            &[SERVER, one("transaction", "number")],
            &["127.0.0.1 17"],
        ),
        command(
            "setfields",
            "Change fields of a volume's header.",
            &[
                ID,
                optional("maxquota", "KiB: or with K, M, G or T; 0 for none"),
                flag("clearuse", ": forget today's accesses"),
                flag("clearVolUpCounter", ": start the count of changes anew"),
                optional(
                    "osdpolicy",
                    "policy: which files become objects; 0 for none, 1 by size",
                ),
            ],
            &["user.ann -maxquota 100000", "data.run7 -osdpolicy root"],
        ),
    ],
};
