//! Operations that the kernel has: each has an entry in the ring's table until its completion.
//!
//! ```text
//!   owner's slot    Idle ──▶ InFlight ──▶ Cancelling
//!                    ▲           │            │
//!                    └─ completion: the memory moves to the owner's completions
//!
//!   owner dropped   detached, and cancelled ──▶ completion: the memory is freed
//! ```
//!
//! The user data of an operation has its index and generation, so that a late completion finds no
//! entry rather than the entry's next user. Memory that the kernel may access is in an
//! [`OpMemory`], whose address never changes, and which belongs to the operation alone.

use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};

use super::bufs::GROUP;
use super::thread_id::ThreadId;
use crate::buf::SpanList;
use crate::edges::{check_edge, state_machine};
use crate::limits::RING_BUFFER_SIZE;
use crate::slab::Key;
use crate::transport::{DirectBuffer, SendBatch};

/// One operation in flight.
pub(super) struct Op {
    /// The slot for its completion; `None`: detached, since the slot was dropped.
    pub(super) owner: Option<Key>,
    /// Open at least as long as the kernel may look up its number.
    pub(super) fd: Arc<OwnedFd>,
    pub(super) kind: OpKind,
    /// Number of the submission entry, in the order in which the kernel takes entries.
    pub(super) entry: u64,
    /// The thread that submitted a staged receive.
    pub(super) submitter: Option<ThreadId>,
    /// Set exactly for `Send` and `Direct`.
    pub(super) memory: Option<OpMemory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpKind {
    Send,
    Direct,
    /// A receive into any provided buffer; multishot, or of at most `size_max` bytes.
    Stage {
        multishot: bool,
        size_max: usize,
    },
    /// Waits for these poll events.
    Poll(u32),
    Accept,
}

/// The state of an owner's operation of one kind: whether the kernel has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OpSlot {
    #[default]
    Idle,
    InFlight(Key),
    /// A cancellation was submitted.
    Cancelling(Key),
}

state_machine! { OpSlot {
    Idle => [InFlight],
    InFlight => [Cancelling, Idle],
    Cancelling => [Idle],
}}

impl OpSlot {
    fn go(&mut self, to: OpSlot) {
        check_edge(self, &to);
        *self = to;
    }

    pub(super) fn is_idle(self) -> bool {
        self == OpSlot::Idle
    }

    pub(super) fn is_cancelling(self) -> bool {
        matches!(self, OpSlot::Cancelling(_))
    }

    pub(super) fn key(self) -> Option<Key> {
        match self {
            OpSlot::Idle => None,
            OpSlot::InFlight(key) | OpSlot::Cancelling(key) => Some(key),
        }
    }

    pub(super) fn start(&mut self, key: Key) {
        self.go(OpSlot::InFlight(key));
    }

    /// Returns the operation to cancel, unless its cancellation was requested before.
    pub(super) fn cancel(&mut self) -> Option<Key> {
        let OpSlot::InFlight(key) = *self else {
            return None;
        };
        self.go(OpSlot::Cancelling(key));
        Some(key)
    }

    /// Frees the slot: the operation has completed.
    pub(super) fn end(&mut self) {
        self.go(OpSlot::Idle);
    }
}

impl Op {
    /// Returns the submission entry of this operation.
    pub(super) fn to_entry(&self, key: Key) -> Entry {
        let fd = types::Fd(self.fd.as_raw_fd());
        let entry = match (self.kind, &self.memory) {
            (OpKind::Send, Some(memory)) => memory.send_entry(fd),
            (OpKind::Direct, Some(memory)) => memory.receive_entry(fd),
            (OpKind::Send | OpKind::Direct, None) => {
                unreachable!("they are made with their memory")
            }
            (
                OpKind::Stage {
                    multishot: true, ..
                },
                _,
            ) => opcode::RecvMulti::new(fd, GROUP).build(),
            (OpKind::Stage { size_max, .. }, _) => {
                let len = size_max.min(RING_BUFFER_SIZE) as u32;
                opcode::Recv::new(fd, std::ptr::null_mut(), len)
                    .buf_group(GROUP)
                    .build()
                    .flags(Flags::BUFFER_SELECT)
            }
            (OpKind::Poll(events), _) => opcode::PollAdd::new(fd, events).build(),
            (OpKind::Accept, _) => opcode::AcceptMulti::new(fd)
                .flags(libc::SOCK_CLOEXEC)
                .build(),
        };
        entry.user_data(key.to_bits())
    }
}

/// User data of a cancellation that belongs to no operation. No key has it, since a slab never has
/// an entry of the highest index.
pub(super) const CANCELLATION: u64 = u64::MAX;
/// User data of the poll of a thread's eventfd. For the same reason, no key has this value either.
pub(super) const WAKE_FD: u64 = u64::MAX - (1 << 32);
/// Bit that is set in the user data of an operation's cancellation, together with the operation's
/// key. No key has this bit: that would take 2^31 operations in flight.
const OF_OPERATION: u64 = 1 << 31;

pub(super) fn cancel_entry(target: u64) -> Entry {
    let user_data = match target {
        WAKE_FD => CANCELLATION,
        key => key | OF_OPERATION,
    };
    opcode::AsyncCancel::new(target)
        .build()
        .user_data(user_data)
}

/// Returns the cancelled operation, if this is the user data of an operation's cancellation.
pub(super) fn cancelled(user_data: u64) -> Option<Key> {
    (user_data & OF_OPERATION != 0).then(|| Key::from_bits(user_data & !OF_OPERATION))
}

/// The memory of one operation at an address of its own: the buffers that are sent or received
/// into, and the lists that name them. Held by a raw pointer, so that moving the slot asserts
/// nothing about the memory (memory-model rule 1).
pub(super) struct OpMemory {
    parts: NonNull<Parts>,
}

struct Parts {
    header: libc::msghdr,
    spans: SpanList,
    load: Load,
}

enum Load {
    None,
    Send(Box<SendBatch>),
    Receive(DirectBuffer),
}

// SAFETY: the parts are this value's own, and what they hold may be sent to other threads; the
// pointers among them point into themselves and into memory that they own or lease.
unsafe impl Send for OpMemory {}

impl OpMemory {
    pub(super) fn empty() -> Self {
        // SAFETY: `msghdr` is a plain C struct of numbers and pointers, for which all zeros is a
        // value: no address, no control data, no vectors, no flags.
        let header = unsafe { mem::zeroed() };
        let parts = Box::new(Parts {
            header,
            spans: SpanList::new(),
            load: Load::None,
        });
        OpMemory {
            parts: NonNull::from(Box::leak(parts)),
        }
    }

    /// Loads a batch and lists its next `size_max` bytes, as far as the list goes.
    pub(super) fn load_batch(&mut self, batch: Box<SendBatch>, size_max: usize) {
        let parts = self.parts_mut();
        parts.spans.clear();
        parts.load = Load::Send(batch);
        if let Load::Send(batch) = &parts.load {
            batch.spans(size_max, &mut parts.spans);
        }
        parts.point();
    }

    /// Loads a destination and lists its next `size_max` bytes, as far as the list goes.
    pub(super) fn load_direct(&mut self, direct: DirectBuffer, size_max: usize) {
        let parts = self.parts_mut();
        parts.spans.clear();
        let len = (direct.len as usize).min(size_max);
        direct.payload.spans(direct.offset, len, &mut parts.spans);
        parts.load = Load::Receive(direct);
        parts.point();
    }

    /// Unloads the batch. Only for operations that have ended, or never began.
    pub(super) fn unload_batch(&mut self) -> Option<Box<SendBatch>> {
        match mem::replace(&mut self.parts_mut().load, Load::None) {
            Load::Send(batch) => Some(batch),
            _ => None,
        }
    }

    /// Unloads the destination. Only for operations that have ended, or never began.
    pub(super) fn unload_direct(&mut self) -> Option<DirectBuffer> {
        match mem::replace(&mut self.parts_mut().load, Load::None) {
            Load::Receive(direct) => Some(direct),
            _ => None,
        }
    }

    fn parts_mut(&mut self) -> &mut Parts {
        // SAFETY: allocated by `empty`, freed by drop. This is called before the operation is
        // pushed and after its completion only, so the kernel does not use them meanwhile.
        unsafe { self.parts.as_mut() }
    }

    fn parts(&self) -> &Parts {
        // SAFETY: as above; the kernel only reads the header and the list.
        unsafe { self.parts.as_ref() }
    }

    fn send_entry(&self, fd: types::Fd) -> Entry {
        let flags = libc::MSG_NOSIGNAL;
        match self.parts().spans.as_iovecs() {
            [one] => opcode::Send::new(fd, one.iov_base.cast(), one.iov_len as u32)
                .flags(flags)
                .build(),
            _ => opcode::SendMsg::new(fd, self.header())
                .flags(flags as u32)
                .build(),
        }
    }

    /// Makes an entry with which the kernel gathers bytes until the list is full, the stream ends
    /// or the receive is cancelled: one completion per piece. A cancelled receive reports the bytes
    /// that it has moved.
    fn receive_entry(&self, fd: types::Fd) -> Entry {
        let flags = libc::MSG_WAITALL;
        match self.parts().spans.as_iovecs() {
            [one] => opcode::Recv::new(fd, one.iov_base.cast(), one.iov_len as u32)
                .flags(flags)
                .build(),
            _ => opcode::RecvMsg::new(fd, self.header())
                .flags(flags as u32)
                .build(),
        }
    }

    fn header(&self) -> *mut libc::msghdr {
        // SAFETY: the parts are allocated; no reference is made, only an address within them.
        unsafe { &raw mut (*self.parts.as_ptr()).header }
    }
}

impl Parts {
    fn point(&mut self) {
        let iovecs = self.spans.as_iovecs();
        // The kernel's type has no const form; it never writes to the vector itself.
        self.header.msg_iov = iovecs.as_ptr().cast_mut();
        self.header.msg_iovlen = iovecs.len() as _;
    }
}

impl Drop for OpMemory {
    /// Called only after the operation's end; leaked if that is not known (memory-model rule 7).
    fn drop(&mut self) {
        // SAFETY: the pointer of the box that `empty` leaked, used once.
        drop(unsafe { Box::from_raw(self.parts.as_ptr()) });
    }
}
