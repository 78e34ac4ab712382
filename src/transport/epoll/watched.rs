//! A descriptor with known readiness. Tokio's reactor reports it; if the application drives by
//! hand, so does an epoll descriptor of our own ([`Poller`]), which can be polled at any time.
//! Sockets are registered with the poller when it is first polled: a second registration costs the
//! kernel something with each message, and an application that only awaits never polls it.
//!
//! The reactor and the poller report edges independently, so a socket counts as ready when either
//! reports it. A call that would block clears the report, and the next check asks the other source.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::IoDirection;
use crate::limits::POLLER_EVENTS_MAX;
use crate::slab::{Key, Slab};
use crate::sync::{Lock, WakeList};

bitflags::bitflags! {
    /// The known state of a socket.
    #[derive(Clone, Copy)]
    struct ReadyBits: u32 {
        const READABLE = 1;
        const WRITABLE = 1 << 1;
        /// The peer has ended its stream, or the connection is broken; never cleared.
        const READ_CLOSED = 1 << 2;
        /// A task waits until the socket is readable.
        const AWAITED_READABLE = 1 << 3;
        const AWAITED_WRITABLE = 1 << 4;
    }
}

/// Each edge adds this above the bits, so that clearing an edge never clears a later edge.
const EDGE: u32 = ReadyBits::all().bits() + ReadyBits::READABLE.bits();

/// Returns the AWAITED bits of these directions.
const fn awaited(bits: u32) -> u32 {
    let awaitable = ReadyBits::READABLE.union(ReadyBits::WRITABLE).bits();
    (bits & awaitable) * ReadyBits::AWAITED_READABLE.bits()
}

impl IoDirection {
    fn bit(self) -> u32 {
        match self {
            IoDirection::Read => ReadyBits::READABLE.bits(),
            IoDirection::Write => ReadyBits::WRITABLE.bits(),
        }
    }

    fn interest(self) -> Interest {
        match self {
            IoDirection::Read => Interest::READABLE,
            IoDirection::Write => Interest::WRITABLE,
        }
    }
}

/// An epoll descriptor that is polled on request. It never sleeps.
pub(in crate::transport) struct Poller {
    epoll: OwnedFd,
    sockets: Lock<PolledSockets>,
    /// True if all sockets are registered. Changed under the sockets' lock.
    are_registered: AtomicBool,
}

struct PolledSockets {
    all: Slab<PolledSocket>,
    /// Sockets to be registered; some may be gone.
    unregistered: Vec<Key>,
}

/// A socket. Its descriptor stays open as long as the entry is in the list.
struct PolledSocket {
    fd: RawFd,
    flags: EventFlags,
    state: Arc<PolledState>,
}

/// The known readiness of one socket, and its waker. An edge wakes the waker only if its direction
/// is awaited, and once, as Tokio's reactor does. An edge for reading also reports that the socket
/// is writable, which it nearly always is.
#[derive(Default)]
struct PolledState {
    readiness: AtomicU32,
    /// The waker of the port or listener that polls the socket, for its whole life.
    waker: OnceLock<Waker>,
}

impl PolledState {
    fn set(&self, bits: u32, wakes: &mut WakeList) {
        let add = |word: u32| Some((word & !awaited(bits) | bits).wrapping_add(EDGE));
        let before = (self.readiness).fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        if before.is_ok_and(|before| before & awaited(bits) != 0) {
            wakes.extend(self.waker.get().cloned());
        }
    }

    /// Returns the state, if this direction is ready.
    fn seen(&self, direction: IoDirection) -> Option<u32> {
        let seen = self.readiness.load(Ordering::Acquire);
        (seen & direction.bit() != 0).then_some(seen)
    }

    /// Clears one direction, unless there was an edge since `seen`.
    fn clear(&self, direction: IoDirection, seen: u32) {
        let clear = |word: u32| (word / EDGE == seen / EDGE).then_some(word & !direction.bit());
        let _ = (self.readiness).fetch_update(Ordering::AcqRel, Ordering::Acquire, clear);
    }

    /// Makes the next edge of this direction wake the waker. Returns the state, if the direction is
    /// ready now.
    fn register(&self, direction: IoDirection, waker: &Waker) -> Option<u32> {
        let held = self.waker.get_or_init(|| waker.clone());
        debug_assert!(
            held.will_wake(waker),
            "a socket is polled by one all its life"
        );
        let awaited = awaited(direction.bit());
        // The bit stays set until an edge clears it: mostly nothing changes. A load is then enough:
        // edges are taken within a turn of the progress, whose lock orders them with this.
        let add = |word: u32| (word & awaited == 0).then_some(word | awaited);
        let added = (self.readiness).fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        let (Ok(seen) | Err(seen)) = added;
        (seen & direction.bit() != 0).then_some(seen)
    }
}

impl Poller {
    pub(in crate::transport) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Poller {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            sockets: Lock::new(PolledSockets {
                all: Slab::new(),
                unregistered: Vec::new(),
            }),
            are_registered: AtomicBool::new(true),
        }))
    }

    /// Reads the present readiness, and wakes the tasks that wait for it. One system call; never
    /// blocks. Returns false if no awaited socket is ready.
    pub(in crate::transport) fn poll_now(&self) -> bool {
        if !self.are_registered.load(Ordering::Acquire) {
            self.register_all();
        }
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; POLLER_EVENTS_MAX];
        let now = rustix::time::Timespec::default();
        // Fails only by a signal; the next call then finds the same events.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut room[..], Some(&now)) else {
            return false;
        };
        if events.is_empty() {
            return false;
        }
        let mut wakes = WakeList::new();
        let sockets = self.sockets.lock("look for readiness");
        for event in events {
            let (key, flags) = (Key::from_bits(event.data.u64()), event.flags);
            let Some(socket) = sockets.all.get(key) else {
                continue;
            };
            let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let mut bits = ReadyBits::empty();
            if broken || flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
                bits |= ReadyBits::READABLE;
            }
            if broken || flags.contains(EventFlags::OUT) {
                bits |= ReadyBits::WRITABLE;
            }
            if broken || flags.contains(EventFlags::RDHUP) {
                bits |= ReadyBits::READ_CLOSED;
            }
            socket.state.set(bits.bits(), &mut wakes);
        }
        // The list wakes when it is dropped, which is after the guard.
        drop(sockets);
        !wakes.is_empty()
    }

    /// Registers the sockets that are not registered yet. If the system has no room for one, the
    /// next call tries again.
    #[cold]
    fn register_all(&self) {
        let mut sockets = self.sockets.lock("register sockets");
        let PolledSockets { all, unregistered } = &mut *sockets;
        unregistered.retain(|key| {
            let Some(socket) = all.get(*key) else {
                return false;
            };
            // SAFETY: `Polled` takes the entry out, under this lock, before the descriptor that it
            // was made of is closed or given away: `Watched` drops it first.
            let fd = unsafe { BorrowedFd::borrow_raw(socket.fd) };
            let data = EventData::new_u64(key.to_bits());
            epoll::add(&self.epoll, fd, data, socket.flags).is_err()
        });
        let are_registered = unregistered.is_empty();
        self.are_registered.store(are_registered, Ordering::Release);
    }

    /// Makes the next poll register a descriptor. The returned value must be dropped before the
    /// descriptor is closed.
    fn add(self: &Arc<Self>, fd: RawFd, interest: Interest) -> Polled {
        let state = Arc::<PolledState>::default();
        let mut flags = EventFlags::ET;
        if interest.is_readable() {
            flags |= EventFlags::IN | EventFlags::RDHUP;
        }
        if interest.is_writable() {
            flags |= EventFlags::OUT;
        }
        let mut sockets = self.sockets.lock("watch a socket");
        let key = sockets.all.insert(PolledSocket {
            fd,
            flags,
            state: Arc::clone(&state),
        });
        sockets.unregistered.push(key);
        self.are_registered.store(false, Ordering::Release);
        Polled {
            poller: Arc::clone(self),
            key,
            state,
        }
    }
}

/// The registration of a descriptor with a [`Poller`].
struct Polled {
    poller: Arc<Poller>,
    key: Key,
    state: Arc<PolledState>,
}

impl Drop for Polled {
    fn drop(&mut self) {
        let mut sockets = self.poller.sockets.lock("watch a socket no more");
        let removed = sockets.all.remove(self.key);
        drop(sockets);
        drop(removed);
    }
}

/// A descriptor, registered with the reactor of the runtime that was current, and with a poller.
pub(super) struct Watched {
    /// Declared before the descriptor, so that it is dropped first.
    polled: Option<Polled>,
    fd: AsyncFd<OwnedFd>,
}

impl Watched {
    pub(super) fn new(
        fd: OwnedFd,
        interest: Interest,
        poller: Option<&Arc<Poller>>,
    ) -> io::Result<Self> {
        // SAFETY: `OwnedFd` is open for as long as it lives, always answers with the same number,
        // and moves into the `AsyncFd`. Nothing in this folder takes it out by `get_mut`, so it is
        // open and the same until `into_inner` or the drop of the `AsyncFd`, which deregister it
        // first.
        let fd = unsafe { AsyncFd::register_with_interest(fd, interest) };
        let fd = fd.map_err(|error| error.into_parts().1)?;
        let polled = poller.map(|poller| poller.add(fd.as_raw_fd(), interest));
        Ok(Watched { polled, fd })
    }

    pub(super) fn get_ref(&self) -> &OwnedFd {
        self.fd.get_ref()
    }

    pub(super) fn into_inner(self) -> OwnedFd {
        if let Some(polled) = self.polled {
            let poller = Arc::clone(&polled.poller);
            // From here on the poller does not register the descriptor any more.
            drop(polled);
            // Fails only if the descriptor was not registered.
            let _ = epoll::delete(&poller.epoll, self.fd.get_ref());
        }
        self.fd.into_inner()
    }

    pub(super) fn reactor(&self) -> &AsyncFd<OwnedFd> {
        &self.fd
    }

    /// Makes a call if the descriptor is known to be ready. The call returns its value, and whether
    /// the next one would block. Fails with `WouldBlock` if the descriptor is not ready.
    pub(super) fn try_io<T>(
        &self,
        direction: IoDirection,
        call: impl FnOnce(&OwnedFd) -> io::Result<(T, bool)>,
    ) -> io::Result<T> {
        let fd = self.fd.get_ref();
        if let Some(polled) = &self.polled
            && let Some(seen) = polled.state.seen(direction)
        {
            let result = call(fd);
            let is_drained = match &result {
                Ok((_, drained)) => *drained,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            };
            if is_drained {
                polled.state.clear(direction, seen);
            }
            return result.map(|(value, _)| value);
        }
        let mut value = None;
        let tried = self.fd.try_io(direction.interest(), |fd| {
            let (called, drained) = call(fd)?;
            value = Some(called);
            match drained {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => Ok(()),
            }
        });
        match value {
            Some(value) => Ok(value),
            None => Err(tried.expect_err("a call without a value has failed")),
        }
    }

    /// Returns a guard if the poller reports the descriptor ready; otherwise registers the waker.
    pub(super) fn poll_polled(
        &self,
        direction: IoDirection,
        waker: &Waker,
    ) -> Option<ReadyGuard<'_>> {
        let polled = self.polled.as_ref()?;
        let state = &polled.state;
        let seen = (state.seen(direction)).or_else(|| state.register(direction, waker))?;
        Some(ReadyGuard {
            fd: self,
            by: ReadyBy::Poller { direction, seen },
        })
    }

    pub(super) fn ready_by_reactor<'a>(
        &'a self,
        guard: AsyncFdReadyGuard<'a, OwnedFd>,
    ) -> ReadyGuard<'a> {
        ReadyGuard {
            fd: self,
            by: ReadyBy::Reactor(guard),
        }
    }
}

enum ReadyBy<'a> {
    Reactor(AsyncFdReadyGuard<'a, OwnedFd>),
    Poller { direction: IoDirection, seen: u32 },
}

/// A descriptor that is reported ready. A user that finds it not ready must clear the readiness.
#[must_use = "a descriptor that is found not to be ready is to be cleared"]
pub(super) struct ReadyGuard<'a> {
    fd: &'a Watched,
    by: ReadyBy<'a>,
}

impl ReadyGuard<'_> {
    pub(super) fn get_inner(&self) -> &OwnedFd {
        self.fd.get_ref()
    }

    /// Clears the readiness: a call would have blocked.
    pub(super) fn clear_ready(&mut self) {
        match &mut self.by {
            ReadyBy::Reactor(guard) => guard.clear_ready(),
            ReadyBy::Poller { direction, seen } => {
                if let Some(polled) = &self.fd.polled {
                    polled.state.clear(*direction, *seen);
                }
            }
        }
    }

    /// Keeps the readiness.
    pub(super) fn retain_ready(&mut self) {
        if let ReadyBy::Reactor(guard) = &mut self.by {
            guard.retain_ready();
        }
    }

    /// Returns true if the peer has ended its stream.
    pub(super) fn is_read_closed(&self) -> bool {
        match &self.by {
            ReadyBy::Reactor(guard) => guard.ready().is_read_closed(),
            ReadyBy::Poller { seen, .. } => seen & ReadyBits::READ_CLOSED.bits() != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tests::CountingWaker;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// "once, and by no edge that it does not wait for": becoming writable does not wake a task
    /// that waits to read.
    #[test]
    fn an_edge_wakes_who_awaits_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let poller = Poller::new().unwrap();
        let both = Interest::READABLE | Interest::WRITABLE;
        let polled = poller.add(ours.as_raw_fd(), both);
        let counting = Arc::<CountingWaker>::default();
        let waker = Waker::from(Arc::clone(&counting));
        let woken = || counting.wakes();
        assert_eq!(polled.state.register(IoDirection::Read, &waker), None);
        assert!(!poller.poll_now(), "it may be written, and no more");
        theirs.write_all(b"x").unwrap();
        assert!(poller.poll_now());
        assert_eq!(woken(), 1);
        theirs.write_all(b"y").unwrap();
        assert!(!poller.poll_now(), "it is not awaited any more");
        polled.state.register(IoDirection::Write, &waker);
        theirs.write_all(b"z").unwrap();
        assert!(poller.poll_now());
        assert_eq!(woken(), 2);
        let seen = polled.state.readiness.load(Ordering::Relaxed);
        let both = IoDirection::Read.bit() | IoDirection::Write.bit();
        assert_eq!(seen & both, both);
    }
}
