//! Operations of OpenAFS's `fs` that do not apply here, with the reason.
//!
//! Scripts that call them get a sentence and the exit status of a refusal, without a usage message.

/// Their names and the reasons.
const OPERATIONS: &[(&str, &str)] = &[
    ("getserverprefs", "a mount does not rank servers"),
    ("setserverprefs", "a mount does not rank servers"),
    (
        "getclientaddrs",
        "a mount sends file servers no list of addresses: they call it back at the source address of its calls",
    ),
    (
        "setclientaddrs",
        "a mount sends file servers no list of addresses: they call it back at the source address of its calls",
    ),
    (
        "setcbaddr",
        "file servers call a mount back at the source address of its calls",
    ),
    (
        "uuid",
        "a mount makes its UUID when it starts, or keeps it in its --cache directory",
    ),
    (
        "precache",
        "the kernel caches the pages of files and reads ahead by itself",
    ),
    (
        "bypassthreshold",
        "no file bypasses the cache; 'cellar mount --cache-size' and 'fs setcachesize' bound the size of the cache",
    ),
    (
        "rxstatproc",
        "a mount always counts its calls; 'cellar mount --metrics' shows the counts",
    ),
    (
        "rxstatpeer",
        "a mount always counts its calls; 'cellar mount --metrics' shows the counts",
    ),
    (
        "messages",
        "a mount writes to its log; 'cellar mount --log' selects the messages",
    ),
    ("setcell", "a mount ignores set-uid bits in all cells"),
    (
        "discon",
        "a mount has no disconnected mode; data that servers do not accept waits in its --cache directory",
    ),
    (
        "exportafs",
        "the system's NFS server can export a mount without this operation",
    ),
    ("nukenfscreds", "a mount keeps no tokens of NFS clients"),
];

/// The reason why an operation does not apply. The operation is named in full or by a prefix that
/// fits no other operation.
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

    /// Every operation that `fs help` of OpenAFS 1.8 lists exists here or has a reason.
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
        // A prefix that fits one of our operations means that operation.
        assert_eq!(reason("set", has), None);
        assert_eq!(reason("getc", has), None);
        assert_eq!(reason("nosuch", has), None);
    }
}
