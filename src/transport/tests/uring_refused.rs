//! Rings that the kernel refuses to enter.

use super::uring::{remote, ring, until};
use super::*;
use crate::transport::uring::UringTransport;
use crate::transport::uring::filter::refuse;

/// Memory-model rule 7 for a ring that the kernel refuses to enter: the kernel's operations end by
/// other calls, and are freed; if those are refused too they are leaked, never freed while the
/// kernel may write.
#[test]
fn a_ring_that_fails_frees_what_the_kernel_has_done_with() {
    const ENTER: &[libc::c_long] = &[libc::SYS_io_uring_enter];
    const ALL: &[libc::c_long] = &[libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    // With a task: completions are made on the way out of any system call.
    for calls in [ENTER, ALL] {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let Some((world, ring)) = ring(64, 1024) else {
                    return;
                };
                let (mut near, mut far) = world.pair().await;
                let (payload, memory) = remote(64);
                far.link.receive(Receive::Direct(direct(payload, 0, 64)));
                until(|| ring.in_flight() == 1).await;
                refuse(calls, libc::EPERM).unwrap();
                // The kernel never sees this receive.
                let (unseen, other) = remote(8);
                near.link.receive(Receive::Direct(direct(unseen, 0, 8)));
                until(|| ring.in_flight() == 0).await;
                assert_eq!(why_lost(&*ring).os_error(), Some(libc::EPERM));
                drop((near, far));
                assert_eq!(Arc::strong_count(&memory), 1, "the payload is freed");
                assert_eq!(Arc::strong_count(&other), 1, "the payload is freed");
            });
        })
        .join()
        .unwrap();
    }
}

/// The same for the ring of a thread, which completes nothing without being entered.
#[tokio::test]
async fn a_ring_of_a_thread_that_fails_leaks_what_the_kernel_has() {
    let made = UringTransport::for_thread_with_sizes(None, 64, 1024);
    let (ring, reactor) = match made {
        Ok((transport, reactor)) => (Arc::new(transport), reactor),
        Err(error) => return super::say_left_out(&error),
    };
    let (report, reported) = oneshot::channel();
    let (refuses, mut refused) = oneshot::channel::<()>();
    let driven = Arc::clone(&ring);
    let (mut report, mut is_refused) = (Some(report), false);
    let driver = poll_fn(move |cx| {
        if !is_refused && Pin::new(&mut refused).poll(cx).is_ready() {
            is_refused = true;
            refuse(&[libc::SYS_io_uring_enter], libc::EPERM).unwrap();
        }
        match driven.poll_drive(cx) {
            Poll::Ready(Err(error)) => {
                driven.shutdown();
                let _ = report.take().unwrap().send(error);
                Poll::Ready(())
            }
            _ => {
                let _ = driven.try_park(cx.waker());
                Poll::Pending
            }
        }
    });
    Executor::Thread(Box::new(reactor))
        .start("driver", Polled(driver))
        .unwrap();
    let world = TestTransport {
        transport: Arc::clone(&ring) as Arc<dyn Transport>,
        name: "io-uring on a thread",
        local: None,
        drives: None,
    };
    let (mut near, mut far) = world.pair().await;
    let (payload, memory) = remote(64);
    far.link.receive(Receive::Direct(direct(payload, 0, 64)));
    near.send_all(plain(&[7; 40])).await;
    // The kernel has the receive: some bytes have arrived.
    let landed = || {
        let mut bytes = [0; 40];
        memory.read_at(0, &mut bytes).unwrap();
        bytes == [7; 40]
    };
    until(landed).await;
    refuses.send(()).unwrap();
    let error = tokio::time::timeout(PATIENCE, reported)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(error.os_error(), Some(libc::EPERM));
    assert!(error.to_string().contains("io_uring_enter"), "{error}");
    drop((near, far));
    assert_eq!(ring.in_flight(), 0);
    assert!(Arc::strong_count(&memory) > 1, "the kernel may write still");
}

/// Returns the error of a lost transport.
fn why_lost(transport: &dyn Transport) -> Error {
    match transport.poll_drive(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(error)) => error,
        other => panic!("it is not lost: {other:?}"),
    }
}
