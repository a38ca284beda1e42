//! Asks the KDC of a realm with `kinit`, without a login.

use std::net::SocketAddr;
use std::time::Duration;

use super::{CacheName, program, run};
use crate::Error;
use crate::principal::KerberosPrincipal;

/// The answer of a realm's KDC about a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KdcAnswer {
    /// A KDC answers and has the principal.
    Known,
    /// A KDC answers and does not have the principal.
    Unknown,
    /// No KDC was found or answers, for this reason.
    Silent(String),
}

/// Asks the KDC of a principal's realm whether it has the principal. `kinit` finds the KDC, as for
/// users. No key and no password is sent. The address is that of the KDC that answered, if the
/// trace of `kinit` names it.
///
/// # Errors
/// `kinit` does not run, or gives another reason than those above.
pub async fn ask_kdc(
    principal: &KerberosPrincipal,
    patience: Duration,
) -> Result<(KdcAnswer, Option<SocketAddr>), Error> {
    // A cache in memory ends with the program.
    let mut command = program("kinit", &CacheName::named("MEMORY:check"));
    command.env("KRB5_TRACE", "/dev/stderr");
    command.arg(principal.to_string());
    match run("kinit", command, patience).await {
        Ok(_) => Ok((KdcAnswer::Known, None)),
        Err(Error::TimedOut(_)) => {
            let answer = KdcAnswer::Silent("it takes too long".to_owned());
            Ok((answer, None))
        }
        Err(Error::Refused { message, .. }) => {
            let (trace, message): (Vec<_>, Vec<_>) =
                message.lines().partition(|line| line.starts_with('['));
            let answer = kdc_answer(&message.join("\n"));
            Ok((answer, trace.into_iter().find_map(kdc_address)))
        }
        Err(other) => Err(other),
    }
}

/// The address in a line of the trace: `[14] 1795.1: Received answer (176 bytes) from dgram
/// 127.0.0.1:88`. The kind may be `stream`, too.
fn kdc_address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(": Received answer (")?;
    let (_, address) = rest.split_once(" bytes) from ")?;
    let (_, address) = address.split_once(' ')?;
    address.trim().parse().ok()
}

/// The meaning of the message of a `kinit` that cannot read a password.
fn kdc_answer(message: &str) -> KdcAnswer {
    let says = |words: &str| message.contains(words);
    if says("not found in Kerberos database") {
        return KdcAnswer::Unknown;
    }
    let silent = [
        "Cannot contact any KDC",
        "Cannot find KDC",
        "Cannot resolve",
    ];
    if silent.iter().any(|words| says(words)) {
        let reason = message.lines().next_back().unwrap_or_default();
        return KdcAnswer::Silent(reason.trim_start_matches("kinit: ").to_owned());
    }
    // It asked for a password, or refuses the principal as a client.
    KdcAnswer::Known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_names_the_kdc_that_answered() {
        for (line, address) in [
            (
                "[14] 1795.1: Received answer (176 bytes) from dgram 127.0.0.1:88",
                Some("127.0.0.1:88"),
            ),
            (
                "[14] 1795.1: Received answer (9 bytes) from stream [::1]:750",
                Some("[::1]:750"),
            ),
            (
                "[14] 1795.1: Sending initial UDP request to dgram 127.0.0.1:88",
                None,
            ),
            (
                "[14] 1795.1: Received answer (176 bytes) from dgram kdc",
                None,
            ),
        ] {
            let wanted = address.map(|text| text.parse().expect("an address"));
            assert_eq!(kdc_address(line), wanted, "{line}");
        }
    }
}
