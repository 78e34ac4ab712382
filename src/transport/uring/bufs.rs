//! The buffers of staged receives: one set per ring, provided to the kernel
//! (`IORING_REGISTER_PBUF_RING`). The kernel picks a buffer when a socket has something to read, so
//! idle connections hold none.
//!
//! Ownership: the kernel owns a buffer from the moment it is provided until a completion names it.
//! Then we own it, as a [`FilledBuffer`], until it is recycled. The kernel reads the entries up to
//! the tail that it has seen.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::buf::Stage;
use crate::limits::{RING_BUFFER_SIZE, RING_BUFFERS, RING_BUFFERS_HELD_MAX};

/// The id of the only buffer group.
pub(super) const GROUP: u16 = 0;
const ENTRIES_SIZE: usize = RING_BUFFERS as usize * size_of::<BufRingEntry>();
const BYTES_SIZE: usize = RING_BUFFERS as usize * RING_BUFFER_SIZE;

/// Received bytes of a connection, in a buffer that we own until a link has taken the bytes.
pub(super) struct FilledBuffer {
    id: u16,
    start: usize,
    end: usize,
}

impl FilledBuffer {
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }
}

pub(super) struct BufferRing {
    entries: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    tail: u16,
    /// Number of buffers that we own now.
    held: u16,
}

// SAFETY: this value owns the memory. Our side accesses it through `&mut self` as the rule at the
// head of the file demands, on any thread.
unsafe impl Send for BufferRing {}

impl BufferRing {
    /// Allocates the buffers and provides all of them to the kernel.
    pub(super) fn register(ring: &IoUring) -> io::Result<Self> {
        let mut buffers = BufferRing {
            entries: map(ENTRIES_SIZE)?.cast(),
            bytes: map(BYTES_SIZE)?,
            tail: 0,
            held: RING_BUFFERS,
        };
        let address = buffers.entries.as_ptr().addr() as u64;
        // SAFETY: the entries are a page-aligned mapping of `RING_BUFFERS` entries. It is unmapped
        // by `free` only, whose caller promises that the ring is done with it; a mere drop leaks
        // it.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(address, RING_BUFFERS, GROUP, 0)
        }?;
        for id in 0..RING_BUFFERS {
            buffers.provide(id);
        }
        Ok(buffers)
    }

    /// Returns the first `len` bytes of a buffer that a completion has named. It must be recycled.
    pub(super) fn filled(&mut self, id: u16, len: usize) -> FilledBuffer {
        assert!(
            id < RING_BUFFERS && len <= RING_BUFFER_SIZE,
            "the kernel names what it was provided with"
        );
        self.held += 1;
        FilledBuffer {
            id,
            start: 0,
            end: len,
        }
    }

    /// Returns true if received bytes must be copied out of their buffers at once.
    pub(super) fn is_low(&self) -> bool {
        self.held > RING_BUFFERS_HELD_MAX
    }

    /// Appends up to `max` bytes to `stage`. Returns true if none are left, and the buffer can be
    /// recycled.
    pub(super) fn copy_to(&self, filled: &mut FilledBuffer, stage: &mut Stage, max: usize) -> bool {
        let room = stage.spare();
        let count = filled.len().min(room.len()).min(max);
        room[..count].copy_from_slice(&self.bytes(filled)[..count]);
        stage.fill(count);
        filled.start += count;
        filled.len() == 0
    }

    /// Returns the bytes that have not been taken.
    pub(super) fn bytes<'a>(&'a self, filled: &'a FilledBuffer) -> &'a [u8] {
        // SAFETY: within the mapping (`filled` was checked when it was made), and initialised
        // from its start, since it was zeroed. The buffer is ours until it is recycled, which
        // consumes `filled` (memory-model rule 1).
        unsafe {
            let start = self.start_of(filled.id).add(filled.start);
            std::slice::from_raw_parts(start.as_ptr(), filled.len())
        }
    }

    /// Provides the buffer to the kernel again.
    pub(super) fn recycle(&mut self, filled: FilledBuffer) {
        self.provide(filled.id);
    }

    fn provide(&mut self, id: u16) {
        self.held -= 1;
        let at = usize::from(self.tail % RING_BUFFERS);
        let start = self.start_of(id);
        // SAFETY: within the mapping of `RING_BUFFERS` entries. The kernel does not read this
        // entry: at most `RING_BUFFERS` buffers are provided, so it lies beyond the tail that is
        // published below. Only the three fields are written: the fourth of entry 0 is the tail
        // itself.
        unsafe {
            let entry = self.entries.add(at).as_mut();
            entry.set_addr(start.as_ptr().addr() as u64);
            entry.set_len(RING_BUFFER_SIZE as u32);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the first entry of a registered ring, initialised (zeroed, or written above); its
        // reserved field is where the kernel reads the tail, aligned as an atomic needs it.
        let tail = unsafe {
            let tail = BufRingEntry::tail(self.entries.as_ptr());
            AtomicU16::from_ptr(tail.cast_mut())
        };
        tail.store(self.tail, Ordering::Release);
    }

    /// Unmaps the memory.
    ///
    /// # Safety
    /// The kernel uses it no more: the group is unregistered and no receive is in flight.
    pub(super) unsafe fn free(self) {
        debug_assert_eq!(self.held, 0, "all buffers have been recycled");
        // SAFETY: mapped by `register` in these sizes, used once since `self` is consumed; the
        // kernel uses it no more by the caller's promise (memory-model rule 7).
        unsafe {
            let _ = munmap(self.entries.as_ptr().cast(), ENTRIES_SIZE);
            let _ = munmap(self.bytes.as_ptr().cast(), BYTES_SIZE);
        }
    }

    fn start_of(&self, id: u16) -> NonNull<u8> {
        debug_assert!(id < RING_BUFFERS, "a buffer of this ring");
        // SAFETY: `id` is below `RING_BUFFERS`, so this stays within the mapping.
        unsafe { self.bytes.add(usize::from(id) * RING_BUFFER_SIZE) }
    }
}

/// Maps zeroed pages, which cost no memory until bytes arrive in them.
fn map(size: usize) -> io::Result<NonNull<u8>> {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping wherever the system likes touches no memory that exists.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), size, rights, flags) }?;
    NonNull::new(memory.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}
