//! The reasons why there is no token.

use std::path::PathBuf;

use crate::credential_cache::BadCache;

/// The reason why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// One of MIT's programs is not installed.
    #[error(
        "no program '{0}' here: install MIT Kerberos' programs (Debian: krb5-user; others: krb5-workstation)"
    )]
    NoProgram(&'static str),
    /// One of the programs cannot be run.
    #[error("cannot run {program}: {cause}")]
    Program {
        /// The name of the program.
        program: &'static str,
        /// The error of the system.
        #[source]
        cause: std::io::Error,
    },
    /// One of the programs did not end in time.
    #[error("{0} does not come to an end: does the KDC answer?")]
    TimedOut(&'static str),
    /// One of the programs failed.
    #[error("{message}{}", kdc_advice(message))]
    Refused {
        /// The name of the program.
        program: &'static str,
        /// Its standard error output.
        message: String,
    },
    /// One of the programs failed and has printed the reason itself.
    #[error("{0} failed")]
    Failed(&'static str),
    /// The user has no credential cache, or no valid ticket in it.
    #[error("you have no Kerberos ticket: 'cellar login PRINCIPAL' gets one")]
    NoTicket,
    /// No realm knows the cell's service.
    #[error(
        "no realm knows a service for cell {cell}. Tried {tried}: give --realm, or ask the cell's administrator ('addprinc afs/{cell}')"
    )]
    NoService {
        /// The cell.
        cell: String,
        /// The principals that were tried.
        tried: String,
    },
    /// The credential cache cannot be read or written.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file of the cache.
        path: PathBuf,
        /// The error of the system.
        #[source]
        cause: std::io::Error,
    },
    /// The credential cache has no valid form.
    #[error("{}: {cause}", path.display())]
    BadCache {
        /// The file of the cache.
        path: PathBuf,
        /// The fault of the bytes.
        #[source]
        cause: BadCache,
    },
    /// A keytab without keys.
    #[error("{}: no keys in this keytab", .0.display())]
    EmptyKeytab(PathBuf),
    /// A cache of this kind does not allow to remove single tickets.
    #[error(
        "single tickets cannot be taken out of {0}: 'cellar logout --all' destroys the whole cache"
    )]
    NotRemovable(String),
}

impl Error {
    /// Whether a KDC does not know the service, or no way to the realm of the service. Another name
    /// of the service may succeed then.
    ///
    /// The programs say so only in their messages: any refusal counts, except a KDC that cannot be
    /// reached, a missing cache and an expired ticket.
    pub fn is_unknown_service(&self) -> bool {
        matches!(self, Self::Refused { message, .. }
            if !is_no_kdc(message) && !message.contains("No credentials cache")
                && !message.contains("Ticket expired"))
    }
}

/// Whether a program says that no KDC answered. MIT's library reports a refused connection as
/// `EAGAIN`.
fn is_no_kdc(message: &str) -> bool {
    let silent = [
        "Cannot contact any KDC",
        "Cannot find KDC",
        "Resource temporarily unavailable",
    ];
    silent.iter().any(|text| message.contains(text))
}

/// The true reason and the remedy, if a program says that no KDC answered.
fn kdc_advice(message: &str) -> &'static str {
    match is_no_kdc(message) {
        true => {
            ". No KDC of the realm answers: is it running, does /etc/krb5.conf or the DNS name it, and \
             does the firewall let port 88 pass?"
        }
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_after_which_another_name_is_tried() {
        let refused = |message: &str| Error::Refused {
            program: "kvno",
            message: message.to_owned(),
        };
        let unknown =
            "kvno: Server afs/x@R not found in Kerberos database while getting credentials";
        assert!(refused(unknown).is_unknown_service());
        let silent =
            "kvno: Cannot contact any KDC for realm 'R' while getting credentials for afs/x@R";
        assert!(!refused(silent).is_unknown_service());
        let none = "kinit: Resource temporarily unavailable while getting initial credentials";
        assert!(!refused(none).is_unknown_service());
        for message in [silent, none] {
            let text = refused(message).to_string();
            assert!(text.contains("No KDC of the realm answers"), "{text}");
        }
        assert_eq!(refused(unknown).to_string(), unknown);
        assert!(!Error::NoTicket.is_unknown_service());
    }
}
