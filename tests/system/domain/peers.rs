//! The boundary of a domain, and domains that are opened as peers of another one.

use std::future::IntoFuture;

use futures::executor::block_on;
use futures::future::join;
use tokio::runtime::Builder;
use tokio_fabric::mr::MrBind;
use tokio_fabric::rdm::RdmEndpointBuilder;
use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{Completion, Domain, Driver, ErrorKind, Result};

use crate::common::peers::{any, bytes_of};
use crate::common::{backends, on_every_backend, run_at_once};

const DRIVERS: [Driver; 3] = [Driver::Task, Driver::Thread, Driver::Manual];

/// Every backend with every driver.
fn cells() -> Vec<Net> {
    let with_drivers = |backend| DRIVERS.map(|driver| Net::on(backend).driver(driver));
    backends().into_iter().flat_map(with_drivers).collect()
}

fn opened_as_peer(net: &Net, of: &Domain) -> Peer {
    let fabric = net.fabric().unwrap();
    let events = fabric.event_queue().open().unwrap();
    let domain = fabric.domain().peer_of(of).open().unwrap();
    Peer {
        fabric,
        domain,
        events,
    }
}

fn refused<T>(result: Result<T>, kind: &str) {
    let error = result.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let why = format!("the {kind} belongs to another domain");
    assert!(error.to_string().contains(&why), "{error}");
    assert!(error.to_string().contains("DomainBuilder::peer_of"));
}

/// Binds each object of `owner` in each way to something of `user`, which refuses it.
async fn refuses_all(owner: &Domain, user: &Domain) {
    let queue = owner.completion_queue().open().unwrap();
    let counter = owner.counter().unwrap();
    let vector = owner.address_vector().open().unwrap();
    let own = user.address_vector().open().unwrap();
    let context = owner.receive_context().open().unwrap();
    let mute = owner.endpoint().open().unwrap();

    let endpoint = || user.endpoint();
    let cq = "completion queue";
    refused(endpoint().transmit_queue(&queue).open(), cq);
    refused(endpoint().receive_queue(&queue).open(), cq);
    refused(endpoint().receive_queue(mute.receive_queue()).open(), cq);
    refused(
        endpoint().receive_context(&context).open(),
        "receive context",
    );
    for counted in [
        endpoint().send_counter(&counter),
        endpoint().receive_counter(&counter),
        endpoint().read_counter(&counter),
        endpoint().write_counter(&counter),
        endpoint().remote_read_counter(&counter),
        endpoint().remote_write_counter(&counter),
    ] {
        refused(counted.open(), "counter");
    }

    let rdm = || user.rdm_endpoint().listen_at(any());
    refused(rdm().completion_queue(&queue).open(), cq);
    refused(rdm().send_counter(&counter).open(), "counter");
    refused(rdm().address_vector(&vector).open(), "address vector");

    let dgram = || user.dgram_endpoint().bind(any()).address_vector(&own);
    refused(dgram().transmit_queue(&queue).open(), cq);
    refused(dgram().receive_queue(&queue).open(), cq);
    refused(dgram().send_counter(&counter).open(), "counter");
    refused(dgram().receive_counter(&counter).open(), "counter");
    refused(dgram().address_vector(&vector).open(), "address vector");

    let scalable = || user.scalable_endpoint().contexts(1).listen_at(any());
    let bound = queue.clone();
    let bind = move |_, context: RdmEndpointBuilder| context.receive_queue(&bound);
    refused(scalable().each(bind).open(), cq);
    refused(scalable().address_vector(&vector).open(), "address vector");

    let shared = || user.receive_context();
    refused(shared().receive_queue(&queue).open(), cq);
    refused(shared().receive_counter(&counter).open(), "counter");

    let region = user.register(vec![0u8; 8]).now().unwrap();
    refused(region.bind_counter(&counter, MrBind::all()), "counter");

    // Nothing is left bound.
    queue.close().await.unwrap();
    counter.close().await.unwrap();
    vector.close().await.unwrap();
}

/// fi_domain(3): "A domain defines the boundary for associating different resources together."
/// Every kind of object is refused with the reason, and so are those of a peer at the domain that
/// it is a peer of, and at another peer.
#[test]
fn objects_of_another_domain_are_refused_with_the_reason() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        refuses_all(&a.domain, &b.domain).await;
        let peer = opened_as_peer(&net, &a.domain);
        let other = opened_as_peer(&net, &a.domain);
        refuses_all(&peer.domain, &a.domain).await;
        refuses_all(&peer.domain, &other.domain).await;
    });
}

/// What this finds, while nothing else drives what is driven by hand.
async fn only_by<T>(mut turn: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = turn() {
            return found;
        }
        tokio::task::yield_now().await;
    }
}

/// fi_domain(3): `fi_domain2`, function.
/// fi_domain(3): `fi_domain2(flags)`, argument.
/// fi_domain(3): "Similar to fi_domain, but accepts an extra parameter flags."
/// fi_domain(3): "Mainly used for opening peer domain."
/// fi_domain(3): "Fabric resources belonging to the same domain may share resources."
/// Two peers report to one queue and are counted by one counter of a third domain. Reading one of
/// those, and awaiting it, is all that drives the three.
#[test]
fn what_peers_share_drives_all_that_use_it() {
    run_at_once(cells(), |net| async move {
        let owner = net.peer().unwrap();
        let (b, c) = (
            opened_as_peer(&net, &owner.domain),
            opened_as_peer(&net, &owner.domain),
        );
        let queue = owner.domain.completion_queue().open().unwrap();
        let counter = owner.domain.counter().unwrap();
        let x = b.domain.endpoint().completion_queue(&queue);
        let x = x.receive_counter(&counter).open().unwrap();
        let y = c.domain.endpoint().completion_queue(&queue).open().unwrap();
        connect_endpoints(&x, &y, &c.fabric).await.unwrap();

        // What begins in one domain ends in the other.
        x.recv(vec![0; 1 << 20]).queue(1u64).await.unwrap();
        y.send(vec![5; 1 << 20]).queue(2u64).await.unwrap();
        let mut ended: Vec<_> = [only_by(|| queue.try_next()).await].into();
        ended.extend(queue.next().await);
        ended.sort_by_key(|completion| completion.context);
        let of = |it: Completion| (it.context.0, it.endpoint, it.result.is_ok());
        let ended: Vec<_> = ended.into_iter().map(of).collect();
        assert_eq!(ended, [(1, x.id(), true), (2, y.id(), true)]);

        for number in 2..4 {
            x.recv(vec![0; 8]).detach().unwrap();
            y.send("counted").detach().unwrap();
            match number {
                2 => only_by(|| (counter.read() == number).then_some(())).await,
                _ => assert_eq!(counter.wait_for(number).await, Ok(number)),
            }
        }
        // The queue is in use in the others, and then no more.
        let busy = queue.close().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
        let busy = owner.domain.close().await.unwrap_err();
        assert!(busy.to_string().contains("completion queue"), "{busy}");
        join(x.shutdown(), y.shutdown()).await.0.unwrap();
        drop((x, y));
        join(b.domain.closed(), c.domain.closed()).await;
        queue.close().await.unwrap();
    });
}

/// A vector, a receive context and the counter of a region are shared with a peer as well: each
/// wait for one of them drives the peer.
#[test]
fn vectors_receive_contexts_and_regions_are_shared_with_a_peer() {
    run_at_once(cells(), |net| async move {
        let owner = net.peer().unwrap();
        let peer = opened_as_peer(&net, &owner.domain);
        let far = net.peer().unwrap();

        let vector = owner.domain.address_vector().open().unwrap();
        let rdm = |domain: &Domain| {
            let builder = domain.rdm_endpoint().address_vector(&vector);
            builder.listen_at(any()).open().unwrap()
        };
        let (x, y) = (rdm(&owner.domain), rdm(&peer.domain));
        let to_y = y.insert(y.local_addr()).unwrap();
        let (sent, received) = join(
            x.send("by one name", to_y).into_future(),
            y.recv(vec![0; 11]).into_future(),
        )
        .await;
        sent.unwrap();
        assert_eq!(received.unwrap().1, b"by one name");

        let context = owner.domain.receive_context().open().unwrap();
        // Posted before the endpoint is there.
        let waiting = context.recv(vec![0; 8]).post().unwrap();
        let shared = peer.domain.endpoint().receive_context(&context);
        let shared = shared.open().unwrap();
        let sender = far.domain.endpoint().open().unwrap();
        connect_endpoints(&sender, &shared, &peer.fabric)
            .await
            .unwrap();
        let (sent, received) = join(sender.send("received").into_future(), waiting).await;
        sent.unwrap();
        let (received, bytes) = received.unwrap();
        assert_eq!(bytes, b"received");
        assert_eq!(received.endpoint, Some(shared.id()));

        let counter = owner.domain.counter().unwrap();
        let region = peer.domain.register(vec![0u8; 8]).await.unwrap();
        region.bind_counter(&counter, MrBind::all()).unwrap();
        sender
            .write(vec![1u8; 8], region.remote())
            .detach()
            .unwrap();
        while counter.read() == 0 {
            far.domain.progress();
            tokio::task::yield_now().await;
        }
        assert_eq!(bytes_of(&region), [1; 8]);
    });
}

/// `DomainBuilder::peer_of`: "one queue can report what comes through several interfaces or
/// backends". The backend of the first domain is not that of its peer, whose sockets a turn finds
/// all the same; and no runtime drives.
#[test]
fn one_queue_reports_from_the_network_and_from_within_the_process() {
    let reports = async |owner: Net, other: Net| {
        let a = owner.peer().unwrap();
        let b = opened_as_peer(&other, &a.domain);
        let queue = a.domain.completion_queue().open().unwrap();
        let mut ended = Vec::new();
        let mut open = Vec::new();
        for (net, side) in [(&owner, &a), (&other, &b)] {
            let near = side.domain.endpoint().completion_queue(&queue);
            let near = near.open().unwrap();
            let far = net.peer().unwrap();
            let sender = far.domain.endpoint().open().unwrap();
            connect_endpoints(&sender, &near, &side.fabric)
                .await
                .unwrap();
            near.recv(vec![0; 8]).queue(7).await.unwrap();
            sender.send("one").detach().unwrap();
            open.push((near, sender, far));
        }
        while ended.len() < 2 {
            ended.extend(queue.try_next().map(|it| it.endpoint));
            // Those who send are driven by hand too, and are no peers.
            let moved = open.iter().filter(|(_, _, far)| far.domain.progress());
            let _moved = moved.count();
            tokio::task::yield_now().await;
        }
        ended.sort();
        assert_eq!(ended, [open[0].0.id(), open[1].0.id()]);
    };
    for backend in backends() {
        for other in backends().into_iter().filter(|it| *it != backend) {
            let of = |backend| Net::on(backend).driver(Driver::Manual);
            let plainly = std::thread::spawn(move || block_on(reports(of(backend), of(other))));
            plainly.join().unwrap();
            for driver in DRIVERS {
                let nets = [Net::on(backend), Net::on(other)].map(|net| net.driver(driver));
                let [owner, other] = nets;
                let runtime = Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(reports(owner, other));
            }
        }
    }
}

/// A domain that drives itself may be a peer of one that is driven by hand, but not the other way
/// round: nothing would drive it where the other's objects are read.
#[test]
fn a_peer_that_nothing_would_drive_is_refused() {
    on_every_backend(|net| async move {
        let automatic = net.peer().unwrap().domain;
        let by_hand = net.clone().driver(Driver::Manual).peer().unwrap().domain;
        let open = |driver, of: &Domain| {
            let builder = net.fabric().unwrap().domain().driver(driver);
            builder.peer_of(of).open()
        };
        for driver in [Driver::Task, Driver::Thread] {
            open(driver, &by_hand).unwrap();
            open(driver, &automatic).unwrap();
        }
        open(Driver::Manual, &by_hand).unwrap();
        let error = open(Driver::Manual, &automatic).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("Driver::Manual"), "{error}");
        automatic.close().await.unwrap();
        let error = open(Driver::Task, &automatic).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadState);
    });
}

/// `DomainBuilder::peer_of`: "Neither domain keeps the other open": when the handles of one have
/// gone its connections end, and the other goes on.
#[test]
fn either_of_two_peers_may_go_first() {
    run_at_once(cells(), |net| async move {
        for owner_first in [true, false] {
            let owner = net.peer().unwrap();
            let peer = opened_as_peer(&net, &owner.domain);
            let (far_from_owner, far_from_peer) = (net.peer().unwrap(), net.peer().unwrap());
            let (x, far_x) = connect(&owner, &far_from_owner).await.unwrap();
            let (y, far_y) = connect(&peer, &far_from_peer).await.unwrap();
            let sides = [(x, far_x, owner), (y, far_y, peer)];
            let [gone, left] = match owner_first {
                true => sides,
                false => {
                    let [owner, peer] = sides;
                    [peer, owner]
                }
            };
            let (gone, far, side) = gone;
            drop((gone, side));
            let ended = far.recv(vec![0; 8]).await.unwrap_err();
            assert_eq!(ended.kind(), ErrorKind::PeerClosed, "{ended}");
            let (near, far, _side) = left;
            let (sent, received) = join(
                near.send("goes on").into_future(),
                far.recv(vec![0; 7]).into_future(),
            )
            .await;
            sent.unwrap();
            assert_eq!(received.unwrap().1, b"goes on");
        }
    });
}
