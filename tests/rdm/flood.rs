//! Unexpected messages from one peer, or from all of them, at an endpoint that keeps few.

use std::pin::pin;
use std::time::{Duration, Instant};

use crate::common::peers::open_region;
use crate::common::{on_every_backend, with_room};
use futures::future::{Either, join, join_all, select};
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{MemoryRegion, RdmEndpoint, RemoteRegion, av::FabricAddr, op::Op};

/// What the flooded endpoint keeps: in all, and of one peer.
const TOTAL: usize = 64 << 10;
const PER_PEER: usize = 16 << 10;
/// The flooder's tag; others have their own.
const TAG: u64 = 7;

/// What the flooded endpoint has of others, and what they have of it.
struct FloodSetup {
    flooded: RdmEndpoint,
    region: MemoryRegion<Vec<u8>>,
    others: Vec<Other>,
    _peers: Vec<Peer>,
}

struct Other {
    endpoint: RdmEndpoint,
    /// The flooded endpoint's address, as this one knows it.
    flooded: FabricAddr,
    /// This one's, as the flooded endpoint knows it.
    own: FabricAddr,
}

async fn crowd(net: &Net, count: usize, extension: bool) -> FloodSetup {
    let mut peers = vec![with_room(|| net.peer()).await];
    let open = |peer: &Peer| {
        let builder = peer
            .domain
            .rdm_endpoint()
            .listen_at(crate::common::peers::any());
        let builder = builder.extension(extension).transmit_size(1_024);
        let builder = builder.unexpected_bytes(TOTAL);
        builder.unexpected_bytes_per_peer(PER_PEER).open()
    };
    let flooded = with_room(|| open(&peers[0])).await;
    let region = open_region(&peers[0], vec![0u8; 64 * count]).await;
    let mut others = Vec::new();
    for _ in 0..count {
        let peer = with_room(|| net.peer()).await;
        let endpoint = with_room(|| open(&peer)).await;
        peers.push(peer);
        others.push(Other {
            flooded: endpoint.insert(flooded.local_addr()).unwrap(),
            own: flooded.insert(endpoint.local_addr()).unwrap(),
            endpoint,
        });
    }
    FloodSetup {
        flooded,
        region,
        others,
        _peers: peers,
    }
}

/// A message by whose bytes its number and its wholeness are checked.
fn message(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![number as u8; len];
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    bytes
}

#[track_caller]
fn check(number: usize, len: usize, received: &[u8]) {
    let found = u64::from_le_bytes(received[..8].try_into().unwrap());
    assert_eq!((found, received.len()), (number as u64, len), "in order");
    // Compared as a whole: a loop over 64 MiB takes seconds in a debug build.
    assert!(
        received == message(number, len),
        "number {number} of {len} bytes"
    );
}

/// Sizes of the flood, from 8 B to 64 MiB.
fn flood() -> Vec<usize> {
    let small = [8, 100, 1_000, 5_000, 20_000, 70_000, 8, 300_000];
    let mut sizes: Vec<usize> = small.iter().copied().cycle().take(160).collect();
    // One with a tag, one without.
    sizes[101] = 64 << 20;
    sizes[130] = 64 << 20;
    sizes
}

fn is_tagged(number: usize) -> bool {
    number % 2 == 1
}

fn post(from: &Other, number: usize, len: usize) -> Op<Vec<u8>> {
    let bytes = message(number, len);
    let send = match is_tagged(number) {
        true => from.endpoint.send_tagged(bytes, from.flooded, TAG),
        false => from.endpoint.send(bytes, from.flooded),
    };
    send.post().unwrap()
}

/// Receives the flood from this peer: each kind comes in its order.
async fn drain(flooded: &RdmEndpoint, from: FabricAddr, sizes: &[usize]) {
    let post = |number: usize, len: usize| match is_tagged(number) {
        true => flooded.recv_tagged(vec![0u8; len], TAG).from(from).post(),
        false => flooded.recv(vec![0u8; len]).from(from).post(),
    };
    let numbered = sizes.iter().copied().enumerate();
    let posted: Vec<_> = (numbered.clone())
        .map(|(number, len)| post(number, len).unwrap())
        .collect();
    for ((number, len), receive) in numbered.zip(posted) {
        let (received, bytes) = receive.await.unwrap();
        assert_eq!((received.len, received.source), (len, Some(from)));
        check(number, len, &bytes);
    }
}

/// Does this while the bytes that the endpoint holds are read again and again; returns the most.
async fn watched<T>(endpoint: &RdmEndpoint, work: impl Future<Output = T>) -> (T, usize) {
    let mut most = 0;
    let watching = async {
        loop {
            most = most.max(endpoint.unexpected_bytes());
            tokio::task::yield_now().await;
        }
    };
    let done = match select(pin!(work), pin!(watching)).await {
        Either::Left((done, _)) => done,
        Either::Right((never, _)) => never,
    };
    (done, most.max(endpoint.unexpected_bytes()))
}

/// Rounds of what one peer may do: messages of both kinds to receives of its own, writes and reads.
/// Returns how long each write and each read took.
async fn operate(crowd: &FloodSetup, which: usize, rounds: usize) -> Vec<Duration> {
    let FloodSetup { flooded, .. } = crowd;
    let other = &crowd.others[which];
    let at = 64 * which as u64;
    let remote: RemoteRegion = crowd.region.remote().slice(at..at + 64).unwrap();
    let mut times = Vec::new();
    for round in 0..rounds {
        let bytes = message(round, 64);
        let began = Instant::now();
        let write = other.endpoint.write(bytes.clone(), other.flooded, remote);
        write.await.unwrap();
        times.push(began.elapsed());
        let began = Instant::now();
        let read = other.endpoint.read(vec![0u8; 64], other.flooded, remote);
        assert_eq!(read.await.unwrap().1, bytes);
        times.push(began.elapsed());
        // A small one, and one that is announced.
        let len = [500, 100_000][round % 2];
        let own_tag = 1_000 + which as u64;
        let expected = flooded.recv(vec![0u8; len]).from(other.own).post().unwrap();
        let tagged = flooded.recv_tagged(vec![0u8; len], own_tag).post().unwrap();
        let send = other.endpoint.send(message(round, len), other.flooded);
        send.await.unwrap();
        let send = other
            .endpoint
            .send_tagged(message(round, len), other.flooded, own_tag);
        send.await.unwrap();
        check(round, len, &expected.await.unwrap().1);
        check(round, len, &tagged.await.unwrap().1);
    }
    times
}

fn median(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// docs/extension.md, section 6, and the receive context: a peer's unexpected messages stay within
/// a budget, of all peers and of each, then that peer waits, and no other one does.
#[test]
fn a_flood_from_one_peer_stays_within_its_budget_and_holds_up_no_other() {
    on_every_backend(|net| async move {
        for extension in [true, false] {
            let crowd = &crowd(&net, 5, extension).await;
            let flooder = &crowd.others[0];
            const ROUNDS: usize = 10;
            let all = || join_all((1..5).map(|which| operate(crowd, which, ROUNDS)));
            all().await; // Everybody is connected.
            let (idle, _) = watched(&crowd.flooded, all()).await;
            let sizes = flood();
            let flooding: Vec<_> = (sizes.iter().enumerate())
                .map(|(number, len)| post(flooder, number, *len))
                .collect();
            let ((), filling) = watched(&crowd.flooded, async {
                while crowd.flooded.unexpected_bytes() == 0 {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            let (loaded, most) = watched(&crowd.flooded, all()).await;
            // The others' messages find their receives, so all that is held is the flooder's.
            let most = most.max(filling);
            assert!(0 < most && most <= PER_PEER, "{most} bytes of one peer");
            let (idle, loaded) = (median(idle.concat()), median(loaded.concat()));
            println!(
                "{:?}, extension {extension}: RMA of others, median and 99 %: idle {idle:?}, \
                 beside a flood {loaded:?}",
                net.backend()
            );
            let receiving = drain(&crowd.flooded, flooder.own, &sizes);
            let sending = join_all(
                flooding
                    .into_iter()
                    .map(|send| async { send.await.unwrap() }),
            );
            let ((_, sent), most) = watched(&crowd.flooded, join(receiving, sending)).await;
            assert!(most <= PER_PEER, "{most} bytes of one peer");
            assert!(sent.iter().zip(&sizes).all(|(sent, len)| sent.0 == *len));
            assert_eq!(crowd.flooded.unexpected_bytes(), 0);
        }
    });
}

/// The same of many at once, who are promised more together than there is.
#[test]
fn a_flood_from_everybody_stays_within_the_budget_of_all() {
    on_every_backend(|net| async move {
        const COUNT: usize = 24;
        let sizes = [8, 4_000, 100, 30_000, 1_000, 8, 12_000, 200_000];
        // Small ones first, until each peer has what it is promised: larger ones that wait for room
        // would leave it to chance how much is held.
        let sizes = [vec![100; 40], sizes.repeat(4)].concat();
        for extension in [true, false] {
            let crowd = &crowd(&net, COUNT, extension).await;
            let flooding: Vec<_> = (crowd.others.iter())
                .flat_map(|from| {
                    let numbered = sizes.iter().enumerate();
                    numbered.map(|(number, len)| post(from, number, *len))
                })
                .collect();
            // While all of them wait, each may still read.
            let working = async {
                while crowd.flooded.unexpected_bytes() < TOTAL / 2 {
                    tokio::task::yield_now().await;
                }
                if extension {
                    let remote = crowd.region.remote().slice(..64).unwrap();
                    let reads = crowd.others.iter().map(|from| async {
                        let read = from.endpoint.read(vec![0u8; 64], from.flooded, remote);
                        assert_eq!(read.await.unwrap().0, 64);
                    });
                    join_all(reads).await;
                }
            };
            let ((), most) = watched(&crowd.flooded, working).await;
            assert!((TOTAL / 2..=TOTAL).contains(&most), "{most} bytes");
            let each = crowd.others.iter();
            let receiving = join_all(each.map(|it| drain(&crowd.flooded, it.own, &sizes)));
            let sending = join_all(
                flooding
                    .into_iter()
                    .map(|send| async { send.await.unwrap() }),
            );
            let (_, most) = watched(&crowd.flooded, join(receiving, sending)).await;
            assert!(most <= TOTAL, "{most} bytes");
            assert_eq!(crowd.flooded.unexpected_bytes(), 0);
        }
    });
}
