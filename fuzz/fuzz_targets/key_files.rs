//! KeyFileExt and keytabs: what is read is the same after it was written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    cellar_auth::fuzzing::key_files(data);
});
