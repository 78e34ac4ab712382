//! Domains with several drivers (`progress_shards`): endpoints are divided among them, regions are
//! of all of them, and what ends a domain ends them all.

use std::collections::HashMap;

use crate::common::alone::alone;
use crate::common::on_every_backend;
use crate::common::peers::{bytes_of, open_region, read, sharded, write};
use futures::future::join_all;
use tokio_fabric::testing::{Net, Peer, connect};
use tokio_fabric::{Driver, Endpoint, ErrorKind, Fabric, Hints, RdmEndpoint};

const SHARDS: usize = 3;

async fn connections(from: &Peer, to: &Peer, count: usize) -> Vec<(Endpoint, Endpoint)> {
    let mut connections = Vec::new();
    for _ in 0..count {
        connections.push(connect(from, to).await.unwrap());
    }
    connections
}

/// `DomainBuilder::progress_shards`: "A new endpoint goes to the driver with the fewest
/// connections", and "To peers each driver is a life of its own".
#[test]
fn endpoints_are_divided_among_the_drivers() {
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), sharded(&net, SHARDS));
        let mut connections = connections(&us, &them, 2 * SHARDS).await;
        let mut lives: HashMap<u64, usize> = HashMap::new();
        for (ours, _) in &connections {
            *lives.entry(ours.peer_incarnation().unwrap()).or_default() += 1;
        }
        assert_eq!(lives.len(), SHARDS, "{lives:?}");
        assert!(lives.values().all(|count| *count == 2), "{lives:?}");
        // Where one has gone there is room.
        let (ours, theirs) = connections.remove(1);
        let life = ours.peer_incarnation();
        ours.shutdown().await.unwrap();
        drop((ours, theirs));
        loop {
            let next = connect(&us, &them).await.unwrap();
            let found = next.0.peer_incarnation() == life;
            if found {
                break;
            }
            // The driver that drops the old connection has not come to it yet.
            drop(next);
            tokio::task::yield_now().await;
        }
    });
}

/// `DomainBuilder::progress_shards`: "Regions belong to the whole domain": peers reach one by
/// whatever connection, and once it is revoked by none.
#[test]
fn a_region_is_reached_through_every_driver() {
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), sharded(&net, SHARDS));
        let connections = connections(&us, &them, SHARDS).await;
        let region = open_region(&them, vec![0; 64]).await;
        for (number, (ours, _)) in connections.iter().enumerate() {
            let byte = number as u8 + 1;
            write(ours, region.remote(), byte).await.unwrap();
            assert_eq!(bytes_of(&region), [byte; 64]);
            assert_eq!(read(ours, region.remote()).await.unwrap(), [byte; 64]);
        }
        region.revoke().await;
        let tried = join_all(connections.iter().map(|it| read(&it.0, region.remote())));
        assert!(tried.await.iter().all(Result::is_err));
    });
}

/// `MemoryRegion::deregister`: "accesses of peers are cut short", whichever drivers they are with.
/// (`tests/campaigns/revoke.rs` has peers of each of several drivers that stall in the middle of a
/// payload.)
#[test]
fn deregistering_under_accesses_of_every_driver_ends_them_all() {
    const LARGE: usize = 4 << 20;
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), sharded(&net, SHARDS));
        let connections = connections(&us, &them, SHARDS).await;
        let region = open_region(&them, vec![7; LARGE]).await;
        // Far more than sockets hold, under way on all connections, both ways.
        let mut posted = Vec::new();
        for (ours, _) in &connections {
            let remote = region.remote();
            for _ in 0..4 {
                posted.push(ours.read(vec![0; LARGE], remote).post().unwrap());
                posted.push(ours.write(vec![7; LARGE], remote).post().unwrap());
            }
        }
        let back = region.deregister().await.unwrap();
        assert_eq!(back, vec![7; LARGE]);
        // Each ends, well or not.
        for operation in posted {
            if let Err(failed) = operation.await {
                assert_ne!(failed.kind(), ErrorKind::TimedOut);
            }
        }
    });
}

/// `Domain::close`: "stops its driver and waits until the driver has ended", all of them:
/// connections of each end.
#[test]
fn closing_ends_every_driver() {
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), sharded(&net, SHARDS));
        let connections = connections(&us, &them, SHARDS).await;
        let busy = them.domain.close().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        let (ours, theirs): (Vec<_>, Vec<_>) = connections.into_iter().unzip();
        drop(theirs);
        for endpoint in &ours {
            let received = endpoint.recv(vec![0; 8]).await;
            assert!(received.is_err());
        }
        them.domain.close().await.unwrap();
        let again = them.domain.endpoint().open().unwrap_err();
        assert_eq!(again.kind(), ErrorKind::BadState);
    });
}

/// Ruling 11: what waits on any of the drivers ends with an error.
#[test]
fn the_end_of_a_runtime_is_reported_on_every_driver() {
    for backend in crate::common::backends() {
        // The peer lives on, or its end would be the reported reason.
        let peers = tokio::runtime::Runtime::new().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let net = Net::on(backend);
        let us = peers.block_on(async { net.peer().unwrap() });
        let waiting = runtime.block_on(async {
            let them = sharded(&net, SHARDS);
            let connections = connections(&us, &them, SHARDS).await;
            let receives = connections
                .iter()
                .map(|it| it.1.recv(vec![0; 8]).post().unwrap());
            (receives.collect::<Vec<_>>(), connections, them)
        });
        drop(runtime);
        let (receives, _connections, them) = waiting;
        for receive in receives {
            let failed = futures::executor::block_on(receive).unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::DriverGone);
        }
        let refused = them.domain.endpoint().open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DriverGone);
    }
}

/// Connectionless endpoints of one domain are with different drivers, and each finds its own
/// operations by their names.
#[test]
fn connectionless_endpoints_work_with_every_driver() {
    on_every_backend(|net| async move {
        let them = sharded(&net, SHARDS);
        let opened: Vec<RdmEndpoint> = (0..SHARDS).map(|_| them.rdm_endpoint().unwrap()).collect();
        let sends = opened.iter().flat_map(|from| {
            opened.iter().map(async |to| {
                let peer = from.insert(to.local_addr()).unwrap();
                let send = from.send(vec![1; 100], peer).delivery_complete();
                send.await.unwrap();
            })
        });
        let receives = opened.iter().map(async |at| {
            for _ in 0..SHARDS {
                let (received, _) = at.recv(vec![0; 100]).await.unwrap();
                assert_eq!(received.len, 100);
            }
        });
        futures::future::join(join_all(sends), join_all(receives)).await;
        for endpoint in &opened {
            let peer = endpoint
                .insert(crate::common::peers::no_listener())
                .unwrap();
            let send = endpoint.send(vec![1; 100], peer).post().unwrap();
            assert!(endpoint.cancel(send.id()), "it waits for a connection");
            assert_eq!(send.await.unwrap_err().kind(), ErrorKind::Canceled);
        }
    });
}

/// `DomainBuilder::progress_shards`: "1 to `PROGRESS_SHARDS_MAX`".
#[tokio::test]
async fn counts_out_of_range_are_refused() {
    let fabric = Net::loopback().fabric().unwrap();
    let most = tokio_fabric::limits::PROGRESS_SHARDS_MAX;
    for count in [0, most + 1, usize::MAX] {
        let refused = fabric.domain().progress_shards(count).open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("256"), "{refused}");
    }
    let domain = fabric.domain().progress_shards(most).open().unwrap();
    assert_eq!(domain.progress_shards(), most);
    assert_eq!(fabric.domain().open().unwrap().progress_shards(), 1);
}

/// `DomainBuilder::progress_shards`: "each a task or a thread of its own": all go when the domain
/// does.
#[test]
fn as_many_threads_come_and_go() {
    alone("shards::threads_of_a_domain");
}

#[test]
#[ignore = "the other process of another test"]
fn threads_of_a_domain() {
    let fabric = Fabric::open(Hints::new()).unwrap();
    let domain = fabric.domain().driver(Driver::Thread);
    let domain = domain.progress_shards(SHARDS).open().unwrap();
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            // It may be gone by now.
            std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
        };
        let names = tasks.map(name);
        names.filter(|name| name.trim() == "fabric-driver").count()
    };
    assert_eq!(threads(), SHARDS);
    futures::executor::block_on(domain.close()).unwrap();
    while threads() > 0 {
        std::thread::yield_now();
    }
}
