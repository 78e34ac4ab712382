//! The two machines against each other, in every order that frames, items, cancellations, deadlines
//! and ends can take that a seed finds.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use tokio_fabric::RemoteRegion;

use super::*;
use crate::limits::STREAM_ITEMS;
use crate::wire::{Credit, Item, Window};

#[derive(Clone, Debug)]
enum Step {
    Begin {
        len: usize,
        deadline: u64,
        streams: Streams,
    },
    Look(usize),
    Abandon(usize),
    SendItem(usize, usize),
    EndItems(usize),
    ToServer,
    ToClient,
    ReadItem(usize),
    AnswerItem(usize, usize),
    Answer {
        at: usize,
        by_reference: bool,
    },
    Body(usize),
    Revoke(usize),
    Time(u64),
    Window(Window),
    Drain,
    End,
}

fn step() -> impl Strategy<Value = Step> {
    let streams = (any::<bool>(), any::<bool>());
    let streams = streams.prop_map(|(sends, receives)| Streams { sends, receives });
    let pick = any::<usize>;
    prop_oneof![
        6 => (1..1100_usize, 1..50_u64, streams)
            .prop_map(|(len, deadline, streams)| Step::Begin { len, deadline, streams }),
        10 => pick().prop_map(Step::Look),
        2 => pick().prop_map(Step::Abandon),
        6 => (pick(), 0..60_000_usize).prop_map(|(at, len)| Step::SendItem(at, len)),
        1 => pick().prop_map(Step::EndItems),
        12 => Just(Step::ToServer),
        12 => Just(Step::ToClient),
        6 => pick().prop_map(Step::ReadItem),
        6 => (pick(), 0..60_000_usize).prop_map(|(at, len)| Step::AnswerItem(at, len)),
        5 => (pick(), any::<bool>())
            .prop_map(|(at, by_reference)| Step::Answer { at, by_reference }),
        4 => pick().prop_map(Step::Body),
        1 => pick().prop_map(Step::Revoke),
        2 => (0..20_u64).prop_map(Step::Time),
        1 => (1..5_u32, 1024..4000_u32)
            .prop_map(|(calls, bytes)| Step::Window(Window { calls, bytes })),
        1 => Just(Step::Drain),
        1 => Just(Step::End),
    ]
}

/// What a model of the whole knows of a call: how often its caller got an end, whether the server
/// ran it, and the items of both directions.
#[derive(Default)]
struct Record {
    streams: Streams,
    sent: Option<CallId>,
    ran: u32,
    ends: Vec<Result<u32, Started>>,
    abandoned: bool,
    has_begun: bool,
    has_ended_items: bool,
    /// Sent and not read, by length.
    to_handler: VecDeque<usize>,
    to_caller: VecDeque<usize>,
}

enum ToServer {
    Request(CallId, usize, usize),
    Item(CallId, usize),
    Last(CallId),
    Credit(CallId, Credit),
    Cancel(CallId),
    Taken(CallId),
}

enum ToClient {
    Response(Response<'static>),
    Item(CallId, usize),
    Credit(CallId, Credit),
    Window(Window),
    Goaway,
}

/// Both machines, what is on its way between them, and the model.
struct Pair {
    client: ClientMachine<usize>,
    server: ServerMachine<usize, usize>,
    calls: Vec<Record>,
    live: HashMap<usize, CallKey>,
    running: Vec<(usize, CallId)>,
    lent: Vec<CallId>,
    fetching: Vec<CallId>,
    to_server: VecDeque<ToServer>,
    to_client: VecDeque<ToClient>,
    now: Time,
    has_ended: bool,
    widest: u32,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            client: ClientMachine::new(&SMALL),
            server: ServerMachine::new(SMALL.calls, SMALL.bytes),
            calls: Vec::new(),
            live: HashMap::new(),
            running: Vec::new(),
            lent: Vec::new(),
            fetching: Vec::new(),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            now: Time::now(),
            has_ended: false,
            widest: SMALL.calls,
        }
    }

    fn pick(&self, at: usize) -> Option<(usize, CallKey)> {
        let mut numbers: Vec<_> = self.live.keys().copied().collect();
        numbers.sort_unstable();
        let number = *numbers.get(at % numbers.len().max(1))?;
        Some((number, self.live[&number]))
    }

    fn pick_running(&self, at: usize) -> Option<(usize, CallId)> {
        self.running.get(at % self.running.len().max(1)).copied()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin {
                len,
                deadline,
                streams,
            } => {
                let deadline = self.now + Duration::from_secs(deadline);
                let mut record = Record {
                    streams,
                    ..Record::default()
                };
                match self.client.begin(len, Some(deadline), streams) {
                    Ok(key) => drop(self.live.insert(self.calls.len(), key)),
                    Err(status) => record.ends.push(Err(status.started())),
                }
                self.calls.push(record);
            }
            Step::Look(at) => {
                if let Some((number, key)) = self.pick(at) {
                    self.progress(number, key);
                }
            }
            Step::Abandon(at) => {
                if let Some((number, key)) = self.pick(at) {
                    self.live.remove(&number);
                    self.calls[number].abandoned = true;
                    let cancel = self.client.abandon(key);
                    self.to_server.extend(cancel.map(ToServer::Cancel));
                }
            }
            Step::SendItem(at, len) => {
                if let Some((number, key)) = self.pick(at)
                    && !self.calls[number].has_ended_items
                    && let Some(id) = self.client.send_item(key, len)
                {
                    assert!(self.calls[number].streams.sends);
                    self.calls[number].to_handler.push_back(len);
                    assert!(self.calls[number].to_handler.len() <= STREAM_ITEMS as usize);
                    self.to_server.push_back(ToServer::Item(id, len));
                }
            }
            Step::EndItems(at) => {
                if let Some((number, key)) = self.pick(at)
                    && !self.calls[number].has_ended_items
                    && let Some(id) = self.client.end_items(key)
                {
                    self.calls[number].has_ended_items = true;
                    self.to_server.push_back(ToServer::Last(id));
                }
            }
            Step::ToServer => {
                if let Some(frame) = self.to_server.pop_front() {
                    self.server_handles(frame);
                }
            }
            Step::ToClient => {
                if let Some(frame) = self.to_client.pop_front() {
                    self.client_handles(frame);
                }
            }
            Step::ReadItem(at) => {
                if let Some((number, id)) = self.pick_running(at)
                    && let ItemRead::Item(body, credit) = self.server.read_item(id)
                {
                    assert_eq!(self.calls[number].to_handler.pop_front(), Some(body.len()));
                    let credit = credit.map(|it| ToClient::Credit(id, it));
                    self.to_client.extend(credit);
                }
            }
            Step::AnswerItem(at, len) => {
                if let Some((number, id)) = self.pick_running(at)
                    && self.server.send_item(id, len) == ItemSend::Now
                {
                    assert!(self.calls[number].streams.receives);
                    self.calls[number].to_caller.push_back(len);
                    assert!(self.calls[number].to_caller.len() <= STREAM_ITEMS as usize);
                    self.to_client.push_back(ToClient::Item(id, len));
                }
            }
            Step::Answer { at, by_reference } => {
                if let Some((_, id)) = self.pick_running(at) {
                    self.running.retain(|(_, it)| *it != id);
                    self.answer(id, by_reference);
                }
            }
            Step::Body(at) => {
                if !self.fetching.is_empty() {
                    let id = self.fetching.remove(at % self.fetching.len());
                    if self.client.handle_body(id, Ok(vec![1])).is_some() {
                        self.to_server.push_back(ToServer::Taken(id));
                    }
                }
            }
            Step::Revoke(at) => {
                if !self.lent.is_empty() {
                    let id = self.lent.remove(at % self.lent.len());
                    self.server.revoke(id);
                }
            }
            Step::Time(seconds) => {
                self.now += Duration::from_secs(seconds);
                let mut cancel = Vec::new();
                self.client.expire(self.now, &mut cancel, &mut Vec::new());
                self.to_server
                    .extend(cancel.into_iter().map(ToServer::Cancel));
            }
            Step::Window(window) => {
                self.server.widen(window);
                self.widest = self.widest.max(window.calls);
                self.to_client.push_back(ToClient::Window(window));
            }
            Step::Drain => {
                self.server.drain();
                self.to_client.push_back(ToClient::Goaway);
            }
            Step::End => self.end(),
        }
        while self.client.poll_admit().is_some() {}
        self.client.invariants();
        self.server.invariants();
        assert!(self.client.open() <= self.widest as usize);
    }

    fn progress(&mut self, number: usize, key: CallKey) {
        let record = &mut self.calls[number];
        match progress_of(&mut self.client, key) {
            CallProgress::Pending => {}
            CallProgress::Send(id) => {
                record.sent = Some(id);
                // What it counted as, so that the server counts the same.
                let len = self.client.sent_len(id);
                self.to_server.push_back(ToServer::Request(id, number, len));
            }
            CallProgress::Begun => {
                assert!(!record.has_begun && record.streams.receives);
                record.has_begun = true;
            }
            CallProgress::Item(body, credit) => {
                assert!(record.has_begun);
                assert_eq!(record.to_caller.pop_front(), Some(body.len()));
                let credit = credit.map(|(id, it)| ToServer::Credit(id, it));
                self.to_server.extend(credit);
            }
            CallProgress::Ended(end) => {
                self.live.remove(&number);
                let end = end.map(|(code, _)| code).map_err(|it| it.started());
                let record = &mut self.calls[number];
                if end.is_ok() {
                    assert!(record.to_caller.is_empty(), "every item was read");
                }
                record.ends.push(end);
            }
        }
    }

    fn server_handles(&mut self, frame: ToServer) {
        let honest = "an honest client";
        match frame {
            ToServer::Request(id, number, len) => {
                match self.server.handle_request(id, len).expect(honest) {
                    Admission::Admitted => {
                        let streams = self.calls[number].streams;
                        assert!(self.server.start(id, number, streams));
                        self.calls[number].ran += 1;
                        self.running.push((number, id));
                    }
                    Admission::Draining => {
                        let draining = response(id, Code::Draining.number(), true);
                        self.to_client.push_back(ToClient::Response(draining));
                    }
                }
            }
            ToServer::Item(id, len) => {
                let body = vec![0; len];
                self.server
                    .handle_item(id, Item::Body(&body))
                    .expect(honest);
            }
            ToServer::Last(id) => drop(self.server.handle_item(id, Item::Last).expect(honest)),
            ToServer::Credit(id, more) => {
                self.server.handle_credit(id, more).expect(honest);
            }
            ToServer::Cancel(id) => {
                let runs = self.server.handle_cancel(id).expect(honest).is_some();
                assert_eq!(self.server.answer(id).is_some(), runs);
                if runs {
                    let cancelled = response(id, Code::Cancelled.number(), false);
                    self.to_client.push_back(ToClient::Response(cancelled));
                }
            }
            ToServer::Taken(id) => {
                self.server.handle_taken(id).expect(honest);
                self.lent.retain(|it| *it != id);
            }
        }
    }

    fn client_handles(&mut self, frame: ToClient) {
        let honest = "an honest server";
        match frame {
            ToClient::Response(response) => {
                match answered(&mut self.client, &response).expect(honest) {
                    ResponseOutcome::Ended(_) => {}
                    ResponseOutcome::Fetch(id, _) => self.fetching.push(id),
                    ResponseOutcome::Taken(id) => self.to_server.push_back(ToServer::Taken(id)),
                }
            }
            ToClient::Item(id, len) => {
                let body = vec![0; len];
                self.client
                    .handle_item(id, Item::Body(&body))
                    .expect(honest);
            }
            ToClient::Credit(id, more) => {
                self.client.handle_credit(id, more).expect(honest);
            }
            ToClient::Window(window) => self.client.handle_window(window).expect(honest),
            ToClient::Goaway => self.client.handle_goaway(&mut Vec::new()),
        }
    }

    fn answer(&mut self, id: CallId, by_reference: bool) {
        let answered = match by_reference {
            true => self.server.answer_by_reference(id),
            false => self.server.answer(id),
        };
        if answered.is_none() {
            return;
        }
        let mut answer = response(id, 0, false);
        if by_reference {
            self.lent.push(id);
            answer.by_reference = Some(RemoteRegion::new(0, 1, 1));
        }
        self.to_client.push_back(ToClient::Response(answer));
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let cut = Status::new(Code::ConnectionLost, "cut");
        self.client.handle_end(&cut, &mut Vec::new());
        self.server.handle_end();
        self.to_server.clear();
        self.to_client.clear();
        self.running.clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// G1, G2, G3: each call ends once at its caller, runs at most once at the server, and one that
    /// ended as not started has never run, whatever crosses what. Items come in their order, none
    /// beyond the credit, and none is missing before the end of a call that went well.
    #[test]
    fn each_call_ends_once_and_says_truly_whether_it_ran(
        steps in proptest::collection::vec(step(), 1..300)
    ) {
        let mut pair = Pair::new();
        for step in steps {
            pair.step(step);
        }
        // All that is left ends with the connection.
        pair.end();
        let mut left: Vec<_> = pair.live.iter().map(|(number, key)| (*number, *key)).collect();
        left.sort_unstable_by_key(|(number, _)| *number);
        for (number, key) in left {
            while pair.live.contains_key(&number) {
                pair.progress(number, key);
            }
        }
        for call in &pair.calls {
            prop_assert_eq!(call.ends.len() + usize::from(call.abandoned), 1);
            prop_assert!(call.ran <= 1);
            match call.ends.first() {
                Some(Err(Started::NotStarted)) => prop_assert_eq!(call.ran, 0),
                Some(Ok(_)) => prop_assert_eq!(call.ran, 1),
                Some(Err(_)) => prop_assert!(call.sent.is_some()),
                None => {}
            }
        }
        pair.client.invariants();
        prop_assert_eq!((pair.client.open(), pair.client.waiting()), (0, 0));
        prop_assert_eq!(pair.server.running(), 0);
    }
}
