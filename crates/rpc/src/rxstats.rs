//! RXSTATS: statistics of procedures, on every port.
//!
//! The statistics are those of the port that receives the query. Packages that were never called
//! are left out, as in OpenAFS. Only superusers may read them, unless the runtime opens them to all
//! ([`crate::RuntimeConfig::open_statistics`]), since a query of 36 bytes has an answer of 30,000.
//! Statistics by peer are not kept: the answer is "off", with no records. Switching and clearing
//! always requires a superuser; others get `EPERM`. Source: rx-wire facts 5.1.

use cellar_wire::abort::AbortCode;
use cellar_wire::package::Package;
use cellar_wire::rxstats::{
    self, ClearPeerRPCStats, ClearPeerRPCStatsReply, ClearProcessRPCStats,
    ClearProcessRPCStatsReply, DisablePeerRPCStats, DisablePeerRPCStatsReply,
    DisableProcessRPCStats, DisableProcessRPCStatsReply, EnablePeerRPCStats,
    EnablePeerRPCStatsReply, EnableProcessRPCStats, EnableProcessRPCStatsReply, QueryPeerRPCStats,
    QueryPeerRPCStatsReply, QueryProcessRPCStats, QueryProcessRPCStatsReply, QueryRPCStatsVersion,
    QueryRPCStatsVersionReply, RetrievePeerRPCStats, RetrievePeerRPCStatsReply,
    RetrieveProcessRPCStats, RetrieveProcessRPCStatsReply, RpcStat, RpcStats, StatTime, StatTimes,
};
use cellar_wire::serve::{CallHandler, Handle};

use crate::clock::Clock;
use crate::incoming::IncomingCall;
use crate::port::Port;
use crate::service::{LocalBoxFuture, Service, ServiceOptions};
use crate::statistics::{DurationFigures, PortStatistics, ProcedureFigures};

/// The RXSTATS service of a port.
#[derive(Debug)]
pub(crate) struct RxStats {
    clock: Clock,
    /// Whether anonymous callers may read.
    open: bool,
}

impl RxStats {
    pub(crate) fn new(clock: Clock, open: bool) -> Self {
        Self { clock, open }
    }

    fn check_reader(&self, call: &IncomingCall) -> Result<(), AbortCode> {
        if self.open { Ok(()) } else { superuser(call) }
    }

    /// The time in seconds, and the microseconds of the present second.
    fn time(&self) -> (u32, u32) {
        let unix_micros = self.clock.unix_micros();
        (word(unix_micros / 1_000_000), word(unix_micros % 1_000_000))
    }
}

/// The port that received a call. The local administrator's socket has none.
fn port(call: &IncomingCall) -> Result<&Port, AbortCode> {
    call.port().ok_or(AbortCode::RX_INVALID_OPERATION)
}

impl CallHandler for RxStats {
    type Refusal = AbortCode;

    fn failed(code: AbortCode) -> AbortCode {
        code
    }
}

/// One handler for each procedure: `Procedure(service, call, arguments) => results`.
macro_rules! handlers {
    ($($procedure:ident($service:pat, $call:ident, $arguments:pat) $reply:ident => $body:block)*) => {$(
        impl Handle<$procedure, IncomingCall> for RxStats {
            async fn handle(
                &self,
                $call: &IncomingCall,
                $arguments: $procedure,
            ) -> Result<$reply, AbortCode> {
                let $service = self;
                $body
            }
        }
    )*};
}

handlers! {
    RetrieveProcessRPCStats(this, call, _) RetrieveProcessRPCStatsReply => {
        let port = port(call)?;
        this.check_reader(call)?;
        let (clock_sec, clock_usec) = this.time();
        let stats = RpcStats::new(records(port.statistics()));
        Ok(RetrieveProcessRPCStatsReply {
            server_version: rxstats::VERSION,
            clock_sec,
            clock_usec,
            stat_count: word(stats.records().len() as u64),
            stats,
        })
    }
    RetrievePeerRPCStats(this, call, _) RetrievePeerRPCStatsReply => {
        port(call)?;
        this.check_reader(call)?;
        let (clock_sec, clock_usec) = this.time();
        Ok(RetrievePeerRPCStatsReply {
            server_version: rxstats::VERSION,
            stat_count: 0,
            clock_sec,
            clock_usec,
            stats: RpcStats::default(),
        })
    }
    QueryProcessRPCStats(this, call, _) QueryProcessRPCStatsReply => {
        let port = port(call)?;
        this.check_reader(call)?;
        Ok(QueryProcessRPCStatsReply {
            on: u32::from(port.statistics().is_on()),
        })
    }
    QueryPeerRPCStats(this, call, _) QueryPeerRPCStatsReply => {
        port(call)?;
        this.check_reader(call)?;
        Ok(QueryPeerRPCStatsReply { on: 0 })
    }
    QueryRPCStatsVersion(_, call, _) QueryRPCStatsVersionReply => {
        port(call)?;
        Ok(QueryRPCStatsVersionReply {
            version: rxstats::VERSION,
        })
    }
    EnableProcessRPCStats(_, call, _) EnableProcessRPCStatsReply => {
        let port = port(call)?;
        superuser(call)?;
        port.statistics().set_on(true);
        Ok(EnableProcessRPCStatsReply {})
    }
    DisableProcessRPCStats(_, call, _) DisableProcessRPCStatsReply => {
        let port = port(call)?;
        superuser(call)?;
        port.statistics().set_on(false);
        Ok(DisableProcessRPCStatsReply {})
    }
    EnablePeerRPCStats(_, call, _) EnablePeerRPCStatsReply => {
        port(call)?;
        superuser(call)?;
        // Not supported here: an error is better than an empty answer forever.
        Err(AbortCode::RXGEN_OPCODE)
    }
    DisablePeerRPCStats(_, call, _) DisablePeerRPCStatsReply => {
        port(call)?;
        superuser(call)?;
        Ok(DisablePeerRPCStatsReply {})
    }
    ClearProcessRPCStats(_, call, ClearProcessRPCStats { clear_flag }) ClearProcessRPCStatsReply => {
        let port = port(call)?;
        superuser(call)?;
        port.clear_statistics(clear_flag);
        Ok(ClearProcessRPCStatsReply {})
    }
    ClearPeerRPCStats(_, call, _) ClearPeerRPCStatsReply => {
        port(call)?;
        superuser(call)?;
        Ok(ClearPeerRPCStatsReply {})
    }
}

impl Service for RxStats {
    fn package(&self) -> &'static Package {
        &rxstats::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move { rxstats::serve(self, call.opcode().await?, call).await })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions {
            argument_bytes_max: 64,
            ..ServiceOptions::default()
        }
    }
}

/// EPERM, OpenAFS's answer to a caller that is not a superuser.
const NOT_PERMITTED: AbortCode = AbortCode(1);

fn superuser(call: &IncomingCall) -> Result<(), AbortCode> {
    if call.caller().is_superuser() {
        Ok(())
    } else {
        Err(NOT_PERMITTED)
    }
}

fn records(statistics: &PortStatistics) -> Vec<RpcStat> {
    let figures = statistics.procedures();
    let called = |package: &'static Package| {
        figures
            .iter()
            .any(|f| std::ptr::eq(f.package, package) && f.invocations > 0)
    };
    figures
        .iter()
        .filter(|figures| called(figures.package))
        .map(record)
        .collect()
}

fn record(figures: &ProcedureFigures) -> RpcStat {
    RpcStat {
        peer: u32::MAX,
        port: u32::MAX,
        peer_is_server: 0,
        interface: figures.package.statistics_index,
        function_count: word(figures.package.procedures.len() as u64),
        function: word(figures.index as u64),
        invocations: figures.invocations,
        bytes_sent: figures.bytes_sent,
        bytes_received: figures.bytes_received,
        queue: times(&figures.queued),
        execution: times(&figures.executed),
    }
}

fn times(figures: &DurationFigures) -> StatTimes {
    let time = |micros: u64| StatTime {
        seconds: word(micros / 1_000_000),
        microseconds: word(micros % 1_000_000),
    };
    StatTimes {
        sum: time(figures.sum),
        squares: time(figures.squares / 1_000_000),
        min: figures.minimum.map_or(StatTimes::default().min, time),
        max: time(figures.maximum),
    }
}

fn word(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
