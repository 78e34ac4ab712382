//! A descriptor whose readiness is known: from Tokio's reactor, and, where the application drives
//! by hand, also from an epoll descriptor of our own ([`Poller`]), which can be asked at any time.
//!
//! Each of the two reports edges by itself, so a socket counts as ready when either says so. A call
//! that would block clears what said so, and the next look asks the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::IoDirection;
use crate::limits::POLLER_EVENTS_MAX;
use crate::slab::{Key, Slab};
use crate::sync::{Lock, WakeList};

bitflags::bitflags! {
    /// What is known of a socket.
    #[derive(Clone, Copy)]
    struct ReadyBits: u32 {
        const READABLE = 1;
        const WRITABLE = 1 << 1;
        /// The peer has ended its stream, or the connection is broken; never cleared.
        const READ_CLOSED = 1 << 2;
    }
}

/// What each edge adds above the bits, so that clearing one never clears a later one.
const EDGE: u32 = ReadyBits::all().bits() + ReadyBits::READABLE.bits();

impl IoDirection {
    fn bit(self) -> u32 {
        match self {
            IoDirection::Read => ReadyBits::READABLE.bits(),
            IoDirection::Write => ReadyBits::WRITABLE.bits(),
        }
    }
}

/// An epoll descriptor, asked by who polls. It never sleeps.
pub(in crate::transport) struct Poller {
    epoll: OwnedFd,
    sockets: Lock<Slab<Arc<PolledState>>>,
}

/// What is known of one socket, and who is woken when that changes.
#[derive(Default)]
struct PolledState {
    readiness: AtomicU32,
    waker: Mutex<Option<Waker>>,
}

impl PolledState {
    fn set(&self, bits: u32, wakes: &mut WakeList) {
        let add = |word: u32| Some((word | bits).wrapping_add(EDGE));
        let _ = (self.readiness).fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        wakes.extend(self.lock_waker().clone());
    }

    /// Clears one direction, unless there was an edge since this was seen.
    fn clear(&self, direction: IoDirection, seen: u32) {
        let clear = |word: u32| (word / EDGE == seen / EDGE).then_some(word & !direction.bit());
        let _ = (self.readiness).fetch_update(Ordering::AcqRel, Ordering::Acquire, clear);
    }

    fn lock_waker(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, waker: &Waker) {
        let _stale; // Declared before the guard, and so dropped after it.
        let mut held = self.lock_waker();
        if !held.as_ref().is_some_and(|held| held.will_wake(waker)) {
            _stale = held.replace(waker.clone());
        }
    }
}

impl Poller {
    pub(in crate::transport) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Poller {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            sockets: Lock::new(Slab::new()),
        }))
    }

    /// Takes in what is ready now, and wakes whom it is for. One system call; never blocks.
    pub(in crate::transport) fn poll_now(&self) {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; POLLER_EVENTS_MAX];
        let now = rustix::time::Timespec::default();
        // It fails by a signal only, and then the next look finds the same.
        let Ok(count) = epoll::wait(&self.epoll, &mut events[..], Some(&now)) else {
            return;
        };
        if count == 0 {
            return;
        }
        let mut wakes = WakeList::new();
        let sockets = self.sockets.lock("look for readiness");
        for event in &events[..count] {
            let (key, flags) = (Key::from_bits(event.data.u64()), event.flags);
            let Some(state) = sockets.get(key) else {
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
            state.set(bits.bits(), &mut wakes);
        }
        // The list drops, and wakes, after the guard.
        drop(sockets);
    }

    fn add(self: &Arc<Self>, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<Polled> {
        let state = Arc::<PolledState>::default();
        let key = (self.sockets.lock("watch a socket")).insert(Arc::clone(&state));
        let mut flags = EventFlags::ET;
        if interest.is_readable() {
            flags |= EventFlags::IN | EventFlags::RDHUP;
        }
        if interest.is_writable() {
            flags |= EventFlags::OUT;
        }
        let polled = Polled {
            poller: Arc::clone(self),
            key,
            state,
        };
        epoll::add(&self.epoll, fd, EventData::new_u64(key.to_bits()), flags)?;
        Ok(polled)
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
        let removed = (self.poller.sockets.lock("watch a socket no more")).remove(self.key);
        drop(removed);
    }
}

/// A descriptor, registered with the reactor of the runtime that was current, and with a poller.
pub(super) struct Watched {
    fd: AsyncFd<OwnedFd>,
    polled: Option<Polled>,
}

impl Watched {
    pub(super) fn new(
        fd: OwnedFd,
        interest: Interest,
        poller: Option<&Arc<Poller>>,
    ) -> io::Result<Self> {
        let polled = poller.map(|poller| poller.add(fd.as_fd(), interest));
        let polled = polled.transpose()?;
        // SAFETY: `OwnedFd` is open for as long as it lives, always answers with the same number,
        // and moves into the `AsyncFd`. Nothing in this folder takes it out by `get_mut`, so it is
        // open and the same until `into_inner` or the drop of the `AsyncFd`, which deregister it
        // first.
        let fd = unsafe { AsyncFd::register_with_interest(fd, interest) };
        let fd = fd.map_err(|error| error.into_parts().1)?;
        Ok(Watched { fd, polled })
    }

    pub(super) fn get_ref(&self) -> &OwnedFd {
        self.fd.get_ref()
    }

    pub(super) fn into_inner(self) -> OwnedFd {
        if let Some(polled) = &self.polled {
            // Fails only if it is not registered.
            let _ = epoll::delete(&polled.poller.epoll, self.fd.get_ref());
        }
        self.fd.into_inner()
    }

    pub(super) fn reactor(&self) -> &AsyncFd<OwnedFd> {
        &self.fd
    }

    /// Ready, as the poller knows; else whom to wake when it is.
    pub(super) fn poll_polled(
        &self,
        direction: IoDirection,
        waker: &Waker,
    ) -> Option<ReadyGuard<'_>> {
        let polled = self.polled.as_ref()?;
        let look = || {
            let seen = polled.state.readiness.load(Ordering::Acquire);
            (seen & direction.bit() != 0).then_some(seen)
        };
        let seen = look().or_else(|| {
            polled.state.register(waker);
            // Again: it may have been set in between.
            look()
        })?;
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

/// A descriptor that is ready. Who finds that it is not says so.
#[must_use = "a descriptor that is found not to be ready is to be cleared"]
pub(super) struct ReadyGuard<'a> {
    fd: &'a Watched,
    by: ReadyBy<'a>,
}

impl ReadyGuard<'_> {
    pub(super) fn get_inner(&self) -> &OwnedFd {
        self.fd.get_ref()
    }

    /// A call would have blocked.
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

    /// It is ready still.
    pub(super) fn retain_ready(&mut self) {
        if let ReadyBy::Reactor(guard) = &mut self.by {
            guard.retain_ready();
        }
    }

    /// The peer has ended its stream.
    pub(super) fn is_read_closed(&self) -> bool {
        match &self.by {
            ReadyBy::Reactor(guard) => guard.ready().is_read_closed(),
            ReadyBy::Poller { seen, .. } => seen & ReadyBits::READ_CLOSED.bits() != 0,
        }
    }
}
