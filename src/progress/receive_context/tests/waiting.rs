//! Receives that wait: for a place in their context, for room in their queue; and ports that wait.

use super::*;

/// Ruling 3: "`post()`/await wait in one FIFO per context; `try_*` cannot overtake a waiter."
#[test]
fn receives_wait_their_turn_in_a_full_context() {
    let world = World::new(1, 1 << 16, 4);
    let first = world.post(tagged(1), 8);
    let second = world.post(tagged(2), 8);
    let third = world.post(tagged(3), 8);
    let now = PostOptions {
        wait: false,
        ..WAIT
    };
    let refused = world.post_with(tagged(4), 8, now).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Again);
    let phases = [&first, &second, &third].map(|it| world.context.phase(it.key));
    assert_eq!(phases, [Phase::Queued, Phase::Waiting, Phase::Waiting]);
    assert_eq!(world.context.cancel(first.key), Withdrawn::Ended);
    assert_eq!(first.end().result.unwrap_err().kind(), ErrorKind::Canceled);
    assert_eq!(world.context.phase(second.key), Phase::Queued);
    let mut sender = world.sender(1, 1);
    let met = sender.meet(Some(2), 1);
    assert_eq!(
        world.context.phase(third.key),
        Phase::Queued,
        "a match makes room"
    );
    sender.end(met, b"2");
    assert_eq!(bytes_of(&second.end()), b"2");
}

/// Ruling 3: "A CQ slot is reserved when an operation is queued to it"; who finds none waits, and
/// goes on when the queue is read.
#[test]
fn receives_wait_for_room_in_their_queue() {
    let world = World::new(8, 1 << 16, 1);
    let mut sender = world.sender(1, 1);
    sender.send_early(None, b"1");
    sender.send_early(None, b"2");
    assert!(world.post_queued(Wanted::Message, 1).waiting.is_none());
    let second = world.post_queued(Wanted::Message, 2);
    let accepted = second.waiting.expect("it waits");
    assert!(!accepted.has_ended());
    world.driver.take();
    assert_eq!(world.queue.try_next().unwrap().context, UserContext(1));
    assert!(world.driver.take(), "the driver hears of the room");
    world.expire();
    assert!(matches!(
        accepted.poll_accepted(Waker::noop()),
        Poll::Ready(Ok(()))
    ));
    let mut completion = world.queue.try_next().unwrap();
    assert_eq!(completion.context, UserContext(2));
    assert_eq!(completion.take_buffer().unwrap()[..completion.len], *b"2");
}

/// A port that stopped reading for want of room is woken by a receive for its message, and one that
/// awaits credit by whatever of its messages leaves.
#[test]
fn ports_are_woken_when_they_may_go_on() {
    let world = World::new(8, 20 * OVERHEAD, 4);
    let mut sender = world.sender(1, 1);
    let mut other = world.sender(2, 2);
    assert!(sender.promised >= OVERHEAD as u64);
    assert!(matches!(sender.begin(Some(1), 1 << 30).1, Arrived::NoRoom));
    other.send_early(Some(2), b"other");
    let _elsewhere = world.post(tagged(3), 8);
    assert!(!sender.woken.take());
    let _receive = world.post(tagged(1), 8);
    assert!(sender.woken.take());
    sender.meet(Some(1), 1 << 30);
    other.receives.awaits_credit();
    other.woken.take();
    world.post(tagged(2), 8).end();
    assert!(other.woken.take());
}
