//! A survivor with an authorization key for each peer (`FI_AV_AUTH_KEY` of fi_av(3)), and a peer of
//! another key than the victim's, with which it goes on.

use std::net::SocketAddr;

use futures::future::join;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    AddressVector, EndpointType, Hints, RdmEndpoint,
    av::{AuthKeyAddr, FabricAddr},
    domain::DomainBind,
    info::AuthKey,
};

use crate::common::peers::{any, peer_with};
use crate::kill_matrix::death::PATIENCE;
use crate::kill_matrix::greeting::KEY;

/// The neighbour's, which lives.
const OTHER: &[u8] = b"the key of one that lives";

/// A peer whose domain has the keys of its address vectors.
pub fn peer(net: &Net) -> Peer {
    let hints = Hints::new().endpoint(EndpointType::Rdm);
    let hints = hints.domain(|domain| domain.auth_key(AuthKey::of_address_vector()));
    peer_with(net, hints, DomainBind::empty())
}

/// The survivor's address vector, with both keys.
pub struct Keys {
    pub vector: AddressVector,
    victims: AuthKeyAddr,
    others: AuthKeyAddr,
}

/// The peer of the other key.
pub struct Neighbour {
    endpoint: RdmEndpoint,
    here: FabricAddr,
    _peer: Peer,
}

impl Keys {
    pub fn new(peer: &Peer) -> Keys {
        let vector = peer.domain.address_vector().open().expect("a vector");
        let key = |bytes| vector.insert_auth_key(AuthKey::new(bytes)).expect("a key");
        let (victims, others) = (key(KEY), key(OTHER));
        Keys {
            vector,
            victims,
            others,
        }
    }

    pub fn insert_victim(&self, there: SocketAddr) -> FabricAddr {
        self.insert(there, self.victims)
    }

    fn insert(&self, there: SocketAddr, key: AuthKeyAddr) -> FabricAddr {
        let inserted = self.vector.insert(there).auth_key(key).now();
        inserted.expect("room for an address")
    }

    pub fn neighbour(&self, net: &Net, survivor: &RdmEndpoint) -> Neighbour {
        let hints = Hints::new().domain(|domain| domain.auth_key(AuthKey::new(OTHER)));
        let peer = peer_with(net, hints, DomainBind::empty());
        let endpoint = peer.domain.rdm_endpoint().listen_at(any()).open();
        let endpoint = endpoint.expect("an endpoint");
        self.insert(endpoint.local_addr(), self.others);
        Neighbour {
            here: endpoint.insert(survivor.local_addr()).expect("room"),
            endpoint,
            _peer: peer,
        }
    }
}

impl Neighbour {
    /// Nothing of the victim's is anything of this peer's.
    pub async fn talk(&self, survivor: &RdmEndpoint) {
        let send = self.endpoint.send_tagged("alive", self.here, 4321);
        let receive = survivor.recv_tagged(vec![0; 8], 4321);
        let both = join(send.into_future(), receive.into_future());
        let ended = tokio::time::timeout(PATIENCE, both).await;
        let (sent, received) = ended.expect("in time");
        sent.expect("the peer of the other key lives");
        received.expect("and is heard");
    }
}
