//! Kerberos tickets, whole and in part, and what is inside them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    cellar_auth::fuzzing::ticket(data);
    cellar_auth::fuzzing::ticket_content(data);
});
