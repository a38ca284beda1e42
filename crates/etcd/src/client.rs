//! Calls to the members of an etcd cluster.
//!
//! 1. Each member has one connection, opened when it is first used.
//! 2. Calls go to the current member. A call that fails or is silent makes the next one current.
//! 3. Changed files of certificates replace the connections.
//! 4. A failed call has a [`Fault`]. It says whether the call may have taken effect.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use http::uri::PathAndQuery;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::certificates::{Certificate, Stamps, Tls};
use crate::messages::{
    AlarmRequest, AlarmResponse, MemberListRequest, MemberListResponse, RangeRequest,
    RangeResponse, StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchRequest,
    WatchResponse,
};

/// Bytes of an answer at most. A page of rows has a thousand rows of 1 MiB at worst; etcd itself
/// takes requests of 1.5 MiB unless it is configured otherwise.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// The time to connect to a member.
const CONNECT: Duration = Duration::from_secs(1);
/// Pings of an idle connection. etcd closes connections with pings every five seconds or less.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(3);
/// The longest wait for one member in a call that may go to another.
pub(crate) const ONE_MEMBER: Duration = Duration::from_millis(800);
/// The silence of a member after which another one gets the same transaction.
pub(crate) const NEXT_MEMBER: Duration = Duration::from_millis(300);
/// Pause between two rounds over all members.
const PAUSE: Duration = Duration::from_millis(50);

/// The reason why a call has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The call may have taken effect, or may still do so.
    Unknown(String),
    /// The cluster refused it: it has no effect.
    Refused(String),
    /// The cluster has no space. The call that fills it may have taken effect.
    NoSpace,
    /// A limit of the cluster: it has no effect.
    TooLarge(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(reason) | Self::Refused(reason) | Self::TooLarge(reason) => {
                f.write_str(reason)
            }
            Self::NoSpace => f.write_str(
                "etcd has no space (alarm NOSPACE): compact it, defragment each member, disarm the alarm",
            ),
        }
    }
}

impl Fault {
    fn of(status: &Status) -> Self {
        let reason = status.message();
        match status.code() {
            Code::ResourceExhausted if reason.contains("space exceeded") => Self::NoSpace,
            Code::InvalidArgument | Code::ResourceExhausted
                if reason.contains("too many operations") || reason.contains("too large") =>
            {
                Self::TooLarge(reason.to_owned())
            }
            Code::DataLoss => Self::Refused(format!(
                "{reason} (alarm CORRUPT): replace the damaged member, then disarm the alarm"
            )),
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition => Self::Refused(reason.to_owned()),
            _ => Self::Unknown(match std::error::Error::source(status) {
                Some(cause) => innermost(cause),
                None => reason.to_owned(),
            }),
        }
    }
}

/// The cause of a failed connection, for instance "Connection refused".
fn innermost(mut cause: &(dyn std::error::Error + 'static)) -> String {
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

struct Place {
    url: String,
    /// Replaced when the certificates change.
    channel: RwLock<Channel>,
}

impl Place {
    fn channel(&self) -> Channel {
        self.channel.read().clone()
    }
}

/// The members of a cluster.
pub(crate) struct Client {
    places: Vec<Place>,
    current: AtomicUsize,
    tls: Tls,
    /// The files of certificates as they were last read.
    read: Mutex<Stamps>,
}

/// A connection to a member, opened when it is first used.
fn channel(url: &str, tls: Option<&ClientTlsConfig>) -> Result<Channel, String> {
    let wrong = |cause: &dyn std::fmt::Display| format!("etcd at {url}: {cause}");
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(wrong(
            &"the address does not begin with http:// or https://",
        ));
    }
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|cause| wrong(&cause))?;
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PONG);
    let endpoint = match tls.filter(|_| url.starts_with("https://")) {
        Some(tls) => endpoint
            .tls_config(tls.clone())
            .map_err(|cause| wrong(&innermost(&cause)))?,
        None => endpoint,
    };
    Ok(endpoint.connect_lazy())
}

impl Client {
    /// Prepares connections. Needs a runtime. Fails with a sentence about addresses or
    /// certificates.
    pub(crate) fn new(urls: &[String], tls: &Tls) -> Result<Self, String> {
        if urls.is_empty() {
            return Err("no address of etcd is given".to_owned());
        }
        let has_tls = urls.iter().any(|url| url.starts_with("https://"));
        let read = tls.stamps();
        let config = has_tls.then(|| tls.config()).transpose()?;
        let places = urls.iter().map(|url| {
            Ok(Place {
                url: url.clone(),
                channel: RwLock::new(channel(url, config.as_ref())?),
            })
        });
        Ok(Self {
            places: places.collect::<Result<_, String>>()?,
            current: AtomicUsize::new(0),
            tls: if has_tls { tls.clone() } else { Tls::default() },
            read: Mutex::new(read),
        })
    }

    /// Opens new connections if the files of certificates have changed. Needs a runtime.
    pub(crate) fn renew(&self) {
        let stamps = self.tls.stamps();
        if self.tls == Tls::default() || *self.read.lock() == stamps {
            return;
        }
        let made = self.tls.config().and_then(|config| {
            let channels = self.urls().map(|url| channel(url, Some(&config)));
            channels.collect::<Result<Vec<_>, _>>()
        });
        match made {
            Ok(channels) => {
                for (place, channel) in self.places.iter().zip(channels) {
                    *place.channel.write() = channel;
                }
                tracing::info!("the certificates for etcd were read again");
            }
            // A certificate and its key are replaced one after the other.
            Err(reason) => tracing::warn!(reason, "the certificates for etcd cannot be read"),
        }
        *self.read.lock() = stamps;
    }

    /// The files with certificates that are in use.
    #[allow(
        clippy::disallowed_methods,
        reason = "a certificate ends at a time of day"
    )]
    pub(crate) fn certificates(&self) -> Vec<Certificate> {
        self.tls.certificates(SystemTime::now())
    }

    /// The addresses of the members.
    pub(crate) fn urls(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| place.url.as_str())
    }

    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Makes another member current if `failed` still is.
    pub(crate) fn leave(&self, failed: usize) {
        let next = (failed + 1) % self.places.len();
        let _ = self
            .current
            .compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn once<Q, R>(
        &self,
        at: usize,
        path: &'static str,
        request: Q,
        patience: Duration,
    ) -> Result<R, Fault>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let place = self
            .places
            .get(at)
            .ok_or_else(|| Fault::Refused("there is no such member".to_owned()))?;
        let mut grpc = Grpc::new(place.channel())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
            .max_encoding_message_size(ANSWER_BYTES_MAX);
        let call = async {
            grpc.ready().await.map_err(|cause| innermost(&cause))?;
            let path = PathAndQuery::from_static(path);
            let codec = ProstCodec::<Q, R>::default();
            Ok::<_, String>(grpc.unary(Request::new(request), path, codec).await)
        };
        match timeout(patience, call).await {
            Ok(Ok(Ok(response))) => Ok(response.into_inner()),
            Ok(Ok(Err(status))) => match Fault::of(&status) {
                Fault::Unknown(reason) => Err(Fault::Unknown(format!("{}: {reason}", place.url))),
                fault => Err(fault),
            },
            Ok(Err(reason)) => Err(Fault::Unknown(format!("{}: {reason}", place.url))),
            Err(_) => Err(Fault::Unknown(format!("{}: no answer", place.url))),
        }
    }

    /// Makes a call that may be made twice, at one member after the other.
    async fn anywhere<Q, R>(
        &self,
        path: &'static str,
        request: &Q,
        patience: Duration,
        one_member: Duration,
    ) -> Result<R, Fault>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let end = Instant::now() + patience;
        loop {
            let at = self.current();
            let left = end.saturating_duration_since(Instant::now());
            let fault = match self
                .once(at, path, request.clone(), left.min(one_member))
                .await
            {
                Err(fault @ Fault::Unknown(_)) => fault,
                answer => return answer,
            };
            self.leave(at);
            if Instant::now() + PAUSE >= end {
                return Err(fault);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads rows.
    pub(crate) async fn range(
        &self,
        request: &RangeRequest,
        patience: Duration,
    ) -> Result<RangeResponse, Fault> {
        self.slow_range(request, patience, ONE_MEMBER).await
    }

    /// Reads rows, and gives each member so much time.
    pub(crate) async fn slow_range(
        &self,
        request: &RangeRequest,
        patience: Duration,
        one_member: Duration,
    ) -> Result<RangeResponse, Fault> {
        self.anywhere("/etcdserverpb.KV/Range", request, patience, one_member)
            .await
    }

    /// Sends a transaction that can be made only once. Another member gets it too if the first one
    /// fails or is silent for [`NEXT_MEMBER`]. The flag says whether a copy may still be under way.
    pub(crate) async fn txn_at_two(
        &self,
        request: TxnRequest,
        patience: Duration,
    ) -> (Result<TxnResponse, Fault>, bool) {
        let path = "/etcdserverpb.KV/Txn";
        let at = self.current();
        let first = self.once(at, path, request.clone(), patience);
        tokio::pin!(first);
        let failed = match timeout(NEXT_MEMBER.min(patience), &mut first).await {
            Ok(Err(fault @ Fault::Unknown(_))) => Some(fault),
            Ok(answer) => return (answer, false),
            Err(_) => None,
        };
        self.leave(at);
        let next = self.current();
        if next == at {
            return match failed {
                Some(fault) => (Err(fault), false),
                None => (first.await, false),
            };
        }
        let second = self.once(next, path, request, patience.saturating_sub(NEXT_MEMBER));
        if failed.is_some() {
            return (second.await, true);
        }
        tokio::pin!(second);
        tokio::select! {
            answer = &mut first => match answer {
                Err(Fault::Unknown(_)) => (second.await, true),
                answer => (answer, true),
            },
            answer = &mut second => match answer {
                Err(Fault::Unknown(_)) => (first.await, true),
                answer => (answer, true),
            },
        }
    }

    /// Sends a transaction that has the same effect if it arrives twice.
    pub(crate) async fn txn(
        &self,
        request: &TxnRequest,
        patience: Duration,
    ) -> Result<TxnResponse, Fault> {
        self.eager_txn(request, patience, ONE_MEMBER).await
    }

    /// The same, with a limit for the wait for each member.
    pub(crate) async fn eager_txn(
        &self,
        request: &TxnRequest,
        patience: Duration,
        one_member: Duration,
    ) -> Result<TxnResponse, Fault> {
        self.anywhere("/etcdserverpb.KV/Txn", request, patience, one_member)
            .await
    }

    /// The alarms of the cluster.
    pub(crate) async fn alarms(&self, patience: Duration) -> Result<AlarmResponse, Fault> {
        self.anywhere(
            "/etcdserverpb.Maintenance/Alarm",
            &AlarmRequest {},
            patience,
            ONE_MEMBER,
        )
        .await
    }

    /// The members of the cluster.
    pub(crate) async fn members(&self, patience: Duration) -> Result<MemberListResponse, Fault> {
        self.anywhere(
            "/etcdserverpb.Cluster/MemberList",
            &MemberListRequest {},
            patience,
            ONE_MEMBER,
        )
        .await
    }

    /// The state of one member.
    pub(crate) async fn status(
        &self,
        at: usize,
        patience: Duration,
    ) -> Result<StatusResponse, Fault> {
        self.once(
            at,
            "/etcdserverpb.Maintenance/Status",
            StatusRequest {},
            patience,
        )
        .await
    }

    /// Opens a stream of watches at the current member. The member ends it when it loses the
    /// cluster's leader.
    pub(crate) async fn watch(
        &self,
        requests: tokio::sync::mpsc::Receiver<WatchRequest>,
        patience: Duration,
    ) -> Result<Streaming<WatchResponse>, Fault> {
        let at = self.current();
        let place = self
            .places
            .get(at)
            .ok_or_else(|| Fault::Refused("there is no such member".to_owned()))?;
        let mut grpc = Grpc::new(place.channel()).max_decoding_message_size(ANSWER_BYTES_MAX);
        let mut request = Request::new(ReceiverStream::new(requests));
        request.metadata_mut().insert(
            "hasleader",
            tonic::metadata::MetadataValue::from_static("true"),
        );
        let call = async {
            grpc.ready()
                .await
                .map_err(|cause| Status::unavailable(innermost(&cause)))?;
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            grpc.streaming(request, path, codec).await
        };
        match timeout(patience, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Fault::of(&status)),
            Err(_) => Err(Fault::Unknown(format!("{}: no answer", place.url))),
        }
    }
}
