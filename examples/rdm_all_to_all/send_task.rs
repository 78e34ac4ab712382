//! Sends from one endpoint of this process to one peer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio_fabric::{Error, Failed, op::Op};

use crate::board::Count;
use crate::control::{Announced, CONTROL, Control};
use crate::message;
use crate::options::Mode;
use crate::party::{Local, Member, Party};
use crate::status::Status;

/// The pause between an error and the next attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// The task that sends from one endpoint to one peer.
pub struct SendTask {
    pub party: Arc<Party>,
    pub from: Arc<Local>,
    pub to: Arc<Member>,
    pub count: Arc<Count>,
    /// The number of the next message.
    pub number: u64,
    /// How many messages have arrived since the last loss.
    pub sent: u64,
}

impl SendTask {
    /// Sends until this process stops or the peer leaves. After a failed operation, which is
    /// counted, greets the peer again; this reconnects if the peer listens.
    pub async fn run(mut self) {
        loop {
            let worked = self.greet().await;
            let worked = match worked {
                Ok(()) => self.send_on().await,
                Err(error) => Err(error),
            };
            match worked {
                Ok(()) => break self.say_last().await,
                Err(error) => self.party.has_failed(&self.to, &error),
            }
            self.sent = 0;
            if self.is_over() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends the known members to a peer of another process. The first use of an address connects;
    /// no other step is needed.
    async fn greet(&self) -> Result<(), Error> {
        if self.to.is_ours {
            return Ok(());
        }
        let known = self.party.known();
        let greeting = self.send_control(&known);
        tokio::select! {
            sent = greeting => sent?,
            // At the end, an unreachable peer is not waited for. Dropping the operation cancels the
            // message.
            () = self.party.has_stopped() => return Ok(()),
        }
        self.party.is_living(&self.to);
        Ok(())
    }

    /// Keeps the window full, and counts what has arrived.
    async fn send_on(&mut self) -> Result<(), Error> {
        let (size, window) = (self.party.options.size(), self.party.options.window());
        let mut free = vec![vec![0; size]; window];
        let mut under_way = VecDeque::with_capacity(window);
        let mut failure = None;
        loop {
            while failure.is_none() && !self.is_over() {
                let Some(buffer) = free.pop() else { break };
                let to = self.to.announced();
                match self.post(buffer, &to) {
                    Ok(operation) => under_way.push_back((operation, to.incarnation)),
                    Err(failed) => failure = Some(self.count_failed(failed)),
                }
            }
            let Some((operation, incarnation)) = under_way.pop_front() else {
                break;
            };
            // An operation owns its buffer until it ends, and returns it then.
            match operation.await {
                Ok((_, buffer)) => {
                    self.check_read(&buffer, incarnation);
                    self.count.done.fetch_add(1, Relaxed);
                    self.sent += 1;
                    free.push(buffer);
                }
                Err(failed) => failure = Some(self.count_failed(failed)),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Posts the next operation. None of the three kinds waits for a connection or for the peer.
    fn post(
        &mut self,
        mut buffer: Vec<u8>,
        to: &Announced,
    ) -> Result<Op<Vec<u8>>, Failed<Vec<u8>>> {
        let (endpoint, peer, number) = (&self.from.endpoint, self.to.peer, self.number);
        self.number += 1;
        let mode = self.party.options.mode;
        if mode != Mode::Rma {
            message::write(&mut buffer, self.from.announced.incarnation, number);
        }
        match mode {
            Mode::Message => endpoint.send(buffer, peer).delivery_complete().post(),
            Mode::Tagged => {
                let send = endpoint.send_tagged(buffer, peer, number & !CONTROL);
                send.delivery_complete().post()
            }
            Mode::Rma => endpoint.read(buffer, peer, to.region()).post(),
        }
    }

    /// Checks that a read returned the pattern of the peer's region. Receivers check messages.
    fn check_read(&self, buffer: &[u8], incarnation: u64) {
        if self.party.options.mode != Mode::Rma {
            return;
        }
        match message::is_filled(buffer, incarnation) {
            true => self.party.board.verified.fetch_add(1, Relaxed),
            false => self.party.board.wrong.fetch_add(1, Relaxed),
        };
    }

    fn count_failed(&self, failed: Failed<Vec<u8>>) -> Error {
        self.party.board.error(failed.kind());
        failed.into_error()
    }

    /// Announces that all messages have arrived and no more will come.
    async fn say_last(&self) {
        if !matches!(self.to.status(), Status::Living | Status::Left) {
            return;
        }
        let sent = match self.party.options.mode {
            Mode::Rma => 0,
            _ => self.sent,
        };
        // A peer that is lost at this moment needs no announcement.
        let incarnation = self.from.announced.incarnation;
        let _ = self
            .send_control(&Control::Last { incarnation, sent })
            .await;
    }

    async fn send_control(&self, control: &Control) -> Result<(), Error> {
        let endpoint = &self.from.endpoint;
        let send = endpoint.send_tagged(control.to_bytes(), self.to.peer, CONTROL);
        let sent = send.delivery_complete().await;
        sent.map(drop).map_err(|failed| {
            self.party.board.error(failed.kind());
            failed.into_error()
        })
    }

    fn is_over(&self) -> bool {
        self.party.is_stopping() || self.to.status() == Status::Left
    }
}
