//! The end of a copied message against the future that awaits it, in every order.

use std::future::poll_fn;
use std::sync::Arc;

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::error::ErrorKind;
use crate::sync::model::Model;

pub(crate) const MODELS: &[Model] = &[
    Model::of("copied message: the mark wakes who waits for it", passed),
    Model::of(
        "copied message: a failure is never taken for a success",
        failed,
    ),
];

/// Ends the message of number 0 while its future polls.
fn end_of(unsent: fn() -> Vec<UnsentMessages>) -> Result<()> {
    let mark = Arc::new(SentMark::default());
    let port = {
        let mark = Arc::clone(&mark);
        thread::spawn(move || mark.advance(1, unsent(), &mut WakeList::new()))
    };
    let end = block_on(poll_fn(|cx| mark.poll(0, cx.waker())));
    port.join().expect("it does not panic");
    end
}

fn passed() {
    assert!(end_of(Vec::new).is_ok());
}

fn failed() {
    let unsent = || {
        vec![UnsentMessages {
            numbers: 0..1,
            error: Error::new(ErrorKind::Canceled, ""),
        }]
    };
    assert!(end_of(unsent).is_err());
}
