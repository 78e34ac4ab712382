//! A socket wakes once enough bytes of a large payload have come, and never later than it must.

use super::*;
use crate::limits::LOCAL_RING_LEN;
use crate::random::SplitMix;

const LEN: usize = 8 << 20;

fn worlds() -> impl Iterator<Item = TestTransport> {
    let plain = [TestTransport::epoll()].into_iter();
    #[cfg(feature = "tls")]
    let plain = plain.chain([TestTransport::epoll_tls()]);
    plain
}

/// A receive for the rest of a payload of [`LEN`] bytes.
fn receive_of(left: usize) -> Receive {
    let mut part = direct(Payload::from_vec(vec![0; left]), 0, left);
    part.wake_bytes = wake_bytes(LEN as u64, left as u64);
    Receive::Direct(part)
}

/// Receives bytes of the payload, until there are `until`.
async fn receive_all(far: &mut Peer, mut received: Vec<u8>, until: usize) -> Vec<u8> {
    while received.len() < until {
        far.link.receive(receive_of(LEN - received.len()));
        match far.received().await {
            Received::Direct { direct, len } => {
                received.extend_from_slice(&contents(&direct.payload)[..len]);
            }
            other => panic!("expected bytes, found {other:?}"),
        }
    }
    received
}

/// Arms a receive of the whole payload and sends its first bytes, `sent`: too few, so that the
/// receiver sleeps.
async fn asleep(world: &TestTransport, sent: &[u8]) -> (Peer, Peer) {
    let (mut near, mut far) = world.pair().await;
    far.link.receive(receive_of(LEN));
    assert!(far.link.poll_outcome().is_none());
    near.send_all(plain(sent)).await;
    while far.link.unread_bytes() < sent.len() {
        tokio::task::yield_now().await;
    }
    // The reactor reports the sockets in the order of their bytes.
    let (mut other, mut another) = world.pair().await;
    other.send_all(plain(b"x")).await;
    another.receive_staged(1).await;
    let wakes = far.waker.wakes();
    assert!(far.link.poll_outcome().is_none());
    assert_eq!(far.waker.wakes(), wakes, "{}", world.name);
    (near, far)
}

/// A caller that tries finds the bytes in the socket, and enough bytes wake.
#[tokio::test]
async fn few_bytes_of_a_large_payload_wait_for_more() {
    for world in worlds() {
        let bytes = pattern(LEN, 1);
        let (mut near, mut far) = asleep(&world, &bytes[..5000]).await;
        let Some(Outcome::Received(Received::Direct { direct, len })) = far.link.try_receive()
        else {
            panic!("it is there");
        };
        assert_eq!(len, 5000, "{}", world.name);
        let first = contents(&direct.payload)[..len].to_vec();
        let received = receive_all(&mut far, first, LEN);
        let ((), received) = tokio::join!(near.send_all(plain(&bytes[5000..])), received);
        assert!(received == bytes, "{}", world.name);
    }
}

/// The last bytes of a payload wake, however few they are; and so does what follows them.
#[tokio::test]
async fn the_last_bytes_of_a_payload_wake() {
    for world in worlds() {
        for left in [1, 100, 20_000] {
            let (mut near, mut far) = world.pair().await;
            far.link.receive(receive_of(left));
            assert!(far.link.poll_outcome().is_none());
            // In parts: with TLS they belong to a record that has come in part.
            let bytes = pattern(left, left);
            let mut received = Vec::new();
            near.send_all(plain(&bytes)).await;
            loop {
                match far.received().await {
                    Received::Direct { direct, len } => {
                        received.extend_from_slice(&contents(&direct.payload)[..len]);
                    }
                    other => panic!("expected bytes, found {other:?}"),
                }
                if received.len() == left {
                    break;
                }
                far.link.receive(receive_of(left - received.len()));
            }
            assert_eq!(received, bytes);
            far.link.receive(Receive::Stage);
            assert!(far.link.poll_outcome().is_none());
            near.send_all(plain(b"x")).await;
            assert!(matches!(far.received().await, Received::Stage(stage) if *stage == *b"x"));
        }
    }
}

/// A receive that is taken back does not hinder the next one, or another transport.
#[tokio::test]
async fn another_receive_takes_few_bytes() {
    let world = TestTransport::epoll();
    let bytes = pattern(5000, 3);
    let (_near, mut far) = asleep(&world, &bytes).await;
    far.link.cancel_receive();
    assert!(matches!(far.received().await, Received::Cancelled { .. }));
    assert_eq!(far.receive_staged(bytes.len()).await, bytes);

    let (mut near, mut far) = asleep(&world, &[]).await;
    far.link.cancel_receive();
    assert!(matches!(far.received().await, Received::Cancelled { .. }));
    let raw = far.link.take_raw().expect("nothing is submitted");
    let mut far = Peer::new(|waker| world.transport.adopt(raw, waker));
    far.link.receive(Receive::Stage);
    assert!(far.link.poll_outcome().is_none());
    near.send_all(plain(b"x")).await;
    assert!(matches!(far.received().await, Received::Stage(stage) if *stage == *b"x"));
}

/// A peer that ends its stream, or is lost, within a payload.
#[tokio::test]
async fn the_end_within_a_payload_wakes() {
    for world in worlds() {
        let bytes = pattern(5000, 4);
        let (mut near, mut far) = asleep(&world, &bytes).await;
        near.link.finish();
        assert!(matches!(
            far.received().await,
            Received::Direct { len: 5000, .. }
        ));
        far.link.receive(receive_of(LEN - 5000));
        assert!(matches!(far.received().await, Received::End { .. }));

        let (mut near, mut far) = asleep(&world, &bytes).await;
        near.link.reset();
        while let Received::Direct { len, .. } = far.received().await {
            far.link.receive(receive_of(LEN - len));
        }
    }
}

/// Payloads of any length, each received as its bytes come, and the frames between them: everything
/// arrives, driven by wakes only.
#[tokio::test]
async fn payloads_of_any_length_arrive_among_small_frames() {
    for world in worlds() {
        let seed = 0xF00D;
        let mut random = SplitMix(seed);
        let (mut near, mut far) = world.pair().await;
        for round in 0..40 {
            let len = 1 << random.within(0, 22);
            let len = random.within(len / 2, len).max(1) as usize;
            let whole = pattern(len, round);
            let mut cuts: Vec<usize> = (0..random.within(0, 5))
                .map(|_| random.within(0, len as u64) as usize)
                .collect();
            cuts.sort_unstable();
            let yields = random.within(0, 3);
            let send = async {
                let mut from = 0;
                for to in cuts.into_iter().chain([len]) {
                    near.send_all(plain(&whole[from..to])).await;
                    from = to;
                    for _ in 0..yields {
                        tokio::task::yield_now().await;
                    }
                }
            };
            let receive = async {
                let mut received = Vec::new();
                while received.len() < len {
                    let left = len - received.len();
                    let mut part = direct(Payload::from_vec(vec![0; left]), 0, left);
                    let wake_bytes = wake_bytes(len as u64, left as u64);
                    part.wake_bytes = wake_bytes;
                    if random.within(0, 9) == 0 {
                        far.link.receive(Receive::StageOf { wake_bytes });
                    } else {
                        far.link.receive(Receive::Direct(part));
                    }
                    match far.received().await {
                        Received::Direct { direct, len } => {
                            received.extend_from_slice(&contents(&direct.payload)[..len]);
                        }
                        Received::Stage(stage) => received.extend_from_slice(&stage),
                        other => panic!("expected bytes, found {other:?}"),
                    }
                }
                received
            };
            let ((), received) = tokio::join!(send, receive);
            assert!(received == whole, "seed {seed:#x}, {round}, {}", world.name);
        }
    }
}

/// A receiver that sleeps until enough of a payload is in its socket, the rest of which then comes
/// through shared memory.
#[tokio::test]
async fn a_payload_whose_bytes_change_their_way_arrives() {
    let worlds = [TestTransport::epoll()].into_iter();
    for world in worlds.chain(TestTransport::io_uring()) {
        for (len, by_socket) in [(LEN, 5000), (300_000, 150_000), (300_000, 299_999)] {
            let bytes = pattern(len, len);
            let (mut near, mut far) = world.pair().await;
            far.link.receive(receive_of(len));
            assert!(far.link.poll_outcome().is_none());
            let [ours, theirs] = crate::transport::local::parts_of_len(LOCAL_RING_LEN);
            near.link.localize(ours, &*world.transport).unwrap();
            near.send_all(plain(&bytes[..by_socket])).await;
            far.link.localize(theirs, &*world.transport).unwrap();
            let receive = async {
                let mut received = Vec::new();
                while received.len() < len {
                    match far.received().await {
                        Received::Direct { direct, len } => {
                            received.extend_from_slice(&contents(&direct.payload)[..len]);
                        }
                        other => panic!("expected bytes, found {other:?}"),
                    }
                    if received.len() < len {
                        far.link.receive(receive_of(len - received.len()));
                    }
                }
                received
            };
            let rest = near.send_all(plain(&bytes[by_socket..]));
            let both = async { tokio::join!(rest, receive) };
            let arrived = tokio::time::timeout(std::time::Duration::from_secs(10), both).await;
            let ((), received) = arrived.unwrap_or_else(|_| panic!("{len}, {by_socket}"));
            assert!(received == bytes, "{}", world.name);
        }
    }
}

/// A side that is polled is not rung, and hears of bytes by polling; then it is rung again, and
/// also hears of what came meanwhile.
#[tokio::test]
async fn a_link_that_is_polled_sleeps_only_afterwards() {
    let worlds = [TestTransport::epoll()].into_iter();
    for world in worlds.chain(TestTransport::io_uring()) {
        let world = world.through_rings(LOCAL_RING_LEN);
        let (mut near, mut far) = world.pair().await;
        while !near.link.is_local() || !far.link.is_local() {
            for (from, to) in [(0, 1), (1, 0)] {
                let ends = [&mut near, &mut far];
                ends[from].send_all(plain(b"x")).await;
                assert_eq!(ends[to].receive_staged(1).await, b"x");
            }
        }
        far.link.set_polled(true);
        far.link.receive(Receive::Stage);
        assert!(far.link.poll_outcome().is_none());
        while far.is_woken_soon().await {
            assert!(far.link.poll_outcome().is_none());
        }
        near.send_all(plain(b"polled")).await;
        assert!(!far.is_woken_soon().await, "nothing rings");
        assert_staged(far.link.try_receive(), b"polled");

        far.link.receive(Receive::Stage);
        near.send_all(plain(b"meanwhile")).await;
        far.link.set_polled(false);
        assert!(far.is_woken_soon().await);
        assert_staged(far.link.poll_outcome(), b"meanwhile");

        far.link.receive(Receive::Stage);
        assert!(far.link.poll_outcome().is_none());
        while far.is_woken_soon().await {
            assert!(far.link.poll_outcome().is_none());
        }
        near.send_all(plain(b"later")).await;
        assert!(
            far.is_woken_soon().await,
            "{}: it is rung again",
            world.name
        );
        assert_staged(far.link.poll_outcome(), b"later");
    }
}

/// While a link is polled it does not see that its peer has written to a ring that it has not
/// begun. The end of polling finds it, and wakes.
#[tokio::test]
async fn a_lie_that_is_found_when_polling_ends_is_reported() {
    let worlds = [TestTransport::epoll()].into_iter();
    for world in worlds.chain(TestTransport::io_uring()) {
        let (mut near, _far) = world.pair().await;
        let [ours, mut theirs] = crate::transport::local::parts_of_len(LOCAL_RING_LEN);
        near.link.localize(ours, &*world.transport).unwrap();
        near.link.set_polled(true);
        near.link.receive(Receive::Stage);
        assert!(near.link.poll_outcome().is_none());
        let (what, lie) = crate::transport::local::LIES[0];
        lie(&mut theirs);
        assert!(near.link.try_receive().is_none(), "{what}");
        while near.is_woken_soon().await {}
        near.link.set_polled(false);
        assert!(near.is_woken_soon().await, "{}", world.name);
        match near.link.poll_outcome() {
            Some(Outcome::Received(Received::Failed { error, .. })) => {
                assert_eq!(error.kind(), ErrorKind::ProtocolViolation);
            }
            other => panic!("expected a failure, found {other:?}"),
        }
    }
}

#[track_caller]
fn assert_staged(outcome: Option<Outcome>, bytes: &[u8]) {
    match outcome {
        Some(Outcome::Received(Received::Stage(stage))) => assert_eq!(&*stage, bytes),
        other => panic!("expected {bytes:?}, found {other:?}"),
    }
}
