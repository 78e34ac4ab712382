//! When operations of connectionless endpoints end, and where they report.

use crate::common::on_every_backend;
use crate::common::peers::rdm_with_queue;
use tokio_fabric::{ErrorKind, UserContext, cq::CompletionFlags, error::OperationKind};

/// fi_cq(3): "This indicates that remote CQ data is available as part of the completion."
/// fi_cq(3): "Indicates that the completion was for a receive operation."
/// fi_msg(3): "The send data call is similar to fi_send, but allows for the sending of remote CQ
/// data"
/// fi_msg(3): `fi_senddata`
/// fi_msg(3): `fi_sendmsg`
/// fi_cq(3): "Indicates that the completion was for a send operation. This flag may be combined
/// with an FI_MSG or FI_TAGGED flag."
/// fi_cq(3): "Indicates that a message-based operation completed. This flag may be combined with an
/// FI_SEND or FI_RECV flag."
/// fi_msg(3): "Indicates that remote CQ data is available and should be sent as part of the
/// request."
#[test]
fn completions_say_what_ended() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, queue) = rdm_with_queue(&one);
        let y = two.rdm_endpoint().unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        let to_x = y.insert(x.local_addr()).unwrap();
        x.send("four", to_y).imm(9).queue(4u64).await.unwrap();
        let (received, _) = y.recv(vec![0u8; 8]).await.unwrap();
        assert_eq!((received.data, received.tag), (Some(9), None));
        let mut sent = queue.next().await.unwrap();
        let flags = CompletionFlags::SEND | CompletionFlags::MSG;
        assert_eq!((sent.context, sent.flags), (UserContext(4), flags));
        assert_eq!(
            (sent.endpoint, sent.operation),
            (x.id(), OperationKind::Send)
        );
        assert_eq!((sent.source(), sent.source_addr()), (None, None));
        assert_eq!(&sent.take_buffer().unwrap()[..], b"four");
        x.recv(vec![0u8; 8]).queue(5u64).await.unwrap();
        y.send("five!", to_x).imm(u64::MAX).await.unwrap();
        let mut completion = queue.next().await.unwrap();
        let flags = CompletionFlags::RECV | CompletionFlags::MSG | CompletionFlags::REMOTE_CQ_DATA;
        assert_eq!(
            (completion.context, completion.flags, completion.len),
            (UserContext(5), flags, 5)
        );
        assert_eq!((completion.data, completion.tag), (Some(u64::MAX), None));
        assert_eq!(completion.source(), Some(to_y));
        assert_eq!(&completion.take_buffer().unwrap()[..5], b"five!");
    });
}

/// fi_msg(3): `FI_INJECT`
/// fi_msg(3): "The inject data call is similar to fi_inject, but allows for the sending of remote
/// CQ data"
/// fi_msg(3): `fi_injectdata`
/// fi_msg(3): `fi_inject`
/// fi_msg(3): "The data buffer is available for reuse immediately on return from the call, and no
/// CQ entry will be written if the transfer completes successfully."
#[test]
fn injected_messages_are_copied_and_limited() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let sent = one.domain.counter().unwrap();
        let queue = one.domain.completion_queue().open().unwrap();
        let opened = one.domain.rdm_endpoint().completion_queue(&queue);
        let x = opened
            .send_counter(&sent)
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap();
        let y = two.rdm_endpoint().unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        let mut bytes = [7u8; 128];
        x.inject(&bytes, to_y).unwrap();
        bytes.fill(9);
        x.inject_data(&bytes[..3], to_y, 33).unwrap();
        let (received, buffer) = y.recv(vec![0u8; 128]).await.unwrap();
        assert_eq!((received.len, buffer), (128, vec![7u8; 128]));
        let (received, _) = y.recv(vec![0u8; 128]).await.unwrap();
        assert_eq!((received.len, received.data), (3, Some(33)));
        let refused = x.inject(&[0; 129], to_y).unwrap_err();
        assert_eq!(
            (refused.kind(), refused.fi_errno()),
            (ErrorKind::TooLarge, 90)
        );
        sent.wait_for(2).await.unwrap();
        assert!(queue.is_empty());
    });
}

/// fi_msg(3): "Indicates that a completion should be generated when the operation has been
/// processed by the destination."
/// fi_msg(3): `FI_TRANSMIT_COMPLETE`
/// fi_msg(3): `FI_MORE`
/// fi_endpoint(3), FI_DELIVERY_COMPLETE: "processed by the destination"; and ruling 5: what is
/// marked MORE goes out with what is posted next, or at the driver's turn.
#[test]
fn delivery_complete_and_more() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, to) = (&a.endpoint, a.other);
        let more = x.send("one", to).more().post().unwrap();
        let last = x.send("two", to).delivery_complete().post().unwrap();
        for text in ["one", "two"] {
            let (received, bytes) = b.endpoint.recv(vec![0u8; 8]).await.unwrap();
            assert_eq!(&bytes[..received.len], text.as_bytes());
        }
        more.await.unwrap();
        last.await.unwrap();
        x.send("alone", to).more().await.unwrap();
        assert_eq!(b.endpoint.recv(vec![0u8; 8]).await.unwrap().0.len, 5);
        // In the peer's store is in the peer's memory.
        x.send("early", to).delivery_complete().await.unwrap();
        assert!(b.endpoint.unexpected_bytes() >= 5);
        assert_eq!(b.endpoint.recv(vec![0u8; 8]).await.unwrap().0.len, 5);
        assert_eq!(b.endpoint.unexpected_bytes(), 0);
    });
}

/// fi_msg(3): `FI_INJECT_COMPLETE`
/// fi_endpoint(3), FI_INJECT_COMPLETE: "Indicates that a completion should be generated when the
/// source buffer(s) may be reused." No receive has to be there for that, and what the buffer gets
/// from then on is in no message.
#[test]
fn an_operation_ends_when_its_buffer_may_be_reused() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, to) = (&a.endpoint, a.other);
        // One buffer, however many messages: each end gives it back, though none is received.
        let mut buffer = vec![0u8; 1000];
        let place = buffer.as_ptr();
        for round in 1..=20u8 {
            buffer.fill(round);
            let sent = x.send(buffer, to).await.unwrap();
            assert_eq!((sent.0, sent.1.as_ptr()), (1000, place));
            buffer = sent.1;
        }
        buffer.fill(99);
        for round in 1..=20u8 {
            let (received, bytes) = b.endpoint.recv(vec![0u8; 1000]).await.unwrap();
            assert_eq!((received.len, bytes), (1000, vec![round; 1000]));
        }
        // What is read out of its buffer only when a receive is there ends no earlier.
        let large = vec![5u8; 4 << 20];
        let place = large.as_ptr();
        let mut waiting = x.send(large, to).post().unwrap();
        x.send("behind", to).await.unwrap();
        assert!(futures::poll!(&mut waiting).is_pending());
        let (_, bytes) = b.endpoint.recv(vec![0u8; 4 << 20]).await.unwrap();
        let mut large = waiting.await.unwrap().1;
        assert_eq!(large.as_ptr(), place);
        large.fill(6);
        assert!(bytes.iter().all(|byte| *byte == 5));
    });
}

/// fi_msg(3): "Operations posted after the fencing will see and/or replace the results of any
/// operations initiated prior to the fenced operation."
/// fi_msg(3): `FI_FENCE`
/// fi_msg(3), FI_FENCE: "any operation posted after the fenced operation will be deferred until all
/// previous operations targeting the same peer endpoint have completed."
#[test]
fn a_fence_waits_for_everything_before_it() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, to) = (&a.endpoint, a.other);
        let region = crate::common::peers::open_region(&b.peer, vec![5u8; 1 << 20]).await;
        let read = x
            .read(vec![0u8; 1 << 20], to, region.remote())
            .post()
            .unwrap();
        let remote = region.remote().slice(..4).unwrap();
        let fenced = x.write(vec![9u8; 4], to, remote).fence().post().unwrap();
        let behind = x.send("behind", to).post().unwrap();
        // A write after a read would otherwise be free to show in it: its source is read late.
        assert_eq!(read.await.unwrap().1, vec![5u8; 1 << 20]);
        assert_eq!(b.endpoint.recv(vec![0u8; 8]).await.unwrap().0.len, 6);
        fenced.await.unwrap();
        behind.await.unwrap();
        let mut bytes = [0; 5];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [9, 9, 9, 9, 5]);
        // Nothing is overtaken by a fence that has nothing to wait for.
        for round in 0..50u8 {
            let sent = x.send(vec![round], to).fence().post().unwrap();
            assert_eq!(b.endpoint.recv(vec![0u8; 1]).await.unwrap().1, [round]);
            sent.await.unwrap();
        }
    });
}

/// fi_endpoint(3): `FI_SELECTIVE_COMPLETION` fi_msg(3): `FI_COMPLETION` Ruling 2: "in exactly one
/// place": an operation with a context to the queue, one that is awaited to its future, and
/// successes without `FI_COMPLETION` nowhere.
#[test]
fn an_operation_reports_in_exactly_one_place() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = one.domain.completion_queue().open().unwrap();
        let (sent, got) = (one.domain.counter().unwrap(), one.domain.counter().unwrap());
        let opened = one.domain.rdm_endpoint().completion_queue(&queue);
        let opened = opened.send_counter(&sent).receive_counter(&got);
        let x = opened
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap();
        let y = two.rdm_endpoint().unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        let to_x = y.insert(x.local_addr()).unwrap();
        x.send("awaited", to_y).await.unwrap();
        x.send("queued", to_y).queue(1u64).await.unwrap();
        x.inject(b"injected", to_y).unwrap();
        assert_eq!(queue.next().await.unwrap().context, UserContext(1));
        for len in [7, 6, 8] {
            assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().0.len, len);
        }
        x.recv(vec![0u8; 8]).queue(2u64).await.unwrap();
        for _ in 0..2 {
            y.send("back", to_x).await.unwrap();
        }
        assert_eq!(queue.next().await.unwrap().context, UserContext(2));
        assert_eq!(x.recv(vec![0u8; 8]).await.unwrap().0.len, 4);
        sent.wait_for(3).await.unwrap();
        got.wait_for(2).await.unwrap();
        assert!(queue.is_empty());
    });
}
