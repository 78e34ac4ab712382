//! Atomic operations on the memory of peers (`fi_atomic(3)`): what each does and gives, who may,
//! and how each ends.

mod offered;

use std::time::Duration;

use crate::common::peers::open_region;
use crate::common::{on_each_at_once, on_every_backend};
use tokio::runtime::RuntimeFlavor;
use tokio_fabric::testing::{FaultPlan, Net, Peer, connect, connect_endpoints};
use tokio_fabric::{
    Access, Driver, Endpoint, ErrorKind, MemoryRegion, RemoteRegion, UserContext,
    buf::AddressRange,
    cq::CompletionFlags,
    ep::OnRefusal,
    error::{OperationKind, Phase, Refusal},
    info::{AtomicOp, AtomicType, CompareOp},
};

/// Two connected endpoints that live with refusals, and an open region of the second's.
async fn scene(net: &Net) -> (Peer, Peer, Endpoint, Endpoint, MemoryRegion<Vec<u8>>) {
    let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
    let open = |peer: &Peer| {
        let builder = peer.domain.endpoint();
        builder
            .on_refusal(OnRefusal::Continue { limit: 1000 })
            .open()
    };
    let (x, y) = (open(&a).unwrap(), open(&b).unwrap());
    connect_endpoints(&x, &y, &b.fabric).await.unwrap();
    let region = open_region(&b, vec![0u8; 8192]).await;
    (a, b, x, y, region)
}

fn first<B: 'static>(region: &MemoryRegion<B>, len: u64) -> RemoteRegion {
    region.remote().slice(..len).unwrap()
}

/// fi_atomic(3): "transfers the data contained in the user-specified data buffer to a remote node";
/// "return the initial value that was stored at the target to the user"; "comparing the target data
/// against a value before performing a swap operation."
/// fi_mr(3): "The memory buffer may be used as the target buffer of an RMA write or atomic
/// operation."
#[test]
fn numbers_of_peers_are_changed_fetched_and_compared() {
    on_every_backend(|net| async move {
        let (a, b, x, _y, region) = scene(&net).await;
        let word = first(&region, 8);
        x.atomic(AtomicOp::Write, 40u64, word).await.unwrap();
        x.atomic(AtomicOp::Sum, 2u64, word).await.unwrap();
        let before = x.fetch_atomic(AtomicOp::Prod, 10u64, word).await.unwrap();
        assert_eq!((before, region.load::<u64>(0).unwrap()), (42, 420));
        let missed = x
            .compare_atomic(CompareOp::Swap, 1u64, 7u64, word)
            .await
            .unwrap();
        let hit = x
            .compare_atomic(CompareOp::Swap, 420u64, 7u64, word)
            .await
            .unwrap();
        assert_eq!((missed, hit, region.load::<u64>(0).unwrap()), (420, 420, 7));
        let seen: u64 = x.fetch_atomic(AtomicOp::Read, 0u64, word).await.unwrap();
        assert_eq!(seen, 7);
        // Other types, arrays, several ranges, floating point.
        let halves = [word.slice(4..8).unwrap(), word.slice(..4).unwrap()];
        let parts = x
            .fetch_atomic(AtomicOp::Max, [-1i32, 9], halves)
            .await
            .unwrap();
        let low = i32::from_ne_bytes(7u64.to_ne_bytes()[..4].try_into().unwrap());
        let high = i32::from_ne_bytes(7u64.to_ne_bytes()[4..].try_into().unwrap());
        assert_eq!(parts, [high, low]);
        x.atomic(AtomicOp::Write, vec![1.5f32; 4], first(&region, 16))
            .await
            .unwrap();
        let floats = x.fetch_atomic(AtomicOp::Sum, vec![0.25f32; 4], first(&region, 16));
        assert_eq!(floats.await.unwrap(), [1.5; 4]);
        assert_eq!(region.load::<u32>(12).unwrap(), 1.75f32.to_bits());
        // The most that one operation takes, and one more.
        let all = vec![3u8; 4096];
        let count = b
            .domain
            .atomic_attr(AtomicType::Uint8, AtomicOp::Sum)
            .unwrap()
            .count;
        assert_eq!(count, all.len());
        x.atomic(AtomicOp::Write, all.clone(), region.remote())
            .await
            .unwrap();
        let fetched = x.fetch_atomic(AtomicOp::BitXor, all.clone(), region.remote());
        assert_eq!(fetched.await.unwrap(), all);
        let more = x.atomic(AtomicOp::Write, vec![3u8; 4097], region.remote());
        let error = more.await.unwrap_err();
        assert_eq!((error.kind(), error.fi_errno()), (ErrorKind::TooLarge, 90));
        // Through queues, and forgotten.
        let queue = a.domain.completion_queue().open().unwrap();
        let (z, target) = {
            let z = a.domain.endpoint().completion_queue(&queue).open().unwrap();
            let target = b.domain.endpoint().open().unwrap();
            connect_endpoints(&z, &target, &b.fabric).await.unwrap();
            (z, target)
        };
        z.inject_atomic(AtomicOp::Write, 5u64, word).unwrap();
        z.atomic(AtomicOp::Sum, 1u64, word)
            .delivery_complete()
            .queue(1u64)
            .await
            .unwrap();
        let done = queue.next().await.unwrap();
        assert_eq!(
            (done.context, done.operation),
            (UserContext(1), OperationKind::Atomic)
        );
        assert_eq!(done.flags, CompletionFlags::ATOMIC | CompletionFlags::WRITE);
        done.result.unwrap();
        z.fetch_atomic(AtomicOp::Sum, 1u64, word)
            .queue(2u64)
            .await
            .unwrap();
        let completion = queue.next().await.unwrap();
        assert_eq!(
            (completion.context, completion.operation),
            (UserContext(2), OperationKind::FetchAtomic)
        );
        assert_eq!(
            completion.flags,
            CompletionFlags::ATOMIC | CompletionFlags::READ
        );
        assert_eq!((completion.result.is_ok(), completion.len), (true, 8));
        assert_eq!(region.load::<u64>(0).unwrap(), 7);
        drop(target);
    });
}

/// The same over connectionless endpoints, whose first operation makes the connection.
/// fi_mr(3): "This includes source buffers for all transmit operations -- sends, tagged sends, RMA,
/// and atomics"
/// fi_domain(3): "This includes message queue, RMA, tagged messaging, and atomic operations, along
/// with their completion processing."
#[test]
fn connectionless_endpoints_have_them_too_beside_all_else() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let region = open_region(&b.peer, vec![0u8; 64]).await;
        let word = first(&region, 8);
        // The target awaits nothing; the operations of each kind end by themselves.
        let sum = a
            .endpoint
            .atomic(AtomicOp::Sum, 5i64, a.other, word)
            .post()
            .unwrap();
        let fetch = a.endpoint.fetch_atomic(AtomicOp::Sum, -7i64, a.other, word);
        let fetch = fetch.post().unwrap();
        let write = a
            .endpoint
            .write(vec![1u8; 8], a.other, region.remote().slice(8..16).unwrap());
        let write = write.post().unwrap();
        let send = a.endpoint.send("message", a.other).post().unwrap();
        let tagged = a.endpoint.send_tagged("tagged", a.other, 9).post().unwrap();
        let swap = a
            .endpoint
            .compare_atomic(CompareOp::SwapGreater, 0i64, 3i64, a.other, word);
        assert_eq!(swap.await.unwrap(), -2);
        assert_eq!((sum.await.unwrap(), fetch.await.unwrap()), ((), 5));
        write.await.unwrap();
        send.await.unwrap();
        tagged.await.unwrap();
        assert_eq!(region.load::<i64>(0).unwrap(), 3);
        a.endpoint
            .inject_atomic(AtomicOp::Min, -1i64, a.other, word)
            .unwrap();
        let seen = a.endpoint.fetch_atomic(AtomicOp::Read, 0i64, a.other, word);
        assert_eq!(seen.await.unwrap(), -1);
    });
}

/// fi_atomic(3): "The results of atomic operations performed by multiple actors simultaneously are
/// undefined" elsewhere; here all peers and this process are one actor: each value is seen once.
#[test]
fn every_value_of_a_shared_counter_is_seen_once() {
    const PEERS: u64 = 4;
    const EACH: u64 = 200;
    on_every_backend(|net| async move {
        let target = net.peer().unwrap();
        let y = target.rdm_endpoint().unwrap();
        let region = open_region(&target, vec![0u8; 8]).await;
        let remote = region.remote();
        let mut counting = Vec::new();
        for _ in 0..PEERS {
            let peer = net.peer().unwrap();
            let x = peer.rdm_endpoint().unwrap();
            let to_y = x.insert(y.local_addr()).unwrap();
            counting.push(tokio::spawn(async move {
                let mut posted = Vec::new();
                for _ in 0..EACH {
                    let add = x.fetch_atomic(AtomicOp::Sum, 1u64, to_y, remote);
                    posted.push(add.post().unwrap());
                }
                let mut seen = Vec::new();
                for add in posted {
                    seen.push(add.await.unwrap());
                }
                assert!(seen.is_sorted(), "one peer's are done in their order");
                drop(peer);
                seen
            }));
        }
        let local = std::thread::spawn(move || {
            let mut seen = Vec::new();
            for _ in 0..EACH {
                seen.push(region.fetch_add(0, 1u64).unwrap());
                std::thread::yield_now();
            }
            (region, seen)
        });
        let mut all = Vec::new();
        for peer in counting {
            all.extend(peer.await.unwrap());
        }
        let (region, seen) = local.join().unwrap();
        all.extend(seen);
        all.sort_unstable();
        let total = (PEERS + 1) * EACH;
        assert_eq!(all, (0..total).collect::<Vec<_>>());
        assert_eq!(region.load::<u64>(0).unwrap(), total);
    });
}

/// fi_mr(3): "must be registered with a resource domain before it can be used as the target of a
/// remote RMA or atomic data transfer."
/// fi_mr(3): "The MR key must be provided by a remote process when performing RMA or atomic
/// operations to a memory region."
/// Ruling 15, and docs/extension.md, section 11: each reason ends its operation and no other, and
/// nothing was changed.
#[test]
fn what_is_refused_says_why_and_changes_nothing() {
    on_every_backend(|net| async move {
        let (_a, b, x, _y, region) = scene(&net).await;
        let register = |access| {
            b.domain
                .register(vec![1u8; 64])
                .access(access)
                .now()
                .unwrap()
        };
        let (read_only, write_only) = (
            register(Access::REMOTE_READ),
            register(Access::REMOTE_WRITE),
        );
        let revoked = open_region(&b, vec![1u8; 64]).await;
        revoked.revoke().await;
        let held = open_region(&b, vec![1u8; 64]).await;
        let guard = held.quiesce().await.unwrap();
        let gone = open_region(&b, vec![1u8; 64]).await;
        let unregistered = gone.remote();
        gone.deregister().await.unwrap();
        let page = Box::leak(vec![0u64; 8].into_boxed_slice());
        // SAFETY: the memory is never freed, and nothing else touches it.
        let range = unsafe { AddressRange::new(page.as_mut_ptr().cast(), 64) };
        let range = b
            .domain
            .register(range)
            .access(Access::REMOTE)
            .now()
            .unwrap();
        let claimed = |region: MemoryRegion, addr| RemoteRegion::new(addr, 8, region.key());
        let cases = [
            (claimed(read_only.erase(), 0), Refusal::AccessDenied),
            (unregistered.slice(..8).unwrap(), Refusal::Revoked),
            (
                RemoteRegion::new(0, 8, region.key() ^ 1),
                Refusal::UnknownKey,
            ),
            (claimed(region.erase(), 8189), Refusal::OutOfBounds),
            (claimed(region.erase(), 3), Refusal::Misaligned),
            (claimed(revoked.erase(), 0), Refusal::Revoked),
            (claimed(held.erase(), 0), Refusal::Held),
            (claimed(range.erase(), 0), Refusal::Unsupported),
        ];
        for (remote, reason) in cases {
            let update = x.atomic(AtomicOp::Sum, 1u64, remote).await.map(|()| 0);
            let fetch = x.fetch_atomic(AtomicOp::Sum, 1u64, remote).await;
            let compare = x
                .compare_atomic(CompareOp::SwapNotEqual, 9u64, 1u64, remote)
                .await;
            for ended in [update, fetch, compare] {
                let error = ended.unwrap_err();
                assert_eq!(error.refusal(), Some(reason), "{error}");
                assert_eq!(error.phase(), Some(Phase::AwaitingPeer));
                let kind = match reason {
                    Refusal::Misaligned => ErrorKind::InvalidArgument,
                    Refusal::Unsupported => ErrorKind::Unsupported,
                    _ => ErrorKind::AccessDenied,
                };
                assert_eq!(error.kind(), kind);
            }
        }
        // A fetch takes the right to read, and an operation that only reads takes no other.
        let write_only = claimed(write_only.erase(), 0);
        x.atomic(AtomicOp::Sum, 1u64, write_only).await.unwrap();
        let error = x
            .fetch_atomic(AtomicOp::Sum, 1u64, write_only)
            .await
            .unwrap_err();
        assert_eq!(error.refusal(), Some(Refusal::AccessDenied));
        let seen = x.fetch_atomic(AtomicOp::Read, 0u64, claimed(read_only.erase(), 0));
        assert_eq!(seen.await.unwrap(), u64::from_ne_bytes([1; 8]));
        let stolen = x.fetch_atomic(AtomicOp::Write, 0u64, claimed(read_only.erase(), 0));
        assert_eq!(
            stolen.await.unwrap_err().refusal(),
            Some(Refusal::AccessDenied)
        );
        // What this side knows better does not go out.
        let short = x.atomic(AtomicOp::Sum, 1u64, region.remote().slice(..4).unwrap());
        assert_eq!(short.await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        let handed_out = x.fetch_atomic(AtomicOp::Sum, 1u64, read_only.remote());
        assert_eq!(
            handed_out.await.unwrap_err().kind(),
            ErrorKind::AccessDenied
        );
        let none: Vec<u64> = Vec::new();
        let empty = x.atomic(AtomicOp::Sum, none, region.remote());
        assert_eq!(empty.await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        let lone = x.compare_atomic(CompareOp::Swap, [1u64, 2], 1u64, region.remote());
        assert_eq!(lone.await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        let lone = x.compare_atomic(CompareOp::Swap, 1u64, [1u64, 2], region.remote());
        assert_eq!(lone.await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(crate::common::peers::bytes_of(&region), vec![0; 8192]);
        assert!(x.is_connected());
        drop(guard);
    });
}

/// fi_domain(3): "the connection is torn down" by default, after the refused operation has ended;
/// what else is under way ends too, once.
#[test]
fn by_default_a_refused_operation_ends_its_connection() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = connect(&a, &b).await.unwrap();
        let region = open_region(&b, vec![0u8; 8]).await;
        let bad = RemoteRegion::new(0, 8, region.key() ^ 1);
        let receive = x.recv(vec![0; 8]).post().unwrap();
        let refused = x.fetch_atomic(AtomicOp::Sum, 1u64, bad).post().unwrap();
        let error = refused.await.unwrap_err();
        assert_eq!(error.refusal(), Some(Refusal::UnknownKey));
        assert_eq!(receive.await.unwrap_err().kind(), ErrorKind::Canceled);
        drop(y);
    });
}

/// fi_atomic(3): FI_EOPNOTSUPP: "The requested atomic operation is not supported on this endpoint."
/// Toward a peer that speaks libfabric's protocol only it is known at the post, or when the
/// connection is made.
#[test]
fn a_peer_without_the_extension_has_none() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let region = open_region(&b, vec![0u8; 8]).await;
        let x = a.domain.endpoint().open().unwrap();
        let y = b.domain.endpoint().extension(false).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let error = x
            .atomic(AtomicOp::Sum, 1u64, region.remote())
            .post()
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.fi_errno()),
            (ErrorKind::Unsupported, 38)
        );
        assert_eq!(error.operation(), Some(OperationKind::Atomic));
        let fetch = y.fetch_atomic(AtomicOp::Sum, 1u64, region.remote()).post();
        assert_eq!(fetch.unwrap_err().kind(), ErrorKind::Unsupported);
        // Connectionless: some wait for the connection, one beside them for room.
        let plain = b.domain.rdm_endpoint().extension(false).open().unwrap();
        let z = a.domain.rdm_endpoint().transmit_size(2).open().unwrap();
        let to_plain = z.insert(plain.local_addr()).unwrap();
        let remote = region.remote();
        // The connection may be up before the post: then it is refused there.
        let fetch = z.fetch_atomic(AtomicOp::Sum, 1u64, to_plain, remote);
        let fetch = fetch.into_future();
        let send = z.send("still sent", to_plain).post().unwrap();
        let waiting = z.atomic(AtomicOp::Sum, 1u64, to_plain, remote);
        let waiting = waiting.into_future();
        assert_eq!(fetch.await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Unsupported);
        send.await.unwrap();
        assert_eq!(plain.recv(vec![0; 10]).await.unwrap().1, b"still sent");
        let late = z.atomic(AtomicOp::Sum, 1u64, to_plain, remote).post();
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Unsupported);
        let to_z = plain.insert(z.local_addr()).unwrap();
        let ours = plain.atomic(AtomicOp::Sum, 1u64, to_z, remote).post();
        assert_eq!(ours.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(region.load::<u64>(0).unwrap(), 0);
    });
}

/// Every operation under way ends once when the connection breaks, at whatever byte.
#[test]
fn a_reset_ends_each_operation_once() {
    for bytes in [300, 1_000, 3_000, 9_000] {
        on_each_at_once(move |net| async move {
            let net = net.faults(FaultPlan::seeded(bytes).cut_after_bytes(bytes..=bytes));
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let Ok((x, _y)) = connect(&a, &b).await else {
                return; // It broke that early.
            };
            let region = open_region(&b, vec![0u8; 64]).await;
            let mut done = 0;
            let mut posted = Vec::new();
            for _ in 0..200 {
                let word = first(&region, 8);
                match x.fetch_atomic(AtomicOp::Sum, 1u64, word).post() {
                    Ok(op) => posted.push(op),
                    Err(_) => break,
                }
            }
            for op in posted {
                match op.await {
                    Ok(seen) => {
                        assert_eq!(seen, done, "done once and in order");
                        done += 1;
                    }
                    Err(error) => assert_eq!(error.refusal(), None, "{error}"),
                }
            }
            assert!(region.load::<u64>(0).unwrap() >= done);
        });
    }
}

/// fi_cancel(3), ruling 4: what has not gone out can be taken back; a closed endpoint ends the
/// rest; a dropped future that has started changes the number all the same.
#[test]
fn cancelled_dropped_and_closed_operations_end() {
    on_every_backend(|net| async move {
        let (a, b, x, y, region) = scene(&net).await;
        let word = first(&region, 8);
        // Behind a fence that waits for a read, it stays here.
        let read = x.read(vec![0u8; 8192], region.remote()).post().unwrap();
        let fenced = x.atomic(AtomicOp::Sum, 1u64, word).fence().post().unwrap();
        if fenced.cancel() {
            assert_eq!(fenced.await.unwrap_err().kind(), ErrorKind::Canceled);
        } else {
            fenced.await.unwrap();
            x.atomic(AtomicOp::Write, 0u64, word).await.unwrap();
        }
        read.await.unwrap();
        let add = x.fetch_atomic(AtomicOp::Sum, 1u64, word);
        add.fence()
            .more()
            .timeout(std::time::Duration::from_secs(30))
            .await
            .unwrap();
        assert_eq!(region.load::<u64>(0).unwrap(), 1);
        // A peer that has closed: nothing is lost, nothing stays.
        let last = x.fetch_atomic(AtomicOp::Sum, 1u64, word).post().unwrap();
        x.shutdown().await.unwrap();
        assert_eq!(
            last.await.unwrap(),
            1,
            "an agreed end does what was accepted"
        );
        let late = x.atomic(AtomicOp::Sum, 1u64, word).await.unwrap_err();
        assert!(
            matches!(late.kind(), ErrorKind::BadState | ErrorKind::PeerClosed),
            "{late}"
        );
        y.shutdown().await.unwrap();
        assert_eq!(region.load::<u64>(0).unwrap(), 2);
        drop((a, b));
    });
}

/// fi_endpoint(3), FI_FENCE: "Indicates that the requested operation, also known as the fenced
/// operation, and any operation posted after the fenced operation will be deferred until all
/// previous operations targeting the same peer endpoint have completed." FI_MORE holds an operation
/// back for the next; a time limit counts while it waits.
#[test]
fn they_are_fenced_held_back_and_limited_in_time() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let y = b.domain.endpoint().unexpected_bytes(0).open().unwrap();
        let x = a.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let region = open_region(&b, vec![0u8; 8]).await;
        let ours = open_region(&a, vec![0u8; 8]).await;
        let word = first(&region, 8);
        // Nothing goes out within the call, as one alone on an idle connection may, and before the
        // driver has its turn.
        let held = x.atomic(AtomicOp::Sum, 1u64, word).more().post().unwrap();
        let flavor = tokio::runtime::Handle::current().runtime_flavor();
        if flavor == RuntimeFlavor::CurrentThread && x.domain().driver() == Driver::Task {
            assert_eq!(held.phase(), Phase::Queued);
        }
        held.await.unwrap();
        // Has no receive, and waits for one.
        let message = x.send("waits").post().unwrap();
        let limit = Duration::from_millis(20);
        let limited = x.atomic(AtomicOp::Sum, 8u64, word).fence().timeout(limit);
        let error = limited.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let fenced = x.atomic(AtomicOp::Sum, 2u64, word).fence().post().unwrap();
        let behind = x.fetch_atomic(AtomicOp::Sum, 4u64, word).post().unwrap();
        // All that might go out to the peer has, when it has had two answers.
        for _ in 0..2 {
            y.read(vec![0u8; 8], ours.remote()).await.unwrap();
        }
        assert_eq!(region.load::<u64>(0).unwrap(), 1);
        assert_eq!(
            (fenced.phase(), behind.phase()),
            (Phase::Queued, Phase::Queued)
        );
        y.recv(vec![0u8; 8]).await.unwrap();
        message.await.unwrap();
        fenced.await.unwrap();
        assert_eq!(behind.await.unwrap(), 3);
        assert_eq!(region.load::<u64>(0).unwrap(), 7);
    });
}
