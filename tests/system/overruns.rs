//! What is full, what does not fit and what may not be touched, with resource management enabled
//! and disabled (RESOURCE MANAGEMENT of `fi_domain(3)`): the library protects its queues either
//! way. Datagrams are in `tests/rdm/dgram.rs`.

use crate::common::on_every_backend;
use crate::common::peers::{any, open_region, peer_with};
use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{
    CompletionQueue, EndpointType, Error, ErrorKind, Failed, Hints, RdmEndpoint, RemoteRegion,
    UserContext, av::FabricAddr, domain::DomainBind, error::Refusal, info::ResourceManagement,
    rdm::RdmEndpointBuilder,
};

const SETTINGS: [ResourceManagement; 2] =
    [ResourceManagement::Enabled, ResourceManagement::Disabled];

/// Too long to be kept by a connectionless receiver: it stays with the sender until a receive asks
/// for it.
const ANNOUNCED: usize = 200_000;

fn peers(net: &Net, endpoint: EndpointType, setting: ResourceManagement) -> [Peer; 2] {
    [(); 2].map(|()| {
        let hints = Hints::new().endpoint(endpoint);
        let hints = hints.domain(|domain| domain.resource_mgmt(setting));
        peer_with(net, hints, DomainBind::empty())
    })
}

/// Two connectionless endpoints, the first built so, and what each calls the other.
fn connectionless(
    [a, b]: &[Peer; 2],
    build: impl Fn(RdmEndpointBuilder) -> RdmEndpointBuilder,
) -> (RdmEndpoint, RdmEndpoint, FabricAddr, FabricAddr) {
    let x = build(a.domain.rdm_endpoint()).listen_at(any()).open();
    let (x, y) = (x.unwrap(), b.rdm_endpoint().unwrap());
    let to_y = x.insert(y.local_addr()).unwrap();
    let to_x = y.insert(x.local_addr()).unwrap();
    (x, y, to_y, to_x)
}

/// Posts until there is no place left, which is an error that loses nothing.
fn fill<T, B>(places: usize, post: impl Fn() -> Result<T, Failed<B>>) -> Vec<T> {
    let posted = (0..places).map(|_| post().map_err(Failed::into_error).unwrap());
    let posted = posted.collect();
    let refused = post().err().expect("no place is left").into_error();
    assert_eq!((refused.kind(), refused.fi_errno()), (ErrorKind::Again, 11));
    posted
}

/// The next completion, which is of an operation that went well.
async fn next(queue: &CompletionQueue) -> UserContext {
    let completion = queue.next().await.unwrap();
    completion.result.unwrap();
    completion.context
}

/// fi_domain(3): `Tx Ctx, RDM/MSG EP-no RM: undefined error`, cell of the resource management
/// table: no such error, here as with RM.
/// fi_domain(3): `Tx Ctx, RDM/MSG EP-with RM: EAGAIN`
/// fi_domain(3): `Rx Ctx, RDM/MSG EP-no RM: undefined error`
/// fi_domain(3): `Rx Ctx, RDM/MSG EP-with RM: EAGAIN`
/// fi_domain(3): "If RM is disabled, an undefined error (provider specific) will occur."
/// fi_domain(3): "Such errors should be considered fatal to the context, and applications must take
/// steps to avoid queue overruns."
/// fi_domain(3): "By disabling resource management, an application assumes all responsibility for
/// preventing queue and buffer overruns"
/// fi_domain(3): "The application is responsible for resource protection."
/// fi_domain(3): "However, such protection is not guaranteed." Here it is.
/// fi_domain(3): `FI_RM_DISABLED`, enumeration value.
#[test]
fn full_contexts_of_connected_endpoints_are_again_whatever_was_asked_for() {
    on_every_backend(|net| async move {
        for setting in SETTINGS {
            let [a, b] = peers(&net, EndpointType::Msg, setting);
            let x = a.domain.endpoint().transmit_size(2).receive_size(2);
            let x = x.open().unwrap();
            let y = b.domain.endpoint().unexpected_bytes(0).open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            let receives = fill(2, || x.recv(vec![0u8; 4]).try_post());
            let sends = fill(2, || x.send(vec![1u8; 4]).delivery_complete().try_post());
            // The contexts go on, and nothing is lost.
            for send in sends {
                assert_eq!(y.recv(vec![0u8; 4]).await.unwrap().1, [1; 4]);
                send.await.unwrap();
            }
            for receive in receives {
                y.send(vec![2u8; 4]).await.unwrap();
                assert_eq!(receive.await.unwrap().1, [2; 4]);
            }
        }
    });
}

/// fi_domain(3): `Tx Ctx, RDM/MSG EP-no RM: undefined error`, cell of the resource management
/// table: no such error, here as with RM.
/// fi_domain(3): `Tx Ctx, RDM/MSG EP-with RM: EAGAIN`
/// fi_domain(3): `Rx Ctx, RDM/MSG EP-no RM: undefined error`
/// fi_domain(3): `Rx Ctx, RDM/MSG EP-with RM: EAGAIN`
/// fi_domain(3): "If RM is disabled, an undefined error (provider specific) will occur."
/// fi_domain(3): "Such errors should be considered fatal to the context, and applications must take
/// steps to avoid queue overruns."
/// fi_domain(3): "By disabling resource management, an application assumes all responsibility for
/// preventing queue and buffer overruns"
/// fi_domain(3): "The application is responsible for resource protection."
/// fi_domain(3): "However, such protection is not guaranteed." Here it is.
#[test]
fn full_contexts_of_connectionless_endpoints_are_again_whatever_was_asked_for() {
    on_every_backend(|net| async move {
        for setting in SETTINGS {
            let peers = peers(&net, EndpointType::Rdm, setting);
            let (x, y, to_y, to_x) =
                connectionless(&peers, |builder| builder.transmit_size(2).receive_size(2));
            let receives = fill(2, || x.recv(vec![0u8; 4]).try_post());
            let sends = fill(2, || x.send(vec![1u8; ANNOUNCED], to_y).try_post());
            for send in sends {
                let (received, _) = y.recv(vec![0u8; ANNOUNCED]).await.unwrap();
                assert_eq!(received.len, ANNOUNCED);
                send.await.unwrap();
            }
            for receive in receives {
                y.send(vec![2u8; 4], to_x).await.unwrap();
                assert_eq!(receive.await.unwrap().1, [2; 4]);
            }
        }
    });
}

/// fi_domain(3): `Tx CQ, RDM/MSG EP-no RM: undefined error`, cell of the resource management table:
/// no such error, here as with RM.
/// fi_domain(3): `Tx CQ, RDM/MSG EP-with RM: EAGAIN`
/// fi_domain(3): `Rx CQ, RDM/MSG EP-no RM: undefined error`
/// fi_domain(3): `Rx CQ, RDM/MSG EP-with RM: EAGAIN`
/// fi_domain(3): "When RM is disabled, applications must take care to ensure that completion queues
/// do not get overrun."
/// fi_domain(3): "an undefined, but fatal, error will occur affecting all endpoints associated with
/// the CQ."
/// fi_domain(3): "internally retrying requests (which will be hidden from the application)."
#[test]
fn full_queues_of_connected_endpoints_are_again_whatever_was_asked_for() {
    on_every_backend(|net| async move {
        for setting in SETTINGS {
            let [a, b] = peers(&net, EndpointType::Msg, setting);
            let open = || a.domain.completion_queue().size(1).open().unwrap();
            let (out, into) = (open(), open());
            let x = a
                .domain
                .endpoint()
                .transmit_queue(&out)
                .receive_queue(&into);
            let (x, y) = (x.open().unwrap(), b.domain.endpoint().open().unwrap());
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            for round in 0..3u8 {
                fill(1, || x.recv(vec![0u8; 1]).queue(1u64).try_post());
                fill(1, || x.send(vec![round]).queue(2u64).try_post());
                assert_eq!(y.recv(vec![0u8; 1]).await.unwrap().1, [round]);
                y.send(vec![round]).await.unwrap();
                let ended = (next(&into).await, next(&out).await);
                assert_eq!(ended, (UserContext(1), UserContext(2)));
            }
            // A completion that was not asked for waits for its place, and so does its write.
            let region = open_region(&a, vec![0u8; 8]).await;
            let writes = (0..4u64).map(|number| {
                let write = y.write(vec![1u8; 8], region.remote()).imm(number);
                write.post().unwrap()
            });
            let writes: Vec<_> = writes.collect();
            for number in 0..4 {
                assert_eq!(into.next().await.unwrap().data, Some(number));
            }
            for write in writes {
                write.await.unwrap();
            }
        }
    });
}

/// fi_domain(3): `Tx CQ, RDM/MSG EP-no RM: undefined error`, cell of the resource management table:
/// no such error, here as with RM.
/// fi_domain(3): `Tx CQ, RDM/MSG EP-with RM: EAGAIN`
/// fi_domain(3): `Rx CQ, RDM/MSG EP-no RM: undefined error`
/// fi_domain(3): `Rx CQ, RDM/MSG EP-with RM: EAGAIN`
/// fi_domain(3): "When RM is disabled, applications must take care to ensure that completion queues
/// do not get overrun."
/// fi_domain(3): "an undefined, but fatal, error will occur affecting all endpoints associated with
/// the CQ."
#[test]
fn full_queues_of_connectionless_endpoints_are_again_whatever_was_asked_for() {
    on_every_backend(|net| async move {
        for setting in SETTINGS {
            let peers = peers(&net, EndpointType::Rdm, setting);
            let open = || peers[0].domain.completion_queue().size(1).open().unwrap();
            let (out, into) = (open(), open());
            let (x, y, to_y, to_x) = connectionless(&peers, |builder| {
                builder.transmit_queue(&out).receive_queue(&into)
            });
            for round in 0..3u8 {
                fill(1, || x.recv(vec![0u8; 1]).queue(1u64).try_post());
                fill(1, || x.send(vec![round], to_y).queue(2u64).try_post());
                assert_eq!(y.recv(vec![0u8; 1]).await.unwrap().1, [round]);
                y.send(vec![round], to_x).await.unwrap();
                let ended = (next(&into).await, next(&out).await);
                assert_eq!(ended, (UserContext(1), UserContext(2)));
            }
        }
    });
}

/// fi_domain(3): `Target EP, RDM/MSG EP-no RM: transmit error`, cell of the resource management
/// table: no such error, here as with RM.
/// fi_domain(3): `Target EP, RDM/MSG EP-with RM: retried`
/// fi_domain(3): `No Rx Buffer, RDM/MSG EP-no RM: transmit error`
/// fi_domain(3): `No Rx Buffer, RDM/MSG EP-with RM: retried`
/// fi_domain(3): "For reliable endpoints, if RM is disabled, the transmit operation will complete in
/// error."
/// fi_domain(3): "the target endpoint's receive queue, posted receive buffers (no Rx buffers), the
/// receive side completion queue"
#[test]
fn a_connected_endpoint_waits_for_its_targets_receives_and_queue() {
    on_every_backend(|net| async move {
        for setting in SETTINGS {
            let [a, b] = peers(&net, EndpointType::Msg, setting);
            let into = b.domain.completion_queue().size(1).open().unwrap();
            let y = b.domain.endpoint().receive_queue(&into).receive_size(1);
            let y = y.unexpected_bytes(0).open().unwrap();
            let x = a.domain.endpoint().open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            let sends: Vec<_> = (0..20u8)
                .map(|number| x.send(vec![number]).delivery_complete().post().unwrap())
                .collect();
            for number in 0..20u8 {
                y.recv(vec![0u8; 1]).queue(1u64).await.unwrap();
                let mut completion = into.next().await.unwrap();
                assert_eq!(completion.take_buffer().unwrap()[..], [number]);
            }
            for send in sends {
                send.await.unwrap();
            }
        }
    });
}

/// fi_domain(3): `Target EP, RDM/MSG EP-no RM: transmit error`, cell of the resource management
/// table: no such error, here as with RM.
/// fi_domain(3): `Target EP, RDM/MSG EP-with RM: retried`
/// fi_domain(3): `No Rx Buffer, RDM/MSG EP-no RM: transmit error`
/// fi_domain(3): `No Rx Buffer, RDM/MSG EP-with RM: retried`
/// fi_domain(3): "For reliable endpoints, if RM is disabled, the transmit operation will complete in
/// error."
/// fi_domain(3): "the target endpoint's receive queue, posted receive buffers (no Rx buffers), the
/// receive side completion queue"
#[test]
fn a_connectionless_endpoint_waits_for_its_targets_receives_and_queue() {
    on_every_backend(|net| async move {
        for setting in SETTINGS {
            let [a, b] = peers(&net, EndpointType::Rdm, setting);
            let into = a.domain.completion_queue().size(1).open().unwrap();
            // The first is the target here.
            let (y, x, _, to_y) = connectionless(&[a, b], |builder| {
                let builder = builder.receive_queue(&into).receive_size(1);
                builder.unexpected_bytes(1 << 10)
            });
            let length = |number: usize| {
                if number.is_multiple_of(5) {
                    ANNOUNCED
                } else {
                    500
                }
            };
            let sends: Vec<_> = (0..20)
                .map(|number| {
                    x.send(vec![number as u8; length(number)], to_y)
                        .post()
                        .unwrap()
                })
                .collect();
            for number in 0..20 {
                y.recv(vec![0u8; ANNOUNCED]).queue(1u64).await.unwrap();
                let mut completion = into.next().await.unwrap();
                assert_eq!(completion.len, length(number));
                let bytes = completion.take_buffer().unwrap();
                assert_eq!(bytes[length(number) - 1], number as u8);
            }
            for send in sends {
                send.await.unwrap();
            }
        }
    });
}

/// fi_domain(3): `Rx Buf Overrun, RDM/MSG EP-no RM: truncate or error`, cell of the resource
/// management table.
/// fi_domain(3): `Rx Buf Overrun, RDM/MSG EP-with RM: truncate or error`
/// fi_domain(3): "even if resource management is disabled, the provider implementation and protocol
/// may still provide some level of protection against overruns."
#[test]
fn connected_and_connectionless_endpoints_truncate_whatever_was_asked_for() {
    on_every_backend(|net| async move {
        for setting in SETTINGS {
            let truncated = |failed: Failed<Vec<u8>>| {
                assert_eq!(failed.kind(), ErrorKind::Truncated);
                assert_eq!((failed.received_len(), failed.overflow_len()), (4, 2));
                assert_eq!(failed.into_parts().1.unwrap(), b"what");
            };
            let [a, b] = peers(&net, EndpointType::Msg, setting);
            let (x, y) = connect(&a, &b).await.unwrap();
            // It is delivered, whatever of it there is room for.
            let sends = x.send("what's").delivery_complete().post().unwrap();
            truncated(y.recv(vec![0u8; 4]).await.unwrap_err());
            sends.await.unwrap();
            x.send("next").await.unwrap();
            assert_eq!(y.recv(vec![0u8; 4]).await.unwrap().1, b"next");

            let peers = peers(&net, EndpointType::Rdm, setting);
            let (x, y, to_y, _) = connectionless(&peers, |builder| builder);
            let sends = x.send("what's", to_y).delivery_complete().post().unwrap();
            truncated(y.recv(vec![0u8; 4]).await.unwrap_err());
            sends.await.unwrap();
            x.send("next", to_y).await.unwrap();
            assert_eq!(y.recv(vec![0u8; 4]).await.unwrap().1, b"next");
        }
    });
}

/// A key of no region, and a range that ends behind its region.
fn forbidden(remote: RemoteRegion) -> [(RemoteRegion, Refusal); 2] {
    let mut unmatched = remote;
    unmatched.key ^= 1 << 40;
    let overrun = RemoteRegion::new(1, remote.len, remote.key);
    [
        (unmatched, Refusal::UnknownKey),
        (overrun, Refusal::OutOfBounds),
    ]
}

fn assert_refused(error: Error, reason: Refusal) {
    assert_eq!(error.refusal(), Some(reason), "{error}");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
}

/// fi_domain(3): `Unmatched RMA, RDM/MSG EP-no RM: transmit error`, cell of the resource management
/// table.
/// fi_domain(3): `Unmatched RMA, RDM/MSG EP-with RM: transmit error`
/// fi_domain(3): `RMA Overrun, RDM/MSG EP-no RM: transmit error`
/// fi_domain(3): `RMA Overrun, RDM/MSG EP-with RM: transmit error`
/// fi_domain(3): "attempt to access outside of the target memory region will fail, resulting in a
/// transmit error."
#[test]
fn rma_of_connected_endpoints_that_meets_no_region_ends_the_connection() {
    on_every_backend(|net| async move {
        for setting in SETTINGS {
            let [a, b] = peers(&net, EndpointType::Msg, setting);
            let region = open_region(&b, vec![7u8; 64]).await;
            for (wrong, reason) in forbidden(region.remote()) {
                let (x, _y) = connect(&a, &b).await.unwrap();
                let write = x.write(vec![1u8; 64], wrong).await;
                assert_refused(write.unwrap_err().into_error(), reason);
                let (x, _y) = connect(&a, &b).await.unwrap();
                let bystander = x.recv(vec![0u8; 4]).post().unwrap();
                let read = x.read(vec![1u8; 64], wrong).await;
                assert_refused(read.unwrap_err().into_error(), reason);
                assert_eq!(bystander.await.unwrap_err().kind(), ErrorKind::Canceled);
                assert!(!x.is_connected());
            }
            let mut bytes = [0; 64];
            region.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [7; 64], "nothing was touched");
        }
    });
}

/// fi_domain(3): `Unmatched RMA, RDM/MSG EP-no RM: transmit error`, cell of the resource management
/// table.
/// fi_domain(3): `Unmatched RMA, RDM/MSG EP-with RM: transmit error`
/// fi_domain(3): `RMA Overrun, RDM/MSG EP-no RM: transmit error`
/// fi_domain(3): `RMA Overrun, RDM/MSG EP-with RM: transmit error`
/// fi_domain(3): "attempt to access outside of the target memory region will fail, resulting in a
/// transmit error."
/// fi_domain(3): "Any operations which have not already completed will fail and be discarded." Those
/// to that peer are; a receive for anybody goes on. The endpoint is not disabled (D18 of
/// docs/declined.md): the next operation to that peer makes the connection anew.
#[test]
fn rma_of_connectionless_endpoints_that_meets_no_region_leaves_the_endpoint_enabled() {
    on_every_backend(|net| async move {
        for setting in SETTINGS {
            let peers = peers(&net, EndpointType::Rdm, setting);
            let (x, y, to_y, to_x) = connectionless(&peers, |builder| builder);
            let bystander = x.recv(vec![0u8; 4]).post().unwrap();
            let other = peers[1].rdm_endpoint().unwrap();
            let to_other = x.insert(other.local_addr()).unwrap();
            let region = open_region(&peers[1], vec![7u8; 64]).await;
            for (wrong, reason) in forbidden(region.remote()) {
                for reads in [false, true] {
                    let refused = loop {
                        let ended = match reads {
                            true => x.read(vec![1u8; 64], to_y, wrong).await,
                            false => x.write(vec![1u8; 64], to_y, wrong).await,
                        };
                        match ended.unwrap_err() {
                            // Posted in the moment in which the connection ended.
                            failed if failed.kind() == ErrorKind::Canceled => {}
                            failed => break failed,
                        }
                    };
                    assert_refused(refused.into_error(), reason);
                    // Other peers are not concerned.
                    x.send("hello", to_other).await.unwrap();
                    assert_eq!(other.recv(vec![0u8; 5]).await.unwrap().0.len, 5);
                }
            }
            let bytes = loop {
                match x.read(vec![1u8; 64], to_y, region.remote()).await {
                    Ok((_, bytes)) => break bytes,
                    Err(failed) => assert_eq!(failed.kind(), ErrorKind::Canceled),
                }
            };
            assert_eq!(bytes, [7; 64], "nothing was touched");
            y.send("safe", to_x).await.unwrap();
            assert_eq!(bystander.await.unwrap().1, b"safe");
        }
    });
}

/// fi_domain(3): "the provider is not required to reserve an entry in the completion queue to handle
/// the case where the operation fails" It needs none: the failure goes to the operation's future.
/// fi_domain(3): "must ensure that there is sufficient space in the CQ to report failed operations."
/// fi_domain(3): "sizing the CQ to at least the same size as the endpoint queue(s) that are bound to
/// it."
#[test]
fn an_unqueued_operation_that_fails_takes_no_place_of_a_full_queue() {
    on_every_backend(|net| async move {
        let [a, b] = peers(&net, EndpointType::Msg, ResourceManagement::Enabled);
        let queue = a.domain.completion_queue().size(1).open().unwrap();
        let x = a.domain.endpoint().completion_queue(&queue).open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        x.send("in the queue").queue(1u64).try_post().unwrap();
        y.recv(vec![0u8; 16]).await.unwrap();
        let unqueued: Vec<_> = (0..3)
            .map(|_| x.recv(vec![0u8; 8]).post().unwrap())
            .collect();
        let region = open_region(&b, vec![7u8; 64]).await;
        let [(wrong, reason), _] = forbidden(region.remote());
        let read = x.read(vec![0u8; 64], wrong).await;
        assert_refused(read.unwrap_err().into_error(), reason);
        for receive in unqueued {
            receive.await.unwrap_err();
        }
        assert_eq!(next(&queue).await, UserContext(1));
        assert!(queue.is_empty(), "nothing else was reported there");
    });
}
