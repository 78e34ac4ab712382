//! Requests that the server reads from the client's memory, and answers that the client reads from
//! the server's memory.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use tokio::time::{sleep_until, timeout};
use tokio_fabric::{Access, Backend, RemoteRegion};

use super::connection::{ServerConnection, ServerTurn};
use super::fetches::{FetchTicket, GivenUp};
use super::listening::CallPermit;
use super::running;
use super::service::{Incoming, IncomingBody, Reply};
use crate::caught::{log, wake_all};
use crate::cx::{CancelReason, Cx};
use crate::lend::fetch;
use crate::limits::{BODY_TAKEN_WITHIN, DECODED_IN_TASK_MAX, RETRY_AFTER};
use crate::status::{Code, Result, Status};
use crate::wire::{FrameHead, LentRegions, Streams, micros, reference_frame, write_reference_head};

/// A request whose arguments are being read.
pub(super) struct Fetch {
    pub(super) cx: Cx,
    pub(super) region: RemoteRegion,
    pub(super) lent: LentRegions,
    pub(super) streams: Streams,
    pub(super) ticket: FetchTicket,
    pub(super) given_up: GivenUp,
}

impl Fetch {
    /// Waits for the request's turn, reads the arguments, then starts the handler.
    pub(super) async fn run(mut self, connection: Arc<ServerConnection>) {
        let body = unless_unwanted(&self.cx, async {
            let read = pin!(read(&connection, &self.ticket, self.region));
            match select(read, &mut self.given_up).await {
                Either::Left((body, _)) => body,
                Either::Right(_) => Err(overloaded()),
            }
        });
        let body = body.await;
        let permit = self.ticket.end();
        // A request that was given up meanwhile is refused, even with a complete body.
        let body = body.and_then(|body| permit.is_some().then_some(body).ok_or_else(overloaded));
        let len = body.as_ref().map_or(0, Vec::len);
        let is_long = len > DECODED_IN_TASK_MAX;
        // A peer within the process is trusted, and a run of the test kit must follow its seed.
        let is_local = connection.endpoint.domain().backend() == Backend::Loopback;
        let start = Start {
            connection,
            cx: self.cx,
            permit,
            body,
            lent: self.lent,
            streams: self.streams,
        };
        match is_long && !is_local {
            // If the runtime ends, it drops this task, as it drops the connection.
            true => drop(tokio::task::spawn_blocking(|| start.run(false))),
            false => start.run(true),
        }
    }
}

/// A call whose request has been read.
struct Start {
    connection: Arc<ServerConnection>,
    cx: Cx,
    permit: Option<CallPermit>,
    body: Result<Vec<u8>>,
    lent: LentRegions,
    streams: Streams,
}

impl Start {
    /// Decodes the request and starts its handler, or refuses the call. `polls`: whether this runs
    /// in a task, where the handler may be polled.
    fn run(self, polls: bool) {
        let Start {
            connection,
            cx,
            permit,
            body,
            lent,
            streams,
        } = self;
        // The turn's times count from the request's arrival, so that the wait is not measured as a
        // slow poll.
        let mut turn = ServerTurn::new(connection.endpoint.domain());
        turn.begin_at(cx.call().received);
        turn.kept.permit = permit;
        let of_call = cx.clone();
        let started = body.and_then(|body| {
            let incoming = Incoming {
                cx: &cx,
                body: IncomingBody::Own(body.into()),
                lent: &lent,
                streams,
                connection: &connection,
                spare: None,
            };
            let begun = running::begin(incoming, true, polls);
            begun.go_on(&connection, cx, &mut turn)
        });
        if let Err(status) = started {
            turn.kept.permit = None;
            connection.answer(&of_call, Reply::refusal(&status), turn.last, None);
        }
    }
}

/// Waits for room, then reads the body.
async fn read(
    connection: &ServerConnection,
    ticket: &FetchTicket,
    region: RemoteRegion,
) -> Result<Vec<u8>> {
    let room = connection.requests.reserve(region.len).await?;
    match ticket.reserve(region.len) {
        true => fetch(&connection.endpoint, region, room).await,
        false => Err(overloaded()),
    }
}

fn overloaded() -> Status {
    let status = Status::not_started(Code::Overloaded, "as many large requests as it takes");
    status.with_retry_after(RETRY_AFTER)
}

/// Runs `work` until it ends, or until the call is cancelled or late. In the last two cases no
/// handler has started.
async fn unless_unwanted<T>(cx: &Cx, work: impl Future<Output = Result<T>>) -> Result<T> {
    let unwanted = async {
        match cx.deadline() {
            Some(deadline) => {
                let (cancelled, late) = (cx.cancelled(), sleep_until(deadline));
                match select(pin!(cancelled), pin!(late)).await {
                    Either::Left((reason, _)) => reason,
                    Either::Right(_) => CancelReason::Deadline,
                }
            }
            None => cx.cancelled().await,
        }
    };
    let end = match select(pin!(work), pin!(unwanted)).await {
        Either::Left((end, _)) => end,
        Either::Right((reason, _)) => Err(Status::new(reason.code(), "before it was read")),
    };
    end.map_err(|status| status.with_started(crate::status::Started::NotStarted))
}

/// Lends an answer to the client until the client has read it.
pub(super) async fn answer(
    connection: Arc<ServerConnection>,
    cx: Cx,
    reply: Reply,
    permit: Option<CallPermit>,
) {
    let code = reply.code;
    let body = reply.into_body();
    let len = body.len() as u64;
    let room = unless_unwanted(&cx, connection.answers.reserve(len)).await;
    let domain = connection.endpoint.domain();
    let lent = room.and_then(|room| {
        let registered = domain.register_read_only(body).access(Access::REMOTE_READ);
        let region = registered.now().map_err(|failed| failed.into_error())?;
        Ok((room, region))
    });
    let (_room, region) = match lent {
        Ok(lent) => lent,
        Err(status) => {
            let status = status.with_started(crate::status::Started::Ran);
            let served = cx.call().received.elapsed();
            connection.answer(&cx, Reply::status(&status), served, permit);
            return;
        }
    };
    drop(permit);
    let served = cx.call().received.elapsed();
    let answered = connection.end_call(&cx, |machine| machine.answer_by_reference(cx.id()));
    let Some(reader) = answered else {
        return;
    };
    let mut frame = reference_frame(&region.remote());
    let head = FrameHead {
        call: cx.id(),
        method_or_code: code,
        time_us: micros(served),
    };
    write_reference_head(&mut frame, head);
    let routed = connection.server.routes.at(cx.call().route);
    routed.counters.end(&cx, code, served);
    connection.send(&mut frame);
    wake_all(reader);
    // Ends with TAKEN, with the connection, or with the drain.
    if timeout(BODY_TAKEN_WITHIN, cx.cancelled()).await.is_err() {
        log(|| tracing::debug!(peer = %cx.peer(), "an answer was not read"));
    }
    connection.with_machine(|machine| machine.revoke(cx.id()));
    connection.server.notice_idle();
    if let Err(error) = region.deregister().await {
        log(|| tracing::error!(%error, "the memory of an answer did not come back"));
    }
}
