//! From a draft to a posted operation of a datagram endpoint, in its three forms.

use std::marker::PhantomData;

use super::{DgramEndpoint, Op, QueuedOp};
use crate::buf::{IoBufs, LocalUse, Payload};
use crate::endpoint::op::Told;
use crate::endpoint::place::Place;
use crate::endpoint::post::check_buffers;
use crate::endpoint::region::check_regions;
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::{Context, FabricAddr};
use crate::op_error::Failed;
use crate::progress::{Manner, OpCell, Posted, Report};
use crate::proto::DgramPost;

pub(super) use crate::endpoint::post::Posting;

/// An operation described but not posted.
pub(super) trait Draft<B: IoBufs>: Sized {
    fn operation(&self) -> OperationKind;
    fn endpoint(&self) -> &DgramEndpoint;
    /// How it is posted, besides whether it waits for room.
    fn manner(&self) -> Manner;
    /// Splits into the endpoint, the buffers, and what is to be done with them.
    fn into_parts(self) -> (DgramEndpoint, B, Shape);
}

/// What is to be done with the buffers.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    Send { to: FabricAddr },
    Receive { from: Option<FabricAddr> },
}

impl Shape {
    fn into_post(
        self,
        payload: Payload,
        endpoint: &DgramEndpoint,
    ) -> Result<DgramPost, (Error, Payload)> {
        let vector = &endpoint.inner.vector;
        match self {
            Shape::Send { to } => match vector.socket_addr(to) {
                Ok(to) => Ok(DgramPost::Send {
                    payload,
                    to,
                    inject: false,
                }),
                Err(error) => Err((error, payload)),
            },
            Shape::Receive { from: Some(_) } if !endpoint.inner.directs => {
                let what = "from: the domain's Info is without DIRECTED_RECV";
                Err((Error::new(ErrorKind::BadFlags, what), payload))
            }
            Shape::Receive { from } => {
                match from.map(|from| vector.socket_addr(from)).transpose() {
                    Ok(from) => Ok(DgramPost::Receive { payload, from }),
                    Err(error) => Err((error, payload)),
                }
            }
        }
    }
}

/// Posts to a future. `wait`: a full context makes the operation wait instead of failing with
/// Again.
pub(super) fn post_op<B: IoBufs, R: Told, D: Draft<B>>(
    draft: D,
    wait: bool,
) -> Result<Op<B, R>, Failed<B>> {
    let cell = OpCell::new();
    let report = Report::Future(cell.clone());
    let (endpoint, posted) = post(draft, report, wait)?;
    Ok(Op::new(Place::Datagrams(endpoint), posted.key, cell))
}

/// Posts to the completion queue of its direction.
pub(super) fn post_queued<B: IoBufs, D: Draft<B>>(
    draft: D,
    context: Context,
    wait: bool,
) -> Result<QueuedOp<B>, Failed<B>> {
    let inner = &draft.endpoint().inner;
    let queue = match draft.operation() {
        OperationKind::Receive => Some(inner.receive_queue.clone()),
        _ => inner.transmit_queue.clone(),
    };
    let Some(queue) = queue else {
        let error = Error::new(ErrorKind::BadState, "the endpoint has no transmit queue")
            .with_operation(draft.operation());
        let (_, buffers, _) = draft.into_parts();
        return Err(Failed::new(error, Some(buffers)));
    };
    let report = Report::Queue {
        queue,
        context,
        slot: None,
        waiting: None,
    };
    let (endpoint, posted) = post(draft, report, wait)?;
    Ok(QueuedOp {
        place: Place::Datagrams(endpoint),
        key: posted.key,
        waiting: posted.waiting,
        buffers: PhantomData,
    })
}

fn post<B: IoBufs, D: Draft<B>>(
    draft: D,
    report: Report,
    wait: bool,
) -> Result<(DgramEndpoint, Posted), Failed<B>> {
    let operation = draft.operation();
    let manner = Manner {
        wait,
        ..draft.manner()
    };
    let (endpoint, buffers, shape) = draft.into_parts();
    let fail = |error: Error, buffers| Failed::new(error.with_operation(operation), buffers);
    if let Err(error) = check_buffers(endpoint.domain(), &buffers) {
        return Err(fail(error, Some(buffers)));
    }
    let usage = match shape {
        Shape::Send { .. } => LocalUse::Send,
        Shape::Receive { .. } => LocalUse::Receive,
    };
    let payload = match buffers.into_payload(usage) {
        Ok(payload) => payload,
        Err((error, buffers)) => return Err(fail(error, Some(buffers))),
    };
    let posted = match check_regions(endpoint.domain(), endpoint.id(), &payload) {
        Ok(()) => shape.into_post(payload, &endpoint),
        Err(error) => Err((error, payload)),
    };
    let posted = posted
        .and_then(|post| endpoint.inner.port.post(post, report, manner))
        .map_err(|(error, payload)| fail(error, B::from_payload(payload)))?;
    Ok((endpoint, posted))
}
