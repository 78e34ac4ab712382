//! Scenarios about remote memory: writes, reads, delivery.

use tokio_fabric::{
    Access, MemoryRegion, RemoteRegion,
    cq::CompletionFlags,
    error::OperationKind,
    op::{Op, Received},
};

use super::messages::cut;
use super::session::{
    DESCRIPTOR_LEN, Session, assert_bytes, await_descriptor, await_done, await_message,
    encode_descriptor, pattern, post_done, post_receive,
};

const MIB: usize = 1 << 20;
const BIG: usize = MIB + 8192;
const SMALL: usize = 4096;

/// Offsets and lengths of the four segments, in the order in which they are filled.
const FOUR: [(usize, usize); 4] = [(2000, 40), (2100, 30), (2050, 20), (2200, 10)];
const PIECES_400: [usize; 4] = [1, 2, 300, 97];
const PIECES_100: [usize; 4] = [10, 20, 30, 40];

/// A range of the target's region, from what it announced.
pub fn at(remote: RemoteRegion, offset: usize, len: usize) -> RemoteRegion {
    remote.slice(offset as u64..(offset + len) as u64).unwrap()
}

fn four_segments(remote: RemoteRegion) -> [RemoteRegion; 4] {
    FOUR.map(|(offset, len)| at(remote, offset, len))
}

/// Puts 100 bytes where the four segments lie.
fn scatter(image: &mut [u8], stream: &[u8]) {
    let mut rest = stream;
    for (offset, len) in FOUR {
        let (piece, after) = rest.split_at(len);
        image[offset..offset + len].copy_from_slice(piece);
        rest = after;
    }
}

fn put(image: &mut [u8], offset: usize, bytes: &[u8]) {
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

pub async fn region(session: &Session, bytes: Vec<u8>, access: Access) -> MemoryRegion<Vec<u8>> {
    session
        .peer
        .domain
        .register(bytes)
        .access(access)
        .await
        .unwrap()
}

#[track_caller]
pub fn assert_region(region: &MemoryRegion<Vec<u8>>, image: &[u8]) {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).unwrap();
    assert_bytes("the region", &bytes, image);
}

/// How a target starts: connected, the descriptor sent. Gives the receive for "done".
pub async fn open_target(
    session: &mut Session,
    region: &MemoryRegion<Vec<u8>>,
) -> Op<Vec<u8>, Received> {
    let endpoint = session.begin().await;
    let done = post_done(&endpoint);
    session.complete().await;
    endpoint
        .send(encode_descriptor(region.remote()))
        .await
        .unwrap();
    done
}

/// How an initiator starts: connected, with the target's region known.
pub async fn open_initiator(
    session: &mut Session,
    len: usize,
) -> (tokio_fabric::Endpoint, RemoteRegion, Op<Vec<u8>, Received>) {
    let endpoint = session.begin().await;
    let descriptor = post_receive(&endpoint, DESCRIPTOR_LEN);
    let done = post_done(&endpoint);
    session.complete().await;
    let remote = await_descriptor(descriptor, len as u64).await;
    (endpoint, remote, done)
}

pub async fn write(mut session: Session, initiator: bool) {
    if initiator {
        let (endpoint, remote, done) = open_initiator(&mut session, BIG).await;
        let w1 = endpoint
            .write(pattern(1000, 0x61), at(remote, 0, 1000))
            .post()
            .unwrap();
        let pieces = cut(&pattern(400, 0x62), PIECES_400);
        let w2 = endpoint
            .write(pieces, at(remote, 1000, 400))
            .post()
            .unwrap();
        let pieces = cut(&pattern(100, 0x63), PIECES_100);
        let w3 = endpoint
            .write(pieces, four_segments(remote))
            .post()
            .unwrap();
        endpoint
            .inject_write(&pattern(32, 0x64), at(remote, 3000, 32))
            .unwrap();
        let w5 = endpoint
            .write(Vec::<u8>::new(), at(remote, 0, 0))
            .post()
            .unwrap();
        let w6 = endpoint
            .write(pattern(MIB, 0x65), at(remote, 8192, MIB))
            .post()
            .unwrap();
        for (write, len) in [(w1, 1000), (w5, 0), (w6, MIB)] {
            assert_eq!(write.await.unwrap().0, len);
        }
        for (write, len) in [(w2, 400), (w3, 100)] {
            assert_eq!(write.await.unwrap().0, len);
        }
        session.initiator_farewell(done).await;
        return;
    }
    let region = region(&session, vec![0; BIG], Access::REMOTE_WRITE).await;
    let done = open_target(&mut session, &region).await;
    await_done(done).await;
    let mut image = vec![0; BIG];
    put(&mut image, 0, &pattern(1000, 0x61));
    put(&mut image, 1000, &pattern(400, 0x62));
    scatter(&mut image, &pattern(100, 0x63));
    put(&mut image, 3000, &pattern(32, 0x64));
    put(&mut image, 8192, &pattern(MIB, 0x65));
    assert_region(&region, &image);
    assert!(
        session.endpoint().receive_queue().is_empty(),
        "a plain write wrote a completion"
    );
    session.target_farewell().await;
}

pub async fn writedata(mut session: Session, initiator: bool) {
    const DUE: [(usize, u64); 4] = [
        (512, 0x0123_4567_89AB_CDEF),
        (100, 0xDEAD_BEEF),
        (16, 7),
        (0, 9),
    ];
    if initiator {
        let (endpoint, remote, done) = open_initiator(&mut session, SMALL).await;
        let d1 = endpoint
            .write(pattern(512, 0x71), at(remote, 100, 512))
            .imm(DUE[0].1);
        let d1 = d1.post().unwrap();
        let pieces = cut(&pattern(100, 0x72), PIECES_100);
        let d2 = endpoint
            .write(pieces, four_segments(remote))
            .imm(DUE[1].1)
            .post()
            .unwrap();
        endpoint
            .inject_write_data(&pattern(16, 0x73), DUE[2].1, at(remote, 3000, 16))
            .unwrap();
        let d4 = endpoint
            .write(Vec::<u8>::new(), at(remote, 0, 0))
            .imm(DUE[3].1)
            .post()
            .unwrap();
        assert_eq!(d1.await.unwrap().0, 512);
        assert_eq!(d2.await.unwrap().0, 100);
        assert_eq!(d4.await.unwrap().0, 0);
        session.initiator_farewell(done).await;
        return;
    }
    let region = region(&session, vec![0; SMALL], Access::REMOTE_WRITE).await;
    let done = open_target(&mut session, &region).await;
    let endpoint = session.endpoint();
    for (len, data) in DUE {
        let completion = endpoint.receive_queue().next().await.unwrap();
        assert_eq!((completion.len, completion.data), (len, Some(data)));
        assert_eq!(
            (completion.operation, completion.endpoint),
            (OperationKind::RemoteWrite, endpoint.id())
        );
        let flags =
            CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE | CompletionFlags::REMOTE_CQ_DATA;
        assert_eq!(completion.flags, flags);
        completion.result.unwrap();
    }
    await_done(done).await;
    assert!(endpoint.receive_queue().is_empty());
    let mut image = vec![0; SMALL];
    put(&mut image, 100, &pattern(512, 0x71));
    scatter(&mut image, &pattern(100, 0x72));
    put(&mut image, 3000, &pattern(16, 0x73));
    assert_region(&region, &image);
    session.target_farewell().await;
}

pub async fn read(mut session: Session, initiator: bool) {
    let image = pattern(BIG, 0x81);
    if !initiator {
        let region = region(&session, image.clone(), Access::REMOTE_READ).await;
        let done = open_target(&mut session, &region).await;
        await_done(done).await;
        assert_region(&region, &image);
        session.target_farewell().await;
        return;
    }
    let (endpoint, remote, done) = open_initiator(&mut session, BIG).await;
    let r1 = endpoint
        .read(vec![0; 1000], at(remote, 0, 1000))
        .post()
        .unwrap();
    let pieces = PIECES_400.map(|len| vec![0; len]);
    let r2 = endpoint.read(pieces, at(remote, 1000, 400)).post().unwrap();
    let pieces = PIECES_100.map(|len| vec![0; len]);
    let r3 = endpoint.read(pieces, four_segments(remote)).post().unwrap();
    let r4 = endpoint
        .read(Vec::<u8>::new(), at(remote, 0, 0))
        .post()
        .unwrap();
    let r5 = endpoint
        .read(vec![0; MIB], at(remote, 8192, MIB))
        .post()
        .unwrap();
    let r6: Vec<_> = (0..8)
        .map(|k| {
            endpoint
                .read(vec![0; 64], at(remote, 4000 + 64 * k, 64))
                .post()
                .unwrap()
        })
        .collect();
    assert_bytes("R1", &r1.await.unwrap().1, &image[..1000]);
    assert_bytes("R2", &r2.await.unwrap().1.concat(), &image[1000..1400]);
    let (_, pieces) = r3.await.unwrap();
    let due: Vec<u8> = FOUR
        .iter()
        .flat_map(|&(at, len)| image[at..at + len].to_vec())
        .collect();
    assert_bytes("R3", &pieces.concat(), &due);
    assert_eq!(r4.await.unwrap().0, 0);
    assert_bytes("R5", &r5.await.unwrap().1, &image[8192..]);
    for (k, read) in r6.into_iter().enumerate() {
        let from = 4000 + 64 * k;
        assert_bytes("R6", &read.await.unwrap().1, &image[from..from + 64]);
    }
    session.initiator_farewell(done).await;
}

pub async fn delivery(mut session: Session, initiator: bool) {
    if initiator {
        let (endpoint, remote, done) = open_initiator(&mut session, SMALL).await;
        endpoint
            .send(pattern(100, 0x91))
            .delivery_complete()
            .await
            .unwrap();
        let e2 = endpoint
            .write(pattern(200, 0x92), at(remote, 0, 200))
            .delivery_complete();
        e2.await.unwrap();
        endpoint
            .send(pattern(50, 0x93))
            .imm(0xABCD)
            .delivery_complete()
            .await
            .unwrap();
        let sends: Vec<_> = (0..10)
            .map(|k| {
                let send = endpoint.send(pattern(100, 0xA0 + k));
                if k % 2 == 0 {
                    send.delivery_complete().post()
                } else {
                    send.post()
                }
                .unwrap()
            })
            .collect();
        for send in sends {
            assert_eq!(send.await.unwrap().0, 100);
        }
        session.initiator_farewell(done).await;
        return;
    }
    let region = region(&session, vec![0; SMALL], Access::REMOTE_WRITE).await;
    let endpoint = session.begin().await;
    let mut receives: Vec<_> = (0..12).map(|_| post_receive(&endpoint, 128)).collect();
    let done = post_done(&endpoint);
    session.complete().await;
    endpoint
        .send(encode_descriptor(region.remote()))
        .await
        .unwrap();
    let last_ten = receives.split_off(2);
    let [e1, e3] = <[_; 2]>::try_from(receives).unwrap();
    await_message("E1", e1, &pattern(100, 0x91), None).await;
    await_message("E3", e3, &pattern(50, 0x93), Some(0xABCD)).await;
    for (k, receive) in last_ten.into_iter().enumerate() {
        await_message("E4", receive, &pattern(100, 0xA0 + k), None).await;
    }
    await_done(done).await;
    let mut image = vec![0; SMALL];
    put(&mut image, 0, &pattern(200, 0x92));
    assert_region(&region, &image);
    session.target_farewell().await;
}
