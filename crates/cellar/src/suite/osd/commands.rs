//! The operations of `cellar osd`: names, parameters and examples.

use super::super::COMMON;
use super::super::syntax::{
    Command, Parameter, Suite, expands, flag, one, optional, optional_list,
};

const DEVICE: Parameter = one("id", "device: its number or name");
const MIN_SIZE: Parameter = optional(
    "minsize",
    "size: the smallest file placed there; a plain number is KiB",
);
const MAX_SIZE: Parameter = optional("maxsize", "size: the largest file placed there; 0 for any");
const WRITE: Parameter = optional(
    "wrprior",
    "weight: for the placement of new objects; 0 for none",
);
const READ: Parameter = optional("rdprior", "weight: for the choice of the copy to read");
const LUN: Parameter = optional("lun", "partition: the partition of the server; default: a");
const PORT: Parameter = optional("port", "port: the port of the server; default 7006");
const OWNER: Parameter = optional("owner", "name: the owner of the device");
const LOCATION: Parameter = optional("location", "site/room/rack/host: as far as known");
const CLASS: Parameter = optional("class", "word: a class that policies can select");
const MARK: Parameter = optional(
    "highwatermark",
    "per mille: wiping begins above this fill level",
);
const LOW_MARK: Parameter = optional(
    "lowwatermark",
    "per mille: wiping ends at this fill level; default: 50 below the other",
);
const MIN_WIPE: Parameter = optional(
    "minwipesize",
    "size: the smallest file that is wiped; a plain number is MiB",
);

pub(crate) static SUITE: Suite = Suite {
    name: "osd",
    about: "Object storage devices: list, add, change, drain and check them. \
            'cellar osd policy help' lists the operations on policies.",
    common: &COMMON,
    commands: &[
        Command {
            name: "list",
            aliases: &["listosds", "l"],
            about: "List the devices of the cell.",
            parameters: &[
                optional_list("id", "device: list only these, by number or name"),
                flag("long", ": show owner, location, server and flags too"),
                flag("wipeable", ": list only devices whose files may be wiped"),
                flag("obsolete", ": list devices out of use too"),
            ],
            examples: &["", "-long -obsolete", "-json"],
        },
        Command {
            name: "examine",
            aliases: &["osd"],
            about: "Show all fields of a device, or an object on it.",
            parameters: &[
                DEVICE,
                optional("object", "object: volume.vnode.uniquifier.serial"),
            ],
            examples: &["4", "disk4 536870918.2.3.1 -json"],
        },
        Command {
            name: "create",
            aliases: &["createosd"],
            about: "Add a device to the cell.",
            parameters: &[
                one("name", "name"),
                optional(
                    "ip",
                    "address: the address of its server; default: as the server reports it",
                ),
                optional("id", "number: default: the next free one"),
                LUN,
                PORT,
                MIN_SIZE,
                MAX_SIZE,
                optional(
                    "wrprior",
                    "weight: for the placement of new objects; default 80",
                ),
                optional(
                    "rdprior",
                    "weight: for the choice of the copy to read; default 80",
                ),
                flag("archival", ": use the device for archives only"),
                flag("wipeable", ": files may be wiped after they are archived"),
                flag(
                    "dont_unlink",
                    ": keep removed objects for a while, so that 'undelete' can restore them",
                ),
                MARK,
                LOW_MARK,
                MIN_WIPE,
                OWNER,
                LOCATION,
                CLASS,
            ],
            examples: &[
                "disk4 192.0.2.14 -lun b -minsize 1m",
                "fast1 192.0.2.15 -class fast -location hq/r1/rack7/h3 -wrprior 100",
            ],
        },
        Command {
            name: "set",
            aliases: &["setosd"],
            about: "Change fields of a device.",
            parameters: &[
                DEVICE,
                optional("name", "name: the new name"),
                optional_list(
                    "ip",
                    "address: addresses of its server, the preferred one first",
                ),
                LUN,
                PORT,
                MIN_SIZE,
                MAX_SIZE,
                WRITE,
                READ,
                optional("archival", "on or off"),
                optional("wipeable", "on or off"),
                optional("dont_unlink", "on or off"),
                optional("obsolete", "on or off: off puts a device back into use"),
                MARK,
                LOW_MARK,
                MIN_WIPE,
                OWNER,
                LOCATION,
                CLASS,
            ],
            examples: &[
                "4 -wrprior 0",
                "local_disk -maxsize 4m",
                "disk4 -class '' -dont_unlink on",
            ],
        },
        Command {
            name: "drain",
            aliases: &[],
            about: "Empty a device: new objects go to other devices, and file servers move the existing ones.",
            parameters: &[
                DEVICE,
                flag("wait", ": wait until it is empty, and show the progress"),
                flag("stop", ": end the drain and use the device again"),
            ],
            examples: &["4", "disk4 -wait", "disk4 -stop"],
        },
        Command {
            name: "remove",
            aliases: &["deleteosd"],
            about: "Take a device out of use; its number is not given again.",
            parameters: &[
                DEVICE,
                flag(
                    "force",
                    ": remove it even if files have objects there; these objects are lost",
                ),
            ],
            examples: &["4"],
        },
        Command {
            name: "statistics",
            aliases: &["statistic"],
            about: "Show the counters of a device's server.",
            parameters: &[DEVICE],
            examples: &["4"],
        },
        Command {
            name: "objects",
            aliases: &["inventory"],
            about: "List the objects on a device.",
            parameters: &[
                DEVICE,
                optional("volume", "volume name or ID: list only its objects"),
                flag(
                    "onlyunlinked",
                    ": list removed objects that 'undelete' can restore",
                ),
                optional("max", "number: list at most this many"),
            ],
            examples: &["4 -max 20", "4 user.ann -json"],
        },
        Command {
            name: "volumes",
            aliases: &[],
            about: "List the volumes that have objects on a device.",
            parameters: &[DEVICE],
            examples: &["4"],
        },
        Command {
            name: "files",
            aliases: &["listobjects"],
            about: "List the files that have objects on a device. The file servers are asked.",
            parameters: &[
                DEVICE,
                optional("max", "number: list at most this many of each server"),
            ],
            examples: &["4 -max 100"],
        },
        Command {
            name: "checksum",
            aliases: &["md5sum"],
            about: "Let a device read an object, and show its CRC-32C, MD5 and SHA-256.",
            parameters: &[
                DEVICE,
                one("object", "object: volume.vnode.uniquifier.serial"),
                optional("version", "number: the version; default: the newest"),
            ],
            examples: &["4 536870918.2.3.1"],
        },
        Command {
            name: "undelete",
            aliases: &[],
            about: "Restore objects that were removed from a device with -dont_unlink.",
            parameters: &[
                DEVICE,
                expands(
                    "object",
                    "object: a removed object, as listed by 'objects -onlyunlinked'",
                ),
            ],
            examples: &["4 536870918.2.3.1"],
        },
        Command {
            name: "purge",
            aliases: &[],
            about: "Delete removed objects of a device for good, before their time is over.",
            parameters: &[
                DEVICE,
                optional(
                    "before",
                    "date: delete objects that were removed before this date",
                ),
                flag("all", ": delete all of them"),
            ],
            examples: &["4 -before 2026-11-01", "4 -all"],
        },
        Command {
            name: "scrub",
            aliases: &[],
            about: "Let a device verify all its objects in the background.",
            parameters: &[
                DEVICE,
                optional("rate", "KiB/s: the read rate; default: unlimited"),
                flag("wait", ": wait until the scrub has ended"),
                flag(
                    "status",
                    ": start no scrub, show the progress of the last one",
                ),
            ],
            examples: &["4 -rate 20000", "4 -wait", "4 -status -json"],
        },
        Command {
            name: "collect",
            aliases: &[],
            about: "Remove objects that no volume of the cell needs.",
            parameters: &[
                optional(
                    "volume",
                    "volume name or ID: check only its objects; default: all volumes",
                ),
                optional(
                    "grace",
                    "time: keep objects written within this time, for example 90s, 15m, 2h, 7d; default 1d",
                ),
                flag("dryrun", ": list the objects, remove nothing"),
            ],
            examples: &["-dryrun", "-volume user.ann -grace 1h"],
        },
        Command {
            name: "repair-status",
            aliases: &["repairstatus"],
            about: "Show the repair queues of the file servers.",
            parameters: &[],
            examples: &[""],
        },
    ],
};

const POLICY: Parameter = one("id", "policy: its number or name");
const FILE: Parameter = optional("file", "file: a file with the rules; - for standard input");
const NO_ACTION: Parameter = flag("noaction", ": check and show the policy, store nothing");

pub(crate) static POLICY_SUITE: Suite = Suite {
    name: "osd policy",
    about: "Policies decide which files become objects, and on which devices in which layout.",
    common: &COMMON,
    commands: &[
        Command {
            name: "list",
            aliases: &["l"],
            about: "List the policies of the cell.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "show",
            aliases: &["policies"],
            about: "Show policies.",
            parameters: &[
                optional_list("id", "policy: its number or name; default: all"),
                flag("short", ": print each policy in one line"),
                flag("human", ": print one rule a line (the default)"),
                flag(
                    "tabular",
                    ": print verdicts as [location,stripes,stripe size,copies]",
                ),
                flag("long", ": print in English"),
                flag("text", ": print the original text with comments"),
                flag("unroll", ": include the rules of the policies that it uses"),
            ],
            examples: &["", "root -long -unroll", "3 -text > root.policy"],
        },
        Command {
            name: "add",
            aliases: &["addpolicy"],
            about: "Create a policy.",
            parameters: &[
                one("name", "name"),
                optional("policy", "text: the rules"),
                FILE,
                optional("id", "number: 2 or more; default: the next free one"),
                NO_ACTION,
            ],
            examples: &[
                "root \"~'*.root' => location=osd, stop;\"",
                "big -file big.policy -noaction",
            ],
        },
        Command {
            name: "set",
            aliases: &[],
            about: "Change the rules or the name of a policy.",
            parameters: &[
                POLICY,
                optional("policy", "text: the rules"),
                FILE,
                optional("name", "name: the new name"),
                NO_ACTION,
            ],
            examples: &[
                "root \">64m => osd, stripes=4, stripe_size=1m;\"",
                "3 -name data",
            ],
        },
        Command {
            name: "delete",
            aliases: &["deletepolicy"],
            about: "Delete policies.",
            parameters: &[expands("id", "policy: its number or name")],
            examples: &["root"],
        },
        Command {
            name: "test",
            aliases: &[],
            about: "Show the layout that a file would get, and the rule that decides.",
            parameters: &[
                one("file", "file: a path in /afs, or any name"),
                optional(
                    "size",
                    "size: the size of the file; a plain number is bytes",
                ),
                optional_list(
                    "policy",
                    "policy: the policy of the volume, then of the directory; default: the policies of the path",
                ),
                optional("text", "text: the rules of a policy that is not stored yet"),
                optional("user", "user name or id: the user who stores the file"),
                optional("volume", "volume name"),
            ],
            examples: &[
                "/afs/demo.cell/data/run7.root -size 2g -user ann",
                "run7.root -size 64m -policy root",
                "a.log -text \"~'*.log' => local, stop; => osd;\"",
            ],
        },
    ],
};
