//! Closing a domain or a fabric: what keeps it open, and what does not.

use crate::common::peers::{any, open_region};
use crate::common::{backends, on, on_every_backend, with_room};
use tokio_fabric::testing::{Peer, RdmSide, connect, connect_endpoints};
use tokio_fabric::{ErrorKind, Fabric, error::Refusal};

/// fi_domain(3): "All objects associated with the opened domain must be released prior to calling
/// fi_close"
/// fi_domain(3): "otherwise the call will return -FI_EBUSY."
/// fi_domain(3): `FI_EBUSY` from `fi_close(domain)`, error code.
/// fi_domain(3): "The fi_close call is used to release all resources associated with a domain or
/// interface."
/// fi_domain(3): `fi_close(domain)`, function.
/// fi_domain(3): "Users should call fi_close to release all resources allocated to the fabric
/// domain."
/// fi_domain(3): "active endpoints, memory regions, completion event queues, and address vectors."
#[test]
fn close_is_busy_and_names_what_is_open() {
    on_every_backend(|net| async move {
        let a = net.peer().unwrap();
        let busy = async |what: &str| {
            let error = a.domain.close().await.unwrap_err();
            assert_eq!((error.kind(), error.fi_errno()), (ErrorKind::Busy, 16));
            assert!(
                error.to_string().contains(what),
                "{error} does not name {what}"
            );
        };
        let endpoint = a.domain.endpoint().open().unwrap();
        busy("endpoint").await;
        drop(endpoint);
        let region = open_region(&a, vec![0u8; 8]).await;
        busy("memory region").await;
        drop(region);
        let queue = a.domain.completion_queue().open().unwrap();
        busy("completion queue").await;
        queue.close().await.unwrap();
        let counter = a.domain.counter().unwrap();
        busy("counter").await;
        drop(counter);
        let vector = a.domain.address_vector().open().unwrap();
        busy("address vector").await;
        vector.close().await.unwrap();
        assert_eq!(a.events.close().await.unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(a.fabric.close().unwrap_err().kind(), ErrorKind::Busy);
        a.domain.close().await.unwrap();
        // What the domain held is released: the queue it was bound to can be closed now.
        a.events.close().await.unwrap();
        assert_eq!(
            a.domain.endpoint().open().unwrap_err().kind(),
            ErrorKind::BadState
        );
        let late = a.domain.register(vec![1u8; 4]).now().unwrap_err();
        assert_eq!(late.kind(), ErrorKind::BadState);
        assert_eq!(late.into_parts().1, Some(vec![1u8; 4]));
        a.domain.close().await.unwrap();
    });
}

/// api.md: "handles hold their parents, so drop order cannot be got wrong": every order of six
/// handles of a working connection.
#[test]
fn handles_may_be_dropped_in_every_order() {
    for backend in backends() {
        on(backend, |net| async move {
            for order in 0..720 {
                let a = with_room(|| net.peer()).await;
                let region = a.domain.register(vec![0u8; 16]).now().unwrap();
                let queue = a.domain.completion_queue().open().unwrap();
                let endpoint = a.domain.endpoint().completion_queue(&queue).open().unwrap();
                let mut handles: Vec<Box<dyn std::any::Any>> = vec![
                    Box::new(a.fabric),
                    Box::new(a.domain),
                    Box::new(a.events),
                    Box::new(region),
                    Box::new(queue),
                    Box::new(endpoint),
                ];
                let mut rest = order;
                for left in (1..=handles.len()).rev() {
                    drop(handles.swap_remove(rest % left));
                    rest /= left;
                }
                tokio::task::yield_now().await; // The driver goes, and its ring.
            }
        });
    }
}

/// The last handle standing works on, whatever was dropped before it.
/// fi_domain(3): "A domain defines the boundary for associating different resources together."
/// fi_domain(3): "Fabric resources belonging to the same domain may share resources."
#[test]
fn one_handle_is_enough_to_go_on() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let region = open_region(&b, vec![7u8; 32]).await;
        let remote = region.remote();
        let (x, y) = connect(&a, &b).await.unwrap();
        drop((a, b));
        // The endpoint and the region belong to one domain: the key works through this endpoint.
        let (read, bytes) = x.read(vec![0u8; 32], remote).await.unwrap();
        assert_eq!((read, bytes), (32, vec![7u8; 32]));
        drop(x);
        drop(y);
        assert_eq!(region.len(), 32);
        // Another domain of the same process knows nothing of it: the boundary holds.
        let (c, d) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, _y) = connect(&c, &d).await.unwrap();
        let refused = x.read(vec![0u8; 32], remote).await.unwrap_err();
        assert_eq!(refused.error().refusal(), Some(Refusal::UnknownKey));
    });
}

/// Opening listens nowhere: only a passive endpoint does, at an address that it returns.
#[test]
fn a_fabric_names_what_keeps_it_open() {
    on_every_backend(|net| async move {
        let fabric = Fabric::clone(&net.fabric().unwrap());
        let events = fabric.event_queue().open().unwrap();
        let listener = fabric.passive_endpoint(&events).listen_at(any()).unwrap();
        assert!(
            fabric
                .close()
                .unwrap_err()
                .to_string()
                .contains("passive endpoint")
        );
        drop(listener);
        fabric.close().unwrap();
    });
}

/// `Domain::close`: "Remaining handles cannot open anything, and do not prevent the fabric and the
/// event queue from being closed", however much of its future was awaited.
#[test]
fn a_closed_domain_keeps_nothing_busy() {
    on_every_backend(|net| async move {
        for awaited in [true, false] {
            let Peer {
                fabric,
                domain,
                events,
            } = net.peer().unwrap();
            let other = domain.clone();
            assert_eq!(fabric.close().unwrap_err().kind(), ErrorKind::Busy);
            if awaited {
                domain.close().await.unwrap();
            } else {
                let _ = futures::poll!(std::pin::pin!(domain.close()));
            }
            events.close().await.unwrap();
            fabric.close().unwrap();
            fabric.closed().await;
            assert_eq!(
                other.endpoint().open().unwrap_err().kind(),
                ErrorKind::BadState
            );
        }
    });
}

/// An endpoint that was dropped does not keep its domain or its event queue busy, whatever kind it
/// is of and whatever it was doing: close waits for its end.
#[test]
fn a_dropped_endpoint_keeps_nothing_busy() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = connect(&a, &b).await.unwrap();
        for number in 0..100 {
            x.send(vec![number; 1000]).detach().unwrap();
        }
        drop(x);
        a.domain.close().await.unwrap();
        a.events.close().await.unwrap();
        a.fabric.close().unwrap();
        for number in 0..100 {
            let (received, bytes) = y.recv(vec![0; 1000]).await.unwrap();
            assert_eq!(bytes[..received.len], vec![number; 1000]);
        }
        // One that was never connected.
        drop(b.domain.endpoint().open().unwrap());
        drop(y);
        b.domain.close().await.unwrap();
        b.events.close().await.unwrap();
        // Connectionless ones, with vectors of their own.
        let (here, there) = net.rdm_pair().unwrap();
        here.endpoint.send("hello", here.other).await.unwrap();
        let RdmSide { endpoint, peer, .. } = here;
        drop(endpoint);
        peer.domain.close().await.unwrap();
        peer.fabric.close().unwrap();
        there.endpoint.recv(vec![0; 8]).await.unwrap();
    });
}

/// `Domain::closed`: "Waits until everything that was opened in the domain has ended, then closes
/// it"; "If the future is dropped while something is open, nothing has happened".
#[test]
fn closed_waits_for_all_that_belongs_to_a_domain() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = a.domain.completion_queue().open().unwrap();
        let counter = a.domain.counter().unwrap();
        let x = a.domain.endpoint().transmit_queue(&queue);
        let x = x.send_counter(&counter).open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let vector = a.domain.address_vector().open().unwrap();
        let vectors = a.domain.rdm_endpoint().address_vector(&vector);
        let rdm = vectors.listen_at(any()).open().unwrap();
        let region = open_region(&a, vec![0; 8]).await;
        {
            let mut closed = std::pin::pin!(a.domain.closed());
            assert!(futures::poll!(closed.as_mut()).is_pending());
        }
        let late = a.domain.endpoint().open();
        drop(late.expect("nothing has happened"));
        let mut closed = std::pin::pin!(a.domain.closed());
        let mut fabric_closed = std::pin::pin!(a.fabric.closed());
        let held: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(region),
            Box::new(x),
            Box::new(queue),
            Box::new(counter),
            Box::new(rdm),
            Box::new(vector),
        ];
        for held in held {
            assert!(futures::poll!(closed.as_mut()).is_pending());
            assert!(futures::poll!(fabric_closed.as_mut()).is_pending());
            drop(held);
        }
        closed.await;
        fabric_closed.await;
        a.events.close().await.unwrap();
        a.domain.closed().await; // Of what is closed it is no error.
        // Also where a region is the last to go.
        let region = open_region(&b, vec![0; 8]).await;
        drop(y);
        let mut closed = std::pin::pin!(b.domain.closed());
        assert!(futures::poll!(closed.as_mut()).is_pending());
        drop(region);
        closed.await;
    });
}
