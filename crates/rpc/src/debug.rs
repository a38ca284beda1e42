//! Answers to `rxdebug` for all shards of a port.
//!
//! DEBUG and VERSION packets have cid 0, so they arrive at the port's first shard. Counters are
//! summed over the shards; lists go through the shards in order. Other shards are queried through
//! their command queues. Any sender may ask, and walking a list costs the server more than the
//! sender. Answers are therefore limited to a few thousand per second; further queries are dropped,
//! like lost packets.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use cellar_rx::Statistics;
use cellar_rx::packet::{
    BasicStatistics, DebugQuery, DebugQuestion, bad_debug_type, end_of_connections, end_of_peers,
    version_answer,
};
use tokio::sync::oneshot;

use crate::driver::Driver;
use crate::limits::DEBUG_ANSWERS_PER_SECOND;
use crate::port::PortInner;
use crate::shard::{self, ShardHandle};
use crate::socket::SocketFigures;

/// Answers one query, in a task if other shards must be queried.
pub(crate) fn answer(
    driver: Rc<Driver>,
    from: SocketAddr,
    local: Option<IpAddr>,
    query: DebugQuery,
) {
    if !driver.debug_budget().take(driver.seconds()) {
        return;
    }
    let port = driver.port_inner();
    if port.shards.len() == 1 || !concerns_all(query.question) {
        let payload = match ask_here(&driver, &port, query.question, 0) {
            ShardAnswer::Answer(payload) | ShardAnswer::End { payload, .. } => payload,
        };
        driver.answer_debug(from, local, &query, payload);
        return;
    }
    shard::spawn(async move {
        if let Some(payload) = ask_all(&port, query.question).await {
            driver.answer_debug(from, local, &query, payload);
        }
    });
}

/// Answer of one shard.
enum ShardAnswer {
    /// The answer, or this shard's part of a sum.
    Answer(Vec<u8>),
    /// The list of this shard has only `count` entries; `payload` ends the whole list.
    End { count: u32, payload: Vec<u8> },
}

fn concerns_all(question: DebugQuestion) -> bool {
    !matches!(question, DebugQuestion::Version | DebugQuestion::Unknown)
}

/// Queries one shard, on its thread. `skipped` list entries belong to earlier shards.
fn ask_here(
    driver: &Driver,
    port: &PortInner,
    question: DebugQuestion,
    skipped: u32,
) -> ShardAnswer {
    let list =
        |index: u32, count: usize, record: &dyn Fn(usize) -> Option<Vec<u8>>, end: Vec<u8>| {
            let index = index.saturating_sub(skipped) as usize;
            match record(index).filter(|_| index < count) {
                Some(payload) => ShardAnswer::Answer(payload),
                None => ShardAnswer::End {
                    count: u32::try_from(count).unwrap_or(u32::MAX),
                    payload: end,
                },
            }
        };
    driver.with_endpoint(|endpoint| match question {
        DebugQuestion::Version => ShardAnswer::Answer(version_answer(driver.version())),
        DebugQuestion::Unknown => ShardAnswer::Answer(bad_debug_type()),
        DebugQuestion::Basic => ShardAnswer::Answer(basic(driver, port).encode()),
        DebugQuestion::Statistics => ShardAnswer::Answer(endpoint.statistics().encode()),
        DebugQuestion::Connection(index) | DebugQuestion::AnyConnection(index) => {
            let interesting = matches!(question, DebugQuestion::Connection(_));
            let count = endpoint.debug_connection_count(interesting);
            let record = |n| {
                endpoint
                    .debug_connection(n, interesting)
                    .map(|r| r.encode())
            };
            list(index, count, &record, end_of_connections())
        }
        DebugQuestion::Peer(index) => {
            let count = endpoint.debug_peer_count();
            list(
                index,
                count,
                &|n| endpoint.debug_peer(n).map(|r| r.encode()),
                end_of_peers(),
            )
        }
    })
}

/// GETSTATS: the protocol core's state, with the numbers of calls from admission control.
fn basic(driver: &Driver, port: &PortInner) -> BasicStatistics {
    let figures = port.statistics.port();
    let mut basic = driver.endpoint_basic();
    let word = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    basic.waiting = word(figures.calls_waiting);
    basic.idle_threads = word(driver.running_max().saturating_sub(figures.calls_running));
    basic.sockets = u8::try_from(port.addresses.len() * port.shards.len()).unwrap_or(u8::MAX);
    basic
}

/// Queries all shards in turn; `None` if the port is being closed.
async fn ask_all(port: &Arc<PortInner>, question: DebugQuestion) -> Option<Vec<u8>> {
    match question {
        DebugQuestion::Statistics => transport_statistics(port).await.map(|sum| sum.encode()),
        DebugQuestion::Basic => {
            let mut sum: Option<BasicStatistics> = None;
            for shard in &port.shards {
                let inner = port.clone();
                let share = on_shard(port, shard, move |driver| basic(driver, &inner)).await?;
                sum = Some(match sum {
                    None => share,
                    Some(sum) => BasicStatistics {
                        free_packets: sum.free_packets.saturating_add(share.free_packets),
                        reclaims: sum.reclaims.wrapping_add(share.reclaims),
                        calls: sum.calls.wrapping_add(share.calls),
                        waited: sum.waited.wrapping_add(share.waited),
                        packets: sum.packets.saturating_add(share.packets),
                        ..sum
                    },
                });
            }
            sum.map(|sum| sum.encode())
        }
        _ => {
            let mut skipped = 0u32;
            let mut end = None;
            for shard in &port.shards {
                let inner = port.clone();
                let ask = move |driver: &Driver| ask_here(driver, &inner, question, skipped);
                match on_shard(port, shard, ask).await? {
                    ShardAnswer::Answer(payload) => return Some(payload),
                    ShardAnswer::End { count, payload } => {
                        skipped = skipped.saturating_add(count);
                        end = Some(payload);
                    }
                }
            }
            end
        }
    }
}

/// Protocol counters, summed over all shards; `None` if the port is being closed.
pub(crate) async fn transport_statistics(port: &Arc<PortInner>) -> Option<Statistics> {
    let mut sum = Statistics::default();
    for shard in &port.shards {
        sum.merge(&on_shard(port, shard, Driver::endpoint_statistics).await?);
    }
    Some(sum)
}

/// Figures of the port's sockets together; `None` if the port is being closed.
pub(crate) async fn socket_figures(port: &Arc<PortInner>) -> Option<SocketFigures> {
    let mut sum = SocketFigures::default();
    for shard in &port.shards {
        sum.add(&on_shard(port, shard, Driver::socket_figures).await?);
    }
    Some(sum)
}

/// Runs `ask` on a shard's thread with the port's driver there.
pub(crate) async fn on_shard<R: Send + 'static>(
    port: &Arc<PortInner>,
    shard: &Arc<ShardHandle>,
    ask: impl FnOnce(&Driver) -> R + Send + 'static,
) -> Option<R> {
    let (sender, receiver) = oneshot::channel();
    let id = port.id;
    shard.submit(Box::new(move |shard| {
        if let Some(driver) = shard.driver(id) {
            // If the asker is gone, the answer is dropped.
            let _gone = sender.send(ask(&driver));
        }
    }));
    receiver.await.ok()
}

/// Answers sent in the current second.
#[derive(Debug, Default)]
pub(crate) struct DebugBudget {
    second: Cell<u64>,
    used: Cell<u32>,
}

impl DebugBudget {
    fn take(&self, second: u64) -> bool {
        if self.second.replace(second) != second {
            self.used.set(0);
        }
        let used = self.used.get();
        self.used.set(used.saturating_add(1));
        used < DEBUG_ANSWERS_PER_SECOND
    }
}
