//! What applications post, withdraw and leave: the mutators of a connection.

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind, Phase};
use crate::proto::Host;
use crate::proto::matching::first_come::{Early, Found};
use crate::proto::op::{AtomicPost, Op, OpKey, Post, PostFlags, Refused};
use crate::wire::FrameHeader;

use super::atomic::not_agreed;
use super::{Connection, ContextQueue, Lifecycle, Withdrawn};

impl<T> Connection<T> {
    /// Accepts an operation, or, when its context is full, lets it wait (`wait`) or refuses it with
    /// Again. Nothing overtakes a waiting operation of the same context.
    pub(crate) fn post(
        &mut self,
        post: Post,
        mut token: T,
        flags: PostFlags,
        host: &mut impl Host<T>,
    ) -> Result<OpKey, Refused> {
        if let Err(error) = self.check_post(&post) {
            if self.lifecycle == Lifecycle::Closed && post.is_receive() {
                return self.post_after_end(post, token, error, host);
            }
            let error = error.with_operation(post.operation());
            return Err(Refused {
                error,
                payload: post.into_payload(),
            });
        }
        let queue = self.context(post.is_receive());
        let free = queue.used < queue.size && queue.backlog.is_empty();
        let accepted = free && host.reserve(&mut token);
        if !accepted && !flags.wait {
            let error = self
                .full(post.is_receive())
                .with_operation(post.operation());
            return Err(Refused {
                error,
                payload: post.into_payload(),
            });
        }
        let post = match post {
            Post::Receive { payload } if accepted => {
                return Ok(self.accept_receive(payload, token, host));
            }
            post => post,
        };
        let key = self.ops.insert(Op {
            token,
            operation: post.operation(),
            phase: Phase::Waiting,
            payload: None,
            len: 0,
            ack: false,
            answer: None,
            fence: flags.fence,
            number: 0,
            orphaned: false,
        });
        if accepted {
            self.accept(key, post, host);
        } else {
            self.context(post.is_receive())
                .backlog
                .push_back((key, post));
        }
        self.invariants();
        Ok(key)
    }

    /// Accepts a message whose bytes are copied, or refuses it with Again if its context is full.
    /// Of its end only the count is told ([`Connection::take_injected_ends`]). Not for a
    /// connectionless endpoint's connection, where a message may have to be announced, or to wait
    /// for the next one.
    pub(crate) fn inject(&mut self, bytes: &[u8], data: Option<u64>) -> Result<(), Error> {
        debug_assert!(self.peer.is_none(), "of a connected endpoint");
        self.check_open(false)?;
        let queue = &mut self.transmit;
        if queue.used >= queue.size || !queue.backlog.is_empty() {
            return Err(self.full(false));
        }
        queue.used += 1;
        let header = message(None, data, false, bytes.len() as u64);
        self.tx.push_injected(header, bytes, self.order);
        self.invariants();
        Ok(())
    }

    /// Says what a post that may not wait finds full: whose, how many it takes, and what has them.
    #[cold]
    fn full(&self, is_receive: bool) -> Error {
        let (name, queue) = match is_receive {
            true => ("receive", &self.receive),
            false => ("transmit", &self.transmit),
        };
        let waiting = queue.backlog.len();
        let what = if waiting > 0 {
            format!(
                "{waiting} operations wait for room in the endpoint's {name} context (its size is \
                 {}), and nothing overtakes them",
                queue.size
            )
        } else if queue.used < queue.size {
            "the completion queue that the operation reports to is full: read completions, or open \
             it larger"
                .to_owned()
        } else {
            let held = match is_receive {
                true => String::new(),
                false => format!(
                    ", {} by reads and {} by others that await the peer's answer",
                    self.reads.len(),
                    self.acks.len()
                ),
            };
            format!(
                "the endpoint's {name} context is full: {} of {} places are taken{held}; await one \
                 of the operations, post this one by an await, which waits for room, or open the \
                 endpoint with a larger {name}_size",
                queue.used, queue.size
            )
        };
        Error::new(ErrorKind::Again, what)
    }

    /// A receive posted after the peer's end still takes a message that came in full before it.
    fn post_after_end(
        &mut self,
        post: Post,
        mut token: T,
        error: Error,
        host: &mut impl Host<T>,
    ) -> Result<OpKey, Refused> {
        let payload = post.into_payload();
        let refuse = |error: Error, payload| {
            let error = error.with_operation(OperationKind::Receive);
            Err(Refused { error, payload })
        };
        if !self.matcher.has_early() {
            return refuse(error, payload);
        }
        if !host.reserve(&mut token) {
            return refuse(
                Error::new(ErrorKind::Again, "the completion queue is full"),
                payload,
            );
        }
        let early = self.matcher.take_early().expect("seen above");
        let key = self.enter_receive(payload, token);
        self.deliver_early(key, early);
        Ok(key)
    }

    /// A receive that need not wait, the usual one, is made as it is to be.
    fn accept_receive(&mut self, payload: Payload, token: T, host: &mut impl Host<T>) -> OpKey {
        let key = self.enter_receive(payload, token);
        self.match_receive(key, host);
        self.invariants();
        key
    }

    fn enter_receive(&mut self, payload: Payload, token: T) -> OpKey {
        self.receive.used += 1;
        self.ops.insert(Op {
            token,
            operation: OperationKind::Receive,
            phase: Phase::Queued,
            len: payload.len(),
            payload: Some(payload),
            ack: false,
            answer: None,
            fence: false,
            number: 0,
            orphaned: false,
        })
    }

    /// A receive is posted, or takes the message that is there.
    fn match_receive(&mut self, key: OpKey, host: &mut impl Host<T>) {
        if let Found::Early(early) = self.matcher.post(key) {
            self.deliver_early(key, early);
        }
        self.resume(host);
    }

    pub(super) fn context(&mut self, receive: bool) -> &mut ContextQueue {
        if receive {
            &mut self.receive
        } else {
            &mut self.transmit
        }
    }

    fn check_post(&self, post: &Post) -> Result<(), Error> {
        if let Post::Write {
            payload, segments, ..
        }
        | Post::Read { payload, segments } = post
            && segments.total() != payload.len() as u64
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the remote segments hold {} bytes, the local buffers {}",
                    segments.total(),
                    payload.len()
                ),
            ));
        }
        if matches!(post, Post::Atomic { .. }) && !self.may_have_atomics() {
            return Err(not_agreed());
        }
        let is_of_peer = self.peer.is_some();
        let tagged = matches!(
            post,
            Post::Send { tag: Some(_), .. } | Post::Inject { tag: Some(_), .. }
        );
        if tagged && !is_of_peer || is_of_peer && post.is_receive() {
            let what = "tags and shared receives are a connectionless endpoint's";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        self.check_open(post.is_receive())
    }

    /// True of what may be posted in the life of the connection that it has reached.
    fn check_open(&self, is_receive: bool) -> Result<(), Error> {
        let is_of_peer = self.peer.is_some();
        match (self.lifecycle, &self.fault) {
            // Another attempt may follow one that has failed.
            (Lifecycle::Idle | Lifecycle::Connecting | Lifecycle::Accepting, _) if is_of_peer => {
                Ok(())
            }
            (_, Some(error)) => Err(error.clone()),
            (Lifecycle::Connected, None)
                if self.ending.is_peer_closing()
                    && !self.has_staying()
                    && !(is_receive && self.matcher.has_early()) =>
            {
                Err(Error::new(ErrorKind::PeerClosed, "it is closing"))
            }
            (Lifecycle::Closed, None) => {
                Err(Error::new(ErrorKind::BadState, "the endpoint is closed"))
            }
            (Lifecycle::Connected, None) => Ok(()),
            (Lifecycle::Idle | Lifecycle::Connecting | Lifecycle::Accepting, None)
                if is_receive =>
            {
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::NotConnected,
                "connect or accept with the endpoint first",
            )),
        }
    }

    /// False if it is known that the peer, or this side, has no atomic operations.
    fn may_have_atomics(&self) -> bool {
        match self.lifecycle {
            Lifecycle::Connected => self.has_atomics(),
            _ => self.offers_atomics(),
        }
    }

    /// Lets waiting operations in, as far as there is room.
    pub(crate) fn admit(&mut self, host: &mut impl Host<T>) {
        for receive in [false, true] {
            self.context(receive).freed = false;
            loop {
                let queue = self.context(receive);
                if queue.used >= queue.size {
                    break;
                }
                let Some(&(key, _)) = queue.backlog.front() else {
                    break;
                };
                let op = self
                    .ops
                    .get_mut(key)
                    .expect("a waiting operation is in the table");
                if !host.reserve(&mut op.token) {
                    break;
                }
                if let Some((key, post)) = self.context(receive).backlog.pop_front() {
                    self.accept(key, post, host);
                }
            }
        }
        if self.ending.is_peer_closing() {
            self.sort_out_waiting();
        }
    }

    fn accept(&mut self, key: OpKey, post: Post, host: &mut impl Host<T>) {
        if matches!(post, Post::Atomic { .. }) && !self.may_have_atomics() {
            // It waited for its turn until the connection was up.
            return self.end_op(key, Err(not_agreed()), 0, post.into_payload());
        }
        self.context(post.is_receive()).used += 1;
        // With refusals, every write is answered: so its end is the peer's verdict.
        let answered = self.has_refusals();
        let op = self
            .ops
            .get_mut(key)
            .expect("the operation was just inserted");
        op.phase = Phase::Queued;
        if !post.is_receive() {
            op.number = self.tx.begin_op(op.fence);
        }
        match post {
            Post::Send {
                payload,
                data,
                ack,
                tag,
            } => {
                op.len = payload.len();
                op.ack = ack;
                let header = message(tag, data, ack, payload.len() as u64);
                self.tx.push_user(header, payload, Some(key));
            }
            Post::Inject { payload, data, tag } => {
                op.len = payload.len();
                let header = message(tag, data, false, payload.len() as u64);
                self.tx.push_user(header, payload, Some(key));
            }
            Post::Write {
                payload,
                data,
                ack,
                commit,
                segments,
            } => {
                let ack = ack || answered;
                op.len = payload.len();
                op.ack = ack || commit;
                let header = FrameHeader::Write {
                    data,
                    ack,
                    commit,
                    segments,
                };
                self.tx.push_user(header, payload, Some(key));
            }
            Post::Read { payload, segments } => {
                op.len = payload.len();
                op.payload = Some(payload);
                self.tx.push_user(
                    FrameHeader::ReadRequest { segments },
                    Payload::empty(),
                    Some(key),
                );
            }
            Post::Atomic { post, segments } => {
                let AtomicPost {
                    call,
                    operands,
                    results,
                } = post;
                let len = operands.len() as u64;
                op.len = segments.total() as usize; // at most an array, as was checked
                op.ack = results.is_none();
                op.payload = results.map(|results| *results);
                let header = FrameHeader::Atomic {
                    call,
                    segments,
                    len,
                };
                self.tx.push_user(header, operands, Some(key));
            }
            Post::Receive { payload } => {
                op.len = payload.len();
                op.payload = Some(payload);
                self.match_receive(key, host);
            }
        }
    }

    /// Asks an operation to end early. It ends with Canceled if no byte of it has moved.
    pub(crate) fn cancel(&mut self, key: OpKey) -> Withdrawn {
        match self.take_unstarted(key) {
            Some(payload) => {
                let error = Error::new(ErrorKind::Canceled, self.why_unstarted(key));
                self.end_op(key, Err(error), 0, payload);
                Withdrawn::Ended
            }
            None if self.ops.get(key).is_some() => Withdrawn::Running,
            None => Withdrawn::Gone,
        }
    }

    /// Asks all that is to be transmitted to end early, and says how much of it has by that.
    pub(crate) fn cancel_all(&mut self) -> usize {
        let transmits = |op: &Op<T>| op.operation != OperationKind::Receive;
        let posted = self.ops.iter().filter(|(_, op)| transmits(op));
        let keys: Vec<OpKey> = posted.map(|(key, _)| key).collect();
        let ended = keys
            .iter()
            .filter(|key| self.cancel(**key) == Withdrawn::Ended);
        ended.count()
    }

    /// The owner of the operation went away: withdraws it if it has not started; marks a receive
    /// that a message is landing in, so that the message survives. The end is still an event.
    pub(crate) fn withdraw(&mut self, key: OpKey) -> Withdrawn {
        let withdrawn = self.cancel(key);
        if withdrawn == Withdrawn::Running
            && let Some(op) = self.ops.get_mut(key)
        {
            op.orphaned = op.operation == OperationKind::Receive;
        }
        withdrawn
    }

    /// The owner of the receive with this token went away while a message was landing in it: marks
    /// it, so that the message survives. False if there is none.
    pub(crate) fn orphan(&mut self, is_it: impl Fn(&T) -> bool) -> bool {
        let found = self.ops.iter().find(|(_, op)| is_it(&op.token));
        let Some(key) = found.map(|(key, _)| key) else {
            return false;
        };
        if let Some(op) = self.ops.get_mut(key) {
            op.orphaned = op.operation == OperationKind::Receive;
        }
        true
    }

    /// A completed receive whose owner never looked: its message goes back to the head, in its
    /// order.
    pub(crate) fn give_back(
        &mut self,
        payload: Payload,
        len: usize,
        overflow: usize,
        data: Option<u64>,
        order: u64,
    ) {
        if self.lifecycle == Lifecycle::Closed && self.fault.is_none() {
            return; // Closed by this side: nobody will ask for it.
        }
        // A region is not where a message waits: its owner writes there, and may take it away. One
        // that is taken away already took the message along.
        let Ok(payload) = payload.apart_from_regions(len) else {
            return;
        };
        if let Some((key, early)) = self.matcher.give_back(Early {
            payload,
            len,
            overflow,
            data,
            order,
        }) {
            self.deliver_early(key, early);
        }
    }

    pub(super) fn take_unstarted(&mut self, key: OpKey) -> Option<Payload> {
        let op = self.ops.get_mut(key)?;
        let is_receive = op.operation == OperationKind::Receive;
        match op.phase {
            Phase::Waiting => self.context(is_receive).withdraw(key),
            Phase::Queued if is_receive => self
                .matcher
                .withdraw(key)
                .then(|| op.payload.take())
                .flatten(),
            Phase::Queued => {
                let kept = op.payload.take();
                let queued = self.tx.withdraw(key);
                match (queued, kept) {
                    (Some(_), Some(destination)) => Some(destination),
                    (Some(payload), None) => Some(payload),
                    (None, kept) => {
                        // Handed out meanwhile: give the destination back to the operation.
                        if let Some(op) = self.ops.get_mut(key) {
                            op.payload = kept;
                        }
                        None
                    }
                }
            }
            Phase::Moving if !is_receive => self.withdraw_announced(key),
            _ => None,
        }
    }

    /// What there is to say of an operation that was [taken back](Self::take_unstarted).
    pub(super) fn why_unstarted(&self, key: OpKey) -> &'static str {
        match self.phase(key) {
            Some(Phase::Moving) => {
                "it was announced, but the peer had no receive for it; the peer is told"
            }
            _ => "",
        }
    }
}

/// The header of a message.
fn message(tag: Option<u64>, data: Option<u64>, ack: bool, len: u64) -> FrameHeader {
    match tag {
        None => FrameHeader::Message { data, ack, len },
        Some(tag) => FrameHeader::Tagged {
            data,
            tag,
            ack,
            len,
        },
    }
}
