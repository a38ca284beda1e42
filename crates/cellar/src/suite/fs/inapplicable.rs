//! Operations of OpenAFS's `fs` that have nothing to act on here, and why.
//!
//! Scripts that call them get a sentence and the exit status of a refusal, and no usage message.

/// Their names, and why they do not apply.
const OPERATIONS: &[(&str, &str)] = &[
    ("getserverprefs", "a mount has no ranks of servers"),
    ("setserverprefs", "a mount has no ranks of servers"),
    (
        "getclientaddrs",
        "a mount gives file servers no list of addresses: they call it back where its calls come from",
    ),
    (
        "setclientaddrs",
        "a mount gives file servers no list of addresses: they call it back where its calls come from",
    ),
    (
        "setcbaddr",
        "file servers call a mount back at the address that its calls come from",
    ),
    (
        "uuid",
        "the UUID of a mount is made when it starts, or lies in its --cache directory",
    ),
    (
        "precache",
        "the pages of files are the kernel's, which reads ahead by itself",
    ),
    (
        "bypassthreshold",
        "no file bypasses the cache: its size is bounded by --size of 'cellar mount' and 'fs setcachesize'",
    ),
    (
        "rxstatproc",
        "a mount counts its calls always; --metrics of 'cellar mount' shows the counts",
    ),
    (
        "rxstatpeer",
        "a mount counts its calls always; --metrics of 'cellar mount' shows the counts",
    ),
    (
        "messages",
        "a mount writes to its log; --log of 'cellar mount' says what",
    ),
    (
        "setcell",
        "a mount runs no programs with other users' rights from any cell: set-uid bits count in none",
    ),
    (
        "discon",
        "a mount has no disconnected mode: what servers do not take waits in its --cache directory",
    ),
    (
        "exportafs",
        "a mount is exported by the NFS server of the system, which asks for no leave",
    ),
    ("nukenfscreds", "a mount keeps no tokens of NFS clients"),
];

/// Why an operation does not apply, by its name or what begins no other operation's.
pub(super) fn reason(word: &str, others: impl Fn(&str) -> bool) -> Option<String> {
    let exact = OPERATIONS.iter().find(|(name, _)| *name == word);
    let found = exact.or_else(|| {
        let mut fitting = OPERATIONS.iter().filter(|(name, _)| name.starts_with(word));
        match (fitting.next(), fitting.next()) {
            (Some(only), None) if !others(word) => Some(only),
            _ => None,
        }
    });
    found.map(|(name, why)| format!("{name}: not applicable because {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::fs::table::SUITE;

    fn has(word: &str) -> bool {
        let mut names = SUITE.commands.iter();
        names.any(|c| c.name.starts_with(word) || c.aliases.contains(&word))
    }

    /// Every operation that `fs help` of OpenAFS 1.8 lists is there or says why it is not.
    #[test]
    fn no_operation_of_openafs_is_unknown() {
        let all = "bypassthreshold checkservers checkvolumes cleanacl copyacl discon diskfree examine exportafs flush \
                   flushall flushmount flushvolume getcacheparms getcalleraccess getcellstatus getclientaddrs getcrypt \
                   getfid getserverprefs listacl listaliases listcells listquota lsmount messages mkmount newalias \
                   newcell nukenfscreds precache quota rmmount rxstatpeer rxstatproc setacl setcachesize setcbaddr \
                   setcell setclientaddrs setcrypt setquota setserverprefs setvol storebehind sysname uuid whereis \
                   whichcell wscell";
        for name in all.split_whitespace() {
            let here = SUITE.commands.iter().any(|c| c.name == name);
            let why = reason(name, has);
            assert_ne!(here, why.is_some(), "{name}");
        }
        assert!(reason("rxstatpr", has).is_some());
        assert!(reason("exp", has).is_some());
        // What begins one of ours too is ours.
        assert_eq!(reason("set", has), None);
        assert_eq!(reason("getc", has), None);
        assert_eq!(reason("nosuch", has), None);
    }
}
