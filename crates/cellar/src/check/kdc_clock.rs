//! The clock of a KDC.
//!
//! A KDC puts its time into each refusal (`KRB-ERROR`, RFC 4120, section 5.9.1). `kinit` does not
//! print that time. So this file sends one request by itself, to the KDC that `kinit` found, for a
//! principal that no realm has. The request has no key and no password, and the KDC logs it as
//! `CLIENT_NOT_FOUND`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use der::asn1::{AnyRef, Application, BitStringRef, GeneralizedTime};
use der::{Encode as _, Reader as _, Sequence, SliceReader, Tag, TagMode, TagNumber};
use tokio::net::UdpSocket;

/// `[APPLICATION 10]`: a request for a first ticket.
const AS_REQ: TagNumber = TagNumber(10);
/// `[APPLICATION 30]`: a refusal.
const KRB_ERROR: TagNumber = TagNumber(30);
/// The version of the protocol.
const VERSION: u32 = 5;
/// The principal that no realm has.
const NO_PRINCIPAL: &str = "cellar-check-of-the-clock";
/// AES-256 with SHA-1 and with SHA-2. Source: RFC 3962 and RFC 8009.
const ENCRYPTION_TYPES: [i32; 2] = [18, 20];
/// The time for one answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Requests, because a datagram may be lost.
const TRIES: usize = 2;
/// The longest refusal, in bytes: the longest UDP datagram of Ethernet.
const BYTES_MAX: usize = 1500;

/// `PrincipalName`.
#[derive(Clone, Debug, Sequence)]
struct PrincipalName<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    name_type: i32,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT")]
    name_string: Vec<AnyRef<'a>>,
}

/// `KDC-REQ-BODY`, with the fields that this request has.
#[derive(Clone, Debug, Sequence)]
struct RequestBody<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    kdc_options: BitStringRef<'a>,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT")]
    cname: PrincipalName<'a>,
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT")]
    realm: AnyRef<'a>,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT")]
    sname: PrincipalName<'a>,
    #[asn1(context_specific = "5", tag_mode = "EXPLICIT")]
    till: GeneralizedTime,
    #[asn1(context_specific = "7", tag_mode = "EXPLICIT")]
    nonce: u32,
    #[asn1(context_specific = "8", tag_mode = "EXPLICIT")]
    etype: Vec<i32>,
}

/// `KDC-REQ`, without data for authentication.
#[derive(Clone, Debug, Sequence)]
struct Request<'a> {
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT")]
    pvno: u32,
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT")]
    msg_type: u32,
    #[asn1(context_specific = "4", tag_mode = "EXPLICIT")]
    req_body: RequestBody<'a>,
}

/// `KRB-ERROR`.
#[derive(Clone, Debug, Sequence)]
struct Refusal<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    pvno: u32,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT")]
    msg_type: u32,
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT", optional = "true")]
    ctime: Option<GeneralizedTime>,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT", optional = "true")]
    cusec: Option<u32>,
    #[asn1(context_specific = "4", tag_mode = "EXPLICIT")]
    stime: GeneralizedTime,
    #[asn1(context_specific = "5", tag_mode = "EXPLICIT")]
    susec: u32,
    #[asn1(context_specific = "6", tag_mode = "EXPLICIT")]
    error_code: i32,
    #[asn1(context_specific = "7", tag_mode = "EXPLICIT", optional = "true")]
    crealm: Option<AnyRef<'a>>,
    #[asn1(context_specific = "8", tag_mode = "EXPLICIT", optional = "true")]
    cname: Option<AnyRef<'a>>,
    #[asn1(context_specific = "9", tag_mode = "EXPLICIT")]
    realm: AnyRef<'a>,
    #[asn1(context_specific = "10", tag_mode = "EXPLICIT")]
    sname: AnyRef<'a>,
    #[asn1(context_specific = "11", tag_mode = "EXPLICIT", optional = "true")]
    e_text: Option<AnyRef<'a>>,
    #[asn1(context_specific = "12", tag_mode = "EXPLICIT", optional = "true")]
    e_data: Option<AnyRef<'a>>,
}

/// The clock of a KDC less that of this machine, in seconds. `None`: the KDC sends no refusal over
/// UDP.
pub(super) async fn offset(kdc: SocketAddr, realm: &str) -> Option<i64> {
    let own: SocketAddr = match kdc {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(own).await.ok()?;
    socket.connect(kdc).await.ok()?;
    let mut answer = [0; BYTES_MAX];
    for _ in 0..TRIES {
        let before = SystemTime::now();
        socket.send(&request(realm, before)?).await.ok()?;
        let received = tokio::time::timeout(ANSWER_TIME, socket.recv(&mut answer)).await;
        let Ok(Ok(length)) = received else { continue };
        let after = SystemTime::now();
        let time = time_in(answer.get(..length)?)?.as_secs();
        let (before, after) = (seconds(before), seconds(after));
        // The KDC read its clock between the two times of this machine.
        return Some(match i64::try_from(time).ok()? {
            time if time < before => time - before,
            time if time > after => time - after,
            _ => 0,
        });
    }
    None
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}

/// A request that each KDC of the realm refuses. A KDC answers a repeated request with its old
/// answer, so the nonce is that of the time.
fn request(realm: &str, now: SystemTime) -> Option<Vec<u8>> {
    let since = now.duration_since(UNIX_EPOCH).ok()?;
    let text = |text: &'static str| AnyRef::new(Tag::GeneralString, text.as_bytes()).ok();
    let realm = AnyRef::new(Tag::GeneralString, realm.as_bytes()).ok()?;
    let body = RequestBody {
        kdc_options: BitStringRef::from_bytes(&[0; 4]).ok()?,
        cname: PrincipalName {
            name_type: 1,
            name_string: vec![text(NO_PRINCIPAL)?],
        },
        realm,
        sname: PrincipalName {
            name_type: 2,
            name_string: vec![text("krbtgt")?, realm],
        },
        till: GeneralizedTime::from_unix_duration(Duration::from_secs(since.as_secs() + 3600))
            .ok()?,
        nonce: since.subsec_nanos(),
        etype: ENCRYPTION_TYPES.to_vec(),
    };
    let request = Request {
        pvno: VERSION,
        msg_type: AS_REQ.value(),
        req_body: body,
    };
    let request = Application {
        tag_number: AS_REQ,
        tag_mode: TagMode::Explicit,
        value: request,
    };
    request.to_der().ok()
}

/// The time of the KDC in a refusal, since 1970.
fn time_in(answer: &[u8]) -> Option<Duration> {
    let mut reader = SliceReader::new(answer).ok()?;
    let refusal: Application<Refusal<'_>> =
        Application::decode_explicit(&mut reader, KRB_ERROR).ok()??;
    reader.finish().ok()?;
    let refusal = refusal.value;
    let is_refusal = refusal.pvno == VERSION && refusal.msg_type == KRB_ERROR.value();
    is_refusal.then(|| refusal.stime.to_unix_duration())
}

#[cfg(test)]
mod tests {
    use super::*;
    use der::Decode as _;

    /// A refusal with this time.
    fn refusal(stime: Duration) -> Vec<u8> {
        let realm = AnyRef::new(Tag::GeneralString, b"TEST.CELL").expect("a realm");
        let name = PrincipalName {
            name_type: 2,
            name_string: vec![realm],
        };
        let name = name.to_der().expect("a name");
        let refusal = Refusal {
            pvno: VERSION,
            msg_type: KRB_ERROR.value(),
            ctime: None,
            cusec: None,
            stime: GeneralizedTime::from_unix_duration(stime).expect("a time"),
            susec: 0,
            error_code: 6,
            crealm: None,
            cname: None,
            realm,
            sname: AnyRef::from_der(&name).expect("a name"),
            e_text: Some(realm),
            e_data: None,
        };
        let refusal = Application {
            tag_number: KRB_ERROR,
            tag_mode: TagMode::Explicit,
            value: refusal,
        };
        refusal.to_der().expect("a refusal")
    }

    #[test]
    fn only_refusals_have_a_time() {
        let time = Duration::from_secs(1_795_257_920);
        let good = refusal(time);
        assert_eq!(time_in(&good), Some(time));
        for end in 0..good.len() {
            assert_eq!(time_in(&good[..end]), None, "{end} bytes");
        }
        let asked = request("TEST.CELL", SystemTime::now()).expect("a request");
        assert_eq!(time_in(&asked), None);
    }

    #[tokio::test]
    async fn the_offset_is_that_of_the_kdc() {
        for wrong in [-7200, 0, 400] {
            let kdc = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
            let address = kdc.local_addr().expect("an address");
            let answers = async {
                let (_, from) = kdc.recv_from(&mut [0; BYTES_MAX]).await.expect("a request");
                let time = u64::try_from(seconds(SystemTime::now()) + wrong).expect("a time");
                let answer = refusal(Duration::from_secs(time));
                kdc.send_to(&answer, from).await.expect("sent");
            };
            let (found, ()) = tokio::join!(offset(address, "TEST.CELL"), answers);
            let found = found.expect("an answer");
            assert!((found - wrong).abs() <= 1, "{found} {wrong}");
        }
    }
}
