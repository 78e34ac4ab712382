//! Remote memory access between connected endpoints (`fi_rma(3)`).

use crate::common::peers::{bytes_of, open_region, toward};
use crate::common::{backends, on, on_every_backend};
use futures::FutureExt;
use tokio_fabric::testing::{connect, connect_endpoints};
use tokio_fabric::{
    ErrorKind, Hints, RemoteRegion, UserContext, cq::CompletionFlags, error::OperationKind,
};

/// fi_rma(3): every number of local buffers with every number of remote ranges, which share no
/// boundaries, both ways.
#[test]
fn one_to_four_buffers_meet_one_to_four_ranges() {
    on_every_backend(|net| async move {
        let (_initiator, target, x, _y) = toward(&net, Hints::new()).await;
        const LEN: usize = 420;
        let bytes: Vec<u8> = (0..LEN).map(|at| (at * 5 + 1) as u8).collect();
        for locals in 1..=4 {
            for remotes in 1..=4 {
                let mut regions = Vec::new();
                for _ in 0..remotes {
                    regions.push(open_region(&target, vec![0u8; LEN + 3]).await);
                }
                // Uneven cuts: the last range takes what is left.
                let cut = |count: usize, at: usize| match at {
                    0 => 0,
                    at if at == count => LEN,
                    at => LEN * at / count + 7 * at,
                };
                let ranges: Vec<RemoteRegion> = (0..remotes)
                    .map(|at| {
                        let len = (cut(remotes, at + 1) - cut(remotes, at)) as u64;
                        regions[at].remote().slice(3..3 + len).unwrap()
                    })
                    .collect();
                let buffers: Vec<Vec<u8>> = (0..locals)
                    .map(|at| bytes[LEN * at / locals..LEN * (at + 1) / locals].to_vec())
                    .collect();
                let empty: Vec<Vec<u8>> =
                    buffers.iter().map(|buffer| vec![0; buffer.len()]).collect();
                let (written, back) = x
                    .write(buffers.clone(), ranges.as_slice())
                    .delivery_complete()
                    .await
                    .unwrap();
                assert_eq!((written, &back), (LEN, &buffers), "{locals} into {remotes}");
                let (read, got) = x.read(empty, ranges.as_slice()).await.unwrap();
                assert_eq!((read, got), (LEN, buffers), "{locals} from {remotes}");
                for (at, region) in regions.iter().enumerate() {
                    let (from, to) = (cut(remotes, at), cut(remotes, at + 1));
                    let held = bytes_of(region);
                    assert_eq!(held[..3], [0; 3]);
                    assert_eq!(held[3..3 + to - from], bytes[from..to]);
                    assert!(held[3 + to - from..].iter().all(|byte| *byte == 0));
                }
            }
        }
    });
}

/// Limits: more than four of either are refused with the buffers, and so are ranges that are
/// smaller than the buffers, or were not handed out for this.
#[test]
fn what_cannot_be_right_is_refused_with_the_buffers() {
    on_every_backend(|net| async move {
        let (_initiator, target, x, _y) = toward(&net, Hints::new()).await;
        let region = open_region(&target, vec![0u8; 64]).await;
        let remote = region.remote();
        let five = vec![vec![1u8; 1]; 5];
        let refused = x.write(five.clone(), remote).await.unwrap_err();
        assert_eq!(
            (refused.kind(), refused.into_parts().1),
            (ErrorKind::TooLarge, Some(five))
        );
        let refused = x.write(vec![1u8; 5], [remote; 5]).await.unwrap_err();
        assert_eq!(
            (refused.kind(), refused.into_parts().1),
            (ErrorKind::TooLarge, Some(vec![1; 5]))
        );
        let refused = x.read(vec![1u8; 5], [remote; 0]).await.unwrap_err();
        assert_eq!(
            (refused.kind(), refused.into_parts().1),
            (ErrorKind::TooLarge, Some(vec![1; 5]))
        );
        let refused = x.read(vec![2u8; 65], remote).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let mut only_read = remote;
        only_read.access = tokio_fabric::Access::REMOTE_READ;
        let refused = x.write(vec![3u8; 4], only_read).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AccessDenied);
        let refused = x
            .inject_write(&[0; 129], remote.slice(..).unwrap())
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        assert!(x.is_connected());
        assert_eq!(bytes_of(&region), vec![0u8; 64]);
    });
}

/// Zero bytes may be written and read, anywhere up to a region's end, and are reported like others.
#[test]
fn rma_of_zero_length() {
    on_every_backend(|net| async move {
        let (_initiator, target, x, y) = toward(&net, Hints::new()).await;
        let region = open_region(&target, vec![9u8; 4]).await;
        let end = region.remote().slice(4..).unwrap();
        assert_eq!(
            x.write(Vec::<u8>::new(), end)
                .delivery_complete()
                .await
                .unwrap()
                .0,
            0
        );
        assert_eq!(x.read(Vec::<u8>::new(), end).await.unwrap().0, 0);
        x.write(Vec::<u8>::new(), end).imm(5).await.unwrap();
        let completion = y.receive_queue().next().await.unwrap();
        assert_eq!((completion.len, completion.data), (0, Some(5)));
        assert_eq!(bytes_of(&region), vec![9u8; 4]);
    });
}

/// 64 MiB go there and back whole.
#[test]
fn large_transfers_arrive_whole() {
    const LEN: usize = 64 << 20;
    for backend in backends() {
        on(backend, |net| async move {
            let (_initiator, target, x, _y) = toward(&net, Hints::new()).await;
            let region = open_region(&target, vec![0u8; LEN]).await;
            let mut bytes = vec![0u8; LEN];
            for (number, piece) in bytes.chunks_exact_mut(1024).enumerate() {
                piece[..8].copy_from_slice(&number.to_le_bytes());
            }
            let write = x.write(bytes, region.remote()).delivery_complete().await;
            let (_, back) = x.read(vec![0u8; LEN], region.remote()).await.unwrap();
            assert!(back == write.unwrap().1, "the bytes differ");
        });
    }
}

/// fi_domain(3): "Applications may include a small message with a data transfer that is placed
/// directly into a remote completion queue"
/// fi_domain(3): "This field indicates the number of bytes that the provider supports for remote CQ
/// data."
/// fi_domain(3): "the minimum size of remote CQ data must be at least 4-bytes."
#[test]
fn a_write_may_carry_data_for_the_peers_queue() {
    on_every_backend(|net| async move {
        let (_initiator, target, x, y) = toward(&net, Hints::new()).await;
        assert_eq!(target.domain.info().domain.cq_data_size, 8);
        let region = open_region(&target, vec![0u8; 8]).await;
        for data in [0, 1, u64::MAX, 0x0102_0304_0506_0708] {
            x.write(vec![data as u8; 8], region.remote())
                .imm(data)
                .await
                .unwrap();
            let completion = y.receive_queue().next().await.unwrap();
            completion.result.as_ref().unwrap();
            assert_eq!(
                (completion.context, completion.operation),
                (UserContext(0), OperationKind::RemoteWrite)
            );
            assert_eq!(
                (completion.endpoint, completion.len, completion.data),
                (y.id(), 8, Some(data))
            );
            let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE;
            assert_eq!(completion.flags, flags | CompletionFlags::REMOTE_CQ_DATA);
            // All of it has landed before the completion is read.
            assert_eq!(bytes_of(&region), vec![data as u8; 8]);
            x.send("m").imm(data).await.unwrap();
            assert_eq!(y.recv(vec![0u8; 1]).await.unwrap().0.data, Some(data));
        }
    });
}

/// Ruling 3: "For a completion without an operation the engine stops reading the connection until a
/// slot is free. Nothing is dropped."
#[test]
fn a_full_queue_stops_reading_that_connection_only() {
    on_every_backend(|net| async move {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        let region = open_region(&target, vec![0u8; 64]).await;
        let queue = target.domain.completion_queue().size(2).open().unwrap();
        let x = initiator.domain.endpoint().open().unwrap();
        let y = target
            .domain
            .endpoint()
            .receive_queue(&queue)
            .open()
            .unwrap();
        connect_endpoints(&x, &y, &target.fabric).await.unwrap();
        let (other, _end) = connect(&initiator, &target).await.unwrap();
        let first = region.remote().slice(..8).unwrap();
        for data in 0..2 {
            x.write(vec![1u8; 8], first)
                .imm(data)
                .delivery_complete()
                .await
                .unwrap();
        }
        // The queue is full: the third write is not reported, and what is behind it is not read.
        let mut third = x
            .write(vec![2u8; 8], first)
            .imm(2)
            .delivery_complete()
            .post()
            .unwrap();
        let mut behind = x.read(vec![0u8; 8], first).post().unwrap();
        for _ in 0..20 {
            let bytes = vec![3u8; 8];
            let elsewhere = region.remote().slice(8..16).unwrap();
            other
                .write(bytes, elsewhere)
                .delivery_complete()
                .await
                .unwrap();
        }
        assert!((&mut third).now_or_never().is_none());
        assert!((&mut behind).now_or_never().is_none());
        assert_eq!(bytes_of(&region)[8..16], [3; 8]);
        // One place, and it goes on from where it stopped.
        assert_eq!(queue.next().await.unwrap().data, Some(0));
        third.await.unwrap();
        assert_eq!(behind.await.unwrap().1, [2; 8]);
        assert_eq!(queue.next().await.unwrap().data, Some(1));
        assert_eq!(queue.next().await.unwrap().data, Some(2));
    });
}

/// FI_DELIVERY_COMPLETE: at its end the bytes are in the peer's memory.
#[test]
fn delivery_complete_means_in_memory() {
    on_every_backend(|net| async move {
        let (_initiator, target, x, _y) = toward(&net, Hints::new()).await;
        let region = open_region(&target, vec![0u8; 100_000]).await;
        for round in 1..30u8 {
            let len = [1u64, 100, 5_000, 99_999][round as usize % 4];
            let remote = region.remote().slice(..len).unwrap();
            x.write(vec![round; len as usize], remote)
                .delivery_complete()
                .await
                .unwrap();
            let mut last = [0];
            region.read_at(len as usize - 1, &mut last).unwrap();
            assert_eq!(last, [round]);
        }
    });
}

/// fi_inject_write: the bytes are copied, and written in their turn.
#[test]
fn injected_writes_arrive_in_order() {
    on_every_backend(|net| async move {
        let (_initiator, target, x, _y) = toward(&net, Hints::new()).await;
        let region = open_region(&target, vec![0u8; 128]).await;
        for round in 1..=40u8 {
            x.inject_write(&[round; 128], region.remote()).unwrap();
        }
        assert_eq!(
            x.read(vec![0u8; 128], region.remote()).await.unwrap().1,
            vec![40u8; 128]
        );
    });
}

/// api.md decision 6: "Awaiting never serialises": reads and writes of one task in flight together,
/// each on its own range.
#[test]
fn many_operations_are_in_flight_from_one_task() {
    on_every_backend(|net| async move {
        let (_initiator, target, x, _y) = toward(&net, Hints::new()).await;
        let region = open_region(&target, vec![0u8; 1000 * 32]).await;
        let range = |at: u64| region.remote().slice(at * 32..(at + 1) * 32).unwrap();
        let writes: Vec<_> = (0..1000u64)
            .map(|at| {
                x.write(vec![at as u8; 32], range(at))
                    .delivery_complete()
                    .post()
                    .unwrap()
            })
            .collect();
        for write in writes {
            write.await.unwrap();
        }
        let reads: Vec<_> = (0..1000u64)
            .map(|at| x.read(vec![0u8; 32], range(at)).post().unwrap())
            .collect();
        for (at, read) in reads.into_iter().enumerate() {
            assert_eq!(read.await.unwrap().1, vec![at as u8; 32]);
        }
    });
}
