//! One RMA operation that the peer refuses: its reason, and what becomes of the connection (ruling
//! 15; `docs/extension.md`, section 4).

use std::future::IntoFuture;
use std::time::Duration;

use crate::common::peers::{bytes_of, open_region};
use crate::common::{backends, on, on_every_backend};
use tokio_fabric::testing::{FaultPlan, Net, Peer, connect_endpoints};
use tokio_fabric::{
    Access, Endpoint, Error, ErrorKind, Event, EventQueue, Failed, MemoryRegion, RemoteRegion,
    ep::{EndpointBuilder, Liveness, OnRefusal},
    error::{OperationKind, Phase, Refusal},
};

/// Two endpoints, built so.
async fn connected(
    a: &Peer,
    b: &Peer,
    build: impl Fn(EndpointBuilder) -> EndpointBuilder,
) -> (Endpoint, Endpoint) {
    let x = build(a.domain.endpoint()).open().unwrap();
    let y = build(b.domain.endpoint()).open().unwrap();
    connect_endpoints(&x, &y, &b.fabric).await.unwrap();
    (x, y)
}

fn living_with(limit: u32) -> impl Fn(EndpointBuilder) -> EndpointBuilder {
    move |builder| builder.on_refusal(OnRefusal::Continue { limit })
}

/// What a peer may not do to these regions, and why.
struct Forbidden {
    good: MemoryRegion<Vec<u8>>,
    _others: Vec<MemoryRegion<Vec<u8>>>,
    list: Vec<(RemoteRegion, OperationKind, Refusal)>,
}

async fn forbidden(target: &Peer) -> Forbidden {
    let good = open_region(target, vec![1u8; 64]).await;
    let register = |access| target.domain.register(vec![1u8; 64]).access(access).now();
    let read_only = register(Access::REMOTE_READ).unwrap();
    let write_only = register(Access::REMOTE_WRITE).unwrap();
    let revoked = open_region(target, vec![1u8; 64]).await;
    revoked.revoke().await;
    let (key, both) = (good.key(), [OperationKind::Write, OperationKind::Read]);
    let claimed = |region: &MemoryRegion<Vec<u8>>| RemoteRegion::new(0, 8, region.key());
    let mut list = vec![
        (claimed(&read_only), both[0], Refusal::AccessDenied),
        (claimed(&write_only), both[1], Refusal::AccessDenied),
    ];
    for operation in both {
        let bad_key = RemoteRegion::new(0, 8, key ^ 0x55);
        list.push((bad_key, operation, Refusal::UnknownKey));
        let too_far = RemoteRegion::new(57, 8, key);
        list.push((too_far, operation, Refusal::OutOfBounds));
        list.push((revoked.remote(), operation, Refusal::Revoked));
    }
    Forbidden {
        good,
        _others: vec![read_only, write_only, revoked],
        list,
    }
}

async fn attempt(
    x: &Endpoint,
    operation: OperationKind,
    remote: RemoteRegion,
) -> Result<Vec<u8>, Failed<Vec<u8>>> {
    let remote = remote.slice(..8).unwrap();
    let ended = match operation {
        OperationKind::Read => x.read(vec![9u8; 8], remote).await,
        _ => x.write(vec![9u8; 8], remote).await,
    };
    ended.map(|(_, bytes)| bytes)
}

/// Checks all that the error of a refused operation says.
#[track_caller]
fn assert_refused(error: &Error, x: &Endpoint, operation: OperationKind, reason: Refusal) {
    assert_eq!(error.refusal(), Some(reason), "{error}");
    assert_eq!(
        (error.kind(), error.fi_errno()),
        (ErrorKind::AccessDenied, 13)
    );
    assert_eq!(error.operation(), Some(operation));
    assert_eq!(error.phase(), Some(Phase::AwaitingPeer));
    assert_eq!(error.peer(), x.peer_addr());
    assert!(error.to_string().contains(&reason.to_string()), "{error}");
}

async fn until_shutdown(events: &EventQueue, endpoint: &Endpoint) -> Option<Error> {
    loop {
        match events.next().await.expect("an open queue") {
            Event::Shutdown {
                endpoint: ended,
                error,
                ..
            } if ended == endpoint.id() => break error,
            _ => {}
        }
    }
}

/// Ruling 15: "An access with a bad key, or without the right, fails with its reason", and if both
/// sides chose so "the connection stays open": each reason, whichever way the operation reports,
/// with its buffers back, counted as a failure, and with good operations around it.
/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations, or attempt to access outside of the target memory region will
/// fail, resulting in a transmit error."
/// fi_domain(3): `Unmatched RMA, RDM/MSG EP-with RM: transmit error`, cell of the resource
/// management table.
/// fi_domain(3): `RMA Overrun, RDM/MSG EP-with RM: transmit error`, cell of the resource management
/// table.
#[test]
fn a_refused_operation_ends_with_its_reason_and_the_connection_lives() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = a.domain.completion_queue().open().unwrap();
        let (writes, reads) = (a.domain.counter().unwrap(), a.domain.counter().unwrap());
        let x = living_with(1000)(a.domain.endpoint())
            .completion_queue(&queue)
            .write_counter(&writes)
            .read_counter(&reads)
            .open()
            .unwrap();
        let (done, answered) = (b.domain.counter().unwrap(), b.domain.counter().unwrap());
        let y = living_with(1000)(b.domain.endpoint())
            .remote_write_counter(&done)
            .remote_read_counter(&answered)
            .open()
            .unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let Forbidden {
            good,
            list,
            _others,
        } = forbidden(&b).await;
        for (remote, operation, reason) in &list {
            let failed = attempt(&x, *operation, *remote).await.unwrap_err();
            assert_refused(failed.error(), &x, *operation, *reason);
            assert_eq!(failed.into_parts().1, Some(vec![9u8; 8]));
            // The same through the queue.
            let remote = remote.slice(..8).unwrap();
            match operation {
                OperationKind::Read => x.read(vec![9u8; 8], remote).queue(7u64).await,
                _ => x.write(vec![9u8; 8], remote).imm(3).queue(7u64).await,
            }
            .unwrap();
            let mut completion = queue.next().await.unwrap();
            assert_eq!((completion.context.0, completion.len), (7, 0));
            assert_refused(
                &completion.result.as_ref().unwrap_err().error,
                &x,
                *operation,
                *reason,
            );
            assert_eq!(completion.take_buffer().unwrap().len(), 8);
        }
        assert!(x.is_connected() && y.is_connected());
        assert_eq!(bytes_of(&good), [1; 64], "nothing was written");
        assert!(y.receive_queue().is_empty(), "nothing was reported of it");
        x.write(vec![2u8; 8], good.remote().slice(..8).unwrap())
            .await
            .unwrap();
        let (_, bytes) = x
            .read(vec![0u8; 16], good.remote().slice(..16).unwrap())
            .await
            .unwrap();
        assert_eq!(bytes, [[2; 8], [1; 8]].concat());
        let failures = list.len() as u64;
        assert_eq!((writes.read(), writes.read_error()), (1, failures));
        assert_eq!((reads.read(), reads.read_error()), (1, failures));
        answered.wait_for(1).await.unwrap(); // The answer is here before its sender has looked.
        assert_eq!(
            (done.read(), answered.read()),
            (1, 1),
            "only good ones count"
        );
    });
}

/// fi_domain(3): "For connected endpoints, the connection is torn down and must be re-established."
/// fi_domain(3): "Any operations which have not already completed will fail and be discarded."
/// fi_mr(3), ruling 15: the target's endpoint is not affected until it sees that end; "Other
/// connections of the target are not affected."
#[test]
fn by_default_the_initiators_connection_is_torn_down_after_the_operation() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let Forbidden {
            good,
            list,
            _others,
        } = forbidden(&b).await;
        let continuing = living_with(9);
        // The default on either side is the default of both.
        let mut sides = [(false, false), (true, false), (false, true)]
            .into_iter()
            .cycle();
        for (remote, operation, reason) in list {
            let (ours, theirs) = sides.next().unwrap();
            let build = |chosen: bool, builder| if chosen { continuing(builder) } else { builder };
            let x = build(ours, a.domain.endpoint()).open().unwrap();
            let y = build(theirs, b.domain.endpoint()).open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            let (other, _y) = connected(&a, &b, |builder| builder).await;
            let bystander = x.recv(vec![0u8; 8]).post().unwrap();
            let failed = attempt(&x, operation, remote).await.unwrap_err();
            assert_refused(failed.error(), &x, operation, reason);
            let discarded = bystander.await.unwrap_err();
            assert!(discarded.error().is_canceled(), "{discarded}");
            assert_eq!(discarded.error().refusal(), None);
            until_shutdown(&a.events, &x).await;
            until_shutdown(&b.events, &y).await;
            attempt(&other, OperationKind::Write, good.remote())
                .await
                .unwrap();
        }
    });
}

/// What is injected is reported nowhere; counters count its refusal, and the connection's end.
#[test]
fn an_injected_write_that_is_refused_counts_as_a_failure() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let writes = a.domain.counter().unwrap();
        let x = a.domain.endpoint().write_counter(&writes).open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        // Errors count from this call on, so it comes first.
        let wait = writes.wait_for(1);
        x.inject_write(b"x", RemoteRegion::new(0, 1, 77)).unwrap();
        wait.await.unwrap_err();
        assert_eq!((writes.read(), writes.read_error()), (0, 1));
        until_shutdown(&a.events, &x).await;
    });
}

/// docs/extension.md: "After `n` refusals for reasons 1 to 3 within a minute the target closes it",
/// the smaller of both limits; all are answered before.
#[test]
fn after_the_agreed_number_of_guesses_the_target_ends_the_connection() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        for (ours, theirs) in [(3, 5), (5, 3)] {
            let x = living_with(ours)(a.domain.endpoint()).open().unwrap();
            let y = living_with(theirs)(b.domain.endpoint()).open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            let awaited = y.recv(vec![0u8; 8]).post().unwrap();
            let guess = |key| {
                let remote = RemoteRegion::new(0, 8, key);
                x.write(vec![1u8; 8], remote).into_future()
            };
            let guesses: Vec<_> = (0..6).map(guess).collect();
            let mut reasons = Vec::new();
            for guess in guesses {
                let failed = guess.await.unwrap_err();
                reasons.push(failed.error().refusal());
                assert_ne!(
                    failed.error().refusal().is_some(),
                    failed.error().is_connection_lost()
                );
            }
            let unknown = Some(Refusal::UnknownKey);
            assert_eq!(reasons, [unknown, unknown, unknown, None, None, None]);
            let error = awaited.await.unwrap_err().into_error();
            assert_eq!(
                (error.kind(), error.refusal()),
                (ErrorKind::AccessDenied, None)
            );
            until_shutdown(&b.events, &y).await;
        }
    });
}

/// Ruling 15: "Keys of regions that were revoked or deregistered recently are not counted as
/// guesses": a call whose caller gave up takes its region away, and the answer that comes too late
/// is refused, as often as that happens.
#[test]
fn answers_that_come_too_late_for_their_region_never_end_the_connection() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (server, client) = connected(&a, &b, living_with(3)).await;
        let good = open_region(&b, vec![0u8; 8]).await;
        for _ in 0..50 {
            let given_up = open_region(&b, vec![0u8; 8]).await;
            let remote = given_up.remote();
            drop(given_up);
            let late = server.write("too late", remote).await.unwrap_err();
            assert_eq!(late.error().refusal(), Some(Refusal::Revoked), "{late}");
            let said = late.to_string();
            assert!(said.contains("revoked or deregistered"), "{said}");
            server.write("in time!", good.remote()).await.unwrap();
        }
        assert!(server.is_connected() && client.is_connected());
    });
}

/// A layer above lends memory for a call, and takes it back in a `Drop`, outside of any runtime:
/// what the peer does with it later is refused as revoked, is no guess, and changes no byte.
#[test]
fn memory_that_is_taken_back_in_a_drop_is_reached_no_more() {
    struct Lent(MemoryRegion<Vec<u8>>);

    impl Drop for Lent {
        fn drop(&mut self) {
            assert!(self.0.revoke_now(), "no access is in flight");
        }
    }

    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (server, client) = connected(&a, &b, living_with(3)).await;
        for _ in 0..20 {
            let region = open_region(&b, vec![0u8; 8]).await;
            let lent = Lent(region.clone());
            server.write("in time!", region.remote()).await.unwrap();
            let taken_back = std::thread::spawn(|| drop(lent));
            taken_back.join().unwrap();
            let late = server.write("too late", region.remote()).await.unwrap_err();
            assert_eq!(late.error().refusal(), Some(Refusal::Revoked), "{late}");
            assert_eq!(region.deregister().await.unwrap(), b"in time!");
        }
        assert!(server.is_connected() && client.is_connected());
    });
}

/// Ruling 15, at both sides: each operation and each Shutdown of a connection that was
/// ended for guessing says how often in how long, with whom, and what to do.
#[test]
fn a_connection_closed_for_guessing_says_why_at_both_sides() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = connected(&a, &b, living_with(4)).await;
        let guesser = x.recv(vec![0u8; 8]).post().unwrap();
        let target = y.recv(vec![0u8; 8]).post().unwrap();
        for key in 0..4 {
            let guess = x.write("?", RemoteRegion::new(0, 1, key)).await;
            let refused = guess.unwrap_err().into_error();
            assert_eq!(refused.refusal(), Some(Refusal::UnknownKey), "{refused}");
        }
        let ends = [
            (guesser.await.unwrap_err().into_error(), x.peer_addr()),
            (until_shutdown(&a.events, &x).await.unwrap(), x.peer_addr()),
            (target.await.unwrap_err().into_error(), y.peer_addr()),
            (until_shutdown(&b.events, &y).await.unwrap(), y.peer_addr()),
        ];
        for ((error, peer), kind) in ends.into_iter().zip([
            ErrorKind::PeerClosed,
            ErrorKind::PeerClosed,
            ErrorKind::AccessDenied,
            ErrorKind::AccessDenied,
        ]) {
            assert_eq!((error.kind(), error.peer()), (kind, peer), "{error}");
            let said = error.to_string();
            for fact in [
                "4 within",
                "the limit is 4 within 60 s",
                "OnRefusal",
                "RemoteRegion",
            ] {
                assert!(said.contains(fact), "{fact}: {said}");
            }
        }
    });
}

/// A limit of no refusals is none: the default says that.
#[test]
fn a_limit_of_zero_is_refused() {
    on_every_backend(|net| async move {
        let a = net.peer().unwrap();
        let refused = living_with(0)(a.domain.endpoint()).open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("on_refusal"), "{refused}");
        living_with(u32::MAX)(a.domain.endpoint()).open().unwrap();
    });
}

/// Answers come in the order of the operations, refused ones among good ones, of all sizes.
#[test]
fn refused_operations_keep_their_place_among_good_ones() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = a.domain.completion_queue().open().unwrap();
        let build = living_with(1000);
        let x = build(a.domain.endpoint())
            .completion_queue(&queue)
            .open()
            .unwrap();
        let y = build(b.domain.endpoint()).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let region = open_region(&b, vec![0u8; 1 << 18]).await;
        const COUNT: u64 = 60;
        for number in 0..COUNT {
            let len = [8, 5000, 1 << 18][number as usize % 3];
            let key = region.key() ^ u64::from(number % 4 == 1);
            let remote = RemoteRegion::new(0, len as u64, key);
            x.write(vec![number as u8; len], remote)
                .queue(number)
                .await
                .unwrap();
        }
        for number in 0..COUNT {
            let completion = queue.next().await.unwrap();
            assert_eq!(completion.context.0, number);
            let refusal = completion.result.err().map(|error| error.error.refusal());
            let bad = number % 4 == 1;
            assert_eq!(refusal, bad.then_some(Some(Refusal::UnknownKey)));
        }
        for number in 0..COUNT {
            let key = region.key() ^ u64::from(number % 5 == 2);
            let remote = RemoteRegion::new(0, 1 << 18, key);
            x.read(vec![0u8; 1 << 18], remote)
                .queue(number)
                .await
                .unwrap();
        }
        for number in 0..COUNT {
            let completion = queue.next().await.unwrap();
            assert_eq!(completion.context.0, number);
            assert_eq!(completion.result.is_err(), number % 5 == 2);
        }
        assert!(x.is_connected() && y.is_connected());
    });
}

/// memory-model 4, toward a peer with the extension: regions that are revoked amid large
/// writes and reads end those with `Revoked`, and the connection lives.
#[test]
fn a_region_revoked_in_mid_payload_ends_the_operation_and_not_the_connection() {
    const LEN: usize = 8 << 20;
    for backend in backends() {
        on(backend, |net: Net| async move {
            // Each system call takes a millisecond, so that there is a middle.
            let tick = Duration::from_millis(1);
            let net = net.faults(FaultPlan::seeded(3).delay(tick..=tick));
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            // Nor does a machine that is slower still make a peer of it that is silent.
            let patient = |it: EndpointBuilder| living_with(1)(it).liveness(Liveness::OFF);
            let (x, y) = connected(&a, &b, patient).await;
            let other = open_region(&b, vec![3u8; 64]).await;
            let (mut broken, mut buffer) = (0, vec![1u8; LEN]);
            for round in 0..12 {
                let region = open_region(&b, vec![2u8; LEN]).await;
                let remote = region.remote();
                let begun = match round % 2 {
                    0 => x.write(buffer, remote).post().unwrap(),
                    _ => x.read(buffer, remote).post().unwrap(),
                };
                let behind = x.write(vec![4u8; 8], other.remote().slice(..8).unwrap());
                let behind = behind.post().unwrap();
                // A write is in its middle once its first byte is there.
                let mut first = [u8::from(round % 2 == 1 || round == 0)];
                while first != [1] {
                    tokio::task::yield_now().await;
                    region.read_at(0, &mut first).unwrap();
                }
                if round % 2 == 1 {
                    tokio::time::sleep(tick * round / 2).await;
                }
                region.revoke().await;
                let then = bytes_of(&region);
                buffer = match begun.await {
                    Ok((_, buffer)) => buffer,
                    Err(failed) => {
                        assert_eq!(failed.error().refusal(), Some(Refusal::Revoked), "{failed}");
                        broken += 1;
                        failed.into_parts().1.expect("the buffer is back")
                    }
                };
                assert_eq!(buffer.len(), LEN);
                behind.await.unwrap();
                assert!(bytes_of(&region) == then, "written after revoke returned");
                buffer.fill(1);
            }
            assert!(broken >= 6, "only {broken} operations were broken off");
            assert!(x.is_connected() && y.is_connected());
        });
    }
}

/// Ruling 15: "Towards a peer without the extension the only possible reaction is to close the
/// connection."
#[test]
fn toward_a_plain_peer_the_connection_is_closed() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let Forbidden { list, _others, .. } = forbidden(&b).await;
        for (extended, (remote, operation, _)) in [true, false].into_iter().cycle().zip(list) {
            let builder = living_with(100)(a.domain.endpoint());
            let x = builder.extension(extended).open().unwrap();
            let builder = living_with(100)(b.domain.endpoint());
            let y = builder.extension(!extended).open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            let last = x.recv(vec![0u8; 1]).post().unwrap();
            if let Err(failed) = attempt(&x, operation, remote).await {
                assert!(failed.error().is_connection_lost(), "{failed}");
                assert_eq!(failed.error().refusal(), None);
            } else {
                assert_eq!(
                    operation,
                    OperationKind::Write,
                    "which ends when it is sent"
                );
            }
            assert!(last.await.unwrap_err().error().is_connection_lost());
            until_shutdown(&b.events, &y).await;
        }
    });
}
