//! The boundary of a domain, and domains that are opened as peers of another one.

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::executor::block_on;
use futures::future::{Either, join, select};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_fabric::av::{FabricAddr, Insertion};
use tokio_fabric::mr::MrBind;
use tokio_fabric::rdm::RdmEndpointBuilder;
use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{
    AddressVector, Completion, Domain, Driver, Endpoint, ErrorKind, EventQueue, Result,
};

use crate::common::peers::{any, bytes_of};
use crate::common::{backends, on_every_backend, run_at_once};

const DRIVERS: [Driver; 3] = [Driver::Task, Driver::Thread, Driver::Manual];

/// Longer than anything here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// Runs the test for an owner on every backend with every driver, and a user with every driver.
fn with_every_user<T: Future<Output = ()>>(test: impl Fn(Net, Net) -> T + Sync) {
    run_at_once(cells(), |owner| {
        let test = &test;
        async move {
            for driver in DRIVERS {
                let user = owner.clone().driver(driver);
                let name = format!("{owner:?}, {user:?}");
                let ended = timeout(PATIENCE, test(owner.clone(), user)).await;
                ended.unwrap_or_else(|_| panic!("nothing moves: {name}"));
            }
        }
    });
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
    with_every_user(|owner, net| async move {
        let owner = owner.peer().unwrap();
        let (b, c) = (
            opened_as_peer(&net, &owner.domain),
            opened_as_peer(&net, &owner.domain),
        );
        let queue = owner.domain.completion_queue().open().unwrap();
        let counter = owner.domain.counter().unwrap();
        let x = b.domain.endpoint().completion_queue(&queue);
        let x = x.receive_counter(&counter).open().unwrap();
        let y = c.domain.endpoint().completion_queue(&queue);
        let y = y.send_counter(&counter).open().unwrap();
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

        for number in [4, 6] {
            x.recv(vec![0; 8]).detach().unwrap();
            y.send("counted").detach().unwrap();
            match number {
                4 => only_by(|| (counter.read() == number).then_some(())).await,
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
    with_every_user(|owner, net| async move {
        let owner = owner.peer().unwrap();
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
            for (of_owner, of_other) in DRIVERS.iter().flat_map(|a| DRIVERS.map(|b| (*a, b))) {
                let owner = Net::on(backend).driver(of_owner);
                let other = Net::on(other).driver(of_other);
                let runtime = Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(reports(owner, other));
            }
        }
    }
}

/// Errors of `DomainBuilder::open`: "as a peer of a closed domain".
#[test]
fn a_closed_domain_gets_no_peer() {
    on_every_backend(|net| async move {
        let closed = net.peer().unwrap().domain;
        closed.close().await.unwrap();
        for driver in DRIVERS {
            let builder = net.fabric().unwrap().domain().driver(driver);
            let error = builder.peer_of(&closed).open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadState);
        }
    });
}

/// `DomainBuilder::peer_of`: "Neither domain keeps the other open": when the handles of one have
/// gone its connections end, and the other goes on.
#[test]
fn either_of_two_peers_may_go_first() {
    with_every_user(|owners, net| async move {
        for owner_first in [true, false] {
            let owner = owners.peer().unwrap();
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
            // Who is driven by hand goes without waiting for the other's answer.
            let ended = far.recv(vec![0; 8]).await.unwrap_err();
            let is_end = |kind| matches!(kind, ErrorKind::PeerClosed | ErrorKind::ConnectionReset);
            assert!(is_end(ended.kind()), "{ended}");
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

/// Connects an endpoint to one of a domain that drives itself, of which nothing needs to be
/// awaited.
async fn sender_to(near: &Endpoint, user: &Peer, net: &Net) -> (Endpoint, Peer) {
    let far = net.clone().driver(Driver::Task).peer().unwrap();
    let sender = far.domain.endpoint().open().unwrap();
    let connected = connect_endpoints(&sender, near, &user.fabric).await;
    connected.unwrap();
    (sender, far)
}

/// `DomainBuilder::peer_of`: "Reading or awaiting an object that domains share drives each of them":
/// each way to read a queue or a counter, by itself.
#[test]
fn each_way_to_read_what_is_shared_drives_its_user() {
    with_every_user(|owner, net| async move {
        let owner = owner.peer().unwrap();
        let user = opened_as_peer(&net, &owner.domain);
        let queue = owner.domain.completion_queue().open().unwrap();
        let near = user.domain.endpoint().receive_queue(&queue);
        let near = near.open().unwrap();
        let (sender, _far) = sender_to(&near, &user, &net).await;
        for way in 0..5u64 {
            near.recv(vec![0; 8]).queue(way).await.unwrap();
            sender.send("one").await.unwrap();
            let mut batch = Vec::new();
            let read = match way {
                0 => only_by(|| queue.try_next()).await,
                1 => queue.next().await.unwrap(),
                2 => StreamExt::next(&mut queue.clone()).await.unwrap(),
                3 => queue.next_batch(8).await.remove(0),
                _ => only_by(|| (queue.read_batch(&mut batch, 1) > 0).then(|| batch.pop()))
                    .await
                    .unwrap(),
            };
            assert_eq!((read.context.0, read.len), (way, 3));
        }

        let user = opened_as_peer(&net, &owner.domain);
        let counter = owner.domain.counter().unwrap();
        let near = user.domain.endpoint().receive_counter(&counter);
        let near = near.open().unwrap();
        let (sender, _far) = sender_to(&near, &user, &net).await;
        for count in 1..3 {
            near.recv(vec![0; 8]).detach().unwrap();
            sender.send("one").await.unwrap();
            match count {
                1 => only_by(|| (counter.read() == count).then_some(())).await,
                _ => assert_eq!(counter.wait_for(count).await, Ok(count)),
            }
        }
        near.recv(vec![0; 2]).detach().unwrap();
        sender.send("longer").await.unwrap();
        only_by(|| (counter.read_error() == 1).then_some(())).await;

        let user = opened_as_peer(&net, &owner.domain);
        let counter = owner.domain.counter().unwrap();
        let region = user.domain.register(vec![0u8; 8]).now().unwrap();
        region.bind_counter(&counter, MrBind::all()).unwrap();
        let near = user.domain.endpoint().open().unwrap();
        let (sender, _far) = sender_to(&near, &user, &net).await;
        let write = || sender.write(vec![1u8; 8], region.remote());
        write().detach().unwrap();
        only_by(|| (counter.read() == 1).then_some(())).await;
        write().detach().unwrap();
        assert_eq!(counter.wait_for(2).await, Ok(2));
    });
}

/// The same of a shared receive context: of a receive that is awaited, and of the queue and the
/// counter of the context, although the endpoint has a queue of its own.
#[test]
fn each_way_to_receive_what_is_shared_drives_its_user() {
    with_every_user(|owner, net| async move {
        let owner = owner.peer().unwrap();
        for way in 0..4u64 {
            let user = opened_as_peer(&net, &owner.domain);
            let queue = owner.domain.completion_queue().open().unwrap();
            let counter = owner.domain.counter().unwrap();
            let context = owner.domain.receive_context();
            let context = context.receive_queue(&queue).receive_counter(&counter);
            let context = context.size(1).open().unwrap();
            let own = user.domain.completion_queue().open().unwrap();
            let near = user.domain.endpoint().receive_queue(&own);
            let near = near.receive_context(&context).open().unwrap();
            let (sender, _far) = sender_to(&near, &user, &net).await;
            match way {
                0 => {
                    let receive = context.recv(vec![0; 8]).post().unwrap();
                    sender.send("one").await.unwrap();
                    assert_eq!(receive.await.unwrap().0.endpoint, Some(near.id()));
                }
                1 => {
                    context.recv(vec![0; 8]).queue(way).await.unwrap();
                    sender.send("one").await.unwrap();
                    assert_eq!(queue.next().await.unwrap().len, 3);
                }
                2 => {
                    context.recv(vec![0; 8]).detach().unwrap();
                    sender.send("one").await.unwrap();
                    assert_eq!(counter.wait_for(1).await, Ok(1));
                }
                _ => {
                    // It waits for room, which there is once a message has come for the first.
                    context.recv(vec![0; 8]).queue(0).await.unwrap();
                    let second = context.recv(vec![0; 8]).queue(way).post().unwrap();
                    assert!(!second.is_accepted());
                    sender.send("one").await.unwrap();
                    second.await.unwrap();
                }
            }
        }
    });
}

/// An insertion that waits until the queue of its events is read.
fn waiting_insertion(owner: &Peer) -> (AddressVector, EventQueue, Insertion<FabricAddr>) {
    let events = owner.fabric.event_queue().size(2).writable();
    let events = events.open().unwrap();
    let vector = owner.domain.address_vector().asynchronous();
    let vector = vector.open().unwrap();
    vector.bind(&events).unwrap();
    while events.write(0, Bytes::new()).is_ok() {}
    let insertion = vector.insert(([127, 0, 0, 1], 1).into()).context(1u64);
    (vector, events, insertion.into_future())
}

/// The same of an insertion into an address vector.
#[test]
fn an_insertion_into_a_vector_that_is_shared_drives_its_user() {
    with_every_user(|owner, net| async move {
        let owner = owner.peer().unwrap();
        let user = opened_as_peer(&net, &owner.domain);
        let far = net.clone().driver(Driver::Task).peer().unwrap();
        let (vector, events, insertion) = waiting_insertion(&owner);
        let near = user.domain.rdm_endpoint().address_vector(&vector);
        let near = near.listen_at(any()).open().unwrap();
        near.recv(vec![0; 8]).detach().unwrap();
        let sender = far.domain.rdm_endpoint().listen_at(any()).open().unwrap();
        let to_near = sender.insert(near.local_addr()).unwrap();
        let sent = sender.send("one", to_near).delivery_complete();
        let (sent, insertion) = match select(insertion, sent.into_future()).await {
            Either::Right(it) => it,
            Either::Left(_) => panic!("the queue of its events is full"),
        };
        sent.unwrap();
        while events.try_next().is_some() {}
        insertion.await.unwrap();
    });
}

/// Awaits this in a task of its own, which waits when this returns.
async fn waits<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let (begun, mut begins) = (Arc::new(Notify::new()), Box::pin(future));
    let notes = Arc::clone(&begun);
    let waiting = tokio::spawn(async move {
        let first = futures::poll!(begins.as_mut());
        assert!(first.is_pending());
        notes.notify_one();
        begins.await
    });
    begun.notified().await;
    tokio::task::yield_now().await;
    waiting
}

/// "Reading or awaiting an object that domains share drives each of them": also who has waited
/// since before the domain was there, for a queue, a counter, a receive and an insertion.
#[test]
fn who_waits_already_drives_what_is_bound_then() {
    with_every_user(|owner, net| async move {
        let owner = owner.peer().unwrap();
        let queue = owner.domain.completion_queue().open().unwrap();
        let reader = queue.clone();
        let waiting = waits(async move { reader.next().await }).await;
        let user = opened_as_peer(&net, &owner.domain);
        let near = user.domain.endpoint().completion_queue(&queue);
        let near = near.open().unwrap();
        let (sender, _far) = sender_to(&near, &user, &net).await;
        near.recv(vec![0; 8]).queue(1).await.unwrap();
        sender.send("one").await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().len, 3);

        let counter = owner.domain.counter().unwrap();
        let waiting = waits(counter.wait_for(1)).await;
        let user = opened_as_peer(&net, &owner.domain);
        let near = user.domain.endpoint().receive_counter(&counter);
        let near = near.open().unwrap();
        let (sender, _far) = sender_to(&near, &user, &net).await;
        near.recv(vec![0; 8]).detach().unwrap();
        sender.send("one").await.unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(1));

        // A receive that waits for a message, and one that waits for room.
        for way in 0..2 {
            let context = owner.domain.receive_context().size(1).open().unwrap();
            let waiting = match way {
                0 => {
                    let receive = context.recv(vec![0; 8]).post().unwrap();
                    waits(async move { receive.await.map(drop) }).await
                }
                _ => {
                    context.recv(vec![0; 8]).queue(1).await.unwrap();
                    let second = context.recv(vec![0; 8]).queue(2).post().unwrap();
                    waits(async move { second.await.map(drop) }).await
                }
            };
            let user = opened_as_peer(&net, &owner.domain);
            let near = user.domain.endpoint().receive_context(&context);
            let near = near.open().unwrap();
            let (sender, _far) = sender_to(&near, &user, &net).await;
            sender.send("one").await.unwrap();
            waiting.await.unwrap().unwrap();
        }

        let (vector, events, insertion) = waiting_insertion(&owner);
        let waiting = waits(insertion).await;
        let user = opened_as_peer(&net, &owner.domain);
        let near = user.domain.rdm_endpoint().address_vector(&vector);
        let near = near.listen_at(any()).open().unwrap();
        near.recv(vec![0; 8]).detach().unwrap();
        let far = net.clone().driver(Driver::Task).peer().unwrap();
        let sender = far.domain.rdm_endpoint().listen_at(any()).open().unwrap();
        let to_near = sender.insert(near.local_addr()).unwrap();
        let sent = sender.send("one", to_near).delivery_complete().await;
        sent.unwrap();
        while events.try_next().is_some() {}
        waiting.await.unwrap().unwrap();
    });
}

/// A shared receive that is matched with an announced message, and goes back when the sender is
/// lost before it has sent that, is filled by a domain that came meanwhile.
#[test]
fn a_receive_that_goes_back_drives_who_came_meanwhile() {
    with_every_user(|owner, net| async move {
        let owner = owner.peer().unwrap();
        let context = owner.domain.receive_context();
        let context = context.rendezvous_min(1).open().unwrap();
        let receive = context.recv(vec![0; 1 << 20]).post().unwrap();
        let waiting = waits(receive).await;
        let posted = || context.stats().receives.posted;
        let first = opened_as_peer(&net.clone().driver(Driver::Task), &owner.domain);
        let near = first.domain.endpoint().receive_context(&context);
        let near = near.open().unwrap();
        // Nothing drives it any more once it has announced the message.
        let far = net.clone().driver(Driver::Manual).peer().unwrap();
        let lost = far.domain.endpoint().open().unwrap();
        let connected = connect_endpoints(&lost, &near, &first.fabric).await;
        connected.unwrap();
        let sending = lost.send(vec![1; 1 << 20]).post().unwrap();
        while posted() > 0 {
            far.domain.progress();
            tokio::task::yield_now().await;
        }
        let user = opened_as_peer(&net, &owner.domain);
        let next = user.domain.endpoint().receive_context(&context);
        let next = next.open().unwrap();
        let (sender, _far) = sender_to(&next, &user, &net).await;
        assert!(posted() == 0 && !waiting.is_finished());
        drop((sending, lost, far));
        while posted() == 0 {
            tokio::task::yield_now().await;
        }
        sender.send("one").await.unwrap();
        let (received, _) = waiting.await.unwrap().unwrap();
        assert_eq!(received.endpoint, Some(next.id()));
    });
}

/// Endpoints and domains end while others read what they share: what was posted is reported all the
/// same, and the reader goes on with those that come later.
#[test]
fn who_reads_goes_on_when_a_user_has_gone() {
    with_every_user(|owner, net| async move {
        let owner = owner.peer().unwrap();
        let queue = owner.domain.completion_queue().open().unwrap();
        let user = opened_as_peer(&net, &owner.domain);
        let open = |user: &Peer| {
            let near = user.domain.endpoint().completion_queue(&queue);
            near.open().unwrap()
        };
        // An endpoint goes, and its domain stays.
        let near = open(&user);
        let (_sender, _far) = sender_to(&near, &user, &net).await;
        near.recv(vec![0; 8]).queue(1).await.unwrap();
        drop(near);
        assert!(queue.next().await.unwrap().result.is_err());
        // The domain goes too, while another task reads.
        let near = open(&user);
        let (_sender, _far) = sender_to(&near, &user, &net).await;
        near.recv(vec![0; 8]).queue(2).await.unwrap();
        let reader = queue.clone();
        let waiting = waits(async move { [reader.next().await, reader.next().await] }).await;
        drop((near, user));
        let user = opened_as_peer(&net, &owner.domain);
        let near = open(&user);
        let (sender, _far) = sender_to(&near, &user, &net).await;
        near.recv(vec![0; 8]).queue(3).await.unwrap();
        sender.send("one").await.unwrap();
        let of = |it: Option<Completion>| it.map(|it| (it.context.0, it.result.is_ok()));
        let mut ended = waiting.await.unwrap().map(of);
        ended.sort(); // A task or a thread ends what its domain has posted when it comes to it.
        assert_eq!(ended, [Some((2, false)), Some((3, true))]);
        // What waits for the end of all that the owner has opened drives the user, which has to end
        // what it has of it.
        near.recv(vec![0; 8]).queue(4).await.unwrap();
        drop((near, queue));
        owner.domain.closed().await;
    });
}

/// Ruling 11: "If the runtime stops, every pending and later operation fails", which a reader in
/// another runtime finds in the queue that it shares.
#[test]
fn who_reads_finds_the_end_of_another_runtime() {
    with_every_user(|owner, net| async move {
        let owner = owner.peer().unwrap();
        let mut other = Builder::new_multi_thread();
        let other = other.worker_threads(1).enable_all().build().unwrap();
        let entered = other.enter();
        let user = opened_as_peer(&net, &owner.domain);
        drop(entered);
        let queue = owner.domain.completion_queue().open().unwrap();
        let near = user.domain.endpoint().completion_queue(&queue);
        let near = near.open().unwrap();
        near.recv(vec![0; 8]).queue(1).await.unwrap();
        let reader = queue.clone();
        let waiting = waits(async move { reader.next().await }).await;
        std::thread::spawn(move || drop(other)).join().unwrap();
        if user.domain.driver() == Driver::Thread {
            return; // It has no runtime.
        }
        let ended = waiting.await.unwrap().unwrap().result.unwrap_err();
        assert_eq!(ended.error.kind(), ErrorKind::DriverGone, "{ended:?}");
    });
}
