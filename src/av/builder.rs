//! Opening an address vector.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::format::Format;
use super::shared::{self, SharedStore, SharedVectorConfig};
use super::store::Store;
use super::table::Table;
use super::{AddressVector, Inner, names};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{DomainId, FabricAddr, UserContext};
use crate::info::{AvType, Caps, Info};
use crate::limits::{AV_CAPACITY_AHEAD_MAX, RX_CTX_BITS_MAX};
use crate::stats::AddressVectorStats;
use crate::sync::{Dependents, DomainScope, Keep, Lock, ManualProgress, ProgressList, Waiters};

/// Runs blocking work off the runtime's workers.
pub(crate) type Run = Box<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

/// Looks up a node's address, preferably one that fits.
pub(super) type Resolver =
    Arc<dyn Fn(&str, &dyn Fn(SocketAddr) -> bool) -> Result<SocketAddr> + Send + Sync>;

/// Opens an [`AddressVector`] (`fi_av_open` with its `fi_av_attr`).
///
/// You get one from [`Domain::address_vector`](crate::Domain::address_vector).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AvType;
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new().node("127.0.0.1"))?.domain().open()?;
/// let peers = domain.address_vector().av_type(AvType::Table).count(64).open()?;
/// assert!(peers.is_empty()); // Room for 64 addresses, none of which is there yet.
/// # Ok(()) }
/// ```
#[doc(alias = "fi_av_attr")]
#[must_use = "nothing is opened before `open`"]
pub struct AddressVectorBuilder {
    domain: DomainId,
    info: Info,
    run: Run,
    resolver: Resolver,
    keep: Option<Keep>,
    progress: Option<Arc<ManualProgress>>,
    av_type: AvType,
    count: usize,
    endpoints_per_node: usize,
    name: Option<String>,
    map_addr: u64,
    read_only: bool,
    asynchronous: bool,
    symmetric: bool,
    user_ids: bool,
    rx_ctx_bits: u32,
    context: Option<UserContext>,
}

impl AddressVectorBuilder {
    pub(crate) fn new(domain: &DomainScope, info: Info, run: Run, keep: Option<Keep>) -> Self {
        AddressVectorBuilder {
            domain: domain.own(),
            info,
            run,
            resolver: Arc::new(|name, fits| names::look_up(name, fits)),
            keep,
            progress: domain.progress().cloned(),
            av_type: AvType::Unspec,
            count: 0,
            endpoints_per_node: 0,
            name: None,
            map_addr: 0,
            read_only: false,
            asynchronous: false,
            symmetric: false,
            user_ids: false,
            rx_ctx_bits: 0,
            context: None,
        }
    }

    /// How the application names addresses (`type`). Default: the domain's `av_type`. If that
    /// leaves the choice open, the vector is a table, or has the type of the named vector that
    /// exists already.
    pub fn av_type(mut self, av_type: AvType) -> Self {
        self.av_type = av_type;
        self
    }

    /// The expected number of addresses (`count`); memory for them is allocated at once. Default:
    /// 0.
    pub fn count(mut self, count: usize) -> Self {
        self.count = count;
        self
    }

    /// The expected number of endpoints on each node (`ep_per_node`). It is a hint for allocations:
    /// the vector allocates memory for at least one node's endpoints. Default: 0, which means
    /// unknown.
    pub fn endpoints_per_node(mut self, count: usize) -> Self {
        self.endpoints_per_node = count;
        self
    }

    /// Shares the vector with other processes of the same user on this machine that open it by the
    /// same name in a domain of the same name (`name`, `FI_SHARED_AV`). The first process that
    /// opens the vector creates it, and it ends with the last process that has it open; a later
    /// process never finds what a crashed one left behind. Shared vectors have no user ids.
    /// Default: none.
    #[doc(alias = "FI_SHARED_AV")]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The base of [`FabricAddr`]s (`map_addr`): "Processes that provide the same value for
    /// map_addr to a shared AV may use the same fi_addr_t values". Here all processes that share
    /// the vector may. Ignored without a name. Default: 0, which uses the vector's own base.
    pub fn map_addr(mut self, map_addr: u64) -> Self {
        self.map_addr = map_addr;
        self
    }

    /// Opens the vector for read-only access (`FI_READ`): it "must be named (name attribute
    /// specified), and the AV must exist". Default: no.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Makes all insertions asynchronous (`FI_EVENT`): they report their completion to an event
    /// queue, which must be [bound](AddressVector::bind) before the first insertion. Default: no.
    #[doc(alias = "FI_EVENT")]
    pub fn asynchronous(mut self) -> Self {
        self.asynchronous = true;
        self
    }

    /// Every node has the same number of endpoints, at the same consecutive ports (`FI_SYMMETRIC`).
    /// This is a hint only, and saves no memory here. Default: no.
    pub fn symmetric(mut self) -> Self {
        self.symmetric = true;
        self
    }

    /// Every insertion provides identifiers of the application's own (`FI_AV_USER_ID`). By default
    /// they are optional, and an address without one is identified by its [`FabricAddr`].
    pub fn user_ids(mut self) -> Self {
        self.user_ids = true;
        self
    }

    /// How many bits of each [`FabricAddr`] are reserved for the index of a peer's context
    /// (`rx_ctx_bits`), 0 to [`RX_CTX_BITS_MAX`]. With `n` bits,
    /// [`rx_addr`](AddressVector::rx_addr) can name the contexts 0 to 2^n - 1 of a scalable
    /// endpoint, and so can received messages and peer events. A message from a context with a
    /// larger index has a socket address as its only source. Cannot be combined with a
    /// [`name`](Self::name). Default: 0.
    pub fn rx_ctx_bits(mut self, bits: u32) -> Self {
        self.rx_ctx_bits = bits;
        self
    }

    /// An application value that is stored with the vector. Default: none.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.context = Some(context.into());
        self
    }

    #[cfg(test)]
    pub(super) fn resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// Opens the vector.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidArgument`] for a type that conflicts with the domain's `av_type` or
    ///   with the existing named vector, for an empty name, for read-only access without a name,
    ///   and for more context bits than [`RX_CTX_BITS_MAX`].
    /// - [`ErrorKind::NoMatch`] for read-only access to a vector that no process has open.
    /// - [`ErrorKind::Unsupported`] for user ids with a name or in a domain without
    ///   [`Caps::AV_USER_ID`], and for context bits with a name.
    /// - [`ErrorKind::Incompatible`] if the file of a named vector is damaged or has another
    ///   version, [`ErrorKind::AccessDenied`] if its directory belongs to another user,
    ///   [`ErrorKind::Again`] while another process opens or changes it.
    /// - [`ErrorKind::BadState`] if the domain is closed.
    pub fn open(mut self) -> Result<AddressVector> {
        let Some(keep) = self.keep.take() else {
            return Err(Error::new(ErrorKind::BadState, "the domain is closed"));
        };
        let av_type = allowed_type(self.av_type, self.info.domain.av_type)?;
        if self.user_ids && !self.info.domain.caps.contains(Caps::AV_USER_ID) {
            let message = "user_ids: the domain was opened without the capability AV_USER_ID";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let bits = self.rx_ctx_bits;
        if bits > RX_CTX_BITS_MAX {
            let message = format!("rx_ctx_bits: {bits}, there are {RX_CTX_BITS_MAX} at most");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        match self.name.take() {
            // All processes use the same names for the addresses of such a vector, whatever
            // `rx_ctx_bits` each asks for.
            Some(_) if bits > 0 => {
                let message = "rx_ctx_bits: a vector with a name keeps no bits for contexts";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            Some(name) => self.open_shared(&name, av_type, keep),
            None if self.read_only => {
                let message = "read_only: an address vector without a name is no other process's";
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
            None => {
                let vector = FabricAddr::own_vector(NEXT.fetch_add(1, Ordering::Relaxed), bits);
                let expected = self
                    .count
                    .max(self.endpoints_per_node)
                    .min(AV_CAPACITY_AHEAD_MAX);
                let table = Table::new(vector, FabricAddr::INDEX_COUNT, expected);
                let store = Store::own(Lock::new(table));
                let av_type = match av_type {
                    AvType::Unspec => AvType::Table,
                    chosen => chosen,
                };
                Ok(self.build(store, av_type, 0, keep))
            }
        }
    }

    fn open_shared(self, name: &str, av_type: AvType, keep: Keep) -> Result<AddressVector> {
        if name.is_empty() {
            let message = "name: an empty one";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if self.user_ids {
            return Err(super::no_shared_user_ids());
        }
        let named = SharedVectorConfig {
            directory: Path::new(shared::DIRECTORY),
            domain: &self.info.domain.name,
            name,
            av_type,
            map_addr: self.map_addr,
            read_only: self.read_only,
        };
        let opened = SharedStore::open(&named)?;
        let keep: Keep = Box::new((opened.membership, keep));
        let store = Store::Shared(opened.shared);
        Ok(self.build(store, opened.av_type, opened.map_addr, keep))
    }

    fn build(self, store: Store, av_type: AvType, map_addr: u64, keep: Keep) -> AddressVector {
        let has_keys = self.info.has_keys_of_vectors() && matches!(store, Store::Own { .. });
        let auth_keys = has_keys.then(super::auth_keys::AuthKeys::new);
        let inner = Arc::new(Inner {
            domain: self.domain,
            store,
            stats: Lock::new(AddressVectorStats::default()),
            av_type,
            map_addr,
            format: Format::new(self.info.address_format),
            asynchronous: self.asynchronous,
            symmetric: self.symmetric,
            user_ids: self.user_ids,
            rx_ctx_bits: self.rx_ctx_bits,
            auth_keys,
            context: self.context,
            events: Mutex::new(None),
            run: self.run,
            resolver: self.resolver,
            driven: ProgressList::new(),
            waiting: Lock::new(Waiters::default()),
            dependents: Dependents::new(),
            keep: Mutex::new(Some(keep)),
        });
        inner.drive(self.progress.as_ref());
        AddressVector { inner }
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns the requested type, if the domain's attribute allows it.
fn allowed_type(asked: AvType, offered: AvType) -> Result<AvType> {
    match (asked, offered) {
        (AvType::Unspec, offered) => Ok(offered),
        (asked, AvType::Unspec) => Ok(asked),
        (asked, offered) if asked == offered => Ok(asked),
        (asked, offered) => {
            let message = format!("av_type: {asked:?}, the domain has {offered:?}");
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
    }
}

debug_fields!(AddressVectorBuilder, self =>
    av_type: self.av_type, count: self.count, name: self.name, read_only: self.read_only,
    asynchronous: self.asynchronous, user_ids: self.user_ids, context: self.context
);
