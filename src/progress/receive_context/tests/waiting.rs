//! Receives that wait for room in their context or in their queue, and ports that wait.

use super::*;

/// Ruling 3: "`post` and `.await` wait in one FIFO per context, and nothing overtakes a waiter."
#[test]
fn receives_wait_their_turn_in_a_full_context() {
    let fixture = Fixture::new(1, 1 << 16, 4);
    let first = fixture.post(tagged(1), 8);
    let second = fixture.post(tagged(2), 8);
    let third = fixture.post(tagged(3), 8);
    let now = PostOptions {
        wait: false,
        ..WAIT
    };
    let refused = fixture.post_with(tagged(4), 8, now).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Again);
    let phases = [&first, &second, &third].map(|it| fixture.context.phase(it.key));
    assert_eq!(phases, [Phase::Queued, Phase::Waiting, Phase::Waiting]);
    assert_eq!(fixture.context.cancel(first.key), Withdrawn::Ended);
    assert_eq!(kind_of(&first.end()), ErrorKind::Canceled);
    assert_eq!(fixture.context.phase(second.key), Phase::Queued);
    let mut sender = fixture.sender(1, 1);
    let met = sender.meet(Some(2), 1);
    assert_eq!(
        fixture.context.phase(third.key),
        Phase::Queued,
        "a match makes room"
    );
    sender.end(met, b"2");
    assert_eq!(bytes_of(&second.end()), b"2");
}

/// Ruling 3: "The slot of a completion is reserved when the operation is accepted"; a receive
/// without one waits, and goes on when the queue is read.
#[test]
fn receives_wait_for_room_in_their_queue() {
    let fixture = Fixture::new(8, 1 << 16, 1);
    let mut sender = fixture.sender(1, 1);
    sender.send_unexpected(None, b"1");
    sender.send_unexpected(None, b"2");
    assert!(
        fixture
            .post_queued(MatchCriteria::Message, 1)
            .waiting
            .is_none()
    );
    let second = fixture.post_queued(MatchCriteria::Message, 2);
    let mut accepted = second.waiting.expect("it waits");
    assert!(!accepted.has_ended());
    fixture.driver.take();
    assert_eq!(fixture.queue.try_next().unwrap().context, UserContext(1));
    assert!(fixture.driver.take(), "the driver hears of the room");
    fixture.expire();
    assert!(matches!(
        accepted.poll_accepted(Waker::noop(), &mut None),
        Poll::Ready(Ok(()))
    ));
    let mut completion = fixture.queue.try_next().unwrap();
    assert_eq!(completion.context, UserContext(2));
    assert_eq!(completion.take_buffer().unwrap()[..completion.len], *b"2");
}

/// A port that stopped reading for lack of room is woken by a receive for its message, and a port
/// that awaits credit when any of its messages is taken.
#[test]
fn ports_are_woken_when_they_may_go_on() {
    let fixture = Fixture::new(8, 20 * OVERHEAD, 4);
    let mut sender = fixture.sender(1, 1);
    let mut other = fixture.sender(2, 2);
    assert!(sender.promised >= OVERHEAD as u64);
    assert!(matches!(
        sender.begin(Some(1), 1 << 30).1,
        ArrivalOutcome::Stalled
    ));
    other.send_unexpected(Some(2), b"other");
    let _elsewhere = fixture.post(tagged(3), 8);
    assert!(!sender.woken.take());
    let _receive = fixture.post(tagged(1), 8);
    assert!(sender.woken.take());
    sender.meet(Some(1), 1 << 30);
    other.receives.request_credit_wake();
    other.woken.take();
    fixture.post(tagged(2), 8).end();
    assert!(other.woken.take());
}
