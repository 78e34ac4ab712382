//! Streams, bodies by reference and windows.

use tokio_fabric::RemoteRegion;

use super::*;
use crate::limits::{STREAM_BYTES, STREAM_ITEMS};
use crate::wire::{Credit, Item, Window};

const BOTH: Streams = Streams {
    sends: true,
    receives: true,
};

const ONE: Credit = Credit { items: 1, bytes: 0 };

fn send_streaming(machine: &mut ClientMachine<u32>, streams: Streams) -> (CallKey, CallId) {
    let key = machine.begin(100, None, streams).unwrap();
    match progress_as(machine, key, 1) {
        CallProgress::Send(id) => (key, id),
        other => panic!("{other:?}"),
    }
}

/// As a task of number 8.
fn read(machine: &mut ServerMachine<u32, u32>, call: CallId) -> ItemRead {
    let read = machine.read_item(call);
    if read == ItemRead::Pending && machine.is_unwatched(call, |it| *it == 8) {
        assert_eq!(machine.watch_items(call, 8), None);
    }
    read
}

fn by_reference(call: CallId) -> Response<'static> {
    Response {
        by_reference: Some(RemoteRegion::new(0, 10, 7)),
        ..response(call, 0, false)
    }
}

/// A server with a call of these streams in slot 0.
fn serving(streams: Streams) -> (ServerMachine<u32, u32>, CallId) {
    let mut machine = ServerMachine::new(3, 2000);
    let call = CallId {
        slot: 0,
        generation: 0,
    };
    assert_eq!(machine.handle_request(call, 100), Ok(Admission::Admitted));
    assert!(machine.start(call, 5, streams));
    (machine, call)
}

#[test]
fn what_has_come_is_read_though_the_call_has_ended() {
    let mut machine = machine();
    let (key, id) = send_streaming(&mut machine, BOTH);
    assert_eq!(machine.handle_item(id, Item::Begun), Ok(Some(1)));
    assert_eq!(machine.handle_item(id, Item::Body(b"a")), Ok(None));
    assert_eq!(machine.handle_item(id, Item::Body(b"b")), Ok(None));
    assert!(matches!(
        progress_as(&mut machine, key, 1),
        CallProgress::Begun
    ));
    answered(&mut machine, &response(id, 0, false)).unwrap();
    for body in [b"a", b"b"] {
        let CallProgress::Item(item, None) = progress_as(&mut machine, key, 1) else {
            panic!("a call that has ended gives no credit")
        };
        assert_eq!(item[..], body[..]);
    }
    assert_eq!(end_of(&mut machine, key).unwrap(), 0);
    machine.invariants();
}

#[test]
fn items_wait_for_credit_and_their_sender_is_woken() {
    let mut machine = machine();
    let (key, id) = send_streaming(&mut machine, BOTH);
    for _ in 0..STREAM_ITEMS {
        assert_eq!(machine.send_item(key, 1), Some(id));
    }
    assert_eq!(machine.send_item(key, 1), None);
    assert_eq!(machine.watch(key, 9), Some(1));
    assert_eq!(machine.handle_credit(id, ONE), Ok(Some(9)));
    assert_eq!(machine.send_item(key, 0), Some(id));
    assert_eq!(machine.end_items(key), Some(id));
    answered(&mut machine, &response(id, 0, false)).unwrap();
    assert_eq!(machine.send_item(key, 0), None, "it was answered");
    assert_eq!(machine.end_items(key), None);
}

/// "Credit overrun, item after end, item for a call without stream."
#[test]
fn a_client_that_breaks_the_rules_of_streams_is_found() {
    let (mut machine, call) = serving(BOTH);
    let other = CallId {
        generation: 1,
        ..call
    };
    assert!(machine.handle_item(other, Item::Last).is_err());
    assert!(machine.handle_credit(other, ONE).is_err());
    assert!(machine.handle_item(call, Item::Begun).is_err());
    assert!(
        machine.handle_credit(call, ONE).is_err(),
        "nothing was sent"
    );
    for _ in 0..STREAM_ITEMS {
        assert_eq!(machine.handle_item(call, Item::Body(&[])), Ok(None));
    }
    assert!(machine.handle_item(call, Item::Body(&[])).is_err());
    assert_eq!(machine.handle_item(call, Item::Last), Ok(None));
    assert!(machine.handle_item(call, Item::Last).is_err());
    assert!(machine.handle_taken(call).is_err(), "it is not answered");
    let (mut machine, call) = serving(UNARY);
    assert!(machine.handle_item(call, Item::Last).is_err());
    assert!(machine.handle_credit(call, ONE).is_err());
    assert_eq!(machine.answer(call), Some(None));
    // What has crossed the answer is none of these.
    assert_eq!(machine.handle_item(call, Item::Last), Ok(None));
    assert_eq!(machine.handle_credit(call, ONE), Ok(None));
    assert!(machine.handle_taken(call).is_err(), "it was in the frame");
}

#[test]
fn a_server_that_breaks_the_rules_of_streams_is_found() {
    let mut machine = machine();
    let (_, unary) = send(&mut machine, 1);
    assert!(machine.handle_item(unary, Item::Begun).is_err());
    assert!(machine.handle_credit(unary, ONE).is_err());
    let (key, id) = send_streaming(&mut machine, BOTH);
    assert!(machine.handle_credit(id, ONE).is_err(), "nothing was sent");
    assert!(machine.handle_item(id, Item::Last).is_err());
    machine.handle_item(id, Item::Begun).unwrap();
    assert!(machine.handle_item(id, Item::Begun).is_err());
    for _ in 0..4 {
        let quarter = vec![0; STREAM_BYTES as usize / 4];
        machine.handle_item(id, Item::Body(&quarter)).unwrap();
    }
    assert!(machine.handle_item(id, Item::Body(&[0])).is_err());
    // Its caller has gone: what has crossed the CANCEL is of no use, and no violation.
    assert_eq!(machine.abandon(key), Some(id));
    assert_eq!(machine.handle_item(id, Item::Body(&[0])), Ok(None));
    answered(&mut machine, &response(id, 1, false)).unwrap();
    assert!(machine.handle_item(id, Item::Body(&[0])).is_err());
    machine.invariants();
}

#[test]
fn a_reader_at_the_server_is_woken_by_items_and_by_the_answer() {
    let (mut machine, call) = serving(BOTH);
    assert_eq!(read(&mut machine, call), ItemRead::Pending);
    assert_eq!(machine.handle_item(call, Item::Body(b"x")), Ok(Some(8)));
    let ItemRead::Item(body, None) = read(&mut machine, call) else {
        panic!()
    };
    assert_eq!(body[..], b"x"[..]);
    assert_eq!(read(&mut machine, call), ItemRead::Pending);
    assert_eq!(machine.send_item(call, 1), ItemSend::Now);
    assert_eq!(machine.handle_credit(call, ONE), Ok(Some(&5)));
    assert_eq!(machine.answer(call), Some(Some(8)));
    assert_eq!(read(&mut machine, call), ItemRead::Gone);
    assert_eq!(machine.send_item(call, 1), ItemSend::Gone);
    machine.invariants();
}

#[test]
fn a_slot_is_held_until_the_body_was_read() {
    let mut machine = machine();
    let (key, id) = send(&mut machine, 1);
    let Ok(ResponseOutcome::Fetch(call, region)) = answered(&mut machine, &by_reference(id)) else {
        panic!()
    };
    assert_eq!((call, region.len), (id, 10));
    assert!(answered(&mut machine, &by_reference(id)).is_err());
    assert!(matches!(
        progress_as(&mut machine, key, 3),
        CallProgress::Pending
    ));
    assert_eq!(machine.open(), 1);
    assert_eq!(machine.handle_body(id, Ok(vec![1, 2])), Some(Some(3)));
    assert_eq!(machine.open(), 0);
    let CallProgress::Ended(Ok((0, body))) = progress_as(&mut machine, key, 3) else {
        panic!()
    };
    assert_eq!(body[..], [1, 2]);
    // The caller has gone before the answer, or while its body is read.
    let (key, id) = send(&mut machine, 1);
    assert_eq!(machine.abandon(key), Some(id));
    let taken = answered(&mut machine, &by_reference(id));
    assert_eq!(taken, Ok(ResponseOutcome::Taken(id)));
    let (key, id) = send(&mut machine, 1);
    answered(&mut machine, &by_reference(id)).unwrap();
    assert_eq!(machine.abandon(key), None, "there is nothing to cancel");
    assert_eq!(machine.open(), 1);
    assert_eq!(machine.handle_body(id, Ok(vec![])), Some(None));
    machine.invariants();
}

#[test]
fn an_answer_is_lent_until_it_was_taken_or_its_time_is_over() {
    let (mut machine, call) = serving(UNARY);
    assert_eq!(machine.answer_by_reference(call), Some(None));
    assert_eq!(machine.running(), 1);
    let next = CallId {
        generation: 1,
        ..call
    };
    assert!(machine.handle_request(next, 1).is_err(), "it is not over");
    assert_eq!(machine.handle_cancel(call), Ok(None));
    assert_eq!(machine.handle_taken(call), Ok(Some(5)));
    assert!(machine.handle_taken(call).is_err(), "taken twice");
    assert_eq!(machine.handle_request(next, 1), Ok(Admission::Admitted));
    assert!(machine.start(next, 6, UNARY));
    assert_eq!(machine.answer_by_reference(next), Some(None));
    machine.revoke(next);
    assert_eq!(machine.running(), 0);
    assert_eq!(machine.handle_taken(next), Ok(None), "it comes late");
    machine.invariants();
}

#[test]
fn windows_move() {
    let mut machine = machine();
    let window = |calls, bytes| Window { calls, bytes };
    assert!(machine.handle_window(window(0, 4096)).is_err());
    assert!(machine.handle_window(window(1, 1023)).is_err());
    let sent: Vec<_> = (0..3).map(|number| send(&mut machine, number)).collect();
    let waits = machine.begin(100, None, UNARY).unwrap();
    assert!(matches!(
        progress_as(&mut machine, waits, 7),
        CallProgress::Pending
    ));
    machine.handle_window(window(4, 4096)).unwrap();
    assert_eq!(machine.poll_admit(), Some(Some(7)));
    machine.handle_window(window(1, 4096)).unwrap();
    let late = machine.begin(1024, None, UNARY).unwrap();
    for (_, id) in &sent {
        answered(&mut machine, &response(*id, 0, false)).unwrap();
        assert_eq!(machine.poll_admit(), None, "one is open still");
    }
    assert_eq!(machine.abandon(waits), None);
    assert_eq!(machine.poll_admit(), Some(None));
    assert_eq!(machine.abandon(late), None);
    let (mut server, _) = serving(UNARY);
    let beyond = CallId {
        slot: 3,
        generation: 0,
    };
    let second = CallId { slot: 1, ..beyond };
    assert!(server.handle_request(beyond, 1).is_err());
    assert!(
        server.handle_request(second, 1901).is_err(),
        "too many bytes"
    );
    server.widen(window(4, 4096));
    assert!(server.handle_request(beyond, 1901).is_ok());
    // A client learns of a smaller one when it does.
    server.widen(window(1, 100));
    assert!(server.handle_request(second, 1901).is_ok());
}
