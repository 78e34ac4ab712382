//! The buffers that staged bytes arrive in: one set per ring, lent to the kernel, which picks one
//! when a socket has something to read. So idle connections hold none.
//!
//! Who may touch what, and when: a buffer is the kernel's from its lending until a completion names
//! it, and ours, as an [`Arrived`], from there until it is given back. The entries are
//! read by the kernel up to the tail that it has seen.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::buf::Stage;

/// Buffers of a ring. A burst that finds none ends the multishot receives it met, which are armed
/// again: with 128 buffers 256 busy connections took 5 to 15 % more CPU.
const COUNT: u16 = 512;
/// Buffers that are not lent while they wait for their links; what comes beyond is copied out of
/// its buffer at once, so that the slow cannot starve the others.
const HELD_MAX: u16 = 384;
/// Bytes of a buffer: what is larger is mostly the payload of a direct receive, and the memory is
/// touched only as far as bytes arrive in it.
pub(super) const BUFFER_SIZE: usize = 16 << 10;
/// The one group of buffers.
pub(super) const GROUP: u16 = 0;
const ENTRIES_SIZE: usize = COUNT as usize * size_of::<BufRingEntry>();
const BYTES_SIZE: usize = COUNT as usize * BUFFER_SIZE;

const _: () = assert!(COUNT.is_power_of_two() && HELD_MAX < COUNT);

/// Bytes of a connection that have arrived, in a lent buffer until a link takes them.
pub(super) struct Arrived {
    id: u16,
    start: usize,
    end: usize,
}

impl Arrived {
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }
}

pub(super) struct BufferRing {
    entries: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    tail: u16,
    /// How many are ours at the moment.
    held: u16,
}

// SAFETY: the memory is this value's own; access follows the rule at the head of the file, by
// `&mut self` on our side, on whichever thread.
unsafe impl Send for BufferRing {}

impl BufferRing {
    /// Allocates the buffers and lends all of them to the kernel.
    pub(super) fn register(ring: &IoUring) -> io::Result<Self> {
        let mut buffers = BufferRing {
            entries: map(ENTRIES_SIZE)?.cast(),
            bytes: map(BYTES_SIZE)?,
            tail: 0,
            held: COUNT,
        };
        let address = buffers.entries.as_ptr().addr() as u64;
        // SAFETY: the entries are a page-aligned mapping of `COUNT` entries. It is unmapped by
        // `free` only, whose caller promises that the ring is done with it; a mere drop leaks it.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(address, COUNT, GROUP, 0)
        }?;
        for id in 0..COUNT {
            buffers.lend(id);
        }
        Ok(buffers)
    }

    /// The first `len` bytes of a buffer that a completion has named. It is to be given back.
    pub(super) fn arrived(&mut self, id: u16, len: usize) -> Arrived {
        assert!(
            id < COUNT && len <= BUFFER_SIZE,
            "the kernel names what it was lent"
        );
        self.held += 1;
        Arrived {
            id,
            start: 0,
            end: len,
        }
    }

    /// True if what arrives now is not to wait in its buffer.
    pub(super) fn is_scarce(&self) -> bool {
        self.held > HELD_MAX
    }

    /// Moves up to `max` bytes behind those in `stage`. True if that was all, and the buffer can be
    /// given back.
    pub(super) fn move_to(&self, arrived: &mut Arrived, stage: &mut Stage, max: usize) -> bool {
        let room = stage.spare();
        let count = arrived.len().min(room.len()).min(max);
        room[..count].copy_from_slice(&self.bytes(arrived)[..count]);
        stage.fill(count);
        arrived.start += count;
        arrived.len() == 0
    }

    /// What has arrived, as far as nobody has moved it.
    pub(super) fn bytes<'a>(&'a self, arrived: &'a Arrived) -> &'a [u8] {
        // SAFETY: within the mapping (`arrived` was checked when it was made), and initialised
        // from its start, since it was zeroed. The buffer is ours until it is given back, which
        // consumes `arrived` (memory-model rule 1).
        unsafe {
            let start = self.start_of(arrived.id).add(arrived.start);
            std::slice::from_raw_parts(start.as_ptr(), arrived.len())
        }
    }

    /// Lends the buffer to the kernel again.
    pub(super) fn give_back(&mut self, arrived: Arrived) {
        self.lend(arrived.id);
    }

    fn lend(&mut self, id: u16) {
        self.held -= 1;
        let at = usize::from(self.tail % COUNT);
        let start = self.start_of(id);
        // SAFETY: within the mapping of `COUNT` entries. The kernel does not read this entry:
        // at most `COUNT` buffers are lent, so it lies beyond the tail that is published below.
        // Only the three fields are written: the fourth of entry 0 is the tail itself.
        unsafe {
            let entry = self.entries.add(at).as_mut();
            entry.set_addr(start.as_ptr().addr() as u64);
            entry.set_len(BUFFER_SIZE as u32);
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
        debug_assert_eq!(self.held, 0, "all buffers have been given back");
        // SAFETY: mapped by `register` in these sizes, used once since `self` is consumed; the
        // kernel uses it no more by the caller's promise (memory-model rule 7).
        unsafe {
            let _ = munmap(self.entries.as_ptr().cast(), ENTRIES_SIZE);
            let _ = munmap(self.bytes.as_ptr().cast(), BYTES_SIZE);
        }
    }

    fn start_of(&self, id: u16) -> NonNull<u8> {
        debug_assert!(id < COUNT, "a buffer of this ring");
        // SAFETY: `id` is below `COUNT`, so this stays within the mapping.
        unsafe { self.bytes.add(usize::from(id) * BUFFER_SIZE) }
    }
}

/// Zeroed pages, which cost no memory until bytes arrive in them.
fn map(size: usize) -> io::Result<NonNull<u8>> {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping wherever the system likes touches no memory that exists.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), size, rights, flags) }?;
    NonNull::new(memory.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}
