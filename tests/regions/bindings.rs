//! Regions with counters and endpoints bound to them, and their enabling (`fi_mr(3)`: fi_mr_bind,
//! fi_mr_enable, FI_MR_RMA_EVENT, FI_MR_ENDPOINT).

use crate::common::matrix::{Opens, ReliableEndpoint, over_all_combinations};
use crate::common::peers::{bytes_of, open_region, read};
use tokio_fabric::testing::Peer;
use tokio_fabric::{
    Access, Caps, Error, ErrorKind, Hints, MemoryRegion, RemoteRegion,
    domain::DomainBind,
    error::Refusal,
    info::MrMode,
    mr::{MrBind, MrFlags},
};

async fn write(x: &ReliableEndpoint, remote: RemoteRegion) -> Result<(), Error> {
    crate::common::peers::write(x, remote, 0xaa).await
}

fn is_held(error: &Error) -> bool {
    error.refusal() == Some(Refusal::Held)
}

fn with_flags(peer: &Peer, flags: MrFlags) -> MemoryRegion<Vec<u8>> {
    let made = peer.domain.register(vec![1u8; 64]).flags(flags).now();
    made.map_err(Error::from).unwrap()
}

/// fi_domain(3): `FI_MR_RMA_EVENT`, mode bit.
/// fi_domain(3): "memory regions associated with completion counters must be explicitly enabled
/// after being bound to any counter."
/// fi_mr(3): "must configure memory regions that are associated with RMA events prior to their
/// use."
/// fi_mr(3): "This includes all memory regions that are associated with completion counters."
/// fi_mr(3): "must indicate if a memory region will be associated with a completion counter as part
/// of the region's creation."
/// fi_mr(3): "This is done by passing in the FI_RMA_EVENT flag to the memory registration call."
/// fi_mr(3): "Such memory regions will be created in a disabled state"
/// fi_mr(3): "must be associated with all completion counters prior to being enabled."
/// fi_mr(3): "To enable a memory region, the application must call fi_mr_enable()."
/// fi_mr(3): "After calling fi_mr_enable(), no further resource bindings may be made to the memory
/// region."
/// fi_mr(3): "The enable call is used with memory registration associated with the FI_MR_RMA_EVENT
/// mode bit."
/// fi_mr(3): "created in the disabled state must be explicitly enabled after being fully configured
/// by the application."
/// fi_mr(3): "Any resource bindings to the MR must be done prior to enabling the MR."
/// fi_mr(3): `fi_mr_enable`: "Enables a memory region for use."
/// fi_mr(3): `FI_RMA_EVENT`, flag of registration.
#[test]
fn with_rma_event_a_region_is_bound_then_enabled_then_used() {
    over_all_combinations(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::RMA_EVENT));
        let (initiator, target, x, y) = net.toward(hints).await;
        // Without the flag no counter counts for it.
        let unflagged = with_flags(&target, MrFlags::empty());
        let unbound = target.domain.counter().unwrap();
        let error = unflagged.bind_counter(&unbound, MrBind::all()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("RMA_EVENT"), "{error}");
        let region = with_flags(&target, MrFlags::RMA_EVENT);
        assert_eq!(region.flags(), MrFlags::RMA_EVENT);
        // Disabled: not for peers, not for operations; its owner may fill it.
        region.write_at(0, &[2; 8]).unwrap();
        let refusal = y.send(region.slice(..).unwrap()).await.unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::BadState);
        let error = write(&x, region.remote()).await.unwrap_err();
        assert!(is_held(&error), "{error}");
        assert_eq!(bytes_of(&region)[..9], [2, 2, 2, 2, 2, 2, 2, 2, 1]);
        let (writes, both) = (
            target.domain.counter().unwrap(),
            target.domain.counter().unwrap(),
        );
        region.bind_counter(&writes, MrBind::REMOTE_WRITE).unwrap();
        region.bind_counter(&both, MrBind::all()).unwrap();
        region.enable().unwrap();
        let late = region
            .bind_counter(&writes, MrBind::REMOTE_READ)
            .unwrap_err();
        assert_eq!(late.kind(), ErrorKind::BadState);
        let (x, y) = net.connect(&initiator, &target).await.unwrap();
        assert_eq!(y.bind_to(&region).unwrap_err().kind(), ErrorKind::BadState);
        write(&x, region.remote()).await.unwrap();
        read(&x, region.remote()).await.unwrap();
        assert_eq!(writes.wait_for(1).await.unwrap(), 1);
        assert_eq!(both.wait_for(2).await.unwrap(), 2);
        assert_eq!(writes.read(), 1);
        // One that was not announced is not disabled, and another is not enabled with it.
        write(&x, with_flags(&target, MrFlags::empty()).remote())
            .await
            .unwrap();
        let other = with_flags(&target, MrFlags::RMA_EVENT);
        assert!(is_held(&write(&x, other.remote()).await.unwrap_err()));
    });
}

/// fi_mr(3): "Generates an event whenever a remote RMA write or atomic operation modifies the
/// memory region."
/// fi_mr(3): "associated with a completion counter used to count RMA operations that access the
/// MR."
/// fi_mr(3): "the type of events tracked against the memory region is based on the bitwise OR of
/// the following flags."
/// fi_mr(3): `FI_REMOTE_WRITE`, flag of fi_mr_bind.
/// fi_mr(3): "The fi_mr_bind function associates a memory region with a counter or endpoint."
/// fi_mr(3): `fi_mr_bind`: "Associate a registered memory region with a completion counter."
/// fi_mr(3): `fi_mr_bind(bfid)`: "Fabric identifier of an associated resource."
/// fi_mr(3): `fi_mr_bind(flags)`, argument.
/// fi_domain(3): `fi_mr_bind`, function.
/// fi_mr(3): "Counter bindings are needed by providers that support the generation of completions
/// based on fabric operations."
#[test]
fn bound_counters_count_each_access_of_their_region_once() {
    over_all_combinations(|net| async move {
        let (_initiator, target, x, _y) = net.toward(Hints::new()).await;
        let counted = with_flags(&target, MrFlags::RMA_EVENT);
        let quiet = with_flags(&target, MrFlags::empty());
        let (reads, writes) = (
            target.domain.counter().unwrap(),
            target.domain.counter().unwrap(),
        );
        counted.bind_counter(&reads, MrBind::REMOTE_READ).unwrap();
        counted.bind_counter(&writes, MrBind::REMOTE_WRITE).unwrap();
        let remote = counted.remote();
        // Small and large, with data and without, both halves of it at once, nothing of it.
        for round in 1..=10 {
            write(&x, remote).await.unwrap();
            x.write(vec![1u8; 8], remote)
                .imm(7)
                .delivery_complete()
                .await
                .unwrap();
            let halves = [remote.slice(0..8).unwrap(), remote.slice(32..40).unwrap()];
            x.write(vec![1u8; 16], halves)
                .delivery_complete()
                .await
                .unwrap();
            x.inject_write(b"few", remote).unwrap();
            write(&x, quiet.remote()).await.unwrap();
            read(&x, quiet.remote()).await.unwrap();
            x.read(vec![0u8; 72], [remote, quiet.remote()])
                .await
                .unwrap();
            assert_eq!(writes.wait_for(4 * round).await.unwrap(), 4 * round);
            assert_eq!(reads.wait_for(round).await.unwrap(), round);
        }
        // What is refused does not count; what this side does itself does not either.
        assert!(
            write(&x, RemoteRegion::new(60, 8, counted.key()))
                .await
                .is_err()
        );
        counted.write_at(0, &[0; 64]).unwrap();
        assert_eq!((reads.read(), writes.read()), (10, 40));
    });
}

/// fi_mr(3): "the endpoint through which the MR is accessed be created with the FI_RMA_EVENT
/// capability."
/// fi_mr(3): `FI_RMA_EVENT`, capability of an endpoint.
/// fi_mr(3): `FI_ENOSYS` from `fi_mr_bind`: "Returned by fi_mr_bind if the provider does not
/// support reporting events based on access to registered memory regions."
/// fi_mr(3): "Returned by fi_mr_bind if the provider does not support reporting events based on
/// access to registered memory regions."
/// fi_mr(3): `FI_EBADFLAGS`: "Returned if the specified flags are not supported by the provider."
/// fi_mr(3): "Returned if the specified flags are not supported by the provider."
/// fi_mr(3): `fi_mr_reg(flags)`: "Additional flags to apply to the operation."
/// fi_mr(3): "Additional flags to apply to the operation."
/// fi_mr(3): "The follow flag may be specified to any memory registration call."
#[test]
fn flags_and_bindings_that_the_domain_cannot_honour_are_refused() {
    over_all_combinations(|net| async move {
        let without = Hints::new().caps(Caps::MSG | Caps::RMA);
        let without = net.peer_with(without, DomainBind::empty());
        let with = net.peer_with(plain_with_events(), DomainBind::empty());
        assert!(!without.domain.info().caps.contains(Caps::RMA_EVENT));
        assert!(with.domain.info().caps.contains(Caps::RMA_EVENT));
        let register = || without.domain.register(vec![0u8; 8]);
        let refusal = register().flags(MrFlags::RMA_EVENT).await.unwrap_err();
        assert_eq!(
            (refusal.kind(), refusal.error().fi_errno()),
            (ErrorKind::BadFlags, 260)
        );
        assert_eq!(refusal.into_parts().1, Some(vec![0u8; 8]));
        let region = register().await.unwrap();
        let error = region
            .bind_counter(&without.domain.counter().unwrap(), MrBind::all())
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.fi_errno()),
            (ErrorKind::Unsupported, 38)
        );
        // Every way to register takes flags and judges them.
        let unknown = MrFlags::from_bits_retain(1 << 3);
        for registered in [
            with.domain
                .register(vec![0u8; 8])
                .flags(unknown)
                .now()
                .map(drop)
                .map_err(Error::from),
            with.domain
                .register([vec![0u8; 8]])
                .flags(unknown)
                .await
                .map(drop)
                .map_err(Error::from),
            with.domain
                .register_read_only("fixed")
                .flags(unknown)
                .await
                .map(drop)
                .map_err(Error::from),
        ] {
            assert_eq!(registered.unwrap_err().kind(), ErrorKind::BadFlags);
        }
        with.domain
            .register_read_only("fixed")
            .flags(MrFlags::RMA_EVENT)
            .await
            .unwrap();
        let region = with
            .domain
            .register(vec![0u8; 8])
            .flags(MrFlags::RMA_EVENT)
            .await
            .unwrap();
        let counter = with.domain.counter().unwrap();
        let unknown = MrBind::from_bits_retain(1 << 3);
        let error = region.bind_counter(&counter, unknown).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadFlags);
        let error = region.bind_counter(&counter, MrBind::empty()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        // Where it is had, accesses count; where it is not, they are had and nothing counts them.
        region.bind_counter(&counter, MrBind::REMOTE_WRITE).unwrap();
        let initiator = net.peer().unwrap();
        let (x, _y) = net.connect(&initiator, &with).await.unwrap();
        crate::common::peers::write(&x, region.remote(), 1)
            .await
            .unwrap();
        assert_eq!(counter.wait_for(1).await.unwrap(), 1);
        let plain = open_region(&without, vec![0u8; 8]).await;
        let (x, _y) = net.connect(&initiator, &without).await.unwrap();
        crate::common::peers::write(&x, plain.remote(), 1)
            .await
            .unwrap();
        assert_eq!(bytes_of(&plain), [1; 8]);
        counter.close().await.unwrap();
        let error = region.bind_counter(&counter, MrBind::all()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadState);
    });
}

fn plain_with_events() -> Hints {
    Hints::new().caps(Caps::MSG | Caps::RMA | Caps::RMA_EVENT)
}

/// fi_mr(3): "When closing the MR, there must be no opened endpoints or counters associated with
/// the MR."
/// fi_mr(3): "If resources are still associated with the MR when attempting to close, the call will
/// return -FI_EBUSY."
/// fi_mr(3): `FI_EBUSY` from `fi_close(mr)`, error code.
#[test]
fn a_region_with_open_counters_or_endpoints_is_busy() {
    over_all_combinations(|net| async move {
        let (_initiator, target, x, y) = net.toward(Hints::new()).await;
        let region = with_flags(&target, MrFlags::RMA_EVENT);
        let (closed, dropped) = (
            target.domain.counter().unwrap(),
            target.domain.counter().unwrap(),
        );
        region.bind_counter(&closed, MrBind::REMOTE_WRITE).unwrap();
        region.bind_counter(&dropped, MrBind::REMOTE_READ).unwrap();
        y.bind_to(&region).unwrap();
        let busy = region.deregister().await.unwrap_err();
        assert_eq!((busy.kind(), busy.fi_errno()), (ErrorKind::Busy, 16));
        assert!(busy.to_string().contains("counter"), "{busy}");
        // Nothing has changed by it.
        write(&x, region.remote()).await.unwrap();
        assert_eq!(closed.wait_for(1).await.unwrap(), 1);
        closed.close().await.unwrap();
        drop(dropped);
        let busy = region.deregister().await.unwrap_err();
        assert!(busy.to_string().contains("EndpointId"), "{busy}");
        y.shutdown().await.unwrap();
        let bytes = region.deregister().await.unwrap();
        assert_eq!(bytes[..], [0xaa; 64]);
    });
}

/// A region lists what is bound to it while it counts accesses there: neither waits for the
/// other.
#[test]
fn closing_a_busy_region_races_with_its_peers() {
    over_all_combinations(|net| async move {
        let (_initiator, target, x, y) = net.toward(Hints::new()).await;
        let region = with_flags(&target, MrFlags::RMA_EVENT);
        let counter = target.domain.counter().unwrap();
        region.bind_counter(&counter, MrBind::all()).unwrap();
        y.bind_to(&region).unwrap();
        let asked = region.clone();
        let asking = tokio::spawn(async move {
            while counter.read() < 100 {
                assert!(asked.deregister().await.unwrap_err().is_busy());
                tokio::task::yield_now().await;
            }
        });
        while !asking.is_finished() {
            write(&x, region.remote()).await.unwrap();
        }
        asking.await.unwrap();
        drop(y);
    });
}

/// fi_domain(3): `FI_MR_ENDPOINT`, mode bit.
/// fi_domain(3): "Memory registration occurs at the endpoint level, rather than domain."
/// fi_mr(3): "the provider associates memory regions with endpoints rather than domains."
/// fi_mr(3): "are created in a disabled state and must be bound to an endpoint prior to being
/// enabled."
/// fi_mr(3): "To bind the MR with an endpoint, the application must use fi_mr_bind()."
/// fi_mr(3): "To enable the memory region, the application must call fi_mr_enable()."
/// fi_mr(3): "When binding the memory region to an endpoint, flags should be 0."
/// fi_mr(3): "Endpoint bindings are needed if the provider associates memory regions with
/// endpoints"
#[test]
fn with_endpoint_a_region_belongs_to_the_endpoints_it_is_bound_to() {
    over_all_combinations(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ENDPOINT));
        let (initiator, target, x, y) = net.toward(hints).await;
        let (x2, y2) = net.connect(&initiator, &target).await.unwrap();
        let region = open_region(&target, vec![1u8; 64]).await;
        assert_eq!(region.enable().unwrap_err().kind(), ErrorKind::BadState);
        // There are no flags to give: `bind_endpoint` takes none.
        y.bind_to(&region).unwrap();
        let foreign = x.bind_to(&region).unwrap_err();
        assert_eq!(foreign.kind(), ErrorKind::InvalidArgument);
        let (x3, y3) = net.connect(&initiator, &target).await.unwrap();
        y3.bind_to(&region).unwrap();
        assert!(
            is_held(&write(&x3, region.remote()).await.unwrap_err()),
            "not enabled"
        );
        region.enable().unwrap();
        write(&x, region.remote()).await.unwrap();
        // Through an endpoint it is not bound to there is no such key, and no such buffer.
        let error = y2.send(region.slice(..8).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = read(&x2, region.remote()).await.unwrap_err();
        assert_eq!(error.refusal(), Some(Refusal::UnknownKey));
        let receive = x.recv(vec![0u8; 8]);
        let (sent, received) = tokio::join!(y.send(region.slice(..8).unwrap()), receive);
        sent.unwrap();
        assert_eq!(received.unwrap().1, [0xaa; 8]);
    });
}

/// fi_mr(3): "applications must register all data buffers that will be accessed by the local
/// hardware", and with the domain that accesses them.
/// fi_domain(3): "Data buffers used in send and receive operations and as the source buffer for RMA
/// and atomic operations must be registered"
#[test]
fn with_local_a_region_of_another_domain_is_no_valid_descriptor() {
    over_all_combinations(|net| async move {
        let hints = || Hints::new().domain(|domain| domain.required_mr_mode(MrMode::LOCAL));
        let strict = net.peer_with(hints(), DomainBind::empty());
        let other = net.peer_with(hints(), DomainBind::empty());
        let (x, y) = net.connect(&strict, &other).await.unwrap();
        let own = open_region(&strict, vec![1u8; 8]).await;
        let foreign = open_region(&other, vec![2u8; 8]).await;
        let slice = |region: &MemoryRegion<Vec<u8>>| region.slice(..).unwrap();
        let kind = |failed: tokio_fabric::Failed<_>| failed.kind();
        let invalid = ErrorKind::InvalidArgument;
        assert_eq!(kind(x.send(slice(&foreign)).post().unwrap_err()), invalid);
        assert_eq!(kind(x.recv(slice(&foreign)).post().unwrap_err()), invalid);
        let remote = foreign.remote();
        assert_eq!(
            kind(x.write(slice(&foreign), remote).post().unwrap_err()),
            invalid
        );
        let refusal = x.read(slice(&foreign), remote).post().unwrap_err();
        assert!(
            refusal.error().to_string().contains("FI_MR_LOCAL"),
            "{refusal}"
        );
        assert!(refusal.into_parts().1.is_some(), "the slice comes back");
        // Its own pass, and what is copied needs none.
        let receive = y.recv(slice(&foreign));
        let (sent, received) = tokio::join!(x.send(slice(&own)), receive);
        sent.unwrap();
        received.unwrap();
        assert_eq!(bytes_of(&foreign), [1; 8]);
        x.inject(b"copied").unwrap();
        y.recv(slice(&foreign)).await.unwrap();
        let access = Access::REMOTE_WRITE;
        let far = other
            .domain
            .register(vec![0u8; 8])
            .access(access)
            .now()
            .unwrap();
        x.write(slice(&own), far.remote())
            .delivery_complete()
            .await
            .unwrap();
        assert_eq!(bytes_of(&far), [1; 8]);
    });
}
