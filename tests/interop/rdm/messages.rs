//! Our end of the scenarios about messages.

use std::collections::VecDeque;
use std::time::Duration;

use tokio_fabric::{
    cq::CompletionFlags,
    op::{Op, Received},
};

use super::session::Session;
use crate::bytes::{assert_bytes, pattern};

const MIB: usize = 1 << 20;

/// Cuts a message into the pieces of a vector.
fn pieces(mut bytes: Vec<u8>, lens: [usize; 4]) -> [Vec<u8>; 4] {
    lens.map(|len| bytes.drain(..len).collect())
}

pub async fn messages(session: &Session) {
    let hello = session.post_hello();
    let lens = [0, 100, 64];
    let first = lens.map(|len| session.receive(len + 16));
    let vector = [7, 500, 0, 501].map(|len| vec![0; len]);
    let vector = session.endpoint.recv(vector).post().unwrap();
    let rest = [4096, 64, 128, 65537, MIB].map(|len| session.receive(len + 16));
    let done = session.post_done();
    session.hello(hello).await;
    if session.is_initiator() {
        send_messages(session).await;
    }
    let data = [None, None, Some(0x0123_4567_89AB_CDEF)];
    for (number, receive) in first.into_iter().enumerate() {
        let message = pattern(lens[number], number);
        let what = format!("M{number}");
        session
            .message(&what, receive, &message, data[number])
            .await;
    }
    let (received, parts) = vector.await.unwrap();
    assert_eq!((received.len, received.data), (1008, None));
    assert_bytes("M3", &parts.concat(), &pattern(1008, 3));
    let due = [
        (4096, None),
        (64, None),
        (128, Some(0xD6)),
        (65537, None),
        (MIB, Some(0xD8)),
    ];
    for (number, (receive, (len, data))) in rest.into_iter().zip(due).enumerate() {
        let message = pattern(len, number + 4);
        let what = format!("M{}", number + 4);
        session.message(&what, receive, &message, data).await;
    }
    if !session.is_initiator() {
        send_messages(session).await;
    }
    session.farewell(done).await;
}

async fn send_messages(session: &Session) {
    let (x, c) = (&session.endpoint, session.c);
    let plain = [
        x.send(Vec::new(), c).post().unwrap(),
        x.send(pattern(100, 1), c).post().unwrap(),
        x.send(pattern(64, 2), c)
            .imm(0x0123_4567_89AB_CDEF)
            .post()
            .unwrap(),
    ];
    let vector = x.send(pieces(pattern(1008, 3), [5, 0, 1000, 3]), c);
    let vector = vector.post().unwrap();
    let delivered = x.send(pattern(4096, 4), c).delivery_complete();
    let delivered = delivered.post().unwrap();
    x.inject(&pattern(64, 5), c).unwrap();
    x.inject_data(&pattern(128, 6), c, 0xD6).unwrap();
    let large = x.send(pattern(65537, 7), c).post().unwrap();
    let last = x.send(pattern(MIB, 8), c).delivery_complete().imm(0xD8);
    let last = last.post().unwrap();
    for send in plain.into_iter().chain([delivered, large, last]) {
        send.await.unwrap();
    }
    vector.await.unwrap();
}

pub async fn tagged(session: &Session) {
    let (x, c) = (&session.endpoint, session.c);
    let stranger = x.insert(([127, 0, 0, 1], 1).into()).unwrap();
    let hello = session.post_hello();
    let buffer = || vec![0xEE; 64];
    let strangers = x.recv_tagged(buffer(), 7).from(stranger).post().unwrap();
    let receives = [
        x.recv_tagged(buffer(), 0x1000).ignore(0xFFF),
        x.recv_tagged(buffer(), 7).from(c),
        x.recv_tagged(buffer(), 7),
        x.recv_tagged(buffer(), 0x2BCD_0000_0000_0001),
        x.recv_tagged(buffer(), 0).ignore(u64::MAX),
        x.recv_tagged(vec![0xEE; MIB], 9),
    ];
    let receives = receives.map(|receive| receive.post().unwrap());
    let done = session.post_done();
    session.hello(hello).await;
    if session.is_initiator() {
        send_tagged(session).await;
    }
    let due = [
        (20, 0x1234, Some(0xD2), 2),
        (10, 7, None, 1),
        (30, 7, None, 3),
        (40, 0x2BCD_0000_0000_0001, None, 4),
        (50, 0x5555, Some(0xD5), 5),
        (MIB, 9, Some(0xD6), 6),
    ];
    for (number, (receive, (len, tag, data, seed))) in receives.into_iter().zip(due).enumerate() {
        let (what, message) = (format!("T{}", number + 1), pattern(len, seed));
        session
            .tagged(&what, receive, &message, Some(tag), data)
            .await;
    }
    assert!(strangers.cancel(), "a stranger's receive has not begun");
    assert!(strangers.await.unwrap_err().into_error().is_canceled());
    if !session.is_initiator() {
        send_tagged(session).await;
    }
    session.farewell(done).await;
}

async fn send_tagged(session: &Session) {
    let (x, c) = (&session.endpoint, session.c);
    let sends = [
        x.send_tagged(pattern(10, 1), c, 7),
        x.send_tagged(pattern(20, 2), c, 0x1234).imm(0xD2),
        x.send_tagged(pattern(30, 3), c, 7),
    ];
    let sends = sends.map(|send| send.post().unwrap());
    x.inject_tagged(&pattern(40, 4), c, 0x2BCD_0000_0000_0001)
        .unwrap();
    x.inject_tagged_data(&pattern(50, 5), c, 0x5555, 0xD5)
        .unwrap();
    let last = x.send_tagged(pattern(MIB, 6), c, 9).imm(0xD6);
    let last = last.delivery_complete().post().unwrap();
    for send in sends.into_iter().chain([last]) {
        send.await.unwrap();
    }
}

const UNEXPECTED: usize = 20;

fn unexpected_message(tag: usize) -> Vec<u8> {
    pattern(if tag <= 3 { 100 } else { tag * 1000 }, tag)
}

pub async fn unexpected(session: &Session) {
    let (x, c) = (&session.endpoint, session.c);
    let (hello, done) = (session.post_hello(), session.post_done());
    session.hello(hello).await;
    if session.is_initiator() {
        let send = |tag| {
            let send = x.send_tagged(unexpected_message(tag), c, tag as u64);
            send.delivery_complete().post().unwrap()
        };
        let sends: Vec<_> = (1..=UNEXPECTED).map(send).collect();
        for send in sends {
            send.await.unwrap();
        }
    } else {
        // Long enough for all that can be unexpected; if it is not, they come in time.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let receive = |tag: usize| {
            let buffer = vec![0xEE; unexpected_message(tag).len()];
            let receive = x.recv_tagged(buffer, tag as u64).from(c);
            (tag, receive.post().unwrap())
        };
        let receives: Vec<_> = (1..=UNEXPECTED).rev().map(receive).collect();
        for (tag, receive) in receives.into_iter().rev() {
            let what = format!("unexpected message {tag}");
            let tag_of = Some(tag as u64);
            session
                .tagged(&what, receive, &unexpected_message(tag), tag_of, None)
                .await;
        }
    }
    session.farewell(done).await;
}

const MANY: usize = 1000;
const WINDOW: usize = 64;

fn message_of_many(k: usize, seed: usize) -> Vec<u8> {
    pattern(k * 37 % 1500, k + seed)
}

fn receive_of_many(session: &Session, k: usize) -> Op<Vec<u8>, Received> {
    let (x, buffer) = (&session.endpoint, vec![0; 2048]);
    match k % 2 {
        0 => x.recv(buffer).post().unwrap(),
        _ => x.recv_tagged(buffer, k as u64).post().unwrap(),
    }
}

pub async fn many(session: &Session) {
    let hello = session.post_hello();
    let receives = (0..WINDOW).map(|k| receive_of_many(session, k)).collect();
    session.hello(hello).await;
    let (ours, theirs) = match session.is_initiator() {
        true => (0, 128),
        false => (128, 0),
    };
    let receiving = receive_many(session, receives, theirs);
    let (done, ()) = tokio::join!(receiving, send_many(session, ours));
    session.farewell(done).await;
}

async fn send_many(session: &Session, seed: usize) {
    let (x, c) = (&session.endpoint, session.c);
    let mut open = VecDeque::new();
    for k in 0..MANY {
        if open.len() == WINDOW {
            let oldest: Op<Vec<u8>> = open.pop_front().unwrap();
            oldest.await.unwrap();
        }
        let message = message_of_many(k, seed);
        let send = match k % 2 {
            0 => x.send(message, c),
            _ => x.send_tagged(message, c, k as u64),
        };
        open.push_back(send.post().unwrap());
    }
    for send in open {
        send.await.unwrap();
    }
}

/// Ends with the receive for "done", which is posted after the last of many.
async fn receive_many(
    session: &Session,
    mut open: VecDeque<Op<Vec<u8>, Received>>,
    seed: usize,
) -> Op<Vec<u8>, Received> {
    let mut done = None;
    for k in 0..MANY {
        let (received, buffer) = open.pop_front().unwrap().await.unwrap();
        assert_eq!(received.tag, (k % 2 == 1).then_some(k as u64));
        let due = message_of_many(k, seed);
        assert_bytes("one of many", &buffer[..received.len], &due);
        match k + WINDOW {
            next if next < MANY => open.push_back(receive_of_many(session, next)),
            MANY => done = Some(session.post_done()),
            _ => {}
        }
    }
    done.expect("posted with the last window")
}

const PIECES: usize = 300;
const MULTI_SIZE: usize = 32 << 10;
const FREE_MIN: usize = 2048;

pub async fn multi(session: &Session) {
    let (x, c) = (&session.endpoint, session.c);
    let piece = |k| pattern(k * 37 % 1500, k);
    if session.is_initiator() {
        let done = session.post_done();
        session.hello(None).await;
        let mut open = VecDeque::new();
        for k in 0..PIECES {
            if open.len() == WINDOW {
                let oldest: Op<Vec<u8>> = open.pop_front().unwrap();
                oldest.await.unwrap();
            }
            open.push_back(x.send(piece(k), c).post().unwrap());
        }
        for send in open {
            send.await.unwrap();
        }
        return session.farewell(done).await;
    }
    let hello = session.post_hello();
    let post = |number: u64| {
        let pool = x.multi_recv(vec![0u8; MULTI_SIZE]).min_free(FREE_MIN);
        pool.queue(number).try_post().unwrap();
    };
    post(0);
    post(1);
    session.hello(hello).await;
    let (mut k, mut released) = (0, 0);
    while k <= PIECES {
        let mut completion = x.receive_queue().next().await.unwrap();
        completion.result.as_ref().unwrap();
        if completion.flags.contains(CompletionFlags::MULTI_RECV) {
            released += 1;
            post(released + 1);
            continue;
        }
        assert_eq!(completion.source(), Some(c), "piece {k}");
        let due = if k < PIECES {
            piece(k)
        } else {
            b"done".to_vec()
        };
        let bytes = completion.take_buffer();
        let bytes = bytes.as_deref().unwrap_or_default();
        assert_bytes("a piece", &bytes[..completion.len], &due);
        k += 1;
    }
    assert!(released > 5, "{released} buffers were consumed");
    session.say_done().await;
}
