//! Our end of the scenario about remote memory.

use tokio_fabric::{Access, RemoteRegion, cq::CompletionFlags};

use super::session::Session;
use crate::bytes::{assert_bytes, pattern};

const MIB: usize = 1 << 20;
const REGION_LEN: usize = MIB + 16384;

pub async fn rma(session: &Session) {
    match session.is_initiator() {
        true => initiate(session).await,
        false => serve(session).await,
    }
}

fn at(region: RemoteRegion, offset: usize, len: usize) -> RemoteRegion {
    RemoteRegion::new(region.addr + offset as u64, len as u64, region.key)
}

async fn initiate(session: &Session) {
    let (x, c) = (&session.endpoint, session.c);
    let (descriptor, done) = (session.receive(24), session.post_done());
    session.hello(None).await;
    let (_, bytes) = descriptor.await.unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(word(8), REGION_LEN as u64);
    let region = RemoteRegion::new(word(0), word(8), word(16));
    let write = x.write(pattern(1000, 1), c, at(region, 0, 1000));
    let write = write.post().unwrap();
    let mut bytes = pattern(1008, 2);
    let vector = [5, 0, 1000, 3].map(|len| bytes.drain(..len).collect::<Vec<u8>>());
    let vector = x.write(vector, c, at(region, 1000, 1008)).post().unwrap();
    let data = x.write(pattern(64, 3), c, at(region, 4096, 64));
    let data = data.imm(0xFEED_FACE).post().unwrap();
    x.inject_write(&pattern(64, 4), c, at(region, 8000, 64))
        .unwrap();
    let halves = [0, MIB / 2].map(|half| at(region, 16384 + half, MIB / 2));
    let large = x.write(pattern(MIB, 5), c, halves).delivery_complete();
    let large = large.post().unwrap();
    for write in [write, data, large] {
        write.await.unwrap();
    }
    vector.await.unwrap();
    let read = x.read(vec![0; MIB], c, at(region, 16384, MIB));
    assert_bytes("read", &read.await.unwrap().1, &pattern(MIB, 5));
    let vector = [500, 8, 0, 500].map(|len| vec![0; len]);
    let read = x.read(vector, c, at(region, 1000, 1008));
    assert_bytes("readv", &read.await.unwrap().1.concat(), &pattern(1008, 2));
    session.farewell(done).await;
}

async fn serve(session: &Session) {
    let (x, c) = (&session.endpoint, session.c);
    let registering = session.peer.domain.register(vec![0; REGION_LEN]);
    let region = registering.access(Access::REMOTE).await.unwrap();
    let (hello, done) = (session.post_hello(), session.post_done());
    session.hello(hello).await;
    let RemoteRegion { addr, len, key, .. } = region.remote();
    let descriptor = [addr, len, key].map(u64::to_le_bytes).concat();
    x.send(descriptor, c).await.unwrap();
    session.message("done", done, b"done", None).await;
    let mut image = vec![0; REGION_LEN];
    for (offset, len, seed) in [
        (0, 1000, 1),
        (1000, 1008, 2),
        (4096, 64, 3),
        (8000, 64, 4),
        (16384, MIB, 5),
    ] {
        image[offset..offset + len].copy_from_slice(&pattern(len, seed));
    }
    let mut bytes = vec![0; REGION_LEN];
    region.read_at(0, &mut bytes).unwrap();
    assert_bytes("the region", &bytes, &image);
    let completion = x
        .receive_queue()
        .try_next()
        .expect("the write with CQ data");
    completion.result.as_ref().unwrap();
    assert!(completion.flags.contains(CompletionFlags::REMOTE_WRITE));
    assert_eq!(completion.data, Some(0xFEED_FACE));
    session.say_done().await;
}
