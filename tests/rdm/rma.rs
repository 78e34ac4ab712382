//! Remote memory access over connectionless endpoints (`fi_rma(3)`).

use crate::common::on_every_backend;
use crate::common::peers::{bytes_of, open_region, peer_with};
use tokio_fabric::{
    EndpointType, ErrorKind, Hints, UserContext,
    cq::CompletionFlags,
    domain::DomainBind,
    ep::OnRefusal,
    error::{OperationKind, Phase, Refusal},
    info::MrMode,
};

/// fi_rma(3): reads and writes, vectors of both, to several peers at once.
#[test]
fn regions_of_several_peers_are_written_and_read() {
    on_every_backend(|net| async move {
        let initiator = net.peer().unwrap();
        let x = initiator.rdm_endpoint().unwrap();
        for round in 0..3u8 {
            let target = net.peer().unwrap();
            let y = target.rdm_endpoint().unwrap();
            let to_y = x.insert(y.local_addr()).unwrap();
            let region = open_region(&target, vec![0u8; 300_000]).await;
            let remote = region.remote();
            for len in [0usize, 1, 5_000, 300_000] {
                let bytes: Vec<u8> = (0..len).map(|at| at as u8 ^ round).collect();
                let range = remote.slice(..len as u64).unwrap();
                let write = x.write(bytes.clone(), to_y, range);
                assert_eq!(write.await.unwrap(), (len, bytes.clone()));
                let read = x.read(vec![0u8; len], to_y, range);
                assert_eq!(read.await.unwrap(), (len, bytes));
            }
            let halves = [remote.slice(..3).unwrap(), remote.slice(10..12).unwrap()];
            x.write([vec![8u8; 1], vec![9u8; 4]], to_y, halves)
                .await
                .unwrap();
            let (_, both) = x
                .read([vec![0u8; 2], vec![0u8; 3]], to_y, halves)
                .await
                .unwrap();
            assert_eq!(both.concat(), [8, 9, 9, 9, 9]);
            // Both ways over the one connection.
            let to_x = y.insert(x.local_addr()).unwrap();
            let mine = open_region(&initiator, vec![round; 8]).await;
            assert_eq!(
                y.read(vec![0u8; 8], to_x, mine.remote()).await.unwrap().1,
                [round; 8]
            );
        }
    });
}

/// fi_domain(3): "Applications may include a small message with a data transfer that is placed
/// directly into a remote completion queue"
#[test]
fn a_write_may_carry_data_for_the_peers_queue() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let region = open_region(&b.peer, vec![0u8; 8]).await;
        let written = a.endpoint.write(vec![3u8; 8], a.other, region.remote());
        written.imm(77).await.unwrap();
        let completion = b.endpoint.receive_queue().next().await.unwrap();
        completion.result.as_ref().unwrap();
        let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE;
        assert_eq!(completion.flags, flags | CompletionFlags::REMOTE_CQ_DATA);
        assert_eq!(
            (completion.context, completion.operation),
            (UserContext(0), OperationKind::RemoteWrite)
        );
        assert_eq!(
            (completion.endpoint, completion.len, completion.data),
            (b.endpoint.id(), 8, Some(77))
        );
        assert_eq!(bytes_of(&region), [3; 8]);
        a.endpoint
            .inject_write(&[4; 8], a.other, region.remote())
            .unwrap();
        a.endpoint
            .inject_write_data(&[5; 2], a.other, 78, region.remote())
            .unwrap();
        let completion = b.endpoint.receive_queue().next().await.unwrap();
        assert_eq!((completion.len, completion.data), (2, Some(78)));
        assert_eq!(bytes_of(&region), [5, 5, 4, 4, 4, 4, 4, 4]);
        let refused = a.endpoint.inject_write(&[0; 129], a.other, region.remote());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::TooLarge);
    });
}

/// fi_domain(3), `Unmatched RMA`: the operation ends with its reason, and so does the connection;
/// the endpoint goes on, with that peer over a new one, and with others all the time.
#[test]
fn a_refused_operation_ends_its_connection_or_not() {
    on_every_backend(|net| async move {
        for on_refusal in [OnRefusal::Disconnect, OnRefusal::Continue { limit: 10 }] {
            let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
            let open = |peer: &tokio_fabric::testing::Peer| {
                let builder = peer.domain.rdm_endpoint().on_refusal(on_refusal);
                builder
                    .listen_at(crate::common::peers::any())
                    .open()
                    .unwrap()
            };
            let (x, y) = (open(&one), open(&two));
            let to_y = x.insert(y.local_addr()).unwrap();
            let region = open_region(&two, vec![1u8; 8]).await;
            let mut wrong = region.remote();
            wrong.key ^= 1 << 40;
            for _ in 0..3 {
                let refused = x.read(vec![0u8; 8], to_y, wrong).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::AccessDenied);
                assert_eq!(refused.error().refusal(), Some(Refusal::UnknownKey));
                let after = async {
                    loop {
                        match x.read(vec![0u8; 8], to_y, region.remote()).await {
                            Ok((_, bytes)) => break bytes,
                            // Posted in the moment in which the connection ended, if it did.
                            Err(failed) => {
                                assert_eq!(on_refusal, OnRefusal::Disconnect, "{failed:?}");
                                assert_eq!(failed.kind(), ErrorKind::Canceled);
                            }
                        }
                    }
                };
                assert_eq!(after.await, [1; 8]);
            }
        }
    });
}

/// fi_mr(3), FI_MR_ENDPOINT: a region that is bound to a connectionless endpoint is reached through
/// it, by all its peers.
#[test]
fn a_region_may_be_bound_to_the_endpoint() {
    on_every_backend(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ENDPOINT));
        let target = crate::common::peers::peer_with(&net, hints, DomainBind::empty());
        let (y, other) = (
            target.rdm_endpoint().unwrap(),
            target.rdm_endpoint().unwrap(),
        );
        let region = open_region(&target, vec![6u8; 8]).await;
        region.bind_endpoint(&y).unwrap();
        region.enable().unwrap();
        for _ in 0..2 {
            let initiator = net.peer().unwrap();
            let x = initiator.rdm_endpoint().unwrap();
            let to_y = x.insert(y.local_addr()).unwrap();
            let to_other = x.insert(other.local_addr()).unwrap();
            let remote = region.remote();
            assert_eq!(x.read(vec![0u8; 8], to_y, remote).await.unwrap().1, [6; 8]);
            let refused = x.read(vec![0u8; 8], to_other, remote).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AccessDenied);
        }
    });
}

/// A flood of messages without receives stops none of the same peer's RMA, and none of other
/// peers' messages.
#[test]
fn rma_passes_messages_without_receives() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let third = net.peer().unwrap();
        let z = third.rdm_endpoint().unwrap();
        let (x, y) = (&a.endpoint, &b.endpoint);
        let to_y = z.insert(y.local_addr()).unwrap();
        let from_z = y.insert(z.local_addr()).unwrap();
        let region = open_region(&b.peer, vec![2u8; 64]).await;
        let flood: Vec<_> = (0..200usize)
            .map(|number| {
                let bytes = vec![number as u8; [8, 10_000, 70_000][number % 3]];
                x.send(bytes, a.other).post().unwrap()
            })
            .collect();
        for round in 0..20u8 {
            let range = region.remote().slice(..8).unwrap();
            x.write(vec![round; 8], a.other, range).await.unwrap();
            assert_eq!(
                x.read(vec![0u8; 8], a.other, range).await.unwrap().1,
                [round; 8]
            );
            z.send(vec![round], to_y).await.unwrap();
            let (received, bytes) = y.recv(vec![0u8; 1]).from(from_z).await.unwrap();
            assert_eq!((received.len, bytes), (1, vec![round]));
            assert!(y.unexpected_bytes() <= 1 << 20);
        }
        assert_eq!(flood[199].phase(), Phase::Queued, "held back here");
        for number in 0..200usize {
            let (received, bytes) = y.recv(vec![0u8; 70_000]).await.unwrap();
            assert_eq!(received.len, [8, 10_000, 70_000][number % 3]);
            assert_eq!(bytes[received.len - 1], number as u8);
        }
        for sent in flood {
            sent.await.unwrap();
        }
    });
}

/// Of connectionless endpoints as of connected ones.
/// fi_domain(3): `FI_MR_LOCAL`, mode bit.
/// fi_domain(3): "Data buffers used in send and receive operations and as the source buffer for RMA
/// and atomic operations must be registered"
/// fi_mr(3): "applications must register all data buffers that will be accessed by the local
/// hardware"
#[test]
fn with_local_all_buffers_are_registered() {
    on_every_backend(|net| async move {
        let hints = Hints::new().endpoint(EndpointType::Rdm);
        let hints = hints.domain(|domain| domain.required_mr_mode(MrMode::LOCAL));
        let strict = peer_with(&net, hints, DomainBind::empty());
        let other = net.peer().unwrap();
        let (x, y) = (
            strict.rdm_endpoint().unwrap(),
            other.rdm_endpoint().unwrap(),
        );
        let to_y = x.insert(y.local_addr()).unwrap();
        let to_x = y.insert(x.local_addr()).unwrap();
        let far = open_region(&other, vec![0u8; 8]).await;
        let plain = || vec![3u8; 8];
        for refused in [
            x.send(plain(), to_y).await.map(drop),
            x.send_tagged(plain(), to_y, 5).await.map(drop),
            x.recv(plain()).await.map(drop),
            x.recv_tagged(plain(), 5).await.map(drop),
            x.write(plain(), to_y, far.remote()).await.map(drop),
            x.read(plain(), to_y, far.remote()).await.map(drop),
        ] {
            let failed = refused.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::InvalidArgument);
            assert!(failed.to_string().contains("FI_MR_LOCAL"), "{failed}");
            assert_eq!(failed.into_parts().1, Some(plain()));
        }
        let region = open_region(&strict, vec![4u8; 8]).await;
        let slice = || region.slice(..).unwrap();
        x.send(slice(), to_y).await.unwrap();
        assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().1, [4; 8]);
        x.send_tagged(slice(), to_y, 5).await.unwrap();
        assert_eq!(y.recv_tagged(vec![0u8; 8], 5).await.unwrap().1, [4; 8]);
        let write = x.write(slice(), to_y, far.remote());
        write.delivery_complete().await.unwrap();
        assert_eq!(bytes_of(&far), [4; 8]);
        far.write_at(0, &[5; 8]).unwrap();
        x.read(slice(), to_y, far.remote()).await.unwrap();
        assert_eq!(bytes_of(&region), [5; 8]);
        y.send(vec![6u8; 8], to_x).await.unwrap();
        x.recv(slice()).await.unwrap();
        assert_eq!(bytes_of(&region), [6; 8]);
        y.send_tagged(vec![7u8; 8], to_x, 5).await.unwrap();
        x.recv_tagged(slice(), 5).await.unwrap();
        assert_eq!(bytes_of(&region), [7; 8]);
    });
}

/// Of connectionless endpoints as of connected ones.
/// fi_domain(3): `FI_MR_RAW`, mode bit.
/// fi_domain(3): "The provider requires additional setup as part of their memory registration
/// process."
/// fi_domain(3): "This mode is required by providers that use a memory key that is larger than
/// 64-bits."
#[test]
fn with_raw_a_region_is_reached_by_its_mapped_raw_key() {
    on_every_backend(|net| async move {
        let hints = Hints::new().endpoint(EndpointType::Rdm);
        let hints = hints.domain(|domain| domain.required_mr_mode(MrMode::RAW));
        let (one, two) = (
            net.peer().unwrap(),
            peer_with(&net, hints, DomainBind::empty()),
        );
        let (x, y) = (one.rdm_endpoint().unwrap(), two.rdm_endpoint().unwrap());
        let to_y = x.insert(y.local_addr()).unwrap();
        let region = open_region(&two, vec![1u8; 100]).await;
        let (base_addr, raw) = region.raw_key();
        let mapped = one.domain.map_raw(base_addr, &raw).unwrap();
        let remote = mapped.remote(100);
        let write = x.write(vec![2u8; 10], to_y, remote.slice(10..20).unwrap());
        write.delivery_complete().await.unwrap();
        assert_eq!(
            bytes_of(&region)[9..21],
            [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]
        );
        let read = x.read(vec![0u8; 2], to_y, remote.slice(9..11).unwrap());
        assert_eq!(read.await.unwrap().1, [1, 2]);
        // Without the mapping there is no key to use.
        let read = x.read(vec![0u8; 8], to_y, region.remote());
        assert_eq!(read.await.unwrap_err().kind(), ErrorKind::KeyRejected);
    });
}
