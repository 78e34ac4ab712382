//! Buffers for many messages.

use super::*;

fn post_many(world: &World, len: usize, free_min: usize) -> Posted {
    let sought = Sought {
        wanted: Wanted::Message,
        source: None,
    };
    let payload = Payload::from_vec(vec![0; len]);
    let posted = world
        .context
        .post_many(sought, payload, UserContext(9), free_min, WAIT);
    posted.unwrap()
}

/// fi_msg(3): "Received messages will be packed into the receive buffer until the buffer has been
/// consumed", and it "will be released by the provider when the available buffer space falls below
/// the specified minimum". fi_cq(3) lets a completion of its own say so; here it comes last.
#[test]
fn many_messages_land_in_one_buffer() {
    let world = World::new(8, 1 << 16, 8);
    let mut sender = world.sender(1, 1);
    let mut other = world.sender(2, 2);
    sender.send_early(None, b"early");
    post_many(&world, 16, 4);
    let slow = other.meet(None, 4);
    let quick = sender.meet(None, 5);
    sender.end(quick, b"quick");
    // 2 bytes are left: fewer than 4.
    assert!(matches!(sender.begin(None, 1).1, Arrived::Store));
    let mut pieces = Vec::new();
    for bytes in [&b"early"[..], b"quick"] {
        let mut completion = world.queue.try_next().unwrap();
        assert_eq!(
            completion.flags,
            CompletionFlags::RECV | CompletionFlags::MSG
        );
        assert_eq!(completion.context, UserContext(9));
        let piece = completion.take_buffer().unwrap();
        assert_eq!(*piece, *bytes);
        pieces.push(piece);
    }
    assert!(world.queue.try_next().is_none(), "one is still landing");
    other.end(slow, b"slow");
    let mut last = world.queue.try_next().unwrap();
    assert_eq!(*last.take_buffer().unwrap(), *b"slow");
    let end = world.queue.try_next().unwrap();
    assert_eq!(
        (end.flags, end.context),
        (CompletionFlags::MULTI_RECV, UserContext(9))
    );
    assert!(end.result.is_ok());
    assert!(
        pieces.pop().unwrap().into_whole().is_none(),
        "another is left"
    );
    let whole = pieces.pop().unwrap().into_whole().expect("the last one");
    assert_eq!(whole[..14], *b"earlyslowquick");
    assert_eq!(world.counter.read(), 3);
}

/// What was announced, and is gone before its sender could be asked for it, uses up nothing of a
/// buffer for many messages.
#[test]
fn an_announcement_that_is_gone_uses_up_nothing_of_a_buffer() {
    let world = World::new(8, 1 << 16, 8);
    let mut sender = world.sender(1, 1);
    let announcement = Announcement {
        arrival: sender.arrival(None, 40),
        index: 1,
    };
    let kept = sender.receives.announced(&mut announcement.clone());
    assert!(matches!(kept, Arrived::Store), "{kept:?}");
    post_many(&world, 64, 1);
    assert!(world.queue.try_next().is_none());
    let cleared = sender.receives.poll_clear_to_send().expect("it matches");
    let gone = Error::new(ErrorKind::PeerClosed, "");
    sender.receives.put_back(cleared.receive, gone);
    let whole = sender.meet(None, 64);
    assert_eq!(whole.1.payload.len(), 64);
    sender.end(whole, &[7; 64]);
    let mut piece = world.queue.try_next().unwrap();
    assert_eq!(*piece.take_buffer().unwrap(), [7; 64]);
    let end = world.queue.try_next().unwrap();
    assert_eq!(end.flags, CompletionFlags::MULTI_RECV);
}

/// Ruling 3: "for an unasked completion with no free slot the engine stops": a buffer without a
/// place for the next completion takes nothing, and goes on, in order, when the queue is read.
#[test]
fn a_buffer_for_many_waits_for_room_in_its_queue() {
    let world = World::new(8, 1 << 16, 2);
    let mut sender = world.sender(1, 1);
    for bytes in [b"1", b"2", b"3"] {
        sender.send_early(None, bytes);
    }
    let posted = post_many(&world, 64, 1);
    for bytes in [b"1", b"2", b"3"] {
        let mut completion = world.queue.try_next().unwrap();
        assert_eq!(*completion.take_buffer().unwrap(), *bytes);
        assert!(world.queue.try_next().is_none());
        assert!(world.driver.take(), "the driver hears of the room");
        world.expire();
    }
    assert_eq!(world.context.cancel(posted.key), Withdrawn::Ended);
    let mut end = world.queue.try_next().unwrap();
    assert_eq!(
        end.result.as_ref().unwrap_err().error.kind(),
        ErrorKind::Canceled
    );
    let whole: Vec<u8> = end.take_buffer().unwrap().downcast().unwrap();
    assert_eq!(whole[..4], *b"123\0");
}
