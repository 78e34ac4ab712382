//! The two machines against each other, in every order that frames, cancellations, deadlines and
//! ends can take that a seed finds.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::status::{Code, Started, Status};
use crate::wire::{CallId, CodecName, Hello, Response};

const SMALL: Hello = Hello {
    calls: 3,
    frame_max: 1024,
    bytes: 2000,
    lent_max: 0,
    codec: CodecName::new("postcard"),
};

fn response(call: CallId, code: u32, not_started: bool) -> Response<'static> {
    Response {
        call,
        code,
        not_started,
        served_us: 0,
        body: &[],
    }
}

/// A machine whose callers are woken by their number.
fn machine() -> ClientMachine<u32> {
    ClientMachine::new(&SMALL)
}

fn send(machine: &mut ClientMachine<u32>, number: u32) -> (CallKey, CallId) {
    let key = machine.begin(100, None).unwrap();
    match machine.progress(key, |_| number) {
        CallProgress::Send(id) => (key, id),
        other => panic!("{other:?}"),
    }
}

fn end_of(machine: &mut ClientMachine<u32>, key: CallKey) -> Result<u32, Status> {
    match machine.progress(key, |_| 0) {
        CallProgress::Ended(end) => end.map(|(code, _)| code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_waits_for_the_window_in_its_turn() {
    let mut machine = machine();
    let sent: Vec<_> = (0..3).map(|number| send(&mut machine, number)).collect();
    let late = machine.begin(100, None).unwrap();
    let later = machine.begin(100, None).unwrap();
    assert!(matches!(
        machine.progress(late, |_| 7),
        CallProgress::Pending
    ));
    assert!(matches!(
        machine.progress(later, |_| 8),
        CallProgress::Pending
    ));
    assert_eq!(machine.poll_admit(), None);
    assert_eq!(
        machine.handle_response(&response(sent[1].1, 0, false)),
        Ok(Some(1))
    );
    assert_eq!(machine.poll_admit(), Some(Some(7)));
    assert_eq!(machine.poll_admit(), None);
    let CallProgress::Send(id) = machine.progress(late, |_| 7) else {
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
    let first = machine.begin(1024, None).unwrap();
    let CallProgress::Send(id) = machine.progress(first, |_| 1) else {
        panic!()
    };
    let second = machine.begin(1000, None).unwrap();
    assert!(matches!(
        machine.progress(second, |_| 2),
        CallProgress::Pending
    ));
    // A small one does not overtake it.
    let third = machine.begin(10, None).unwrap();
    assert!(matches!(
        machine.progress(third, |_| 3),
        CallProgress::Pending
    ));
    machine.handle_response(&response(id, 0, false)).unwrap();
    assert_eq!(machine.poll_admit(), Some(Some(2)));
    assert_eq!(machine.poll_admit(), None.or(Some(Some(3))));
    let refused = machine.begin(1025, None).unwrap_err();
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
    assert_eq!(machine.handle_response(&response(id, 1, false)), Ok(None));
    assert_eq!(machine.open(), 0);
    assert!(
        machine.handle_response(&response(id, 1, false)).is_err(),
        "answered twice"
    );
    machine.invariants();
}

#[test]
fn a_call_given_up_before_it_was_sent_uses_no_name() {
    let mut machine = machine();
    let key = machine.begin(1, None).unwrap();
    assert_eq!(machine.abandon(key), None);
    let (_, id) = send(&mut machine, 1);
    assert_eq!(id.generation, 0);
}

#[test]
fn deadlines_say_whether_the_call_was_sent() {
    let mut machine = machine();
    let soon = Duration::from_secs(1);
    let later = Duration::from_secs(5);
    let sent = machine.begin(1, Some(soon)).unwrap();
    let CallProgress::Send(id) = machine.progress(sent, |_| 1) else {
        panic!()
    };
    for number in 2..4 {
        send(&mut machine, number);
    }
    let waits = machine.begin(1, Some(soon)).unwrap();
    let _ = machine.progress(waits, |_| 9);
    let patient = machine.begin(1, Some(later)).unwrap();
    let (mut cancel, mut wake) = (Vec::new(), Vec::new());
    assert_eq!(
        machine.expire(Duration::ZERO, &mut cancel, &mut wake),
        Some(soon)
    );
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
    let waits = machine.begin(1, None).unwrap();
    let _ = machine.progress(waits, |_| 9);
    let mut wake = Vec::new();
    machine.handle_goaway(&mut wake);
    assert_eq!(wake, [9]);
    assert_eq!(
        end_of(&mut machine, waits).unwrap_err().code(),
        Code::Draining
    );
    assert!(machine.begin(1, None).unwrap_err().is_not_started());
    for (key, id) in sent {
        assert!(!machine.is_drained());
        machine.handle_response(&response(id, 0, false)).unwrap();
        assert_eq!(end_of(&mut machine, key).unwrap(), 0);
    }
    assert!(machine.is_drained());
}

/// G2: "duplicates and stale generations are protocol violations".
#[test]
fn a_server_takes_each_name_once_and_within_the_window() {
    let mut machine: ServerMachine<()> = ServerMachine::new(2);
    let id = |slot, generation| CallId { slot, generation };
    assert!(
        machine.handle_request(id(2, 0)).is_err(),
        "beyond the window"
    );
    assert!(
        machine.handle_request(id(0, 1)).is_err(),
        "not the next name"
    );
    assert!(
        machine.handle_cancel(id(0, 0)).is_err(),
        "there was no such call"
    );
    assert_eq!(machine.handle_request(id(0, 0)), Ok(Admission::Admitted));
    assert!(machine.start(id(0, 0), ()));
    assert!(
        machine.handle_request(id(0, 1)).is_err(),
        "the slot is not free"
    );
    assert_eq!(machine.handle_cancel(id(0, 0)), Ok(Some(&())));
    assert!(machine.answer(id(0, 0)) && !machine.answer(id(0, 0)));
    assert_eq!(
        machine.handle_cancel(id(0, 0)),
        Ok(None),
        "it crossed the answer"
    );
    assert!(
        machine.handle_request(id(0, 0)).is_err(),
        "the same name again"
    );
    machine.drain();
    assert_eq!(machine.handle_request(id(0, 1)), Ok(Admission::Draining));
}

#[derive(Clone, Debug)]
enum Step {
    Begin { len: usize, deadline: u64 },
    Look(usize),
    Abandon(usize),
    ToServer,
    ToClient,
    Answer(usize),
    Time(u64),
    Drain,
    End,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..1100_usize, 1..50_u64).prop_map(|(len, deadline)| Step::Begin { len, deadline }),
        8 => any::<usize>().prop_map(Step::Look),
        2 => any::<usize>().prop_map(Step::Abandon),
        8 => Just(Step::ToServer),
        8 => Just(Step::ToClient),
        6 => any::<usize>().prop_map(Step::Answer),
        2 => (0..20_u64).prop_map(Step::Time),
        1 => Just(Step::Drain),
        1 => Just(Step::End),
    ]
}

/// What a model of the whole knows of a call: how often its caller got an end, and whether the
/// server ran it.
#[derive(Default)]
struct Record {
    sent: Option<CallId>,
    ran: u32,
    ends: Vec<Result<u32, Started>>,
    abandoned: bool,
}

enum ToServer {
    Request(CallId, usize),
    Cancel(CallId),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// G1, G2, G3: each call ends once at its caller, runs at most once at the server, and one that
    /// ended as not started has never run, whatever crosses what.
    #[test]
    fn each_call_ends_once_and_says_truly_whether_it_ran(
        steps in proptest::collection::vec(step(), 1..200)
    ) {
        let mut client: ClientMachine<usize> = ClientMachine::new(&SMALL);
        let mut server: ServerMachine<usize> = ServerMachine::new(SMALL.calls);
        let mut calls: Vec<Record> = Vec::new();
        let mut live: HashMap<usize, CallKey> = HashMap::new();
        let mut running: Vec<(usize, CallId)> = Vec::new();
        let mut to_server: VecDeque<ToServer> = VecDeque::new();
        let mut to_client: VecDeque<Response<'static>> = VecDeque::new();
        let mut goaway = false;
        let mut now = Duration::ZERO;
        let mut has_ended = false;
        let pick = |live: &HashMap<usize, CallKey>, at: usize| {
            let mut numbers: Vec<_> = live.keys().copied().collect();
            numbers.sort_unstable();
            (!numbers.is_empty()).then(|| numbers[at % numbers.len()])
        };
        for step in steps {
            match step {
                Step::Begin { len, deadline } => {
                    let number = calls.len();
                    let deadline = now + Duration::from_secs(deadline);
                    let mut record = Record::default();
                    match client.begin(len, Some(deadline)) {
                        Ok(key) => { live.insert(number, key); }
                        Err(status) => record.ends.push(Err(status.started())),
                    }
                    calls.push(record);
                }
                Step::Look(at) => if let Some(number) = pick(&live, at) {
                    match client.progress(live[&number], |_| number) {
                        CallProgress::Pending => {}
                        CallProgress::Send(id) => {
                            calls[number].sent = Some(id);
                            to_server.push_back(ToServer::Request(id, number));
                        }
                        CallProgress::Ended(end) => {
                            live.remove(&number);
                            let end = end.map(|(code, _)| code).map_err(|it| it.started());
                            calls[number].ends.push(end);
                        }
                    }
                }
                Step::Abandon(at) => if let Some(number) = pick(&live, at) {
                    let key = live.remove(&number).unwrap();
                    calls[number].abandoned = true;
                    if let Some(id) = client.abandon(key) {
                        to_server.push_back(ToServer::Cancel(id));
                    }
                }
                Step::ToServer => match to_server.pop_front() {
                    Some(ToServer::Request(id, number)) => {
                        match server.handle_request(id).expect("an honest client") {
                            Admission::Admitted => {
                                prop_assert!(server.start(id, number));
                                calls[number].ran += 1;
                                running.push((number, id));
                            }
                            Admission::Draining => {
                                to_client.push_back(response(id, Code::Draining.number(), true));
                            }
                        }
                    }
                    Some(ToServer::Cancel(id)) => {
                        let runs = server.handle_cancel(id).expect("an honest client").is_some();
                        prop_assert_eq!(server.answer(id), runs);
                        let cancelled = response(id, Code::Cancelled.number(), false);
                        to_client.extend(runs.then_some(cancelled));
                    }
                    None => {}
                },
                Step::ToClient => {
                    if goaway {
                        client.handle_goaway(&mut Vec::new());
                    }
                    if let Some(response) = to_client.pop_front() {
                        client.handle_response(&response).expect("an honest server");
                    }
                }
                Step::Answer(at) => if !running.is_empty() {
                    let (_, id) = running.remove(at % running.len());
                    if server.answer(id) {
                        to_client.push_back(response(id, 0, false));
                    }
                }
                Step::Time(seconds) => {
                    now += Duration::from_secs(seconds);
                    let mut cancel = Vec::new();
                    client.expire(now, &mut cancel, &mut Vec::new());
                    to_server.extend(cancel.into_iter().map(ToServer::Cancel));
                }
                Step::Drain => {
                    server.drain();
                    goaway = true;
                }
                Step::End => if !has_ended {
                    has_ended = true;
                    client.handle_end(
                        &Status::new(Code::ConnectionLost, "cut"), &mut Vec::new());
                    server.handle_end();
                    to_server.clear();
                    to_client.clear();
                    running.clear();
                }
            }
            while client.poll_admit().is_some() {}
            client.invariants();
            prop_assert!(client.open() <= SMALL.calls as usize);
        }
        // All that is left ends with the connection.
        client.handle_end(&Status::new(Code::ConnectionLost, "cut"), &mut Vec::new());
        for (number, key) in live {
            let CallProgress::Ended(end) = client.progress(key, |_| number) else {
                return Err(TestCaseError::fail("a call without an end"));
            };
            calls[number].ends.push(end.map(|(code, _)| code).map_err(|it| it.started()));
        }
        for call in &calls {
            prop_assert_eq!(call.ends.len() + usize::from(call.abandoned), 1);
            prop_assert!(call.ran <= 1);
            match call.ends.first() {
                Some(Err(Started::NotStarted)) => prop_assert_eq!(call.ran, 0),
                Some(Ok(_)) => prop_assert_eq!(call.ran, 1),
                Some(Err(_)) => prop_assert!(call.sent.is_some()),
                None => {}
            }
        }
        client.invariants();
        prop_assert_eq!((client.open(), client.waiting()), (0, 0));
    }
}
