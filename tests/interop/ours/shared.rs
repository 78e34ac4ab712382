//! Scenarios about messages whose receives, at our end, are those of a context that endpoints
//! share.

use tokio_fabric::{
    Completion, CompletionQueue, UserContext,
    cq::CompletionFlags,
    ep::SharedReceiveContext,
    op::{Op, Received},
};

use super::messages::{MANY, MIB, message_of_many, send_many};
use super::session::{Session, assert_bytes, await_done, await_message, pattern};

/// Bytes of a buffer for several messages.
const BUFFER: usize = 16 << 10;

/// The end of `vectors` that receives.
pub async fn vectors(mut session: Session, _initiator: bool) {
    let context = session.share_receives();
    let endpoint = session.begin().await;
    let post = |len| post(&context, len);
    let messages = [
        (1008, pattern(1008, 0x11), None),
        (16, Vec::new(), None),
        (MIB, pattern(MIB, 0x22), None),
        (MIB, pattern(MIB, 0x33), None),
        (64, pattern(64, 0x44), Some(0x0123_4567_89AB_CDEF)),
        (16, Vec::new(), Some(0)),
        (16, pattern(16, 0x55), Some(0xFEED)),
        (200, pattern(100, 0x66), None),
    ];
    let receives = messages.map(|(len, message, data)| (post(len), message, data));
    let done = post(4);
    session.complete().await;
    for (receive, message, data) in receives {
        await_message("a shared receive", receive, &message, data).await;
    }
    await_done(done).await;
    assert_eq!(context.unexpected_bytes(), 0);
    assert!(endpoint.is_connected());
    session.target_farewell().await;
}

fn post(context: &SharedReceiveContext, len: usize) -> Op<Vec<u8>, Received> {
    context.recv(vec![0xEE; len]).post().unwrap()
}

/// `many`, received into one buffer for several messages after the other.
pub async fn many(mut session: Session, initiator: bool) {
    let (my_seed, their_seed) = if initiator { (0, 128) } else { (128, 0) };
    let context = session.share_receives();
    let endpoint = session.begin().await;
    post_buffer(&context);
    post_buffer(&context);
    session.complete().await;
    let queue = context.receive_queue();
    let receiving = async {
        for k in 0..MANY {
            let message = message_of_many(k, their_seed);
            let mut told = next_message(queue, &context).await;
            assert_eq!((told.endpoint, told.data), (endpoint.id(), None));
            let bytes = told.take_buffer();
            let bytes = bytes.as_deref().unwrap_or_default();
            assert_bytes("a message of many", &bytes[..told.len], &message);
        }
    };
    tokio::join!(receiving, send_many(&endpoint, my_seed));
    if initiator {
        session.send_done().await;
    }
    let mut done = next_message(queue, &context).await;
    let bytes = done.take_buffer();
    assert_bytes("done", bytes.as_deref().unwrap_or_default(), b"done");
    match initiator {
        true => session.close(true).await,
        false => session.target_farewell().await,
    }
}

fn post_buffer(context: &SharedReceiveContext) {
    let buffer = context.multi_recv(vec![0_u8; BUFFER]).min_free(2048);
    buffer.queue(7_u64).try_post().unwrap();
}

/// The next message; a buffer that is released is followed by another.
async fn next_message(queue: &CompletionQueue, context: &SharedReceiveContext) -> Completion {
    loop {
        let told = queue.next().await.unwrap();
        told.result.as_ref().unwrap();
        assert_eq!(told.context, UserContext(7));
        if told.flags != CompletionFlags::MULTI_RECV {
            return told;
        }
        post_buffer(context);
    }
}
