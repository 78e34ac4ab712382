//! A kernel that refuses to be entered for a ring while operations are under way: a filter that
//! appears later, which cannot be taken away again, so that each test runs a second process.

use std::future::IntoFuture;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{
    Backend, Driver, Endpoint, Error, ErrorKind, Event, EventQueue, PassiveEndpoint, RdmEndpoint,
};

use super::runtime;
use crate::common::alone::alone;
use crate::common::{backends, left_out};

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// `uring/teardown.rs`, "A ring that fails": "every operation ends with `DriverGone`, which names the
/// system call and its error"; on a task, on a thread and with manual progress, where a system call is refused for good
/// and where its refusal would pass, but does not.
#[test]
fn operations_in_a_ring_that_refuses_to_be_entered_end_with_that_reason() {
    std::thread::scope(|scope| {
        for name in ["eperm", "einval", "eintr", "ebusy", "eagain"] {
            let name = format!("uring::refused_enter::refused_by_{name}");
            scope.spawn(move || alone(&name));
        }
    });
}

#[test]
#[ignore = "the other process of another test"]
fn refused_by_eperm() {
    everything_ends(libc::EPERM);
}

#[test]
#[ignore = "the other process of another test"]
fn refused_by_einval() {
    everything_ends(libc::EINVAL);
}

#[test]
#[ignore = "the other process of another test"]
fn refused_by_eintr() {
    everything_ends(libc::EINTR);
}

#[test]
#[ignore = "the other process of another test"]
fn refused_by_ebusy() {
    everything_ends(libc::EBUSY);
}

#[test]
#[ignore = "the other process of another test"]
fn refused_by_eagain() {
    everything_ends(libc::EAGAIN);
}

/// Pairs of connections between a domain on a ring and one on epoll.
const PAIRS: usize = 20;

/// A domain on a ring, with something of each kind under way.
struct Busy {
    peer: Peer,
    /// Ours, and the peer's.
    pairs: Vec<(Endpoint, Endpoint)>,
    /// With the extension: this peer would declare a side dead that says nothing for long.
    watched: (Endpoint, Endpoint),
    connectionless: RdmEndpoint,
    requests: EventQueue,
    listener: PassiveEndpoint,
}

impl Busy {
    async fn new(net: Net, other: &Peer) -> Busy {
        let peer = net.peer().unwrap();
        let mut pairs = Vec::new();
        for _ in 0..PAIRS {
            // Without message credit, so that unread messages fill the connection.
            let ours = peer.domain.endpoint().extension(false).open().unwrap();
            let theirs = other.domain.endpoint().extension(false).open().unwrap();
            connect_endpoints(&ours, &theirs, &other.fabric)
                .await
                .unwrap();
            pairs.push((ours, theirs));
        }
        let requests = peer.fabric.event_queue().open().unwrap();
        let listener = peer.fabric.passive_endpoint(&requests);
        let listener = listener.listen_at(ANYWHERE).unwrap();
        let connectionless = peer.rdm_endpoint().unwrap();
        let watched = connect(&peer, other).await.unwrap();
        Busy {
            peer,
            pairs,
            watched,
            connectionless,
            requests,
            listener,
        }
    }

    /// `refuse` has the kernel refuse.
    async fn ends(mut self, other: &Peer, errno: i32, refuse: impl Future<Output = ()>) {
        let receives: Vec<_> = (self.pairs.iter())
            .map(|(ours, _)| ours.recv(vec![0; 2 << 20]).post().unwrap())
            .collect();
        let theirs: Vec<_> = (self.pairs.iter())
            .map(|(_, theirs)| theirs.recv(vec![0; 16]).post().unwrap())
            .collect();
        // More than the sockets hold, so that the kernel has it.
        let large: Vec<_> = (self.pairs.iter().skip(PAIRS / 2))
            .map(|(ours, _)| ours.send(vec![5; 32 << 20]).post().unwrap())
            .collect();
        let anybodys = self.connectionless.recv(vec![0; 16]).post().unwrap();
        // By the answer all of that has been submitted.
        let (probe, answer) = connect(&self.peer, other).await.unwrap();
        let (received, _) = tokio::join!(answer.recv(vec![0; 16]), probe.send("on its way?"));
        received.unwrap();
        let (watched, peer) = &self.watched;
        let takes = peer.recv(vec![0; 8]).post().unwrap();
        refuse.await;
        let acked = watched.send("watched").delivery_complete().into_future();
        let unheard = watched.recv(vec![0; 8]).into_future();
        // Makes the listener's ring submit, and then the domain's.
        let address = self.listener.local_addr();
        let _caller = TcpStream::connect(address).unwrap();
        is_reason(&connect(&self.peer, other).await.unwrap_err(), errno);

        for receive in receives {
            is_reason(&receive.await.unwrap_err().into(), errno);
        }
        for send in large {
            is_reason(&send.await.unwrap_err().into(), errno);
        }
        is_reason(&anybodys.await.unwrap_err().into(), errno);
        // Sooner than a peer is declared dead, by either side.
        is_reason(&unheard.await.unwrap_err().into(), errno);
        if let Err(failed) = acked.await {
            is_reason(&failed.into(), errno);
        }
        drop(takes);
        for receive in theirs {
            let lost: Error = receive.await.unwrap_err().into();
            let kinds = [
                ErrorKind::PeerClosed,
                ErrorKind::ConnectionReset,
                ErrorKind::Truncated, // What did not fit has come as far as it could.
            ];
            assert!(kinds.contains(&lost.kind()), "{lost}");
        }
        let mut ended: Vec<_> = self.pairs.iter().map(|(ours, _)| ours.id()).collect();
        while !ended.is_empty() {
            match self.peer.events.next().await {
                Some(Event::Connected { .. }) => {}
                Some(Event::Shutdown { endpoint, .. }) => ended.retain(|it| *it != endpoint),
                other => panic!("{other:?}"),
            }
        }
        match self.requests.next().await {
            Some(Event::Error(event)) => is_reason(&event.into(), errno),
            other => panic!("{other:?}"),
        }
        assert!(!self.listener.is_listening());
        self.later(errno).await;
    }

    /// What is asked for later says why it cannot be had.
    async fn later(&mut self, errno: i32) {
        let (ours, _) = self.pairs.pop().unwrap();
        is_reason(&ours.send("later").await.unwrap_err().into(), errno);
        is_reason(&ours.recv(vec![0; 8]).await.unwrap_err().into(), errno);
        let later = self.connectionless.recv(vec![0; 8]).await;
        is_reason(&later.unwrap_err().into(), errno);
        is_reason(&self.peer.domain.endpoint().open().unwrap_err(), errno);
        // Its listener would need a ring of its own.
        let listener = self.peer.rdm_endpoint().unwrap_err();
        assert_eq!(listener.os_error(), Some(errno), "{listener}");
    }
}

#[track_caller]
fn is_reason(error: &Error, errno: i32) {
    assert_eq!(error.kind(), ErrorKind::DriverGone, "{error}");
    assert_eq!(error.os_error(), Some(errno), "{error}");
    assert!(error.to_string().contains("io_uring_enter"), "{error}");
}

fn everything_ends(errno: i32) {
    if !backends().contains(&Backend::IoUring) {
        return;
    }
    let ends = async {
        let other = Net::on(Backend::Epoll).peer().unwrap();
        let task = Busy::new(Net::on(Backend::IoUring), &other).await;
        let thread = Busy::new(Net::on(Backend::IoUring).driver(Driver::Thread), &other).await;
        let manual = Busy::new(Net::on(Backend::IoUring).driver(Driver::Manual), &other).await;
        let all = tokio::sync::Barrier::new(3);
        let refuse = async || {
            if all.wait().await.is_leader() {
                refuse_to_enter(
                    libc::SECCOMP_RET_ERRNO | errno as u32,
                    libc::SECCOMP_FILTER_FLAG_TSYNC,
                );
            }
            all.wait().await;
        };
        tokio::join!(
            task.ends(&other, errno, refuse()),
            thread.ends(&other, errno, refuse()),
            manual.ends(&other, errno, refuse())
        );
        // A ring can be had still, but not be used: naming it is an error.
        let named = Net::on(Backend::IoUring).fabric().unwrap();
        let refused = named.domain().open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let (a, b) = connect(&other, &Net::on(Backend::Epoll).peer().unwrap())
            .await
            .unwrap();
        let (received, _) = tokio::join!(b.recv(vec![0; 8]), a.send("goes on"));
        received.unwrap();
    };
    runtime().block_on(async {
        tokio::time::timeout(Duration::from_secs(60), ends)
            .await
            .expect("what ends with its ring");
    });
}

/// The refusals of a moment change nothing: a signal, a kernel short of memory, completions that
/// are to be taken in first.
#[test]
fn refusals_that_pass_end_nothing() {
    alone("uring::refused_enter::refused_for_a_moment");
}

#[test]
#[ignore = "the other process of another test"]
fn refused_for_a_moment() {
    if !backends().contains(&Backend::IoUring) {
        return;
    }
    let Some(kernel) = Kernel::new() else {
        return left_out("no filter may ask this process");
    };
    // What is made from here on is filtered, and the threads of a driver with it.
    std::thread::spawn(move || {
        runtime().block_on(async {
            for net in [
                Net::on(Backend::IoUring),
                Net::on(Backend::IoUring).driver(Driver::Thread),
            ] {
                let (a, b) = net.pair().await.unwrap();
                for errno in [libc::EINTR, libc::EBUSY, libc::EAGAIN] {
                    for round in 0..30_u8 {
                        kernel.refuse(errno, usize::from(round % 7));
                        let large = vec![round; 1 << 20];
                        let into = vec![0; 1 << 20];
                        let (received, sent) = tokio::join!(b.recv(into), a.send(large));
                        sent.unwrap();
                        let (received, bytes) = received.unwrap();
                        assert_eq!(received.len, 1 << 20);
                        assert!(bytes.iter().all(|byte| *byte == round));
                    }
                    assert!(kernel.refused.load(Ordering::SeqCst) > 0, "it was asked");
                }
            }
        });
    })
    .join()
    .unwrap();
}

/// Answers each attempt of this process to enter for a ring.
struct Kernel {
    errno: Arc<AtomicI32>,
    /// So many more are refused.
    left: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl Kernel {
    /// For the calling thread and those that it starts from here on. `None`: the system does not
    /// let processes be asked.
    fn new() -> Option<Kernel> {
        let kernel = Kernel {
            errno: Arc::default(),
            left: Arc::default(),
            refused: Arc::default(),
        };
        let (errno, left) = (Arc::clone(&kernel.errno), Arc::clone(&kernel.left));
        let refused = Arc::clone(&kernel.refused);
        let (hand_over, descriptor) = std::sync::mpsc::channel::<OwnedFd>();
        // Started before the filter, so that its own calls need no answer.
        std::thread::spawn(move || {
            let Ok(fd) = descriptor.recv() else { return };
            while let Some(id) = asked(&fd) {
                let is_refused = left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                        left.checked_sub(1)
                    })
                    .is_ok();
                if is_refused {
                    refused.fetch_add(1, Ordering::SeqCst);
                }
                let error = if is_refused {
                    errno.load(Ordering::SeqCst)
                } else {
                    0
                };
                answer(&fd, id, error);
            }
        });
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let fd = refuse_to_enter(libc::SECCOMP_RET_USER_NOTIF, flags);
        if fd < 0 {
            return None;
        }
        // SAFETY: a new descriptor, which is ours alone.
        hand_over.send(unsafe { OwnedFd::from_raw_fd(fd) }).ok()?;
        Some(kernel)
    }

    fn refuse(&self, errno: i32, times: usize) {
        self.errno.store(errno, Ordering::SeqCst);
        self.left.store(times, Ordering::SeqCst);
    }
}

/// Waits for a call to be answered.
fn asked(fd: &OwnedFd) -> Option<u64> {
    use std::os::fd::AsRawFd;
    loop {
        // SAFETY: a plain structure of numbers, which must be zero.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure that this call fills outlives it.
        let answer = unsafe {
            libc::ioctl(
                fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                &raw mut call,
            )
        };
        match (answer, std::io::Error::last_os_error().raw_os_error()) {
            (0, _) => return Some(call.id),
            // A signal came, or the calling thread has gone.
            (_, Some(libc::EINTR | libc::ENOENT)) => {}
            _ => return None,
        }
    }
}

/// Lets it go on, or fail with this number.
fn answer(fd: &OwnedFd, id: u64, errno: i32) {
    use std::os::fd::AsRawFd;
    let answer = libc::seccomp_notif_resp {
        id,
        val: 0,
        error: -errno,
        flags: match errno {
            0 => libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            _ => 0,
        },
    };
    // SAFETY: the structure that this call reads outlives it.
    unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw const answer,
        )
    };
}

/// From now on `io_uring_enter` is answered so; gives what the system says to that.
fn refuse_to_enter(action: u32, flags: libc::c_ulong) -> i32 {
    super::filter::install(&[libc::SYS_io_uring_enter], action, flags).expect("a filter")
}
