//! Scenarios about messages: vectors, inject, many in both directions.

use std::collections::VecDeque;

use tokio_fabric::{
    Endpoint,
    cq::CompletionFlags,
    error::OperationKind,
    op::{Op, Received},
};

use super::session::{
    Session, assert_bytes, await_done, await_message, pattern, post_done, post_receive,
};

pub const MIB: usize = 1 << 20;
/// Messages each way in `many`, and how many of them may be open.
pub const MANY: usize = 1000;
const WINDOW: usize = 64;

/// Cuts bytes into the pieces of a vector.
pub fn cut(bytes: &[u8], lens: [usize; 4]) -> [Vec<u8>; 4] {
    assert_eq!(lens.iter().sum::<usize>(), bytes.len());
    let mut rest = bytes;
    lens.map(|len| {
        let (piece, after) = rest.split_at(len);
        rest = after;
        piece.to_vec()
    })
}

pub async fn vectors(mut session: Session, initiator: bool) {
    let endpoint = session.begin().await;
    if initiator {
        let done = post_done(&endpoint);
        session.complete().await;
        send_vectors(&endpoint).await;
        session.initiator_farewell(done).await;
        return;
    }
    let v1 = endpoint
        .recv([7, 500, 0, 501].map(|len| vec![0; len]))
        .post()
        .unwrap();
    let v2 = post_receive(&endpoint, 16);
    let v3 = post_receive(&endpoint, MIB);
    let v4 = endpoint
        .recv([300_000, 1, 500_000, 248_575].map(|len| vec![0; len]))
        .post()
        .unwrap();
    let [v5, v6, v7, v8] = [64, 16, 16, 200].map(|len| post_receive(&endpoint, len));
    let done = post_done(&endpoint);
    session.complete().await;
    await_pieces("V1", v1, &pattern(1008, 0x11)).await;
    await_message("V2", v2, b"", None).await;
    await_message("V3", v3, &pattern(MIB, 0x22), None).await;
    await_pieces("V4", v4, &pattern(MIB, 0x33)).await;
    await_message("V5", v5, &pattern(64, 0x44), Some(0x0123_4567_89AB_CDEF)).await;
    await_message("V6", v6, b"", Some(0)).await;
    await_message("V7", v7, &pattern(16, 0x55), Some(0xFEED)).await;
    await_message("V8", v8, &pattern(100, 0x66), None).await;
    await_done(done).await;
    session.target_farewell().await;
}

async fn send_vectors(endpoint: &Endpoint) {
    let pieces = |len, seed, lens| cut(&pattern(len, seed), lens);
    let v1 = endpoint
        .send(pieces(1008, 0x11, [5, 0, 1000, 3]))
        .post()
        .unwrap();
    let v2 = endpoint.send(Vec::<u8>::new()).post().unwrap();
    let v3 = endpoint.send(pattern(MIB, 0x22)).post().unwrap();
    let v4 = endpoint
        .send(pieces(MIB, 0x33, [1, 65_536, 524_288, 458_751]))
        .post()
        .unwrap();
    let v5 = endpoint
        .send(pattern(64, 0x44))
        .imm(0x0123_4567_89AB_CDEF)
        .post()
        .unwrap();
    let v6 = endpoint.send(Vec::<u8>::new()).imm(0).post().unwrap();
    let v7 = endpoint
        .send(pieces(16, 0x55, [4, 4, 4, 4]))
        .imm(0xFEED)
        .post()
        .unwrap();
    let v8 = endpoint.send(pattern(100, 0x66)).post().unwrap();
    for (send, len) in [(v1, 1008), (v4, MIB), (v7, 16)] {
        assert_eq!(send.await.unwrap().0, len);
    }
    for (send, len) in [(v2, 0), (v3, MIB), (v5, 64), (v6, 0), (v8, 100)] {
        assert_eq!(send.await.unwrap().0, len);
    }
}

async fn await_pieces(what: &str, receive: Op<[Vec<u8>; 4], Received>, message: &[u8]) {
    let (received, pieces) = receive.await.unwrap();
    assert_eq!(
        (received.len, received.data),
        (message.len(), None),
        "{what}"
    );
    assert_bytes(what, &pieces.concat(), message);
}

pub async fn inject(mut session: Session, initiator: bool) {
    const LENS: [usize; 5] = [64, 64, 0, 128, 32];
    let endpoint = session.begin().await;
    if !initiator {
        let receives = LENS.map(|_| post_receive(&endpoint, 128));
        let done = post_done(&endpoint);
        session.complete().await;
        for (i, receive) in receives.into_iter().enumerate() {
            let data = (i == 1).then_some(0x1122_3344_5566_7788);
            let what = format!("I{}", i + 1);
            await_message(&what, receive, &pattern(LENS[i], 0x51 + i), data).await;
        }
        await_done(done).await;
        session.target_farewell().await;
        return;
    }
    let done = post_done(&endpoint);
    session.complete().await;
    let mut scratch = [0; 128];
    for (i, &len) in LENS[..4].iter().enumerate() {
        scratch[..len].copy_from_slice(&pattern(len, 0x51 + i));
        match i {
            1 => endpoint
                .inject_data(&scratch[..len], 0x1122_3344_5566_7788)
                .unwrap(),
            _ => endpoint.inject(&scratch[..len]).unwrap(),
        }
        // The bytes are the application's again as soon as the call returns.
        scratch.fill(0xFF);
    }
    endpoint.send(pattern(32, 0x55)).queue(5u64).await.unwrap();
    endpoint.send("done").queue(6u64).await.unwrap();
    await_done(done).await;
    for context in [5, 6] {
        let completion = session.completions.next().await.unwrap();
        assert_eq!(
            (completion.context.0, completion.operation),
            (context, OperationKind::Send)
        );
        assert_eq!(
            completion.flags,
            CompletionFlags::MSG | CompletionFlags::SEND
        );
        completion.result.unwrap();
    }
    assert!(
        session.completions.is_empty(),
        "an inject wrote a completion"
    );
    session.close(true).await;
}

pub async fn many(mut session: Session, initiator: bool) {
    let (my_seed, their_seed) = if initiator { (0, 128) } else { (128, 0) };
    let endpoint = session.begin().await;
    let receives = (0..WINDOW).map(|_| post_receive(&endpoint, 2048)).collect();
    session.complete().await;
    let (done, ()) = tokio::join!(
        receive_many(&endpoint, receives, their_seed),
        send_many(&endpoint, my_seed)
    );
    if initiator {
        session.initiator_farewell(done).await;
    } else {
        await_done(done).await;
        session.target_farewell().await;
    }
}

pub fn message_of_many(k: usize, seed: usize) -> Vec<u8> {
    pattern(k * 37 % 1500, k + seed)
}

pub async fn send_many(endpoint: &Endpoint, seed: usize) {
    let mut open = VecDeque::new();
    for k in 0..MANY {
        if open.len() == WINDOW {
            let oldest: Op<Vec<u8>> = open.pop_front().unwrap();
            oldest.await.unwrap();
        }
        open.push_back(endpoint.send(message_of_many(k, seed)).post().unwrap());
    }
    for send in open {
        send.await.unwrap();
    }
}

/// Ends with the receive for "done", which is posted after the last of many.
async fn receive_many(
    endpoint: &Endpoint,
    mut open: VecDeque<Op<Vec<u8>, Received>>,
    seed: usize,
) -> Op<Vec<u8>, Received> {
    let mut done = None;
    for k in 0..MANY {
        let (received, buffer) = open.pop_front().unwrap().await.unwrap();
        assert_eq!(received.data, None);
        assert_bytes(
            "a message of many",
            &buffer[..received.len],
            &message_of_many(k, seed),
        );
        if k + WINDOW < MANY {
            open.push_back(endpoint.recv(buffer).post().unwrap());
        } else if k + WINDOW == MANY {
            done = Some(post_done(endpoint));
        }
    }
    done.expect("posted with the last window")
}
