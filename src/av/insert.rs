//! The description of an insertion (`fi_av_insert`, `fi_av_insertsvc`, `fi_av_insertsym`;
//! `fi_av(3)`).

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::net::SocketAddr;

use super::AddressVector;
use super::insertion::Insertion;
use super::insertion_task::{InsertionTask, Request};
use super::names::Grid;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{AuthKeyAddr, FabricAddr, UserContext};

/// The addresses to be inserted.
#[derive(Clone, Debug)]
pub(super) enum InsertSource {
    /// Numeric addresses, or the error of each one that is invalid.
    Addresses(Vec<Result<SocketAddr>>),
    /// Nodes and ports, with names that have to be looked up.
    Grid(Grid),
}

impl InsertSource {
    pub(super) fn len(&self) -> usize {
        match self {
            InsertSource::Addresses(addresses) => addresses.len(),
            InsertSource::Grid(grid) => grid.len(),
        }
    }
}

impl From<Grid> for InsertSource {
    fn from(grid: Grid) -> Self {
        match grid.known() {
            Some(addresses) => InsertSource::Addresses(addresses.into_iter().map(Ok).collect()),
            None => InsertSource::Grid(grid),
        }
    }
}

/// The result of an insertion: a [`FabricAddr`] for one address, or a `Vec<Result<FabricAddr>>` for
/// several, each of which may fail separately. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::av::{FabricAddr, Insert, Inserted};
/// use tokio_fabric::{Fabric, Hints};
///
/// /// Works for one address and for several.
/// async fn insert<T: Inserted>(insertion: Insert<T>) -> tokio_fabric::Result<T> {
///     insertion.await
/// }
///
/// let domain = Fabric::open(Hints::new().node("127.0.0.1"))?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let peer: FabricAddr = insert(peers.insert(([127, 0, 0, 1], 7471).into())).await?;
/// assert_eq!(peer.index(), 0);
/// # Ok(()) }
/// ```
pub trait Inserted: Sized + Send + 'static {
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "the trait is sealed by this")]
    fn of(results: Vec<Result<FabricAddr>>, _: Sealed) -> Result<Self>;
}

/// Private to the crate, so that no other crate can implement the trait.
pub(super) struct Sealed;

impl Inserted for FabricAddr {
    #[allow(private_interfaces, reason = "as in the trait")]
    fn of(mut results: Vec<Result<FabricAddr>>, _: Sealed) -> Result<Self> {
        results.pop().unwrap_or_else(|| {
            let message = "nothing was given to be inserted";
            Err(Error::new(ErrorKind::InvalidArgument, message))
        })
    }
}

impl Inserted for Vec<Result<FabricAddr>> {
    #[allow(private_interfaces, reason = "as in the trait")]
    fn of(results: Vec<Result<FabricAddr>>, _: Sealed) -> Result<Self> {
        Ok(results)
    }
}

/// An insertion that has not started yet.
///
/// Await it, or start it with [`now`](Self::now) or [`submit`](Self::submit).
///
/// If there are several addresses, each may fail separately: the result has an entry for each, in
/// the order in which they were passed (what the C call reports with `FI_SYNC_ERR`). The slot of an
/// address that failed stays free.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new().node("127.0.0.1"))?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let one = peers.insert(([127, 0, 0, 1], 7471).into()).now()?;
/// let addresses = [7472, 7471].map(|port| ([127, 0, 0, 1], port).into());
/// let results = peers.insert_all(addresses).await?;
/// assert!(results[0].is_ok() && results[1].is_err()); // The second is in the vector already.
/// assert_eq!((one.index(), peers.len()), (0, 2));
/// # Ok(()) }
/// ```
#[must_use = "an insertion does nothing until it is awaited, or ended by `now` or `submit`"]
pub struct Insert<T: Inserted> {
    vector: AddressVector,
    what: Result<InsertSource>,
    user_ids: Option<Vec<u64>>,
    auth_key: Option<AuthKeyAddr>,
    context: Option<UserContext>,
    _answer: PhantomData<fn() -> T>,
}

impl<T: Inserted> Insert<T> {
    pub(super) fn new(vector: AddressVector, what: Result<InsertSource>) -> Self {
        Insert {
            vector,
            what,
            user_ids: None,
            auth_key: None,
            context: None,
            _answer: PhantomData,
        }
    }

    /// Identifiers that completions contain in addition to the [`FabricAddr`] of the peer: one for
    /// each address, in the order of insertion (`FI_AV_USER_ID`). They need not be unique.
    #[doc(alias = "FI_AV_USER_ID")]
    pub fn user_ids(mut self, ids: impl IntoIterator<Item = u64>) -> Self {
        self.user_ids = Some(ids.into_iter().collect());
        self
    }

    /// The authorization key of the peers (`FI_AUTH_KEY`): endpoints connect only to peers that
    /// prove the key. An address has at most one key. Default: none; the peers are then treated as
    /// endpoints without a key.
    pub fn auth_key(mut self, key: AuthKeyAddr) -> Self {
        self.auth_key = Some(key);
        self
    }

    /// Requests events in addition to the result of the future: an error for each address that
    /// fails, then [`AvComplete`](crate::Event::AvComplete), all with this context. Ignored unless
    /// the vector was opened [`asynchronous`](super::AddressVectorBuilder::asynchronous). If the
    /// event queue has too few free slots, the insertion waits for them; if the queue can never
    /// have enough, it fails with [`ErrorKind::TooLarge`].
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Announces that more insertions follow (`FI_MORE`). This is a hint: no insertion is delayed.
    pub fn more(self) -> Self {
        self
    }

    /// Inserts the addresses within this call.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidArgument`] for an address that cannot be a peer's or does not have the
    ///   domain's address format, for a range that does not exist, if the number of user ids
    ///   differs from the number of addresses, for an authorization key that is not in the vector,
    ///   and for host names: their lookup may take long, so await such an insertion instead.
    /// - [`ErrorKind::AddressInUse`] for an address that is already in the vector.
    /// - [`ErrorKind::LimitReached`] if the vector has no room for all addresses.
    /// - [`ErrorKind::AccessDenied`] for a vector that was opened read-only.
    /// - [`ErrorKind::Unsupported`] for user ids in a shared vector.
    /// - [`ErrorKind::BadState`] if the vector is closed, or inserts only asynchronously.
    /// - [`ErrorKind::Again`] while another process holds the lock of a shared vector.
    pub fn now(self) -> Result<T> {
        let (vector, request) = self.check()?;
        if vector.is_asynchronous() {
            let message = "this address vector inserts asynchronously: await or submit it";
            return Err(Error::new(ErrorKind::BadState, message));
        }
        let InsertSource::Addresses(addresses) = request.what else {
            let message = "node: a name has to be looked up; await the insertion";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let reserved = vector.inner.store.reserve(addresses.len())?;
        let ids = request.user_ids.as_deref();
        let inserted = vector
            .inner
            .commit(reserved, addresses, ids, request.auth_key);
        T::of(inserted, Sealed)
    }

    /// Starts the insertion and returns. Events with this context report the results.
    ///
    /// Until it completes, the insertion occupies one slot of the event queue for each of its
    /// addresses and one more.
    ///
    /// # Errors
    /// Errors of [`now`](Self::now) that do not concern a single address, and:
    /// [`ErrorKind::BadState`] if the vector was not opened asynchronous, or no handle of its event
    /// queue is left; [`ErrorKind::NoEventQueue`] if none is bound; [`ErrorKind::Again`] if the
    /// queue has too few free slots at the moment, and [`ErrorKind::TooLarge`] if it can never have
    /// enough. In these cases no event is written.
    pub fn submit(mut self, context: impl Into<UserContext>) -> Result<()> {
        self.context = Some(context.into());
        let (vector, request) = self.check()?;
        let Some(wanted) = vector.events_of(&request)? else {
            let message = "the address vector was not opened asynchronous (FI_EVENT)";
            return Err(Error::new(ErrorKind::BadState, message));
        };
        let events = wanted.queue.ok_or_else(|| {
            let message = "no handle of the event queue is left";
            Error::new(ErrorKind::BadState, message)
        })?;
        let Some(slots) = events.try_reserve_many(wanted.count) else {
            return Err(Error::new(ErrorKind::Again, "the event queue is full"));
        };
        InsertionTask::start(vector, request, slots, false).map(drop)
    }

    /// Checks everything that does not depend on the vector's free slots.
    fn check(self) -> Result<(AddressVector, Request)> {
        let inner = &self.vector.inner;
        inner.check_open()?;
        inner.check_writable()?;
        let what = self.what?;
        match &self.user_ids {
            Some(_) if inner.is_shared() => return Err(super::no_shared_user_ids()),
            Some(ids) if ids.len() != what.len() => {
                let message = format!("user_ids: {} for {} addresses", ids.len(), what.len());
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            None if inner.user_ids => {
                let message = "user_ids: the vector was opened for them, and none are given";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            _ => {}
        }
        if let Some(key) = self.auth_key
            && inner.hold_auth_key(key).is_none()
        {
            return Err(super::auth_keys::unknown_key(key));
        }
        let request = Request {
            what,
            user_ids: self.user_ids,
            auth_key: self.auth_key,
            context: self.context,
        };
        Ok((self.vector, request))
    }
}

impl Insert<FabricAddr> {
    /// An identifier that completions contain in addition to the [`FabricAddr`] of the peer
    /// (`FI_AV_USER_ID`).
    pub fn user_id(self, id: u64) -> Self {
        self.user_ids([id])
    }
}

impl<T: Inserted> IntoFuture for Insert<T> {
    type Output = Result<T>;
    type IntoFuture = Insertion<T>;

    /// Begins the insertion: reserves slots for its addresses. Polling only waits.
    fn into_future(self) -> Insertion<T> {
        Insertion::begin(self.check())
    }
}

debug_fields!([T: Inserted] Insert<T>, self =>
    count: self.what.as_ref().map(InsertSource::len).ok(), user_ids: self.user_ids.is_some(),
    context: self.context
);
