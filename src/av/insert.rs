//! Insertion being described (`fi_av_insert`, `fi_av_insertsvc`, `fi_av_insertsym`; `fi_av(3)`).

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::net::SocketAddr;

use super::AddressVector;
use super::insertion::Insertion;
use super::insertion_task::{InsertionTask, Request};
use super::names::Grid;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{AuthKeyAddr, FabricAddr, UserContext};

/// What is to be inserted.
#[derive(Clone, Debug)]
pub(super) enum InsertSource {
    /// In numbers, each on its own.
    Addresses(Vec<Result<SocketAddr>>),
    /// Names in it have to be looked up.
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

/// What an insertion answers: [`FabricAddr`] of one address, `Vec<Result<FabricAddr>>` of several,
/// which fail each on its own. Sealed.
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

/// An insertion being described. Await it, or end it by [`now`](Self::now) or
/// [`submit`](Self::submit).
///
/// Several addresses fail each on its own: what it answers then is a result for each, in the order
/// given (what the C call reports with `FI_SYNC_ERR`). The place of one that failed is left free.
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

    /// What completions name the addresses by, instead of their [`FabricAddr`]: one identifier for
    /// each, in the order of insertion (`FI_AV_USER_ID`). They need not differ.
    #[doc(alias = "FI_AV_USER_ID")]
    pub fn user_ids(mut self, ids: impl IntoIterator<Item = u64>) -> Self {
        self.user_ids = Some(ids.into_iter().collect());
        self
    }

    /// The authorization key of the peers (`FI_AUTH_KEY`): endpoints connect with them only if they
    /// prove it. Default: they have none, and connect as endpoints without a key do. An address has
    /// one key at most.
    pub fn auth_key(mut self, key: AuthKeyAddr) -> Self {
        self.auth_key = Some(key);
        self
    }

    /// Asks for events besides the future's end: an error for each address that fails, then
    /// [`AvComplete`](crate::Event::AvComplete), all with this context. Only of a vector that was
    /// opened [`asynchronous`](super::AddressVectorBuilder::asynchronous); ignored otherwise. Where
    /// the event queue has no room for all of them now, the insertion begins when it has; one that
    /// never has is an error ([`ErrorKind::TooLarge`]).
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Says that more insertions will follow (`FI_MORE`). A hint: none is held back here.
    pub fn more(self) -> Self {
        self
    }

    /// Inserts within this call.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what is no address of a peer's, or not of the domain's
    /// form; for ranges that do not exist; for as many user ids as there are addresses missed; and
    /// for names, whose lookup may take long: await those; and for an authorization key that is
    /// not in the vector. [`ErrorKind::AddressInUse`] for an
    /// address that is in the vector already. [`ErrorKind::LimitReached`] when the vector has no
    /// room for all. [`ErrorKind::AccessDenied`] for a vector that was opened read-only,
    /// [`ErrorKind::Unsupported`] for user ids in a shared one, [`ErrorKind::BadState`] for one
    /// that inserts asynchronously only or is closed, [`ErrorKind::Again`] while another process
    /// holds the lock of a shared one.
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

    /// Starts the insertion and returns; the events report the rest, with this context.
    ///
    /// The insertion has a place in the event queue for each of its addresses and one more, until
    /// it ends.
    ///
    /// # Errors
    /// Those of [`now`](Self::now) that are not an address's own, and: [`ErrorKind::BadState`] if
    /// the vector was not opened asynchronous, or no handle of its event queue is left;
    /// [`ErrorKind::NoEventQueue`] if none is bound; [`ErrorKind::Again`] if the queue has no room
    /// for the events now, [`ErrorKind::TooLarge`] if it never has. No event is written then.
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

    /// What cannot be right whatever the vector has room for.
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
    /// What completions name the address by, instead of its [`FabricAddr`] (`FI_AV_USER_ID`).
    pub fn user_id(self, id: u64) -> Self {
        self.user_ids([id])
    }
}

impl<T: Inserted> IntoFuture for Insert<T> {
    type Output = Result<T>;
    type IntoFuture = Insertion<T>;

    /// Begins the insertion: places are taken for its addresses. Polling only waits.
    fn into_future(self) -> Insertion<T> {
        Insertion::begin(self.check())
    }
}

debug_fields!([T: Inserted] Insert<T>, self =>
    count: self.what.as_ref().map(InsertSource::len).ok(), user_ids: self.user_ids.is_some(),
    context: self.context
);
