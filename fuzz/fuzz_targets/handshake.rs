//! Challenges and responses of rxkad.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    cellar_auth::fuzzing::handshake(data);
});
