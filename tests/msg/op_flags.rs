//! Default flags of operations (`op_flags` of `fi_endpoint(3)`): what an operation does whose call
//! says nothing.

use futures::FutureExt;

use crate::common::on_every_backend;
use crate::common::peers::{open_region, peer_with};
use tokio_fabric::ep::OnRefusal;
use tokio_fabric::error::Refusal;
use tokio_fabric::info::OpFlags;
use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{Error, ErrorKind, Hints, RemoteRegion, UserContext, domain::DomainBind};

fn peer(net: &Net, tx: OpFlags) -> Peer {
    let hints = Hints::new().tx(|it| it.op_flags(tx));
    peer_with(net, hints, DomainBind::empty())
}

/// Long enough for what would end by itself.
async fn for_a_while() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// fi_endpoint(3): "Flags that control the operation of operations submitted against the context."
/// fi_endpoint(3), FI_DELIVERY_COMPLETE: "Indicates that a completion should be generated when the
/// operation has been processed by the destination endpoint(s)."
/// fi_cq(3), FI_TRANSMIT_COMPLETE: "A completion guarantees that the operation is no longer
/// dependent on the fabric or local resources", which here takes the peer's acknowledgement.
/// fi_cq(3), FI_INJECT_COMPLETE: "A completion guarantees that the buffers will not be read from
/// again".
/// fi_domain(3): `FI_TRANSMIT_COMPLETE`, `FI_DELIVERY_COMPLETE`, flags (completion model).
/// fi_msg(3): `FI_TRANSMIT_COMPLETE`, flag of fi_sendmsg.
#[test]
fn a_completion_level_among_the_default_flags_is_that_of_sends_and_writes() {
    on_every_backend(|net| async move {
        for (flags, waits) in [
            (OpFlags::empty(), false),
            (OpFlags::INJECT_COMPLETE, false),
            (OpFlags::TRANSMIT_COMPLETE, true),
            (OpFlags::DELIVERY_COMPLETE, true),
            (OpFlags::DELIVERY_COMPLETE | OpFlags::INJECT_COMPLETE, true),
        ] {
            let (a, b) = (peer(&net, flags), net.peer().unwrap());
            let region = open_region(&b, vec![0u8; 8]).await;
            // A plain peer, which answers no write unasked, and which reads nothing behind a
            // message that it has no receive for.
            let x = a.domain.endpoint().extension(false).open().unwrap();
            let y = b.domain.endpoint().unexpected_bytes(0).open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            x.send("waits").inject_complete().await.unwrap();
            let mut send = x.send("by default").post().unwrap();
            let mut write = x.write(vec![1u8; 8], region.remote()).post().unwrap();
            let mut asked = x.send("asked").transmit_complete().post().unwrap();
            if !waits {
                (&mut send).await.unwrap();
                (&mut write).await.unwrap();
            }
            for_a_while().await;
            assert!((&mut asked).now_or_never().is_none());
            let receive = || async { y.recv(vec![0u8; 16]).await.unwrap() };
            if waits {
                assert!((&mut send).now_or_never().is_none(), "{flags:?}");
                assert!((&mut write).now_or_never().is_none(), "{flags:?}");
                // The call says otherwise.
                let mut quick = x.write(vec![1u8; 8], region.remote()).inject_complete();
                quick = quick.more();
                quick.await.unwrap();
                receive().await;
                receive().await;
                send.await.unwrap();
                write.await.unwrap();
            } else {
                receive().await;
                receive().await;
            }
            receive().await;
            asked.await.unwrap();
        }
    });
}

/// fi_cq(3), FI_COMMIT_COMPLETE: "This completion mode applies only to operations that target
/// persistent memory regions": by default flags all writes ask for it, and messages do not.
#[test]
fn writes_are_committed_by_default_flags() {
    on_every_backend(|net| async move {
        let (a, b) = (peer(&net, OpFlags::COMMIT_COMPLETE), net.peer().unwrap());
        let region = open_region(&b, vec![0u8; 8]).await;
        let living = OnRefusal::Continue { limit: 100 };
        let x = a.domain.endpoint().on_refusal(living).open().unwrap();
        let y = b.domain.endpoint().on_refusal(living).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        // A region that keeps nothing cannot commit.
        let write = || x.write(vec![1u8; 8], region.remote());
        let error = write().await.unwrap_err().into_error();
        assert_eq!(error.refusal(), Some(Refusal::AccessDenied), "{error}");
        write().delivery_complete().await.unwrap();
        write().inject_complete().await.unwrap();
        let (sent, received) = tokio::join!(x.send("hello"), y.recv(vec![0u8; 8]));
        sent.unwrap();
        assert_eq!(received.unwrap().0.len, 5);
    });
}

/// fi_endpoint(3), FI_SELECTIVE_COMPLETION: "data transfer operations will not generate CQ entries
/// for successful completions unless FI_COMPLETION is set as an operational flag for the given
/// operation."
/// fi_endpoint(3): "Operations that fail asynchronously will still generate completions, even if a
/// completion is not requested."
/// fi_domain(3): "enabled on an endpoint that has been bound to completion queue(s) using the
/// FI_SELECTIVE_COMPLETION flag."
/// fi_domain(3): "Operations posted to such an endpoint may specify that a successful completion
/// should not generate a entry"
/// fi_domain(3): "the operation leaves the FI_COMPLETION flag unset"
/// fi_domain(3): `FI_SELECTIVE_COMPLETION`, `FI_COMPLETION`, flags.
/// fi_endpoint(3): `FI_SELECTIVE_COMPLETION`, flag of fi_ep_bind.
#[test]
fn a_selective_queue_reports_failures_and_what_asks_for_it() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let region = open_region(&b, vec![0u8; 8]).await;
        // Fewer places than operations: those that end unreported give theirs back.
        let queue = a.domain.completion_queue().size(2).open().unwrap();
        let counter = a.domain.counter().unwrap();
        let living = OnRefusal::Continue { limit: 100 };
        let builder = a.domain.endpoint().on_refusal(living);
        let builder = builder.transmit_queue(&queue).selective_transmit();
        let x = builder.write_counter(&counter).open().unwrap();
        let y = b.domain.endpoint().on_refusal(living).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let to = |remote: RemoteRegion, context: u64| x.write(vec![1u8; 8], remote).queue(context);
        for _ in 0..20 {
            to(region.remote(), 1).await.unwrap();
        }
        to(region.remote(), 2).completion().await.unwrap();
        let done = queue.next().await.unwrap();
        assert_eq!((done.context, done.result.is_ok()), (UserContext(2), true));
        let unknown = RemoteRegion::new(0, 8, region.key() ^ 0x55);
        to(unknown, 3).await.unwrap();
        let failed = queue.next().await.unwrap();
        assert_eq!(
            (failed.context, failed.result.is_ok()),
            (UserContext(3), false)
        );
        while counter.read_error() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((counter.read(), counter.read_error()), (21, 1));
        assert!(queue.is_empty());
    });
}

/// fi_domain(3): "must ensure that there is sufficient space in the CQ to report failed operations."
/// fi_domain(3): "the provider is not required to reserve an entry in the completion queue to handle
/// the case where the operation fails": one is, so that there always is space.
/// fi_domain(3): "the operation leaves the FI_COMPLETION flag unset"
#[test]
fn a_selective_queue_has_a_place_for_each_operation_that_may_fail() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = a.domain.completion_queue().size(3).open().unwrap();
        let builder = a.domain.endpoint().completion_queue(&queue);
        let builder = builder.selective_transmit().selective_receive();
        let x = builder.open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        // Successes of each kind, and of both sides, are reported where that is asked for only.
        for asked in [false, true] {
            let sent = x.send("sent").queue(1u64);
            let received = x.recv(vec![0u8; 8]).queue(2u64);
            let (sent, received) = match asked {
                true => (sent.completion(), received.completion()),
                false => (sent, received),
            };
            received.try_post().unwrap();
            sent.try_post().unwrap();
            y.send("received").await.unwrap();
            y.recv(vec![0u8; 8]).await.unwrap();
            let marker = y.recv(vec![0u8; 8]).post().unwrap();
            x.send("after").await.unwrap();
            marker.await.unwrap();
            if asked {
                let mut ended = [1, 2].map(|_| UserContext(0));
                for context in &mut ended {
                    let completion = queue.next().await.unwrap();
                    completion.result.unwrap();
                    *context = completion.context;
                }
                ended.sort();
                assert_eq!(ended, [UserContext(1), UserContext(2)]);
            }
            assert!(queue.is_empty(), "asked: {asked}");
        }
        // A place is taken from the post to the end, though none of them asks for its completion.
        for context in 0..3u64 {
            x.recv(vec![0u8; 8]).queue(context).try_post().unwrap();
        }
        let full = x.recv(vec![0u8; 8]).queue(3u64).try_post().unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Again);
        drop(y);
        for context in 0..3u64 {
            let failed = queue.next().await.unwrap();
            assert_eq!(failed.context, UserContext(context));
            assert!(failed.result.is_err());
        }
        assert!(queue.is_empty());
    });
}

/// fi_endpoint(3), FI_COMPLETION: "Indicates that a completion queue entry should be written for
/// data transfer operations. This flag only applies to operations issued on an endpoint that was
/// bound to a completion queue with the FI_SELECTIVE_COMPLETION flag set".
#[test]
fn by_default_flags_a_selective_queue_reports_all() {
    on_every_backend(|net| async move {
        let all = [1, 2, 3, 4];
        for (flags, reported) in [
            (OpFlags::COMPLETION, &all[..]),
            (OpFlags::empty(), &all[3..]),
        ] {
            let hints = Hints::new()
                .tx(|it| it.op_flags(flags))
                .rx(|it| it.op_flags(flags));
            let (a, b) = (
                peer_with(&net, hints, DomainBind::empty()),
                net.peer().unwrap(),
            );
            let queue = a.domain.completion_queue().open().unwrap();
            let got = a.domain.counter().unwrap();
            let builder = a.domain.endpoint().completion_queue(&queue);
            let builder = builder.selective_transmit().selective_receive();
            let x = builder.receive_counter(&got).open().unwrap();
            let y = b.domain.endpoint().open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            for context in [1u64, 2] {
                x.recv(vec![0u8; 8]).queue(context).await.unwrap();
            }
            y.send("one").await.unwrap();
            y.send("two").await.unwrap();
            got.wait_for(2).await.unwrap();
            x.send("silent").queue(3u64).await.unwrap();
            x.send("asked").queue(4u64).completion().await.unwrap();
            for context in reported {
                let told = queue.next().await.unwrap().context;
                assert_eq!(told, UserContext(*context), "{flags:?}");
            }
            assert!(queue.is_empty());
        }
    });
}

/// What is not bound selectively reports all, whatever the flags say; and what is refused at the
/// post is refused there.
#[test]
fn flags_change_nothing_where_they_do_not_apply() {
    on_every_backend(|net| async move {
        let (a, b) = (peer(&net, OpFlags::COMPLETION), net.peer().unwrap());
        let queue = a.domain.completion_queue().open().unwrap();
        let x = a.domain.endpoint().transmit_queue(&queue).open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        x.send("one").queue(1u64).await.unwrap();
        assert_eq!(queue.next().await.unwrap().context, UserContext(1));
        let (x, _y) = connect(&a, &b).await.unwrap();
        let error: Error = x.send("two").queue(1u64).await.unwrap_err().into();
        assert_eq!(error.kind(), ErrorKind::BadState);
    });
}
