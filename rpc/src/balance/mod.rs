//! Calls over a changing set of servers, for layers of `tower` (feature `tower`).

mod members;

use std::fmt::{self, Display};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{Either, poll_fn, select};
use futures::stream::FuturesUnordered;
use futures::{StreamExt, stream};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::discover::{Change, Discover};
use tower_service::Service;

use crate::caught::{caught, log};
use crate::client::{
    Call, Channel, FailedCall, LendingCall, LendingFuture, Loan, Reservation, random_of, until,
};
use crate::drive::within_runtime;
use crate::limits::DISCOVERY_PAUSE;
use crate::status::{CallFailure, Status};

use members::{Health, Members, Settings};

/// A `tower_service::Service` of calls that gives each call to one of a changing set of channels.
///
/// It picks two members at random, and takes the one with fewer outstanding calls. Members that are
/// not connected, whose servers drain, or whose windows are full get no call. A member whose calls
/// fail several times in a row is *ejected*: it gets no calls for a while, longer each time, unless
/// no other member is left; at most half of the members are ejected at a time. A member that joins,
/// reconnects or was ejected begins with a tenth of its share of the calls, which grows during the
/// [slow start](Self::slow_start).
///
/// The set comes from a `Discover` of `tower`: any stream of [`Change`](tower::discover::Change)s.
/// Members may be [lazy](crate::ChannelBuilder::connect_lazy); they connect when they join.
/// Outstanding calls of a removed member continue. Clones share the set, and each reserves room for
/// its own calls. The service is ready when a member has room, and never fails. Like a
/// [`ChannelService`](crate::ChannelService), it is also ready when the deadline of its last call
/// passes.
///
/// Clients create calls with their own channel: its deadline applies, unless the call sets one, and
/// errors name its server while no member has room. So create calls with a member's channel.
///
/// Calls that wait on purpose, such as the calls of a pipeline whose last stage is slow, need a
/// deadline that is longer than the wait, or [`no_deadline`](crate::Call::no_deadline): otherwise
/// healthy members are ejected.
///
/// These failures count: [`Code::DeadlineExceeded`], [`Code::Overloaded`], [`Code::Internal`],
/// [`Code::HandlerPanicked`], and the loss of a connection.
///
/// [`Code::DeadlineExceeded`]: crate::Code::DeadlineExceeded
/// [`Code::Overloaded`]: crate::Code::Overloaded
/// [`Code::Internal`]: crate::Code::Internal
/// [`Code::HandlerPanicked`]: crate::Code::HandlerPanicked
///
/// ```
/// use futures::channel::mpsc;
/// use tokio_fabric_rpc::{Balance, Channel, Status, retry};
/// use tower::ServiceBuilder;
/// use tower::discover::Change;
/// # use tokio_fabric_rpc::{Cx, Result, Server, service};
/// # #[service] trait Double { async fn double(&self, cx: &Cx, number: u32) -> Result<u32>; }
/// # struct Doubler;
/// # impl Double for Doubler {
/// #     async fn double(&self, _: &Cx, number: u32) -> Result<u32> { Ok(2 * number) }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let server = Server::new().add(DoubleServer::new(Doubler)).bind("127.0.0.1:0").await?;
/// # let address = server.local_addr();
/// // A task that watches the deployment sends what changes.
/// let (changes, discovered) = mpsc::unbounded::<std::result::Result<_, Status>>();
/// let member = Channel::builder().connect_lazy(address)?;
/// changes.unbounded_send(Ok(Change::Insert("cache-1", member.clone()))).unwrap();
///
/// let service = ServiceBuilder::new()
///     .retry(retry::NotStarted::new())
///     .service(Balance::new(discovered));
/// // The channel describes calls; they are made over the member that is picked.
/// let client = DoubleClient::over(member).layered(service);
/// assert_eq!(client.double(21).await?, 42);
/// # Ok(()) }
/// ```
pub struct Balance {
    set: Arc<Set>,
    /// The future by which this clone waits for a member with room.
    waiting: Option<Pin<Box<dyn Future<Output = Option<Picked>> + Send + Sync>>>,
    /// The member that gets this clone's next call. `Some`: the clone is ready.
    picked: Option<Picked>,
    /// The deadline of the last call made by this clone, or by the original before it was cloned.
    last_deadline: Option<Instant>,
}

/// Statistics of a [`Balance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BalanceStats {
    /// Members of the set.
    pub members: usize,
    /// Members that are connected to a server that is not draining.
    pub connected: usize,
    /// Members that are ejected.
    pub ejected: usize,
    /// How often a member was ejected.
    pub ejections: u64,
}

/// The state that all clones share.
struct Set {
    members: Arc<Mutex<Members>>,
    /// Notifies waiting tasks of a new member.
    changed: Arc<Notify>,
    /// The task that reads the changes.
    discovering: JoinHandle<()>,
    runtime: Handle,
}

impl Set {
    fn lock(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }

    async fn pick(&self) -> Picked {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (picked, channels) = {
                let members = &mut *self.lock();
                (members.pick(Instant::now()), members.channels())
            };
            if let Some(picked) = picked {
                return picked;
            }
            let rooms: FuturesUnordered<_> = channels
                .iter()
                .map(|it| async { it.inner().reserve(|| false).await.is_some() })
                .collect();
            // A closed channel will have no more room.
            let mut rooms = rooms.filter(|has_room| std::future::ready(*has_room));
            let next = std::pin::pin!(async {
                if rooms.next().await.is_none() {
                    std::future::pending::<()>().await;
                }
            });
            match select(changed, next).await {
                Either::Left(_) | Either::Right(_) => {}
            }
        }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        self.discovering.abort();
    }
}

fn lock(members: &Mutex<Members>) -> MutexGuard<'_, Members> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A member with room for a call.
struct Picked {
    channel: Channel,
    health: Arc<Health>,
    reserved: Reservation,
}

impl Balance {
    /// Balances over the channels of this stream of changes, which a task of the current runtime
    /// reads. If the stream returns an error, the error is logged, and the set does not change.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new<D>(discover: D) -> Balance
    where
        D: Discover<Service = Channel> + Send + 'static,
        D::Key: Send,
        D::Error: Display + Send,
    {
        let members: Arc<Mutex<Members>> = Arc::default();
        let changed: Arc<Notify> = Arc::default();
        let reading = read_changes(discover, Arc::clone(&members), Arc::clone(&changed));
        Balance {
            set: Arc::new(Set {
                members,
                changed,
                discovering: tokio::spawn(reading),
                runtime: Handle::current(),
            }),
            waiting: None,
            picked: None,
            last_deadline: None,
        }
    }

    /// Balances over these channels.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn over(channels: impl IntoIterator<Item = Channel>) -> Balance {
        let channels: Vec<_> = channels.into_iter().enumerate().collect();
        let changes = channels
            .into_iter()
            .map(|(at, it)| Ok(Change::Insert(at, it)));
        Balance::new(stream::iter(changes.collect::<Vec<Result<_, Status>>>()))
    }

    /// The time in which the share of a new member grows to a full share. Zero: at once. Default:
    /// 10 s. Clones share the setting.
    pub fn slow_start(self, time: Duration) -> Balance {
        self.set(|settings| settings.slow_start = time)
    }

    /// How many consecutive failures eject a member, at least 1, and the time of a first ejection;
    /// the time doubles with each ejection in a row, up to 60 s. `u32::MAX`: never ejects. Default:
    /// 5 failures, 5 s. Clones share the setting.
    pub fn ejection(self, failures: u32, time: Duration) -> Balance {
        self.set(|settings| (settings.failures, settings.ejection) = (failures.max(1), time))
    }

    fn set(self, change: impl FnOnce(&mut Settings)) -> Balance {
        change(&mut self.set.lock().settings);
        self
    }

    /// Statistics of the members.
    pub fn stats(&self) -> BalanceStats {
        self.set.lock().stats(Instant::now())
    }

    fn poll_picked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(picked) = &self.picked
            && picked.reserved.is_of_use()
        {
            return Poll::Ready(());
        }
        self.picked = None;
        if self.waiting.is_none() {
            self.picked = self.set.lock().pick(Instant::now());
        }
        if self.picked.is_none() {
            let (set, deadline) = (&self.set, self.last_deadline);
            let waiting = self.waiting.get_or_insert_with(|| {
                let (set, runtime) = (Arc::clone(set), set.runtime.clone());
                Box::pin(within_runtime(runtime, async move {
                    until(deadline, set.pick()).await
                }))
            });
            self.picked = ready!(waiting.as_mut().poll(cx));
            self.waiting = None;
        }
        Poll::Ready(())
    }

    /// Returns the future of a call over this member. The future records the call's outcome.
    fn record<F>(&self, future: F, health: Option<Arc<Health>>) -> BalancedCall<F> {
        BalancedCall {
            future,
            health,
            members: Arc::clone(&self.set.members),
        }
    }

    /// Takes the member for the next call, and the reserved room. If no member was picked, the
    /// deadline has passed; the call then ends with the reason why a member is not connected.
    fn take(&mut self) -> (Option<Channel>, Option<Arc<Health>>, Option<Reservation>) {
        match self.picked.take() {
            Some(it) => (Some(it.channel), Some(it.health), Some(it.reserved)),
            None => (self.set.lock().channels().into_iter().next(), None, None),
        }
    }
}

impl Clone for Balance {
    fn clone(&self) -> Self {
        Balance {
            set: Arc::clone(&self.set),
            waiting: None,
            picked: None,
            last_deadline: self.last_deadline,
        }
    }
}

impl fmt::Debug for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Balance").field(&self.stats()).finish()
    }
}

impl<T, E: From<Status> + CallFailure> Service<Call<T, E>> for Balance {
    type Response = T;
    type Error = E;
    type Future = BalancedCall<Call<T, E>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), E>> {
        self.poll_picked(cx).map(Ok)
    }

    /// Makes the call over the picked member. Without a pick, for instance after the deadline, the
    /// call goes to the first member without reserved room, and ends there with the reason.
    fn call(&mut self, mut call: Call<T, E>) -> Self::Future {
        let (channel, health, reserved) = self.take();
        if let Some(channel) = channel {
            call = call.over(&channel);
        }
        self.last_deadline = call.fix_deadline(Instant::now());
        self.record(call.holding(reserved), health)
    }
}

/// Lent memory is returned with the result, or in the error.
impl<T, E: From<Status> + CallFailure, L: Loan> Service<LendingCall<T, E, L>> for Balance {
    type Response = (T, L::Buffers);
    type Error = FailedCall<L::Buffers, E>;
    type Future = BalancedCall<LendingFuture<T, E, L>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_picked(cx).map(Ok)
    }

    /// Makes the call over the picked member. Without a pick, for instance after the deadline, the
    /// call goes to the first member without reserved room, and ends there with the reason.
    fn call(&mut self, mut call: LendingCall<T, E, L>) -> Self::Future {
        let (channel, health, reserved) = self.take();
        if let Some(channel) = channel {
            call = call.over(&channel);
        }
        self.last_deadline = call.fix_deadline(Instant::now());
        self.record(call.into_future().holding(reserved), health)
    }
}

/// A call of a [`Balance`]: the call's own future, whose outcome is recorded for the member.
///
/// # Cancel safety
/// The same as for the call.
#[must_use = "dropped, the call is cancelled"]
pub struct BalancedCall<F> {
    future: F,
    /// `None`: no member has the call.
    health: Option<Arc<Health>>,
    members: Arc<Mutex<Members>>,
}

impl<T, E, L: Loan> BalancedCall<LendingFuture<T, E, L>> {
    /// As [`LendingFuture::cancel`].
    pub async fn cancel(self) -> Option<L::Buffers> {
        self.future.cancel().await
    }
}

impl<F> fmt::Debug for BalancedCall<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalancedCall").finish_non_exhaustive()
    }
}

impl<T, E: CallFailure, F: Future<Output = Result<T, E>> + Unpin> Future for BalancedCall<F> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let end = ready!(Pin::new(&mut self.future).poll(cx));
        let status = end.as_ref().err().and_then(CallFailure::status);
        if let Some(health) = &self.health {
            match status.filter(|it| Health::is_failure(it)) {
                None => health.note_success(),
                Some(status) => lock(&self.members).note_failure(health, status, Instant::now()),
            }
        }
        Poll::Ready(end)
    }
}

/// Applies the changes to the set, until the stream ends.
async fn read_changes<D>(discover: D, members: Arc<Mutex<Members>>, changed: Arc<Notify>)
where
    D: Discover<Service = Channel>,
    D::Error: Display,
{
    let mut discover = std::pin::pin!(discover);
    let mut keys: Vec<(D::Key, u64)> = Vec::new();
    while let Some(change) = poll_fn(|cx| discover.as_mut().poll_discover(cx)).await {
        match change {
            Ok(Change::Insert(key, channel)) => {
                channel.inner().connect_at_first();
                let random = random_of(channel.domain());
                let id = lock(&members).insert(channel, random);
                let last = keys.iter_mut().find(|it| it.0 == key);
                let last = match last {
                    Some((_, last)) => Some(std::mem::replace(last, id)),
                    None => {
                        keys.push((key, id));
                        None
                    }
                };
                // The channel is dropped without the lock.
                let _last = last.map(|it| lock(&members).remove(it));
                // Runs the program's wakers, which may panic.
                caught("a waker", || changed.notify_waiters());
            }
            Ok(Change::Remove(key)) => {
                if let Some(at) = keys.iter().position(|it| it.0 == key) {
                    let (_, id) = keys.swap_remove(at);
                    let _removed = lock(&members).remove(id);
                }
            }
            Err(error) => {
                log(|| tracing::warn!(%error, "the members of a balanced set"));
                sleep(DISCOVERY_PAUSE).await;
            }
        }
    }
}
