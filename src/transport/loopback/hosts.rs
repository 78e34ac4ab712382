//! The hosts of an in-process network, for tests: which exist, which of them are up, and the wires
//! between them. Host 0 has no name; objects that ask for no host are on it.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep_until};

use super::LoopbackNet;
use super::pipe::Pipe;
use crate::error::{Error, ErrorKind, Result};

/// The state of a host's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostStatus {
    Up,
    /// Stopped, as by a signal: its sockets stay, and receive what fits into their buffers.
    Hung,
    Down,
}

struct HostState {
    name: String,
    ip: IpAddr,
    life: HostStatus,
    /// Number of crashes.
    generation: u64,
    /// Number of fabrics opened on this host.
    fabrics: u64,
    tasks: Vec<Weak<TaskState>>,
    aborts: Vec<AbortHandle>,
    /// Both pipes of each connection's end on this host.
    ends: Vec<[Weak<Pipe>; 2]>,
}

/// The hosts of a network.
pub(super) struct Hosts {
    state: Mutex<State>,
}

struct State {
    hosts: Vec<HostState>,
    wires: BTreeMap<(usize, usize), Arc<Wire>>,
}

impl Hosts {
    pub(super) fn new() -> Self {
        let nameless = HostState::new(String::new(), Ipv4Addr::LOCALHOST.into());
        Hosts {
            state: Mutex::new(State {
                hosts: vec![nameless],
                wires: BTreeMap::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn of_ip(&self, ip: IpAddr) -> usize {
        let state = self.lock();
        let found = state.hosts.iter().position(|host| host.ip == ip);
        found.unwrap_or(0)
    }

    /// Returns the wire from one host to another; `None` within a host.
    pub(super) fn wire(&self, from: usize, to: usize) -> Option<Arc<Wire>> {
        (from != to).then(|| Arc::clone(self.lock().wires.entry((from, to)).or_default()))
    }

    /// Registers an end of a connection, which breaks when its host crashes.
    pub(super) fn add_end(&self, host: usize, pipes: [&Arc<Pipe>; 2]) {
        let ends = &mut self.lock().hosts[host].ends;
        if ends.len() == ends.capacity() {
            ends.retain(|[pipe, _]| pipe.strong_count() > 0);
        }
        ends.push(pipes.map(Arc::downgrade));
    }
}

impl HostState {
    fn new(name: String, ip: IpAddr) -> Self {
        HostState {
            name,
            ip,
            life: HostStatus::Up,
            generation: 0,
            fabrics: 0,
            tasks: Vec::new(),
            aborts: Vec::new(),
            ends: Vec::new(),
        }
    }
}

/// One process of a host, from its start to its crash.
#[derive(Clone)]
pub(crate) struct Host {
    net: Arc<LoopbackNet>,
    index: usize,
    generation: u64,
}

impl LoopbackNet {
    /// Returns the present process of the host with this name; makes the host if there is none.
    pub(crate) fn host(self: &Arc<Self>, name: &str) -> Host {
        let mut state = self.hosts.lock();
        let index = match state.hosts.iter().position(|host| host.name == name) {
            Some(index) => index,
            None => {
                let index = state.hosts.len();
                let bytes = u32::try_from(index).unwrap_or(0).to_be_bytes();
                let ip = Ipv4Addr::new(10, bytes[1], bytes[2], bytes[3]);
                state.hosts.push(HostState::new(name.to_owned(), ip.into()));
                index
            }
        };
        Host {
            net: Arc::clone(self),
            index,
            generation: state.hosts[index].generation,
        }
    }

    /// Returns the names of all named hosts, in the order in which they were made.
    pub(crate) fn host_names(&self) -> Vec<String> {
        let state = self.hosts.lock();
        let named = state.hosts.iter().skip(1);
        named.map(|host| host.name.clone()).collect()
    }

    /// Changes the wire from one host to another.
    pub(crate) fn change_wire(&self, from: &Host, to: &Host, change: impl FnOnce(&mut WireState)) {
        if let Some(wire) = self.hosts.wire(from.index, to.index) {
            wire.change(change);
        }
    }
}

impl Host {
    pub(crate) fn ip(&self) -> IpAddr {
        self.net.hosts.lock().hosts[self.index].ip
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Returns how often the host had crashed when this process started.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Counts one more fabric; returns its number.
    pub(crate) fn count_fabric(&self) -> u64 {
        let fabrics = &mut self.net.hosts.lock().hosts[self.index].fabrics;
        *fabrics += 1;
        *fabrics
    }

    /// Translates an address for this host: an unspecified or loopback address becomes the host's
    /// own.
    pub(super) fn localize(&self, mut address: SocketAddr) -> SocketAddr {
        if address.ip().is_unspecified() || address.ip().is_loopback() {
            address.set_ip(self.ip());
        }
        address
    }

    fn life(&self) -> HostStatus {
        let state = self.net.hosts.lock();
        let host = &state.hosts[self.index];
        match host.generation == self.generation {
            true => host.life,
            false => HostStatus::Down,
        }
    }

    /// # Errors
    /// [`ErrorKind::DriverGone`] if the host has crashed since.
    pub(crate) fn check_up(&self) -> Result<()> {
        if self.life() != HostStatus::Down {
            return Ok(());
        }
        let name = self.net.hosts.lock().hosts[self.index].name.clone();
        let what = format!("the node {name} has crashed; after its restart, ask the net for it");
        Err(Error::new(ErrorKind::DriverGone, what))
    }

    /// Ends the process: its connections are reset, its listeners are gone, its tasks are dropped.
    pub(crate) fn crash(&self) {
        let (tasks, aborts, ends, ip) = {
            let mut state = self.net.hosts.lock();
            let host = &mut state.hosts[self.index];
            host.life = HostStatus::Down;
            host.generation += 1;
            let ends = std::mem::take(&mut host.ends);
            let tasks = std::mem::take(&mut host.tasks);
            (tasks, std::mem::take(&mut host.aborts), ends, host.ip)
        };
        self.net.forget_sockets_of(ip);
        for pipe in ends.iter().flatten().filter_map(Weak::upgrade) {
            pipe.reset();
        }
        aborts.iter().for_each(AbortHandle::abort);
        wake_all(&tasks);
    }

    /// Starts a new process, if none runs.
    pub(crate) fn restart(&self) {
        self.net.hosts.lock().hosts[self.index].life = HostStatus::Up;
    }

    /// Stops the process, if it is up.
    pub(crate) fn hang(&self) {
        self.set_life(HostStatus::Up, HostStatus::Hung);
    }

    /// Lets a stopped process continue.
    pub(crate) fn resume(&self) {
        self.set_life(HostStatus::Hung, HostStatus::Up);
    }

    fn set_life(&self, from: HostStatus, to: HostStatus) {
        let tasks = {
            let mut state = self.net.hosts.lock();
            let host = &mut state.hosts[self.index];
            if host.life != from {
                return;
            }
            host.life = to;
            host.tasks.clone()
        };
        wake_all(&tasks);
    }

    /// Wraps a future: it is not polled while the host hangs, and is dropped when the host crashes;
    /// the result is then `None`.
    pub(crate) fn govern<F: Future>(&self, future: F) -> Governed<F> {
        let task = Arc::new(TaskState {
            host: self.clone(),
            waker: AtomicWaker::new(),
        });
        let tasks = &mut self.net.hosts.lock().hosts[self.index].tasks;
        if tasks.len() == tasks.capacity() {
            tasks.retain(|task| task.strong_count() > 0);
        }
        tasks.push(Arc::downgrade(&task));
        Governed {
            future: Some(Box::pin(future)),
            task,
        }
    }

    /// Spawns a task of this host.
    pub(crate) fn spawn<F>(&self, runtime: &Handle, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let governed = self.govern(future);
        let handle = runtime.spawn(async move {
            match governed.await {
                Some(output) => output,
                // The task is being aborted.
                None => std::future::pending().await,
            }
        });
        let mut state = self.net.hosts.lock();
        let host = &mut state.hosts[self.index];
        if host.generation == self.generation {
            host.aborts.retain(|task| !task.is_finished());
            host.aborts.push(handle.abort_handle());
        } else {
            handle.abort();
        }
        handle
    }
}

debug_fields!(Host, self => index: self.index, life: self.life());

struct TaskState {
    host: Host,
    waker: AtomicWaker,
}

fn wake_all(tasks: &[Weak<TaskState>]) {
    for task in tasks.iter().filter_map(Weak::upgrade) {
        task.waker.wake();
    }
}

/// The future of [`Host::govern`].
pub(crate) struct Governed<F> {
    future: Option<Pin<Box<F>>>,
    task: Arc<TaskState>,
}

impl<F: Future> Future for Governed<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.task.waker.register(cx.waker());
        match self.task.host.life() {
            HostStatus::Hung => Poll::Pending,
            HostStatus::Down => {
                self.future = None;
                Poll::Ready(None)
            }
            HostStatus::Up => match &mut self.future {
                Some(future) => future.as_mut().poll(cx).map(Some),
                None => Poll::Ready(None),
            },
        }
    }
}

/// One direction between two hosts, shared by all traffic in that direction.
#[derive(Default)]
pub(super) struct Wire {
    state: Mutex<WireState>,
}

#[derive(Default)]
pub(crate) struct WireState {
    /// While the wire is cut, nothing passes.
    pub(crate) is_cut: bool,
    /// While the wire is cut, resets are lost, and so are all later bytes of their connections.
    pub(crate) loses_resets: bool,
    pub(crate) latency: Duration,
    /// Bytes per second; `None`: any number at once.
    pub(crate) bandwidth: Option<u64>,
    /// Time at which all bytes given to the wire have left.
    free_at: Option<Instant>,
    /// Number of cuts.
    cuts: u64,
    /// Wakers to wake when the wire is whole again.
    waiting: VecDeque<Waker>,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, WireState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut WireState)) {
        let wakers = {
            let mut state = self.lock();
            let was_cut = state.is_cut;
            change(&mut state);
            if state.is_cut && !was_cut {
                state.cuts += 1;
                state.free_at = None;
            }
            std::mem::take(&mut state.waiting)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns how often the wire was cut. `None`: it is cut, and the next change wakes the waker.
    pub(super) fn poll_whole(&self, waker: &Waker) -> Option<u64> {
        let mut state = self.lock();
        if !state.is_cut {
            return Some(state.cuts);
        }
        if !state.waiting.iter().any(|held| held.will_wake(waker)) {
            state.waiting.push_back(waker.clone());
        }
        None
    }

    pub(super) fn loses_resets(&self) -> bool {
        let state = self.lock();
        state.is_cut && state.loses_resets
    }

    pub(super) fn is_cut(&self) -> bool {
        self.lock().is_cut
    }

    /// Returns when bytes that leave now arrive, which is after all bytes that left before.
    pub(super) fn arrival(&self, bytes: usize) -> Instant {
        let mut state = self.lock();
        let now = Instant::now();
        let start = state.free_at.map_or(now, |free| free.max(now));
        let takes = state.bandwidth.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)
        });
        state.free_at = Some(start + takes);
        start + takes + state.latency
    }

    /// Waits until something small has passed the wire; sends it again after each cut.
    pub(super) async fn pass(&self) {
        loop {
            let whole = |cx: &mut Context<'_>| {
                self.poll_whole(cx.waker())
                    .map_or(Poll::Pending, Poll::Ready)
            };
            let cuts = std::future::poll_fn(whole).await;
            let at = self.arrival(0);
            if at > Instant::now() {
                sleep_until(at).await;
            }
            let state = self.lock();
            if state.cuts == cuts && !state.is_cut {
                return;
            }
        }
    }
}
