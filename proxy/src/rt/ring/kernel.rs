//! hot path
//!
//! The ring shared with the kernel: requests go in, completions come out.
//!
//! Bytes that arrive are written by the kernel into the ring's own buffers, of which it takes
//! one at each completion and gets it back with [`Kernel::give_back`]. Nothing else that a
//! request points to is read after [`Kernel::enter`] (`IORING_FEAT_SUBMIT_STABLE`).
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, Fd, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use socket2::SockAddr;

/// Requests that fit before the kernel must be entered.
const REQUESTS: u32 = 256;
/// Completions that fit; the kernel keeps what does not until there is room.
const COMPLETIONS: u32 = 4096;
/// Buffers for what arrives: a power of two.
const BUFFERS: u16 = 64;
/// Bytes of each.
const BUFFER: usize = 8 << 10;
/// The kernel's name of this set of buffers.
const GROUP: u16 = 0;
/// Alignment of the table of buffers, which the kernel maps.
const PAGE: usize = 4096;

/// Events of `poll(2)`.
pub(super) const POLLIN: i16 = 1;
pub(super) const POLLOUT: i16 = 4;

/// Completions with this name concern nobody.
const NOBODY: u64 = 0;

/// Bytes in one of the ring's buffers. Neither copied nor dropped: it goes back by
/// [`Kernel::give_back`].
#[derive(Debug)]
pub(super) struct Chunk {
    buffer: u16,
    start: u32,
    end: u32,
}

impl Chunk {
    pub(super) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// The first bytes are done with.
    pub(super) fn consume(&mut self, n: usize) {
        self.start = self.end.min(self.start + n as u32);
    }
}

/// What became of a request.
#[derive(Debug)]
pub(super) struct Completion {
    /// Whose it was.
    pub(super) name: u64,
    /// What the system call of the same name returns; an error is negative.
    pub(super) result: i32,
    /// More completions of the same request will follow.
    pub(super) more: bool,
    /// The bytes received.
    pub(super) chunk: Option<Chunk>,
}

// Boxed: the kernel reads where they stand.
#[allow(clippy::vec_box)]
pub(super) struct Kernel {
    ring: IoUring,
    /// `BUFFERS` entries, each naming a buffer that the kernel may fill.
    table: NonNull<BufRingEntry>,
    /// `BUFFERS` times `BUFFER` bytes.
    memory: NonNull<u8>,
    /// Entries ever added to the table, modulo 2^16.
    tail: u16,
    /// What requests not yet submitted point to.
    times: Vec<Box<Timespec>>,
    addresses: Vec<Box<SockAddr>>,
    /// Times to be used again.
    spare_times: Vec<Box<Timespec>>,
    wait: EnterFlags,
}

impl Kernel {
    /// A ring of this thread alone. Fails where the kernel is older than 6.1 or io_uring forbidden.
    pub(super) fn new() -> io::Result<Kernel> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(COMPLETIONS)
            .build(REQUESTS)?;
        let params = ring.params();
        let needed = params.is_feature_submit_stable()
            && params.is_feature_nodrop()
            && params.is_feature_skip_cqe_on_success();
        if !needed {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        // Idle workers are not to be shown as waiting for a disk.
        let wait = match params.is_feature_no_iowait() {
            true => EnterFlags::GETEVENTS | EnterFlags::NO_IOWAIT,
            false => EnterFlags::GETEVENTS,
        };
        let table = pages(usize::from(BUFFERS) * size_of::<BufRingEntry>())?.cast::<BufRingEntry>();
        let memory = pages(usize::from(BUFFERS) * BUFFER)?;
        // SAFETY: the table is page-aligned, zeroed, has room for `BUFFERS` entries, and is never
        // freed.
        unsafe { ring.submitter().register_buf_ring_with_flags(table.as_ptr() as u64, BUFFERS, GROUP, 0)? };
        let (times, addresses, spare_times) = Default::default();
        let mut kernel = Kernel { ring, table, memory, tail: 0, times, addresses, spare_times, wait };
        for buffer in 0..BUFFERS {
            kernel.give_back(Chunk { buffer, start: 0, end: 0 });
        }
        Ok(kernel)
    }

    /// Receives whatever comes, again and again, until an end, an error or a lack of buffers.
    pub(super) fn receive(&mut self, fd: BorrowedFd<'_>, name: u64) {
        self.push(opcode::RecvMulti::new(Fd(fd.as_raw_fd()), GROUP).build().user_data(name));
    }

    /// Says once, or each time, that one of the `poll(2)` events has happened.
    pub(super) fn poll(&mut self, fd: BorrowedFd<'_>, events: i16, each: bool, name: u64) {
        let poll = opcode::PollAdd::new(Fd(fd.as_raw_fd()), events as u16 as u32).multi(each);
        self.push(poll.build().user_data(name));
    }

    pub(super) fn connect(&mut self, fd: BorrowedFd<'_>, addr: SocketAddr, name: u64) {
        let addr = Box::new(SockAddr::from(addr));
        let request = opcode::Connect::new(Fd(fd.as_raw_fd()), addr.as_ptr().cast(), addr.len());
        self.push(request.build().user_data(name));
        self.addresses.push(addr);
    }

    pub(super) fn timeout(&mut self, after: Duration, name: u64) {
        let mut time = self.spare_times.pop().unwrap_or_default();
        *time = Timespec::from(after);
        self.push(opcode::Timeout::new(&*time).build().user_data(name));
        self.times.push(time);
    }

    /// Ends the request of this name; it still completes.
    pub(super) fn cancel(&mut self, name: u64) {
        self.push(opcode::AsyncCancel::new(name).build().user_data(NOBODY));
    }

    /// Closes after all requests made so far were taken up, so that none of them can meet
    /// another socket that got the same number.
    pub(super) fn close(&mut self, fd: OwnedFd) {
        let close = opcode::Close::new(Fd(fd.into_raw_fd())).build().user_data(NOBODY);
        self.push(close.flags(squeue::Flags::SKIP_SUCCESS));
    }

    fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: what an entry points to is a box that lives until it was submitted; received
            // bytes go to the ring's own buffers.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            // Full: the kernel takes up what there is. It refuses only while it is short of
            // memory or its queue of completions is full, which passes.
            let _ = self.submit(0, EnterFlags::empty());
        }
    }

    /// Hands over all requests, and waits for a completion if asked to.
    pub(super) fn enter(&mut self, wait: bool) -> io::Result<()> {
        let waiting = {
            let queue = self.ring.submission();
            if !wait && queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                return Ok(());
            }
            u32::from(wait)
        };
        match self.submit(waiting, self.wait) {
            Ok(()) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // A signal came; or completions must be taken away first, which is what follows.
                Some(EINTR | EBUSY | EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn submit(&mut self, wait: u32, flags: EnterFlags) -> io::Result<()> {
        let (submitter, mut queue, _) = self.ring.split();
        queue.sync();
        let len = queue.len() as u32;
        // SAFETY: no argument is passed.
        unsafe { submitter.enter::<()>(len, wait, flags.bits(), None)? };
        queue.sync();
        if queue.is_empty() {
            self.spare_times.append(&mut self.times);
            self.addresses.clear();
        }
        Ok(())
    }

    /// Takes away what has completed.
    pub(super) fn completions(&mut self, into: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            let flags = entry.flags();
            let result = entry.result();
            let chunk = cqueue::buffer_select(flags).map(|buffer| Chunk {
                buffer,
                start: 0,
                end: result.clamp(0, BUFFER as i32) as u32,
            });
            into.push(Completion { name: entry.user_data(), result, more: cqueue::more(flags), chunk });
        }
    }

    pub(super) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        let start = usize::from(chunk.buffer % BUFFERS) * BUFFER + chunk.start as usize;
        // SAFETY: within `memory`, since a chunk lies within one buffer; initialised, since it was
        // zeroed; not written to, since the kernel gave this buffer away and gets it back only
        // together with the chunk.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), chunk.len()) }
    }

    /// The kernel may write to this buffer again.
    pub(super) fn give_back(&mut self, chunk: Chunk) {
        let index = usize::from(self.tail % BUFFERS);
        let buffer = chunk.buffer % BUFFERS;
        // SAFETY: the index is below `BUFFERS`, so both places lie within their memory. The kernel
        // reads an entry only after the tail was moved past it, which `Release` orders after the
        // writes; there are as many entries as buffers, so it has read this one's last value.
        // The tail stands in the first entry where entries have a reserved field, so that entry
        // is written field by field.
        unsafe {
            let entry = &mut *self.table.as_ptr().add(index);
            entry.set_addr(self.memory.as_ptr().add(usize::from(buffer) * BUFFER) as u64);
            entry.set_len(BUFFER as u32);
            entry.set_bid(buffer);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.table.as_ptr()).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;

/// Zeroed memory on page boundaries. Never freed: requests still in flight when a worker ends may
/// be completed after it.
fn pages(bytes: usize) -> io::Result<NonNull<u8>> {
    let layout = Layout::from_size_align(bytes, PAGE).map_err(io::Error::other)?;
    // SAFETY: the size is not zero.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}
