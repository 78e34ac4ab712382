//! The two machines, step by step; `model` has them against each other.

mod model;
mod streams;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::status::{Code, Started, Status};
use crate::wire::{CallId, CodecName, Hello, Response, Streams, Violation};

const SMALL: Hello = Hello {
    calls: 3,
    frame_max: 1024,
    bytes: 2000,
    lent_max: 0,
    codec: CodecName::new("postcard"),
    body_max: 1 << 20,
};

const UNARY: Streams = Streams {
    sends: false,
    receives: false,
};

fn response(call: CallId, code: u32, not_started: bool) -> Response<'static> {
    Response {
        call,
        code,
        not_started,
        served_us: 0,
        body: &[],
        by_reference: None,
    }
}

fn ended<W>(watcher: Option<W>) -> ResponseOutcome<W> {
    ResponseOutcome::Ended(watcher)
}

/// A machine whose callers are woken by their number.
fn machine() -> ClientMachine<u32> {
    ClientMachine::new(&SMALL)
}

/// For a task of this number.
fn progress_as(machine: &mut ClientMachine<u32>, key: CallKey, number: u32) -> CallProgress {
    if machine.is_unwatched(key, |it| *it == number) {
        machine.watch(key, number);
    }
    progress_of(machine, key)
}

fn progress_of<W>(machine: &mut ClientMachine<W>, key: CallKey) -> CallProgress {
    machine.progress(key)
}

fn answered<W>(
    machine: &mut ClientMachine<W>,
    response: &Response<'_>,
) -> Result<ResponseOutcome<W>, Violation> {
    machine.handle_response(response, Bytes::copy_from_slice)
}

fn send(machine: &mut ClientMachine<u32>, number: u32) -> (CallKey, CallId) {
    let key = machine.begin(100, None, UNARY).unwrap();
    match progress_as(machine, key, number) {
        CallProgress::Send(id) => (key, id),
        other => panic!("{other:?}"),
    }
}

fn end_of(machine: &mut ClientMachine<u32>, key: CallKey) -> Result<u32, Status> {
    match progress_as(machine, key, 0) {
        CallProgress::Ended(end) => end.map(|(code, _)| code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_waits_for_the_window_in_its_turn() {
    let mut machine = machine();
    let sent: Vec<_> = (0..3).map(|number| send(&mut machine, number)).collect();
    let late = machine.begin(100, None, UNARY).unwrap();
    let later = machine.begin(100, None, UNARY).unwrap();
    assert!(matches!(
        progress_as(&mut machine, late, 7),
        CallProgress::Pending
    ));
    assert!(matches!(
        progress_as(&mut machine, later, 8),
        CallProgress::Pending
    ));
    assert_eq!(machine.poll_admit(), None);
    assert_eq!(
        answered(&mut machine, &response(sent[1].1, 0, false)),
        Ok(ended(Some(1)))
    );
    assert_eq!(machine.poll_admit(), Some(Some(7)));
    assert_eq!(machine.poll_admit(), None);
    let CallProgress::Send(id) = progress_as(&mut machine, late, 7) else {
        panic!()
    };
    assert_eq!(
        (id.slot, id.generation),
        (1, 1),
        "the slot is used again under the next name"
    );
    assert_eq!(end_of(&mut machine, sent[1].0).unwrap(), 0);
    machine.invariants();
}

#[test]
fn requests_wait_for_bytes_and_what_never_fits_is_refused() {
    let mut machine = machine();
    let first = machine.begin(1024, None, UNARY).unwrap();
    let CallProgress::Send(id) = progress_as(&mut machine, first, 1) else {
        panic!()
    };
    let second = machine.begin(1000, None, UNARY).unwrap();
    assert!(matches!(
        progress_as(&mut machine, second, 2),
        CallProgress::Pending
    ));
    // A small one does not overtake it.
    let third = machine.begin(10, None, UNARY).unwrap();
    assert!(matches!(
        progress_as(&mut machine, third, 3),
        CallProgress::Pending
    ));
    answered(&mut machine, &response(id, 0, false)).unwrap();
    assert_eq!(machine.poll_admit(), Some(Some(2)));
    assert_eq!(machine.poll_admit(), None.or(Some(Some(3))));
    let refused = machine.begin(1025, None, UNARY).unwrap_err();
    assert_eq!(
        (refused.code(), refused.started()),
        (Code::TooLarge, Started::NotStarted)
    );
}

/// G1: "a retiring call keeps its slot".
#[test]
fn a_cancelled_call_holds_its_slot_until_the_answer() {
    let mut machine = machine();
    let (key, id) = send(&mut machine, 1);
    assert_eq!(machine.abandon(key), Some(id));
    assert_eq!(machine.open(), 1);
    assert_eq!(
        answered(&mut machine, &response(id, 1, false)),
        Ok(ended(None))
    );
    assert_eq!(machine.open(), 0);
    assert!(
        answered(&mut machine, &response(id, 1, false)).is_err(),
        "answered twice"
    );
    machine.invariants();
}

#[test]
fn a_call_given_up_before_it_was_sent_uses_no_name() {
    let mut machine = machine();
    let key = machine.begin(1, None, UNARY).unwrap();
    assert_eq!(machine.abandon(key), None);
    let (_, id) = send(&mut machine, 1);
    assert_eq!(id.generation, 0);
}

#[test]
fn deadlines_say_whether_the_call_was_sent() {
    let mut machine = machine();
    let begin = Time::now();
    let soon = begin + Duration::from_secs(1);
    let later = begin + Duration::from_secs(5);
    let sent = machine.begin(1, Some(soon), UNARY).unwrap();
    let CallProgress::Send(id) = progress_as(&mut machine, sent, 1) else {
        panic!()
    };
    for number in 2..4 {
        send(&mut machine, number);
    }
    let waits = machine.begin(1, Some(soon), UNARY).unwrap();
    let _ = progress_as(&mut machine, waits, 9);
    let patient = machine.begin(1, Some(later), UNARY).unwrap();
    let (mut cancel, mut wake) = (Vec::new(), Vec::new());
    assert_eq!(machine.expire(begin, &mut cancel, &mut wake), Some(soon));
    assert!(cancel.is_empty() && wake.is_empty());
    assert_eq!(machine.expire(soon, &mut cancel, &mut wake), Some(later));
    assert_eq!((cancel, wake), (vec![id], vec![1, 9]));
    assert_eq!(
        end_of(&mut machine, sent).unwrap_err().started(),
        Started::MaybeRan
    );
    assert_eq!(
        end_of(&mut machine, waits).unwrap_err().started(),
        Started::NotStarted
    );
    assert_eq!(machine.abandon(patient), None);
    machine.invariants();
}

#[test]
fn a_drained_server_gets_no_new_calls_and_answers_the_open_ones() {
    let mut machine = machine();
    let sent: Vec<_> = (0..3).map(|number| send(&mut machine, number)).collect();
    let waits = machine.begin(1, None, UNARY).unwrap();
    let _ = progress_as(&mut machine, waits, 9);
    let mut wake = Vec::new();
    machine.handle_goaway(&mut wake);
    assert_eq!(wake, [9]);
    assert_eq!(
        end_of(&mut machine, waits).unwrap_err().code(),
        Code::Draining
    );
    assert!(machine.begin(1, None, UNARY).unwrap_err().is_not_started());
    for (key, id) in sent {
        assert!(!machine.is_drained());
        answered(&mut machine, &response(id, 0, false)).unwrap();
        assert_eq!(end_of(&mut machine, key).unwrap(), 0);
    }
    assert!(machine.is_drained());
}

/// G2: "duplicates and stale generations are protocol violations".
#[test]
fn a_server_takes_each_name_once_and_within_the_window() {
    let mut machine: ServerMachine<(), ()> = ServerMachine::new(2, 1000);
    let id = |slot, generation| CallId { slot, generation };
    assert!(
        machine.handle_request(id(2, 0), 1).is_err(),
        "beyond the window"
    );
    assert!(
        machine.handle_request(id(0, 1), 1).is_err(),
        "not the next name"
    );
    assert!(
        machine.handle_cancel(id(0, 0)).is_err(),
        "there was no such call"
    );
    assert_eq!(machine.handle_request(id(0, 0), 1), Ok(Admission::Admitted));
    assert!(machine.start(id(0, 0), (), UNARY));
    assert!(
        machine.handle_request(id(0, 1), 1).is_err(),
        "the slot is not free"
    );
    assert_eq!(machine.handle_cancel(id(0, 0)), Ok(Some(&())));
    assert_eq!(machine.answer(id(0, 0)), Some(None));
    assert_eq!(machine.answer(id(0, 0)), None);
    assert_eq!(
        machine.handle_cancel(id(0, 0)),
        Ok(None),
        "it crossed the answer"
    );
    assert!(
        machine.handle_request(id(0, 0), 1).is_err(),
        "the same name again"
    );
    machine.drain();
    assert_eq!(machine.handle_request(id(0, 1), 1), Ok(Admission::Draining));
}
