//! Universal errno (UAE): errno numbers that mean the same on every system.
//!
//! A table of 123 names with base 49733376. For a Linux number `e`, `e <= 57` is at place `e - 1`,
//! and `59 <= e <= 124` at place `e - 2` (58, EDEADLOCK, has no place). Place 40 is EWOULDBLOCK,
//! which on Linux is EAGAIN: it is read as EAGAIN and never written.
//!
//! Source: the table of the AFS interfaces, compared with Linux's `errno.h`.

use crate::abort::AbortCode;

/// The code at place 0.
pub const BASE: i32 = 49_733_376;

/// The place of EWOULDBLOCK, where Linux's numbers have a gap.
const WOULDBLOCK: usize = 40;

/// Linux's EAGAIN.
const EAGAIN: i32 = 11;

/// The universal code for a Linux errno number; `None` when the table has no such entry.
pub const fn from_errno(errno: i32) -> Option<AbortCode> {
    let place = match errno {
        41 => return None,
        1..=57 => errno - 1,
        59..=124 => errno - 2,
        _ => return None,
    };
    Some(AbortCode(BASE + place))
}

/// The Linux errno number of a universal code; `None` if the code is not universal.
pub fn to_errno(code: AbortCode) -> Option<i32> {
    let place = place(code)?;
    Some(match place {
        WOULDBLOCK => EAGAIN,
        0..=56 => place as i32 + 1,
        _ => place as i32 + 2,
    })
}

/// The name, for example `UAEACCES`; `None` if the code is not universal.
pub fn name(code: AbortCode) -> Option<&'static str> {
    NAMES.get(place(code)?).copied()
}

fn place(code: AbortCode) -> Option<usize> {
    let place = usize::try_from(code.0.checked_sub(BASE)?).ok()?;
    (place < NAMES.len()).then_some(place)
}

/// The meaning of an errno number to a user of AFS. Covers the numbers that servers send.
pub(crate) fn sentence(errno: i32) -> Option<&'static str> {
    let universal = name(from_errno(errno)?)?;
    SENTENCES
        .iter()
        .find(|(name, _)| *name == universal)
        .map(|(_, sentence)| *sentence)
}

static SENTENCES: &[(&str, &str)] = &[
    ("UAEPERM", "the operation is not permitted"),
    ("UAENOENT", "there is no such file or directory"),
    ("UAEIO", "reading or writing failed"),
    ("UAE2BIG", "the list is too long"),
    ("UAEAGAIN", "not now, try again"),
    ("UAENOMEM", "the server is out of memory"),
    ("UAEACCES", "permission denied"),
    ("UAEBUSY", "it is busy"),
    ("UAEEXIST", "it exists already"),
    ("UAEXDEV", "that would cross volumes or directories"),
    ("UAENODEV", "there is no such volume"),
    ("UAENOTDIR", "it is not a directory"),
    ("UAEISDIR", "it is a directory"),
    ("UAEINVAL", "an argument is not valid"),
    ("UAEFBIG", "the file or directory would be too large"),
    ("UAENOSPC", "the partition is full"),
    ("UAEROFS", "the volume is read-only"),
    ("UAEMLINK", "too many links"),
    ("UAEDEADLK", "it would wait for itself"),
    ("UAENAMETOOLONG", "the name is too long"),
    ("UAENOLCK", "no lock can be had"),
    ("UAENOSYS", "the server does not offer that"),
    ("UAENOTEMPTY", "the directory is not empty"),
    (
        "UAELOOP",
        "too many symbolic links, or a directory would be inside itself",
    ),
    (
        "UAEOVERFLOW",
        "the value is too large for this form of the call",
    ),
    ("UAEOPNOTSUPP", "the server does not support that"),
    ("UAETIMEDOUT", "it took too long"),
    ("UAECONNREFUSED", "the connection was refused"),
    (
        "UAESTALE",
        "the target is not in the state that the operation starts from",
    ),
    ("UAEDQUOT", "the quota is used up"),
    (
        "UAENOMEDIUM",
        "the file is in archives only, and opening it does not recall it",
    ),
];

/// Every name, in the order of the table.
#[rustfmt::skip]
static NAMES: [&str; 123] = [
    "UAEPERM", "UAENOENT", "UAESRCH", "UAEINTR", "UAEIO", "UAENXIO", "UAE2BIG", "UAENOEXEC",
    "UAEBADF", "UAECHILD", "UAEAGAIN", "UAENOMEM", "UAEACCES", "UAEFAULT", "UAENOTBLK", "UAEBUSY",
    "UAEEXIST", "UAEXDEV", "UAENODEV", "UAENOTDIR", "UAEISDIR", "UAEINVAL", "UAENFILE",
    "UAEMFILE", "UAENOTTY", "UAETXTBSY", "UAEFBIG", "UAENOSPC", "UAESPIPE", "UAEROFS", "UAEMLINK",
    "UAEPIPE", "UAEDOM", "UAERANGE", "UAEDEADLK", "UAENAMETOOLONG", "UAENOLCK", "UAENOSYS",
    "UAENOTEMPTY", "UAELOOP", "UAEWOULDBLOCK", "UAENOMSG", "UAEIDRM", "UAECHRNG", "UAEL2NSYNC",
    "UAEL3HLT", "UAEL3RST", "UAELNRNG", "UAEUNATCH", "UAENOCSI", "UAEL2HLT", "UAEBADE", "UAEBADR",
    "UAEXFULL", "UAENOANO", "UAEBADRQC", "UAEBADSLT", "UAEBFONT", "UAENOSTR", "UAENODATA",
    "UAETIME", "UAENOSR", "UAENONET", "UAENOPKG", "UAEREMOTE", "UAENOLINK", "UAEADV", "UAESRMNT",
    "UAECOMM", "UAEPROTO", "UAEMULTIHOP", "UAEDOTDOT", "UAEBADMSG", "UAEOVERFLOW", "UAENOTUNIQ",
    "UAEBADFD", "UAEREMCHG", "UAELIBACC", "UAELIBBAD", "UAELIBSCN", "UAELIBMAX", "UAELIBEXEC",
    "UAEILSEQ", "UAERESTART", "UAESTRPIPE", "UAEUSERS", "UAENOTSOCK", "UAEDESTADDRREQ",
    "UAEMSGSIZE", "UAEPROTOTYPE", "UAENOPROTOOPT", "UAEPROTONOSUPPORT", "UAESOCKTNOSUPPORT",
    "UAEOPNOTSUPP", "UAEPFNOSUPPORT", "UAEAFNOSUPPORT", "UAEADDRINUSE", "UAEADDRNOTAVAIL",
    "UAENETDOWN", "UAENETUNREACH", "UAENETRESET", "UAECONNABORTED", "UAECONNRESET", "UAENOBUFS",
    "UAEISCONN", "UAENOTCONN", "UAESHUTDOWN", "UAETOOMANYREFS", "UAETIMEDOUT", "UAECONNREFUSED",
    "UAEHOSTDOWN", "UAEHOSTUNREACH", "UAEALREADY", "UAEINPROGRESS", "UAESTALE", "UAEUCLEAN",
    "UAENOTNAM", "UAENAVAIL", "UAEISNAM", "UAEREMOTEIO", "UAEDQUOT", "UAENOMEDIUM",
    "UAEMEDIUMTYPE",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_both_ways_for_all_of_linux() {
        for errno in 1..=133 {
            match from_errno(errno) {
                Some(code) => assert_eq!(to_errno(code), Some(errno)),
                None => assert!(matches!(errno, 41 | 58 | 125..), "{errno}"),
            }
        }
        assert_eq!(to_errno(AbortCode(BASE + 40)), Some(EAGAIN));
        assert_eq!(to_errno(AbortCode(BASE - 1)), None);
        assert_eq!(to_errno(AbortCode(BASE + 123)), None);
        assert_eq!(to_errno(AbortCode(i32::MIN)), None);
    }

    #[test]
    fn names_are_at_the_places_that_peers_use() {
        for (errno, code, text) in [
            (1, 49733376, "UAEPERM"),
            (2, 49733377, "UAENOENT"),
            (13, 49733388, "UAEACCES"),
            (30, 49733405, "UAEROFS"),
            (39, 49733414, "UAENOTEMPTY"),
            (57, 49733432, "UAEBADSLT"),
            (59, 49733433, "UAEBFONT"),
            (95, 49733469, "UAEOPNOTSUPP"),
            (122, 49733496, "UAEDQUOT"),
            (124, 49733498, "UAEMEDIUMTYPE"),
        ] {
            assert_eq!(from_errno(errno), Some(AbortCode(code)));
            assert_eq!(name(AbortCode(code)), Some(text));
        }
    }
}
