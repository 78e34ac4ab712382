//! From a draft to a posted operation of a datagram endpoint.

use super::DgramEndpoint;
use crate::buf::Payload;
use crate::endpoint::post::Shape;
use crate::endpoint::rdm::not_directed;
use crate::error::{Error, Result};
use crate::id::FabricAddr;
use crate::progress::{PostOptions, Posted, Report};
use crate::proto::DgramPost;

impl DgramEndpoint {
    /// Posts what a draft describes; `peer`: who is sent to, or alone is received from.
    pub(in crate::endpoint) fn post(
        &self,
        shape: Shape,
        peer: Option<FabricAddr>,
        payload: Payload,
        report: Report,
        options: PostOptions,
    ) -> Result<Posted, (Error, Payload)> {
        let post = self.to_post(&shape, peer, payload)?;
        self.inner.port.post(post, report, options)
    }

    fn to_post(
        &self,
        shape: &Shape,
        peer: Option<FabricAddr>,
        payload: Payload,
    ) -> Result<DgramPost, (Error, Payload)> {
        let is_receive = matches!(shape, Shape::Receive);
        if is_receive && peer.is_some() && !self.inner.directs {
            return Err((not_directed(), payload));
        }
        let address = peer.map(|peer| self.inner.vector.socket_addr(peer));
        match (is_receive, address.transpose()) {
            (_, Err(error)) => Err((error, payload)),
            (true, Ok(from)) => Ok(DgramPost::Receive { payload, from }),
            (false, Ok(Some(to))) => Ok(DgramPost::Send {
                payload,
                to,
                inject: false,
            }),
            (false, Ok(None)) => unreachable!("what is sent has a peer"),
        }
    }
}
