//! What a region lets peers and local operations do, how they address it, and how that ends
//! (`fi_mr(3)`, `memory-model`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::matrix::{ReliableEndpoint, over_all_combinations};
use crate::common::peers::{bytes_of, open_region, read};
use crate::common::{backends, on};
use bytes::Bytes;
use futures::FutureExt;
use tokio_fabric::testing::{FaultPlan, connect_endpoints};
use tokio_fabric::{
    Access, Error, ErrorKind, Event, EventQueue, Hints, MemoryRegion, RemoteRegion, eq::EndpointId,
    error::Refusal, info::MrMode,
};

/// A peer's answer to a write that ends only when it is in memory.
async fn write(x: &ReliableEndpoint, remote: RemoteRegion) -> Result<(), Error> {
    crate::common::peers::write(x, remote, 0xaa).await
}

/// What a peer that has nothing but the key believes.
fn guessed<B: 'static>(region: &MemoryRegion<B>) -> RemoteRegion {
    let remote = region.remote();
    RemoteRegion::new(remote.addr, remote.len, remote.key)
}

/// fi_mr(3): "Registered memory regions associate memory buffers with permissions granted for
/// access by fabric resources."
/// fi_mr(3): "The buffer is enabled for access by the fabric hardware based on the provided access
/// permissions."
/// fi_mr(3): "Indicates the type of operations that the local or a peer endpoint may perform on
/// registered memory region."
/// fi_mr(3): `FI_REMOTE_READ`, access right.
/// fi_mr(3): "The memory buffer may be used as the source buffer of an RMA read operation on the
/// target side."
/// fi_mr(3): "The contents of the memory buffer are not modified by such operations."
/// fi_mr(3): `FI_REMOTE_WRITE`, access right.
/// fi_mr(3): "The memory buffer may be used as the target buffer of an RMA write or atomic
/// operation."
/// fi_mr(3): "The contents of the memory buffer may be modified as a result of such operations."
/// fi_mr(3): "Relaxed enforcement of such access is permitted, though not guaranteed, provided
/// security is maintained."
#[test]
fn peers_have_the_rights_that_were_granted_and_no_others() {
    over_all_combinations(|net| async move {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        for access in [
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::REMOTE,
            Access::LOCAL,
        ] {
            let region = target
                .domain
                .register(vec![1u8; 64])
                .access(access)
                .now()
                .unwrap();
            let (x, _y) = net.connect(&initiator, &target).await.unwrap();
            let written = write(&x, guessed(&region)).await;
            assert_eq!(
                written.is_ok(),
                access.contains(Access::REMOTE_WRITE),
                "{access:?}"
            );
            let holds = if written.is_ok() { 0xaa } else { 1 };
            assert_eq!(bytes_of(&region), vec![holds; 64], "{access:?}");
            let (x, _y) = net.connect(&initiator, &target).await.unwrap();
            match read(&x, guessed(&region)).await {
                Ok(bytes) => {
                    assert!(access.contains(Access::REMOTE_READ), "{access:?}");
                    assert_eq!(bytes, vec![holds; 64]);
                }
                Err(error) => {
                    assert!(!access.contains(Access::REMOTE_READ), "{access:?}: {error}");
                    assert_eq!(error.refusal(), Some(Refusal::AccessDenied), "{error}");
                }
            }
            assert_eq!(
                bytes_of(&region),
                vec![holds; 64],
                "reading changes nothing"
            );
        }
    });
}

/// fi_mr(3): `FI_SEND`, access right.
/// fi_mr(3): "The memory buffer may be used in outgoing message data transfers."
/// fi_mr(3): `FI_RECV`, access right.
/// fi_mr(3): "The memory buffer may be used to receive inbound message transfers."
/// fi_mr(3): `FI_READ`, access right.
/// fi_mr(3): "used as the result buffer for RMA read and atomic operations on the initiator side."
/// fi_mr(3): "the memory buffer is being written into by the network."
/// fi_mr(3): `FI_WRITE`, access right.
/// fi_mr(3): "used as the source buffer for RMA write and atomic operations on the initiator side."
/// fi_mr(3): "the endpoint is reading from the memory buffer and copying the data onto the
/// network."
/// fi_mr(3): "Supported access permissions are the bitwise OR of the following flags:"
/// fi_mr(3): "applications that wish to manage their own local memory registrations may do so by
/// using the memory registration calls."
/// fi_mr(3): "Obtains the local memory descriptor associated with a MR."
/// fi_mr(3): "Return a local descriptor associated with a registered memory region"
/// What a region was registered for counts without FI_MR_LOCAL too (D19 of docs/declined.md).
/// fi_mr(3): "a memory region registered for FI_WRITE access may also behave as if FI_SEND were
/// specified as well." Here it does not.
#[test]
fn local_operations_need_their_right() {
    over_all_combinations(|net| async move {
        let (initiator, target, x, y) = net.toward(Hints::new()).await;
        let far = open_region(&target, vec![5u8; 4]).await;
        for granted in [
            Access::SEND,
            Access::RECV,
            Access::READ,
            Access::WRITE,
            Access::LOCAL,
        ] {
            let region = initiator
                .domain
                .register(vec![2u8; 4])
                .access(granted)
                .now()
                .unwrap();
            let slice = || region.slice(..).unwrap();
            let denied = |right: Access, kind: Option<ErrorKind>| {
                let expected = (!granted.contains(right)).then_some(ErrorKind::AccessDenied);
                assert_eq!(kind, expected, "{right:?} of {granted:?}");
            };
            let sent = x.send(slice()).await;
            denied(
                Access::SEND,
                sent.as_ref().err().map(|failed| failed.kind()),
            );
            if sent.is_ok() {
                let (received, bytes) = y.recv(vec![0u8; 4]).await.unwrap();
                assert_eq!((received.len, bytes), (4, vec![2u8; 4]));
            }
            let written = x.write(slice(), far.remote()).delivery_complete().await;
            denied(
                Access::WRITE,
                written.as_ref().err().map(|failed| failed.kind()),
            );
            if written.is_ok() {
                assert_eq!(bytes_of(&far), vec![2u8; 4]);
                far.write_at(0, &[5; 4]).unwrap();
            }
            let got = x.read(slice(), far.remote()).await;
            denied(Access::READ, got.as_ref().err().map(|failed| failed.kind()));
            if got.is_ok() {
                assert_eq!(bytes_of(&region), vec![5u8; 4]);
            }
            let posted = x.recv(slice()).post();
            denied(
                Access::RECV,
                posted.as_ref().err().map(|failed| failed.kind()),
            );
            if let Ok(receive) = posted {
                y.send(vec![7u8; 4]).await.unwrap();
                let (received, slice) = receive.await.unwrap();
                assert_eq!((received.len, slice.to_vec().unwrap()), (4, vec![7u8; 4]));
            } else if let Err(failed) = posted {
                assert!(failed.into_parts().1.is_some(), "the slice comes back");
            }
        }
        assert!(
            x.is_connected(),
            "a local refusal leaves the connection alone"
        );
    });
}

/// fi_mr(3): "By default, memory registration is considered scalable."
/// fi_mr(3): "For versions 1.5 and later, scalable is implied by the lack of any mr_mode bits being
/// set."
/// fi_mr(3): "The resulting memory regions are accessible by peers starting at a base address of
/// 0."
/// fi_mr(3): "the target address that is specified is a byte offset into the registered region."
/// fi_mr(3): "The application also selects the access key associated with the MR."
/// fi_mr(3): "The key size is restricted to a maximum of 8 bytes."
/// fi_mr(3): "With scalable registration, locally accessed data buffers are not registered."
/// fi_mr(3): "indicate the location within a registered memory region by specifying an address."
/// fi_mr(3): "not required to register data buffers before using them for local operations (e.g.
/// send and receive data buffers)"
/// fi_mr(3): "Return the remote key needed to access a registered memory region"
/// fi_mr(3): "Returns the remote protection key associated with a MR."
/// fi_mr(3): "The returned key may be used in data transfer operations at a peer."
/// fi_domain(3): "Scalable registration uses offset based addressing, with application selectable
/// memory keys."
/// fi_domain(3): `FI_MR_SCALABLE`, mode value.
/// fi_domain(3): "Size of the memory region remote access key, in bytes."
#[test]
fn by_default_peers_use_offsets_and_the_applications_keys() {
    over_all_combinations(|net| async move {
        let (_initiator, target, x, _y) = net.toward(Hints::new()).await;
        let domain = &target.domain.info().domain;
        assert_eq!((domain.mr_mode, domain.mr_key_size), (MrMode::empty(), 8));
        let key = 0x0102_0304_0506_0708;
        let register = target
            .domain
            .register((0..100).collect::<Vec<u8>>())
            .key(key);
        let region = register.now().unwrap();
        assert_eq!(region.remote().addr, 0);
        // Buffers here are not registered, and the peer's address is a byte offset.
        for (offset, len) in [(0, 1), (1, 99), (50, 25), (99, 1), (100, 0), (0, 0)] {
            let bytes = read(&x, RemoteRegion::new(offset, len, key)).await.unwrap();
            let expected: Vec<u8> = (offset..offset + len).map(|at| at as u8).collect();
            assert_eq!(bytes, expected, "{len} at {offset}");
        }
        write(&x, RemoteRegion::new(7, 2, key)).await.unwrap();
        assert_eq!(bytes_of(&region)[6..10], [6, 0xaa, 0xaa, 9]);
    });
}

/// fi_mr(3): "Remote accesses to a memory region must provide the key associated with the
/// registration."
/// fi_mr(3): "The MR key must be provided by a remote process when performing RMA or atomic
/// operations to a memory region."
/// fi_mr(3): "Remote memory keys provide limited protection against unwanted access by a remote
/// node."
/// fi_mr(3): "associated with a local memory descriptor and, optionally, a remote memory key."
/// fi_mr(3): "must be registered with a resource domain before it can be used as the target of a
/// remote RMA or atomic data transfer."
/// fi_mr(3): "requires that the application register the targeted memory buffer(s)."
/// fi_domain(3): "Any operations which have not already completed will fail and be discarded."
/// fi_domain(3): "For connected endpoints, the connection is torn down and must be re-established."
#[test]
fn no_key_or_a_range_outside_ends_the_connection_and_touches_nothing() {
    over_all_combinations(|net| async move {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        let region = open_region(&target, vec![1u8; 64]).await;
        let key = region.key();
        let bad = [
            (RemoteRegion::new(0, 8, key ^ 1), Refusal::UnknownKey),
            (RemoteRegion::new(60, 8, key), Refusal::OutOfBounds),
            (RemoteRegion::new(64, 1, key), Refusal::OutOfBounds),
            (RemoteRegion::new(u64::MAX, 8, key), Refusal::OutOfBounds),
            (
                RemoteRegion::new(u64::MAX - 3, 4, key),
                Refusal::OutOfBounds,
            ),
        ];
        for (remote, reason) in bad {
            let (x, y) = net.connect(&initiator, &target).await.unwrap();
            let bystander = x.recv(vec![0u8; 8]).post().unwrap();
            let error = write(&x, remote).await.unwrap_err();
            assert_eq!(error.refusal(), Some(reason), "{remote:?}: {error}");
            if let Some(connected) = x.connected() {
                let discarded = bystander.await.unwrap_err();
                assert!(discarded.error().is_canceled(), "{discarded}");
                assert_eq!(discarded.into_parts().1.map(|buffer| buffer.len()), Some(8));
                assert!(!connected.is_connected());
                let late = connected.send("late").await.unwrap_err();
                assert!(late.error().is_canceled(), "{late}");
                let again = connected.connect(crate::common::peers::any()).await;
                assert_eq!(again.unwrap_err().kind(), ErrorKind::BadState);
            } else {
                // Its receives are not the connection's, and its next operation connects again.
                // What went to the old one may be lost with it.
                while y.send(vec![6u8; 8]).delivery_complete().await.is_err() {}
                assert_eq!(bystander.await.unwrap().1, [6; 8]);
            }
            drop(y);
            let (x, _y) = net.connect(&initiator, &target).await.unwrap();
            assert_eq!(read(&x, remote).await.unwrap_err().refusal(), Some(reason));
        }
        assert_eq!(bytes_of(&region), vec![1u8; 64]);
        // Re-established, it works.
        let (x, _y) = net.connect(&initiator, &target).await.unwrap();
        write(&x, region.remote()).await.unwrap();
    });
}

/// fi_domain(3): `FI_MR_VIRT_ADDR`, mode bit.
/// fi_domain(3): "referenced by peers using the virtual address of the registered memory region,
/// rather than a 0-based offset."
/// fi_mr(3): "the provider references memory regions by virtual address, rather than a 0-based
/// offset."
/// fi_mr(3): "specify the destination memory buffer using the target's virtual address"
/// fi_mr(3): "with any offset into the region specified as virtual address + offset."
/// fi_mr(3): "peers must exchange addressing data prior to initiating any RMA or atomic operation."
/// fi_mr(3): "adding the offset to either the base virtual address of the buffer or to 0, depending
/// on the mr_mode."
#[test]
fn with_virt_addr_peers_use_the_targets_addresses() {
    over_all_combinations(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::VIRT_ADDR));
        let (initiator, target, x, _y) = net.toward(hints).await;
        let buffer: Vec<u8> = (0..32).collect();
        let address = buffer.as_ptr() as u64;
        let region = open_region(&target, buffer).await;
        let remote = RemoteRegion::from_bytes(&region.remote().to_bytes()).unwrap();
        assert_eq!((remote.addr, remote.len), (address, 32));
        assert_eq!(
            read(&x, remote.slice(4..8).unwrap()).await.unwrap(),
            [4, 5, 6, 7]
        );
        let by_hand = RemoteRegion::new(address + 30, 2, region.key());
        write(&x, by_hand).await.unwrap();
        assert_eq!(bytes_of(&region)[29..], [29, 0xaa, 0xaa]);
        assert!(
            read(&x, RemoteRegion::new(0, 4, region.key()))
                .await
                .is_err()
        );
        let (x, _y) = net.connect(&initiator, &target).await.unwrap();
        assert!(
            read(&x, RemoteRegion::new(address - 1, 4, region.key()))
                .await
                .is_err()
        );
    });
}

/// fi_mr(3): "setting the following mr_mode bits to one: FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, and
/// FI_MR_PROV_KEY."
/// fi_domain(3): `FI_MR_BASIC`, mode value.
/// fi_domain(3): "equivalent to the FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, and FI_MR_PROV_KEY flags
/// being set in later library versions."
/// fi_mr(3): "Basic memory registration is indicated by the FI_MR_BASIC mr_mode bit."
/// fi_mr(3): "setting FI_MR_BASIC to one requests basic registration."
/// fi_domain(3): "Only basic memory registration operations are requested or supported."
#[test]
fn basic_is_virtual_addresses_and_the_librarys_keys() {
    over_all_combinations(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::BASIC));
        let (_initiator, target, x, _y) = net.toward(hints).await;
        assert_eq!(target.domain.info().domain.mr_mode, MrMode::BASIC);
        let rejected = target
            .domain
            .register(vec![0u8; 8])
            .key(1)
            .now()
            .unwrap_err();
        assert_eq!(rejected.kind(), ErrorKind::KeyRejected);
        let buffer = vec![0u8; 8];
        let address = buffer.as_ptr() as u64;
        let region = open_region(&target, buffer).await;
        assert_eq!(region.remote().addr, address);
        write(&x, region.remote()).await.unwrap();
        assert_eq!(bytes_of(&region), vec![0xaa; 8]);
    });
}

/// Ruling 17: "buffers that are not slices of the domain's own regions are refused
/// (`InvalidArgument`, naming the mode); inject copies its bytes and is accepted."
/// fi_domain(3): `FI_MR_LOCAL`, mode bit.
/// fi_domain(3): "Data buffers used in send and receive operations and as the source buffer for RMA
/// and atomic operations must be registered"
/// fi_mr(3): "applications must register all data buffers that will be accessed by the local
/// hardware"
/// fi_mr(3): "a fabric provider may require that data buffers be registered before being used in
/// local transfers."
/// fi_mr(3): "provide a valid mem_desc parameter into applicable data transfer operations."
/// fi_domain(3): "optimized around having applications register memory for locally accessed data
/// buffers."
/// fi_domain(3): "The mr_mode field indicates the type of memory registration that is required, and
/// when registration is necessary."
#[test]
fn with_local_all_buffers_must_be_registered() {
    over_all_combinations(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::LOCAL));
        let (initiator, strict, y, x) = net.toward(hints).await;
        let far = open_region(&initiator, vec![0u8; 8]).await;
        let refused = |failed: tokio_fabric::Failed<Vec<u8>>| {
            assert_eq!(
                (failed.kind(), failed.error().fi_errno()),
                (ErrorKind::InvalidArgument, 22)
            );
            assert!(failed.to_string().contains("FI_MR_LOCAL"), "{failed}");
            assert_eq!(failed.into_parts().1, Some(vec![3u8; 8]));
        };
        refused(x.send(vec![3u8; 8]).await.unwrap_err());
        refused(x.recv(vec![3u8; 8]).await.unwrap_err());
        refused(x.write(vec![3u8; 8], far.remote()).await.unwrap_err());
        refused(x.read(vec![3u8; 8], far.remote()).await.unwrap_err());
        let region = open_region(&strict, vec![4u8; 8]).await;
        let slice = || region.slice(..).unwrap();
        x.send(slice()).await.unwrap();
        assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().1, vec![4u8; 8]);
        x.write(slice(), far.remote())
            .delivery_complete()
            .await
            .unwrap();
        x.read(slice(), far.remote()).await.unwrap();
        x.inject(&[9]).unwrap();
        assert_eq!(y.recv(vec![0u8; 1]).await.unwrap().1, [9]);
        y.send(vec![6u8; 8]).await.unwrap();
        x.recv(slice()).await.unwrap();
        assert_eq!(bytes_of(&region), vec![6u8; 8]);
    });
}

/// Memory-model rule 3: a read-only region gives `&[u8]`, and no peer can change it.
#[test]
fn read_only_regions_are_read_and_never_written() {
    over_all_combinations(|net| async move {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, _y) = net.connect(&initiator, &target).await.unwrap();
        let shared: Arc<[u8]> = Arc::from(&b"shared bytes"[..]);
        let region = target
            .domain
            .register_read_only(Arc::clone(&shared))
            .await
            .unwrap();
        assert_eq!(read(&x, region.remote()).await.unwrap(), &region[..]);
        let claimed = RemoteRegion::new(0, 6, region.key());
        let refused = write(&x, claimed).await.unwrap_err().refusal();
        assert_eq!(refused, Some(Refusal::AccessDenied));
        assert_eq!(
            (&region[..], &shared[..]),
            (&b"shared bytes"[..], &b"shared bytes"[..])
        );
        let much = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let refused = target
            .domain
            .register_read_only("text")
            .access(much)
            .now()
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert_eq!(refused.into_parts().1, Some("text"));
        let bytes = Bytes::from_static(b"local");
        let local = initiator
            .domain
            .register_read_only(bytes.clone())
            .await
            .unwrap();
        assert!(
            x.recv(local.slice(..).unwrap()).post().is_err(),
            "nothing is received into it"
        );
        assert_eq!(local.deregister().await.unwrap(), bytes);
    });
}

/// fi_mr(3): "Deregister registered memory buffers."
/// fi_mr(3): "is used to release all resources associated with a registering a memory region."
/// fi_mr(3): "accesses to a closed MR from a remote peer will result in an error at the peer."
/// fi_mr(3): "Active or queued operations that reference a memory region being closed may fail or
/// result in accesses to invalid memory."
#[test]
fn a_closed_region_is_released_and_peers_get_an_error() {
    over_all_combinations(|net| async move {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        for dropped in [false, true] {
            let (x, y) = net.connect(&initiator, &target).await.unwrap();
            let region = open_region(&target, vec![1u8; 64]).await;
            let remote = region.remote();
            let into = region.slice(..8).unwrap();
            write(&x, remote).await.unwrap();
            if dropped {
                drop(region);
            } else {
                let buffer = region.deregister().await.unwrap();
                assert_eq!(buffer, vec![0xaa; 64]);
                assert_eq!(
                    region.deregister().await.unwrap_err().kind(),
                    ErrorKind::BadState
                );
                assert_eq!(
                    region.read_at(0, &mut [0]).unwrap_err().kind(),
                    ErrorKind::BadState
                );
            }
            assert_eq!(target.domain.region_count(), 0);
            assert_eq!(y.recv(into).post().unwrap_err().kind(), ErrorKind::BadState);
            let refused = write(&x, remote).await.unwrap_err().refusal();
            assert_eq!(refused, Some(Refusal::Revoked));
        }
        // A receive posted before keeps the memory until it ends; deregistering waits for it.
        let (x, y) = net.connect(&initiator, &target).await.unwrap();
        let region = open_region(&target, vec![0u8; 4]).await;
        let receive = y.recv(region.slice(..).unwrap()).post().unwrap();
        let mut closing = Box::pin(region.deregister());
        assert!((&mut closing).now_or_never().is_none());
        receive.cancel();
        assert!(receive.await.unwrap_err().error().is_canceled());
        assert_eq!(closing.await.unwrap(), vec![0u8; 4]);
        x.send("still connected").await.unwrap();
        assert_eq!(y.recv(vec![0u8; 15]).await.unwrap().0.len, 15);
    });
}

/// Ruling 16: "A region that is quiesced, refreshed, disabled, revoked or closed refuses accesses
/// by peers. It never makes them wait".
#[test]
fn quiesced_and_revoked_regions_refuse_peers() {
    over_all_combinations(|net| async move {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        let region = open_region(&target, vec![1u8; 16]).await;
        let mut guard = region.quiesce().await.unwrap();
        guard[3] = 77;
        let (x, y) = net.connect(&initiator, &target).await.unwrap();
        let refused = read(&x, region.remote()).await.unwrap_err().refusal();
        assert_eq!(refused, Some(Refusal::Held));
        assert_eq!(
            region.write_at(0, &[0]).unwrap_err().kind(),
            ErrorKind::Busy
        );
        assert_eq!(
            region.deregister().await.unwrap_err().kind(),
            ErrorKind::Busy
        );
        assert_eq!(
            y.recv(region.slice(..).unwrap()).post().unwrap_err().kind(),
            ErrorKind::Busy
        );
        drop(guard);
        let (x, _y) = net.connect(&initiator, &target).await.unwrap();
        assert_eq!(read(&x, region.remote()).await.unwrap()[3], 77);
        region.revoke().await;
        let refused = read(&x, region.remote()).await.unwrap_err().refusal();
        assert_eq!(refused, Some(Refusal::Revoked));
        // Local use goes on, and the key stays taken.
        region.write_at(0, &[8]).unwrap();
        let taken = target
            .domain
            .register(vec![0u8; 1])
            .key(region.key())
            .now()
            .unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::KeyInUse);
        assert_eq!(region.deregister().await.unwrap()[0], 8);
    });
}

async fn until_shutdown(events: &EventQueue, of: EndpointId) {
    loop {
        if let Some(Event::Shutdown { endpoint, .. }) = events.next().await {
            assert_eq!(endpoint, of);
            break;
        }
    }
}

/// Memory-model rule 4: revoking, quiescing and deregistering end "within the kernel's cancel time
/// even if the peer stalls in mid-payload", and nothing is written afterwards.
#[test]
fn a_peer_stalled_in_mid_payload_cannot_hold_a_region() {
    const LEN: usize = 1 << 20;
    for backend in backends() {
        on(backend, |net| async move {
            let crawl = FaultPlan::seeded(7)
                .short_io(1.0)
                .delay(Duration::from_millis(5)..=Duration::from_millis(5));
            let slow = net.clone().faults(crawl).peer().unwrap();
            let target = net.peer().unwrap();
            let ways = ["revoke", "quiesce", "deregister"];
            for (how, extended) in ways.into_iter().flat_map(|how| [(how, true), (how, false)]) {
                let region = open_region(&target, vec![0u8; LEN]).await;
                let x = slow.domain.endpoint().extension(extended).open().unwrap();
                let y = target.domain.endpoint().open().unwrap();
                connect_endpoints(&x, &y, &target.fabric).await.unwrap();
                while target.events.try_next().is_some() {}
                let write = x.write(vec![1u8; LEN], region.remote()).post().unwrap();
                let arrived = async || {
                    let mut first = [0; 1];
                    region.read_at(0, &mut first).unwrap();
                    first[0] == 1
                };
                while !arrived().await {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let begun = Instant::now();
                let bytes = match how {
                    "revoke" => {
                        region.revoke().await;
                        bytes_of(&region)
                    }
                    "quiesce" => region.quiesce().await.unwrap().to_vec(),
                    _ => region.deregister().await.unwrap(),
                };
                assert!(
                    begun.elapsed() < Duration::from_secs(2),
                    "{how} took too long"
                );
                let landed = bytes.iter().filter(|byte| **byte == 1).count();
                assert!(landed < LEN, "{how}: the peer was to be in the middle");
                // Towards a plain peer the connection is the price.
                if extended {
                    assert!(y.is_connected(), "{how}");
                } else {
                    until_shutdown(&target.events, y.id()).await;
                }
                if how == "revoke" {
                    assert_eq!(bytes_of(&region), bytes, "written after revoke returned");
                }
                drop(write);
            }
        });
    }
}
