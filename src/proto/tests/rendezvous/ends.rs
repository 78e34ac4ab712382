//! The end of a connection with announced messages.

use super::*;

/// In every state of a rendezvous: what is cancelled, timed out, or bound to a peer that dies, ends
/// exactly once, with its memory.
#[test]
fn in_every_state_everything_ends_once() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum State {
        Queued,
        Announced,
        Kept,
        Asked,
        Clear,
        HalfSent,
        Landed,
    }
    use State::*;
    for setup in [plain(), extended()] {
        for state in [Queued, Announced, Kept, Asked, Clear, HalfSent, Landed] {
            for act in 0..3 {
                let mut pair = setup.connected();
                let key = pair.a.post(1, tagged(1, &[8; 60_000], Some(3), true));
                let bytes = match state {
                    Queued => Vec::new(),
                    _ => said(&mut pair.a),
                };
                if state > Announced {
                    hear(&mut pair.b, &bytes);
                }
                if state > Kept {
                    pair.b.receive_tagged(1, 1, 60_000);
                }
                if state > Asked {
                    let bytes = said(&mut pair.b);
                    hear(&mut pair.a, &bytes);
                }
                if state > Clear {
                    let data = said(&mut pair.a);
                    let cut = if state == Landed { data.len() } else { 30_000 };
                    hear(&mut pair.b, &data[..cut]);
                }
                let phase = pair.a.machine.phase(key);
                let is_kept = state >= Announced && state <= Asked;
                let is_withdrawn = is_kept && !setup.params.capabilities.is_empty();
                match act {
                    0 => {}
                    1 => {
                        let withdrawn = pair.a.machine.cancel(key);
                        let is_queued = phase == Some(Phase::Queued);
                        let expected = if is_queued || is_withdrawn {
                            Withdrawn::Ended
                        } else {
                            Withdrawn::Running
                        };
                        assert_eq!(withdrawn, expected, "{state:?}");
                    }
                    _ => {
                        let withdrawn = pair.a.machine.expire(key, None);
                        let is_at_rest = state == Queued || state >= HalfSent || is_withdrawn;
                        let expected = if is_at_rest {
                            Withdrawn::Ended
                        } else {
                            Withdrawn::Running
                        };
                        assert_eq!(withdrawn, expected, "{state:?}");
                    }
                }
                pair.a.take_events();
                pair.a.cut();
                pair.b.cut();
                assert_eq!(pair.a.ended.len(), 1, "{state:?} {act}");
                assert_eq!(
                    memory_of(&pair.a.ended[&1]).len(),
                    60_000,
                    "{state:?} {act}"
                );
                // A receive whose message has not come is posted again, for any peer's.
                let matched = usize::from(state > Kept && state != Landed);
                assert_eq!(
                    pair.b.ended.len(),
                    usize::from(state == Landed),
                    "{state:?}"
                );
                assert_eq!(pair.b.shared().posted.len(), matched, "{state:?}");
                if state == Landed {
                    assert_eq!(pair.b.end_of(1), (Ok(60_000), vec![8; 60_000]));
                } else if matched == 1 {
                    let shared = pair.b.shared();
                    assert_eq!(shared.record(shared.posted[0].key).len, 60_000);
                }
                assert_eq!(
                    pair.b.shared().kept.len(),
                    0,
                    "{state:?}: nothing is kept for it"
                );
            }
        }
    }
    impl PartialOrd for State {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some((*self as u8).cmp(&(*other as u8)))
        }
    }
}

/// docs/extension.md: "Messages of the other side that were announced and not asked for by then
/// [...] are sent over the next connection", or ends with FI_ESHUTDOWN; what was asked for arrives.
#[test]
fn an_agreed_end_finishes_what_was_asked_for_and_keeps_the_rest() {
    for (closing_first, reconnects) in [(true, true), (true, false), (false, true), (false, false)]
    {
        let mut pair = extended().connected();
        pair.b.receive_tagged(1, 1, 5000);
        pair.a.send_tagged(1, 1, &[1; 5000]);
        pair.a.send_tagged(2, 2, &[2; 5000]);
        if closing_first {
            let rts = said(&mut pair.a);
            hear(&mut pair.b, &rts);
            pair.b.machine.request_close();
        } else {
            pair.b.machine.request_close();
            let close = said(&mut pair.b);
            let rts = said(&mut pair.a);
            hear(&mut pair.b, &rts);
            hear(&mut pair.a, &close);
        }
        pair.run();
        pair.a.send_tagged(3, 2, &[3; 10]);
        let withdrawn = pair.a.send_tagged(4, 2, &[4; 10]);
        pair.a.send_tagged(5, 2, &[5; 10]);
        assert_eq!(pair.a.machine.cancel(withdrawn), Withdrawn::Ended);
        pair.run();
        if closing_first {
            assert_eq!(pair.a.end_of(1).0, Ok(5000));
            assert_eq!(pair.b.end_of(1), (Ok(5000), vec![1; 5000]));
        } else {
            assert_eq!(pair.b.shared().posted.len(), 1);
        }
        assert!(pair.a.machine.is_close_exchanged() && pair.b.machine.is_close_exchanged());
        assert_eq!(pair.b.shared().kept.len(), 0);
        for side in [&mut pair.a, &mut pair.b] {
            side.machine.handle_end();
            assert!(side.machine.is_closed_in_order());
        }
        pair.b.close();
        assert!(pair.a.machine.has_carried_over());
        let left = if closing_first { 2..=5 } else { 1..=5 };
        let left: Vec<u64> = left.filter(|token| *token != 4).collect();
        assert!(left.iter().all(|token| !pair.a.ended.contains_key(token)));
        if !reconnects {
            pair.a.close();
            for token in left {
                assert_eq!(pair.a.end_kind(token), ErrorKind::PeerClosed);
            }
            assert_eq!(pair.a.events.last().unwrap(), "closed: in order");
            continue;
        }
        pair.a.machine.reset_attempt();
        pair.b = extended().idle().b;
        pair.handshake_peers(ByteOrder::Native);
        for token in &left {
            let tag = if *token == 1 { 1 } else { 2 };
            pair.b.receive_tagged(*token, tag, 5000);
            pair.run();
            assert_eq!(pair.b.end_of(*token).1[0], *token as u8, "in order");
            assert!(pair.a.end_of(*token).0.is_ok());
        }
    }
}

/// The same holds for operations that may not pass such a message: a fence and what is behind it,
/// and RMA where strict order was asked for.
#[test]
fn what_may_not_pass_a_kept_message_is_kept_too() {
    for order in [SendOrder::Free, SendOrder::Strict] {
        let setup = extended();
        let sizes = Sizes {
            send_order: order,
            ..setup.sizes
        };
        let mut pair = Setup { sizes, ..setup }.connected();
        let region = pair.b.host.region(7, vec![0; 16], REMOTE);
        pair.a.send_tagged(1, 1, &[1; 5000]);
        pair.run();
        pair.b.machine.request_close();
        let close = said(&mut pair.b);
        pair.a.send_tagged(2, 1, &[2; 10]);
        pair.a.write(3, b"fenced", &[(7, 0, 6)]);
        hear(&mut pair.a, &close);
        pair.run();
        assert!(pair.a.machine.is_close_exchanged(), "{order:?}");
        let mut bytes = [0; 6];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(pair.a.ended.contains_key(&3), &bytes == b"fenced");
        pair.a.machine.handle_end();
        pair.a.machine.reset_attempt();
        pair.b = setup.idle().b;
        pair.b.host.region(7, vec![0; 16], REMOTE);
        pair.handshake_peers(ByteOrder::Native);
        for token in [1, 2] {
            pair.b.receive_tagged(token, 1, 5000);
        }
        pair.run();
        for token in [1, 2, 3] {
            assert!(pair.a.end_of(token).0.is_ok(), "{order:?}, {token}");
        }
    }
}

/// An operation that was to go over the next connection, and does not since this side closes, gives
/// its memory back; a read gives back its destination, which is not in its frame.
#[test]
fn a_kept_read_that_is_given_up_has_its_buffer() {
    let setup = extended();
    let sizes = Sizes {
        send_order: SendOrder::Strict,
        ..setup.sizes
    };
    let mut pair = Setup { sizes, ..setup }.connected();
    pair.a.send_tagged(1, 1, &[1; 5000]);
    pair.run();
    pair.b.machine.request_close();
    let close = said(&mut pair.b);
    pair.a.read(2, 4, &[(7, 0, 4)]);
    hear(&mut pair.a, &close);
    pair.run();
    assert!(pair.a.machine.has_carried_over() && pair.a.ended.is_empty());
    pair.a.machine.request_close();
    pair.a.take_events();
    let (ended, bytes) = pair.a.end_of(2);
    assert_eq!((ended, bytes.len()), (Err(ErrorKind::PeerClosed), 4));
}

/// A receive that is matched with an announcement just as its connection ends is given back.
#[test]
fn nothing_is_asked_of_a_connection_that_is_over() {
    let mut pair = plain().connected();
    pair.a.send_tagged(1, 1, &[1; 5000]);
    pair.run();
    pair.b
        .machine
        .fail(crate::error::Error::new(ErrorKind::PeerClosed, ""));
    pair.b.receive_tagged(1, 1, 5000);
    assert_eq!(pair.b.shared().posted.len(), 1);
    pair.b.close();
    assert_eq!(pair.b.shared().posted.len(), 1);
    assert!(pair.b.ended.is_empty());
}
