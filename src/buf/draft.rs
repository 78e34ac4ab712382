//! A region's memory on its way: the buffers are in their place in it, and nobody else knows of it.
//!
//! A buffer is a handful of words, and a registration little more, so moving them from value to
//! value on the way would cost more than all the rest. So the memory is allocated first, and each
//! buffer is taken apart straight into it.

use std::sync::Arc;

use super::attached::RegionTraits;
use super::few::Few;
use super::held::Held;
use super::region::RegionMemory;
use super::traits::{ConvertMany, Refused};
use crate::sync::arc;

/// Where the buffers of a region go; nothing is there yet.
#[derive(Debug)]
pub struct Place<'a>(&'a mut Few<Held>);

impl Place<'_> {
    #[inline(always)]
    pub(super) fn put_one(self, held: Held) {
        *self.0 = Few::One(held);
    }

    #[inline]
    pub(super) fn put_many(self, held: Vec<Held>) {
        *self.0 = Few::Many(held);
    }
}

/// The memory of a region to be, with buffers that have not been judged.
pub(crate) struct Draft {
    /// The only one of its kind: whoever has the draft has the memory.
    memory: Arc<RegionMemory>,
}

impl Draft {
    /// Takes these buffers apart into it.
    #[inline(always)]
    pub(crate) fn of<B: ConvertMany>(
        buffers: B,
        traits: RegionTraits,
    ) -> Result<Draft, Refused<B>> {
        let mut draft = Draft::blank(traits);
        buffers.into_place(Place(draft.memory_mut().owners_mut()))?;
        Ok(draft)
    }

    #[inline]
    fn blank(traits: RegionTraits) -> Draft {
        Draft {
            memory: arc(|| RegionMemory::blank(traits)),
        }
    }

    /// Of buffers that have been taken apart.
    pub(crate) fn of_held(buffers: impl Into<Few<Held>>, traits: RegionTraits) -> Draft {
        let mut draft = Draft::blank(traits);
        *draft.memory_mut().owners_mut() = buffers.into();
        draft
    }

    /// Of one window of a buffer that has others.
    #[inline]
    pub(crate) fn of_window(
        whole: &Arc<Held>,
        offset: usize,
        len: usize,
        traits: RegionTraits,
    ) -> Draft {
        let mut draft = Draft::blank(traits);
        *draft.memory_mut().owners_mut() = Few::One(Held::window(whole, offset, len));
        draft
    }

    #[inline]
    fn memory_mut(&mut self) -> &mut RegionMemory {
        let memory = Arc::as_ptr(&self.memory).cast_mut();
        // SAFETY: invariant of the field: no other `Arc` or `Weak` of this memory exists, and this
        // one is borrowed for change, so this is the only reference to it.
        unsafe { &mut *memory }
    }

    /// The buffers.
    #[inline]
    pub(crate) fn held(&mut self) -> &[Held] {
        self.memory_mut().owners_mut()
    }

    /// What the region is to be.
    #[inline]
    pub(crate) fn traits(&self) -> &RegionTraits {
        self.memory.traits()
    }

    /// The buffers back.
    pub(crate) fn into_held(mut self) -> Few<Held> {
        std::mem::replace(self.memory_mut().owners_mut(), Few::None)
    }

    /// Joins the buffers, in order. They come back if there is none, if writable and read-only ones
    /// or ranges and owned ones are mixed, if a range wraps around, or if their lengths do not add
    /// up within an address space.
    #[inline]
    pub(crate) fn join(mut self) -> Result<Arc<RegionMemory>, Draft> {
        if self.memory_mut().join() {
            Ok(self.memory)
        } else {
            Err(self)
        }
    }
}
