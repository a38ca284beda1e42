//! The messages for abort codes: those that OpenAFS's commands print, by which administrators and
//! their scripts recognise an error.
//!
//! Each suite of commands has its own codes and messages; the number ranges of the suites do not
//! overlap. Source: the output of `vos`, `pts` and `bos` 1.8.9.

use cellar_wire::AbortCode as Code;

/// The message for a code, if there is one.
pub(crate) fn of(code: Code) -> Option<String> {
    let known = TABLE.iter().find(|(known, _)| *known == code);
    match known {
        Some((_, words)) => Some((*words).to_owned()),
        None if (1..=133).contains(&code.0) => system(code.0),
        None => None,
    }
}

/// The system's message for an error number, as `strerror` returns it.
fn system(errno: i32) -> Option<String> {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let (words, _) = text.rsplit_once(" (os error")?;
    Some(words.to_owned())
}

#[rustfmt::skip]
const TABLE: &[(Code, &str)] = &[
    (Code::VSALVAGE, "Volume needs to be salvaged"),
    (Code::VNOVNODE, "Bad vnode number quoted"),
    (Code::VNOVOL, "Volume not attached, does not exist, or not on line"),
    (Code::VVOLEXISTS, "Volume already exists"),
    (Code::VNOSERVICE, "Volume is not in service"),
    (Code::VOFFLINE, "Volume is off line"),
    (Code::VONLINE, "Volume is already on line"),
    (Code::VDISKFULL, "Partition is full"),
    (Code::VOVERQUOTA, "Volume max quota exceeded"),
    (Code::VBUSY, "Volume temporarily unavailable"),
    (Code::VMOVED, "Volume has moved to another server"),
    (Code::VL_IDEXIST, "VLDB: volume Id exists in the vldb"),
    (Code::VL_IO, "VLDB: a read terminated too early"),
    (Code::VL_NAMEEXIST, "VLDB: volume entry exists in the vldb"),
    (Code::VL_CREATEFAIL, "VLDB: internal creation failure"),
    (Code::VL_NOENT, "VLDB: no such entry"),
    (Code::VL_EMPTY, "VLDB: vldb database is empty"),
    (Code::VL_ENTDELETED, "VLDB: entry is deleted (soft delete)"),
    (Code::VL_BADNAME, "VLDB: volume name is illegal"),
    (Code::VL_BADINDEX, "VLDB: index was out of range"),
    (Code::VL_BADVOLTYPE, "VLDB: bad volume type"),
    (Code::VL_BADSERVER, "VLDB: illegal server number (not within limits)"),
    (Code::VL_BADPARTITION, "VLDB: bad partition number"),
    (Code::VL_REPSFULL, "VLDB: run out of space for replication sites"),
    (Code::VL_NOREPSERVER, "VLDB: no such repsite server exists"),
    (Code::VL_DUPREPSERVER, "VLDB: replication site server already exists"),
    (Code::VL_RWNOTFOUND, "VLDB: parent r/w entry not found"),
    (Code::VL_BADREFCOUNT, "VLDB: illegal reference count number"),
    (Code::VL_SIZEEXCEEDED, "VLDB: vldb size for attributes exceeded"),
    (Code::VL_BADENTRY, "VLDB: bad incoming vldb entry"),
    (Code::VL_BADVOLIDBUMP, "VLDB: illegal max volid increment"),
    (Code::VL_IDALREADYHASHED, "VLDB: (RO/BACK) Id already hashed"),
    (Code::VL_ENTRYLOCKED, "VLDB: vldb entry is already locked"),
    (Code::VL_BADVOLOPER, "VLDB: bad volume operation code"),
    (Code::VL_BADRELLOCKTYPE, "VLDB: bad release lock type"),
    (Code::VL_RERELEASE, "VLDB: status report: last release was aborted"),
    (Code::VL_BADSERVERFLAG, "VLDB: invalid replication site server flag"),
    (Code::VL_PERM, "VLDB: no permission access for call"),
    (Code::VOLSERREAD_DUMPERROR, "VOLSER:  Problems encountered in reading the dump file !"),
    (Code::VOLSERDUMPERROR, "VOLSER: Problems encountered in doing the dump !"),
    (Code::VOLSERATTACH_ERROR, "VOLSER: Could not attach the volume"),
    (Code::VOLSERILLEGAL_PARTITION, "VOLSER: encountered illegal partition number"),
    (Code::VOLSERDETACH_ERROR, "VOLSER: Could not detach the volume"),
    (Code::VOLSERBAD_ACCESS, "VOLSER: permission denied, not a super user"),
    (Code::VOLSERVLDB_ERROR, "VOLSER: error detected in the VLDB"),
    (Code::VOLSERBADNAME, "VOLSER: error in volume name"),
    (Code::VOLSERVOLMOVED, "VOLSER: volume has moved"),
    (Code::VOLSERBADOP, "VOLSER: illegal operation"),
    (Code::VOLSERBADRELEASE, "VOLSER: release could not be completed"),
    (Code::VOLSERVOLBUSY, "VOLSER: volume is busy"),
    (Code::VOLSERNO_MEMORY, "VOLSER: volume server is out of memory"),
    (Code::VOLSERNOVOL, "VOLSER: no such volume - location specified incorrectly or volume does not exist"),
    (Code::VOLSERMULTIRWVOL, "VOLSER: multiple RW volumes with same ID, one of which should be deleted"),
    (Code::VOLSERFAILEDOP, "VOLSER: not all entries were successfully processed"),
    (Code::PREXIST, "Entry for name already exists"),
    (Code::PRIDEXIST, "Entry for id already exists"),
    (Code::PRNOIDS, "Couldn't allocate an id for this entry"),
    (Code::PRDBFAIL, "Couldn't read/write the database"),
    (Code::PRNOENT, "User or group doesn't exist"),
    (Code::PRPERM, "Permission denied"),
    (Code::PRNOTGROUP, "No group specified"),
    (Code::PRNOTUSER, "No user specified"),
    (Code::PRBADNAM, "Badly formed name (group prefix doesn't match owner?)"),
    (Code::PRBADARG, "argument illegal or out of range"),
    (Code::PRNOMORE, "may not create more groups"),
    (Code::PRDBBAD, "database needs rebuilding"),
    (Code::PRGROUPEMPTY, "can't make owner an empty group"),
    (Code::PRINCONSISTENT, "database is inconsistent"),
    (Code::PRTOOMANY, "too many elements in group"),
    (Code::BZNOTACTIVE, "process not active"),
    (Code::BZNOENT, "no such entity"),
    (Code::BZBUSY, "can't do operation now"),
    (Code::BZEXISTS, "entity already exists"),
    (Code::BZNOCREATE, "failed to create entity"),
    (Code::BZDOM, "index out of range"),
    (Code::BZACCESS, "you are not authorized for this operation"),
    (Code::BZSYNTAX, "syntax error in create parameter"),
    (Code::BZIO, "I/O error"),
    (Code::BZNET, "network problem"),
    (Code::BZBADTYPE, "unrecognized bnode type"),
    (Code(70_354_689), "could not find entry"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_words_that_scripts_know() {
        let table = [
            (Code::PREXIST, "Entry for name already exists"),
            (Code::VL_PERM, "VLDB: no permission access for call"),
            (Code::BZACCESS, "you are not authorized for this operation"),
            (Code::ENOENT, "No such file or directory"),
            (Code::ENODEV, "No such device"),
            // The file server's own numbers take precedence over the system's.
            (
                Code::VNOVOL,
                "Volume not attached, does not exist, or not on line",
            ),
        ];
        for (code, words) in table {
            assert_eq!(of(code).as_deref(), Some(words));
        }
        assert_eq!(of(Code(-1)), None);
        assert_eq!(of(Code(99_999)), None);
    }
}
