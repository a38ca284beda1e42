//! GetStats, ProbeServer, GetCapabilities: the state of the server.

use std::sync::atomic::{AtomicU32, Ordering};

use cellar_wire::vl::{
    GetCapabilities, GetCapabilitiesReply, GetStats, GetStatsReply, ProbeServer, ProbeServerReply,
    VitalVlHeader, VldStats,
};
use cellar_wire::{AfsTime, List};

use super::Vl;
use crate::{Answer, Error, Identity, Kind};

/// The number of procedures with counters: opcodes 501 to 550.
const COUNTED: usize = 50;
const FIRST_OPCODE: u32 = 501;
/// The version of OpenAFS's database of this generation, and the length of its header.
const DATABASE_VERSION: i32 = 4;
const HEADER_BYTES: i32 = 132_120;

/// The calls of each procedure since the start.
pub(crate) struct Counters {
    start_time: AfsTime,
    requests: [AtomicU32; COUNTED],
    aborts: [AtomicU32; COUNTED],
}

impl Counters {
    pub(crate) fn new(start_time: AfsTime) -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU32::new(0));
        Self {
            start_time,
            requests: zeros(),
            aborts: zeros(),
        }
    }

    pub(crate) fn count(&self, opcode: u32, refused: bool) {
        let index = opcode.wrapping_sub(FIRST_OPCODE) as usize;
        if let Some(counter) = self.requests.get(index) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(counter) = self.aborts.get(index).filter(|_| refused) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Answer<Vl> for GetStats {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Listing;

    fn answer(self, vl: &Vl, _: Identity) -> Result<GetStatsReply, Error> {
        let model = vl.replica.read();
        let read = |counters: &[AtomicU32; COUNTED]| -> [i32; COUNTED] {
            std::array::from_fn(|i| counters[i].load(Ordering::Relaxed) as i32)
        };
        Ok(GetStatsReply {
            stats: VldStats {
                start_time: vl.counters.start_time,
                requests: read(&vl.counters.requests),
                aborts: read(&vl.counters.aborts),
                reserved: [0; 5],
            },
            vital_header: VitalVlHeader {
                vldbversion: DATABASE_VERSION,
                headersize: HEADER_BYTES,
                max_volume_id: model.max_volume_id(),
                total_entries: model.volumes_by_type().map(|n| n as i32),
                ..VitalVlHeader::default()
            },
        })
    }
}

impl Answer<Vl> for ProbeServer {
    const BLOCKS: bool = false;

    fn answer(self, _: &Vl, _: Identity) -> Result<ProbeServerReply, Error> {
        Ok(ProbeServerReply {})
    }
}

/// Linux makes this call first, with a hint that it would accept the YFS dialect. Any answer on
/// service 52 means "alive, and not YFS" to it: an abort, as from OpenAFS, or a list. It reads the
/// words and ignores them. A file server also answers with one word without bits.
impl Answer<Vl> for GetCapabilities {
    const BLOCKS: bool = false;

    fn answer(self, _: &Vl, _: Identity) -> Result<GetCapabilitiesReply, Error> {
        Ok(GetCapabilitiesReply {
            capabilities: List::from_iter_cut([0]),
        })
    }
}
