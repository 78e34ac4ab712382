//! A hostile client next to twenty good ones on one listener: whatever it sends, or does not send,
//! its own connection is closed, and no other client notices.

mod scene;

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::alone::alone;
use crate::common::raw::{EVIL, Raw, accepted, closed, control, flood, open, request};
use crate::common::seed::Random;
use scene::{GOOD, Manners, REGION_LEN, Scene};
use tokio::io::AsyncWriteExt;

/// Operations of the protocol's data frames.
const MESSAGE: u8 = 0;
const READ: u8 = 2;
const RESPONSE: u8 = 3;
const WRITE: u8 = 4;

const LIMIT: Duration = Duration::from_secs(100);

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let limited = runtime.block_on(async { tokio::time::timeout(LIMIT, test).await });
    limited.expect("the test hangs");
}

fn with(mut frame: Raw, change: impl FnOnce(&mut Raw)) -> Vec<u8> {
    change(&mut frame);
    frame.bytes()
}

/// Every class of frame that must not come, as bytes.
fn malformed(scene: &Scene) -> Vec<(String, Vec<u8>)> {
    let shared = scene.shared.key();
    let mut frames = Vec::new();
    let mut add = |what: String, bytes| frames.push((what, bytes));
    for op in [1, 5, 6, 7, 8, 9, 0x80, 255] {
        add(
            format!("op {op}"),
            with(Raw::new(op), |frame| frame.words = vec![1, 2]),
        );
        add(format!("bare op {op}"), Raw::new(op).bytes());
    }
    for op in [MESSAGE, READ, RESPONSE, WRITE] {
        for len in [0, 8, 15, 121, 128, 255] {
            let frame = Raw::rma(op, &[(0, 8, shared)]);
            add(
                format!("op {op}, hdr_size {len}"),
                with(frame, |frame| frame.header_len = Some(len)),
            );
        }
        for len in [0, 15, 39] {
            let frame = Raw::rma(op, &[(0, 8, shared)]);
            add(
                format!("op {op}, size {len}"),
                with(frame, |frame| frame.frame_len = Some(len)),
            );
        }
    }
    for op in [READ, WRITE] {
        for count in [0, 2, 5, 255] {
            let frame = Raw::rma(op, &[(0, 8, shared)]);
            add(
                format!("op {op}, iov count {count}"),
                with(frame, |frame| frame.count = count),
            );
        }
        let rma = |segments: &[(u64, u64, u64)]| {
            let len = segments
                .iter()
                .fold(0_u64, |sum, segment| sum.wrapping_add(segment.1));
            with(Raw::rma(op, segments), |frame| {
                if op == WRITE {
                    let header_len = 16 + 8 * frame.words.len() as u64;
                    frame.frame_len = Some(header_len.wrapping_add(len));
                    frame.payload = vec![9; len.min(100) as usize];
                }
            })
        };
        add(format!("op {op}, unknown key"), rma(&[(0, 8, !shared)]));
        add(
            format!("op {op}, one byte outside"),
            rma(&[(REGION_LEN - 7, 8, shared)]),
        );
        add(
            format!("op {op}, far outside"),
            rma(&[(1 << 40, 8, shared)]),
        );
        add(format!("op {op}, wraps"), rma(&[(u64::MAX - 3, 8, shared)]));
        add(
            format!("op {op}, as long as can be"),
            rma(&[(0, u64::MAX - 200, shared)]),
        );
        add(
            format!("op {op}, second segment outside"),
            rma(&[(0, 8, shared), (REGION_LEN, 1, shared)]),
        );
        let half = 1 << 63;
        add(
            format!("op {op}, lengths wrap"),
            rma(&[(0, half, shared), (0, half + 8, shared)]),
        );
        let other = if op == READ {
            scene.writable.key()
        } else {
            scene.readable.key()
        };
        add(format!("op {op}, right missing"), rma(&[(0, 8, other)]));
    }
    let write = Raw::rma(WRITE, &[(0, 8, shared)]);
    add(
        "a write with less payload".into(),
        with(write.clone(), |frame| frame.payload = vec![0; 7]),
    );
    add(
        "a write with more payload".into(),
        with(write, |frame| frame.payload = vec![0; 9]),
    );
    let read = Raw::rma(READ, &[(0, 8, shared)]);
    add(
        "a read request with payload".into(),
        with(read, |frame| frame.payload = vec![0; 8]),
    );
    let ack = with(Raw::new(MESSAGE), |frame| frame.op_data = 2);
    add("an ack without an operation".into(), ack);
    add(
        "an ack with payload".into(),
        with(Raw::new(MESSAGE), |frame| {
            frame.op_data = 2;
            frame.payload = vec![0; 8];
        }),
    );
    add(
        "a read response without a read".into(),
        with(Raw::new(RESPONSE), |frame| frame.payload = vec![0; 8]),
    );
    add("an empty read response".into(), Raw::new(RESPONSE).bytes());
    frames
}

/// wire-protocol, 3.7: "Our own receiver must turn all of these into a clean teardown", of the
/// hostile connection alone: "the good ones lose no operation".
#[test]
fn malformed_frames_close_their_own_connection_alone() {
    run(async {
        let scene = Scene::set(Manners::OneReceive, |listener| listener).await;
        for (what, bytes) in malformed(&scene) {
            let mut stream = accepted(scene.address).await;
            stream.write_all(&bytes).await.unwrap();
            closed(stream, &what).await;
            scene.evil_shutdown(&what).await;
            // The same again behind a good message, in two pieces.
            let mut stream = accepted(scene.address).await;
            let mut before = with(Raw::new(MESSAGE), |frame| frame.payload = vec![1; 50]);
            before.extend(&bytes[..3]);
            stream.write_all(&before).await.unwrap();
            tokio::task::yield_now().await;
            let _ = stream.write_all(&bytes[3..]).await;
            closed(stream, &what).await;
            scene.evil_shutdown(&what).await;
        }
        let mut region = vec![0; REGION_LEN as usize];
        scene.readable.read_at(0, &mut region).unwrap();
        assert!(
            region.iter().all(|byte| *byte == 7),
            "a read-only region was written to"
        );
        scene.end().await;
    });
}

/// Frames cut off at every length, and noise, then the end of the stream: the connection ends, and
/// that alone.
#[test]
fn truncated_frames_and_noise_end_with_their_connection() {
    run(async {
        let scene = Scene::set(Manners::OneReceive, |listener| listener).await;
        let key = scene.shared.key();
        let message = with(Raw::new(MESSAGE), |frame| frame.payload = vec![1; 90]);
        // Behind the places of the good ones: what came of the payload before the cut is written.
        let write = with(Raw::rma(WRITE, &[(50_000, 40, key)]), |frame| {
            frame.payload = vec![1; 40]
        });
        let read = Raw::rma(READ, &[(0, 40, key), (8, 8, key)]).bytes();
        let huge = with(Raw::new(MESSAGE), |frame| frame.frame_len = Some(u64::MAX));
        let mut pieces = vec![huge.clone(), [message.clone(), huge].concat()];
        for frame in [message, write, read] {
            pieces.extend((1..frame.len()).step_by(7).map(|len| frame[..len].to_vec()));
        }
        let seed = crate::common::seed::seed("noise");
        let mut random = Random(seed);
        for _ in 0..20 {
            let len = random.within(1, 5000);
            pieces.push((0..len).map(|_| random.next() as u8).collect());
        }
        for (number, bytes) in pieces.into_iter().enumerate() {
            let what = format!("piece {number}");
            let mut stream = accepted(scene.address).await;
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            closed(stream, &what).await;
            scene.evil_shutdown(&what).await;
        }
        scene.end().await;
    });
}

/// Garbage instead of a request: "the socket is just closed, no reject frame, no event".
#[test]
fn garbage_handshakes_are_closed_without_an_event() {
    run(async {
        let scene = Scene::set(Manners::OneReceive, |listener| listener).await;
        let one = 1_u64.to_ne_bytes();
        let garbage: Vec<(&str, Vec<u8>)> = vec![
            ("version 4", control(4, 0, 0, one, b"")),
            ("version 0", control(0, 0, 0, one, b"")),
            ("a response", control(3, 1, 0, one, b"")),
            ("a rejection", control(3, 6, 0, [0; 8], b"")),
            ("type 2", control(3, 2, 0, one, b"")),
            ("257 bytes", control(3, 0, 257, one, &[0; 257])),
            ("65535 bytes", control(3, 0, 65535, one, &[0; 300])),
            ("no probe", control(3, 0, 0, [0; 8], b"")),
            (
                "another protocol",
                b"GET / HTTP/1.1\r\nHost: fabric\r\n\r\n".to_vec(),
            ),
            ("a request and more", [request(EVIL), vec![1]].concat()),
        ];
        while scene.requests.load(Ordering::Acquire) < GOOD {
            tokio::task::yield_now().await;
        }
        for (what, bytes) in garbage {
            let mut stream = open(scene.address).await;
            stream.write_all(&bytes).await.unwrap();
            closed(stream, what).await;
            assert_eq!(
                scene.requests.load(Ordering::Acquire),
                GOOD,
                "{what} was reported as a request"
            );
        }
        scene.end().await;
    });
}

/// "handshake deadlines, a cap on half-open connections": peers that connect and stay silent, or
/// send a byte now and then, are closed, and keep no other client out.
#[test]
fn half_open_connections_are_bounded_in_number_and_time() {
    const CAP: usize = 32;
    const DEADLINE: Duration = Duration::from_secs(3);
    run(async {
        let scene = Scene::set(Manners::OneReceive, |listener| {
            listener.half_open_max(CAP).handshake_timeout(DEADLINE)
        })
        .await;
        while scene.requests.load(Ordering::Acquire) < GOOD {
            tokio::task::yield_now().await;
        }
        let half = &request(EVIL)[..20];
        let mut silent = Vec::new();
        for number in 0..CAP * 4 {
            let mut stream = open(scene.address).await;
            if number % 2 == 0 {
                let _ = stream.write_all(half).await;
            }
            silent.push(stream);
        }
        // More than the cap: the oldest are closed long before their time.
        let young = silent.split_off(CAP * 2);
        let started = tokio::time::Instant::now();
        for stream in silent {
            closed(stream, "the oldest of too many half-open connections").await;
        }
        let waited = started.elapsed();
        // One byte at a time keeps nothing alive.
        let mut slow = open(scene.address).await;
        let dripping = async {
            for byte in request(EVIL) {
                if slow.write_all(&[byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(DEADLINE / 20).await;
            }
            slow
        };
        let slow = dripping.await;
        closed(slow, "slow loris").await;
        for stream in young {
            closed(stream, "half-open past its deadline").await;
        }
        println!("the oldest were closed within {waited:?}");
        assert_eq!(
            scene.requests.load(Ordering::Acquire),
            GOOD,
            "half a request was reported"
        );
        scene.end().await;
    });
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Floods of `frame` by a client that reads no answer: the server takes no more than it is ready
/// to answer, and its memory stays bounded.
async fn flooded(manners: Manners, frame: impl Fn(&Scene) -> Vec<u8>) {
    const MOST: usize = 192 << 20;
    let scene = Scene::set(manners, |listener| listener).await;
    let frame = frame(&scene);
    let bytes = frame.repeat((256 << 10) / frame.len() + 1);
    let before = resident();
    let mut floods = Vec::new();
    for _ in 0..4 {
        let mut stream = accepted(scene.address).await;
        let written = flood(&mut stream, &bytes, MOST).await;
        floods.push((stream, written));
    }
    let grown = resident().saturating_sub(before);
    let written: Vec<_> = floods.iter().map(|(_, written)| *written >> 10).collect();
    println!(
        "{written:?} KiB were taken, memory has grown by {} KiB",
        grown >> 10
    );
    assert!(
        floods.iter().all(|(_, written)| *written < MOST),
        "the server takes on and on"
    );
    assert!(grown < 96 << 20, "memory has grown by {grown} bytes");
    for (stream, _) in floods {
        // By a reset: the end of the stream would stand in line behind what is not read.
        stream.set_zero_linger().unwrap();
        drop(stream);
        scene.evil_shutdown("a flood that ends").await;
    }
    scene.end().await;
}

/// Acks that are not read stop the reading of messages that want more of them.
#[test]
fn a_flood_of_messages_that_want_acks_is_held_back() {
    alone("hostile::flood_of_messages_that_want_acks");
}

#[test]
#[ignore = "the other process of another test"]
fn flood_of_messages_that_want_acks() {
    run(flooded(Manners::Receives, |_| {
        with(Raw::new(MESSAGE), |frame| {
            (frame.flags, frame.payload) = (4, vec![1; 8])
        })
    }));
}

/// Read responses that are not read stop the reading of requests.
#[test]
fn a_flood_of_read_requests_is_held_back() {
    alone("hostile::flood_of_read_requests");
}

#[test]
#[ignore = "the other process of another test"]
fn flood_of_read_requests() {
    run(flooded(Manners::OneReceive, |scene| {
        let key = scene.shared.key();
        Raw::rma(
            READ,
            &[
                (0, REGION_LEN, key),
                (0, REGION_LEN, key),
                (0, 1, key),
                (1, 0, key),
            ],
        )
        .bytes()
    }));
}

/// "Unexpected messages are kept within a byte budget, then back-pressured", empty ones too.
#[test]
fn a_flood_of_messages_without_receives_is_held_back() {
    alone("hostile::flood_of_messages_without_receives");
}

#[test]
#[ignore = "the other process of another test"]
fn flood_of_messages_without_receives() {
    run(flooded(Manners::NoReceive, |_| Raw::new(MESSAGE).bytes()));
}
