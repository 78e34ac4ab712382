//! Datagrams within the process: each socket has a bounded inbox, and datagrams that find no room
//! in it are dropped.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::task::Waker;

use super::{LoopbackNet, in_conflict};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::limits::{LOOPBACK_DATAGRAM_OVERHEAD, LOOPBACK_INBOX_BYTES};
use crate::sync::{Lock, WakeList};
use crate::transport::udp::{
    DatagramOptions, DatagramSocket, Membership, OutgoingDatagram, ReceivedDatagram, RecvBuffer,
    RecvStatus,
};

/// Datagrams for one socket, until it receives them.
pub(super) struct Inbox {
    address: SocketAddr,
    shared: bool,
    state: Lock<State>,
}

struct State {
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
    held: usize,
    room: usize,
    dropped: u64,
    groups: HashSet<IpAddr>,
    waker: Waker,
    /// True if the socket was drained: the next datagram wakes it.
    drained: bool,
}

impl Inbox {
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn push(&self, from: SocketAddr, bytes: &[u8]) {
        let mut wakes = WakeList::new();
        let mut state = self.state.lock("deliver a datagram");
        let cost = bytes.len() + LOOPBACK_DATAGRAM_OVERHEAD;
        if state.room - state.held < cost {
            state.dropped += 1;
            return;
        }
        state.held += cost;
        state.waiting.push_back((from, bytes.to_vec()));
        if std::mem::take(&mut state.drained) {
            wakes.push(state.waker.clone());
        }
        // The list wakes when it is dropped, which is after the guard.
        drop(state);
    }

    fn hears(&self, to: SocketAddr) -> bool {
        let here = self.address.ip();
        // As with system sockets, a socket bound to all IPv6 addresses receives IPv4 too.
        let same = here == to.ip() || here.is_unspecified() && (here.is_ipv6() || to.is_ipv4());
        let heard = !to.ip().is_multicast()
            || self
                .state
                .lock("look for a group")
                .groups
                .contains(&to.ip());
        self.address.port() == to.port() && same && heard
    }
}

impl LoopbackNet {
    /// Opens a socket at an address that no other socket has, or that all its sockets share.
    pub(super) fn open_datagrams(
        self: &Arc<Self>,
        bind: SocketAddr,
        options: &DatagramOptions,
        waker: Waker,
    ) -> Result<LoopbackDatagrams> {
        let mut inboxes = self.inboxes.lock("open a datagram socket");
        inboxes.retain(|inbox| inbox.strong_count() > 0);
        let taken = inboxes.iter().filter_map(Weak::upgrade);
        if taken
            .into_iter()
            .any(|it| in_conflict(it.address, bind) && !(it.shared && options.shared))
        {
            return Err(Error::new(
                ErrorKind::AddressInUse,
                format!("a datagram socket at {bind}"),
            ));
        }
        let state = State {
            waiting: VecDeque::new(),
            held: 0,
            room: options.buffer_bytes.unwrap_or(LOOPBACK_INBOX_BYTES),
            dropped: 0,
            groups: HashSet::new(),
            waker,
            drained: false,
        };
        let inbox = Arc::new(Inbox {
            address: bind,
            shared: options.shared,
            state: Lock::new(state),
        });
        inboxes.push(Arc::downgrade(&inbox));
        Ok(LoopbackDatagrams {
            net: Arc::clone(self),
            inbox,
        })
    }

    fn deliver(&self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let heard: Vec<Arc<Inbox>> = {
            let inboxes = self.inboxes.lock("find a datagram socket");
            let open = inboxes.iter().filter_map(Weak::upgrade);
            let mut hearing = open.filter(|inbox| inbox.hears(to));
            if to.ip().is_multicast() {
                hearing.collect()
            } else {
                hearing.next().into_iter().collect()
            }
        };
        for inbox in heard {
            #[cfg(any(test, feature = "test-util"))]
            let Some(inbox) = self.carry(from, inbox, bytes) else {
                continue;
            };
            inbox.push(from, bytes);
        }
    }
}

/// A socket of a [`LoopbackNet`].
pub(super) struct LoopbackDatagrams {
    net: Arc<LoopbackNet>,
    inbox: Arc<Inbox>,
}

impl LoopbackDatagrams {
    /// Returns the source address of a datagram: a socket bound to all addresses sends from the
    /// loopback address.
    fn source(&self, to: SocketAddr) -> SocketAddr {
        let mut source = self.inbox.address;
        if source.ip().is_unspecified() {
            source.set_ip(match to.ip() {
                IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        source
    }
}

impl DatagramSocket for LoopbackDatagrams {
    fn local_addr(&self) -> SocketAddr {
        self.inbox.address
    }

    fn send(&mut self, datagrams: &[OutgoingDatagram<'_>], ended: &mut Vec<Result<()>>) {
        for datagram in datagrams {
            let mut bytes = vec![0; datagram.payload.len()];
            let copied = datagram.payload.copy_out(0, &mut bytes);
            ended.push(copied.map_err(|denied| {
                let error = denied.error("its bytes were sent");
                error.with_operation(OperationKind::Send)
            }));
            if ended.last().is_some_and(Result::is_ok) {
                let from = self.source(datagram.to);
                self.net.deliver(from, datagram.to, &bytes);
            }
        }
    }

    fn receive(
        &mut self,
        places: &mut [RecvBuffer],
        arrived: &mut Vec<ReceivedDatagram>,
    ) -> RecvStatus {
        for place in places {
            let (from, bytes) = {
                let mut state = self.inbox.state.lock("receive a datagram");
                let Some((from, bytes)) = state.waiting.pop_front() else {
                    state.drained = true;
                    return RecvStatus::Drained;
                };
                state.held -= bytes.len() + LOOPBACK_DATAGRAM_OVERHEAD;
                (from, bytes)
            };
            let filled = match place {
                RecvBuffer::Direct(payload) => {
                    let len = bytes.len().min(payload.len());
                    payload.copy_in(0, &bytes[..len]).is_ok()
                }
                RecvBuffer::Stage(stage) => {
                    let room = stage.spare();
                    let len = bytes.len().min(room.len());
                    room[..len].copy_from_slice(&bytes[..len]);
                    stage.fill(len);
                    true
                }
            };
            if !filled {
                return RecvStatus::Fault;
            }
            arrived.push(ReceivedDatagram {
                from,
                len: bytes.len(),
            });
        }
        RecvStatus::MayHaveMore
    }

    fn join_group(&mut self, membership: Membership) -> Result<()> {
        let mut state = self.inbox.state.lock("join a group");
        if !state.groups.insert(membership.group) {
            let what = format!("the group {} is joined already", membership.group);
            return Err(Error::new(ErrorKind::AddressInUse, what));
        }
        Ok(())
    }

    fn set_multicast_interface(&mut self, _membership: Membership) -> Result<()> {
        Ok(())
    }

    fn leave_group(&mut self, membership: Membership) -> Result<()> {
        let mut state = self.inbox.state.lock("leave a group");
        if !state.groups.remove(&membership.group) {
            let what = format!("the group {} is not joined", membership.group);
            return Err(Error::new(ErrorKind::AddressNotAvailable, what));
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.inbox.state.lock("count drops").dropped
    }
}
