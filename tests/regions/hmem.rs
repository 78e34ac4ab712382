//! Memory that only its owner can copy (`FI_HMEM` of fi_getinfo(3), `fi_set_ops` and
//! `FI_SET_OPS_HMEM_OVERRIDE` of fi_domain(3)), on a device whose pages this process cannot touch.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::device::{DEVICE, Device, Failure};
use crate::common::matrix::{Combination, drive, over_all_drivers};
use crate::common::peers::{bytes_of, open_region};
use tokio_fabric::av::FabricAddr;
use tokio_fabric::buf::{DeviceBuffer, HmemIface};
use tokio_fabric::cq::CompletionFlags;
use tokio_fabric::domain::{DomainBind, DomainOps, SET_OPS_HMEM_OVERRIDE};
use tokio_fabric::ep::OnRefusal;
use tokio_fabric::error::Refusal;
use tokio_fabric::info::{AtomicOp, MrMode};
use tokio_fabric::limits::DEVICE_PIECE_MAX;
use tokio_fabric::mr::{MrFlags, RegionSlice};
use tokio_fabric::testing::{Peer, connect, connect_endpoints};
use tokio_fabric::{
    Backend, Caps, Domain, Driver, Endpoint, EndpointType, ErrorKind, Fabric, Hints, MemoryRegion,
    RdmEndpoint,
};

const MIB: usize = 1 << 20;

/// Lengths that travel in every way: injected size, staged, stored, in several pieces.
const LENGTHS: [usize; 5] = [1, 100, 20_000, MIB, 3 * MIB + 5];

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    let tile: Vec<u8> = (0..4093)
        .map(|at| (at * 7 + at / 251 + salt) as u8)
        .collect();
    let mut bytes = tile.repeat(len / tile.len() + 1);
    bytes.truncate(len);
    bytes
}

/// A peer with a device of its own.
struct DevicePeer {
    peer: Peer,
    device: Arc<Device>,
}

impl DevicePeer {
    fn new(net: &Combination, hints: Hints) -> DevicePeer {
        DevicePeer::with(net, hints, Device::new(64 * MIB))
    }

    fn with(net: &Combination, hints: Hints, device: Arc<Device>) -> DevicePeer {
        let peer = net.undriven(hints, DomainBind::empty());
        device.serve(&peer.domain);
        drive(&peer.domain);
        DevicePeer { peer, device }
    }

    async fn region(&self, len: usize) -> MemoryRegion<DeviceBuffer> {
        open_region(&self.peer, self.device.allocate(len)).await
    }

    /// A region of these bytes.
    async fn filled(&self, bytes: &[u8]) -> MemoryRegion<DeviceBuffer> {
        let region = self.region(bytes.len()).await;
        region.write_at(0, bytes).unwrap();
        region
    }
}

fn all(region: &MemoryRegion<DeviceBuffer>) -> RegionSlice {
    region.slice(..).unwrap()
}

/// Two connected endpoints that live with refusals.
async fn connected(net: &Combination) -> (DevicePeer, DevicePeer, Endpoint, Endpoint) {
    connected_with(net, Device::new).await
}

async fn connected_with(
    net: &Combination,
    device: fn(usize) -> Arc<Device>,
) -> (DevicePeer, DevicePeer, Endpoint, Endpoint) {
    let [a, b] = [(); 2].map(|()| DevicePeer::with(net, Hints::new(), device(64 * MIB)));
    let open = |side: &DevicePeer| {
        let builder = side.peer.domain.endpoint();
        let builder = builder.on_refusal(OnRefusal::Continue { limit: 1000 });
        builder.open().unwrap()
    };
    let (x, y) = (open(&a), open(&b));
    connect_endpoints(&x, &y, &b.peer.fabric).await.unwrap();
    (a, b, x, y)
}

/// Two connectionless endpoints, each with what it calls the other.
fn connectionless(net: &Combination) -> [(DevicePeer, RdmEndpoint, FabricAddr); 2] {
    let hints = || Hints::new().endpoint(EndpointType::Rdm);
    let [a, b] = [(); 2].map(|()| DevicePeer::new(net, hints()));
    let [x, y] = [&a, &b].map(|side| side.peer.rdm_endpoint().unwrap());
    let (to_y, to_x) = (
        x.insert(y.local_addr()).unwrap(),
        y.insert(x.local_addr()).unwrap(),
    );
    [(a, x, to_y), (b, y, to_x)]
}

/// fi_domain(3): `fi_set_ops`
/// fi_domain(3): "fi_set_ops assigns callbacks that a provider should invoke in place of performing
/// selected tasks."
/// fi_domain(3): "This allows users to modify or control a provider's default behavior."
/// fi_domain(3): "it allows the user to hook specific functions used by a provider and replace it
/// with their own."
/// fi_domain(3): "define the memory movement functions a provider should use when accessing a user
/// buffer."
/// fi_domain(3): "All objects allocated against a domain will inherit this override."
#[test]
fn messages_of_connected_endpoints_move_by_the_owner_alone() {
    over_all_drivers(|net| async move {
        let (a, b, x, y) = connected(&net).await;
        for (at, len) in LENGTHS.into_iter().enumerate() {
            let bytes = pattern(len, at);
            let (from, into) = (a.filled(&bytes).await, b.region(len).await);
            // To a device, with the receive posted before.
            let receive = y.recv(all(&into)).post().unwrap();
            x.send(all(&from)).await.unwrap();
            assert_eq!(receive.await.unwrap().0.len, len);
            assert_eq!(bytes_of(&into), bytes);
            // To the host, and back as a message that waits for its receive.
            let receive = y.recv(vec![0; len]).post().unwrap();
            x.send(all(&from)).await.unwrap();
            assert_eq!(receive.await.unwrap().1, bytes);
            let cleared = b.filled(&vec![0; len]).await;
            if len <= 20_000 {
                x.send(bytes.clone()).delivery_complete().await.unwrap();
            }
            let send = (len > 20_000).then(|| x.send(bytes.clone()).post().unwrap());
            assert_eq!(y.recv(all(&cleared)).await.unwrap().0.len, len);
            if let Some(send) = send {
                send.await.unwrap();
            }
            assert_eq!(bytes_of(&cleared), bytes);
        }
        assert!(a.device.longest.load(SeqCst) <= DEVICE_PIECE_MAX);
        assert!(b.device.longest.load(SeqCst) <= DEVICE_PIECE_MAX);
        assert!(b.device.copies.load(SeqCst) > 0);
    });
}

/// fi_domain(3): `fi_hmem_override_ops`
/// fi_domain(3): `fi_hmem_override_ops.copy_from_hmem_iov`
/// fi_domain(3): `fi_hmem_override_ops.copy_to_hmem_iov`
/// fi_domain(3): "Copy data from the device/hmem to host memory."
/// fi_domain(3): "Copy data from host memory to the device/hmem."
/// fi_domain(3): "All fields in struct fi_hmem_override_ops must be set (non-null) to a valid value."
#[test]
fn remote_access_and_atomics_move_by_the_owners_alone() {
    over_all_drivers(|net| async move {
        let (a, b, x, _y) = connected(&net).await;
        for (at, len) in LENGTHS.into_iter().enumerate() {
            let bytes = pattern(len, at);
            let (from, target) = (a.filled(&bytes).await, b.region(len).await);
            let written = x.write(all(&from), target.remote());
            written.delivery_complete().await.unwrap();
            assert_eq!(bytes_of(&target), bytes);
            let back = a.region(len).await;
            x.read(all(&back), target.remote()).await.unwrap();
            assert_eq!(bytes_of(&back), bytes);
            let (_, host) = x.read(vec![0; len], target.remote()).await.unwrap();
            assert_eq!(host, bytes);
        }
        let target = b.region(64).await;
        let word = target.remote().slice(8..16).unwrap();
        x.atomic(AtomicOp::Write, 40u64, word).await.unwrap();
        let sums = (0..8).map(|_| x.fetch_atomic(AtomicOp::Sum, 1u64, word).into_future());
        let mut seen = futures::future::try_join_all(sums).await.unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (40..48).collect::<Vec<_>>());
        assert_eq!(target.fetch_add(8, 2u64).unwrap(), 48);
        assert_eq!(target.load::<u64>(8).unwrap(), 50);
        assert_eq!(
            target.load::<u64>(4).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        // There is nothing to show of it, and what was registered comes back.
        assert_eq!(
            target.quiesce().await.unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        let back = target.deregister().await.unwrap();
        assert_eq!(
            (back.len(), back.iface(), back.device()),
            (64, HmemIface::Cuda, DEVICE)
        );
    });
}

/// A copy that waits holds up its own connection, and neither the driver nor any other: messages go
/// both ways, regions are revoked, endpoints are opened and closed. Nothing of it is lost.
#[test]
fn an_owner_that_blocks_holds_up_its_own_connection_alone() {
    over_all_drivers(|net| async move {
        let (a, b, x, y) = connected_with(&net, Device::that_blocks).await;
        if a.peer.domain.driver() == Driver::Manual {
            return; // `HmemOps::may_block`: it "waits for copies in any case".
        }
        let (z, w) = connect(&a.peer, &b.peer).await.unwrap();
        for len in [100, 20_000, 3 * MIB] {
            let bytes = pattern(len, 1);
            let (from, into) = (a.filled(&bytes).await, b.region(len).await);
            let other = open_region(&b.peer, vec![0u8; 64]).await;
            let receive = y.recv(all(&into)).post().unwrap();
            let (sender, copies) = (Arc::clone(&a.device), a.device.copies.load(SeqCst));
            sender.hold();
            let send = x.send(all(&from)).post().unwrap();
            while sender.copies.load(SeqCst) == copies {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // It is in the middle of its copy.
            for _ in 0..3 {
                let (sent, received) = tokio::join!(z.send("ping"), w.recv(vec![0; 8]));
                sent.unwrap();
                received.unwrap();
            }
            z.write("pong", other.remote().slice(..4).unwrap())
                .delivery_complete()
                .await
                .unwrap();
            other.revoke().await;
            let (p, q) = connect(&a.peer, &b.peer).await.unwrap();
            p.shutdown().await.unwrap();
            drop(q);
            sender.release();
            send.await.unwrap();
            assert_eq!(receive.await.unwrap().0.len, len);
            assert_eq!(bytes_of(&into), bytes);
            // Both ways, by remote access.
            let written = x.write(all(&from), into.remote());
            written.delivery_complete().await.unwrap();
            x.read(all(&from), into.remote()).await.unwrap();
            assert_eq!(bytes_of(&from), bytes);
        }
        // The end comes in the middle of a copy.
        let from = a.filled(&pattern(100, 1)).await;
        let copies = a.device.copies.load(SeqCst);
        let device = Arc::clone(&a.device);
        device.hold();
        let send = x.send(all(&from)).post().unwrap();
        while device.copies.load(SeqCst) == copies {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop((a, z));
        device.release();
        let _ = send.await;
    });
}

/// Its pages are the device's: none is looked for, kept in memory, or made persistent by this
/// process, whatever the domain's modes and the registration ask for.
#[test]
fn no_page_of_a_device_is_looked_for() {
    over_all_drivers(|net| async move {
        for mode in [MrMode::MMU_NOTIFY, MrMode::ALLOCATED, MrMode::VIRT_ADDR] {
            let hints = Hints::new().domain(|domain| domain.required_mr_mode(mode));
            let b = DevicePeer::new(&net, hints);
            let a = net.peer().unwrap();
            let (x, _y) = connect(&a, &b.peer).await.unwrap();
            let register = b.peer.domain.register(b.device.allocate(100)).pinned();
            let region = register.await.unwrap();
            region.refresh(&[]).await.unwrap();
            let written = x.write(vec![7; 100], region.remote()).delivery_complete();
            written.await.unwrap();
            assert_eq!(bytes_of(&region), [7; 100]);
            let persistent = b.peer.domain.register(b.device.allocate(100));
            let refused = persistent.flags(MrFlags::RMA_PMEM).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
            let committed = x.write(vec![8; 100], region.remote()).commit_complete();
            assert!(committed.await.is_err());
        }
    });
}

/// fi_domain(3): `copy_from_hmem_iov(dest)`, `copy_to_hmem_iov(src)`, `copy_from_hmem_iov(size)`
/// fi_domain(3): `fi_hmem_iface`, `copy_from_hmem_iov(device)`, `copy_from_hmem_iov(hmem_iov)`
/// fi_domain(3): `copy_from_hmem_iov(hmem_iov_count)`, `copy_from_hmem_iov(hmem_iov_offset)`
#[test]
fn several_device_buffers_are_one_range_to_their_owner() {
    over_all_drivers(|net| async move {
        let (a, b, x, _y) = connected(&net).await;
        let parts = [100, 64, 3000].map(|len| b.device.allocate(len));
        let region = open_region(&b.peer, parts).await;
        let bytes = pattern(3164, 9);
        let written = x.write(bytes.clone(), region.remote());
        written.delivery_complete().await.unwrap();
        assert_eq!(bytes_of(&region), bytes);
        // Across two borders, into the host's memory and into another device.
        let middle = region.remote().slice(90..170).unwrap();
        let (_, seen) = x.read(vec![0; 80], middle).await.unwrap();
        assert_eq!(seen, bytes[90..170]);
        let into = a.region(80).await;
        x.read(all(&into), middle).await.unwrap();
        assert_eq!(bytes_of(&into), bytes[90..170]);
        let [first, second, third] = region.deregister().await.unwrap();
        assert_eq!((first.len(), second.len(), third.len()), (100, 64, 3000));
    });
}

/// fi_domain(3): "HMEM override allows users to override HMEM related operations a provider may
/// perform."
#[test]
fn messages_of_connectionless_endpoints_move_by_the_owners_alone() {
    over_all_drivers(|net| async move {
        let [(a, x, to_y), (b, y, _)] = connectionless(&net);
        for (at, len) in LENGTHS.into_iter().enumerate() {
            let bytes = pattern(len, at);
            let (from, into) = (a.filled(&bytes).await, b.region(len).await);
            let receive = y.recv_tagged(all(&into), 5).post().unwrap();
            x.send_tagged(all(&from), to_y, 5).await.unwrap();
            assert_eq!(receive.await.unwrap().0.len, len);
            assert_eq!(bytes_of(&into), bytes);
            // Stored or announced before there is a receive.
            let late = b.region(len).await;
            let send = x.send(all(&from), to_y).post().unwrap();
            while y.peek().await.is_err() {
                tokio::task::yield_now().await;
            }
            assert_eq!(y.recv(all(&late)).await.unwrap().0.len, len);
            send.await.unwrap();
            assert_eq!(bytes_of(&late), bytes);
            let written = x.write(all(&from), to_y, late.remote());
            written.delivery_complete().await.unwrap();
        }
    });
}

/// Several messages come into one slice of a device's memory (`FI_MULTI_RECV` of fi_msg(3)). One
/// that its owner does not copy fails alone, and takes up its place.
#[test]
fn several_messages_come_into_one_slice_of_a_device() {
    over_all_drivers(|net| async move {
        let [(a, x, to_y), (b, y, _)] = connectionless(&net);
        let into = b.region(8 * MIB).await;
        // One that is stored before there is a receive for it.
        let mut expected = pattern(100, 9);
        x.send(expected.clone(), to_y).await.unwrap();
        while y.peek().await.is_err() {
            tokio::task::yield_now().await;
        }
        let pool = y.multi_recv(all(&into)).min_free(3 * MIB).queue(1u64);
        pool.await.unwrap();
        let next = async || y.receive_queue().next().await.unwrap();
        assert_eq!(next().await.len, 100);
        for (at, len) in LENGTHS.into_iter().enumerate() {
            let bytes = pattern(len, at);
            x.send(all(&a.filled(&bytes).await), to_y).await.unwrap();
            let completion = next().await;
            completion.result.unwrap();
            assert_eq!((completion.len, completion.offset), (len, expected.len()));
            expected.extend(bytes);
        }
        b.device.fail_after(0, Failure::Number(libc::ENODEV));
        x.send(vec![1; 1000], to_y).await.unwrap();
        let completion = next().await;
        let failed = completion.result.unwrap_err().error;
        assert_eq!(failed.os_error(), Some(libc::ENODEV), "{failed}");
        assert_eq!(completion.offset, expected.len());
        expected.extend([0; 1000]);
        x.send(vec![2; MIB], to_y).await.unwrap();
        assert_eq!(next().await.offset, expected.len());
        expected.extend(vec![2; MIB]);
        assert_eq!(next().await.flags, CompletionFlags::MULTI_RECV);
        assert_eq!(bytes_of(&into)[..expected.len()], expected);
    });
}

/// fi_domain(3): "need to account for all the different HMEM iface types a provider may encounter."
/// Each owner learns which one it is asked to copy for, of every type.
#[test]
fn the_owner_of_each_interface_copies_for_its_own() {
    over_all_drivers(|net| async move {
        for iface in [
            HmemIface::Cuda,
            HmemIface::Rocr,
            HmemIface::Ze,
            HmemIface::Neuron,
            HmemIface::SynapseAi,
            HmemIface::Other(77),
        ] {
            // A device fails the copies that name another interface than its own.
            let [a, b] = [iface, HmemIface::Other(1)]
                .map(|it| DevicePeer::with(&net, Hints::new(), Device::of(it, MIB)));
            let (x, y) = connect(&a.peer, &b.peer).await.unwrap();
            let bytes = pattern(5000, 2);
            let (from, into) = (a.filled(&bytes).await, b.region(5000).await);
            let receive = y.recv(all(&into)).post().unwrap();
            x.send(all(&from)).await.unwrap();
            receive.await.unwrap();
            assert_eq!(bytes_of(&into), bytes, "{iface:?}");
            let back = a.region(5000).await;
            y.write(all(&into), back.remote())
                .delivery_complete()
                .await
                .unwrap();
            let (_, read) = y.read(vec![0; 5000], back.remote()).await.unwrap();
            assert_eq!(read, bytes, "{iface:?}");
            assert!(a.device.copies.load(SeqCst) > 2 && b.device.copies.load(SeqCst) > 1);
            let back = back.deregister().await.unwrap();
            assert_eq!((back.iface(), back.device()), (iface, DEVICE));
        }
    });
}

/// Datagrams come and go by the owners' copies as messages do.
#[test]
fn datagrams_move_by_the_owners_alone() {
    over_all_drivers(|net| async move {
        let hints = || {
            Hints::new()
                .endpoint(EndpointType::Dgram)
                .interface("lo")
                .source((Ipv4Addr::LOCALHOST, 0).into())
        };
        let [a, b] = [(); 2].map(|()| DevicePeer::new(&net, hints()));
        let peers = a.peer.domain.address_vector().open().unwrap();
        let none = b.peer.domain.address_vector().open().unwrap();
        let x = a
            .peer
            .domain
            .dgram_endpoint()
            .address_vector(&peers)
            .open()
            .unwrap();
        let y = b
            .peer
            .domain
            .dgram_endpoint()
            .address_vector(&none)
            .open()
            .unwrap();
        let to_y = peers.insert(y.local_addr()).now().unwrap();
        let bytes = pattern(1200, 1);
        let from = a.filled(&bytes).await;
        // Several receives at once, of which the device's is in the middle.
        let into = b.region(1200).await;
        let first = y.recv(vec![0; 1200]).post().unwrap();
        let second = y.recv(all(&into)).post().unwrap();
        let third = y.recv(vec![0; 1200]).post().unwrap();
        for _ in 0..3 {
            x.send(all(&from), to_y).await.unwrap();
        }
        assert_eq!(first.await.unwrap().1, bytes);
        assert_eq!(second.await.unwrap().0.len, 1200);
        assert_eq!(third.await.unwrap().1, bytes);
        assert_eq!(bytes_of(&into), bytes);
        // A copy that fails loses its datagram, or sends none.
        let receive = y.recv(all(&into)).post().unwrap();
        b.device.fail_after(0, Failure::Number(libc::ENODEV));
        x.send(all(&from), to_y).await.unwrap();
        assert_eq!(
            receive.await.unwrap_err().error().os_error(),
            Some(libc::ENODEV)
        );
        a.device.fail_after(0, Failure::Number(libc::ENODEV));
        let refused = x.send(all(&from), to_y).await.unwrap_err();
        assert_eq!(refused.error().os_error(), Some(libc::ENODEV));
    });
}

/// fi_domain(3): "This function should return a negative fi_errno on error, or the number of bytes
/// copied on success."
#[test]
fn a_copy_that_fails_fails_its_operation_alone() {
    over_all_drivers(|net| async move {
        let (a, b, x, y) = connected(&net).await;
        let failures = [Failure::Number(libc::ENXIO), Failure::Short, Failure::Panic];
        for (failure, len) in failures
            .into_iter()
            .flat_map(|it| LENGTHS.map(|len| (it, len)))
        {
            let number = match failure {
                Failure::Number(number) => number,
                Failure::Short | Failure::Panic => libc::EIO,
            };
            let bytes = pattern(len, 3);
            let (from, into) = (a.filled(&bytes).await, b.region(len).await);
            // The sender's: nothing of the message leaves, and the next one comes in its place.
            let receive = y.recv(all(&into)).post().unwrap();
            a.device.fail_after(0, failure);
            let failed = x.send(all(&from)).await.unwrap_err();
            assert_eq!(failed.error().os_error(), Some(number), "{failed:?}");
            // The receiver's: its receive ends so, and the sender sees nothing of it.
            b.device.fail_after(0, failure);
            x.send(bytes.clone()).await.unwrap();
            let failed = receive.await.unwrap_err();
            assert_eq!(failed.error().os_error(), Some(number), "{failed:?}");
            // The initiator's of remote access.
            a.device.fail_after(0, failure);
            let failed = x.write(all(&from), into.remote()).await.unwrap_err();
            assert_eq!(failed.error().os_error(), Some(number));
            a.device.fail_after(0, failure);
            let failed = x.read(all(&from), into.remote()).await.unwrap_err();
            assert_eq!(failed.error().os_error(), Some(number));
            // The target's, which it says.
            b.device.fail_after(0, failure);
            let failed = x.write(bytes.clone(), into.remote()).await.unwrap_err();
            assert_eq!(failed.error().refusal(), Some(Refusal::Fault));
            b.device.fail_after(0, failure);
            let failed = x.read(vec![0; len], into.remote()).await.unwrap_err();
            assert_eq!(failed.error().refusal(), Some(Refusal::Fault));
            // The connection lives.
            let receive = y.recv(all(&into)).post().unwrap();
            x.send(all(&from)).await.unwrap();
            receive.await.unwrap();
        }
    });
}

/// What is longer than a piece may fail when a part of it is on its way: then the connection ends,
/// with the owner's number at its side.
#[test]
fn a_copy_that_fails_in_the_middle_of_a_message_ends_the_connection() {
    over_all_drivers(|net| async move {
        let (a, _b, x, y) = connected(&net).await;
        let len = 2 * DEVICE_PIECE_MAX;
        let from = a.filled(&pattern(len, 3)).await;
        let receive = y.recv(vec![0; len]).post().unwrap();
        a.device.fail_after(1, Failure::Number(libc::ENXIO));
        let failed = x.send(all(&from)).await.unwrap_err();
        assert_eq!(failed.error().os_error(), Some(libc::ENXIO), "{failed:?}");
        assert_eq!(receive.await.unwrap_err().kind(), ErrorKind::PeerClosed);
    });
}

/// A large message of a connectionless endpoint fails after its peer has asked for it: it is
/// withdrawn, and the receive that it was for gets the next one.
#[test]
fn an_announced_message_whose_copy_fails_is_withdrawn() {
    over_all_drivers(|net| async move {
        let [(a, x, to_y), (_b, y, _)] = connectionless(&net);
        let bytes = pattern(MIB, 3);
        let from = a.filled(&bytes).await;
        // More often than there are names for announced messages.
        let rounds = match net.backend() {
            Backend::Loopback => 260,
            _ => 3,
        };
        for _ in 0..rounds {
            let receive = y.recv_tagged(vec![0; MIB], 5).post().unwrap();
            a.device.fail_after(0, Failure::Number(libc::ENXIO));
            let failed = x.send_tagged(all(&from), to_y, 5).await.unwrap_err();
            assert_eq!(failed.error().os_error(), Some(libc::ENXIO));
            x.send_tagged(b"next".to_vec(), to_y, 5).await.unwrap();
            let (received, next) = receive.await.unwrap();
            assert_eq!(&next[..received.len], b"next");
        }
    });
}

fn open(hints: Hints) -> Domain {
    Fabric::open(hints).unwrap().domain().open().unwrap()
}

fn hmem() -> DomainOps {
    DomainOps::Hmem(Device::new(4096))
}

/// fi_domain(3): "identified using a well-known character string, passed as the name parameter."
/// fi_domain(3): "The format of the ops parameter is dependent upon the name value."
/// fi_domain(3): "The ops parameter will reference a structure containing the callbacks and other
/// fields needed by the provider"
/// fi_domain(3): "If a provider accepts the override, it will return FI_SUCCESS."
/// fi_domain(3): `FI_SUCCESS`
/// fi_domain(3): "If the override is unknown or not supported, the provider will return -FI_ENOSYS."
/// fi_domain(3): `FI_ENOSYS`
/// fi_domain(3): "Overrides should be set prior to allocating resources on the domain."
/// fi_domain(3): `FI_SET_OPS_HMEM_OVERRIDE`
/// fi_domain(3): `hmem_override_ops`
#[tokio::test]
async fn an_override_that_is_unknown_late_or_of_another_name_is_refused() {
    let domain = open(Hints::new());
    let unknown = domain.set_ops("tcp_ops", hmem()).unwrap_err();
    assert_eq!(
        (unknown.kind(), unknown.fi_errno()),
        (ErrorKind::Unsupported, libc::ENOSYS)
    );
    // Something is open: a queue, then a region.
    let queue = domain.completion_queue().open().unwrap();
    let late = domain.set_ops(SET_OPS_HMEM_OVERRIDE, hmem()).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Busy);
    assert!(late.to_string().contains("completion queue"), "{late}");
    drop(queue);
    let region = domain.register(vec![0u8; 8]).await.unwrap();
    let late = domain.set_ops(SET_OPS_HMEM_OVERRIDE, hmem()).unwrap_err();
    assert!(late.to_string().contains("a memory region"), "{late}");
    drop(region);
    // Device memory needs an owner that copies, which is set once.
    let device = || DeviceBuffer::new(HmemIface::Cuda, 0, 1 << 40, 64);
    let without_owner = domain.register(device()).await.unwrap_err();
    assert_eq!(without_owner.kind(), ErrorKind::BadState);
    assert_eq!(without_owner.into_parts().1.map(|it| it.len()), Some(64));
    domain.set_ops("hmem_override_ops", hmem()).unwrap();
    let again = domain.set_ops(SET_OPS_HMEM_OVERRIDE, hmem()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Busy);
    domain.register(device()).await.unwrap();
    // One interface and one device make a region, and no other memory does with them.
    let other = DeviceBuffer::new(HmemIface::Cuda, 1, 1 << 40, 64);
    let mixed = domain.register(vec![device(), other]).await.unwrap_err();
    assert_eq!(mixed.kind(), ErrorKind::InvalidArgument);
    let beyond = DeviceBuffer::new(HmemIface::Ze, 0, u64::MAX - 8, 64);
    let beyond = domain.register(beyond).await.unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::InvalidArgument);
    // Without the capability neither is had.
    let domain = open(Hints::new().caps(Caps::MSG | Caps::RMA));
    let error = domain.set_ops(SET_OPS_HMEM_OVERRIDE, hmem()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoCapability);
    let error = domain.register(device()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoCapability);
}
