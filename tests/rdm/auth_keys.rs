//! Authorization keys of the peers of an address vector (`FI_AV_AUTH_KEY`; `fi_av(3)`,
//! `fi_domain(3)`): one endpoint, and a key for each peer (`docs/extension.md`, section 9).

use std::net::SocketAddr;

use crate::auth::{Said, openings, strangers_end_nothing};
use crate::common::peers::peer_with;
use crate::common::{on, on_every_backend};
use futures::future::join;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Access, AddressVector, Backend, Caps, EndpointType, Error, ErrorKind, Hints, RdmEndpoint,
    av::{AuthKeyAddr, FabricAddr},
    domain::DomainBind,
    error::Refusal,
    info::AuthKey,
    limits::EP_AUTH_KEY_MAX,
};

const ONE: &[u8] = b"the key of one job";
const TWO: &[u8] = b"the key of another";

/// A peer whose domain has the keys of its address vectors.
fn with_keys_of_vectors(net: &Net, caps: Caps) -> Peer {
    let hints = Hints::new().endpoint(EndpointType::Rdm).domain(|domain| {
        let domain = domain.auth_key(AuthKey::of_address_vector());
        domain.caps(caps)
    });
    let all = Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::SOURCE;
    peer_with(net, hints.caps(all | caps), DomainBind::empty())
}

/// A peer whose domain has this one key; none without bytes.
fn with_key(net: &Net, bytes: &[u8]) -> (Peer, RdmEndpoint) {
    let hints = Hints::new().domain(|domain| domain.auth_key(AuthKey::new(bytes)));
    let peer = peer_with(net, hints, DomainBind::empty());
    let endpoint = peer.rdm_endpoint().unwrap();
    (peer, endpoint)
}

/// Where an endpoint of this peer's may listen.
fn somewhere(peer: &Peer) -> SocketAddr {
    let mut address = peer.rdm_endpoint().unwrap().local_addr();
    address.set_port(0);
    address
}

/// An endpoint with the keys of its vector, and what names them there.
struct Hub {
    peer: Peer,
    vector: AddressVector,
    keys: [AuthKeyAddr; 2],
    endpoint: RdmEndpoint,
}

fn hub(net: &Net, caps: Caps) -> Hub {
    let peer = with_keys_of_vectors(net, caps);
    let vector = peer.domain.address_vector().open().unwrap();
    let keys = [ONE, TWO].map(|bytes| vector.insert_auth_key(AuthKey::new(bytes)).unwrap());
    let endpoint = opened(&peer, &vector);
    Hub {
        peer,
        vector,
        keys,
        endpoint,
    }
}

fn opened(peer: &Peer, vector: &AddressVector) -> RdmEndpoint {
    let builder = peer.domain.rdm_endpoint().address_vector(vector);
    builder.listen_at(somewhere(peer)).open().unwrap()
}

impl Hub {
    /// Inserts this endpoint, with a key or without.
    fn insert(&self, endpoint: &RdmEndpoint, key: Option<AuthKeyAddr>) -> FabricAddr {
        let insert = self.vector.insert(endpoint.local_addr());
        let insert = match key {
            Some(key) => insert.auth_key(key),
            None => insert,
        };
        insert.now().unwrap()
    }
}

/// How a message that is sent here ends.
async fn send(x: &RdmEndpoint, to: FabricAddr) -> Result<(), Error> {
    let sent = x.send("hello", to).delivery_complete().await;
    sent.map(|_| ()).map_err(Error::from)
}

async fn talk(x: &RdmEndpoint, to: FabricAddr, y: &RdmEndpoint) {
    let sent = async { send(x, to).await.unwrap() };
    let ((), received) = join(sent, y.recv(vec![0; 8]).into_future()).await;
    assert_eq!(received.unwrap().1[..5], *b"hello");
}

#[track_caller]
fn refused(ended: Result<(), Error>, kinds: &[ErrorKind]) {
    let kind = ended.unwrap_err().kind();
    assert!(kinds.contains(&kind), "{kind:?}");
}

/// fi_domain(3): `FI_AV_AUTH_KEY`, value of auth_key_size: "all endpoints and memory regions will
/// be configured to use authorization keys associated with the AV." "Providers which support
/// authorization keys and connectionless endpoint must support this option."
/// fi_av(3): "This behavior enables a single endpoint or memory region to be associated with
/// multiple authorization keys." "If the FI_AUTH_KEY flag is not set, addresses being inserted will
/// not be associated with any authorization keys."
#[test]
fn one_endpoint_talks_with_each_peer_by_the_key_it_was_inserted_with() {
    on_every_backend(|net| async move {
        // Either side begins.
        for hub_begins in [true, false] {
            let hub = hub(&net, Caps::empty());
            let [one, two] = hub.keys;
            let peers = [(ONE, Some(one)), (TWO, Some(two)), (b"", None)];
            let mut others = Vec::new();
            for (bytes, key) in peers {
                let (peer, other) = with_key(&net, bytes);
                let to_other = hub.insert(&other, key);
                assert_eq!(hub.vector.lookup_auth_key(to_other).unwrap(), key);
                let to_hub = other.insert(hub.endpoint.local_addr()).unwrap();
                if hub_begins {
                    talk(&hub.endpoint, to_other, &other).await;
                }
                talk(&other, to_hub, &hub.endpoint).await;
                talk(&hub.endpoint, to_other, &other).await;
                others.push((peer, other, to_other, to_hub));
            }
            // All at once, and anew after an end.
            for (_, other, to_other, to_hub) in &others {
                hub.endpoint.disconnect(*to_other).unwrap();
                let to_hub = talk(other, *to_hub, &hub.endpoint);
                join(to_hub, talk(&hub.endpoint, *to_other, other)).await;
            }
        }
    });
}

/// fi_endpoint(3): "Only peer endpoints that are programmed to use the same authorization key may
/// communicate.": a peer that proves another of the endpoint's keys than that of its address is
/// refused, as is one that proves none, or should not have one. Whom the vector does not have may
/// come by any of the keys.
#[test]
fn a_peer_with_another_key_than_its_address_is_refused() {
    on_every_backend(|net| async move {
        let hub = hub(&net, Caps::empty());
        let [one, two] = hub.keys;
        let reasons = [ErrorKind::NotAuthorized, ErrorKind::ConnectionRefused];
        // All are there to the end: the port of one that was closed could become another's, whose
        // address would be in the vector already.
        let mut others = Vec::new();
        for (has, listed_with) in [
            (ONE, Some(two)),
            (TWO, Some(one)),
            (b"a third key", Some(one)),
            (b"", Some(one)),
            (ONE, None),
        ] {
            for hub_begins in [true, false] {
                let (peer, other) = with_key(&net, has);
                let to_other = hub.insert(&other, listed_with);
                let to_hub = other.insert(hub.endpoint.local_addr()).unwrap();
                if hub_begins {
                    refused(send(&hub.endpoint, to_other).await, &reasons);
                }
                refused(send(&other, to_hub).await, &reasons);
                refused(send(&hub.endpoint, to_other).await, &reasons);
                assert_eq!(hub.endpoint.unexpected_bytes(), 0);
                others.push((peer, other));
            }
        }
        // Strangers.
        for (has, admitted) in [
            (ONE, true),
            (TWO, true),
            (b"a third key", false),
            (b"", false),
        ] {
            let (_peer, other) = with_key(&net, has);
            let to_hub = other.insert(hub.endpoint.local_addr()).unwrap();
            match admitted {
                true => talk(&other, to_hub, &hub.endpoint).await,
                false => refused(send(&other, to_hub).await, &reasons),
            }
        }
    });
}

/// A stranger that comes in the name of a peer proves that peer's key: nothing that it says before
/// ends anything of the good peer's, nor does the proof of another key that the endpoint has. So
/// who has the key of one job cannot take the place of a peer of another.
#[test]
fn who_proves_the_key_of_others_ends_nothing_by_what_it_claims() {
    for backend in crate::common::backends() {
        if backend == Backend::Loopback {
            continue;
        }
        on(backend, |net| async move {
            let hub = hub(&net, Caps::empty());
            let (_peer, good) = with_key(&net, ONE);
            let to_good = hub.insert(&good, Some(hub.keys[0]));
            let to_hub = good.insert(hub.endpoint.local_addr()).unwrap();
            let mut said = openings();
            said.push(("the proof of another's key", Said::Proof(TWO)));
            strangers_end_nothing((&hub.endpoint, to_good), (&good, to_hub), &said).await;
        });
    }
}

/// fi_domain(3): "When the domain is configured with FI_DIRECTED_RECV and FI_AV_AUTH_KEY, memory
/// regions can be limited to specific authorization keys."
/// fi_av(3): "authorization key fi_addr_t's can be used to restrict memory region access to only
/// endpoint addresses within the authorization key."
#[test]
fn a_region_is_limited_to_the_peers_of_one_key() {
    on_every_backend(|net| async move {
        let hub = hub(&net, Caps::DIRECTED_RECV);
        let [one, two] = hub.keys;
        let region = |key: Option<AuthKeyAddr>| {
            let register = hub
                .peer
                .domain
                .register(vec![7u8; 8])
                .access(Access::REMOTE);
            let register = match key {
                Some(key) => register.auth_key(hub.vector.auth_key(key).unwrap()),
                None => register,
            };
            register.now().unwrap()
        };
        let (of_one, of_all) = (region(Some(one)), region(None));
        let peers = [(ONE, Some(one)), (TWO, Some(two)), (b"", None)];
        // Opened together, so that no two have the same port.
        let peers = peers.map(|(bytes, key)| (bytes, key, with_key(&net, bytes)));
        for (bytes, key, (_, other)) in &peers {
            let (bytes, key) = (*bytes, *key);
            let to_other = hub.insert(other, key);
            talk(&hub.endpoint, to_other, other).await;
            let to_hub = other.insert(hub.endpoint.local_addr()).unwrap();
            let read = other.read(vec![0; 8], to_hub, of_all.remote()).await;
            assert_eq!(read.unwrap().1, [7; 8]);
            let read = other.read(vec![0; 8], to_hub, of_one.remote()).await;
            match bytes == ONE {
                true => assert_eq!(read.unwrap().1, [7; 8]),
                false => {
                    let why = Error::from(read.unwrap_err()).refusal();
                    assert_eq!(why, Some(Refusal::UnknownKey), "as if it were not there");
                }
            }
        }
        let without = with_keys_of_vectors(&net, Caps::empty());
        let limited = without
            .domain
            .register(vec![0u8; 8])
            .auth_key(AuthKey::new(ONE));
        let why = Error::from(limited.now().unwrap_err());
        assert_eq!(why.kind(), ErrorKind::NoCapability);
        assert!(why.to_string().contains("DIRECTED_RECV"), "{why}");
    });
}

/// fi_av(3): "authorization key fi_addr_t's can be used to restrict incoming messages to only
/// endpoint addresses within the authorization key.": receives that are posted before their
/// message, and after it, tagged and not.
#[test]
fn a_receive_takes_messages_of_the_peers_of_one_key() {
    on_every_backend(|net| async move {
        let hub = hub(&net, Caps::DIRECTED_RECV);
        let ([one, two], here) = (hub.keys, &hub.endpoint);
        let peer = |bytes, key| {
            let (peer, other) = with_key(&net, bytes);
            hub.insert(&other, Some(key));
            let to_hub = other.insert(here.local_addr()).unwrap();
            (peer, other, to_hub)
        };
        let (_a, a, from_a) = peer(ONE, one);
        let (_b, b, from_b) = peer(ONE, one);
        let (_c, c, from_c) = peer(TWO, two);
        // Before the message: the oldest that takes it has it.
        let of_two = here.recv(vec![0; 1]).from_key(two).post().unwrap();
        let of_one = here.recv(vec![0; 1]).from_key(one).post().unwrap();
        let of_any = here.recv(vec![0; 1]).post().unwrap();
        a.send("a", from_a).await.unwrap();
        assert_eq!(of_one.await.unwrap().1, b"a");
        b.send("b", from_b).await.unwrap();
        assert_eq!(of_any.await.unwrap().1, b"b");
        c.send("c", from_c).await.unwrap();
        assert_eq!(of_two.await.unwrap().1, b"c");
        // After it: it passes older messages of other keys. What is sent last comes last.
        for (other, to_hub, text) in [(&a, from_a, "x"), (&c, from_c, "y"), (&b, from_b, "z")] {
            other.send_tagged(text, to_hub, 7).await.unwrap();
            other.send(text, to_hub).await.unwrap();
            here.recv(vec![0; 1]).await.unwrap();
        }
        let seen = here.peek_tagged(7).from_key(two).await.unwrap();
        assert_eq!(seen.len, 1);
        let tagged = |ignore| here.recv_tagged(vec![0; 1], 7).ignore(ignore);
        assert_eq!(tagged(0).from_key(two).await.unwrap().1, b"y");
        assert!(here.peek_tagged(7).from_key(two).await.is_err());
        assert_eq!(tagged(0).from_key(one).await.unwrap().1, b"x");
        assert_eq!(tagged(!0).from_key(one).await.unwrap().1, b"z");
        // What cannot be.
        let both = here
            .recv(vec![0; 1])
            .from(here.insert(a.local_addr()).unwrap());
        let refused = Error::from(both.from_key(one).post().unwrap_err());
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let third = AuthKey::new(&b"a third key"[..]);
        let third = hub.vector.insert_auth_key(third).unwrap();
        let refused = Error::from(here.recv(vec![0; 1]).from_key(third).post().unwrap_err());
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    });
    on(Backend::Loopback, |net| async move {
        let hub = hub(&net, Caps::empty());
        let receive = hub.endpoint.recv(vec![0; 1]).from_key(hub.keys[0]);
        let refused = Error::from(receive.post().unwrap_err());
        assert_eq!(refused.kind(), ErrorKind::NoCapability);
    });
}

/// fi_av(3): "When endpoints or memory regions are enabled, they are configured with address vector
/// authorization keys at that point in time. Later authorization key insertions will not propagate
/// to already enabled endpoints and memory regions."
#[test]
fn keys_inserted_later_are_not_an_open_endpoints() {
    on_every_backend(|net| async move {
        let hub = hub(&net, Caps::empty());
        let (_peer, other) = with_key(&net, b"a third key");
        let third = AuthKey::new(&b"a third key"[..]);
        let third = hub.vector.insert_auth_key(third).unwrap();
        let to_other = hub.insert(&other, Some(third));
        let to_hub = other.insert(hub.endpoint.local_addr()).unwrap();
        let late = send(&hub.endpoint, to_other).await;
        refused(late, &[ErrorKind::NotAuthorized]);
        let late = send(&other, to_hub).await;
        refused(
            late,
            &[ErrorKind::NotAuthorized, ErrorKind::ConnectionRefused],
        );
        let next = opened(&hub.peer, &hub.vector);
        talk(&next, to_other, &other).await;
    });
}

/// A connection is the peer's by the key it was made with: when its address is inserted with
/// another, or came in before it was inserted at all, nothing more goes over it.
#[test]
fn a_peer_that_is_inserted_with_another_key_has_to_prove_that() {
    on_every_backend(|net| async move {
        let hub = hub(&net, Caps::empty());
        let [one, two] = hub.keys;
        let (_peer, other) = with_key(&net, ONE);
        let to_hub = other.insert(hub.endpoint.local_addr()).unwrap();
        talk(&other, to_hub, &hub.endpoint).await;
        let to_other = hub.insert(&other, Some(two));
        refused(
            send(&hub.endpoint, to_other).await,
            &[ErrorKind::NotAuthorized, ErrorKind::ConnectionRefused],
        );
        hub.vector.remove(to_other).unwrap();
        let to_other = hub.insert(&other, Some(one));
        talk(&hub.endpoint, to_other, &other).await;
        talk(&other, to_hub, &hub.endpoint).await;
    });
}

/// fi_av(3): "If the address being removed came from `fi_av_insert_auth_key`, the address will only
/// be removed if all endpoints, which have been enabled against the corresponding authorization
/// key, have been closed. If all endpoints are not closed, -FI_EBUSY will be returned."
#[test]
fn a_key_stays_in_the_vector_while_endpoints_or_addresses_have_it() {
    on(Backend::Loopback, |net| async move {
        let hub = hub(&net, Caps::empty());
        let [one, two] = hub.keys;
        assert_eq!(hub.vector.auth_key(one).unwrap(), AuthKey::new(ONE));
        let again = hub.vector.insert_auth_key(AuthKey::new(ONE)).unwrap();
        assert_eq!(again, one, "it is there already");
        let busy = hub.vector.remove_auth_key(one).unwrap_err();
        assert!(
            busy.is_busy() && busy.to_string().contains("EndpointId"),
            "{busy}"
        );
        let to_other = hub.insert(&hub.endpoint, Some(two));
        hub.endpoint.shutdown().await.unwrap();
        drop(hub.endpoint);
        hub.vector.remove_auth_key(one).unwrap();
        let busy = hub.vector.remove_auth_key(two).unwrap_err();
        assert!(
            busy.is_busy() && busy.to_string().contains("1 addresses"),
            "{busy}"
        );
        hub.vector.remove(to_other).unwrap();
        hub.vector.remove_auth_key(two).unwrap();
        for gone in hub.keys {
            let unknown = hub.vector.remove_auth_key(gone).unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
            let insert = hub.vector.insert(([127, 0, 0, 1], 9).into());
            let unknown = insert.auth_key(gone).now().unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
            assert!(hub.vector.auth_key(gone).is_err());
        }
    });
}

/// fi_domain(3): `fi_domain_attr.max_ep_auth_key`, structure field: "The maximum number of
/// authorization keys which can be supported per connectionless endpoint."
#[test]
fn an_endpoint_has_so_many_keys_and_no_more() {
    on(Backend::Loopback, |net| async move {
        let hub = hub(&net, Caps::empty());
        assert_eq!(
            hub.peer.domain.info().domain.max_ep_auth_key,
            EP_AUTH_KEY_MAX
        );
        for number in 2..EP_AUTH_KEY_MAX {
            let key = AuthKey::new(number.to_le_bytes());
            hub.vector.insert_auth_key(key).unwrap();
        }
        let full = opened(&hub.peer, &hub.vector);
        let (_peer, other) = with_key(&net, TWO);
        let to_full = other.insert(full.local_addr()).unwrap();
        talk(&other, to_full, &full).await;
        let one_more = AuthKey::new(&b"one more"[..]);
        hub.vector.insert_auth_key(one_more).unwrap();
        let builder = hub.peer.domain.rdm_endpoint().address_vector(&hub.vector);
        let beyond = builder.open().unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::LimitReached);
        assert!(
            beyond.to_string().contains("max_ep_auth_key is 64"),
            "{beyond}"
        );
    });
}

/// fi_av(3): "This requires the domain to be opened with `FI_AV_AUTH_KEY`."
/// fi_domain(3): "If domain auth_key_size is set to the value FI_AV_AUTH_KEY, auth_key must be
/// NULL.": which the type has no bytes for.
#[test]
fn keys_of_address_vectors_are_refused_where_there_are_none() {
    on(Backend::Loopback, |net| async move {
        let (plain, _) = with_key(&net, b"");
        let vector = plain.domain.address_vector().open().unwrap();
        let keyed = with_keys_of_vectors(&net, Caps::empty());
        let name = format!("keys-{}", std::process::id());
        let named = keyed.domain.address_vector().name(name).open().unwrap();
        for vector in [&vector, &named] {
            let refused = vector.insert_auth_key(AuthKey::new(ONE)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
        }
        let of_vector = AuthKey::of_address_vector();
        assert_eq!(of_vector.len(), 0);
        let own = keyed.domain.address_vector().open().unwrap();
        for key in [of_vector.clone(), AuthKey::new([])] {
            let refused = own.insert_auth_key(key).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
        // A region and an endpoint of a domain that has none.
        let region = plain
            .domain
            .register(vec![0u8; 8])
            .auth_key(of_vector.clone());
        let refused = Error::from(region.now().unwrap_err());
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        let endpoint = plain.domain.rdm_endpoint().auth_key(of_vector);
        assert_eq!(endpoint.open().unwrap_err().kind(), ErrorKind::Unsupported);
        // What has no address vector, and what cannot prove a key.
        let connected = keyed.domain.endpoint().open().unwrap_err();
        assert_eq!(connected.kind(), ErrorKind::Unsupported);
        own.insert_auth_key(AuthKey::new(ONE)).unwrap();
        let plain = keyed.domain.rdm_endpoint().address_vector(&own);
        let refused = plain.extension(false).open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    });
}
