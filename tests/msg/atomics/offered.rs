//! Which atomic operations are offered, what their buffers may be, and what counts them.

use super::{first, scene};
use crate::common::peers::{peer_with, toward};
use crate::common::{on_each_at_once, on_every_backend};
use tokio_fabric::testing::{connect, connect_endpoints};
use tokio_fabric::{
    Access, Caps, EndpointType, Error, ErrorKind, Hints, RemoteRegion,
    domain::DomainBind,
    ep::OnRefusal,
    info::{AtomicOp, AtomicType, CompareOp, MrMode, MsgOrder},
    mr::{MrBind, MrFlags},
};

/// fi_mr(3): "Generates an event whenever a remote RMA write or atomic operation modifies the
/// memory region."
/// fi_endpoint(3): FI_REMOTE_READ counts "an RMA read, atomic fetch, or atomic compare operation",
/// FI_REMOTE_WRITE "an RMA write or base atomic operation".
#[test]
fn counters_of_endpoints_and_regions_count_them() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (writes, reads) = (a.domain.counter().unwrap(), a.domain.counter().unwrap());
        let x = (a.domain.endpoint())
            .on_refusal(OnRefusal::Continue { limit: 9 })
            .write_counter(&writes)
            .read_counter(&reads);
        let x = x.open().unwrap();
        let (written, read) = (b.domain.counter().unwrap(), b.domain.counter().unwrap());
        let y = (b.domain.endpoint())
            .on_refusal(OnRefusal::Continue { limit: 9 })
            .remote_write_counter(&written)
            .remote_read_counter(&read);
        let y = y.open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let registering = b.domain.register(vec![0u8; 64]).flags(MrFlags::RMA_EVENT);
        let region = registering.now().map_err(Error::from).unwrap();
        let (changed, looked_at) = (b.domain.counter().unwrap(), b.domain.counter().unwrap());
        region.bind_counter(&changed, MrBind::REMOTE_WRITE).unwrap();
        region
            .bind_counter(&looked_at, MrBind::REMOTE_READ)
            .unwrap();
        region.enable().unwrap();
        let word = first(&region, 8);
        x.atomic(AtomicOp::Sum, 1u64, word).await.unwrap();
        x.inject_atomic(AtomicOp::Sum, 1u64, word).unwrap();
        x.fetch_atomic(AtomicOp::Sum, 1u64, word).await.unwrap();
        x.compare_atomic(CompareOp::Swap, 3u64, 4u64, word)
            .await
            .unwrap();
        x.fetch_atomic(AtomicOp::Read, 0u64, word).await.unwrap();
        let bad = RemoteRegion::new(1, 8, region.key());
        x.atomic(AtomicOp::Sum, 1u64, bad).await.unwrap_err();
        x.fetch_atomic(AtomicOp::Sum, 1u64, bad).await.unwrap_err();
        assert_eq!(written.wait_for(2).await, Ok(2));
        assert_eq!(read.wait_for(3).await, Ok(3));
        assert_eq!(changed.wait_for(4).await, Ok(4));
        assert_eq!(looked_at.wait_for(3).await, Ok(3));
        let ours = [&writes, &reads].map(|it| (it.read(), it.read_error()));
        assert_eq!(ours, [(2, 1), (3, 1)]);
        let theirs = [&written, &read, &changed, &looked_at].map(|it| it.read());
        assert_eq!(theirs, [2, 3, 4, 3]);
    });
}

/// fi_mr(3): "used as the result buffer for RMA read and atomic operations on the initiator side."
/// fi_mr(3): "used as the source buffer for RMA write and atomic operations on the initiator side."
/// fi_domain(3): "Data buffers used in send and receive operations and as the source buffer for RMA
/// and atomic operations must be registered"
#[test]
fn operands_and_results_may_be_in_regions_and_must_with_local() {
    on_every_backend(|net| async move {
        let (_a, b, x, _y, region) = scene(&net).await;
        let word = first(&region, 8);
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::LOCAL));
        let local = peer_with(&net, hints, DomainBind::empty());
        let (z, _target) = connect(&local, &b).await.unwrap();
        for (peer, endpoint) in [(&_a, &x), (&local, &z)] {
            let register = |access| {
                let made = peer.domain.register(vec![0u8; 64]).access(access).now();
                made.map_err(Error::from).unwrap()
            };
            let (source, results) = (register(Access::WRITE), register(Access::READ));
            source.store(8, 5u64).unwrap();
            source.store(16, 6u64).unwrap();
            let operand = |at| source.slice(at..at + 8).unwrap().numbers_of::<u64>();
            let into = || results.slice(24..32).unwrap();
            region.store(0, 100u64).unwrap();
            endpoint
                .atomic(AtomicOp::Sum, operand(8), word)
                .await
                .unwrap();
            let fetch = endpoint.fetch_atomic(AtomicOp::Sum, operand(16), word);
            let slice = fetch.results_into(into()).await.unwrap();
            assert_eq!(
                (slice.offset(), results.load::<u64>(24).unwrap()),
                (24, 105)
            );
            region.store(0, 6u64).unwrap();
            let swap = endpoint.compare_atomic(CompareOp::Swap, operand(16), operand(8), word);
            swap.results_into(into()).await.unwrap();
            assert_eq!(results.load::<u64>(24).unwrap(), 6);
            assert_eq!(region.load::<u64>(0).unwrap(), 5);
            let read = endpoint.fetch_atomic(AtomicOp::Read, operand(8), word);
            read.results_into(into()).await.unwrap();
            assert_eq!(results.load::<u64>(24).unwrap(), 5);
            // Each within its rights.
            let wrong = results.slice(..8).unwrap().numbers_of::<u64>();
            let error = endpoint
                .atomic(AtomicOp::Sum, wrong, word)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessDenied);
            let fetch = endpoint.fetch_atomic(AtomicOp::Sum, operand(8), word);
            let error = fetch
                .results_into(source.slice(..8).unwrap())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessDenied);
            endpoint.inject_atomic(AtomicOp::Write, 1u64, word).unwrap();
            let read = endpoint.fetch_atomic(AtomicOp::Read, operand(8), word);
            read.results_into(into()).await.unwrap();
            assert_eq!(results.load::<u64>(24).unwrap(), 1, "copied, it passes");
        }
        let values = z.atomic(AtomicOp::Sum, 1u64, word).await.unwrap_err();
        assert_eq!(values.kind(), ErrorKind::InvalidArgument);
        let results = local.domain.register(vec![0u8; 8]).access(Access::READ);
        let results = results.now().map_err(Error::from).unwrap();
        let into = || results.slice(..).unwrap();
        let fetch = z.fetch_atomic(AtomicOp::Sum, 1u64, word);
        let values = fetch.results_into(into()).await.unwrap_err();
        assert_eq!(values.kind(), ErrorKind::InvalidArgument, "operands too");
        let region_of_z = local.domain.register(vec![0u8; 8]).access(Access::WRITE);
        let source = region_of_z.now().map_err(Error::from).unwrap();
        let operand = source.slice(..).unwrap().numbers_of::<u64>();
        let swap = z.compare_atomic(CompareOp::Swap, 1u64, operand, word);
        let values = swap.results_into(into()).await.unwrap_err();
        assert_eq!(
            values.kind(),
            ErrorKind::InvalidArgument,
            "what is compared too"
        );
        let operand = source.slice(..).unwrap().numbers_of::<u64>();
        let values = z
            .fetch_atomic(AtomicOp::Sum, operand, word)
            .await
            .unwrap_err();
        assert_eq!(
            values.kind(),
            ErrorKind::InvalidArgument,
            "results are to be in a region"
        );
    });
}

/// fi_atomic(3): "indicate which operations the local provider supports"; "The requested operation
/// and data type must also be valid for the given provider."
#[test]
fn queries_return_what_is_offered_and_nothing_else_is_done() {
    on_each_at_once(|net| async move {
        let (a, _b, x, _y, region) = scene(&net).await;
        let domain = &a.domain;
        for (datatype, size) in [
            (AtomicType::Int8, 1),
            (AtomicType::Uint16, 2),
            (AtomicType::Float, 4),
            (AtomicType::Double, 8),
        ] {
            for attr in [
                domain.atomic_attr(datatype, AtomicOp::Sum),
                domain.fetch_atomic_attr(datatype, AtomicOp::Read),
                domain.compare_atomic_attr(datatype, CompareOp::SwapLess),
            ] {
                let attr = attr.unwrap();
                assert_eq!((attr.size, attr.count), (size, 4096 / size));
            }
        }
        let mut refused = vec![
            domain.atomic_attr(AtomicType::Uint64, AtomicOp::Read),
            domain.atomic_attr(AtomicType::Float, AtomicOp::BitOr),
            domain.fetch_atomic_attr(AtomicType::Double, AtomicOp::BitXor),
            domain.compare_atomic_attr(AtomicType::Double, CompareOp::SwapMasked),
        ];
        for wide in [
            AtomicType::FloatComplex,
            AtomicType::DoubleComplex,
            AtomicType::LongDouble,
            AtomicType::LongDoubleComplex,
            AtomicType::Int128,
            AtomicType::Uint128,
        ] {
            refused.push(domain.atomic_attr(wide, AtomicOp::Write));
            refused.push(domain.compare_atomic_attr(wide, CompareOp::Swap));
        }
        for refused in refused {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
        }
        let bits = x.atomic(AtomicOp::BitOr, 1.0f64, first(&region, 8)).await;
        assert_eq!(bits.unwrap_err().kind(), ErrorKind::Unsupported);
        let reads = x.atomic(AtomicOp::Read, 1u64, first(&region, 8)).await;
        assert_eq!(reads.unwrap_err().kind(), ErrorKind::Unsupported);
        // Who did not ask for them has none.
        let hints = Hints::new().caps(Caps::MSG | Caps::RMA);
        let (without, _target, z, _) = toward(&net, Hints::new()).await;
        assert!(without.domain.info().caps.contains(Caps::ATOMIC));
        drop(z);
        let plain = peer_with(&net, hints, DomainBind::empty());
        let none = plain.domain.atomic_attr(AtomicType::Uint8, AtomicOp::Sum);
        assert_eq!(none.unwrap_err().kind(), ErrorKind::Unsupported);
        let (z, _target) = connect(&plain, &a).await.unwrap();
        let error = z
            .atomic(AtomicOp::Sum, 1u64, first(&region, 8))
            .post()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoCapability);
    });
}

/// fi_getinfo(3): "Specifies that the endpoint supports some set of atomic operations." With the
/// directions that limit them, and the order they are done in.
#[test]
fn info_offers_them_to_connected_and_connectionless_endpoints() {
    for endpoint in [EndpointType::Msg, EndpointType::Rdm] {
        let hints = || Hints::new().endpoint(endpoint);
        let asked = Caps::ATOMIC | Caps::WRITE | Caps::REMOTE_READ;
        let info = &tokio_fabric::discover(&hints().caps(asked)).unwrap()[0];
        assert!(info.caps.contains(asked));
        assert_eq!(info.tx.caps, Caps::ATOMIC | Caps::WRITE);
        assert_eq!(info.rx.caps, Caps::ATOMIC | Caps::REMOTE_READ);
        let order = MsgOrder::ATOMIC_RAR
            | MsgOrder::ATOMIC_RAW
            | MsgOrder::ATOMIC_WAR
            | MsgOrder::ATOMIC_WAW;
        let ordered = hints().caps(Caps::ATOMIC).tx(|tx| tx.msg_order(order));
        let info = &tokio_fabric::discover(&ordered).unwrap()[0];
        assert!(info.tx.msg_order.contains(order) && info.rx.msg_order.contains(order));
        let all = Caps::READ | Caps::WRITE | Caps::REMOTE_READ | Caps::REMOTE_WRITE;
        assert!(info.caps.contains(all), "without a direction all are meant");
    }
    let datagrams = Hints::new()
        .endpoint(EndpointType::Dgram)
        .caps(Caps::ATOMIC);
    let error = tokio_fabric::discover(&datagrams).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMatch);
}
