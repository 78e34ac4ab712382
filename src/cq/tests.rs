use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt;

use super::*;
use crate::error::OperationKind;
use crate::id::{self, EndpointId};
use crate::sync::WakeList;

fn queue(size: usize) -> CompletionQueue {
    CompletionQueue::builder(&DomainScope::apart(), Ok(None))
        .size(size)
        .open()
        .unwrap()
}

fn send(context: u64) -> Completion {
    let flags = CompletionFlags::SEND | CompletionFlags::MSG;
    Completion::new(
        EndpointId::next(),
        id::UserContext(context),
        OperationKind::Send,
        flags,
    )
}

#[track_caller]
fn report(queue: &CompletionQueue, completion: Completion) {
    let slot = queue.try_reserve().expect("there is room");
    slot.fill(completion, &mut WakeList::new());
}

fn contexts(batch: &[Completion]) -> Vec<u64> {
    batch
        .iter()
        .map(|completion| completion.context.0)
        .collect()
}

/// Sharing across threads is part of the API (api.md, decision 8).
#[test]
fn queues_and_completions_are_send() {
    fn send_sync<T: Send + Sync + Unpin>() {}
    fn send<T: Send>(_: &T) {}
    send_sync::<CompletionQueue>();
    let queue = queue(1);
    send(&queue.next_batch(1));
}

/// `fi_cq(3)`: "Multiple completions may be retrieved from a CQ in a single call. The maximum
/// number of entries to return is limited to the specified count parameter".
#[test]
fn read_batch_takes_no_more_than_asked_in_order() {
    let queue = queue(8);
    for context in 0..5 {
        report(&queue, send(context));
    }
    let mut batch = Vec::new();
    assert_eq!(queue.read_batch(&mut batch, 0), 0);
    assert_eq!(queue.read_batch(&mut batch, 3), 3);
    assert_eq!(queue.read_batch(&mut batch, 3), 2);
    assert_eq!(queue.read_batch(&mut batch, 3), 0);
    assert_eq!(contexts(&batch), [0, 1, 2, 3, 4]);
    assert!(queue.is_empty() && queue.try_next().is_none());
}

/// `fi_cq(3)`: "A value of 0 indicates that the provider may choose a default value."
#[test]
fn size_zero_is_the_default_and_others_are_exact() {
    assert_eq!(queue(0).capacity(), CQ_SIZE_DEFAULT);
    assert_eq!(queue(7).capacity(), 7);
}

/// Ruling 3: "The slot of a completion is reserved when the operation is accepted"; operations
/// under way count.
#[test]
fn a_queue_is_full_of_reservations_before_anything_completes() {
    let queue = queue(2);
    let slots: VecDeque<_> = (0..2).map(|_| queue.try_reserve().unwrap()).collect();
    assert!(queue.try_reserve().is_none());
    for (context, slot) in (0..).zip(slots) {
        slot.fill(send(context), &mut WakeList::new());
    }
    assert!(queue.try_reserve().is_none());
    assert!(queue.try_next().is_some());
    assert!(queue.try_reserve().is_some());
}

/// `fi_cq(3)`: "the calls will not return until either a completion has been read from the CQ or an
/// error or timeout occurs"; a call that timed out has taken nothing.
#[tokio::test(start_paused = true)]
async fn waiting_forms_wait_and_a_timeout_takes_nothing() {
    let mut queue = queue(4);
    let second = Duration::from_secs(1);
    assert!(tokio::time::timeout(second, queue.next()).await.is_err());
    assert!(
        tokio::time::timeout(second, queue.next_batch(2))
            .await
            .is_err()
    );
    assert!(
        tokio::time::timeout(second, StreamExt::next(&mut queue))
            .await
            .is_err()
    );
    assert!(queue.next_batch(0).await.is_empty());
    let other = queue.clone();
    let waiting = tokio::spawn(async move { other.next_batch(2).await });
    tokio::task::yield_now().await;
    let mut wakes = WakeList::new();
    for context in 0..3 {
        queue.try_reserve().unwrap().fill(send(context), &mut wakes);
    }
    drop(wakes);
    assert_eq!(contexts(&waiting.await.unwrap()), [0, 1]);
    assert_eq!(StreamExt::next(&mut queue).await.unwrap().context.0, 2);
}

/// "Each completion goes to exactly one of those who read or wait", whatever form they use.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_completion_goes_to_one_reader_of_any_form() {
    const COUNT: u64 = 6_000;
    let queue = queue(8);
    let readers: Vec<_> = (0..6)
        .map(|form| {
            let mut queue = queue.clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                loop {
                    match form % 3 {
                        0 => match queue.next().await {
                            Some(completion) => seen.push(completion.context.0),
                            None => return seen,
                        },
                        1 => match StreamExt::next(&mut queue).await {
                            Some(completion) => seen.push(completion.context.0),
                            None => return seen,
                        },
                        _ => match queue.next_batch(3).await {
                            batch if batch.is_empty() => return seen,
                            batch => seen.extend(contexts(&batch)),
                        },
                    }
                }
            })
        })
        .collect();
    for context in 0..COUNT {
        let slot = loop {
            match queue.try_reserve() {
                Some(slot) => break slot,
                None => tokio::task::yield_now().await,
            }
        };
        slot.fill(send(context), &mut WakeList::new());
    }
    while !queue.is_empty() {
        tokio::task::yield_now().await;
    }
    queue.close().await.unwrap();
    let mut all = Vec::new();
    for reader in readers {
        all.extend(reader.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..COUNT).collect::<Vec<_>>());
}

/// `fi_cq(3)`: "olen specifies the amount of data that did not fit into the available receive
/// buffer"; "err_data" comes with the error. Failed ones stand in line with the others.
/// fi_domain(3): `fi_cq_err_entry.err_data_size`, structure field.
#[test]
fn failures_come_in_line_with_length_and_reason() {
    let queue = queue(4);
    report(&queue, send(1));
    let reason = Error::new(ErrorKind::Truncated, "").with_data(bytes::Bytes::from_static(b"why"));
    let failed = CompletionError::new(reason).with_overflow_len(36);
    report(&queue, send(2).with_len(64).with_error(failed));
    report(&queue, send(3));
    assert!(queue.try_next().unwrap().result.is_ok());
    let completion = queue.try_next().unwrap();
    let failed = completion.result.unwrap_err();
    assert_eq!((completion.len, failed.overflow_len), (64, 36));
    assert_eq!(failed.error.fi_errno(), 265);
    assert_eq!(&failed.error.data()[..], b"why");
    assert_eq!(
        failed.to_string(),
        "the message was larger than the buffer (36 bytes did not fit)"
    );
    assert!(queue.try_next().unwrap().result.is_ok());
}

/// `fi_cq(3)`: "The data field is only valid if the FI_REMOTE_CQ_DATA completion flag is set".
#[test]
fn data_and_its_flag_come_together_with_libfabric_values() {
    assert_eq!(send(1).flags.bits(), (1 << 11) | (1 << 1));
    let flags = CompletionFlags::REMOTE_WRITE | CompletionFlags::RMA;
    let endpoint = EndpointId::next();
    let kind = OperationKind::RemoteWrite;
    let context = id::UserContext::default();
    let completion = Completion::new(endpoint, context, kind, flags).with_data(9);
    assert_eq!(completion.data, Some(9));
    assert_eq!(completion.flags.bits(), (1 << 13) | (1 << 2) | (1 << 17));
    assert_eq!(completion.buffer_count(), 0);
}

/// `fi_cq(3)`, fi_close: "If resources are still associated with the CQ when attempting to close,
/// the call will return -FI_EBUSY."
#[tokio::test]
async fn close_is_busy_while_bound_and_then_ends_the_streams() {
    let queue = queue(2);
    let scope = &DomainScope::new(queue.domain, None, None);
    let bound = queue.depend(scope, "endpoint 4".into()).unwrap();
    let busy = queue.close().await.unwrap_err();
    assert!(busy.is_busy());
    assert_eq!(
        busy.to_string(),
        "in use: completion queue still used by endpoint 4"
    );
    let mut stream = queue.clone();
    let waiting = tokio::spawn(async move { StreamExt::next(&mut stream).await.is_none() });
    tokio::task::yield_now().await;
    drop(bound);
    report(&queue, send(1));
    tokio::task::yield_now().await;
    assert!(!waiting.await.unwrap());
    queue.close().await.unwrap();
    assert!(queue.next().await.is_none() && queue.is_terminated());
    assert_eq!(
        queue.depend(scope, "late".into()).unwrap_err().kind(),
        ErrorKind::BadState
    );
}
