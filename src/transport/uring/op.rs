//! What is in flight: one slot per operation of the kernel's, alive until its completion.
//!
//! ```text
//!   pushed --completion--> ended: memory to the completion slot
//!      \--owner dropped--> orphaned --completion--> ended: memory freed
//! ```
//!
//! A slot is named by index and generation in the operation's user data, so that a completion that
//! comes late finds nothing rather than the slot's next tenant. Memory that the kernel may follow
//! lives in an [`OpMemory`], whose address never changes, and nobody but the slot has it.

use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};

use super::bufs::{BUFFER_SIZE, GROUP};
use super::thread_id::ThreadId;
use crate::buf::SpanList;
use crate::slab::Key;
use crate::transport::{Direct, SendBatch};

/// One operation in flight.
pub(super) struct Op {
    /// The completion slot its end goes to; `None` once that has been dropped.
    pub(super) owner: Option<Key>,
    /// Open at least as long as the kernel may look the number up.
    pub(super) fd: Arc<OwnedFd>,
    pub(super) kind: OpKind,
    /// The number of its entry, in the order in which the kernel takes them.
    pub(super) entry: u64,
    /// Who submitted it, of a staged receive.
    pub(super) submitter: Option<ThreadId>,
    /// There exactly for `Send` and `Direct`.
    pub(super) memory: Option<OpMemory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpKind {
    Send,
    Direct,
    /// A receive into whichever lent buffer; multishot, or of at most so many bytes.
    Stage {
        multishot: bool,
        size_max: usize,
    },
    /// Waits for these poll events.
    Poll(u32),
    Accept,
}

impl Op {
    /// The kernel's form of this operation.
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
                let len = size_max.min(BUFFER_SIZE) as u32;
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

/// The user data of a cancellation that nobody looks after. No key has it, since a slab never has
/// an entry of the highest index.
pub(super) const CANCELLATION: u64 = u64::MAX;
/// The user data of the poll of a thread's eventfd; no key's either, for the same reason.
pub(super) const WAKE_FD: u64 = u64::MAX - (1 << 32);
/// What the user data of an operation's cancellation has besides its key. No key has it: that would
/// take 2^31 operations in flight.
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

/// Whose cancellation this user data is of, if it is of an operation's.
pub(super) fn cancelled(user_data: u64) -> Option<Key> {
    (user_data & OF_OPERATION != 0).then(|| Key::from_bits(user_data & !OF_OPERATION))
}

/// The memory of one operation at an address of its own: what is sent or received into, and the
/// lists that name it. Held by a raw pointer, so that moving the slot claims nothing about it
/// (memory-model rule 1).
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
    Send(SendBatch),
    Receive(Direct),
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

    /// Takes a batch in and lists its next `size_max` bytes, as far as the list goes.
    pub(super) fn load_batch(&mut self, batch: SendBatch, size_max: usize) {
        let parts = self.parts_mut();
        parts.spans.clear();
        parts.load = Load::Send(batch);
        if let Load::Send(batch) = &parts.load {
            batch.spans(size_max, &mut parts.spans);
        }
        parts.point();
    }

    /// Takes a destination in and lists its next `size_max` bytes, as far as the list goes.
    pub(super) fn load_direct(&mut self, direct: Direct, size_max: usize) {
        let parts = self.parts_mut();
        parts.spans.clear();
        let len = direct.len.min(size_max);
        direct.payload.spans(direct.offset, len, &mut parts.spans);
        parts.load = Load::Receive(direct);
        parts.point();
    }

    /// Takes the batch out. Only for operations that have ended, or never began.
    pub(super) fn unload_batch(&mut self) -> Option<SendBatch> {
        match mem::replace(&mut self.parts_mut().load, Load::None) {
            Load::Send(batch) => Some(batch),
            _ => None,
        }
    }

    /// Takes the destination out, likewise.
    pub(super) fn unload_direct(&mut self) -> Option<Direct> {
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

    /// The kernel gathers until all is there, the stream ends or the receive is cancelled: one
    /// completion per piece. A cancelled one tells what it has moved.
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
    /// Whoever drops it has seen the operation's end, or leaks it instead (memory-model rule 7).
    fn drop(&mut self) {
        // SAFETY: the pointer of the box that `empty` leaked, used once.
        drop(unsafe { Box::from_raw(self.parts.as_ptr()) });
    }
}
