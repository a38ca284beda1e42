//! One object that is being written: the calls that carry its bytes.
//!
//! Bytes arrive in ascending order. They go into a `Write` call of known length; when it is full,
//! the next one is opened. The answer to the first (all is durable) is awaited later: at the latest
//! when [`super::WriteOptions::calls_ahead`] calls are unanswered. A failure ends the lane: nothing
//! more is sent.
//!
//! The pieces of all other objects come between two pieces of one object, which may take minutes.
//! An idle call is therefore no failure while this process does not wait for the device.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::{CallError, Connection, OutgoingCall};
use cellar_wire::object::{Capability, ObjectId};
use cellar_wire::osd::{Truncate, Write, WriteReply};
use tokio::time::timeout;

use super::WriteOptions;
use crate::devices::Devices;

/// An object that a store touches.
pub(crate) struct Lane {
    connection: Connection,
    capability: Capability,
    object: ObjectId,
    base: u64,
    version: u64,
    options: WriteOptions,
    /// Idle time of the device after which a call fails.
    idle_time: Duration,
    /// The call that accepts bytes, and the number that it still accepts.
    call: Option<(OutgoingCall, u64)>,
    unanswered: VecDeque<OutgoingCall>,
    cut: Option<u64>,
    /// Position of the next byte; below, the end of the current run.
    position: u64,
    end: u64,
}

impl Lane {
    /// Creates a lane; `None`: the device is not listed.
    pub(crate) fn new(
        devices: &Devices,
        osd: u32,
        capability: Capability,
        object: ObjectId,
        (base, version): (u64, u64),
        options: WriteOptions,
    ) -> Option<Self> {
        Some(Self {
            connection: devices.connection_for_work(osd)?,
            idle_time: devices.idle_time(),
            capability,
            object,
            base,
            version,
            options,
            call: None,
            unanswered: VecDeque::new(),
            cut: None,
            position: 0,
            end: 0,
        })
    }

    /// Replaces the capability of further calls.
    pub(crate) fn renew(&mut self, capability: Capability) {
        self.capability = capability;
    }

    /// Begins a run of these bytes of the object.
    pub(crate) fn begin(&mut self, range: Range<u64>) {
        self.position = range.start;
        self.end = range.end;
    }

    /// Sends bytes; waits while the device has no room.
    pub(crate) async fn write(
        &mut self,
        mut bytes: Bytes,
        patience: Option<Duration>,
    ) -> Result<(), CallError> {
        while !bytes.is_empty() {
            let (mut call, left) = match self.call.take() {
                Some(call) => call,
                None => self.open(patience).await?,
            };
            let fits = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let part = bytes.split_to(fits);
            if fits == 0 {
                return Err(CallError::AnsweredEarly);
            }
            match self.within(patience, call.write(part)).await {
                // The device has already answered; its answer has the reason.
                Err(CallError::AnsweredEarly) => {
                    self.answer(call, patience).await?;
                    return Err(CallError::AnsweredEarly);
                }
                other => other?,
            }
            self.position += fits as u64;
            let left = left - fits as u64;
            if left == 0 {
                call.finish();
                self.unanswered.push_back(call);
            } else {
                self.call = Some((call, left));
            }
        }
        Ok(())
    }

    async fn open(&mut self, patience: Option<Duration>) -> Result<(OutgoingCall, u64), CallError> {
        while self.unanswered.len() >= self.options.calls_ahead.max(1) {
            if let Some(call) = self.unanswered.pop_front() {
                self.answer(call, patience).await?;
            }
        }
        let length = (self.end - self.position).min(self.options.call_bytes.max(1));
        let arguments = Write {
            capability: self.capability.clone(),
            object: self.object,
            base: self.base,
            version: self.version,
            position: self.position,
            length,
        };
        Ok((self.connection.open(&arguments).await?, length))
    }

    /// Makes [`Lane::drain`] set the length of the new version.
    pub(crate) fn cut(&mut self, length: u64) {
        self.cut = Some(length);
    }

    /// Waits until all sent data is durable.
    pub(crate) async fn drain(&mut self, patience: Option<Duration>) -> Result<(), CallError> {
        if self.call.is_some() {
            return Err(CallError::AnsweredEarly);
        }
        if let Some(length) = self.cut.take() {
            self.truncate(length, patience).await?;
        }
        while let Some(call) = self.unanswered.pop_front() {
            self.answer(call, patience).await?;
        }
        Ok(())
    }

    /// Sets the length of the new version.
    pub(crate) async fn truncate(
        &mut self,
        length: u64,
        patience: Option<Duration>,
    ) -> Result<(), CallError> {
        let arguments = Truncate {
            capability: self.capability.clone(),
            object: self.object,
            base: self.base,
            version: self.version,
            length,
        };
        let cut = self.connection.call(&arguments);
        self.within(patience, cut).await?;
        Ok(())
    }

    async fn answer(
        &self,
        call: OutgoingCall,
        patience: Option<Duration>,
    ) -> Result<(), CallError> {
        self.within(patience, call.results::<WriteReply>()).await?;
        Ok(())
    }

    /// Fails if `work` takes longer than `patience`; without one, longer than any device may take.
    async fn within<T>(
        &self,
        patience: Option<Duration>,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let patience = patience.unwrap_or(self.idle_time);
        let done = timeout(patience, work).await;
        done.unwrap_or(Err(CallError::Timeout))
    }
}
