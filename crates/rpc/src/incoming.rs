//! Incoming call, as its handler sees it.
//!
//! 1. Request bytes come from the transport in chunks of any size. Arguments are decoded from the
//!    received bytes. `Truncated` means "wait for more", until the end of the request or the
//!    service's limit makes it an error. The rest of the last chunk after the arguments is the
//!    beginning of the stream.
//! 2. Results are collected in a buffer, which the transport gets when the handler returns or
//!    streams. A small call thus costs one write.
//! 3. A handler that waits for its peer occupies no thread and no place among the running calls.
//!    The wait is marked, so that admission control counts only calls that use this machine.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use cellar_rx::Caller;
use cellar_wire::abort::AbortCode;
use cellar_wire::serve::ServerCall;
use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder};

use crate::driver::RxCall;
use crate::local::LocalCall;
use crate::outgoing::join;
use crate::port::Port;

/// Origin of a call.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The caller's address. For the local administrator's socket: unspecified, port 0.
    pub address: SocketAddr,
    /// Our address that was called, if the system reports it.
    pub local: Option<IpAddr>,
    /// Epoch of the caller's connection: one for each start of a client process.
    pub epoch: u32,
    /// Id of the caller's connection, channel bits 0.
    pub cid: u32,
    /// Id of the called service.
    pub service_id: u16,
    /// Security index of the connection: 0 none, 2 rxkad.
    pub security_index: u8,
}

/// Server end of a call in progress.
pub struct IncomingCall {
    transport: Transport,
    peer: Peer,
    caller: Caller,
    opcode: Option<u32>,
    /// Received and not yet consumed.
    received: Bytes,
    /// Whether the end of the request was seen.
    ended: bool,
    /// Encoded and not yet given to the transport.
    reply: BytesMut,
    argument_bytes_max: usize,
    bytes_received: u64,
    bytes_sent: u64,
}

/// Transport of a call.
pub(crate) enum Transport {
    Rx(RxCall),
    Local(LocalCall),
}

impl IncomingCall {
    pub(crate) fn new(
        transport: Transport,
        peer: Peer,
        caller: Caller,
        argument_bytes_max: usize,
    ) -> Self {
        Self {
            transport,
            peer,
            caller,
            opcode: None,
            received: Bytes::new(),
            ended: false,
            reply: BytesMut::new(),
            argument_bytes_max,
            bytes_received: 0,
            bytes_sent: 0,
        }
    }

    /// Origin of the call.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Address of the caller; `None` on the local administrator's socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.port().map(|_| self.peer.address)
    }

    /// Identity of the caller.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Port that received the call, from which the caller can be called back; `None` on the local
    /// socket.
    #[must_use]
    pub fn port(&self) -> Option<&Port> {
        match &self.transport {
            Transport::Rx(call) => Some(call.port()),
            Transport::Local(_) => None,
        }
    }

    /// Returns the first word of the request, which names the procedure. May be called again.
    ///
    /// # Errors
    /// `RXGEN_DECODE` if the request ends before it; the call's own code if it failed.
    pub async fn opcode(&mut self) -> Result<u32, AbortCode> {
        if let Some(opcode) = self.opcode {
            return Ok(opcode);
        }
        let opcode: u32 = self.decode().await.map_err(|code| {
            if code == AbortCode::RXGEN_SS_UNMARSHAL {
                AbortCode::RXGEN_DECODE
            } else {
                code
            }
        })?;
        self.opcode = Some(opcode);
        Ok(opcode)
    }

    /// Decodes the arguments. Skips the opcode if it was not read.
    ///
    /// # Errors
    /// `RXGEN_SS_UNMARSHAL` if they do not parse, are cut short or exceed the service's limit; the
    /// call's own code if it failed.
    pub async fn arguments<A: Decode>(&mut self) -> Result<A, AbortCode> {
        self.opcode().await?;
        self.decode().await
    }

    /// Decodes one value from the next bytes of the request; for requests that are not one XDR
    /// structure.
    ///
    /// # Errors
    /// As [`Self::arguments`].
    pub async fn decode<T: Decode>(&mut self) -> Result<T, AbortCode> {
        // Most arguments are complete in the first packet, and then nothing is copied.
        let mut retry_at = 0;
        loop {
            if self.received.len() >= retry_at {
                let mut decoder = Decoder::new(&self.received);
                match T::decode(&mut decoder) {
                    Ok(value) => {
                        let used = decoder.consumed();
                        self.received.advance(used);
                        return Ok(value);
                    }
                    Err(DecodeError::Truncated) if !self.ended => {
                        // Wait for twice as much before the next try, so that decoding stays linear
                        // in total.
                        retry_at = self.received.len() * 2;
                    }
                    Err(_) => return Err(AbortCode::RXGEN_SS_UNMARSHAL),
                }
            }
            if self.received.len() > self.argument_bytes_max {
                return Err(AbortCode::RXGEN_SS_UNMARSHAL);
            }
            match self.next_chunk().await? {
                Some(chunk) if self.received.is_empty() => self.received = chunk,
                Some(chunk) => self.received = join(std::mem::take(&mut self.received), &chunk),
                None => {
                    self.ended = true;
                    retry_at = 0;
                }
            }
        }
    }

    /// Returns the next bytes of the stream after the arguments, as they arrive; `None` at its end.
    /// Reading opens the client's window: a handler that does not read stops the client.
    ///
    /// # Errors
    /// The call's own code if it failed (client gone, aborted).
    pub async fn read_chunk(&mut self) -> Result<Option<Bytes>, AbortCode> {
        if !self.received.is_empty() {
            return Ok(Some(std::mem::take(&mut self.received)));
        }
        if self.ended {
            return Ok(None);
        }
        let chunk = self.next_chunk().await?;
        self.ended = chunk.is_none();
        Ok(chunk)
    }

    /// Reads exactly `len` bytes of the stream, and calls `sink` with each piece as it arrives.
    ///
    /// # Errors
    /// `RXGEN_SS_UNMARSHAL` if the request ends early; otherwise as [`Self::read_chunk`].
    pub async fn read_exact(
        &mut self,
        mut len: u64,
        mut sink: impl FnMut(Bytes),
    ) -> Result<(), AbortCode> {
        while len > 0 {
            let Some(mut chunk) = self.read_chunk().await? else {
                return Err(AbortCode::RXGEN_SS_UNMARSHAL);
            };
            if chunk.len() as u64 > len {
                self.received = chunk.split_off(usize::try_from(len).unwrap_or(chunk.len()));
            }
            len -= chunk.len() as u64;
            sink(chunk);
        }
        Ok(())
    }

    /// Reads at least `wanted` bytes of the stream, in pieces as they arrive, but at most `left`.
    /// `left` is the number of announced bytes that have not been read; it is reduced by the bytes
    /// read.
    ///
    /// # Errors
    /// `RX_CALL_DEAD` if the request ends early, for instance because its client is gone; otherwise
    /// as [`Self::read_chunk`].
    pub async fn gather(&mut self, left: &mut u64, wanted: u64) -> Result<Vec<Bytes>, AbortCode> {
        let (mut pieces, mut gathered) = (Vec::new(), 0);
        while *left > 0 && gathered < wanted {
            let chunk = self.read_chunk().await?;
            let mut chunk = chunk.ok_or(AbortCode::RX_CALL_DEAD)?;
            if chunk.len() as u64 > *left {
                self.received = chunk.split_off(usize::try_from(*left).unwrap_or(chunk.len()));
            }
            *left -= chunk.len() as u64;
            gathered += chunk.len() as u64;
            if !chunk.is_empty() {
                pieces.push(chunk);
            }
        }
        Ok(pieces)
    }

    /// Appends `results` to the reply. They are sent when the handler returns, or before the next
    /// [`Self::write`].
    pub fn reply<R: Encode + ?Sized>(&mut self, results: &R) {
        results.encode(&mut Encoder::new(&mut self.reply));
    }

    /// Appends raw bytes to the reply, to be sent together with the results. For small data, which
    /// then needs no packet of its own; larger data uses [`Self::write`].
    pub fn append(&mut self, bytes: &[u8]) {
        self.reply.extend_from_slice(bytes);
    }

    /// Streams `bytes` to the client, after the data of [`Self::reply`]. Waits until the client has
    /// room: a slow client stops only its own call.
    ///
    /// # Errors
    /// The call's own code if it failed (client gone, aborted).
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), AbortCode> {
        self.flush().await?;
        self.send(bytes).await
    }

    /// Returns the data that a service attached to the caller's connection; `None` if there is
    /// none, or it has another type. All services of a connection share one slot.
    #[must_use]
    pub fn connection_data<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        match &self.transport {
            Transport::Rx(call) => call.connection_data()?.downcast().ok(),
            Transport::Local(_) => None,
        }
    }

    /// Attaches `data` to the caller's connection until the connection is dropped (idle for
    /// minutes). On the local socket nothing is kept.
    pub fn set_connection_data<T: Send + Sync + 'static>(&self, data: Arc<T>) {
        if let Transport::Rx(call) = &self.transport {
            call.set_connection_data(data);
        }
    }

    /// The opcode if it was read; for statistics.
    pub(crate) fn known_opcode(&self) -> Option<u32> {
        self.opcode
    }

    /// Bytes of the request read, and of the reply written, so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.bytes_received, self.bytes_sent)
    }

    /// Returns the transport for the next call on the same stream.
    pub(crate) fn into_transport(self) -> Transport {
        self.transport
    }

    /// Sends the rest of the reply and ends it. Called by the dispatcher after the handler.
    pub(crate) async fn complete(&mut self, outcome: Result<(), AbortCode>) -> Option<AbortCode> {
        let code = match outcome {
            Ok(()) => match self.finish().await {
                Ok(()) => return None,
                Err(code) => code,
            },
            Err(AbortCode(0)) => AbortCode::RX_USER_ABORT,
            Err(code) => code,
        };
        match &mut self.transport {
            Transport::Rx(call) => call.abort(code),
            Transport::Local(call) => call.abort(code).await,
        }
        Some(code)
    }

    async fn finish(&mut self) -> Result<(), AbortCode> {
        let last = self.reply.split().freeze();
        self.bytes_sent += last.len() as u64;
        match &mut self.transport {
            Transport::Rx(call) => {
                let mut unsent = last;
                std::future::poll_fn(|cx| call.poll_write(cx, &mut unsent)).await?;
                call.finish();
                Ok(())
            }
            Transport::Local(call) => call.finish(last).await,
        }
    }

    async fn flush(&mut self) -> Result<(), AbortCode> {
        if self.reply.is_empty() {
            return Ok(());
        }
        let gathered = self.reply.split().freeze();
        self.send(gathered).await
    }

    async fn send(&mut self, bytes: Bytes) -> Result<(), AbortCode> {
        self.bytes_sent += bytes.len() as u64;
        match &mut self.transport {
            Transport::Rx(call) => {
                let mut unsent = bytes;
                std::future::poll_fn(|cx| call.poll_write(cx, &mut unsent)).await
            }
            Transport::Local(call) => call.write(bytes).await,
        }
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, AbortCode> {
        let chunk = match &mut self.transport {
            Transport::Rx(call) => {
                std::future::poll_fn(|cx: &mut Context<'_>| -> Poll<_> { call.poll_read(cx) })
                    .await?
            }
            Transport::Local(call) => call.read().await?,
        };
        if let Some(chunk) = &chunk {
            self.bytes_received += chunk.len() as u64;
        }
        Ok(chunk)
    }
}

impl ServerCall for IncomingCall {
    async fn arguments<A: Decode>(&mut self) -> Result<A, AbortCode> {
        Self::arguments(self).await
    }

    fn reply<R: Encode>(&mut self, results: &R) {
        Self::reply(self, results);
    }
}

impl fmt::Debug for IncomingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingCall")
            .field("peer", &self.peer)
            .field("opcode", &self.opcode)
            .finish_non_exhaustive()
    }
}
