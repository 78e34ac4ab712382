//! What an application may do that has promised to serialize its calls (THREADING of
//! `fi_domain(3)`): the same as any other. The library is thread safe whatever was promised.

use std::thread;

use futures::executor::block_on;

use crate::common::on_every_backend;
use crate::common::peers::{any, peer_with};
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{Counter, EndpointType, Failed, Hints, domain::DomainBind, info::Threading};

const PROMISES: [Threading; 4] = [
    Threading::Fid,
    Threading::Endpoint,
    Threading::Completion,
    Threading::Domain,
];
const EACH: usize = 40;

fn peers(net: &Net, endpoint: EndpointType, promised: Threading) -> [Peer; 2] {
    [(); 2].map(|()| {
        let hints = Hints::new().endpoint(endpoint);
        let hints = hints.domain(|domain| domain.threading(promised));
        let peer = peer_with(net, hints, DomainBind::empty());
        assert_eq!(peer.domain.info().domain.threading, promised);
        peer
    })
}

/// Two threads post sends to one queue, one posts receives, one reads the queue and the counter:
/// all at the same time, none waits for another.
async fn share<S, R, Q>(send: S, receive: R, completed: Q, counter: Counter)
where
    S: Fn(u64) -> Result<(), Failed<Vec<u8>>> + Clone + Send + 'static,
    R: Fn() -> Result<(), Failed<Vec<u8>>> + Send + 'static,
    Q: Fn() -> Result<(), String> + Send + 'static,
{
    let post = move |send: S| (0..EACH as u64).try_for_each(send);
    let error = |failed: Failed<Vec<u8>>| failed.to_string();
    let (one, two) = (send.clone(), send);
    let threads = [
        thread::spawn(move || post(one).map_err(error)),
        thread::spawn(move || post(two).map_err(error)),
        thread::spawn(move || (0..2 * EACH).try_for_each(|_| receive()).map_err(error)),
        thread::spawn(move || {
            let counting = counter.wait_for(2 * EACH as u64);
            (0..2 * EACH).try_for_each(|_| completed())?;
            block_on(counting)
                .map(|_| ())
                .map_err(|error| error.to_string())
        }),
    ];
    for thread in threads {
        let joined = tokio::task::spawn_blocking(|| thread.join().unwrap());
        joined.await.unwrap().unwrap();
    }
}

/// fi_domain(3): `FI_THREAD_FID`, enumeration value.
/// fi_domain(3): "requires applications to serialize access to individual fabric resources"
/// fi_domain(3): "serialized when accessing the same endpoint, transmit context, receive context,
/// completion queue, counter"
/// fi_domain(3): "Serialization is required only by threads accessing the same object."
/// fi_domain(3): "Serialization to endpoint access is only required when accessing the same endpoint
/// data flow."
/// fi_domain(3): `FI_THREAD_ENDPOINT`, enumeration value.
/// fi_domain(3): "serialization is required when accessing the same endpoint, even if multiple
/// transmit and receive contexts are used."
/// fi_domain(3): `FI_THREAD_COMPLETION`, enumeration value.
/// fi_domain(3): "threads must serialize access to an endpoint and its bound completion queue(s)
/// and/or counters."
/// fi_domain(3): "Access to endpoints that share the same completion queue must also be serialized."
/// fi_domain(3): "serialize access to all objects that are associated by a common completion
/// mechanism"
/// fi_domain(3): `FI_THREAD_DOMAIN`, enumeration value.
/// fi_domain(3): "requires applications to serialize access to all objects belonging to a domain."
#[test]
fn a_promise_to_serialize_need_not_be_kept() {
    on_every_backend(|net| async move {
        for promised in PROMISES {
            let [a, b] = peers(&net, EndpointType::Msg, promised);
            let (queue, counter) = (
                a.domain.completion_queue().open().unwrap(),
                a.domain.counter().unwrap(),
            );
            let x = a.domain.endpoint().completion_queue(&queue);
            let x = x.send_counter(&counter).open().unwrap();
            let y = b.domain.endpoint().open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            let completed = move || {
                let completion = block_on(queue.next()).ok_or("the queue is closed")?;
                completion.result.map_err(|error| error.error.to_string())
            };
            share(
                move |number| block_on(x.send(vec![1; 64]).queue(number).into_future()).map(|_| ()),
                move || block_on(y.recv(vec![0; 64]).into_future()).map(|_| ()),
                completed,
                counter,
            )
            .await;
        }
    });
}

/// As for connected endpoints.
/// fi_domain(3): `FI_THREAD_FID`, `FI_THREAD_ENDPOINT`, `FI_THREAD_COMPLETION`, `FI_THREAD_DOMAIN`
#[test]
fn a_promise_to_serialize_need_not_be_kept_by_connectionless_endpoints() {
    on_every_backend(|net| async move {
        for promised in PROMISES {
            let [a, b] = peers(&net, EndpointType::Rdm, promised);
            let (queue, counter) = (
                a.domain.completion_queue().open().unwrap(),
                a.domain.counter().unwrap(),
            );
            let x = a.domain.rdm_endpoint().completion_queue(&queue);
            let x = x.send_counter(&counter).listen_at(any()).open().unwrap();
            let y = b.rdm_endpoint().unwrap();
            let to_y = x.insert(y.local_addr()).unwrap();
            let completed = move || {
                let completion = block_on(queue.next()).ok_or("the queue is closed")?;
                completion.result.map_err(|error| error.error.to_string())
            };
            share(
                move |number| {
                    block_on(x.send(vec![1; 64], to_y).queue(number).into_future()).map(|_| ())
                },
                move || block_on(y.recv(vec![0; 64]).into_future()).map(|_| ()),
                completed,
                counter,
            )
            .await;
        }
    });
}
