//! Messages that are announced before they come.

use super::*;

/// A kept announcement is answered once a receive matches, with no lock held; if its connection is
/// gone, the receive goes back to its place and takes what comes next.
#[test]
fn a_receive_whose_announced_message_is_gone_is_posted_again() {
    let world = World::new(8, 1 << 16, 4);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let context = Arc::downgrade(&world.context);
    let log = Arc::clone(&asked);
    world
        .context
        .set_rendezvous(Box::new(move |announcement, receive| {
            context.upgrade().unwrap().unexpected_bytes(); // Takes the lock.
            log.lock().unwrap().push(announcement.index);
            if announcement.index == 1 {
                Err(receive)
            } else {
                drop(receive);
                Ok(())
            }
        }));
    let mut sender = world.sender(1, 1);
    assert!(matches!(sender.announce(5, 1 << 30, 1), Arrived::Store));
    let receive = world.post(tagged(5), 8);
    assert_eq!(world.context.phase(receive.key), Phase::Queued);
    let later = world.post(tagged(5), 8);
    assert_eq!(sender.meet(Some(5), 1).1.key, receive.key, "in its place");
    assert_eq!(world.context.cancel(later.key), Withdrawn::Ended);
    assert!(matches!(sender.announce(5, 9, 2), Arrived::Store));
    let third = world.post(tagged(5), 8);
    assert_eq!(
        world.context.phase(third.key),
        Phase::Moving,
        "its connection has it"
    );
    assert_eq!(*asked.lock().unwrap(), [1, 2]);
}

/// A receive that comes in from the line while a port is locked may match another port's
/// announcement: the driver answers that.
#[test]
fn announcements_matched_under_a_lock_are_answered_by_the_driver() {
    let world = World::new(1, 1 << 16, 4);
    let asked = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&asked);
    world.context.set_rendezvous(Box::new(move |_, receive| {
        flag.store(true, Ordering::SeqCst);
        drop(receive);
        Ok(())
    }));
    let mut sender = world.sender(1, 1);
    assert!(matches!(sender.announce(5, 9, 1), Arrived::Store));
    let _posted = world.post(tagged(4), 8);
    let _waiting = world.post(tagged(5), 8);
    world.driver.take();
    drop(world.sender(2, 2).meet(Some(4), 1)); // Makes room for it.
    assert!(!asked.load(Ordering::SeqCst));
    sender.unlock();
    world.expire();
    assert!(asked.load(Ordering::SeqCst));
}
