//! Low-level access by type (`fi_open_ops`).

use std::future::IntoFuture;
use std::os::fd::AsRawFd;

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use socket2::SockRef;
use tokio_fabric::domain::{OpenOps, RingOps};
use tokio_fabric::ep::TcpOps;
use tokio_fabric::testing::{Net, connect_endpoints};
use tokio_fabric::{Backend, Domain, Driver, ErrorKind, LocalPath};

use crate::common::on_every_backend;
use crate::common::peers::sharded;

/// fi_domain(3): `fi_open_ops`, function.
/// fi_domain(3): `fi_open_ops(ops)`: "Fabric interface operations."
/// fi_domain(3): "fi_open_ops is used to open provider specific interfaces."
/// fi_domain(3): "used to access low-level resources and operations that are specific to the opened
/// resource domain."
/// The socket of a connection, and what the kernel knows of it: while there is one.
#[test]
fn a_connections_socket_is_reached_by_type() {
    on_every_backend(|net| async move {
        let net = net.local_path(LocalPath::Off);
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = (
            a.domain.endpoint().open().unwrap(),
            b.domain.endpoint().open().unwrap(),
        );
        if net.backend() == Backend::Loopback {
            let error = x.ops::<TcpOps>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("loopback"), "{error}");
            return;
        }
        let tcp = x.ops::<TcpOps>().unwrap();
        assert_eq!(tcp.info().unwrap_err().kind(), ErrorKind::BadState);
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let (sent, received) = tokio::join!(
            x.send(vec![1; 1 << 20]).delivery_complete().into_future(),
            y.recv(vec![0; 1 << 20]).into_future(),
        );
        sent.unwrap();
        received.unwrap();

        let info = tcp.info().unwrap();
        assert!(info.acknowledged_bytes >= 1 << 20, "{info:?}");
        assert!(
            info.received_bytes > 0 && info.send_segment_size > 0,
            "{info:?}"
        );
        assert!(
            info.congestion_window > 0 && !info.round_trip.is_zero(),
            "{info:?}"
        );
        let least = info.min_round_trip;
        assert!(!least.is_zero() && least <= info.round_trip, "{info:?}");
        let far = y.ops::<TcpOps>().unwrap().info().unwrap();
        assert!(far.received_bytes >= 1 << 20, "{far:?}");

        // The same socket each time, which an option shows; and the endpoint is not locked.
        let before = tcp.with_fd(|fd| {
            assert!(fd.as_raw_fd() >= 0 && x.is_connected());
            let socket = SockRef::from(&fd);
            assert_eq!(socket.local_addr().unwrap().as_socket(), x.local_addr());
            socket.set_tos_v4(0x20).unwrap();
            x.stats()
        });
        before.unwrap();
        let mark = tcp.with_fd(|fd| SockRef::from(&fd).tos_v4().unwrap());
        assert_eq!(mark.unwrap(), 0x20);

        // It keeps nothing open.
        drop(x);
        let ended = y.recv(vec![0; 1]).await.unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::PeerClosed, "{ended}");
        a.domain.close().await.unwrap();
        assert_eq!(tcp.with_fd(|_| ()).unwrap_err().kind(), ErrorKind::BadState);
    });
}

/// Whether the peer runs on the driver's processor is known from when the connection begins.
#[test]
fn a_peer_on_the_same_processor_is_known_as_such() {
    // In a thread of its own, which stays where it is.
    let pinned = std::thread::spawn(move || {
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let net = Net::on(Backend::Epoll);
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let x = a.domain.endpoint().open().unwrap();
            let y = b.domain.endpoint().open().unwrap();
            let tcp = x.ops::<TcpOps>().unwrap();
            assert!(!tcp.peer_shares_processor(), "nothing is known of it");
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            y.send("a turn later").await.unwrap();
            x.recv(vec![0; 12]).await.unwrap();
            assert!(tcp.peer_shares_processor());
        });
    });
    pinned.join().unwrap();
}

/// fi_domain(3): `fi_open_ops`, function.
/// fi_domain(3): "fi_open_ops is used to open provider specific interfaces."
/// fi_domain(3): "used to access low-level resources and operations that are specific to the opened
/// resource domain."
/// Each driver of a domain on io-uring has a ring; other domains have none.
#[test]
fn the_rings_of_a_domain_are_reached_by_type() {
    fn open<O: OpenOps<Domain>>(domain: &Domain) -> tokio_fabric::Result<O> {
        domain.ops()
    }
    on_every_backend(|net| async move {
        let domain = sharded(&net, 2).domain;
        let rings = open::<RingOps>(&domain);
        if net.backend() != Backend::IoUring {
            assert_eq!(rings.unwrap_err().kind(), ErrorKind::Unsupported);
            return;
        }
        let rings = rings.unwrap();
        assert_eq!(rings.rings().len(), 2);
        for ring in rings.rings() {
            assert!(
                ring.submission_entries > 0 && ring.provided_buffers > 0,
                "{ring:?}"
            );
            assert!(
                ring.completion_entries >= ring.submission_entries,
                "{ring:?}"
            );
            assert_eq!(ring.is_single_issuer, domain.driver() == Driver::Thread);
        }
    });
}
