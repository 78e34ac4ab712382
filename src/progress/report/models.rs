//! The end of an operation and the future that awaits it, in every order of ending, waiting, going
//! away and using the cell again.

use std::future::poll_fn;

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::sync::model::Model;

pub(crate) const MODELS: &[Model] = &[
    Model::of("operation cell: the end wakes the last poller", ended),
    Model::of(
        "operation cell: the end of a dropped future's operation is with one of the two",
        dropped,
    ),
    Model::of(
        "operation cell: a detached operation keeps what its end has",
        detached,
    ),
    Model::of(
        "operation cell: a late end never reaches the next operation of the cell",
        used_again,
    ),
    Model::of(
        "operation cell: who waits for room hears of the acceptance, or of the end",
        accepted,
    )
    .bounded(3),
];

fn end_of(len: usize) -> OpResult {
    let mut end = OpResult::empty();
    end.len = len;
    end
}

/// Waits for the result, and returns its length.
fn len_of(cell: &OpCell) -> usize {
    block_on(poll_fn(|cx| cell.poll(cx.waker(), |end| end.take().len)))
}

fn complete(cell: &OpCell, len: usize) -> (Delivery, usize) {
    let (mut end, mut wakes) = (end_of(len), WakeList::new());
    let delivery = cell.complete(&mut end, &mut wakes);
    (delivery, end.len)
}

fn ended() {
    let cell = OpCell::new();
    let ends = {
        let cell = Arc::clone(&cell);
        thread::spawn(move || complete(&cell, 7))
    };
    // By another task, before the future is moved to this one.
    let early = cell.poll(Waker::noop(), |end| end.take().len);
    let len = match early {
        Poll::Ready(len) => len,
        Poll::Pending => len_of(&cell),
    };
    assert_eq!(len, 7);
    assert_eq!(ends.join().unwrap(), (Delivery::Delivered, 0));
}

fn dropped() {
    let cell = OpCell::new();
    let ends = {
        let cell = Arc::clone(&cell);
        thread::spawn(move || complete(&cell, 7))
    };
    let mine = cell.abandon().map(|end| end.len);
    match ends.join().unwrap() {
        (Delivery::Delivered, len) => assert_eq!((mine, len), (Some(7), 0)),
        (Delivery::Abandoned, len) => assert_eq!((mine, len), (None, 7)),
        (Delivery::Detached, _) => panic!("it was not detached"),
    }
}

fn detached() {
    let cell = OpCell::new();
    let ends = {
        let cell = Arc::clone(&cell);
        thread::spawn(move || complete(&cell, 7))
    };
    let mine = OpCell::detach(cell).map(|end| end.len);
    // The same cell, if the end no longer has it.
    let next = OpCell::new();
    match ends.join().unwrap() {
        (Delivery::Delivered, len) => assert_eq!((mine, len), (Some(7), 0)),
        (Delivery::Detached, len) => assert_eq!((mine, len), (None, 7)),
        (Delivery::Abandoned, _) => panic!("it was not abandoned"),
    }
    assert!(!next.has_ended(), "an end is of one operation");
}

fn used_again() {
    let cell = OpCell::new();
    let ends = {
        let cell = Arc::clone(&cell);
        thread::spawn(move || {
            complete(&cell, 7);
            // What has ended may be ended once more, as by the loss of its connection.
            complete(&cell, 8);
        })
    };
    assert_eq!(len_of(&cell), 7);
    OpCell::recycle(cell);
    let next = OpCell::new();
    assert!(!next.has_ended());
    complete(&next, 9);
    assert_eq!(len_of(&next), 9);
    ends.join().unwrap();
}

fn accepted() {
    let cell = OpCell::new();
    let accepts = {
        let cell = Arc::clone(&cell);
        thread::spawn(move || cell.accept(&mut WakeList::new()))
    };
    let ends = {
        let cell = Arc::clone(&cell);
        thread::spawn(move || complete(&cell, 7))
    };
    let heard = block_on(poll_fn(|cx| cell.poll_accepted(cx.waker())));
    accepts.join().unwrap();
    let (_, left) = ends.join().unwrap();
    match heard {
        Ok(()) => assert_eq!(left, 7, "the queue has the end of what is accepted"),
        Err(end) => assert_eq!((end.len, left), (7, 0)),
    }
}
