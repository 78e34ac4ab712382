//! From a builder to a posted operation of a datagram endpoint.

use super::Inner;
use crate::buf::Payload;
use crate::cq::SourceName;
use crate::endpoint::common::Common;
use crate::endpoint::post::OpSpec;
use crate::endpoint::rdm::not_directed;
use crate::endpoint::target::{OpOwner, PostResult, Scope, Selector};
use crate::error::{Error, Phase, Result};
use crate::progress::{OpCell, PostOptions, Report, name_of};
use crate::proto::{DgramPost, End, OpKey, Withdrawn};

impl OpOwner for Inner {
    fn common(&self) -> &Common {
        &self.common
    }

    fn post(
        &self,
        scope: Scope,
        _: OpSpec,
        payload: Payload,
        report: Report,
        options: PostOptions,
    ) -> PostResult {
        let post = self.to_post(scope, payload)?;
        Ok((self.port.post(post, report, options)?, None))
    }

    fn phase(&self, key: OpKey) -> Phase {
        self.port.phase(key)
    }

    fn cancel(&self, key: OpKey) -> Withdrawn {
        self.port.cancel(key)
    }

    fn withdraw(&self, key: OpKey, cell: &OpCell) {
        self.port.withdraw(key, cell);
    }

    fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
        self.port.withdraw_waiting(key, cell);
    }

    fn names_sources(&self) -> bool {
        true
    }

    fn source_name(&self, end: &End) -> Option<SourceName> {
        end.from.map(|from| name_of(&self.vector, from))
    }
}

impl Inner {
    fn to_post(&self, scope: Scope, payload: Payload) -> Result<DgramPost, (Error, Payload)> {
        let address = |peer| self.vector.socket_addr(peer);
        match scope {
            Scope::Peer(peer) => match address(peer) {
                Ok(to) => Ok(DgramPost::Send {
                    payload,
                    to,
                    inject: false,
                }),
                Err(error) => Err((error, payload)),
            },
            Scope::Receives(Selector { source, .. }) if source.is_some() && !self.directs => {
                Err((not_directed(), payload))
            }
            Scope::Receives(Selector { source, .. }) => match source.map(address).transpose() {
                Ok(from) => Ok(DgramPost::Receive { payload, from }),
                Err(error) => Err((error, payload)),
            },
            Scope::Connection | Scope::Claimed(_) => unreachable!("datagrams have neither"),
        }
    }
}
