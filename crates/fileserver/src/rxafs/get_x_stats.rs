//! XStatsVersion (159) and GetXStats (160): the collections that `xstat_fs_test` and `afsmonitor`
//! read.
//!
//! A collection is a C structure sent word by word. The collection of full timings holds `timeval`s
//! of the server's own size. This server uses the layout of a 64-bit little-endian server, which
//! readers recognise by its 666 words. The words of the overall part are described in
//! [`super::performance`].
//!
//! Source: observed of OpenAFS 1.8's file server and `xstat_fs_test`.

use cellar_rpc::IncomingCall;
use cellar_wire::AbortCode;
use cellar_wire::rxafs::{
    GetXStats, GetXStatsReply, XSTAT_VERSION, XStats, XStatsVersion, XStatsVersionReply,
};
use cellar_wire::serve::Handle;

use super::FileService;
use super::performance::{Sources, overall, own_address, word};
use crate::abort_map::Refusal;
use crate::callbacks::Callbacks;
use crate::figures::Figures;
use crate::statistics::{DurationFigures, OperationFigures, TransferFigures};

const CALL_INFO: i32 = 0;
const PERF_INFO: i32 = 1;
const FULL_PERF_INFO: i32 = 2;
const CALLBACK_STATISTICS: i32 = 3;

const CALLBACK_WORDS: usize = 16;

const UNKNOWN_COLLECTION: AbortCode = AbortCode(1);

impl Handle<XStatsVersion, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        _: XStatsVersion,
    ) -> Result<XStatsVersionReply, Refusal> {
        let services = &self.services;

        services.sessions.note_call(call);
        Ok(XStatsVersionReply {
            version: XSTAT_VERSION,
        })
    }
}

impl Handle<GetXStats, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetXStats,
    ) -> Result<GetXStatsReply, Refusal> {
        let services = &self.services;
        let GetXStats {
            client_version: _,
            collection,
        } = arguments;
        services.sessions.note_call(call);
        let figures = self.counters.figures();
        let words = match collection {
            CALL_INFO => Vec::new(),
            PERF_INFO => performance(&services.callbacks, call, &figures).await,
            FULL_PERF_INFO => full(
                performance(&services.callbacks, call, &figures).await,
                &figures,
            ),
            CALLBACK_STATISTICS => callbacks(&figures),
            _ => return Err(Refusal::Code(UNKNOWN_COLLECTION)),
        };
        Ok(GetXStatsReply {
            server_version: XSTAT_VERSION,
            time: figures.now.as_secs() as i32,
            data: XStats::from_iter_cut(words),
        })
    }
}

/// The overall part, with the figures of the port that was called.
async fn performance(callbacks: &Callbacks, call: &IncomingCall, figures: &Figures) -> Vec<i32> {
    let port = call.port();
    let transport = match port {
        Some(port) => port.transport_statistics().await.unwrap_or_default(),
        None => Default::default(),
    };
    let bound = port.map_or(&[][..], |port| port.local_addresses());
    let here = own_address(call.peer().local, bound);
    overall(&Sources {
        figures,
        transport: &transport,
        port: &port
            .map(|port| port.statistics().port())
            .unwrap_or_default(),
        networks: callbacks.hosts.networks(here),
    })
}

/// The procedures in the order of the timings, with all forms that count as one.
const TIMED: [&[&str]; 28] = [
    &["FetchData", "FetchData64"],
    &["FetchACL"],
    &["FetchStatus"],
    &["StoreData", "StoreData64"],
    &["StoreACL", "OldStoreACL"],
    &["StoreStatus"],
    &["RemoveFile"],
    &["CreateFile"],
    &["Rename"],
    &["Symlink"],
    &["Link"],
    &["MakeDir"],
    &["RemoveDir"],
    &["SetLock", "OldSetLock"],
    &["ExtendLock", "OldExtendLock"],
    &["ReleaseLock", "OldReleaseLock"],
    &["GetStatistics", "GetStatistics64"],
    &["GiveUpCallBacks", "GiveUpAllCallBacks"],
    &["GetVolumeInfo"],
    &["GetVolumeStatus"],
    &["SetVolumeStatus"],
    &["GetRootVolume"],
    &["CheckToken"],
    &["GetTime"],
    &["NGetVolumeInfo"],
    &["BulkStatus", "InlineBulkStatus"],
    &["XStatsVersion"],
    &["GetXStats"],
];

fn full(mut words: Vec<i32>, figures: &Figures) -> Vec<i32> {
    time(&mut words, figures.started.as_micros() as u64);
    for names in TIMED {
        let forms: Vec<OperationFigures> =
            names.iter().map(|name| figures.operation(name)).collect();
        let calls: u64 = forms.iter().map(|form| form.calls).sum();
        let refused: u64 = forms.iter().map(|form| form.refused).sum();
        words.extend([word(calls), word(calls - refused.min(calls))]);
        durations(&mut words, &together(&forms));
    }
    for transfer in [&figures.fetched, &figures.stored] {
        transferred(&mut words, transfer);
    }
    words
}

fn together(forms: &[OperationFigures]) -> DurationFigures {
    let mut all = DurationFigures::default();
    for form in forms.iter().filter(|form| form.calls > form.refused) {
        let one = form.durations;
        let first = all.sum == 0 && all.maximum == 0;
        all.minimum = if first {
            one.minimum
        } else {
            all.minimum.min(one.minimum)
        };
        all.sum += one.sum;
        all.squares = all.squares.saturating_add(one.squares);
        all.maximum = all.maximum.max(one.maximum);
    }
    all
}

/// A `timeval`: seconds and microseconds, 64 bits each, the low word first.
fn time(words: &mut Vec<i32>, micros: u64) {
    let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
    words.extend([seconds as i32, (seconds >> 32) as i32, rest as i32, 0]);
}

fn durations(words: &mut Vec<i32>, figures: &DurationFigures) {
    time(words, figures.sum);
    // Sums of squares have the form of a `timeval` as well, in seconds squared.
    time(words, figures.squares / 1_000_000);
    time(words, figures.minimum);
    time(words, figures.maximum);
}

fn transferred(words: &mut Vec<i32>, figures: &TransferFigures) {
    words.extend([word(figures.transfers), word(figures.succeeded)]);
    durations(words, &figures.durations);
    // The sum is in KiB, the extremes are in bytes.
    words.extend([
        word(figures.bytes >> 10),
        word(figures.smallest),
        word(figures.largest),
    ]);
    words.extend(figures.by_size.map(word));
}

/// Figures of callbacks, in this order:
///
/// * files deleted, promises given up, changes that looked for promises, promises given, times that
///   room was made, hosts that gave up all promises;
/// * files with promises, promises held, capacity;
/// * promises that expired, changes that wait for hosts now.
///
/// The five words about the ways in which room was made are 0.
fn callbacks(figures: &Figures) -> Vec<i32> {
    let callbacks = &figures.callbacks;
    let counts = [
        callbacks.files_deleted,
        callbacks.given_up,
        callbacks.collections,
        callbacks.promised,
        callbacks.room_made,
        callbacks.given_up_whole,
        callbacks.files as u64,
        callbacks.held as u64,
        callbacks.capacity as u64,
        callbacks.timed_out,
        callbacks.breaking,
    ];
    let mut words: Vec<i32> = counts.map(word).into();
    words.resize(CALLBACK_WORDS, 0);
    words
}

#[cfg(test)]
mod tests {
    use super::super::performance::OVERALL_WORDS;
    use super::*;

    #[test]
    fn a_timeval_has_four_words_low_first() {
        let mut words = Vec::new();
        time(&mut words, 3_000_007);
        assert_eq!(words, [3, 0, 7, 0]);
        let mut words = Vec::new();
        transferred(&mut words, &TransferFigures::default());
        assert_eq!(words.len(), 30);
        // The property by which readers recognise the 64-bit layout.
        assert_eq!(OVERALL_WORDS + 4 + TIMED.len() * 18 + 2 * 30, 666);
    }
}
