//! Converts a Kerberos 5 principal into the name and instance of AFS.
//!
//! One component is a name, two are name and instance; there is no form for more. Services on hosts
//! keep their Kerberos 4 names: `host/www.example.org` becomes `rcmd.www`. OpenAFS and aklog use
//! the same table, so the entries in protection databases and UserLists have these names.

/// Services whose instance is a host name. Only its first label is used.
const OF_HOSTS: [&str; 38] = [
    "abs",
    "acap",
    "afpserver",
    "argus",
    "changepw",
    "daemon",
    "discuss",
    "ecat",
    "ftp",
    "gdss",
    "gnats",
    "host",
    "http",
    "imap",
    "irc",
    "khttp",
    "ldap",
    "lmtp",
    "mandarin",
    "mandarin-agent",
    "moira",
    "mupdate",
    "news",
    "nfs",
    "olc",
    "palladium",
    "pgpsigner",
    "pop",
    "prms",
    "register",
    "rfs",
    "rvdsrv",
    "sample",
    "sis",
    "smtp",
    "sms",
    "tftp",
    "write",
];

/// The longest name, instance or realm.
const LENGTH_MAX: usize = 63;

/// Name and instance; `None` if AFS has no name for that principal.
pub(super) fn from_components(components: &[&[u8]], allow_dots: bool) -> Option<(String, String)> {
    let (name, instance) = match components {
        [name] => (text(name)?, String::new()),
        [name, instance] => (text(name)?, text(instance)?),
        _ => return None,
    };
    if name.is_empty() || (!allow_dots && name.contains('.')) {
        return None;
    }
    if instance.is_empty() || !OF_HOSTS.contains(&name.as_str()) {
        return Some((name, instance));
    }
    let (label, _) = instance.split_once('.')?;
    let name = match name.as_str() {
        "host" => "rcmd",
        other => other,
    };
    Some((name.to_owned(), label.to_owned()))
}

/// A name that can be printed, stored and compared. It may not contain characters that would let
/// one principal pass for another (`@` for a foreign one, blanks in the UserList).
pub(super) fn text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let legal = text
        .chars()
        .all(|c| !c.is_control() && !c.is_whitespace() && c != '@');
    (legal && text.len() <= LENGTH_MAX).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(components: &[&str]) -> Option<(String, String)> {
        let components: Vec<&[u8]> = components.iter().map(|part| part.as_bytes()).collect();
        from_components(&components, false)
    }

    #[test]
    fn users_services_and_what_has_no_name() {
        let pair = |name: &str, instance: &str| Some((name.to_owned(), instance.to_owned()));
        assert_eq!(named(&["alice"]), pair("alice", ""));
        assert_eq!(named(&["alice", "admin"]), pair("alice", "admin"));
        assert_eq!(named(&["host", "www.example.org"]), pair("rcmd", "www"));
        assert_eq!(named(&["imap", "mail.example.org"]), pair("imap", "mail"));
        assert_eq!(named(&["hostess", "a.b"]), pair("hostess", "a.b"));
        assert_eq!(named(&["kadmin", "changepw"]), pair("kadmin", "changepw"));
        assert_eq!(named(&["host", "nodots"]), None);
        assert_eq!(named(&["a", "b", "c"]), None);
        assert_eq!(named(&[]), None);
        assert_eq!(named(&[""]), None);
        assert_eq!(named(&["alice.admin"]), None);
        assert_eq!(named(&["alice@elsewhere"]), None);
        assert_eq!(named(&["al ice"]), None);
        assert_eq!(named(&["al\nice"]), None);
        assert_eq!(named(&[&"x".repeat(64)]), None);
    }

    #[test]
    fn dots_can_be_allowed() {
        let name = from_components(&[b"alice.admin"], true);
        assert_eq!(name, Some(("alice.admin".to_owned(), String::new())));
    }
}
