//! RXSTATS: statistics of procedures, on every port.
//!
//! The statistics are those of the port that receives the query. Packages that were never called
//! are left out, as in OpenAFS. Only superusers may read them, unless the runtime opens them to all
//! ([`crate::RuntimeConfig::open_statistics`]), since a query of 36 bytes has an answer of 30,000.
//! Statistics by peer are not kept: the answer is "off", with no records. Switching and clearing
//! always requires a superuser; others get `EPERM`. Source: rx-wire facts 5.1.

use cellar_wire::abort::AbortCode;
use cellar_wire::package::{Package, Procedure};
use cellar_wire::rxstats::{
    self, ClearPeerRPCStats, ClearPeerRPCStatsReply, ClearProcessRPCStats,
    ClearProcessRPCStatsReply, DisablePeerRPCStats, DisablePeerRPCStatsReply,
    DisableProcessRPCStats, DisableProcessRPCStatsReply, EnablePeerRPCStats, EnableProcessRPCStats,
    EnableProcessRPCStatsReply, QueryPeerRPCStats, QueryPeerRPCStatsReply, QueryProcessRPCStats,
    QueryProcessRPCStatsReply, QueryRPCStatsVersion, QueryRPCStatsVersionReply,
    RetrievePeerRPCStats, RetrievePeerRPCStatsReply, RetrieveProcessRPCStats,
    RetrieveProcessRPCStatsReply, RpcStat, RpcStats, StatTime, StatTimes,
};

use crate::clock::Clock;
use crate::incoming::IncomingCall;
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

    fn reader(&self, call: &IncomingCall) -> Result<(), AbortCode> {
        if self.open { Ok(()) } else { superuser(call) }
    }

    async fn answer(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let opcode = call.opcode().await?;
        let Some(port) = call.port().cloned() else {
            return Err(AbortCode::RX_INVALID_OPERATION);
        };
        let statistics = port.statistics();
        let unix_micros = self.clock.unix_micros();
        let clock_sec = word(unix_micros / 1_000_000);
        let clock_usec = word(unix_micros % 1_000_000);
        match opcode {
            RetrieveProcessRPCStats::OPCODE => {
                let RetrieveProcessRPCStats { .. } = call.arguments().await?;
                self.reader(call)?;
                let stats = RpcStats::new(records(statistics));
                call.reply(&RetrieveProcessRPCStatsReply {
                    server_version: rxstats::VERSION,
                    clock_sec,
                    clock_usec,
                    stat_count: word(stats.records().len() as u64),
                    stats,
                });
            }
            RetrievePeerRPCStats::OPCODE => {
                let RetrievePeerRPCStats { .. } = call.arguments().await?;
                self.reader(call)?;
                call.reply(&RetrievePeerRPCStatsReply {
                    server_version: rxstats::VERSION,
                    stat_count: 0,
                    clock_sec,
                    clock_usec,
                    stats: RpcStats::default(),
                });
            }
            QueryProcessRPCStats::OPCODE => {
                self.reader(call)?;
                call.reply(&QueryProcessRPCStatsReply {
                    on: u32::from(statistics.is_on()),
                });
            }
            QueryPeerRPCStats::OPCODE => {
                self.reader(call)?;
                call.reply(&QueryPeerRPCStatsReply { on: 0 });
            }
            QueryRPCStatsVersion::OPCODE => {
                call.reply(&QueryRPCStatsVersionReply {
                    version: rxstats::VERSION,
                });
            }
            EnableProcessRPCStats::OPCODE => {
                superuser(call)?;
                statistics.set_on(true);
                call.reply(&EnableProcessRPCStatsReply {});
            }
            DisableProcessRPCStats::OPCODE => {
                superuser(call)?;
                statistics.set_on(false);
                call.reply(&DisableProcessRPCStatsReply {});
            }
            EnablePeerRPCStats::OPCODE => {
                superuser(call)?;
                // Not supported here: an error is better than an empty answer forever.
                return Err(AbortCode::RXGEN_OPCODE);
            }
            DisablePeerRPCStats::OPCODE => {
                superuser(call)?;
                call.reply(&DisablePeerRPCStatsReply {});
            }
            ClearProcessRPCStats::OPCODE => {
                let ClearProcessRPCStats { clear_flag } = call.arguments().await?;
                superuser(call)?;
                port.clear_statistics(clear_flag);
                call.reply(&ClearProcessRPCStatsReply {});
            }
            ClearPeerRPCStats::OPCODE => {
                let ClearPeerRPCStats { .. } = call.arguments().await?;
                superuser(call)?;
                call.reply(&ClearPeerRPCStatsReply {});
            }
            _ => return Err(AbortCode::RXGEN_OPCODE),
        }
        Ok(())
    }
}

impl Service for RxStats {
    fn package(&self) -> &'static Package {
        &rxstats::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(self.answer(call))
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
