//! What a domain offers is what can be opened.

use crate::common::peers::{bytes_of, peer_with};
use crate::common::{on_each_at_once, on_every_backend};
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{
    Caps, EndpointType, Error, ErrorKind, Hints, domain::DomainBind, info::DomainHints,
    info::MrMode,
};

/// A peer whose domain has what these hints ask for, and no more.
fn peer(net: &Net, set: impl FnOnce(DomainHints) -> DomainHints) -> Peer {
    limited(net, Hints::new().domain(set))
}

fn limited(net: &Net, hints: Hints) -> Peer {
    let fabric = net.fabric_with(hints).unwrap();
    let events = fabric.event_queue().open().unwrap();
    let domain = fabric.domain().limit().open().unwrap();
    Peer {
        fabric,
        domain,
        events,
    }
}

/// The refusal of one object more than there are.
#[track_caller]
fn assert_full<T>(refused: Result<T, impl Into<Error>>, attribute: &str, count: usize) {
    let Err(error) = refused else {
        panic!("one more than {attribute}")
    };
    let error = error.into();
    assert_eq!(error.kind(), ErrorKind::LimitReached, "{error}");
    let words = format!("{attribute} is {count}");
    assert!(error.to_string().contains(&words), "{error}");
}

/// fi_domain(3): "The total number of endpoints supported by the domain, relative to any specified
/// or default endpoint attributes."
/// fi_domain(3): "The endpoint count is the number of addressable endpoints supported by the
/// provider."
/// fi_domain(3): "Domain attributes reflect the limitations and capabilities of the underlying
/// hardware and/or software provider."
/// `DomainBuilder::limit`: what was asked for can be opened, the one beyond is refused with the
/// count, and who closes one makes room.
#[test]
fn one_object_more_than_the_domain_offers_is_refused() {
    on_every_backend(|net| async move {
        let one = peer(&net, |it| it.ep_cnt(3).cq_cnt(2).cntr_cnt(1).mr_cnt(2));
        let (domain, attr) = (&one.domain, &one.domain.info().domain);
        assert_eq!((attr.ep_cnt, attr.cq_cnt), (3, 2));
        assert_eq!((attr.cntr_cnt, attr.mr_cnt), (1, 2));
        // Whatever their kind; the queue that an endpoint has of itself is part of it.
        let vector = domain.address_vector().open().unwrap();
        let msg = domain.endpoint().open().unwrap();
        let _rdm = one.rdm_endpoint().unwrap();
        let dgram = || {
            let builder = domain.dgram_endpoint().address_vector(&vector);
            builder.bind(crate::common::peers::any()).open()
        };
        let last = dgram().unwrap();
        assert_full(domain.endpoint().open(), "ep_cnt", 3);
        assert_full(one.rdm_endpoint(), "ep_cnt", 3);
        assert_full(dgram(), "ep_cnt", 3);
        drop(msg);
        let _again = domain.endpoint().open().unwrap();
        assert_full(dgram(), "ep_cnt", 3);
        drop(last);

        let queues = [(); 2].map(|()| domain.completion_queue().open().unwrap());
        assert_full(domain.completion_queue().open(), "cq_cnt", 2);
        drop(queues);
        let queue = domain.completion_queue().size(1).open().unwrap();
        queue.close().await.unwrap();
        let _two = [(); 2].map(|()| domain.completion_queue().open().unwrap());

        let counter = domain.counter().unwrap();
        assert_full(domain.counter(), "cntr_cnt", 1);
        drop(counter);
        domain.counter().unwrap();

        let register = || domain.register(vec![0u8; 8]).now();
        let (first, _second) = (register().unwrap(), register().unwrap());
        let refused = register();
        let failed = refused.unwrap_err();
        let (error, buffers) = failed.into_parts();
        assert_eq!(buffers.map(|it| it.len()), Some(8));
        assert_full(Err::<(), _>(error), "mr_cnt", 2);
        first.deregister().await.unwrap();
        register().unwrap();
    });
}

/// An endpoint has a context for each side on which it has something to do.
#[test]
fn contexts_are_counted_by_the_sides_that_have_something_to_do() {
    on_each_at_once(|net| async move {
        let both = peer(&net, |it| it.tx_ctx_cnt(1).rx_ctx_cnt(2));
        let _endpoint = both.domain.endpoint().open().unwrap();
        assert_full(both.domain.endpoint().open(), "tx_ctx_cnt", 1);
        let both = peer(&net, |it| it.rx_ctx_cnt(1));
        let _endpoint = both.domain.endpoint().open().unwrap();
        assert_full(both.domain.endpoint().open(), "rx_ctx_cnt", 1);
        let hints = Hints::new().endpoint(EndpointType::Msg);
        let hints = hints.caps(Caps::MSG | Caps::RECV);
        let hints = hints.domain(|it| it.tx_ctx_cnt(1).rx_ctx_cnt(3));
        let receiver = limited(&net, hints);
        let endpoints = [(); 3].map(|()| receiver.domain.endpoint().open().unwrap());
        assert_full(receiver.domain.endpoint().open(), "rx_ctx_cnt", 3);
        drop(endpoints);
        receiver.domain.endpoint().open().unwrap();
    });
}

/// fi_domain(3): "The optimal number of completion queues supported by the domain"
/// fi_domain(3): "The optimal number of completion counters supported by the domain."
/// fi_domain(3): "The optimal number of memory regions supported by the domain."
/// fi_domain(3): "The number of outbound command queues optimally supported by the provider."
/// fi_domain(3): "The number of inbound processing queues optimally supported by the provider."
/// fi_domain(3): "Applications which allocate more transmit contexts than this value will end up
/// sharing underlying resources."
/// fi_domain(3): "Applications which allocate more receive contexts than this value will end up
/// sharing underlying resources."
/// Of each there are more than was asked for, and all work: by the one driver of the domain. The
/// total number of endpoints remains a limit.
#[test]
fn what_goes_beyond_an_optimal_count_shares_what_there_is() {
    on_every_backend(|net| async move {
        let hints = Hints::new().domain(|it| {
            let it = it.cq_cnt(1).cntr_cnt(1).mr_cnt(1);
            it.tx_ctx_cnt(1).rx_ctx_cnt(1).ep_cnt(3)
        });
        let one = peer_with(&net, hints, DomainBind::empty());
        let other = net.peer().unwrap();
        let mut all = Vec::new();
        for number in 0..3u8 {
            let queue = one.domain.completion_queue().open().unwrap();
            let counter = one.domain.counter().unwrap();
            let region = one.domain.register(vec![0u8; 8]).await.unwrap();
            let endpoint = one.domain.endpoint().completion_queue(&queue);
            let endpoint = endpoint.receive_counter(&counter).open().unwrap();
            let far = other.domain.endpoint().open().unwrap();
            connect_endpoints(&far, &endpoint, &one.fabric)
                .await
                .unwrap();
            endpoint.recv(vec![0; 1]).queue(1).await.unwrap();
            far.send(vec![number]).await.unwrap();
            let received = queue.next().await.unwrap();
            assert_eq!((received.len, counter.read()), (1, 1));
            let written = far.write(vec![number; 8], region.remote());
            written.delivery_complete().await.unwrap();
            assert_eq!(bytes_of(&region), [number; 8]);
            all.push((queue, counter, region, endpoint, far));
        }
        assert_eq!(one.domain.progress_shards(), 1);
        assert_full(one.domain.endpoint().open(), "ep_cnt", 3);
    });
}

/// fi_domain(3): "The optimal number of memory regions supported by the domain, or endpoint if the
/// mr_mode FI_MR_ENDPOINT bit has been set."
/// `DomainBuilder::limit`: with the mode "`mr_cnt` limits the regions that are bound to each
/// endpoint", of whatever kind, and without it those of the domain.
#[test]
fn regions_are_counted_by_endpoint_where_they_belong_to_endpoints() {
    on_each_at_once(|net| async move {
        let by_endpoint = |it: DomainHints| it.mr_cnt(2).required_mr_mode(MrMode::ENDPOINT);
        let one = peer(&net, by_endpoint);
        let domain = &one.domain;
        let (msg, rdm) = (
            domain.endpoint().open().unwrap(),
            one.rdm_endpoint().unwrap(),
        );
        let shared = domain.receive_context().open().unwrap();
        let region = || domain.register(vec![0u8; 8]).now().unwrap();
        let mut bound = Vec::new();
        for _ in 0..2 {
            let (of_msg, of_rdm, of_shared) = (region(), region(), region());
            of_msg.bind_endpoint(&msg).unwrap();
            of_msg.bind_endpoint(&msg).unwrap(); // Once more is no other region.
            of_rdm.bind_endpoint(&rdm).unwrap();
            of_shared.bind_endpoint(&shared).unwrap();
            bound.push([of_msg, of_rdm, of_shared]);
        }
        let another = region();
        assert_full(another.bind_endpoint(&msg), "mr_cnt for each endpoint", 2);
        assert_full(another.bind_endpoint(&rdm), "mr_cnt for each endpoint", 2);
        assert_full(
            another.bind_endpoint(&shared),
            "mr_cnt for each endpoint",
            2,
        );
        drop(bound.pop());
        another.bind_endpoint(&msg).unwrap();
        let next = domain.endpoint().open().unwrap();
        bound[0][0].bind_endpoint(&next).unwrap(); // Each has its own count.
    });
}

/// fi_domain(3): "the provider only supports communication between processes that execute on the
/// same node", without the capability.
/// fi_domain(3): `FI_REMOTE_COMM`: what moves bytes within the process reaches no other machine.
#[test]
fn a_domain_in_the_process_has_no_remote_communication() {
    on_each_at_once(|net| async move {
        let domain = net.peer().unwrap().domain;
        let info = domain.info();
        let is_in_process = domain.backend() == tokio_fabric::Backend::Loopback;
        let is_remote = !is_in_process && !info.interface.loopback;
        assert_eq!(info.caps.contains(Caps::REMOTE_COMM), is_remote);
        assert_eq!(info.domain.caps.contains(Caps::REMOTE_COMM), is_remote);
        assert!(info.caps.contains(Caps::LOCAL_COMM));
    });
}
