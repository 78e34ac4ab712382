//! Registration: awaited, at once, or reported by an event (`fi_mr(3)`, rulings 7 and 8).
//!
//! In a domain bound with `REG_MR` the work that takes time (faulting pages in, for
//! `FI_MR_ALLOCATED`) runs on the runtime's blocking threads, a piece at a time, so that it can be
//! cancelled between pieces. Registration without such work is O(1) on TCP and done on the spot,
//! whatever the size.
//!
//! The end of a job happens in one order: result stored, event readable, wakers woken.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crate::buf::{
    ConvertMany, Held, LocalUse, Memory, Payload, ReadOnlyBuf, RegionBufs, RegionMemory,
};
use crate::eq::{Event, EventError, EventSlot};
use crate::error::{Error, ErrorKind, OperationKind, Phase, Result};
use crate::id::Context;
use crate::info::MrMode;
use crate::mr::{Access, MemoryRegion, NewRegion, ReadOnlyRegion, prepare, unprepare};
use crate::op_error::Failed;
use crate::sync::{Keep, WakeList};

use super::Domain;

/// Bytes faulted in between two looks at whether the registration is still wanted.
const FAULT_PIECE: usize = 16 << 20;
/// Registrations of one domain that fault pages in at the same time: enough to keep one core of a
/// small machine busy without taking the blocking threads from everybody else.
pub(super) const JOBS_AT_ONCE: usize = 2;

/// A registration being described. Await it, or end it by [`now`](Self::now) or
/// [`submit`](Self::submit).
#[must_use = "a registration does nothing until it is awaited, or ended by `now` or `submit`"]
#[derive(Debug)]
pub struct Register<B: RegionBufs> {
    domain: Domain,
    buffers: B,
    request: Request,
}

#[derive(Clone, Debug)]
struct Request {
    access: Access,
    key: Option<u64>,
    context: Option<Context>,
}

impl<B: RegionBufs> Register<B> {
    pub(super) fn new(domain: Domain, buffers: B) -> Self {
        let request = Request {
            access: Access::all(),
            key: None,
            context: None,
        };
        Register {
            domain,
            buffers,
            request,
        }
    }

    /// What the region may be used for, here and by peers (`access` of `fi_mr_reg`). Default:
    /// everything.
    pub fn access(mut self, access: Access) -> Self {
        self.request.access = access;
        self
    }

    /// The key that peers will use (`requested_key`). Default: 64 random bits of the operating
    /// system. A key that the application chooses can be guessed as well as it is chosen.
    pub fn key(mut self, key: u64) -> Self {
        self.request.key = Some(key);
        self
    }

    /// Asks for an event besides the future's end: `MrComplete` with this context and the region,
    /// or an error with it. Only in a domain bound with `REG_MR`; ignored otherwise, as `fi_mr(3)`
    /// says of synchronous calls.
    pub fn context(mut self, context: impl Into<Context>) -> Self {
        self.request.context = Some(context.into());
        self
    }

    /// Registers within this call.
    ///
    /// # Errors
    /// Those of awaiting; and [`ErrorKind::BadState`] in a domain bound with `REG_MR`, which
    /// registers asynchronously only. The buffers come back with the error.
    pub fn now(self) -> Result<MemoryRegion, Failed<B>> {
        let Register {
            domain,
            buffers,
            request,
        } = self;
        if domain.registers_asynchronously() {
            let error = Error::new(
                ErrorKind::BadState,
                "this domain is bound with REG_MR and registers asynchronously",
            );
            return Err(Failed::new(
                error.with_operation(OperationKind::Register),
                Some(buffers),
            ));
        }
        let held = take_buffers(&domain, buffers)?;
        register_now(&domain, held, &request).map_err(give_buffers)
    }

    /// Starts the registration and returns; the event carries the region, with this context.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if the domain is not bound with `REG_MR`; [`ErrorKind::Again`] if
    /// the event queue has no slot. No event is written then, and the buffers come back.
    pub fn submit(mut self, context: impl Into<Context>) -> Result<(), Failed<B>> {
        self.request.context = Some(context.into());
        let Register {
            domain,
            buffers,
            request,
        } = self;
        let refused = |kind, what: &'static str, buffers| {
            let error = Error::new(kind, what).with_operation(OperationKind::Register);
            Failed::new(error, Some(buffers))
        };
        if !domain.registers_asynchronously() {
            let what = "the domain is not bound with REG_MR";
            return Err(refused(ErrorKind::BadState, what, buffers));
        }
        let Some(events) = domain.event_queue() else {
            let what = "no handle of the event queue is left";
            return Err(refused(ErrorKind::BadState, what, buffers));
        };
        let Some(slot) = events.try_reserve() else {
            return Err(refused(
                ErrorKind::Again,
                "the event queue is full",
                buffers,
            ));
        };
        let held = take_buffers(&domain, buffers)?;
        let job = Arc::new(Job::new(Some(slot), request.context, false));
        start_job(domain, held, request, job);
        Ok(())
    }
}

impl<B: RegionBufs> IntoFuture for Register<B> {
    type Output = Result<MemoryRegion, Failed<B>>;
    type IntoFuture = Registration<B>;

    /// Submits the registration; polling only waits.
    fn into_future(self) -> Registration<B> {
        let Register {
            domain,
            buffers,
            request,
        } = self;
        let state = if domain.registers_asynchronously() {
            Registration::begin(domain, buffers, request)
        } else {
            State::Now(Some((domain, buffers, request)))
        };
        Registration { state }
    }
}

/// The future of a registration.
///
/// # Cancel safety
/// Dropped before its end, the registration is undone: the region's key stops working, the buffers
/// are freed, and if a context was given one Canceled error event carries it.
#[must_use = "a registration that is dropped is undone"]
pub struct Registration<B: RegionBufs> {
    state: State<B>,
}

enum State<B> {
    /// Synchronous: ends at its first poll.
    Now(Option<(Domain, B, Request)>),
    /// Waits for a slot in the event queue.
    AwaitSlot {
        reserve: Pin<Box<dyn Future<Output = Option<EventSlot>> + Send>>,
        parts: Option<(Domain, B, Request)>,
    },
    /// The job runs.
    Running(Arc<Job>),
    /// It could not be submitted.
    Refused(Option<Failed<B>>),
    Done,
}

impl<B: RegionBufs> Registration<B> {
    fn begin(domain: Domain, buffers: B, request: Request) -> State<B> {
        // Without a context, or with nobody left to read it, there is no event.
        let Some(events) = request.context.and_then(|_| domain.event_queue()) else {
            return Registration::run(domain, buffers, request, None);
        };
        match events.try_reserve() {
            Some(slot) => Registration::run(domain, buffers, request, Some(slot)),
            None => {
                let reserve = events.reserve();
                State::AwaitSlot {
                    reserve: Box::pin(reserve),
                    parts: Some((domain, buffers, request)),
                }
            }
        }
    }

    fn run(domain: Domain, buffers: B, request: Request, slot: Option<EventSlot>) -> State<B> {
        match take_buffers(&domain, buffers) {
            Ok(held) => {
                let job = Arc::new(Job::new(slot, request.context, true));
                start_job(domain, held, request, Arc::clone(&job));
                State::Running(job)
            }
            // The slot goes back unused: a submission that fails writes no event.
            Err(failed) => State::Refused(Some(failed)),
        }
    }
}

impl<B: RegionBufs> Future for Registration<B> {
    type Output = Result<MemoryRegion, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Now(parts) => {
                    let (domain, buffers, request) = parts
                        .take()
                        .expect("a synchronous registration is polled once");
                    this.state = State::Done;
                    let result = take_buffers(&domain, buffers).and_then(|held| {
                        register_now(&domain, held, &request).map_err(give_buffers)
                    });
                    return Poll::Ready(result);
                }
                State::AwaitSlot { reserve, parts } => {
                    let Poll::Ready(slot) = reserve.as_mut().poll(cx) else {
                        return Poll::Pending;
                    };
                    let (domain, buffers, request) =
                        parts.take().expect("the parts wait for the slot");
                    let Some(slot) = slot else {
                        let error = Error::new(ErrorKind::BadState, "the event queue was closed");
                        this.state = State::Done;
                        return Poll::Ready(Err(Failed::new(error, Some(buffers))));
                    };
                    this.state = Registration::run(domain, buffers, request, Some(slot));
                }
                State::Running(job) => {
                    let Poll::Ready(result) = job.poll(cx.waker()) else {
                        return Poll::Pending;
                    };
                    this.state = State::Done;
                    return Poll::Ready(result.map_err(give_buffers));
                }
                State::Refused(failed) => {
                    let failed = failed
                        .take()
                        .expect("a refused registration is polled once");
                    this.state = State::Done;
                    return Poll::Ready(Err(failed));
                }
                State::Done => panic!("a registration was polled after it ended"),
            }
        }
    }
}

impl<B: RegionBufs> Drop for Registration<B> {
    fn drop(&mut self) {
        if let State::Running(job) = &self.state {
            job.abandon();
        }
    }
}

// Nothing in a registration is pinned: the boxed future is on its own.
impl<B: RegionBufs> Unpin for Registration<B> {}

impl<B: RegionBufs> fmt::Debug for Registration<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").finish_non_exhaustive()
    }
}

type Outcome = Result<MemoryRegion, (Error, Vec<Held>)>;

/// A registration at work, shared by its future and the thread that does the work.
struct Job {
    abandoned: AtomicBool,
    state: Mutex<JobState>,
}

struct JobState {
    slot: Option<EventSlot>,
    context: Option<Context>,
    /// Somebody awaits the result; else the event alone carries it.
    awaited: bool,
    result: Option<Outcome>,
    finished: bool,
    waker: Option<Waker>,
}

impl Job {
    fn new(slot: Option<EventSlot>, context: Option<Context>, awaited: bool) -> Self {
        Job {
            abandoned: AtomicBool::new(false),
            state: Mutex::new(JobState {
                slot,
                context,
                awaited,
                result: None,
                finished: false,
                waker: None,
            }),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, JobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// The future goes away: what is done already is undone, what is not will not be.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        let mut state = self.lock();
        // Dropping the region takes its key back. Its event, if any, was written before.
        let undone = state.result.take();
        drop(state);
        drop(undone);
    }

    fn poll(&self, waker: &Waker) -> Poll<Outcome> {
        let mut state = self.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    fn finish(&self, outcome: Outcome) {
        let mut wakes = WakeList::new();
        let mut state = self.lock();
        state.finished = true;
        let outcome = if self.is_abandoned() {
            Err((
                Error::new(ErrorKind::Canceled, "the registration was dropped"),
                Vec::new(),
            ))
        } else {
            outcome
        };
        let event = state.context.map(|context| match &outcome {
            Ok(region) => Event::MrComplete {
                context,
                region: region.clone(),
            },
            Err((error, _)) => {
                Event::Error(EventError::new(error.clone()).with_context(Some(context)))
            }
        });
        if state.awaited {
            state.result = Some(outcome);
        }
        if let (Some(slot), Some(event)) = (state.slot.take(), event) {
            slot.fill(event, &mut wakes);
        }
        if let Some(waker) = state.waker.take() {
            wakes.push(waker);
        }
        drop(state);
        drop(wakes);
    }
}

impl Domain {
    /// True if an event queue was bound with `REG_MR`.
    fn registers_asynchronously(&self) -> bool {
        self.binding().registers
    }

    fn new_region(&self, memory: Arc<RegionMemory>, request: &Request, keep: Keep) -> NewRegion {
        NewRegion {
            memory,
            requested_key: request.key,
            context: request.context,
            table: Arc::clone(&self.inner.regions),
            nudge: self.inner.engine.region_nudge(),
            keep: Arc::new(keep),
        }
    }

    fn faults_in(&self) -> bool {
        self.inner.mr_mode.contains(MrMode::ALLOCATED)
    }
}

fn take_buffers<B: RegionBufs>(domain: &Domain, buffers: B) -> Result<Vec<Held>, Failed<B>> {
    let limit = domain.info().domain.mr_iov_limit;
    if buffers.count() > limit {
        let error = Error::new(
            ErrorKind::TooLarge,
            format!(
                "{} buffers, a region takes at most {limit}",
                buffers.count()
            ),
        );
        return Err(Failed::new(
            error.with_operation(OperationKind::Register),
            Some(buffers),
        ));
    }
    let payload = buffers
        .into_payload(LocalUse::Receive)
        .map_err(|(error, buffers)| Failed::new(error, Some(buffers)))?;
    payload.into_held().map_err(|_| {
        Failed::new(
            Error::new(ErrorKind::InvalidArgument, "part of another region"),
            None,
        )
    })
}

fn give_buffers<B: RegionBufs>((error, held): (Error, Vec<Held>)) -> Failed<B> {
    let payload = Payload::from_pieces(held.into_iter().map(Memory::Held).collect());
    let error = error.with_operation(OperationKind::Register);
    Failed::new(error, B::from_payload(payload))
}

/// A read-only registration; see [`Domain::register_read_only`].
#[must_use = "a registration does nothing until it is awaited, or ended by `now`"]
#[derive(Debug)]
pub struct RegisterReadOnly<B: ReadOnlyBuf> {
    domain: Domain,
    bytes: B,
    request: Request,
}

impl<B: ReadOnlyBuf> RegisterReadOnly<B> {
    pub(super) fn new(domain: Domain, bytes: B) -> Self {
        let request = Request {
            access: Access::READ_ONLY,
            key: None,
            context: None,
        };
        RegisterReadOnly {
            domain,
            bytes,
            request,
        }
    }

    /// What the region may be used for: among [`Access::READ_ONLY`], which is the default.
    pub fn access(mut self, access: Access) -> Self {
        self.request.access = access;
        self
    }

    /// The key that peers will use (`requested_key`). Default: 64 random bits.
    pub fn key(mut self, key: u64) -> Self {
        self.request.key = Some(key);
        self
    }

    /// Registers within this call; there is nothing to wait for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for rights that read-only bytes cannot grant,
    /// [`ErrorKind::KeyInUse`], [`ErrorKind::KeyRejected`]. The bytes come back.
    pub fn now(self) -> Result<ReadOnlyRegion, Failed<B>> {
        let RegisterReadOnly {
            domain,
            bytes,
            request,
        } = self;
        let payload = bytes
            .into_payload(LocalUse::Send)
            .map_err(|(error, bytes)| Failed::new(error, Some(bytes)))?;
        let give_back = |(error, held): (Error, Vec<Held>)| {
            let payload = Payload::from_pieces(held.into_iter().map(Memory::Held).collect());
            Failed::new(
                error.with_operation(OperationKind::Register),
                B::from_payload(payload),
            )
        };
        let held = payload.into_held().map_err(|payload| {
            let error = Error::new(ErrorKind::InvalidArgument, "part of another region");
            Failed::new(error, B::from_payload(payload))
        })?;
        let memory = prepare(held, request.access).map_err(give_back)?;
        let keep = match domain.keep_open("memory region") {
            Ok(keep) => keep,
            Err(error) => return Err(give_back((error, unprepare(&memory)))),
        };
        ReadOnlyRegion::create(domain.new_region(memory, &request, keep)).map_err(give_back)
    }
}

impl<B: ReadOnlyBuf> IntoFuture for RegisterReadOnly<B> {
    type Output = Result<ReadOnlyRegion, Failed<B>>;
    type IntoFuture = std::future::Ready<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        std::future::ready(self.now())
    }
}

fn start_job(domain: Domain, held: Vec<Held>, request: Request, job: Arc<Job>) {
    if !domain.faults_in() {
        job.finish(make_region(&domain, held, &request));
        return;
    }
    let runtime = domain.inner.runtime.clone();
    let worker = Arc::clone(&job);
    let permits = Arc::clone(&domain.inner.jobs);
    let guard = FinishGuard(Some(job));
    runtime.clone().spawn(async move {
        let guard = guard;
        // Few at a time; the permit lives until the blocking work has ended.
        let Ok(permit) = permits.acquire_owned().await else {
            return;
        };
        let work = move || {
            let _permit = permit;
            let outcome = fault_in_and_register(&domain, held, &request, &worker);
            guard.finish(outcome);
        };
        // The result comes through the job; a runtime that shuts down drops the guard instead.
        let _ = tokio::task::spawn_blocking(work).await;
    });
}

/// Tells the job of its end even if the runtime drops the work before it runs.
struct FinishGuard(Option<Arc<Job>>);

impl FinishGuard {
    fn finish(mut self, outcome: Outcome) {
        if let Some(job) = self.0.take() {
            job.finish(outcome);
        }
    }
}

impl Drop for FinishGuard {
    fn drop(&mut self) {
        if let Some(job) = self.0.take() {
            job.finish(Err((crate::progress::Engine::gone_error(), Vec::new())));
        }
    }
}

fn fault_in_and_register(
    domain: &Domain,
    held: Vec<Held>,
    request: &Request,
    job: &Job,
) -> Outcome {
    let memory = prepare(held, request.access)?;
    let mut at = 0;
    while at < memory.len() {
        if job.is_abandoned() {
            let error = Error::new(ErrorKind::Canceled, "the registration was dropped");
            return Err((error, unprepare(&memory)));
        }
        let step = FAULT_PIECE.min(memory.len() - at);
        if let Err(error) = memory.fault_in(at, step) {
            return Err((error, unprepare(&memory)));
        }
        at += step;
    }
    create(domain, memory, request)
}

fn register_now(domain: &Domain, held: Vec<Held>, request: &Request) -> Outcome {
    if domain.faults_in() {
        let job = Job::new(None, None, false);
        return fault_in_and_register(domain, held, request, &job);
    }
    make_region(domain, held, request)
}

fn make_region(domain: &Domain, held: Vec<Held>, request: &Request) -> Outcome {
    create(domain, prepare(held, request.access)?, request)
}

fn create(domain: &Domain, memory: Arc<RegionMemory>, request: &Request) -> Outcome {
    let keep = match domain.keep_open("memory region") {
        Ok(keep) => keep,
        Err(error) => return Err((error, unprepare(&memory))),
    };
    MemoryRegion::create(domain.new_region(memory, request, keep))
        .map_err(|(error, held)| (error.with_phase(Phase::Ended), held))
}
