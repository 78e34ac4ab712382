//! Opening, binding and closing domains (`fi_domain(3)`).

mod closing;
mod counts;
mod ops;
mod peers;

use std::time::Duration;

use crate::common::peers::{listener, no_listener, open_region, peer_with, request};
use crate::common::{backends, on, on_every_backend};
use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{
    Access, Backend, Driver, ErrorKind, Event, EventQueue, Hints, UserContext, domain::DomainBind,
    eq::EndpointId, info::Progress,
};

fn runtime(threads: usize, io: bool, time: bool) -> tokio::runtime::Runtime {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if io {
        builder.enable_io();
    }
    if time {
        builder.enable_time();
    }
    builder
        .worker_threads(threads.max(1))
        .build()
        .expect("a runtime")
}

/// api.md decision 10: "Misuse that depends on run-time state is an error, never a panic": no
/// runtime, or one without what the backend needs.
#[test]
fn without_a_suitable_runtime_opening_is_an_error() {
    for backend in backends() {
        let fabric = Net::on(backend)
            .fabric()
            .expect("a fabric needs no runtime");
        let open = || {
            fabric.domain().open().map(|_| ()).map_err(|error| {
                assert_eq!(error.fi_errno(), error.kind().fi_errno());
                assert!(error.fi_errno() > 0 && !error.to_string().is_empty());
                error.kind()
            })
        };
        assert_eq!(open(), Err(ErrorKind::NoRuntime), "{backend}");
        let needs_io = backend != Backend::Loopback;
        for threads in [0, 2] {
            let lacking = runtime(threads, !needs_io, needs_io);
            lacking.block_on(async { assert_eq!(open(), Err(ErrorKind::NoRuntime), "{backend}") });
            let enough = runtime(threads, needs_io, !needs_io);
            enough.block_on(async { assert_eq!(open(), Ok(()), "{backend}") });
        }
    }
}

/// fi_domain(3): "Opens a fabric access domain, also referred to as a resource domain."
/// fi_domain(3): `fi_domain`, function.
/// fi_domain(3): "An opened access domain."
/// fi_domain(3): `fi_domain(fabric)`, argument: the fabric.
/// fi_domain(3): "Fabric information, including domain capabilities and attributes."
/// fi_domain(3): "Fabric domains are identified by a name."
/// fi_domain(3): "The properties of the opened domain are specified using the info parameter."
/// fi_domain(3): "The name of the access domain."
/// fi_domain(3): "Returns 0 on success."
/// fi_domain(3): `fi_getinfo`, function (named as the way in for domain attributes).
#[test]
fn a_domain_is_opened_with_the_properties_of_its_info() {
    on_every_backend(|net| async move {
        let fabric = net
            .fabric_with(
                Hints::new()
                    .tx(|tx| tx.size(8))
                    .domain(|domain| domain.mr_cnt(70_000)),
            )
            .unwrap();
        for info in fabric.infos() {
            let domain = fabric.domain().info(info.clone()).open().unwrap();
            assert_eq!(domain.info(), info);
            assert!(!domain.info().domain.name.is_empty());
            assert_eq!(
                (domain.info().tx.size, domain.info().domain.mr_cnt),
                (8, 70_000)
            );
            assert_eq!(domain.backend(), net.backend());
        }
        // The first of fi_getinfo's answers is the default; others may be asked for by name.
        let named = fabric.infos().last().unwrap().domain.name.clone();
        let only = net
            .fabric_with(Hints::new().domain(|domain| domain.name(named.clone())))
            .unwrap();
        assert!(only.infos().iter().all(|info| info.domain.name == named));
        assert_eq!(fabric.domain().open().unwrap().info(), &fabric.infos()[0]);
    });
}

/// fi_domain(3): "User specified context associated with the domain."
#[test]
fn a_domain_keeps_its_context() {
    on_every_backend(|net| async move {
        let fabric = net.fabric().unwrap();
        let with = fabric.domain().context(77u64).open().unwrap();
        assert_eq!(with.context(), Some(UserContext(77)));
        assert_eq!(fabric.domain().open().unwrap().context(), None);
    });
}

/// fi_domain(3): "This context is returned as part of any asynchronous event associated with the
/// domain.": one for each driver that ends although the domain is open, after what it moved has
/// ended; none of a domain that is closed, or has no context to be known by.
#[test]
fn the_end_of_a_driver_is_reported_with_the_domains_context() {
    for (backend, drivers) in backends().into_iter().flat_map(|it| [(it, 1), (it, 2)]) {
        let net = Net::on(backend);
        let first = runtime(2, true, true);
        let (fabric, events, silent, _domains, endpoint) = first.block_on(async {
            let fabric = net.fabric().unwrap();
            let opened = |context: Option<u64>| {
                let events = fabric.event_queue().open().unwrap();
                let domain = fabric.domain().progress_shards(drivers);
                let domain = match context {
                    Some(context) => domain.context(context),
                    None => domain,
                };
                let domain = domain.open().unwrap();
                domain.bind(&events, DomainBind::empty()).unwrap();
                (domain, events)
            };
            let (closed, untold) = opened(Some(1));
            closed.close().await.unwrap();
            assert!(untold.try_next().is_none());
            untold.close().await.unwrap();
            let ((named, events), (nameless, silent)) = (opened(Some(77)), opened(None));
            let other = net.peer().unwrap();
            let endpoint = named.endpoint().open().unwrap();
            let theirs = other.domain.endpoint().open().unwrap();
            connect_endpoints(&endpoint, &theirs, &other.fabric)
                .await
                .unwrap();
            (
                fabric,
                events,
                silent,
                (named, nameless, other, theirs),
                endpoint,
            )
        });
        drop(first);
        let mut ends = 0;
        let mut is_shut_down = false;
        runtime(0, true, true).block_on(async {
            while ends < drivers {
                match events.next().await.unwrap() {
                    Event::Connected { .. } => {}
                    Event::Shutdown {
                        endpoint: ended, ..
                    } => {
                        is_shut_down = ended == endpoint.id();
                    }
                    Event::Error(end) => {
                        assert_eq!(end.context, Some(UserContext(77)));
                        assert_eq!(end.error.kind(), ErrorKind::DriverGone);
                        ends += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        assert!(is_shut_down, "the endpoint ended before its driver");
        assert!(silent.try_next().is_none());
        drop(fabric);
    }
}

/// Ruling 8: "Slots of an event queue are reserved": a domain whose events would find no place is
/// not bound.
#[test]
fn a_domain_with_a_context_is_bound_where_its_events_have_a_place() {
    on_every_backend(|net| async move {
        let fabric = net.fabric().unwrap();
        let events = fabric.event_queue().size(1).open().unwrap();
        let opened = || {
            fabric
                .domain()
                .context(5u64)
                .progress_shards(2)
                .open()
                .unwrap()
        };
        let domain = opened();
        let full = domain.bind(&events, DomainBind::empty()).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Again);
        assert!(domain.event_queue().is_none(), "nothing has happened");
        let roomy = fabric.event_queue().size(2).open().unwrap();
        domain.bind(&roomy, DomainBind::empty()).unwrap();
        let next = opened().bind(&roomy, DomainBind::empty()).unwrap_err();
        assert_eq!(next.kind(), ErrorKind::Again);
        domain.close().await.unwrap();
        opened().bind(&roomy, DomainBind::empty()).unwrap();
    });
}

fn endpoint_of(event: Option<Event>) -> EndpointId {
    match event {
        Some(Event::Connected { endpoint, .. } | Event::Shutdown { endpoint, .. }) => endpoint,
        other => panic!("{other:?} instead of an endpoint's event"),
    }
}

/// fi_domain(3): "Associates an event queue with the domain."
/// fi_domain(3): `fi_domain_bind`, function.
/// fi_domain(3): "Event queue for asynchronous operations initiated on the domain."
/// fi_domain(3): `fi_domain_bind(flags)`, argument.
/// fi_domain(3): "An event queue bound to a domain will be the default EQ associated with
/// asynchronous control events"
/// fi_domain(3): "events that occur on the domain or active endpoints allocated on a domain."
/// fi_domain(3): "This includes CM events."
/// fi_domain(3): "They include address vector, memory registration, and connection management
/// routines."
#[test]
fn the_domains_queue_takes_the_events_of_its_endpoints() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        assert_eq!(
            a.domain.event_queue().map(|queue| queue.capacity()),
            Some(256)
        );
        let (x, y) = connect(&a, &b).await.unwrap();
        assert_eq!(endpoint_of(a.events.next().await), x.id());
        assert_eq!(endpoint_of(b.events.next().await), y.id());
        x.shutdown().await.unwrap();
        assert_eq!(endpoint_of(a.events.next().await), x.id());
        assert_eq!(endpoint_of(b.events.next().await), y.id());
        // A failed control operation is reported there, too.
        let z = a.domain.endpoint().open().unwrap();
        let refused = z.connect(no_listener()).context(5u64).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
        match a.events.next().await {
            Some(Event::Error(failed)) => {
                assert_eq!(
                    (failed.endpoint, failed.context),
                    (Some(z.id()), Some(UserContext(5)))
                );
            }
            other => panic!("{other:?} instead of the error"),
        }
    });
}

/// fi_domain(3): "Endpoints may direct their control events to alternate EQs by binding directly
/// with the EQ."
/// fi_domain(3): `fi_ep_bind`, function (named under fi_domain_bind).
/// fi_domain(3): `fi_pep_bind`, function (named under fi_domain_bind).
#[test]
fn endpoints_may_have_a_queue_of_their_own() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let own = a.fabric.event_queue().open().unwrap();
        let x = a.domain.endpoint().event_queue(&own).open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        assert_eq!(endpoint_of(own.next().await), x.id());
        x.shutdown().await.unwrap();
        assert_eq!(endpoint_of(own.next().await), x.id());
        assert!(a.events.is_empty());
        // A passive endpoint's requests come to the queue it was bound to, and nowhere else.
        let (listener, requests) = listener(&b);
        let z = a.domain.endpoint().event_queue(&own).open().unwrap();
        let connecting = tokio::spawn(z.connect(listener.local_addr()).into_future());
        let asked = request(&requests).await;
        assert_eq!(asked.listener(), listener.id());
        drop(asked);
        assert!(connecting.await.unwrap().is_err());
        assert_eq!(endpoint_of(b.events.next().await), y.id());
        assert_eq!(endpoint_of(b.events.next().await), y.id());
        assert!(b.events.is_empty());
    });
}

/// A second binding and unknown flags are refused, and nothing has changed then.
/// fi_mr(3): `FI_EBADFLAGS`, error code.
/// fi_mr(3): "Returned if the specified flags are not supported by the provider."
#[test]
fn a_domain_is_bound_once_and_flags_are_checked() {
    on_every_backend(|net| async move {
        let fabric = net.fabric().unwrap();
        let (first, second) = (
            fabric.event_queue().open().unwrap(),
            fabric.event_queue().open().unwrap(),
        );
        let domain = fabric.domain().open().unwrap();
        let unknown = domain
            .bind(&first, DomainBind::from_bits_retain(1 << 3))
            .unwrap_err();
        assert_eq!(
            (unknown.kind(), unknown.fi_errno()),
            (ErrorKind::BadFlags, 260)
        );
        assert!(domain.event_queue().is_none());
        domain.bind(&first, DomainBind::REG_MR).unwrap();
        assert_eq!(
            domain
                .bind(&second, DomainBind::empty())
                .unwrap_err()
                .kind(),
            ErrorKind::Busy
        );
        second.close().await.unwrap();
        assert_eq!(first.close().await.unwrap_err().kind(), ErrorKind::Busy);
    });
}

/// fi_domain(3): `FI_PROGRESS_AUTO`, enumeration value.
/// fi_domain(3): "make forward progress on an asynchronous operation without further intervention
/// by the application."
/// fi_domain(3): "provided as output to fi_getinfo in the absence of any progress hints"
/// fi_domain(3): "All providers are required to support FI_PROGRESS_AUTO."
/// fi_domain(3): "It is recommended that providers support FI_PROGRESS_AUTO."
#[test]
fn progress_needs_nothing_of_the_application() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        use tokio_fabric::info::Progress::Auto;
        let offered = a.domain.info().domain.clone();
        assert_eq!(
            (offered.control_progress, offered.data_progress),
            (Auto, Auto)
        );
        let region = open_region(&b, vec![0u8; 1 << 20]).await;
        let (x, _y) = connect(&a, &b).await.unwrap();
        let counter = b.domain.counter().unwrap();
        // The target calls nothing, not even for its queues, while megabytes move both ways.
        let bytes = vec![9u8; 1 << 20];
        let (_, bytes) = x
            .write(bytes, region.remote())
            .delivery_complete()
            .await
            .unwrap();
        let (_, back) = x.read(vec![0u8; 1 << 20], region.remote()).await.unwrap();
        assert_eq!(bytes, back);
        // An operation that is not polled makes progress as well.
        let queue = a.domain.completion_queue().open().unwrap();
        let (x, y) = {
            let x = a.domain.endpoint().completion_queue(&queue).open().unwrap();
            let y = b
                .domain
                .endpoint()
                .receive_counter(&counter)
                .open()
                .unwrap();
            let unpolled = [
                y.recv(vec![0u8; 8]).post().unwrap(),
                y.recv(vec![0u8; 8]).post().unwrap(),
            ];
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            x.send("unpolled").queue(1u64).try_post().unwrap();
            x.send("as well").queue(2u64).try_post().unwrap();
            counter.wait_for(2).await.unwrap();
            for receive in unpolled {
                assert_eq!(receive.phase(), tokio_fabric::error::Phase::Ended);
            }
            (x, y)
        };
        for _ in 0..2 {
            queue.next().await.unwrap().result.unwrap();
        }
        drop((x, y));
    });
}

/// House: "idle costs no CPU": an idle connection with posted receives uses none.
#[test]
fn an_idle_domain_uses_no_cpu() {
    for backend in backends() {
        on(backend, |net| async move {
            let (a, b) = net.pair().await.unwrap();
            let _receives = [
                a.recv(vec![0u8; 64]).post().unwrap(),
                b.recv(vec![0u8; 64]).post().unwrap(),
            ];
            tokio::time::sleep(Duration::from_millis(50)).await;
            let used = || {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
            };
            let before = used();
            tokio::time::sleep(Duration::from_millis(400)).await;
            let spent = used() - before;
            assert!(
                spent < Duration::from_millis(8),
                "{spent:?} of 400 ms on {backend}"
            );
        });
    }
}

/// Two domains of one process: each with its own progress, regions and queues.
#[test]
fn two_domains_live_side_by_side() {
    on_every_backend(|net| async move {
        let fabric = net.fabric().unwrap();
        let (one, two) = (
            fabric.domain().open().unwrap(),
            fabric.domain().open().unwrap(),
        );
        let _first = one.register(vec![0u8; 4]).key(5).now().unwrap();
        let _second = two.register(vec![0u8; 4]).key(5).now().unwrap();
        assert_eq!((one.region_count(), two.region_count()), (1, 1));
        drop(_first);
        one.close().await.unwrap();
        let events = fabric.event_queue().open().unwrap();
        two.bind(&events, DomainBind::empty()).unwrap();
        let _endpoint = two.endpoint().open().unwrap();
    });
}

/// Ruling 11: "If the runtime stops, every pending and later operation fails with `DriverGone`."
#[test]
fn when_the_runtime_ends_everything_says_so() {
    for backend in backends() {
        let net = Net::on(backend);
        let first = runtime(2, true, true);
        // The peer lives on: of two that end together, the first to end may close the other's
        // connections.
        let second = runtime(1, true, true);
        let peer = second.block_on(async { net.peer().unwrap() });
        let (a, receive, listener) = first.block_on(async {
            let here = net.peer().unwrap();
            let (a, b) = connect(&here, &peer).await.unwrap();
            let receive = a.recv(vec![0u8; 8]).post().unwrap();
            let (listener, requests) = listener(&here);
            std::mem::forget((b, requests));
            (a, receive, listener)
        });
        drop(first);
        runtime(0, true, true).block_on(async {
            let pending = receive.await.unwrap_err();
            assert_eq!(pending.kind(), ErrorKind::DriverGone, "{pending}");
            let later = a.send("late").await.unwrap_err();
            assert_eq!(later.kind(), ErrorKind::DriverGone, "{later}");
            assert_eq!(
                a.domain().endpoint().open().unwrap_err().kind(),
                ErrorKind::DriverGone
            );
            assert!(!listener.is_listening());
        });
    }
}

/// fi_domain(3): `FI_THREAD_SAFE`, enumeration value.
/// fi_domain(3): "allows a multi-threaded application to access any allocated resources through any
/// interface without restriction."
/// fi_domain(3): "Control interfaces are always considered thread safe, and may be accessed by
/// multiple threads."
/// fi_domain(3): "A thread safe control interface allows multiple threads to progress the control
/// interface"
/// fi_domain(3): "one or more threads to progress the data interfaces at the same time."
/// fi_domain(3): "one thread may be initiating a data transfer on an endpoint, while another thread
/// reads from a completion queue"
/// fi_domain(3): "no serialization is required between the submission of data transmit requests and
/// data receive operations."
#[test]
fn any_thread_may_use_anything_at_any_time() {
    on_every_backend(|net| async move {
        const EACH: u64 = 200;
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = a.domain.completion_queue().open().unwrap();
        let sent = a.domain.counter().unwrap();
        let x = a
            .domain
            .endpoint()
            .completion_queue(&queue)
            .send_counter(&sent)
            .open()
            .unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let threads: Vec<_> = (0..4u64)
            .map(|number| {
                let (x, y, domain) = (x.clone(), y.clone(), a.domain.clone());
                std::thread::spawn(move || {
                    futures::executor::block_on(async {
                        for step in 0..EACH {
                            match number {
                                0 | 1 => drop(x.send(vec![1u8; 64]).queue(step).await.unwrap()),
                                2 => drop(y.recv(vec![0u8; 64]).await.unwrap()),
                                _ => {
                                    drop(y.recv(vec![0u8; 64]).await.unwrap());
                                    let region = domain.register(vec![0u8; 64]).now().unwrap();
                                    assert!(domain.region_count() > 0);
                                    drop(region);
                                    domain.endpoint().open().unwrap().shutdown().await.unwrap();
                                }
                            }
                        }
                    });
                })
            })
            .collect();
        let mut ended = 0;
        while ended < 2 * EACH {
            let completion = queue.next().await.unwrap();
            completion.result.unwrap();
            ended += 1;
        }
        sent.wait_for(2 * EACH).await.unwrap();
        for thread in threads {
            tokio::task::spawn_blocking(|| thread.join().unwrap())
                .await
                .unwrap();
        }
    });
}

/// fi_domain(3): "Control interfaces are always considered thread safe unless the control progress
/// model is FI_PROGRESS_CONTROL_UNIFIED." Here with that one too: several threads open, bind,
/// connect, register, insert and close at the same time, in one domain.
#[test]
fn control_calls_of_several_threads_are_safe_with_each_control_progress() {
    for backend in backends() {
        for control in [Progress::Auto, Progress::Manual, Progress::ControlUnified] {
            let hints = Hints::new().domain(|domain| {
                let data = match control {
                    Progress::Auto => Progress::Auto,
                    _ => Progress::Manual,
                };
                domain.control_progress(control).data_progress(data)
            });
            let net = match control {
                Progress::Auto => Net::on(backend),
                _ => Net::on(backend).driver(Driver::Manual),
            };
            runtime(2, true, true).block_on(async {
                let peer = peer_with(&net, hints, DomainBind::empty());
                let calls = (0..4u64).map(|thread| {
                    let (net, peer) = (net.clone(), peer.clone());
                    tokio::spawn(async move {
                        for round in 0..20 {
                            control_calls(&net, &peer, thread * 1000 + round).await;
                        }
                    })
                });
                for called in calls.collect::<Vec<_>>() {
                    called.await.unwrap();
                }
                assert_eq!(peer.domain.region_count(), 0);
            });
        }
    }
}

async fn control_calls(net: &Net, peer: &Peer, key: u64) {
    let domain = &peer.domain;
    let region = domain.register(vec![0u8; 8]).key(key).now().unwrap();
    let (queue, counter) = (
        domain.completion_queue().open().unwrap(),
        domain.counter().unwrap(),
    );
    let vector = domain.address_vector().open().unwrap();
    let address = ([127, 0, 0, 1], 1 + key as u16).into();
    let name = vector.insert(address).now().unwrap();
    let builder = domain.endpoint().completion_queue(&queue);
    let x = builder.receive_counter(&counter).open().unwrap();
    let other = net.clone().driver(Driver::Task).peer().unwrap();
    let y = other.domain.endpoint().open().unwrap();
    connect_endpoints(&x, &y, &other.fabric).await.unwrap();
    x.send("connected").await.unwrap();
    assert_eq!(y.recv(vec![0u8; 16]).await.unwrap().0.len, 9);
    assert_eq!(vector.lookup(name).unwrap(), address);
    vector.remove(name).unwrap();
    x.shutdown().await.unwrap();
    assert_eq!(region.key(), key);
    region.deregister().await.unwrap();
}

/// An endpoint that was never connected reports no Shutdown (`fi_eq(3)`: FI_SHUTDOWN is of a
/// connection), and gives its two places in the queue back.
#[test]
fn an_endpoint_that_never_connected_reports_nothing() {
    on_every_backend(|net| async move {
        let fabric = net.fabric().unwrap();
        let events: EventQueue = fabric.event_queue().size(2).open().unwrap();
        let domain = fabric.domain().open().unwrap();
        for _ in 0..3 {
            let endpoint = domain.endpoint().event_queue(&events).open().unwrap();
            assert_eq!(
                domain
                    .endpoint()
                    .event_queue(&events)
                    .open()
                    .unwrap_err()
                    .kind(),
                ErrorKind::Again
            );
            endpoint.shutdown().await.unwrap();
            drop(endpoint);
            assert!(events.is_empty());
        }
        events.close().await.unwrap();
    });
}

/// fi_domain(3): "not bound to the domain with the FI_REG_MR flag, then memory registration
/// requests complete synchronously."
#[test]
fn without_reg_mr_registration_ends_at_the_first_poll() {
    use futures::FutureExt;
    on_every_backend(|net| async move {
        let fabric = net.fabric().unwrap();
        let unbound = fabric.domain().open().unwrap();
        let peer = net.peer().unwrap();
        for domain in [unbound, peer.domain.clone()] {
            let register = domain
                .register(vec![0u8; 64])
                .access(Access::LOCAL)
                .context(3u64);
            let region = register
                .into_future()
                .now_or_never()
                .expect("at the first poll")
                .unwrap();
            assert_eq!(region.len(), 64);
        }
        assert!(peer.events.is_empty());
    });
}

/// fi_domain(3): "an endpoint may communicate with other endpoints that are allocated from the same
/// underlying named domain."
#[test]
fn endpoints_of_one_domain_reach_each_other() {
    on_every_backend(|net| async move {
        let peer = net.peer().unwrap();
        let (x, y) = connect(&peer, &peer).await.unwrap();
        let region = open_region(&peer, vec![1u8; 4]).await;
        x.send("same").await.unwrap();
        assert_eq!(y.recv(vec![0u8; 4]).await.unwrap().0.len, 4);
        assert_eq!(
            y.read(vec![0u8; 4], region.remote()).await.unwrap().1,
            vec![1u8; 4]
        );
    });
}
