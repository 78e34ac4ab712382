//! Address vectors (`fi_av(3)`): the peers of connectionless endpoints, each named by a small
//! value.

#![forbid(unsafe_code)]

mod auth_keys;
mod builder;
mod format;
mod insert;
mod insertion;
mod insertion_task;
mod names;
mod shared;
mod store;
mod table;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::eq::{EventQueue, WeakEventQueue};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{DomainId, PeerAddr, UserContext, canonical};
use crate::info::{AvType, address_of_text};
use crate::stats::AddressVectorStats;
use crate::sync::{
    Dependence, Dependents, DomainScope, Keep, Lock, ManualProgress, ProgressList, WaiterKey,
    Waiters, WakeList,
};

use auth_keys::AuthKeys;
use builder::{Resolver, Run};
use format::Format;
use insert::InsertSource;
use insertion_task::Request;
use names::Grid;
use store::Store;
use table::{Entry, ReservedSlots};

pub(crate) use auth_keys::EnabledKey;
pub(crate) use names::look_up;

pub use crate::id::{AuthKeyAddr, FabricAddr};
pub use builder::AddressVectorBuilder;
pub use insert::{Insert, Inserted};
pub use insertion::Insertion;

/// The peers that connectionless endpoints talk to (`struct fid_av`, `fi_av(3)`): socket addresses,
/// each named by a [`FabricAddr`].
///
/// A [`FabricAddr`] names one insertion. After the address has been removed, this name is refused,
/// even if another address, or the same one, is later inserted at the same index. A vector contains
/// an address only once. With [`AvType::Table`] an insertion gets the lowest free
/// [`index`](FabricAddr::index), in the order in which insertions begin; [`at`](Self::at) returns
/// the name at an index.
///
/// Clones are handles of the same vector; every method may be called from several tasks at a time.
/// If all handles are dropped, the vector need not be closed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new().node("127.0.0.1"))?.domain().open()?;
/// let vector = domain.address_vector().open()?;
/// let peer = vector.insert(([127, 0, 0, 1], 7471).into()).await?;
/// let others = vector.insert_symmetric("127.0.0.2", 2, "7471", 4).await?;
/// assert_eq!((peer.index(), others.len()), (0, 8));
/// assert_eq!(vector.lookup(peer)?.port(), 7471);
/// # Ok(()) }
/// ```
#[doc(alias = "fi_av_open")]
#[derive(Clone)]
pub struct AddressVector {
    inner: Arc<Inner>,
}

struct Inner {
    domain: DomainId,
    store: Store,
    /// Counts of the addresses that this process has inserted and removed.
    stats: Lock<AddressVectorStats>,
    av_type: AvType,
    map_addr: u64,
    format: Format,
    /// Whether the vector was opened with `FI_EVENT`.
    asynchronous: bool,
    symmetric: bool,
    /// Whether each insertion must give user ids.
    user_ids: bool,
    /// How many of the highest bits of each address name a context of the peer.
    rx_ctx_bits: u32,
    /// `None` unless the domain has `FI_AV_AUTH_KEY`.
    auth_keys: Option<AuthKeys>,
    context: Option<UserContext>,
    /// Weak, as in a domain: an unread event may lead to an object that holds the vector.
    events: Mutex<Option<(WeakEventQueue, Dependence)>>,
    run: Run,
    resolver: Resolver,
    /// The progress that the futures of insertions drive.
    driven: ProgressList,
    /// The futures of insertions that wait.
    waiting: Lock<Waiters>,
    dependents: Dependents,
    /// Keeps the domain open, under the vector's name, until the vector is closed.
    keep: Mutex<Option<Keep>>,
}

/// The events of one insertion.
struct WantedEvents {
    /// `None`: all handles of the queue are dropped.
    queue: Option<EventQueue>,
    /// Number of slots to reserve.
    count: usize,
}

impl Inner {
    /// Makes the futures of insertions drive this progress from now on, including those that wait
    /// already.
    fn drive(&self, progress: Option<&Arc<ManualProgress>>) {
        self.driven.add(progress, || {
            let mut wakes = WakeList::new();
            let mut waiting = self.waiting.lock("wake those who wait");
            waiting.take_all(&mut wakes);
        });
    }

    /// Registers the future of an insertion that waits.
    fn wait(&self, key: &mut Option<WaiterKey>, waker: &Waker) {
        let mut waiting = self.waiting.lock("wait for an insertion");
        let stale = waiting.register(key, waker);
        drop(waiting);
        drop(stale);
    }

    fn wait_no_longer(&self, key: &mut Option<WaiterKey>) {
        if key.is_some() {
            let mut waiting = self.waiting.lock("wait no longer for an insertion");
            let stale = waiting.remove(key);
            drop(waiting);
            drop(stale);
        }
    }

    fn check_open(&self) -> Result<()> {
        match self.dependents.is_closed() {
            false => Ok(()),
            true => Err(closed()),
        }
    }

    fn check_writable(&self) -> Result<()> {
        match &self.store {
            Store::Shared(shared) => shared.check_writable(),
            Store::Own { .. } => Ok(()),
        }
    }

    /// Returns the entry of this name, whichever context of the peer the name stands for.
    fn entry(&self, addr: FabricAddr) -> Result<Option<Entry>> {
        self.store.get(addr.split(self.rx_ctx_bits).0)
    }

    fn is_shared(&self) -> bool {
        matches!(self.store, Store::Shared(_))
    }

    /// See [`AuthKeys::hold`].
    fn hold_auth_key(&self, key: AuthKeyAddr) -> Option<auth_keys::HeldKeys<'_>> {
        self.auth_keys.as_ref()?.hold(key)
    }

    fn events(&self) -> MutexGuard<'_, Option<(WeakEventQueue, Dependence)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the addresses that are in the vector. Returns for each address whether it was
    /// removed.
    fn remove(&self, addrs: &[FabricAddr]) -> Result<Vec<bool>> {
        let removed = self.store.remove(addrs)?;
        let count = removed.iter().filter(|removed| **removed).count();
        self.stats.lock("count removals").removed += count as u64;
        Ok(removed)
    }

    /// Inserts the addresses that a peer can have.
    fn commit(
        &self,
        reserved: ReservedSlots,
        addresses: Vec<Result<SocketAddr>>,
        user_ids: Option<&[u64]>,
        auth_key: Option<AuthKeyAddr>,
    ) -> Vec<Result<FabricAddr>> {
        let held = auth_key.map(|key| (key, self.hold_auth_key(key)));
        let gone = match &held {
            Some((key, None)) => Some(auth_keys::unknown_key(*key)),
            _ => None,
        };
        let entries = addresses.into_iter().enumerate().map(|(at, address)| {
            if let Some(gone) = &gone {
                return Err(gone.clone());
            }
            Ok(Entry {
                address: self.format.check(address?)?,
                user_id: user_ids.and_then(|ids| ids.get(at).copied()),
                auth_key,
            })
        });
        let entries = entries.collect();
        let results = self.store.commit(reserved, entries);
        let inserted = results.iter().filter(|result| result.is_ok()).count();
        let mut stats = self.stats.lock("count insertions");
        stats.inserted += inserted as u64;
        stats.failed += (results.len() - inserted) as u64;
        drop(stats);
        results
    }
}

impl AddressVector {
    /// Binds an event queue to the vector (`fi_av_bind`). The queue receives the events of
    /// insertions if the vector was opened [`asynchronous`](AddressVectorBuilder::asynchronous).
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a queue is bound already; `fi_av(3)` does not define how to unbind
    /// one. [`ErrorKind::BadState`] if either object is closed.
    #[doc(alias = "fi_av_bind")]
    pub fn bind(&self, events: &EventQueue) -> Result<()> {
        self.inner.check_open()?;
        let mut bound = self.inner.events();
        if bound.is_some() {
            let message = "the address vector is bound to an event queue already";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        *bound = Some((
            events.downgrade(),
            events.depend("address vector".into(), None)?,
        ));
        Ok(())
    }

    /// Inserts an address (`fi_av_insert`), once the returned [`Insert`] is awaited or started.
    #[doc(alias = "fi_av_insert")]
    pub fn insert(&self, address: SocketAddr) -> Insert<FabricAddr> {
        Insert::new(self.clone(), Ok(InsertSource::Addresses(vec![Ok(address)])))
    }

    /// Inserts any number of addresses (`fi_av_insert`), once the returned [`Insert`] is awaited or
    /// started.
    #[doc(alias("fi_av_insert", "FI_SYNC_ERR"))]
    pub fn insert_all(
        &self,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> Insert<Vec<Result<FabricAddr>>> {
        let addresses = addresses.into_iter().map(Ok).collect();
        Insert::new(self.clone(), Ok(InsertSource::Addresses(addresses)))
    }

    /// Inserts any number of addresses in libfabric's text form (`fi_av_insert` with
    /// `FI_ADDR_STR`), which [`straddr`](Self::straddr) writes, once the returned [`Insert`] is
    /// awaited or started.
    pub fn insert_texts<'a>(
        &self,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Insert<Vec<Result<FabricAddr>>> {
        let addresses = texts.into_iter().map(address_of_text).collect();
        Insert::new(self.clone(), Ok(InsertSource::Addresses(addresses)))
    }

    /// Inserts the address of a node, given by name or number, and a port number
    /// (`fi_av_insertsvc`), once the returned [`Insert`] is awaited or started. A node in
    /// libfabric's text form contains its port; the service must be `None` in this case, and only
    /// then.
    ///
    /// The system's resolver looks up names, on blocking threads.
    #[doc(alias = "fi_av_insertsvc")]
    pub fn insert_service<'a>(
        &self,
        node: &str,
        service: impl Into<Option<&'a str>>,
    ) -> Insert<FabricAddr> {
        let grid = Grid::service(node, service.into());
        Insert::new(self.clone(), grid.map(InsertSource::from))
    }

    /// Inserts a range of nodes, each with a range of ports (`fi_av_insertsym`), once the returned
    /// [`Insert`] is awaited or started: the nodes {node, node + nodes - 1} with the services
    /// {service, service + services - 1}, all ports of a node before the next node. A host name is
    /// counted up in the number at its end, or in the number before its first dot.
    #[doc(alias("fi_av_insertsym", "FI_SYMMETRIC"))]
    pub fn insert_symmetric(
        &self,
        node: &str,
        nodes: usize,
        service: &str,
        services: usize,
    ) -> Insert<Vec<Result<FabricAddr>>> {
        let grid = Grid::symmetric(node, nodes, service, services);
        Insert::new(self.clone(), grid.map(InsertSource::from))
    }

    /// Statistics: how many addresses the vector holds, and how many this process has inserted and
    /// removed.
    pub fn stats(&self) -> AddressVectorStats {
        AddressVectorStats {
            addresses: self.inner.store.len().unwrap_or_default(),
            ..*self.inner.stats.lock("stats")
        }
    }

    /// Removes an address (`fi_av_remove`). If the address is inserted again, it gets a different
    /// name. Operations in progress continue, since they no longer need the vector.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the address is not in the vector;
    /// [`ErrorKind::AccessDenied`] for a vector that was opened read-only; [`ErrorKind::BadState`]
    /// for a closed one; [`ErrorKind::Again`] while another process holds the lock of a shared one.
    #[doc(alias = "fi_av_remove")]
    pub fn remove(&self, addr: FabricAddr) -> Result<()> {
        self.remove_all(&[addr])
    }

    /// Removes several addresses (`fi_av_remove`). If some of them are not in the vector, the
    /// others are removed all the same, and the call returns an error.
    ///
    /// # Errors
    /// The errors of [`remove`](Self::remove); the message names the first address that is not in
    /// the vector.
    pub fn remove_all(&self, addrs: &[FabricAddr]) -> Result<()> {
        self.inner.check_open()?;
        let removed = self.inner.remove(addrs)?;
        let missed = addrs.iter().zip(removed).find(|(_, removed)| !removed);
        missed.map_or(Ok(()), |(addr, _)| Err(unknown(*addr)))
    }

    /// The socket address that was inserted (`fi_av_lookup`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the address was removed, or belongs to another vector;
    /// [`ErrorKind::BadState`] if the vector is closed.
    #[doc(alias = "fi_av_lookup")]
    pub fn lookup(&self, addr: FabricAddr) -> Result<SocketAddr> {
        self.inner.check_open()?;
        Ok(self.peer_addr(addr)?.socket)
    }

    /// The address in libfabric's text form (`fi_av_straddr`), such as
    /// `fi_sockaddr_in://10.31.6.12:7471`. It need not be in the vector.
    #[doc(alias = "fi_av_straddr")]
    pub fn straddr(&self, address: SocketAddr) -> String {
        match canonical(address) {
            address @ SocketAddr::V4(_) => format!("fi_sockaddr_in://{address}"),
            address @ SocketAddr::V6(_) => format!("fi_sockaddr_in6://{address}"),
        }
    }

    /// The name of this peer, if it is in the vector.
    pub fn fabric_addr(&self, address: SocketAddr) -> Option<FabricAddr> {
        self.find(address.into())?.0
    }

    /// The identifier that the application gave to the address (`FI_AV_USER_ID`), if any.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup).
    pub fn user_id(&self, addr: FabricAddr) -> Result<Option<u64>> {
        self.inner.check_open()?;
        let entry = self.inner.entry(addr)?;
        Ok(entry.ok_or_else(|| unknown(addr))?.user_id)
    }

    /// The name of one context of a peer, to be sent to or received from (`fi_rx_addr`): the
    /// context with this index, from 0, of a [scalable endpoint](crate::rdm::ScalableEndpoint). The
    /// peer's own name stands for context 0. Whether the peer has such a context is known only when
    /// an operation is posted to it. In every other respect the result names the same peer:
    /// [`lookup`](Self::lookup) and [`user_id`](Self::user_id) accept it, and it becomes invalid
    /// when the peer is removed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the vector reserves too few bits for the index
    /// ([`rx_ctx_bits`](AddressVectorBuilder::rx_ctx_bits)), and the errors of
    /// [`lookup`](Self::lookup).
    #[doc(alias = "fi_rx_addr")]
    pub fn rx_addr(&self, addr: FabricAddr, index: usize) -> Result<FabricAddr> {
        let bits = self.inner.rx_ctx_bits;
        let (peer, _) = addr.split(bits);
        self.lookup(peer)?;
        let context = u16::try_from(index).ok().filter(|it| it >> bits == 0);
        let context = context.ok_or_else(|| {
            let message =
                format!("context {index}: the address vector has {bits} bits for it (rx_ctx_bits)");
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        Ok(peer.with_context(context, bits))
    }

    /// The index of the peer's context that this name stands for: the one passed to
    /// [`rx_addr`](Self::rx_addr), or 0 for the name that the insertion returned.
    pub fn context_of(&self, addr: FabricAddr) -> usize {
        usize::from(addr.split(self.inner.rx_ctx_bits).1)
    }

    /// The number of bits of its addresses that are reserved for a context's index (`rx_ctx_bits`).
    pub fn rx_ctx_bits(&self) -> u32 {
        self.inner.rx_ctx_bits
    }

    /// The address at this index, if there is one: useful with [`AvType::Table`], where indices are
    /// predictable.
    pub fn at(&self, index: usize) -> Option<FabricAddr> {
        let found = self.inner.store.at(index).unwrap_or_else(unreadable);
        found.map(|(addr, _)| addr)
    }

    /// All addresses that are in the vector now, by index.
    pub fn addresses(&self) -> Vec<FabricAddr> {
        self.inner.store.names().unwrap_or_else(unreadable)
    }

    /// How many addresses are in the vector now.
    pub fn len(&self) -> usize {
        self.inner.store.len().unwrap_or_else(unreadable)
    }

    /// True if no address is in the vector now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Map or table, as requested or as chosen by the library.
    pub fn av_type(&self) -> AvType {
        self.inner.av_type
    }

    /// The base of a shared vector's [`FabricAddr`]s: the requested one, or "the map_addr used by
    /// the provider". 0 for a vector that is not shared.
    pub fn map_addr(&self) -> u64 {
        self.inner.map_addr
    }

    /// True if insertions are asynchronous (`FI_EVENT`).
    pub fn is_asynchronous(&self) -> bool {
        self.inner.asynchronous
    }

    /// True if the vector was opened for the same number of endpoints on each node
    /// (`FI_SYMMETRIC`).
    pub fn is_symmetric(&self) -> bool {
        self.inner.symmetric
    }

    /// The context that was given when the vector was opened.
    pub fn context(&self) -> Option<UserContext> {
        self.inner.context
    }

    /// Closes the vector for all its handles (`fi_close`): its addresses become invalid, and its
    /// event queue and domain can be closed. Events that are already in the queue stay there.
    /// Closing twice is not an error.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while endpoints are bound to the vector or insertions are in progress;
    /// the message names them.
    ///
    /// # Cancel safety
    /// Cancel safe: it does its work at the first poll and never waits.
    pub async fn close(&self) -> Result<()> {
        self.inner
            .dependents
            .close()
            .map_err(|users| Error::new(ErrorKind::Busy, format!("address vector {users}")))?;
        let mut keep = self
            .inner
            .keep
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let ended = (keep.take(), self.inner.events().take());
        drop(keep);
        drop(ended);
        Ok(())
    }

    /// Binds the object of this name, so that `close` returns Busy until the result is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the vector belongs to no domain of `scope`,
    /// [`ErrorKind::BadState`] if it is closed.
    pub(crate) fn depend(&self, scope: &DomainScope, name: Arc<str>) -> Result<Dependence> {
        scope.check("address vector", self.inner.domain)?;
        let dependence = self.keep_open(name)?;
        self.inner.drive(scope.progress());
        Ok(dependence)
    }

    /// As `depend`, for work of the vector itself.
    fn keep_open(&self, name: impl Into<Arc<str>>) -> Result<Dependence> {
        self.inner.dependents.depend(name).ok_or_else(closed)
    }

    /// Returns how often addresses were removed: a result that was looked up since the last removal
    /// is still valid. `None`: other processes remove addresses too, and their removals are not
    /// counted.
    pub(crate) fn removals(&self) -> Option<u64> {
        self.inner.store.removals()
    }

    /// Returns whether the other is a handle of the same vector.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the socket address of this peer, for an endpoint whose peers have no contexts.
    pub(crate) fn socket_addr(&self, addr: FabricAddr) -> Result<SocketAddr> {
        match self.peer_addr(addr)? {
            PeerAddr { socket, context: 0 } => Ok(socket),
            PeerAddr { context, .. } => {
                let message = format!("context {context}: peers of this endpoint have none");
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }

    /// Returns the socket address of the peer with this name, and the index of its context.
    pub(crate) fn peer_addr(&self, addr: FabricAddr) -> Result<PeerAddr> {
        let (_, context) = addr.split(self.inner.rx_ctx_bits);
        let entry = self.inner.entry(addr)?.ok_or_else(|| unknown(addr))?;
        let socket = entry.address;
        Ok(PeerAddr { socket, context })
    }

    /// Returns the name and the user id of this peer, for completions that name their source. The
    /// name is `None` if its bits for contexts cannot hold the peer's context.
    pub(crate) fn find(&self, peer: PeerAddr) -> Option<(Option<FabricAddr>, Option<u64>)> {
        let found = (self.inner.store)
            .find(peer.socket)
            .unwrap_or_else(unreadable);
        let bits = self.inner.rx_ctx_bits;
        let has_room = peer.context >> bits == 0;
        found.map(|(addr, entry)| {
            let addr = has_room.then(|| addr.with_context(peer.context, bits));
            (addr, entry.user_id)
        })
    }

    /// Returns the events that report an insertion in addition to its future; `None` for a vector
    /// that inserts synchronously.
    fn events_of(&self, request: &Request) -> Result<Option<WantedEvents>> {
        if !self.inner.asynchronous {
            return Ok(None);
        }
        let bound = self.inner.events();
        let Some((events, _)) = &*bound else {
            let message = "bind one to the address vector before inserting";
            return Err(Error::new(ErrorKind::NoEventQueue, message));
        };
        let (queue, count) = (events.upgrade(), request.what.len() + 1);
        let capacity = queue.as_ref().map_or(count, EventQueue::capacity);
        if request.context.is_some() && count > capacity {
            let message = format!("{count} events may come, the event queue holds {capacity}");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        Ok(Some(WantedEvents { queue, count }))
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::BadState, "the address vector is closed")
}

fn unknown(addr: FabricAddr) -> Error {
    let message = format!("{addr:?} is not in the address vector");
    Error::new(ErrorKind::InvalidArgument, message)
}

/// `fi_av(3)`: "This feature may be unavailable if shared AVs are requested".
fn no_shared_user_ids() -> Error {
    let message = "user_ids: processes that share an address vector do not share these";
    Error::new(ErrorKind::Unsupported, message)
}

/// Returns the default for a query that cannot return an error, if a shared vector cannot be read.
fn unreadable<T: Default>(error: Error) -> T {
    tracing::warn!(%error, "a shared address vector cannot be read");
    T::default()
}

debug_fields!(AddressVector, self =>
    av_type: self.inner.av_type, len: self.len(), shared: self.inner.is_shared(),
    context: self.inner.context
);
