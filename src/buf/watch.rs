//! Notices of unmapped memory: userfaultfd's events of `munmap`, `mremap` and
//! `madvise(MADV_DONTNEED)`, and like calls, on watched ranges. No function of the C library is
//! replaced. The ranges are registered for write protection, which is never applied to them, so
//! that no page fault is delayed.
//!
//! One descriptor serves the process, since the system lets only one watch a range. A dedicated
//! thread reads the descriptor: a call that unmaps memory waits until its event has been read. This
//! limits what code may do under a lock, since the caller may hold the allocator's lock:
//!
//! - the thread allocates and frees nothing, and takes no lock but `posted`;
//! - under `posted` no code allocates, frees, or waits for anything.
//!
//! A notice precedes the return of the call that it reports: `fresh` is set before the event is
//! read, and a reader that sees it set finds the notice once it has locked `posted`.
//!
//! A forked child inherits the descriptor, which is about its parent's memory, and no thread. In
//! the child, all ranges that the parent watched count as unmapped. The child uses nothing of the
//! parent's watch, not even a lock, which a thread of the parent may have held, and opens a watch
//! of its own.

use std::fmt;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::ioctl::{Setter, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use tracing::Level;

use crate::log::{hold_event, is_logged};

use super::MappedBuffer;
use super::pages::{pages_of, without};
use crate::limits::{WATCH_MESSAGES_PER_READ, WATCH_NOTICES_MAX, WATCH_READERS_MAX};

/// Numbers of the system's interface.
const API: u64 = 0xAA;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const FEATURES: u64 = 1 << 2 | 1 << 3 | 1 << 6;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
/// Restricts the descriptor to faults in user mode; without this flag, opening it needs a
/// privilege.
const USER_MODE_ONLY: u32 = 1;

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Pages {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterRequest {
    pages: Pages,
    mode: u64,
    ioctls: u64,
}

/// Layout of one event: its kind, and up to three numbers.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    numbers: [u64; 3],
}

const _: () = assert!(size_of::<Message>() == 32);

/// The one watch of the process.
struct Watch {
    descriptor: OwnedFd,
    /// One byte that is 1, and 0 in a forked child.
    here: MappedBuffer,
    posted: Mutex<Readers>,
    /// The watched pages, so that ranges that share a page stay watched when one of them is not any
    /// more. The thread never takes this lock.
    watched: Mutex<Vec<Range<usize>>>,
    thread: OnceLock<bool>,
}

struct Readers([Option<Box<ReaderNotices>>; WATCH_READERS_MAX]);

/// The notices of one reader.
struct ReaderNotices {
    fresh: Arc<AtomicBool>,
    ranges: [(usize, usize); WATCH_NOTICES_MAX],
    count: usize,
}

impl ReaderNotices {
    fn post(&mut self, range: (usize, usize)) {
        if self.count == WATCH_NOTICES_MAX {
            self.ranges[0] = (0, usize::MAX);
            self.count = 1;
        }
        self.ranges[self.count] = range;
        self.count += 1;
    }
}

fn watch() -> Result<&'static Watch, String> {
    /// The watch that was opened last, by this process or the one that it was forked from.
    static WATCH: AtomicPtr<Watch> = AtomicPtr::new(ptr::null_mut());
    loop {
        let found = WATCH.load(SeqCst);
        // SAFETY: null, or the watch that was leaked below, which is never freed and only read.
        if let Some(watch) = unsafe { found.as_ref() }
            && watch.is_of_this_process()
        {
            return Ok(watch);
        }
        let opened = Watch::open();
        let opened = opened.map_err(|why| format!("userfaultfd cannot be opened: {why}"))?;
        let opened = Box::into_raw(Box::new(opened));
        if WATCH
            .compare_exchange(found, opened, SeqCst, SeqCst)
            .is_err()
        {
            // SAFETY: it was made from a box just now, and no one else has seen it.
            drop(unsafe { Box::from_raw(opened) });
        }
    }
}

/// Checks that the system reports unmapped memory. `Err`: the reason why it does not.
pub(crate) fn can_watch() -> Result<(), String> {
    watch().map(|_| ())
}

/// Reads the notices for one cache.
pub(crate) struct Notices {
    watch: &'static Watch,
    place: usize,
    fresh: Arc<AtomicBool>,
}

impl Notices {
    /// Begins to take notices, of all ranges that any cache watches. `Err` says why there are none.
    pub(crate) fn begin() -> Result<Notices, String> {
        let watch = watch()?;
        if !watch.thread.get_or_init(|| watch.start_thread()) {
            return Err("the system has no thread left to read userfaultfd".to_owned());
        }
        let fresh = Arc::new(AtomicBool::new(false));
        let posted = Box::new(ReaderNotices {
            fresh: Arc::clone(&fresh),
            ranges: [(0, 0); WATCH_NOTICES_MAX],
            count: 0,
        });
        let mut readers = lock(&watch.posted);
        let free = readers.0.iter().position(Option::is_none);
        let Some(place) = free else {
            drop(readers);
            return Err("64 caches of this process watch memory already".to_owned());
        };
        readers.0[place] = Some(posted);
        drop(readers);
        Ok(Notices {
            watch,
            place,
            fresh,
        })
    }

    /// True if there may be a notice. Every call that unmapped watched memory before this one has
    /// left one.
    pub(crate) fn are_fresh(&self) -> bool {
        self.fresh.load(SeqCst) || !self.watch.is_of_this_process()
    }

    /// Takes all notices: the ranges that were unmapped.
    pub(crate) fn take(&self) -> Vec<Range<usize>> {
        if !self.watch.is_of_this_process() {
            let everything = 0..usize::MAX;
            return vec![everything];
        }
        let mut ranges = [(0, 0); WATCH_NOTICES_MAX];
        let mut readers = lock(&self.watch.posted);
        let mut count = 0;
        if let Some(posted) = &mut readers.0[self.place] {
            count = mem::take(&mut posted.count);
            ranges[..count].copy_from_slice(&posted.ranges[..count]);
            self.fresh.store(false, SeqCst);
        }
        drop(readers);
        let ranges = ranges[..count].iter();
        ranges.map(|(start, end)| *start..*end).collect()
    }

    /// Watches the pages of a range until the result is dropped.
    pub(crate) fn watch(&self, range: &Range<usize>) -> io::Result<WatchGuard> {
        if !self.watch.is_of_this_process() {
            return Err(io::Error::other("this process was forked since"));
        }
        let pages = pages_of(range);
        let mut watched = lock(&self.watch.watched);
        let mut request = RegisterRequest {
            pages: Pages::of(&pages),
            mode: MODE_WRITE_PROTECT,
            ioctls: 0,
        };
        const REGISTER: u32 = opcode::read_write::<RegisterRequest>(0xAA, 0);
        // SAFETY: the request has the form that this call reads and fills, and outlives the call.
        // The memory that it names keeps its bytes and its rights.
        unsafe {
            let request = Updater::<{ REGISTER as _ }, _>::new(&mut request);
            ioctl(&self.watch.descriptor, request)?;
        }
        watched.push(pages.clone());
        Ok(WatchGuard {
            watch: self.watch,
            pages,
            is_there: true,
        })
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        if !self.watch.is_of_this_process() {
            return;
        }
        let posted = lock(&self.watch.posted).0[self.place].take();
        drop(posted);
    }
}

debug_fields!(Notices, self => fresh: self.are_fresh());

/// Keeps a range watched.
pub(crate) struct WatchGuard {
    watch: &'static Watch,
    pages: Range<usize>,
    is_there: bool,
}

impl WatchGuard {
    /// Notes that the range was unmapped: a new mapping of the addresses may have a watch of its
    /// own.
    pub(crate) fn went_away(&mut self) {
        self.is_there = false;
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if !self.watch.is_of_this_process() {
            return; // The range is watched in the parent, and stays so.
        }
        let mut watched = lock(&self.watch.watched);
        let own = watched.iter().position(|pages| *pages == self.pages);
        watched.swap_remove(own.expect("it was entered when it was made"));
        if !self.is_there {
            return;
        }
        for pages in without(&self.pages, &watched) {
            let request = Pages::of(&pages);
            const UNREGISTER: u32 = opcode::read::<Pages>(0xAA, 1);
            // SAFETY: the request has the form that this call reads, and outlives the call.
            // Addresses where nothing is watched are an error that changes nothing.
            let ended = unsafe {
                let request = Setter::<{ UNREGISTER as _ }, _>::new(request);
                ioctl(&self.watch.descriptor, request)
            };
            if is_logged(Level::TRACE) {
                hold_event(move || tracing::trace!(?ended, "a range is not watched any more"));
            }
        }
    }
}

impl fmt::Debug for WatchGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WatchGuard({} bytes)", self.pages.len())
    }
}

impl Pages {
    fn of(range: &Range<usize>) -> Self {
        Pages {
            start: range.start as u64,
            len: range.len() as u64,
        }
    }
}

impl Watch {
    fn open() -> io::Result<Watch> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let without_privilege = flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: a descriptor by which nothing is watched yet changes nothing.
        let opened = match unsafe { userfaultfd(without_privilege) } {
            // A kernel before 5.11 does not know the flag.
            Err(Errno::INVAL) => {
                // SAFETY: as above.
                unsafe { userfaultfd(flags) }
            }
            opened => opened,
        };
        let descriptor = opened?;
        let mut request = ApiRequest {
            api: API,
            features: FEATURES,
            ioctls: 0,
        };
        const HANDSHAKE: u32 = opcode::read_write::<ApiRequest>(0xAA, 0x3F);
        // SAFETY: the request has the form that this call reads and fills, and outlives the call.
        unsafe {
            let request = Updater::<{ HANDSHAKE as _ }, _>::new(&mut request);
            ioctl(&descriptor, request)?;
        }
        let mut here = MappedBuffer::zeroed_on_fork(1)?;
        here[0] = 1;
        Ok(Watch {
            descriptor,
            here,
            posted: Mutex::new(Readers([const { None }; WATCH_READERS_MAX])),
            watched: Mutex::default(),
            thread: OnceLock::new(),
        })
    }

    /// False in a process that was forked from the one that opened this watch.
    fn is_of_this_process(&self) -> bool {
        // SAFETY: the byte is mapped, and is not written to. Volatile: a fork changes it.
        unsafe { self.here.as_ptr().read_volatile() == 1 }
    }

    fn start_thread(&'static self) -> bool {
        let thread = std::thread::Builder::new().name("memory-notices".to_owned());
        thread.spawn(move || self.read_events()).is_ok()
    }

    /// See the module's documentation for what must not happen in this function.
    fn read_events(&self) {
        let mut messages = [Message {
            event: 0,
            reserved: [0; 7],
            numbers: [0; 3],
        }; WATCH_MESSAGES_PER_READ];
        loop {
            let mut wanted = [PollFd::new(&self.descriptor, PollFlags::IN)];
            if let Err(error) = poll(&mut wanted, None)
                && error != Errno::INTR
            {
                return;
            }
            let mut readers = lock(&self.posted);
            readers
                .0
                .iter()
                .flatten()
                .for_each(|posted| posted.fresh.store(true, SeqCst));
            let count = self.read(&mut messages);
            for message in &messages[..count] {
                let Some(range) = message.range() else {
                    continue;
                };
                readers.0.iter_mut().flatten().for_each(|it| it.post(range));
            }
        }
    }

    fn read(&self, messages: &mut [Message; WATCH_MESSAGES_PER_READ]) -> usize {
        let size = size_of_val(messages);
        // SAFETY: the slice covers exactly the array. A `Message` consists of numbers without
        // padding, so any bytes that are written form a valid one.
        let bytes: &mut [u8] =
            unsafe { std::slice::from_raw_parts_mut(messages.as_mut_ptr().cast(), size) };
        // There is nothing to read if an earlier read took the events of this wake-up.
        rustix::io::read(self.descriptor.as_fd(), bytes).unwrap_or(0) / size_of::<Message>()
    }
}

impl Message {
    /// Returns the range that the event reports as unmapped, if any.
    fn range(&self) -> Option<(usize, usize)> {
        let [first, second, third] = self.numbers;
        let (start, end) = match self.event {
            EVENT_UNMAP | EVENT_REMOVE => (first, second),
            EVENT_REMAP => (first, first.saturating_add(third)),
            _ => return None,
        };
        Some((usize::try_from(start).ok()?, usize::try_from(end).ok()?))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::buf::MappedBuffer;

    /// Notices, unless the system has none; says so then.
    fn notices() -> Option<Notices> {
        use std::io::Write;
        match Notices::begin() {
            Ok(notices) => Some(notices),
            Err(why) => {
                let _ = writeln!(std::io::stderr(), "left out: {why}");
                None
            }
        }
    }

    fn has_notice_of(notices: &Notices, range: &Range<usize>) -> bool {
        let fresh = notices.are_fresh();
        let ranges = notices.take();
        assert!(!notices.are_fresh() || fresh);
        let overlaps = |it: &Range<usize>| it.start < range.end && range.start < it.end;
        ranges.iter().any(overlaps)
    }

    /// Each way of unmapping memory is reported before the call returns.
    #[test]
    fn unmapped_memory_is_reported_before_the_call_returns() {
        let Some(notices) = notices() else { return };
        for way in ["unmap", "advise", "move"] {
            for _ in 0..100 {
                let mut mapped = MappedBuffer::new(1 << 16).unwrap();
                let range = mapped.as_ptr().addr()..mapped.as_ptr().addr() + (1 << 16);
                let watched = notices.watch(&range).unwrap();
                let start = mapped.as_mut_ptr().cast::<libc::c_void>();
                match way {
                    "unmap" => drop(mapped),
                    "advise" => {
                        // SAFETY: the mapping is ours; its bytes become zero.
                        let done = unsafe { libc::madvise(start, 4096, libc::MADV_DONTNEED) };
                        assert_eq!(done, 0);
                    }
                    _ => {
                        mem::forget(mapped);
                        // SAFETY: the mapping is ours, and nothing refers to it any more.
                        unsafe {
                            let flags = libc::MREMAP_MAYMOVE;
                            let moved = libc::mremap(start, 1 << 16, 1 << 24, flags);
                            assert_ne!(moved, libc::MAP_FAILED);
                            libc::munmap(moved, 1 << 24);
                        }
                    }
                }
                assert!(has_notice_of(&notices, &range), "{way}");
                drop(watched);
            }
        }
        // Not a separate test: notices are of the whole process, so only one test reads them.
        too_many_notices_are_one_of_everything(&notices);
    }

    /// Memory that is not watched, or not any more, is not reported, and more notices than fit into
    /// the list become one for all addresses.
    fn too_many_notices_are_one_of_everything(notices: &Notices) {
        let mapped: Vec<_> = (0..WATCH_NOTICES_MAX + 10)
            .map(|_| MappedBuffer::new(4096).unwrap())
            .collect();
        let range = |it: &MappedBuffer| it.as_ptr().addr()..it.as_ptr().addr() + 4096;
        let watched = mapped.iter().map(|it| notices.watch(&range(it)).unwrap());
        let mut watched: Vec<_> = watched.collect();
        watched.iter_mut().for_each(WatchGuard::went_away);
        drop(mapped);
        assert!(has_notice_of(notices, &(0..4096)), "everything");
        drop(watched);
        let unwatched = MappedBuffer::new(1 << 16).unwrap();
        let range = range(&unwatched);
        drop(notices.watch(&range).unwrap());
        drop(unwatched);
        assert!(!has_notice_of(notices, &range));
    }
}
