//! What a stranger between two peers can do: end the connection, and nothing else.

use std::sync::{Arc, Mutex};

use futures::future::join;
use tokio_fabric::testing::Net;
use tokio_fabric::{Backend, Endpoint, Error, ErrorKind, Event, EventQueue};

use crate::certificates::Authority;
use crate::common::peers::{listener, request};
use crate::common::{on, on_threads};
use crate::relay::{APPLICATION_DATA, Direction, Relay};
use crate::sessions::peer;

/// Why a connection ended, as both sides' `Shutdown` say, in whose middle this was done to one
/// record; and how many of the messages sent arrived.
async fn tampered(
    net: Net,
    mut tamper: impl FnMut(Vec<u8>) -> Option<Vec<u8>> + Send + 'static,
) -> ([Error; 2], usize) {
    let tls = Authority::new().config();
    let (a, b) = (peer(&net, &tls), peer(&net, &tls));
    let (listener, requests) = listener(&b);
    let begun = Arc::new(Mutex::new(false));
    let has_begun = Arc::clone(&begun);
    let relay = Relay::changing(listener.local_addr(), move |direction, record| {
        let is_meant = direction == Direction::ToListener && record[0] == APPLICATION_DATA;
        match is_meant && *has_begun.lock().unwrap() {
            true => tamper(record),
            false => Some(record),
        }
    });
    let relay = relay.await;
    let x = a.domain.endpoint().event_queue(&a.events).open().unwrap();
    let y = b.domain.endpoint().event_queue(&b.events).open().unwrap();
    let accepting = async { y.accept(request(&requests).await).await.unwrap() };
    let (connected, _) = join(x.connect(relay.address).into_future(), accepting).await;
    connected.unwrap();
    *begun.lock().unwrap() = true;

    let receives: Vec<_> = (0..8).map(|_| y.recv(vec![0; 8]).post().unwrap()).collect();
    let sending = send_all(&x);
    let receiving = async {
        let mut arrived = 0;
        for (at, receive) in receives.into_iter().enumerate() {
            if let Ok((_, bytes)) = receive.await {
                assert_eq!(bytes, [at as u8; 8], "in order, and as sent");
                arrived += 1;
            }
        }
        arrived
    };
    let ((), arrived) = join(sending, receiving).await;
    let (x, y) = join(loss(&a.events), loss(&b.events)).await;
    ([x, y], arrived)
}

/// Sends eight messages, each when the one before is out.
async fn send_all(x: &Endpoint) {
    for at in 0..8 {
        if x.send(vec![at; 8]).await.is_err() {
            break;
        }
    }
}

async fn loss(events: &EventQueue) -> Error {
    loop {
        if let Some(Event::Shutdown { error, .. }) = events.next().await {
            return error.expect("no end in order");
        }
    }
}

/// The listener finds out, and says so; what came before arrived as it was sent, nothing else does.
fn refused_by_listener(tamper: impl FnMut(Vec<u8>) -> Vec<u8> + Send + Clone + 'static) {
    on(Backend::Epoll, move |net| {
        let mut tamper = tamper.clone();
        async move {
            let ([x, y], arrived) = tampered(net, move |record| Some(tamper(record))).await;
            assert_eq!(y.kind(), ErrorKind::ProtocolViolation, "{y}");
            assert!(y.to_string().contains("TLS"), "{y}");
            assert!(x.is_connection_lost(), "{x}");
            assert!(arrived <= 2, "{arrived}");
        }
    });
}

#[test]
fn a_changed_record_ends_the_connection() {
    refused_by_listener(|mut record| {
        *record.last_mut().unwrap() ^= 1;
        record
    });
}

#[test]
fn a_repeated_record_ends_the_connection() {
    refused_by_listener(|record| [record.clone(), record].concat());
}

#[test]
fn reordered_records_end_the_connection() {
    let mut held: Option<Vec<u8>> = None;
    refused_by_listener(move |record| match held.take() {
        None => {
            held = Some(record);
            Vec::new()
        }
        Some(first) => [record, first].concat(),
    });
}

#[test]
fn a_left_out_record_ends_the_connection() {
    let mut is_first = true;
    refused_by_listener(move |record| match std::mem::take(&mut is_first) {
        true => Vec::new(),
        false => record,
    });
}

#[test]
fn a_shortened_record_ends_the_connection() {
    refused_by_listener(|mut record| {
        record.pop();
        let len = (record.len() - 5) as u16;
        record[3..5].copy_from_slice(&len.to_be_bytes());
        record
    });
}

#[test]
fn an_oversized_record_ends_the_connection() {
    refused_by_listener(|mut record| {
        record[3..5].copy_from_slice(&u16::MAX.to_be_bytes());
        record.resize(5 + usize::from(u16::MAX), 0);
        record
    });
}

#[test]
fn a_plain_byte_ends_the_connection() {
    refused_by_listener(|_| vec![3; 64]);
}

/// A stream that ends without the peer's word is no end in order, however orderly the sockets end.
#[test]
fn a_cut_stream_is_a_loss_at_both_sides() {
    on_threads(0, Backend::Epoll, async |net| {
        let ([x, y], arrived) = tampered(net, |_| None).await;
        assert!(x.is_connection_lost(), "{x}");
        assert_eq!(y.kind(), ErrorKind::ConnectionReset);
        assert!(y.to_string().contains("close_notify"), "{y}");
        assert_eq!(arrived, 0);
    });
}
