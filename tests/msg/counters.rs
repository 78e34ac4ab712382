//! Counters bound to endpoints (`fi_cntr(3)`, `fi_ep_bind` of `fi_endpoint(3)`).

use crate::common::on_every_backend;
use crate::common::peers::open_region;
use tokio_fabric::testing::connect_endpoints;
use tokio_fabric::{ErrorKind, cntr::CounterError};

/// Each direction counts on its own counter, injected operations too, and operations that report to
/// a queue like those that report to a future.
#[test]
fn each_kind_of_operation_counts_where_it_was_bound() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let counter = || a.domain.counter().unwrap();
        let (sends, reads, writes) = (counter(), counter(), counter());
        let counter = || b.domain.counter().unwrap();
        let (receives, remote_reads, remote_writes) = (counter(), counter(), counter());
        let queue = a.domain.completion_queue().open().unwrap();
        let x = a
            .domain
            .endpoint()
            .completion_queue(&queue)
            .send_counter(&sends)
            .read_counter(&reads)
            .write_counter(&writes)
            .open()
            .unwrap();
        let y = b
            .domain
            .endpoint()
            .receive_counter(&receives)
            .remote_read_counter(&remote_reads)
            .remote_write_counter(&remote_writes)
            .open()
            .unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let region = open_region(&b, vec![0u8; 8]).await;
        x.send("future").await.unwrap();
        x.send("queue").queue(1u64).await.unwrap();
        x.inject(b"inject").unwrap();
        for _ in 0..3 {
            y.recv(vec![0u8; 8]).await.unwrap();
        }
        sends.wait_for(3).await.unwrap();
        receives.wait_for(3).await.unwrap();
        x.write(vec![1u8; 8], region.remote()).await.unwrap();
        x.inject_write(&[2; 8], region.remote()).unwrap();
        x.write(vec![3u8; 8], region.remote()).imm(4).await.unwrap();
        x.read(vec![0u8; 8], region.remote()).await.unwrap();
        assert_eq!(remote_reads.wait_for(1).await, Ok(1));
        assert_eq!(remote_writes.wait_for(3).await, Ok(3));
        let all = [
            &sends,
            &receives,
            &writes,
            &reads,
            &remote_writes,
            &remote_reads,
        ];
        assert_eq!(all.map(|counter| counter.read()), [3, 3, 3, 1, 3, 1]);
        assert_eq!(all.map(|counter| counter.read_error()), [0; 6]);
    });
}

/// fi_cntr(3): failed operations count apart, and unblock those who wait.
#[test]
fn failures_count_apart_and_unblock_waits() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let receives = a.domain.counter().unwrap();
        let x = a
            .domain
            .endpoint()
            .receive_counter(&receives)
            .open()
            .unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let waiting = receives.wait_for(1);
        let (cancelled, truncated) = (
            x.recv(vec![0u8; 8]).post().unwrap(),
            x.recv(vec![0u8; 2]).post().unwrap(),
        );
        assert!(cancelled.cancel());
        assert!(cancelled.await.unwrap_err().error().is_canceled());
        assert_eq!(
            waiting.await,
            Err(CounterError::Failed {
                value: 0,
                errors: 1
            })
        );
        y.send("long").await.unwrap();
        assert!(truncated.await.unwrap_err().error().is_truncated());
        assert_eq!((receives.read(), receives.read_error()), (0, 2));
        // An operation that was never accepted counts nowhere.
        assert_eq!(
            x.send(vec![vec![0u8]; 5]).await.unwrap_err().kind(),
            ErrorKind::TooLarge
        );
        let left = x.recv(vec![0u8; 8]).post().unwrap();
        drop(y);
        assert!(left.await.is_err());
        assert_eq!((receives.read(), receives.read_error()), (0, 3));
    });
}

/// fi_cntr(3), fi_close: "If resources are still associated with the counter when attempting to
/// close, the call will return -FI_EBUSY."
#[test]
fn a_counter_of_an_open_endpoint_is_busy() {
    on_every_backend(|net| async move {
        let a = net.peer().unwrap();
        let counter = a.domain.counter().unwrap();
        let x = a.domain.endpoint().send_counter(&counter).open().unwrap();
        assert_eq!(counter.close().await.unwrap_err().kind(), ErrorKind::Busy);
        drop(x);
        counter.close().await.unwrap();
        let refused = a
            .domain
            .endpoint()
            .send_counter(&counter)
            .open()
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadState);
    });
}
