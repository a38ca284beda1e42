//! The operations of `cellar osd`: names, parameters and examples.

use super::super::COMMON;
use super::super::syntax::{
    Command, Parameter, Suite, expands, flag, one, optional, optional_list,
};

const DEVICE: Parameter = one("id", "device: its number or name");
const MIN_SIZE: Parameter = optional("minsize", "size: of files placed there; a number is KiB");
const MAX_SIZE: Parameter = optional("maxsize", "size: of files placed there; 0 for any");
const WRITE: Parameter = optional(
    "wrprior",
    "weight: in the choice for new objects; 0 for never",
);
const READ: Parameter = optional("rdprior", "weight: in the choice of the copy to read");
const LUN: Parameter = optional("lun", "partition: there; default: a");
const PORT: Parameter = optional("port", "port: of the server; default 7006");
const OWNER: Parameter = optional("owner", "name: whose it is");
const LOCATION: Parameter = optional("location", "site/room/rack/host: as much as is known");
const CLASS: Parameter = optional("class", "word: that policies may ask for");
const MARK: Parameter = optional("highwatermark", "per mille: wiping begins above");
const MIN_WIPE: Parameter = optional(
    "minwipesize",
    "size: of files that are wiped; a number is MiB",
);

pub(super) static SUITE: Suite = Suite {
    name: "osd",
    about: "Object storage devices: what there is, what is on them, and how they are. \
            'cellar osd policy help' lists the operations on policies.",
    common: &COMMON,
    commands: &[
        Command {
            name: "list",
            aliases: &["listosds", "l"],
            about: "List the devices of the cell.",
            parameters: &[
                optional_list("id", "device: only these, by number or name"),
                flag("long", ": owner, location, server and flags too"),
                flag("wipeable", ": only those whose files may be wiped"),
                flag("obsolete", ": those out of use too"),
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
            about: "Make a device known to the cell.",
            parameters: &[
                one("name", "name"),
                optional("ip", "address: of its server; default: as that says itself"),
                optional("id", "number: default: the next free one"),
                LUN,
                PORT,
                MIN_SIZE,
                MAX_SIZE,
                optional(
                    "wrprior",
                    "weight: in the choice for new objects; default 80",
                ),
                optional(
                    "rdprior",
                    "weight: in the choice of the copy to read; default 80",
                ),
                flag("archival", ": for archives only"),
                flag("wipeable", ": files may be wiped when they are archived"),
                flag(
                    "dont_unlink",
                    ": removed objects can be brought back for a while",
                ),
                MARK,
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
                optional("name", "name: a new one"),
                optional_list("ip", "address: of its server, the preferred first"),
                LUN,
                PORT,
                MIN_SIZE,
                MAX_SIZE,
                WRITE,
                READ,
                optional("archival", "on or off"),
                optional("wipeable", "on or off"),
                optional("dont_unlink", "on or off"),
                optional("obsolete", "on or off: off brings a device back into use"),
                MARK,
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
            about: "Empty a device: nothing new comes there, and file servers move away what is there.",
            parameters: &[
                DEVICE,
                flag("wait", ": until it is empty, and say how far it is"),
                flag("stop", ": use it again"),
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
                    ": even if files have objects there, which are lost then",
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
                optional("volume", "volume name or ID: only its objects"),
                flag(
                    "onlyunlinked",
                    ": those that were removed and can be brought back",
                ),
                optional("max", "number: at most so many"),
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
            about: "List the files that have objects on a device, as the file servers say.",
            parameters: &[
                DEVICE,
                optional("max", "number: at most so many of each server"),
            ],
            examples: &["4 -max 100"],
        },
        Command {
            name: "checksum",
            aliases: &["md5sum"],
            about: "Have a device read an object and show its CRC-32C, MD5 and SHA-256.",
            parameters: &[
                DEVICE,
                one("object", "object: volume.vnode.uniquifier.serial"),
                optional("version", "number: default: the newest"),
            ],
            examples: &["4 536870918.2.3.1"],
        },
        Command {
            name: "undelete",
            aliases: &[],
            about: "Bring back objects that were removed from a device with -dont_unlink.",
            parameters: &[
                DEVICE,
                expands(
                    "object",
                    "object: as 'objects -onlyunlinked' lists those there are",
                ),
            ],
            examples: &["4 536870918.2.3.1"],
        },
        Command {
            name: "purge",
            aliases: &[],
            about: "Give up removed objects of a device before their time.",
            parameters: &[
                DEVICE,
                optional("before", "date: those that were removed before it"),
                flag("all", ": every one"),
            ],
            examples: &["4 -before 2026-11-01", "4 -all"],
        },
        Command {
            name: "scrub",
            aliases: &[],
            about: "Have a device verify all that it holds, in the background.",
            parameters: &[
                DEVICE,
                optional("rate", "KiB/s: default: as fast as it can"),
                flag("wait", ": until it has ended"),
                flag("status", ": begin nothing, show how far the last one is"),
            ],
            examples: &["4 -rate 20000", "4 -wait", "4 -status -json"],
        },
        Command {
            name: "collect",
            aliases: &[],
            about: "Remove what devices have and no volume of the cell needs.",
            parameters: &[
                optional(
                    "volume",
                    "volume name or ID: only its objects; default: all",
                ),
                optional(
                    "grace",
                    "time: what was written since is left; 90s, 15m, 2h, 7d; default 1d",
                ),
                flag("dryrun", ": list it, remove nothing"),
            ],
            examples: &["-dryrun", "-volume user.ann -grace 1h"],
        },
        Command {
            name: "repair-status",
            aliases: &["repairstatus"],
            about: "Show what the repair queues of the file servers are doing.",
            parameters: &[],
            examples: &[""],
        },
    ],
};

const POLICY: Parameter = one("id", "policy: its number or name");
const FILE: Parameter = optional("file", "file: the text; - for standard input");
const NO_ACTION: Parameter = flag("noaction", ": read and show it, store nothing");

pub(super) static POLICY_SUITE: Suite = Suite {
    name: "osd policy",
    about: "Policies: which files become objects, on what devices, and how they are spread.",
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
                flag("short", ": in short words, in one line"),
                flag("human", ": a rule a line (the default)"),
                flag(
                    "tabular",
                    ": verdicts as [location,stripes,stripe size,copies]",
                ),
                flag("long", ": in English"),
                flag("text", ": as it was written, with comments"),
                flag("unroll", ": with the rules of the policies that it uses"),
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
            about: "Change the text or the name of a policy.",
            parameters: &[
                POLICY,
                optional("policy", "text: the rules"),
                FILE,
                optional("name", "name: a new one"),
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
            about: "Say what would happen to a file, and which rule decides.",
            parameters: &[
                one("file", "file: a path in /afs, or any name"),
                optional("size", "size: that it will have; a number is bytes"),
                optional_list(
                    "policy",
                    "policy: the volume's, then the directory's; default: those of the path",
                ),
                optional("text", "text: of a policy that is not stored"),
                optional("user", "user name or id: who stores it"),
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
