//! Futures dropped, cancelled and leaked in each state, and runtimes that end under them: every
//! operation ends, nothing hangs, nothing is left behind.

mod detached;
mod gone;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::on_every_backend;
use bytes::Bytes;
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{
    Access, Endpoint, ErrorKind, Event, Hints, RemoteRegion, domain::DomainBind, error::Phase,
    info::MrMode, op::Op,
};

/// Larger than whatever a socket or pipe holds: it moves until the peer receives it.
const LARGE: usize = 16 << 20;

/// Bytes that count when they are freed.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::AcqRel);
    }
}

fn counted(bytes: &[u8], freed: &Arc<AtomicUsize>) -> Bytes {
    Bytes::from_owner(Counted(bytes.to_vec(), Arc::clone(freed)))
}

/// What is done to a future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Drop,
    Cancel,
    Leak,
}

const DEEDS: [Deed; 3] = [Deed::Drop, Deed::Cancel, Deed::Leak];

/// Two plain endpoints; `b` keeps no unexpected message, so that `a` is held up until `b` receives.
/// (With the extension only messages would be held up, before they start.)
async fn held_up(net: &Net, transmits: usize) -> (Peer, Endpoint, Peer, Endpoint) {
    let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
    let a = us
        .domain
        .endpoint()
        .transmit_size(transmits)
        .receive_size(1)
        .open()
        .unwrap();
    let b = them
        .domain
        .endpoint()
        .unexpected_bytes(0)
        .extension(false)
        .open()
        .unwrap();
    connect_endpoints(&a, &b, &them.fabric).await.unwrap();
    (us, a, them, b)
}

async fn until(what: &str, mut met: impl FnMut() -> bool) {
    for _ in 0..1_000_000 {
        if met() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{what} never comes");
}

/// Does this to an operation that has not started: it is withdrawn (leaked, it runs). Returns
/// whether it will run.
async fn withdraw<B: tokio_fabric::buf::IoBufs + std::fmt::Debug>(op: Op<B>, deed: Deed) -> bool {
    match deed {
        Deed::Drop => drop(op),
        Deed::Leak => std::mem::forget(op),
        Deed::Cancel => {
            assert!(op.cancel(), "it had not started");
            assert!(!op.cancel(), "it has ended");
            assert_eq!(op.phase(), Phase::Ended);
            let failed = op.await.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::Canceled);
            assert!(failed.into_parts().1.is_some(), "the buffers come back");
        }
    }
    deed == Deed::Leak
}

/// Ruling 4: "If it has not started, it never starts": a send, a write and a read that wait for
/// room, or are queued behind a frame on its way, never reach the peer, and their memory is freed
/// at once.
#[test]
fn what_has_not_started_is_withdrawn() {
    on_every_backend(|net| async move {
        for (transmits, phase) in [(1, Phase::Waiting), (8, Phase::Queued)] {
            for deed in DEEDS {
                let (_us, a, them, b) = held_up(&net, transmits).await;
                let region = them
                    .domain
                    .register(vec![0; 8])
                    .access(Access::all())
                    .await
                    .unwrap();
                let blocker = a.send(vec![1; LARGE]).post().unwrap();
                let freed = Arc::new(AtomicUsize::new(0));
                let send = a.send(counted(b"withdrawn", &freed)).post().unwrap();
                let write = a
                    .write(counted(&[9; 8], &freed), region.remote())
                    .post()
                    .unwrap();
                let read = a.read(vec![0; 8], region.remote()).post().unwrap();
                let injected = a.inject(b"early");
                assert_eq!(injected.is_ok(), phase == Phase::Queued);
                for found in [send.phase(), write.phase(), read.phase()] {
                    assert_eq!(found, phase);
                }
                let runs = withdraw(send, deed).await;
                withdraw(write, deed).await;
                withdraw(read, deed).await;
                assert_eq!(
                    freed.load(Ordering::Acquire),
                    if runs { 0 } else { 2 },
                    "{deed:?}"
                );
                let last = a.send("last").delivery_complete().post().unwrap();
                assert_eq!(b.recv(vec![0; LARGE]).await.unwrap().0.len, LARGE);
                blocker.await.unwrap();
                for expected in [&b"withdrawn"[..], b"early", b"last"] {
                    if (expected == b"withdrawn" && !runs)
                        || (expected == b"early" && phase == Phase::Waiting)
                    {
                        continue;
                    }
                    let (received, bytes) = b.recv(vec![0; 20]).await.unwrap();
                    assert_eq!(
                        &bytes[..received.len],
                        expected,
                        "{deed:?} of a {phase:?} send"
                    );
                }
                last.await.unwrap();
                let mut there = [0; 8];
                region.read_at(0, &mut there).unwrap();
                assert_eq!(
                    there,
                    if runs { [9; 8] } else { [0; 8] },
                    "{deed:?} of a {phase:?} write"
                );
            }
        }
    });
}

/// Ruling 4: "If it has started, it runs to completion": a send that moves, and one, a write and a
/// read that await the peer's answer, arrive whatever becomes of their futures; "its buffers live
/// as long as needed".
#[test]
fn what_has_started_runs_to_its_end() {
    on_every_backend(|net| async move {
        for deed in DEEDS {
            let (_us, a, them, b) = held_up(&net, 8).await;
            let region = them
                .domain
                .register(vec![3; 8])
                .access(Access::all())
                .await
                .unwrap();
            let freed = Arc::new(AtomicUsize::new(0));
            // The peer has no receive for the first message and reads nothing behind it.
            let acked = a
                .send(counted(b"first", &freed))
                .delivery_complete()
                .post()
                .unwrap();
            let write = a
                .write(counted(&[9; 8], &freed), region.remote())
                .delivery_complete();
            let write = write.post().unwrap();
            let read = a.read(vec![0; 8], region.remote()).post().unwrap();
            let started =
                || [acked.phase(), write.phase(), read.phase()] == [Phase::AwaitingPeer; 3];
            until("awaiting the peer", started).await;
            let moving = a.send(counted(&vec![1; LARGE], &freed)).post().unwrap();
            until("moving", || moving.phase() == Phase::Moving).await;
            let mut kept = Vec::new();
            for op in [acked, write, moving] {
                match deed {
                    Deed::Drop => drop(op),
                    Deed::Leak => std::mem::forget(op),
                    Deed::Cancel => {
                        assert!(!op.cancel(), "it has started");
                        kept.push(op);
                    }
                }
            }
            drop(read);
            assert_eq!(
                freed.load(Ordering::Acquire),
                0,
                "freed under the transport"
            );
            let (received, bytes) = b.recv(vec![0; 20]).await.unwrap();
            assert_eq!(&bytes[..received.len], b"first");
            assert_eq!(b.recv(vec![0; LARGE]).await.unwrap().0.len, LARGE);
            let mut there = [0; 8];
            region.read_at(0, &mut there).unwrap();
            assert_eq!(there, [9; 8]);
            for op in kept {
                op.await.unwrap();
            }
            let freed_all = || freed.load(Ordering::Acquire) == 3;
            if deed != Deed::Leak {
                until("freed buffers", freed_all).await;
            }
        }
    });
}

/// Ruling 4: "A receive that is dropped, or whose time limit passes, is removed from the queue; a
/// message that was already matched to it returns to the head of the unexpected messages", in every
/// state of the receive.
#[test]
fn a_dropped_receive_loses_no_message() {
    on_every_backend(|net| async move {
        for phase in [Phase::Waiting, Phase::Queued, Phase::Moving, Phase::Ended] {
            let (_us, b, _them, a) = held_up(&net, 8).await;
            // `b` has room for one posted receive.
            let mut first = None;
            if phase == Phase::Waiting {
                first = Some(b.recv(vec![0; 10]).post().unwrap());
            }
            let dropped = b.recv(vec![0; LARGE]).post().unwrap();
            let len = if phase == Phase::Moving { LARGE } else { 1000 };
            let payload: Vec<u8> = (0..len).map(|at| (at >> 3) as u8).collect();
            let send = match phase {
                Phase::Waiting | Phase::Queued => None,
                _ => Some(a.send(payload.clone()).post().unwrap()),
            };
            // Another thread may be done with all of it between two looks.
            let ended = || phase == Phase::Moving && dropped.phase() == Phase::Ended;
            until("the state", || dropped.phase() == phase || ended()).await;
            drop(dropped);
            if let Some(first) = first {
                drop(first);
            }
            let send = send.unwrap_or_else(|| a.send(payload.clone()).post().unwrap());
            let again = b.recv(vec![0; LARGE]).post().unwrap();
            let (received, buffer) = again.await.unwrap();
            assert!(
                received.len == len && buffer[..len] == payload[..],
                "{phase:?}"
            );
            send.await.unwrap();
        }
    });
}

/// Ruling 3: those who wait "wait in one FIFO per context": when the one at its head goes away,
/// the next is let in.
#[test]
fn who_waits_behind_a_withdrawn_operation_is_let_in() {
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = us.domain.completion_queue().size(1).open().unwrap();
        let a = us.domain.endpoint().transmit_queue(&queue).open().unwrap();
        let b = them.domain.endpoint().open().unwrap();
        connect_endpoints(&a, &b, &them.fabric).await.unwrap();
        let fills = a.send("fills the queue").queue(1_u64).post().unwrap();
        assert!(fills.is_accepted());
        let waits = a.send("waits").queue(2_u64).post().unwrap();
        let behind = a.send("behind").post().unwrap();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert!(!waits.is_accepted());
        assert_eq!(behind.phase(), Phase::Waiting);
        drop(waits);
        behind.await.unwrap();
        assert_eq!(queue.next().await.unwrap().context.0, 1);
        assert!(queue.is_empty());
    });
}

/// "Dropping the future does not stop the connection; its end still comes as an event"; a request
/// that is dropped is rejected, and so is an acceptance that was not begun. Leaked, all are what
/// they were. (Of acceptances that were begun: `cm/accepting.rs`.)
#[test]
fn connecting_and_accepting_futures_may_be_dropped() {
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let requests = them.fabric.event_queue().open().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = them
            .fabric
            .passive_endpoint(&requests)
            .listen_at(any)
            .unwrap();
        let request = async || match requests.next().await {
            Some(Event::ConnRequest(request)) => request,
            other => panic!("{other:?}"),
        };
        // A connect whose future is dropped or leaked connects.
        for leak in [false, true] {
            let ours = us.domain.endpoint().open().unwrap();
            let connecting = ours
                .connect(listener.local_addr())
                .context(5_u64)
                .into_future();
            if leak {
                std::mem::forget(connecting)
            } else {
                drop(connecting)
            }
            let theirs = request().await.accept(&them.domain).await.unwrap();
            let connected = us.events.next().await.unwrap();
            assert!(matches!(connected, Event::Connected { context: Some(c), .. } if c.0 == 5));
            let through = ours.send("through").delivery_complete().post().unwrap();
            assert_eq!(theirs.recv(vec![0; 10]).await.unwrap().0.len, 7);
            through.await.unwrap();
            theirs.shutdown().await.unwrap();
            assert!(matches!(
                us.events.next().await,
                Some(Event::Shutdown { .. })
            ));
            drop(ours);
        }
        // A request that is dropped, and an accept that was not begun, are rejections.
        for accepts in [false, true] {
            let ours = us.domain.endpoint().open().unwrap();
            let connecting = ours.connect(listener.local_addr()).into_future();
            let request = request().await;
            if accepts {
                drop(request.accept(&them.domain));
            } else {
                drop(request);
            }
            let refused = connecting.await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            assert!(matches!(us.events.next().await, Some(Event::Error(_))));
        }
    });
}

/// Ruling 7: "If the future is dropped, the registration is undone, with one Canceled event if a
/// context was given".
#[test]
fn a_dropped_registration_is_undone() {
    on_every_backend(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
        let fabric = net.fabric_with(hints).unwrap();
        let events = fabric.event_queue().open().unwrap();
        let domain = fabric.domain().open().unwrap();
        domain.bind(&events, DomainBind::REG_MR).unwrap();
        let mut dropped = 0;
        for polled in [false, true] {
            let mut registration = Box::pin(
                domain
                    .register(vec![0; 64 << 20])
                    .context(3_u64)
                    .into_future(),
            );
            if polled {
                let _ = futures::poll!(registration.as_mut());
            }
            drop(registration);
            match events.next().await {
                Some(Event::Error(failed)) => {
                    assert_eq!(failed.error.kind(), ErrorKind::Canceled);
                    assert_eq!(failed.context.unwrap().0, 3);
                    dropped += 1;
                }
                other => drop(other), // It was done before.
            }
            until("no region", || domain.region_count() == 0).await;
        }
        assert!(dropped > 0 && events.is_empty());
        // Leaked, it is done, and its event reports it.
        std::mem::forget(domain.register(vec![0; 4096]).context(4_u64).into_future());
        let Some(Event::MrComplete { context, region }) = events.next().await else {
            panic!()
        };
        assert_eq!(context.0, 4);
        assert_eq!(region.len(), 4096);
    });
}

/// `tokio::time::timeout(limit, op)` "is always legal", for any limit.
#[test]
fn timeouts_are_always_legal() {
    on_every_backend(|net| async move {
        let (_us, a, _them, b) = held_up(&net, 4).await;
        let remote = RemoteRegion::new(0, 8, 0);
        for micros in [0, 1, 50, 300] {
            let limit = Duration::from_micros(micros);
            assert!(
                tokio::time::timeout(limit, a.recv(vec![0; 8]))
                    .await
                    .is_err()
            );
            let _ = tokio::time::timeout(limit, a.send(vec![1; 100]).delivery_complete()).await;
        }
        // The sends that had started arrive; the last one does for sure.
        let last = a.send("last").delivery_complete().post().unwrap();
        loop {
            let (received, bytes) = b.recv(vec![0; 100]).await.unwrap();
            if &bytes[..received.len] == b"last" {
                break;
            }
        }
        last.await.unwrap();
        // A read that the peer refuses ends as a loss, not by hanging.
        assert!(a.read(vec![0; 8], remote).await.is_err());
    });
}
