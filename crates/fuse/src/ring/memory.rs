//! The memory that one queue shares with the kernel. All that is unsafe about FUSE over io_uring is here.
//!
//! Each entry has two buffers: one of fixed headers, and one for everything else, of a request and then of its reply.
//! Whose they are changes hands: the kernel writes to them only while the queue's thread is in `io_uring_enter`
//! (`IORING_SETUP_DEFER_TASKRUN`), and only to entries that were given to it; from a completion until its answer is
//! given an entry is ours. Within that time
//!
//! 1. the queue's thread alone reads requests and writes headers;
//! 2. what is behind a request's headers is read while it is handed over, and a reply is put there by the queue's
//!    thread afterwards; where there is nothing behind them (a read), whoever answers puts his bytes there himself.
//!
//! Source of the layout: Linux, `include/uapi/linux/fuse.h` (`fuse_uring_req_header`, `fuse_uring_cmd_req`), seen with 6.18.

#![allow(
    unsafe_code,
    reason = "memory that the kernel writes to, and commands that no library has"
)]

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use io_uring::{opcode, squeue, types};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Of an entry before what is read or written, at least: headers first, and at the end those of a request once more, so
/// that it lies in one piece. What is behind begins with a page, or it could not be given back.
const HEAD: usize = 4 << 10;
/// Bytes of the headers.
const HEADERS: usize = 288;
/// Where a request's own header begins, how long it is at most, and what is said of the entry.
const OPERATION: usize = 128;
const OPERATION_MAX: usize = 128;
const ENTRY: usize = 256;
const COMMIT_ID: usize = ENTRY + 8;
const PAYLOAD: usize = ENTRY + 16;
/// `fuse_in_header`, `fuse_out_header`.
const IN_HEADER: usize = 40;
pub(super) const OUT_HEADER: usize = 16;
/// Of a request's header, and the kinds that no file system answers: FORGET, NOTIFY_REPLY, BATCH_FORGET.
const KIND: usize = 4;
const UNIQUE: usize = 8;
const SILENT: [u32; 3] = [2, 41, 42];
/// `FUSE_IO_URING_CMD_REGISTER`, `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// The entries of one queue.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    entries: usize,
    payload: usize,
    /// Of an entry: bytes before what is behind its headers, and from one to the next.
    head: usize,
    stride: usize,
}

// SAFETY: plain memory; who may touch which part of it when is at the top.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// A request.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// As it would be read from the device, aligned to 8 bytes.
    pub(super) bytes: &'a [u8],
    /// Nothing is behind its headers: a reply may be put there at once.
    pub(super) is_bare: bool,
    /// The header of an answer, if it is of a kind that nobody answers: here the kernel waits for one all the same.
    pub(super) silent: Option<[u8; OUT_HEADER]>,
}

impl Memory {
    /// `payload`: bytes of a request or reply without its headers, at most.
    pub(super) fn new(entries: usize, payload: usize) -> io::Result<Self> {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        Self::with_pages(entries, payload, usize::try_from(page).unwrap_or(HEAD))
    }

    fn with_pages(entries: usize, payload: usize, page: usize) -> io::Result<Self> {
        let head = HEAD.next_multiple_of(page);
        let stride = head + payload.next_multiple_of(page);
        let length = entries * stride;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, that nobody else knows of.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("no memory"))?;
        Ok(Self {
            base,
            entries,
            payload,
            head,
            stride,
        })
    }

    pub(super) fn payload(&self) -> usize {
        self.payload
    }

    fn head(&self, entry: usize) -> NonNull<u8> {
        assert!(entry < self.entries);
        // SAFETY: within the mapping.
        unsafe { self.base.add(entry * self.stride) }
    }

    /// Where what is behind the headers is.
    fn behind(&self, entry: usize) -> NonNull<u8> {
        // SAFETY: within the mapping.
        unsafe { self.head(entry).add(self.head) }
    }

    fn word<const N: usize>(&self, entry: usize, at: usize) -> [u8; N] {
        assert!(at + N <= HEADERS);
        // SAFETY: within the headers, which are ours now; bytes need no alignment.
        unsafe { self.head(entry).add(at).cast::<[u8; N]>().read() }
    }

    fn set_word<const N: usize>(&self, entry: usize, at: usize, word: [u8; N]) {
        assert!(at + N <= HEADERS);
        // SAFETY: as above.
        unsafe { self.head(entry).add(at).cast::<[u8; N]>().write(word) };
    }

    /// The buffers of an entry, as the kernel wants to be told of them.
    fn vectors(&self, entry: usize) -> [libc::iovec; 2] {
        let vector = |base: NonNull<u8>, length| libc::iovec {
            iov_base: base.as_ptr().cast(),
            iov_len: length,
        };
        [
            vector(self.head(entry), HEADERS),
            vector(self.behind(entry), self.payload),
        ]
    }

    /// The request of an entry that the kernel has given us; called by the queue's thread, which puts no reply
    /// there before it is done with what it got.
    ///
    /// # Errors
    /// The kernel's lengths do not agree.
    pub(super) fn request(&self, entry: usize) -> io::Result<Request<'_>> {
        let length = u32::from_ne_bytes(self.word(entry, 0)) as usize;
        let payload = u32::from_ne_bytes(self.word(entry, PAYLOAD)) as usize;
        let operation = length.checked_sub(IN_HEADER + payload);
        let operation = operation
            .filter(|own| *own <= OPERATION_MAX && own % 8 == 0 && payload <= self.payload)
            .ok_or_else(|| {
                io::Error::other(format!(
                    "a request of {length} bytes, {payload} of them behind its headers"
                ))
            })?;
        let before = IN_HEADER + operation;
        // SAFETY: both headers are copied to the end of the entry's head, which they do not reach, and what is behind
        // follows there: one piece, aligned to 8 bytes as the head is a page and `operation` a multiple of 8.
        let bytes = unsafe {
            let head = self.head(entry);
            let start = self.behind(entry).sub(before);
            head.copy_to_nonoverlapping(start, IN_HEADER);
            head.add(OPERATION)
                .copy_to_nonoverlapping(start.add(IN_HEADER), operation);
            std::slice::from_raw_parts(start.as_ptr(), before + payload)
        };
        let silent = SILENT.contains(&u32::from_ne_bytes(self.word(entry, KIND)));
        let silent = silent.then(|| {
            let mut header = [0; OUT_HEADER];
            header[..4].copy_from_slice(&(OUT_HEADER as u32).to_ne_bytes());
            header[8..].copy_from_slice(&self.word::<8>(entry, UNIQUE));
            header
        });
        Ok(Request {
            bytes,
            is_bare: payload == 0,
            silent,
        })
    }

    /// Puts a part of a reply behind the headers, at `at`. Only where rule 2 allows it.
    pub(super) fn put(&self, entry: usize, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.payload);
        // SAFETY: within what is behind the headers, which is the caller's now.
        unsafe {
            let to = self.behind(entry).add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len());
        }
    }

    /// The reply's header, and how much is behind it; by the queue's thread.
    pub(super) fn answer(&self, entry: usize, header: [u8; OUT_HEADER], behind: usize) {
        self.set_word(entry, 0, header);
        self.set_word(entry, PAYLOAD, (behind as u32).to_ne_bytes());
    }

    /// Gives the room behind the headers back; by the queue's thread, of an entry that the kernel has.
    pub(super) fn let_go(&self, entry: usize) {
        // SAFETY: within the mapping; what is there is of no use to anybody, and the kernel does not write there now.
        let done = unsafe {
            let start = self.behind(entry).as_ptr().cast();
            rustix::mm::madvise(start, self.payload, Advice::LinuxDontNeed)
        };
        if let Err(cause) = done {
            tracing::debug!(%cause, "memory of a queue is kept");
        }
    }

    /// Gives an entry to the kernel for the first time. The answer has to stay until it was submitted.
    pub(super) fn register(
        &self,
        device: RawFd,
        queue: u16,
        entry: usize,
    ) -> (squeue::Entry128, Box<[libc::iovec; 2]>) {
        let vectors = Box::new(self.vectors(entry));
        let address = std::ptr::from_ref(&*vectors).expose_provenance() as u64;
        let command = command(device, REGISTER, 0, queue, entry, (address, 2));
        (command, vectors)
    }

    /// Gives an entry back with its reply, for the next request.
    pub(super) fn commit(&self, device: RawFd, queue: u16, entry: usize) -> squeue::Entry128 {
        let id = u64::from_ne_bytes(self.word(entry, COMMIT_ID));
        command(device, COMMIT_AND_FETCH, id, queue, entry, (0, 0))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let length = self.entries * self.stride;
        // SAFETY: the whole mapping, of which nobody knows any more.
        let done = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), length) };
        if let Err(cause) = done {
            tracing::warn!(%cause, "memory of a queue stays");
        }
    }
}

/// A command to the device. `io_uring` has none with an address and a length, which REGISTER takes besides.
fn command(
    device: RawFd,
    operation: u32,
    commit: u64,
    queue: u16,
    entry: usize,
    (address, length): (u64, u32),
) -> squeue::Entry128 {
    let mut own = [0; 80];
    own[8..16].copy_from_slice(&commit.to_ne_bytes());
    own[16..18].copy_from_slice(&queue.to_ne_bytes());
    let sqe = opcode::UringCmd80::new(types::Fd(device), operation)
        .cmd(own)
        .build()
        .user_data(entry as u64);
    // SAFETY: an entry is 128 bytes without padding, whatever they are. Source: `struct io_uring_sqe`, `addr` at 16 and
    // `len` at 24.
    let mut bytes: [u8; 128] = unsafe { std::mem::transmute(sqe) };
    bytes[16..24].copy_from_slice(&address.to_ne_bytes());
    bytes[24..28].copy_from_slice(&length.to_ne_bytes());
    // SAFETY: as above.
    unsafe { std::mem::transmute(bytes) }
}

/// Queues something.
///
/// # Errors
/// There is no room, which there is for one of each entry.
pub(super) fn push(ring: &mut super::Ring, entry: &squeue::Entry128) -> io::Result<()> {
    // SAFETY: what its addresses point to is the queue's memory, or stays until it was submitted.
    let pushed = unsafe { ring.submission().push(entry) };
    pushed.map_err(|_full| io::Error::other("the queue of commands is full"))
}

/// Waits for somebody who wakes the queue's thread.
pub(super) fn wait_for(event: RawFd, counter: &mut [u8; 8], data: u64) -> squeue::Entry128 {
    let read = opcode::Read::new(types::Fd(event), counter.as_mut_ptr(), 8);
    read.build().user_data(data).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel would: headers, and what is behind them.
    fn given(memory: &Memory, entry: usize, operation: &[u8], behind: &[u8]) {
        let length = (IN_HEADER + operation.len() + behind.len()) as u32;
        let mut header = [7; IN_HEADER];
        header[..4].copy_from_slice(&length.to_ne_bytes());
        memory.set_word(entry, 0, header);
        let mut own = [0; OPERATION_MAX];
        own[..operation.len()].copy_from_slice(operation);
        memory.set_word(entry, OPERATION, own);
        memory.set_word(entry, PAYLOAD, (behind.len() as u32).to_ne_bytes());
        memory.put(entry, 0, behind);
    }

    #[test]
    fn a_request_lies_in_one_piece() {
        let memory = Memory::new(3, 8 << 10).expect("memory");
        for (entry, operation, behind) in [(0, 16, 0), (1, 0, 5), (2, 128, 8 << 10)] {
            given(&memory, entry, &vec![1; operation], &vec![2; behind]);
            let request = memory.request(entry).expect("a request");
            assert_eq!(request.is_bare, behind == 0);
            assert_eq!(request.bytes.as_ptr() as usize % 8, 0);
            let (header, rest) = request.bytes.split_at(IN_HEADER);
            assert_eq!(header[4..], [7; IN_HEADER - 4]);
            let (own, after) = rest.split_at(operation);
            assert!(own.iter().all(|byte| *byte == 1));
            assert!(after == vec![2; behind]);
        }
    }

    #[test]
    fn what_is_behind_begins_with_a_page() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            let memory = Memory::with_pages(3, 8 << 10, page).expect("memory");
            for entry in 0..3 {
                let at = memory.behind(entry).as_ptr() as usize - memory.base.as_ptr() as usize;
                assert_eq!(at % page, 0);
                assert!(at >= entry * memory.stride + HEAD);
            }
            given(&memory, 2, &[1; 8], &[2; 8 << 10]);
            assert_eq!(
                memory.request(2).expect("a request").bytes.len(),
                40 + 8 + (8 << 10)
            );
        }
        let memory = Memory::new(2, 8 << 10).expect("memory");
        memory.put(1, 0, b"bytes");
        memory.let_go(1);
        // SAFETY: within the mapping, of which nobody else knows.
        assert_eq!(unsafe { memory.behind(1).read() }, 0, "it was given back");
    }

    #[test]
    fn what_nobody_answers_is_answered() {
        let memory = Memory::new(1, 8 << 10).expect("memory");
        for (kind, silent) in [(1_u32, false), (2, true), (42, true)] {
            given(&memory, 0, &[1; 8], &[]);
            memory.set_word(0, KIND, kind.to_ne_bytes());
            memory.set_word(0, UNIQUE, 258_u64.to_ne_bytes());
            let header = memory.request(0).expect("a request").silent;
            let empty = [[16, 0, 0, 0, 0, 0, 0, 0], 258_u64.to_ne_bytes()].concat();
            assert_eq!(header.map(Vec::from), silent.then_some(empty));
        }
    }

    #[test]
    fn lengths_that_do_not_agree_are_refused() {
        let memory = Memory::new(1, 8 << 10).expect("memory");
        for (length, payload) in [
            (0_u32, 0_u32),
            (39, 0),
            (40, 8),
            (40 + 136, 0),
            (45, 0),
            (40 + 9_000, 9_000),
        ] {
            memory.set_word(0, 0, length.to_ne_bytes());
            memory.set_word(0, PAYLOAD, payload.to_ne_bytes());
            assert!(memory.request(0).is_err(), "{length}, {payload}");
        }
    }

    #[test]
    fn an_answer_is_where_the_kernel_looks_for_it() {
        let memory = Memory::new(2, 8 << 10).expect("memory");
        memory.put(1, 3, b"bytes");
        memory.answer(1, [9; OUT_HEADER], 8);
        assert_eq!(memory.word::<OUT_HEADER>(1, 0), [9; OUT_HEADER]);
        assert_eq!(memory.word::<4>(1, PAYLOAD), 8_u32.to_ne_bytes());
        let [headers, behind] = memory.vectors(1);
        assert_eq!((headers.iov_len, behind.iov_len), (HEADERS, 8 << 10));
        memory.let_go(1);
        memory.put(1, (8 << 10) - 1, b"x");
    }
}
