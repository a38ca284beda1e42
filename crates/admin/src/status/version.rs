//! The version of a server: the VERSION packet of Rx, which `rxdebug -version` sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use cellar_rx::packet::{Flags, HEADER_SIZE, Header, PacketType, version_header};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

/// The length of the question's payload. OpenAFS's `rxdebug` sends as many bytes.
const PAYLOAD_BYTES: usize = 66;
/// The time after which the question is sent again.
const REPEAT: Duration = Duration::from_millis(500);
/// The longest accepted answer.
const ANSWER_BYTES_MAX: usize = 512;

/// The version that the server at an address reports. `None` if it does not answer within `limit`.
pub async fn version_of(peer: SocketAddr, limit: Duration) -> Option<String> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    socket.connect(peer).await.ok()?;
    let question = question(rand::random());
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        socket.send(&question).await.ok()?;
        let mut answer = [0; ANSWER_BYTES_MAX];
        match timeout(left.min(REPEAT), socket.recv(&mut answer)).await {
            Ok(Ok(length)) => {
                if let Some(version) = parse(&question, answer.get(..length)?) {
                    return Some(version);
                }
            }
            // Nothing listens on the port.
            Ok(Err(_)) => return None,
            Err(_) => {}
        }
    }
}

fn question(epoch: u32) -> Vec<u8> {
    let flags = Flags(Flags::CLIENT_INITIATED | Flags::LAST_PACKET);
    let header = Header {
        serial: 1,
        ..version_header(epoch, flags)
    };
    let mut question = header.encode().to_vec();
    question.resize(HEADER_SIZE + PAYLOAD_BYTES, 0);
    question
}

/// The text of an answer to `question`, without control characters.
fn parse(question: &[u8], answer: &[u8]) -> Option<String> {
    let (asked, header) = (Header::decode(question)?, Header::decode(answer)?);
    if header.packet_type != PacketType::VERSION
        || header.from_client()
        || header.epoch != asked.epoch
    {
        return None;
    }
    let text = answer.get(HEADER_SIZE..)?;
    let text = text.split(|byte| *byte == 0).next()?;
    let text = String::from_utf8_lossy(text);
    Some(text.trim().chars().filter(|c| !c.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_to_the_question_counts() {
        let question = question(7);
        let answer = |epoch, flags| {
            let asked = Header::decode(&question).expect("a header");
            let header = Header {
                epoch,
                flags: Flags(flags),
                ..asked
            };
            let mut answer = header.encode().to_vec();
            answer.extend_from_slice(b" OpenAFS 1.8.9\0\0\0");
            answer
        };
        let expected = Some("OpenAFS 1.8.9".to_owned());
        assert_eq!(parse(&question, &answer(7, 0)), expected);
        assert_eq!(parse(&question, &answer(8, 0)), None);
        assert_eq!(parse(&question, &answer(7, Flags::CLIENT_INITIATED)), None);
        assert_eq!(parse(&question, &answer(7, 0)[..20]), None);
    }
}
