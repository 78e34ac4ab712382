//! Atomic operations on the memory of peers (`fi_atomic(3)`): what each does and gives, who may,
//! and how each ends.

use std::time::Duration;

use crate::common::peers::{open_region, peer_with, toward};
use crate::common::{on_each_at_once, on_every_backend};
use tokio::runtime::RuntimeFlavor;
use tokio_fabric::testing::{FaultPlan, Net, Peer, connect, connect_endpoints};
use tokio_fabric::{
    Access, Caps, Driver, Endpoint, EndpointType, Error, ErrorKind, Hints, MemoryRegion,
    RemoteRegion, UserContext,
    buf::AddressRange,
    cq::CompletionFlags,
    domain::DomainBind,
    ep::OnRefusal,
    error::{OperationKind, Phase, Refusal},
    info::{AtomicOp, AtomicType, CompareOp, MrMode, MsgOrder},
    mr::{MrBind, MrFlags},
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
fn numbers_of_peers_are_changed_told_and_compared() {
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
        let told = x.fetch_atomic(AtomicOp::BitXor, all.clone(), region.remote());
        assert_eq!(told.await.unwrap(), all);
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
        let told = queue.next().await.unwrap();
        assert_eq!(
            (told.context, told.operation),
            (UserContext(2), OperationKind::FetchAtomic)
        );
        assert_eq!(told.flags, CompletionFlags::ATOMIC | CompletionFlags::READ);
        assert_eq!((told.result.is_ok(), told.len), (true, 8));
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
        // Nobody waits at the target; the operations of each kind end by themselves.
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
        // What is told takes the right to read, and what only reads takes no other.
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
/// Toward whoever speaks libfabric's protocol only it is known at the post, or when the connection
/// is made.
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

/// fi_mr(3): "Generates an event whenever a remote RMA write or atomic operation modifies the
/// memory region."
/// fi_endpoint(3): FI_REMOTE_READ counts "an RMA read, atomic fetch, or atomic compare operation",
/// FI_REMOTE_WRITE "an RMA write or base atomic operation".
#[test]
fn counters_of_endpoints_and_regions_count_them() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (writes, reads) = (a.domain.counter(), a.domain.counter());
        let x = (a.domain.endpoint())
            .on_refusal(OnRefusal::Continue { limit: 9 })
            .write_counter(&writes)
            .read_counter(&reads);
        let x = x.open().unwrap();
        let (written, told) = (b.domain.counter(), b.domain.counter());
        let y = (b.domain.endpoint())
            .on_refusal(OnRefusal::Continue { limit: 9 })
            .remote_write_counter(&written)
            .remote_read_counter(&told);
        let y = y.open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let registering = b.domain.register(vec![0u8; 64]).flags(MrFlags::RMA_EVENT);
        let region = registering.now().map_err(Error::from).unwrap();
        let (changed, looked_at) = (b.domain.counter(), b.domain.counter());
        region.bind_counter(&changed, MrBind::REMOTE_WRITE).unwrap();
        region
            .bind_counter(&looked_at, MrBind::REMOTE_READ)
            .unwrap();
        region.enable().unwrap();
        let word = first(&region, 8);
        x.atomic(AtomicOp::Sum, 1u64, word).await.unwrap();
        x.inject_atomic(AtomicOp::Sum, 1u64, word).unwrap();
        x.fetch_atomic(AtomicOp::Sum, 1u64, word).await.unwrap();
        x.compare_atomic(CompareOp::Swap, 3u64, 4u64, word)
            .await
            .unwrap();
        x.fetch_atomic(AtomicOp::Read, 0u64, word).await.unwrap();
        let bad = RemoteRegion::new(1, 8, region.key());
        x.atomic(AtomicOp::Sum, 1u64, bad).await.unwrap_err();
        x.fetch_atomic(AtomicOp::Sum, 1u64, bad).await.unwrap_err();
        assert_eq!(written.wait_for(2).await, Ok(2));
        assert_eq!(told.wait_for(3).await, Ok(3));
        assert_eq!(changed.wait_for(4).await, Ok(4));
        assert_eq!(looked_at.wait_for(3).await, Ok(3));
        let ours = [&writes, &reads].map(|it| (it.read(), it.read_error()));
        assert_eq!(ours, [(2, 1), (3, 1)]);
        let theirs = [&written, &told, &changed, &looked_at].map(|it| it.read());
        assert_eq!(theirs, [2, 3, 4, 3]);
    });
}

/// fi_mr(3): "used as the result buffer for RMA read and atomic operations on the initiator side."
/// fi_mr(3): "used as the source buffer for RMA write and atomic operations on the initiator side."
/// fi_domain(3): "Data buffers used in send and receive operations and as the source buffer for RMA
/// and atomic operations must be registered"
#[test]
fn operands_and_results_may_be_in_regions_and_must_with_local() {
    on_every_backend(|net| async move {
        let (_a, b, x, _y, region) = scene(&net).await;
        let word = first(&region, 8);
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::LOCAL));
        let local = peer_with(&net, hints, DomainBind::empty());
        let (z, _target) = connect(&local, &b).await.unwrap();
        for (peer, endpoint) in [(&_a, &x), (&local, &z)] {
            let register = |access| {
                let made = peer.domain.register(vec![0u8; 64]).access(access).now();
                made.map_err(Error::from).unwrap()
            };
            let (source, results) = (register(Access::WRITE), register(Access::READ));
            source.store(8, 5u64).unwrap();
            source.store(16, 6u64).unwrap();
            let operand = |at| source.slice(at..at + 8).unwrap().numbers_of::<u64>();
            let into = || results.slice(24..32).unwrap();
            region.store(0, 100u64).unwrap();
            endpoint
                .atomic(AtomicOp::Sum, operand(8), word)
                .await
                .unwrap();
            let fetch = endpoint.fetch_atomic(AtomicOp::Sum, operand(16), word);
            let slice = fetch.results_into(into()).await.unwrap();
            assert_eq!(
                (slice.offset(), results.load::<u64>(24).unwrap()),
                (24, 105)
            );
            region.store(0, 6u64).unwrap();
            let swap = endpoint.compare_atomic(CompareOp::Swap, operand(16), operand(8), word);
            swap.results_into(into()).await.unwrap();
            assert_eq!(results.load::<u64>(24).unwrap(), 6);
            assert_eq!(region.load::<u64>(0).unwrap(), 5);
            let read = endpoint.fetch_atomic(AtomicOp::Read, operand(8), word);
            read.results_into(into()).await.unwrap();
            assert_eq!(results.load::<u64>(24).unwrap(), 5);
            // Each within its rights.
            let wrong = results.slice(..8).unwrap().numbers_of::<u64>();
            let error = endpoint
                .atomic(AtomicOp::Sum, wrong, word)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessDenied);
            let fetch = endpoint.fetch_atomic(AtomicOp::Sum, operand(8), word);
            let error = fetch
                .results_into(source.slice(..8).unwrap())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessDenied);
            endpoint.inject_atomic(AtomicOp::Write, 1u64, word).unwrap();
            let read = endpoint.fetch_atomic(AtomicOp::Read, operand(8), word);
            read.results_into(into()).await.unwrap();
            assert_eq!(results.load::<u64>(24).unwrap(), 1, "copied, it passes");
        }
        let values = z.atomic(AtomicOp::Sum, 1u64, word).await.unwrap_err();
        assert_eq!(values.kind(), ErrorKind::InvalidArgument);
        let results = local.domain.register(vec![0u8; 8]).access(Access::READ);
        let results = results.now().map_err(Error::from).unwrap();
        let into = || results.slice(..).unwrap();
        let fetch = z.fetch_atomic(AtomicOp::Sum, 1u64, word);
        let values = fetch.results_into(into()).await.unwrap_err();
        assert_eq!(values.kind(), ErrorKind::InvalidArgument, "operands too");
        let region_of_z = local.domain.register(vec![0u8; 8]).access(Access::WRITE);
        let source = region_of_z.now().map_err(Error::from).unwrap();
        let operand = source.slice(..).unwrap().numbers_of::<u64>();
        let swap = z.compare_atomic(CompareOp::Swap, 1u64, operand, word);
        let values = swap.results_into(into()).await.unwrap_err();
        assert_eq!(
            values.kind(),
            ErrorKind::InvalidArgument,
            "what is compared too"
        );
        let operand = source.slice(..).unwrap().numbers_of::<u64>();
        let values = z
            .fetch_atomic(AtomicOp::Sum, operand, word)
            .await
            .unwrap_err();
        assert_eq!(
            values.kind(),
            ErrorKind::InvalidArgument,
            "results are to be in a region"
        );
    });
}

/// fi_atomic(3): "indicate which operations the local provider supports"; "The requested operation
/// and data type must also be valid for the given provider."
#[test]
fn queries_tell_what_is_offered_and_nothing_else_is_done() {
    on_each_at_once(|net| async move {
        let (a, _b, x, _y, region) = scene(&net).await;
        let domain = &a.domain;
        for (datatype, size) in [
            (AtomicType::Int8, 1),
            (AtomicType::Uint16, 2),
            (AtomicType::Float, 4),
            (AtomicType::Double, 8),
        ] {
            for attr in [
                domain.atomic_attr(datatype, AtomicOp::Sum),
                domain.fetch_atomic_attr(datatype, AtomicOp::Read),
                domain.compare_atomic_attr(datatype, CompareOp::SwapLess),
            ] {
                let attr = attr.unwrap();
                assert_eq!((attr.size, attr.count), (size, 4096 / size));
            }
        }
        let mut refused = vec![
            domain.atomic_attr(AtomicType::Uint64, AtomicOp::Read),
            domain.atomic_attr(AtomicType::Float, AtomicOp::BitOr),
            domain.fetch_atomic_attr(AtomicType::Double, AtomicOp::BitXor),
            domain.compare_atomic_attr(AtomicType::Double, CompareOp::SwapMasked),
        ];
        for wide in [
            AtomicType::FloatComplex,
            AtomicType::DoubleComplex,
            AtomicType::LongDouble,
            AtomicType::LongDoubleComplex,
            AtomicType::Int128,
            AtomicType::Uint128,
        ] {
            refused.push(domain.atomic_attr(wide, AtomicOp::Write));
            refused.push(domain.compare_atomic_attr(wide, CompareOp::Swap));
        }
        for refused in refused {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
        }
        let bits = x.atomic(AtomicOp::BitOr, 1.0f64, first(&region, 8)).await;
        assert_eq!(bits.unwrap_err().kind(), ErrorKind::Unsupported);
        let reads = x.atomic(AtomicOp::Read, 1u64, first(&region, 8)).await;
        assert_eq!(reads.unwrap_err().kind(), ErrorKind::Unsupported);
        // Who did not ask for them has none.
        let hints = Hints::new().caps(Caps::MSG | Caps::RMA);
        let (without, _target, z, _) = toward(&net, Hints::new()).await;
        assert!(without.domain.info().caps.contains(Caps::ATOMIC));
        drop(z);
        let plain = peer_with(&net, hints, DomainBind::empty());
        let none = plain.domain.atomic_attr(AtomicType::Uint8, AtomicOp::Sum);
        assert_eq!(none.unwrap_err().kind(), ErrorKind::Unsupported);
        let (z, _target) = connect(&plain, &a).await.unwrap();
        let error = z
            .atomic(AtomicOp::Sum, 1u64, first(&region, 8))
            .post()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

/// fi_getinfo(3): "Specifies that the endpoint supports some set of atomic operations." With the
/// directions that limit them, and the order they are done in.
#[test]
fn info_offers_them_to_connected_and_connectionless_endpoints() {
    for endpoint in [EndpointType::Msg, EndpointType::Rdm] {
        let hints = || Hints::new().endpoint(endpoint);
        let asked = Caps::ATOMIC | Caps::WRITE | Caps::REMOTE_READ;
        let info = &tokio_fabric::discover(&hints().caps(asked)).unwrap()[0];
        assert!(info.caps.contains(asked));
        assert_eq!(info.tx.caps, Caps::ATOMIC | Caps::WRITE);
        assert_eq!(info.rx.caps, Caps::ATOMIC | Caps::REMOTE_READ);
        let order = MsgOrder::ATOMIC_RAR
            | MsgOrder::ATOMIC_RAW
            | MsgOrder::ATOMIC_WAR
            | MsgOrder::ATOMIC_WAW;
        let ordered = hints().caps(Caps::ATOMIC).tx(|tx| tx.msg_order(order));
        let info = &tokio_fabric::discover(&ordered).unwrap()[0];
        assert!(info.tx.msg_order.contains(order) && info.rx.msg_order.contains(order));
        let all = Caps::READ | Caps::WRITE | Caps::REMOTE_READ | Caps::REMOTE_WRITE;
        assert!(info.caps.contains(all), "without a direction all are meant");
    }
    let datagrams = Hints::new()
        .endpoint(EndpointType::Dgram)
        .caps(Caps::ATOMIC);
    let error = tokio_fabric::discover(&datagrams).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMatch);
}
