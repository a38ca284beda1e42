//! The table of `cellar fs`.

use super::super::COMMON;
use super::super::syntax::{
    Command, IGNORED, Parameter, Suite, expands, flag, list, one, optional, optional_list,
};

/// The files of most operations.
const PATHS: Parameter = optional_list("path", "dir/file path: default: the current directory");

/// The files of operations that accept a volume's name for its root directory.
const PATHS_OR_VOLUMES: Parameter = optional_list(
    "path",
    "dir/file path: or a volume's name; default: the current directory",
);

/// The kind of access list of a DFS directory. AFS has only one kind.
const DFS_OBJECT: Parameter = flag("id", IGNORED);
const DFS_CONTAINER: Parameter = flag("if", IGNORED);

/// The switch that names a mount, for operations on a mount.
pub(super) const AT: &str = "at";

static FS_COMMON: [Parameter; COMMON.len() + 1] = {
    let mut all = [optional(
        AT,
        "directory: any directory in the mount to use; default: the mount of the current directory, otherwise the only mount",
    ); COMMON.len() + 1];
    let mut at = 0;
    while at < COMMON.len() {
        all[at] = COMMON[at];
        at += 1;
    }
    all
};

pub(crate) static SUITE: Suite = Suite {
    name: "fs",
    about: "Access lists, quotas, mount points, and locations of files.",
    common: &FS_COMMON,
    commands: &[
        Command {
            name: "listacl",
            aliases: &["la"],
            about: "Show access lists.",
            parameters: &[
                PATHS_OR_VOLUMES,
                DFS_OBJECT,
                DFS_CONTAINER,
                flag("cmd", ": print them as 'fs setacl' commands"),
            ],
            examples: &["/afs/demo.cell/scratch", "-cmd"],
        },
        Command {
            name: "setacl",
            aliases: &["sa"],
            about: "Set rights in access lists.",
            parameters: &[
                list("dir", "directory: or a volume's name"),
                expands("acl", "access list entries: name rights name rights ..."),
                flag("clear", ": remove all other entries"),
                flag("negative", ": set negative rights"),
                DFS_OBJECT,
                DFS_CONTAINER,
            ],
            examples: &[
                "/afs/demo.cell/scratch ann rlidwk",
                "-dir /afs/demo.cell/scratch -acl ann all system:anyuser none",
            ],
        },
        Command {
            name: "cleanacl",
            aliases: &[],
            about: "Remove deleted users and groups from access lists.",
            parameters: &[PATHS],
            examples: &["", "/afs/demo.cell/scratch"],
        },
        Command {
            name: "copyacl",
            aliases: &["ca"],
            about: "Copy an access list.",
            parameters: &[
                one("fromdir", "source directory"),
                expands("todir", "destination directory"),
                flag("clear", ": remove all other entries"),
                DFS_OBJECT,
                DFS_CONTAINER,
            ],
            examples: &["/afs/demo.cell/scratch/a /afs/demo.cell/scratch/b"],
        },
        Command {
            name: "listquota",
            aliases: &["lq"],
            about: "Show the quotas of volumes.",
            parameters: &[
                PATHS_OR_VOLUMES,
                flag("human", ": print sizes with K, M, G or T"),
            ],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "quota",
            aliases: &["q"],
            about: "Show how much of the quota is used.",
            parameters: &[PATHS_OR_VOLUMES],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "diskfree",
            aliases: &["df"],
            about: "Show the free space on the partitions of volumes.",
            parameters: &[PATHS, flag("human", ": print sizes with K, M, G or T")],
            examples: &["", "/afs/demo.cell/scratch -human"],
        },
        Command {
            name: "setquota",
            aliases: &["sq"],
            about: "Set the quota of a volume.",
            parameters: &[
                optional(
                    "path",
                    "dir/file path: or a volume's name; default: the current directory",
                ),
                one(
                    "max",
                    "KiB: the quota, a number of KiB or with K, M, G or T; 0 for no limit",
                ),
            ],
            examples: &["/afs/demo.cell/scratch 1000000", "-max 10G"],
        },
        Command {
            name: "setvol",
            aliases: &["sv"],
            about: "Set the quota and the messages of volumes.",
            parameters: &[
                PATHS_OR_VOLUMES,
                optional(
                    "max",
                    "KiB: the quota, a number of KiB or with K, M, G or T; 0 for no limit",
                ),
                optional(
                    "offlinemsg",
                    "text: shown to users while the volume is off line",
                ),
                optional(
                    "motd",
                    "text: the message of the day; file servers store it",
                ),
            ],
            examples: &[
                "/afs/demo.cell/scratch -max 10G",
                "-path scratch data -offlinemsg \"moved on Monday\"",
            ],
        },
        Command {
            name: "examine",
            aliases: &["lv", "listvol"],
            about: "Show the state of volumes.",
            parameters: &[PATHS_OR_VOLUMES],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "mkmount",
            aliases: &["mkm"],
            about: "Make a mount point.",
            parameters: &[
                one("dir", "directory: the mount point to make").also(&["mountpoint"]),
                one("vol", "volume name").also(&["volume"]),
                optional(
                    "cell",
                    "cell name: the volume's cell, if it is another cell",
                )
                .also(&["mountcell"]),
                flag("rw", ": always lead to the read-write volume"),
                flag("fast", ": do not check that the volume exists"),
            ],
            examples: &[
                "/afs/.demo.cell/ann user.ann",
                "/afs/.demo.cell/soft soft -rw",
                "/afs/.demo.cell/theirs root.cell -cell other.cell",
            ],
        },
        Command {
            name: "rmmount",
            aliases: &["rmm"],
            about: "Remove mount points.",
            parameters: &[expands("dir", "directory: the mount point").also(&["mountpoint"])],
            examples: &["/afs/.demo.cell/ann"],
        },
        Command {
            name: "lsmount",
            aliases: &["lsm"],
            about: "Show the volumes that mount points lead to.",
            parameters: &[expands("dir", "directory: the mount point").also(&["mountpoint"])],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "osd",
            aliases: &[],
            about: "Show the location and state of the objects of files.",
            parameters: &[expands("path", "file path").also(&["file"])],
            examples: &["/afs/demo.cell/data/run7.root"],
        },
        Command {
            name: "oldversion",
            aliases: &[],
            about: "List or restore older versions of files, and removed files, that archives keep.",
            parameters: &[
                optional_list(
                    "list",
                    "dir/file path: list the older versions of a file, or the files that were removed from a directory",
                ),
                optional(
                    "restore",
                    "file path: restore a file that was changed or removed",
                ),
                optional(
                    "version",
                    "number: the data version to restore; default: the newest",
                ),
                optional(
                    "to",
                    "file path: the file that gets the bytes; default: the file itself, or its old name",
                ),
                optional(
                    "fid",
                    "fid: the file that had the version, if several had the name",
                ),
                flag(
                    "all",
                    ": the removed files of the whole volume, also of removed directories; for administrators",
                ),
                flag(
                    "force",
                    ": overwrite another file, or bytes that no archive has",
                ),
            ],
            examples: &[
                "-list /afs/demo.cell/data/run7.root",
                "-list /afs/demo.cell/data -json",
                "-restore /afs/demo.cell/data/run7.root -version 3 -to /afs/demo.cell/data/run7.old",
                "-restore /afs/demo.cell/data/removed.root",
            ],
        },
        Command {
            name: "policy",
            aliases: &[],
            about: "Show the policies in force in directories.",
            parameters: &[PATHS_OR_VOLUMES.also(&["location"])],
            examples: &["", "/afs/demo.cell/data"],
        },
        Command {
            name: "setpolicy",
            aliases: &[],
            about: "Set the policy of directories. New subdirectories inherit it.",
            parameters: &[
                one(
                    "policy",
                    "policy: its number or name; 0 for the policy of the volume",
                ),
                expands("dir", "directory: or a volume's name"),
            ],
            examples: &["root /afs/demo.cell/data", "0 /afs/demo.cell/data"],
        },
        Command {
            name: "whereis",
            aliases: &[],
            about: "Show the servers that hold files.",
            parameters: &[PATHS],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "getfid",
            aliases: &[],
            about: "Show the fids of files: volume, vnode and uniquifier.",
            parameters: &[
                PATHS_OR_VOLUMES,
                flag(
                    "literal",
                    ": show symbolic links and mount points themselves",
                ),
            ],
            examples: &["", "/afs/demo.cell/scratch -literal"],
        },
        Command {
            name: "getcalleraccess",
            aliases: &["gca"],
            about: "Show your rights in files. Uses your token even where other operations act as administrator.",
            parameters: &[PATHS_OR_VOLUMES],
            examples: &["", "/afs/demo.cell/scratch"],
        },
        Command {
            name: "whichcell",
            aliases: &[],
            about: "Show the cell of files.",
            parameters: &[PATHS],
            examples: &["/afs/demo.cell"],
        },
        Command {
            name: "wscell",
            aliases: &[],
            about: "Show the home cell.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "listaliases",
            aliases: &[],
            about: "List the aliases of cells in CellAlias.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "listcells",
            aliases: &[],
            about: "List the known cells.",
            parameters: &[
                optional_list("name", "cell name: only these"),
                flag("numeric", ": print addresses, not names"),
            ],
            examples: &[""],
        },
        Command {
            name: "listunstored",
            aliases: &["lu"],
            about: "List data in a mount's cache that is not stored on a server, and data that was put aside.",
            parameters: &[optional(
                "cachedir",
                "directory: one in a mount, or that of 'cellar mount --cache' (mounted or not)",
            )],
            examples: &["", "/afs", "/var/cache/cellar"],
        },
        Command {
            name: "checkservers",
            aliases: &["checks"],
            about: "Show the file servers of a cell that do not answer.",
            parameters: &[
                optional(
                    "cell",
                    "cell name: check the servers of this cell; default: the home cell",
                ),
                flag("all", ": check all known cells"),
                flag(
                    "fast",
                    ": make no calls; show servers that did not answer a mount in the last minute",
                ),
                optional(
                    "interval",
                    "seconds: 0 shows the interval; other values are accepted without effect",
                ),
            ],
            examples: &["", "demo.cell", "-all -fast"],
        },
        Command {
            name: "checkvolumes",
            aliases: &["checkbackups"],
            about: "Discard a mount's knowledge of volume locations and mount points.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "flush",
            aliases: &[],
            about: "Remove files from a mount's cache.",
            parameters: &[PATHS],
            examples: &["", "bin/tool"],
        },
        Command {
            name: "flushvolume",
            aliases: &[],
            about: "Remove whole volumes from a mount's cache.",
            parameters: &[PATHS],
            examples: &["", "/afs/demo.cell/soft"],
        },
        Command {
            name: "flushmount",
            aliases: &[],
            about: "Discard the cached targets of mount points.",
            parameters: &[optional_list("path", "mount point")],
            examples: &["/afs/demo.cell/soft"],
        },
        Command {
            name: "flushall",
            aliases: &[],
            about: "Remove everything from a mount's cache.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "getcacheparms",
            aliases: &[],
            about: "Show the size and use of a mount's cache.",
            parameters: &[
                flag("files", ": show files too"),
                flag("excessive", ": show files too"),
            ],
            examples: &["", "-files"],
        },
        Command {
            name: "setcachesize",
            aliases: &["cachesize"],
            about: "Set the size of a mount's cache.",
            parameters: &[
                optional(
                    "blocks",
                    "KiB: the new size; 0 for the size given at mount time",
                ),
                flag("reset", ": restore the size given at mount time"),
            ],
            examples: &["20000000", "-reset"],
        },
        Command {
            name: "sysname",
            aliases: &[],
            about: "Show or set the meaning of @sys.",
            parameters: &[optional_list(
                "newsys",
                "system name: the first name that exists is used",
            )],
            examples: &["", "amd64_linux6 amd64_linux26"],
        },
        Command {
            name: "newcell",
            aliases: &[],
            about: "Add a cell to a mount, or change its database servers.",
            parameters: &[
                one("name", "cell name"),
                expands(
                    "servers",
                    "address: a database server; append :PORT if it is not 7003",
                ),
                optional("linkedcell", IGNORED),
            ],
            examples: &["other.cell 192.0.2.7 192.0.2.8"],
        },
        Command {
            name: "newalias",
            aliases: &[],
            about: "Add an alias of a cell to a mount.",
            parameters: &[one("alias", "other name"), one("name", "cell name")],
            examples: &["demo demo.cell"],
        },
        Command {
            name: "getcellstatus",
            aliases: &[],
            about: "Show whether a mount honours set-user-id programs of cells.",
            parameters: &[expands("cell", "cell name")],
            examples: &["demo.cell"],
        },
        Command {
            name: "getcrypt",
            aliases: &[],
            about: "Show whether a mount encrypts its calls.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "setcrypt",
            aliases: &[],
            about: "Set whether a mount encrypts its calls for users with tokens.",
            parameters: &[one("crypt", "on or off")],
            examples: &["on"],
        },
        Command {
            name: "storebehind",
            aliases: &["sb"],
            about: "Show or set how much unstored data a file may have when close returns.",
            parameters: &[
                optional("kbytes", "KiB: the limit for the named files"),
                optional_list("files", "file path"),
                optional("allfiles", "KiB: the limit for all other files"),
                flag("verbose", ": show the limits in force"),
            ],
            examples: &[
                "-verbose",
                "-allfiles 1024",
                "-kbytes 0 -files results.db -verbose",
            ],
        },
    ],
};

#[cfg(test)]
mod tests {
    use super::SUITE;
    use crate::suite::syntax::Invocation;

    fn parse(line: &str) -> Invocation {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        SUITE
            .parse(&words)
            .unwrap_or_else(|refusal| panic!("{line}: {refusal:?}"))
    }

    #[test]
    fn words_of_openafs_and_afs_osd() {
        let mount = parse("mkm m v -cell other.org -rw");
        assert_eq!(mount.get("cell"), Some("other.org"));
        for line in [
            "mkmount m v other.org",
            "mkm -d m -v v -c other.org",
            "mkmount -mountpoint m -volume v -mountcell other.org -fast",
        ] {
            let mount = parse(line);
            let words = ["dir", "vol", "cell"].map(|name| mount.required(name));
            assert_eq!(words, ["m", "v", "other.org"], "{line}");
        }
        assert_eq!(parse("rmm -mountpoint a b").list("dir"), ["a", "b"]);
        let quota = parse("sq -max 10G");
        assert_eq!((quota.get("path"), quota.get("max")), (None, Some("10G")));
        assert_eq!(parse("sq . 5000").get("path"), Some("."));
        let list = parse("sa d ann rl -id -n");
        assert!(list.has("negative") && list.list("acl") == ["ann", "rl"]);
        assert!(parse("la . -if -cmd").has("cmd"));
        assert_eq!(parse("ca a b -id").list("todir"), ["b"]);
        assert_eq!(parse("checks a.b").get("cell"), Some("a.b"));
        assert!(parse("checks -interval 300 -f").has("fast"));
        assert_eq!(parse("checks -c a.b").get("cell"), Some("a.b"));
        assert_eq!(parse("wscell -c a.b").get("cell"), Some("a.b"));
        assert_eq!(parse("osd -file f g").list("path"), ["f", "g"]);
        assert_eq!(parse("policy -location d").list("path"), ["d"]);
        assert!(parse("policy").list("path").is_empty());
        assert!(parse("getfid d -lit").has("literal"));
        assert_eq!(parse("gca a b").list("path"), ["a", "b"]);
        let set = parse("sv d -ma 1T -o message");
        assert_eq!(
            (set.get("max"), set.get("offlinemsg")),
            (Some("1T"), Some("message"))
        );
    }

    #[test]
    fn shortened_as_openafs_takes_them() {
        let behind = parse("sb -k 5 -f a b -v");
        assert_eq!(behind.command, "storebehind");
        assert_eq!(behind.get("kbytes"), Some("5"));
        assert_eq!(behind.list("files"), ["a", "b"]);
        assert!(behind.has("verbose"));
        assert_eq!(parse("sto -a 64").get("allfiles"), Some("64"));
        assert_eq!(parse("cachesize 1000").get("blocks"), Some("1000"));
        assert!(parse("setca -r").has("reset"));
        assert_eq!(parse("sy a b").list("newsys"), ["a", "b"]);
        assert_eq!(parse("sys -n a").list("newsys"), ["a"]);
        let cell = parse("newc other.cell 192.0.2.1 192.0.2.2 -l linked.cell");
        assert_eq!(cell.list("servers"), ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(cell.get("linkedcell"), Some("linked.cell"));
        let alias = parse("newa -a short -n long.cell");
        assert_eq!(
            (alias.required("alias"), alias.required("name")),
            ("short", "long.cell")
        );
        assert_eq!(parse("setcr on").required("crypt"), "on");
        assert!(parse("getcac -f").has("files"));
        assert_eq!(parse("getce -c a.b c.d").list("cell"), ["a.b", "c.d"]);
        for (short, command) in [
            ("df", "diskfree"),
            ("la", "listacl"),
            ("checkbackups", "checkvolumes"),
            ("checkv", "checkvolumes"),
            ("flush x", "flush"),
            ("flushv x", "flushvolume"),
            ("flusha", "flushall"),
            ("flushm x", "flushmount"),
            ("cl x", "cleanacl"),
            ("getcr", "getcrypt"),
            ("checks -a -f", "checkservers"),
        ] {
            assert_eq!(parse(short).command, command, "{short}");
        }
    }
}
