//! Datagram endpoints (`FI_EP_DGRAM`): what fi_endpoint(3), fi_msg(3), fi_cq(3) and the resource
//! management table of fi_domain(3) say of them. Multicast is in `dgram_multicast.rs`.

mod closing;
mod local;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::{backends, on, on_every_backend, on_sockets_at_once};
use tokio_fabric::testing::Net;
use tokio_fabric::{
    Access, AddressVector, Backend, Caps, DgramEndpoint, Domain, EndpointType, ErrorKind, Hints,
    av::FabricAddr, cq::CompletionFlags, dgram::DgramEndpointBuilder, error::OperationKind,
    info::ResourceManagement,
};

const HERE: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);
const PATIENCE: Duration = Duration::from_secs(20);

fn hints() -> Hints {
    Hints::new()
        .endpoint(EndpointType::Dgram)
        .interface("lo")
        .source(HERE.into())
}

/// One side: a domain for datagrams, and its peers.
struct DgramDomain {
    domain: Domain,
    peers: AddressVector,
}

impl DgramDomain {
    fn new(net: &Net) -> DgramDomain {
        DgramDomain::with(net, hints())
    }

    fn with(net: &Net, hints: Hints) -> DgramDomain {
        let domain = net.fabric_with(hints).unwrap().domain().open().unwrap();
        let peers = domain.address_vector().open().unwrap();
        DgramDomain { domain, peers }
    }

    fn builder(&self) -> DgramEndpointBuilder {
        self.domain.dgram_endpoint().address_vector(&self.peers)
    }

    fn open(&self) -> DgramEndpoint {
        self.builder().open().unwrap()
    }

    fn knows(&self, peer: &DgramEndpoint) -> FabricAddr {
        self.peers.insert(peer.local_addr()).now().unwrap()
    }
}

/// Two endpoints of two domains, and what the first calls the second.
fn pair(
    net: &Net,
) -> (
    DgramDomain,
    DgramEndpoint,
    DgramDomain,
    DgramEndpoint,
    FabricAddr,
) {
    let (a, b) = (DgramDomain::new(net), DgramDomain::new(net));
    let (from, to) = (a.open(), b.open());
    let name = a.knows(&to);
    (a, from, b, to, name)
}

/// Two domains with resource management enabled, and two with it disabled, which changes nothing.
fn with_and_without_resource_management(net: &Net) -> [[DgramDomain; 2]; 2] {
    [ResourceManagement::Enabled, ResourceManagement::Disabled].map(|setting| {
        [(); 2].map(|()| {
            DgramDomain::with(net, hints().domain(|domain| domain.resource_mgmt(setting)))
        })
    })
}

/// Waits for what the other side must come to, without a bell to wait for.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let waited = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let limited = tokio::time::timeout(PATIENCE, waited).await;
    limited.unwrap_or_else(|_| panic!("never: {what}"));
}

/// fi_getinfo(3): "Requests that the endpoint return source addressing data as part of its
/// completion data."
#[test]
fn a_message_has_its_source() {
    on_every_backend(|net| async move {
        let (_a, from, b, to, name) = pair(&net);
        let receive = to.recv(vec![0; 64]).post().unwrap();
        assert_eq!(from.send("hello", name).await.unwrap().0, 5);
        let (got, bytes) = receive.await.unwrap();
        assert_eq!((got.len, &bytes[..5]), (5, b"hello".as_slice()));
        assert_eq!((got.data, got.source), (None, None), "it was not inserted");
        assert_eq!(got.source_addr, Some(from.local_addr()));

        // An answer, to what is known now; and the next message has a name.
        let answer_to = b.peers.insert(got.source_addr.unwrap()).now().unwrap();
        let answer = from.recv(vec![0; 64]).post().unwrap();
        to.inject(b"well", answer_to).unwrap();
        assert_eq!(answer.await.unwrap().0.len, 4);
        from.send("again", name).await.unwrap();
        let (got, _) = to.recv(vec![0; 64]).await.unwrap();
        assert_eq!(got.source, Some(answer_to));
    });
}

/// fi_av(3), `FI_AV_USER_ID`: the application's own name of a peer comes with its messages.
#[test]
fn a_message_has_the_users_name_of_its_source() {
    on_every_backend(|net| async move {
        let a = DgramDomain::new(&net);
        let b = DgramDomain::with(&net, hints().domain(|domain| domain.caps(Caps::AV_USER_ID)));
        let from = a.open();
        let named = b.domain.address_vector().user_ids().open().unwrap();
        let queue = b.domain.completion_queue().open().unwrap();
        let to = (b.domain.dgram_endpoint())
            .address_vector(&named)
            .receive_queue(&queue)
            .open()
            .unwrap();
        let name = a.knows(&to);
        let source = named.insert(from.local_addr()).user_id(77).now().unwrap();
        from.inject(b"one", name).unwrap();
        let (got, _) = to.recv(vec![0; 8]).await.unwrap();
        assert_eq!((got.source, got.source_user_id), (Some(source), Some(77)));
        to.recv(vec![0; 8])
            .queue(5u64)
            .post()
            .unwrap()
            .await
            .unwrap();
        from.inject(b"two", name).unwrap();
        let completion = queue.next().await.unwrap();
        assert_eq!(completion.source(), Some(source));
        assert_eq!(completion.source_user_id(), Some(77));
        assert_eq!(completion.source_addr(), Some(from.local_addr()));
    });
}

/// fi_endpoint(3): "Message boundaries are maintained, but the maximum message size may be limited
/// to the fabric MTU." Messages of the size in Info can be sent, and not a byte more. fi_domain(3):
/// "For datagram endpoints, failed sends will result in the message being dropped."
#[test]
fn a_message_is_at_most_a_packet_of_the_interface() {
    on_every_backend(|net| async move {
        let (a, from, _b, to, name) = pair(&net);
        let max = from.max_message_size();
        let info = a.domain.info();
        assert_eq!(info.endpoint.max_msg_size, max as u64);
        assert_eq!(
            info.interface.mtu.map(|mtu| mtu.min(65_535) - 28),
            Some(max as u32)
        );
        for len in [0, 1, max] {
            let receive = to.recv(vec![0; max]).post().unwrap();
            let sent: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let (_, sent) = from.send(sent, name).await.unwrap();
            let (got, bytes) = receive.await.unwrap();
            assert_eq!(got.len, len);
            assert!(bytes[..len] == sent[..]);
        }
        let failed = from.send(vec![1; max + 1], name).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::TooLarge);
        let (_, buffer) = failed.into_parts();
        assert_eq!(buffer.unwrap().len(), max + 1, "buffers come back");
        let refused = from.inject(&vec![1; max + 1], name).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        from.send("next", name).await.unwrap();
        assert_eq!(
            to.recv(vec![0; max]).await.unwrap().0.len,
            4,
            "the long ones are dropped"
        );
    });
}

/// fi_endpoint(3): "an endpoint using FI_PROTO_UDP will be able to communicate with a remote peer
/// that is using Berkeley SOCK_DGRAM sockets using IPPROTO_UDP." A datagram is the bare payload.
#[test]
fn a_plain_udp_socket_is_a_peer() {
    on_sockets_at_once(|net| async move {
        let side = DgramDomain::new(&net);
        let ours = side.open();
        let plain = UdpSocket::bind(HERE).unwrap();
        plain.set_read_timeout(Some(PATIENCE)).unwrap();
        plain.send_to(b"from a socket", ours.local_addr()).unwrap();
        let (got, bytes) = ours.recv(vec![0; 64]).await.unwrap();
        assert_eq!(&bytes[..got.len], b"from a socket");
        assert_eq!(got.source_addr, Some(plain.local_addr().unwrap()));
        let name = side
            .peers
            .insert(plain.local_addr().unwrap())
            .now()
            .unwrap();
        ours.send(vec![b"to ".to_vec(), b"a socket".to_vec()], name)
            .await
            .unwrap();
        let mut bytes = [0; 64];
        let (len, from) = plain.recv_from(&mut bytes).unwrap();
        assert_eq!(
            (&bytes[..len], from),
            (b"to a socket".as_slice(), ours.local_addr())
        );
    });
}

/// fi_domain(3), the resource management table: `No Rx Buffer, DGRAM EP-with RM: dropped` and
/// `Target EP, DGRAM EP-with RM: dropped`; "if the target EP queues are unable to accept incoming
/// messages, received messages will be dropped." They are counted, and the sender gets no error.
/// fi_domain(3): "For datagram endpoints, failed sends will result in the message being dropped."
/// Without resource management too: `No Rx Buffer, DGRAM EP-no RM: dropped` and
/// `Target EP, DGRAM EP-no RM: dropped`.
#[test]
fn without_a_receive_datagrams_are_dropped_and_counted() {
    on_every_backend(|net| async move {
        for [a, b] in with_and_without_resource_management(&net) {
            let from = a.open();
            let to = b.builder().unexpected_bytes(0).open().unwrap();
            let name = a.knows(&to);
            for sent in 1..=20 {
                from.send(vec![1; 32], name).await.unwrap();
                until("the drop is counted", || to.dropped() == sent).await;
            }
            let receive = to.recv(vec![0; 64]).post().unwrap();
            from.send("heard", name).await.unwrap();
            assert_eq!(receive.await.unwrap().0.len, 5);
            assert_eq!((to.dropped(), to.unexpected_bytes()), (20, 0));
        }
    });
}

/// fi_domain(3): "if the target EP queues are unable to accept incoming messages, received messages
/// will be dropped." The first ones are kept, as many as the budget allows.
#[test]
fn datagrams_are_kept_within_the_budget() {
    on_every_backend(|net| async move {
        let (a, b) = (DgramDomain::new(&net), DgramDomain::new(&net));
        let from = a.open();
        let budget = 4 * (100 + 128);
        let to = b.builder().unexpected_bytes(budget).open().unwrap();
        let name = a.knows(&to);
        for number in 0..10u8 {
            from.send(vec![number; 100], name).await.unwrap();
        }
        until("the rest is dropped", || to.dropped() == 6).await;
        assert_eq!(to.unexpected_bytes(), budget);
        for number in 0..4u8 {
            let (got, bytes) = to.recv(vec![0; 100]).await.unwrap();
            assert_eq!((got.len, bytes[0]), (100, number));
        }
        assert_eq!(to.unexpected_bytes(), 0);
    });
}

/// fi_domain(3), the resource management table: `Rx Buf Overrun, DGRAM EP-with RM: truncate or
/// drop`. We truncate, and report both lengths; "olen specifies the amount of data that did not fit".
/// Without resource management too: `Rx Buf Overrun, DGRAM EP-no RM: truncate or drop`.
#[test]
fn a_datagram_that_is_too_long_is_truncated() {
    on_every_backend(|net| async move {
        for [a, b] in with_and_without_resource_management(&net) {
            let (from, to) = (a.open(), b.open());
            let name = a.knows(&to);
            for early in [false, true] {
                let receive = (!early).then(|| to.recv(vec![0; 4]).post().unwrap());
                from.send("longer than that", name).await.unwrap();
                let failed = match receive {
                    Some(receive) => receive.await.unwrap_err(),
                    None => {
                        until("it is kept", || to.unexpected_bytes() > 0).await;
                        to.recv(vec![0; 4]).await.unwrap_err()
                    }
                };
                assert_eq!(failed.kind(), ErrorKind::Truncated);
                assert_eq!((failed.received_len(), failed.overflow_len()), (4, 12));
                assert_eq!(failed.into_parts().1.unwrap(), b"long");
            }
            from.send("fine", name).await.unwrap();
            assert_eq!(
                to.recv(vec![0; 4]).await.unwrap().1,
                b"fine",
                "the endpoint lives"
            );
        }
    });
}

/// fi_domain(3), the resource management table: `Rx Ctx, DGRAM EP-with RM: EAGAIN`. A post that may
/// wait has its turn when there is room.
/// Without resource management too, instead of `Rx Ctx, DGRAM EP-no RM: undefined error`.
#[test]
fn a_full_receive_context_is_again() {
    on_every_backend(|net| async move {
        for [a, b] in with_and_without_resource_management(&net) {
            let from = a.open();
            let to = b.builder().receive_size(1).open().unwrap();
            let name = a.knows(&to);
            let first = to.recv(vec![0; 8]).post().unwrap();
            let refused = to.recv(vec![0; 8]).try_post().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Again);
            assert_eq!(refused.into_parts().1.unwrap().len(), 8);
            let second = to.recv(vec![0; 8]).post().unwrap();
            from.send("1", name).await.unwrap();
            from.send("2", name).await.unwrap();
            assert_eq!(first.await.unwrap().1[0], b'1');
            assert_eq!(second.await.unwrap().1[0], b'2');
        }
    });
}

/// fi_domain(3), the resource management table: `Tx Ctx, DGRAM EP-with RM: EAGAIN`.
/// Without resource management too, instead of `Tx Ctx, DGRAM EP-no RM: undefined error`.
#[test]
fn a_full_transmit_context_is_again() {
    for backend in backends() {
        // On one thread the driver does not run in between.
        on(backend, |net| async move {
            for [a, b] in with_and_without_resource_management(&net) {
                let from = a.builder().transmit_size(2).open().unwrap();
                let to = b.open();
                let name = a.knows(&to);
                let held: Vec<_> = (0..2)
                    .map(|_| from.send("held", name).more().post().unwrap())
                    .collect();
                let refused = from.send("no room", name).try_post().unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Again);
                assert_eq!(
                    from.inject(b"nor", name).unwrap_err().kind(),
                    ErrorKind::Again
                );
                let waits = from.send("waits", name).post().unwrap();
                for held in held {
                    held.await.unwrap();
                }
                waits.await.unwrap();
                for len in [4, 4, 5] {
                    assert_eq!(to.recv(vec![0; 8]).await.unwrap().0.len, len);
                }
            }
        });
    }
}

/// fi_domain(3), the resource management table: `Tx CQ, DGRAM EP-with RM: EAGAIN` and `Rx CQ, DGRAM
/// EP-with RM: EAGAIN`.
/// Without resource management too, instead of `Tx CQ, DGRAM EP-no RM: undefined error` and
/// `Rx CQ, DGRAM EP-no RM: undefined error`.
#[test]
fn a_full_completion_queue_is_again() {
    on_every_backend(|net| async move {
        for [a, b] in with_and_without_resource_management(&net) {
            let (out, into) = (
                a.domain.completion_queue().size(1).open().unwrap(),
                b.domain.completion_queue().size(1).open().unwrap(),
            );
            let from = a.builder().transmit_queue(&out).open().unwrap();
            let to = b.builder().receive_queue(&into).open().unwrap();
            let name = a.knows(&to);
            to.recv(vec![0; 8]).queue(1u64).try_post().unwrap();
            let refused = to.recv(vec![0; 8]).queue(2u64).try_post().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Again);
            let waits = to.recv(vec![0; 8]).queue(2u64).post().unwrap();
            from.send("first", name).queue(3u64).try_post().unwrap();
            let refused = from
                .send("second", name)
                .queue(4u64)
                .try_post()
                .unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Again);

            let sent = out.next().await.unwrap();
            assert_eq!((sent.context.0, sent.operation), (3, OperationKind::Send));
            assert_eq!(sent.flags, CompletionFlags::SEND | CompletionFlags::MSG);
            from.send("second", name).queue(4u64).try_post().unwrap();
            let mut got = into.next().await.unwrap();
            assert_eq!((got.context.0, got.len), (1, 5));
            assert_eq!(got.flags, CompletionFlags::RECV | CompletionFlags::MSG);
            assert_eq!(got.source_addr(), Some(from.local_addr()));
            let buffer: Vec<u8> = got.take_buffer().unwrap().downcast().unwrap();
            assert_eq!(&buffer[..5], b"first");
            waits.await.unwrap();
            assert_eq!(into.next().await.unwrap().context.0, 2);
        }
    });
}

/// fi_getinfo(3): "Requests that the communication endpoint use the source address of an incoming
/// message when matching it with a receive buffer." The first posted of those that fit has it.
#[test]
fn a_directed_receive_takes_its_peers_messages_only() {
    on_every_backend(|net| async move {
        let (a, b, c) = (
            DgramDomain::new(&net),
            DgramDomain::new(&net),
            DgramDomain::new(&net),
        );
        let (one, other, to) = (a.open(), b.open(), c.open());
        let (from_one, from_other) = (c.knows(&one), c.knows(&other));
        let (one_to, other_to) = (a.knows(&to), b.knows(&to));
        let of_other = to.recv(vec![0; 8]).from(from_other).post().unwrap();
        let of_anyone = to.recv(vec![0; 8]).post().unwrap();
        let of_one = to.recv(vec![0; 8]).from(from_one).post().unwrap();
        one.send("1a", one_to).await.unwrap();
        assert_eq!(of_anyone.await.unwrap().0.source, Some(from_one));
        one.send("1b", one_to).await.unwrap();
        let (got, bytes) = of_one.await.unwrap();
        assert_eq!(
            (got.source, &bytes[..2]),
            (Some(from_one), b"1b".as_slice())
        );
        one.send("1c", one_to).await.unwrap();
        until("it is kept", || to.unexpected_bytes() > 0).await;
        other.send("2a", other_to).await.unwrap();
        assert_eq!(&of_other.await.unwrap().1[..2], b"2a");
        // Early ones are found by their source too.
        other.send("2b", other_to).await.unwrap();
        until("both are kept", || to.unexpected_bytes() == 2 * (2 + 128)).await;
        let (got, bytes) = to.recv(vec![0; 8]).from(from_other).await.unwrap();
        assert_eq!(
            (got.source, &bytes[..2]),
            (Some(from_other), b"2b".as_slice())
        );
        assert_eq!(&to.recv(vec![0; 8]).await.unwrap().1[..2], b"1c");
    });
}

/// fi_getinfo(3): "If this capability is not set, then the src_addr parameter for msg and tagged
/// receive operations is ignored." Here it is not ignored but refused, as an error of the caller's.
#[test]
fn without_the_capability_a_directed_receive_is_refused() {
    on(Backend::Epoll, |net| async move {
        let fabric = net.fabric_with(hints().caps(Caps::MSG)).unwrap();
        let domain = fabric.domain().open().unwrap();
        assert!(!domain.info().caps.contains(Caps::DIRECTED_RECV));
        let peers = domain.address_vector().open().unwrap();
        let endpoint = domain
            .dgram_endpoint()
            .address_vector(&peers)
            .open()
            .unwrap();
        let name = peers.insert(endpoint.local_addr()).now().unwrap();
        let refused = endpoint.recv(vec![0; 8]).from(name).post().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoCapability);
    });
}

/// fi_endpoint(3): "Message boundaries are maintained": a burst, gathered into few system calls,
/// comes as it was posted; on one machine nothing overtakes.
#[test]
fn a_burst_keeps_its_boundaries() {
    on_every_backend(|net| async move {
        let (_a, from, _b, to, name) = pair(&net);
        // Of one length, which the system may be given as one buffer to cut up; but for the ends.
        let lens = [40, 40, 40, 17, 40, 0, 40, 40, 41, 41, 5, 5, 5, 1, 1];
        let sends: Vec<_> = (lens.iter().enumerate())
            .map(|(at, &len)| from.send(vec![at as u8; len], name).post().unwrap())
            .collect();
        for send in sends {
            send.await.unwrap();
        }
        for (at, &len) in lens.iter().enumerate() {
            let (got, bytes) = to.recv(vec![0; 64]).await.unwrap();
            assert_eq!(got.len, len, "number {at}");
            assert!(bytes[..len].iter().all(|byte| usize::from(*byte) == at));
        }
        let receives: Vec<_> = (0..100)
            .map(|_| to.recv(vec![0; 256]).post().unwrap())
            .collect();
        let sends: Vec<_> = (0..100u8)
            .map(|number| {
                let bytes = vec![vec![number; 3], vec![number; usize::from(number)]];
                from.send(bytes, name).post().unwrap()
            })
            .collect();
        for (number, send) in sends.into_iter().enumerate() {
            assert_eq!(send.await.unwrap().0, number + 3);
        }
        for (number, receive) in receives.into_iter().enumerate() {
            let (got, bytes) = receive.await.unwrap();
            assert_eq!(got.len, number + 3);
            assert!(
                bytes[..got.len]
                    .iter()
                    .all(|byte| usize::from(*byte) == number)
            );
        }
    });
}

/// fi_msg(3), `fi_inject`; fi_cntr(3): counters count what is injected, and errors apart.
#[test]
fn counters_count_each_direction() {
    on_every_backend(|net| async move {
        let (a, b) = (DgramDomain::new(&net), DgramDomain::new(&net));
        let (sends, receives) = (a.domain.counter().unwrap(), b.domain.counter().unwrap());
        let from = a.builder().send_counter(&sends).open().unwrap();
        let to = b.builder().receive_counter(&receives).open().unwrap();
        let name = a.knows(&to);
        from.inject(b"1", name).unwrap();
        from.send("22", name).await.unwrap();
        until("both have left", || sends.read() == 2).await;
        to.recv(vec![0; 8]).await.unwrap();
        to.recv(vec![0; 1]).await.unwrap_err();
        assert_eq!((receives.read(), receives.read_error()), (1, 1));
        assert_eq!(sends.read_error(), 0);
    });
}

/// Errors of the network are no errors of the endpoint: that one peer does not listen is not
/// reported, and the next datagram goes out.
#[test]
fn a_peer_that_is_not_there_breaks_nothing() {
    on_every_backend(|net| async move {
        let (a, from, _b, to, name) = pair(&net);
        let gone = a.open();
        let absent = a.knows(&gone);
        gone.shutdown().await.unwrap();
        drop(gone);
        for _ in 0..5 {
            from.send("into the void", absent).await.unwrap();
            from.send("heard", name).await.unwrap();
            assert_eq!(to.recv(vec![0; 8]).await.unwrap().0.len, 5);
        }
    });
}

/// fi_av(3): an address that was removed is refused, and so is one that this socket cannot reach.
#[test]
fn what_is_no_peer_is_refused() {
    on_every_backend(|net| async move {
        let (a, from, _b, _to, name) = pair(&net);
        a.peers.remove(name).unwrap();
        let refused = from.send("gone", name).post().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        // A socket of IPv4 reaches no IPv6 address, and the domain's vector takes none.
        let six: SocketAddr = "[::1]:9".parse().unwrap();
        let refused = a.peers.insert(six).now().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    });
}

/// Registered memory serves as well as any: from one region into another.
#[test]
fn slices_of_regions_are_sent_and_received_into() {
    on_every_backend(|net| async move {
        let (a, from, b, to, name) = pair(&net);
        let source = a
            .domain
            .register(vec![7u8; 64])
            .access(Access::SEND)
            .await
            .unwrap();
        let target = b
            .domain
            .register(vec![0u8; 64])
            .access(Access::RECV)
            .await
            .unwrap();
        let receive = to.recv(target.slice(16..32).unwrap()).post().unwrap();
        from.send(source.slice(0..16).unwrap(), name).await.unwrap();
        assert_eq!(receive.await.unwrap().0.len, 16);
        let mut bytes = [0; 64];
        target.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..16] == [0; 16] && bytes[16..32] == [7; 16] && bytes[32..] == [0; 32]);
    });
}

/// What cannot be opened says why.
#[test]
fn what_is_wrong_with_an_endpoint_is_reported() {
    on(Backend::Epoll, |net| async move {
        let side = DgramDomain::new(&net);
        let without = side.domain.dgram_endpoint().open().unwrap_err();
        assert!(without.to_string().contains("address_vector"), "{without}");
        for refused in [
            side.builder().transmit_size(0).open(),
            side.builder().receive_size(1 << 20).open(),
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        let taken = side.open();
        let refused = side.builder().bind(taken.local_addr()).open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddressInUse);
    });
}
