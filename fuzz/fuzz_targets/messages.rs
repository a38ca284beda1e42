//! XDR of every package. The first byte chooses the package, the second the procedure and, with
//! its highest bit, arguments or results.

#![no_main]

use bytes::Bytes;
use cellar_wire::{
    AnyRequest, Decoder, afsosd, afsvol, bozo, disk, osd, osddb, pr, rxafs, rxafscb, rxperf,
    rxstats, vl, vote,
};
use libfuzzer_sys::fuzz_target;

fn canonical<R: AnyRequest>(opcode: u32, is_reply: bool, bytes: &[u8]) -> Option<Bytes> {
    let mut decoder = Decoder::new(bytes);
    if is_reply {
        return R::recode_reply(opcode, &mut decoder).ok();
    }
    let request = R::decode(opcode, &mut decoder).ok()?;
    assert!(!format!("{request:?}").is_empty());
    Some(request.to_xdr().slice(4..))
}

fn check<R: AnyRequest>(choice: u8, bytes: &[u8]) {
    let procedures = R::package().procedures;
    let opcode = procedures[usize::from(choice & 0x7f) % procedures.len()].opcode;
    let is_reply = choice & 0x80 != 0;
    if let Some(first) = canonical::<R>(opcode, is_reply, bytes) {
        let second = canonical::<R>(opcode, is_reply, &first);
        assert_eq!(second.as_ref(), Some(&first), "opcode {opcode}");
    }
}

fuzz_target!(|data: &[u8]| {
    let [package, procedure, bytes @ ..] = data else {
        return;
    };
    match package % 13 {
        0 => check::<rxafs::Request>(*procedure, bytes),
        1 => check::<rxafscb::Request>(*procedure, bytes),
        2 => check::<vl::Request>(*procedure, bytes),
        3 => check::<pr::Request>(*procedure, bytes),
        4 => check::<afsvol::Request>(*procedure, bytes),
        5 => check::<bozo::Request>(*procedure, bytes),
        6 => check::<vote::Request>(*procedure, bytes),
        7 => check::<disk::Request>(*procedure, bytes),
        8 => check::<rxstats::Request>(*procedure, bytes),
        9 => check::<rxperf::Request>(*procedure, bytes),
        10 => check::<osd::Request>(*procedure, bytes),
        11 => check::<osddb::Request>(*procedure, bytes),
        _ => check::<afsosd::Request>(*procedure, bytes),
    }
});
