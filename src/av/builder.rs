//! Opening an address vector.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::table::Table;
use super::{AddressVector, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{Context, FabricAddr};
use crate::info::AvType;
use crate::sync::{Dependents, Keep, Lock, LockKind};

/// Addresses that a table is made for ahead at most.
const AHEAD_MAX: usize = 1 << 20;

/// Opens an [`AddressVector`] (`fi_av_open` with its `fi_av_attr`); made by
/// [`Domain::address_vector`](crate::Domain::address_vector).
#[must_use = "nothing is opened before `open`"]
pub struct AddressVectorBuilder {
    lock_kind: LockKind,
    /// What the domain's attributes say of address vectors.
    offered: AvType,
    kind: AvType,
    count: usize,
    user_ids: bool,
    context: Option<Context>,
    keep: Option<Keep>,
}

impl AddressVectorBuilder {
    pub(crate) fn new(lock_kind: LockKind, offered: AvType, keep: Option<Keep>) -> Self {
        AddressVectorBuilder {
            lock_kind,
            offered,
            kind: AvType::Unspec,
            count: 0,
            user_ids: false,
            context: None,
            keep,
        }
    }

    /// How the application names addresses (`type`). Default: what the domain's `av_type` says, or
    /// else a table.
    pub fn av_type(mut self, av_type: AvType) -> Self {
        self.kind = av_type;
        self
    }

    /// The expected number of addresses (`count`): room for so many is made at once. Default: 0.
    pub fn count(mut self, count: usize) -> Self {
        self.count = count;
        self
    }

    /// Every insertion gives the application's own identifiers along (`FI_AV_USER_ID`). Default:
    /// those that do not are named by their [`FabricAddr`].
    pub fn user_ids(mut self) -> Self {
        self.user_ids = true;
        self
    }

    /// A value of the application's that belongs to the vector. Default: none.
    pub fn context(mut self, context: impl Into<Context>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Opens the vector, empty.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a type that the domain's `av_type` excludes,
    /// [`ErrorKind::BadState`] if the domain is closed.
    pub fn open(self) -> Result<AddressVector> {
        let Some(keep) = self.keep else {
            return Err(Error::new(ErrorKind::BadState, "the domain is closed"));
        };
        let av_type = match (self.kind, self.offered) {
            (AvType::Unspec, AvType::Unspec) => AvType::Table,
            (AvType::Unspec, offered) => offered,
            (asked, offered) if offered != AvType::Unspec && asked != offered => {
                let message = format!("av_type: {asked:?}, the domain has {offered:?}");
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            (asked, _) => asked,
        };
        let table = Table::new(next_vector(), self.count.min(AHEAD_MAX));
        Ok(AddressVector {
            inner: Arc::new(Inner {
                table: Lock::new(self.lock_kind, table),
                av_type,
                user_ids: self.user_ids,
                context: self.context,
                dependents: Dependents::new(),
                keep: Lock::new(self.lock_kind, Some(keep)),
            }),
        })
    }
}

fn next_vector() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % FabricAddr::VECTOR_COUNT
}

impl std::fmt::Debug for AddressVectorBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddressVectorBuilder")
            .field("av_type", &self.kind)
            .field("count", &self.count)
            .field("user_ids", &self.user_ids)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
