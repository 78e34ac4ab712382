//! The same deaths over TLS, of victims that seal their records with rustls alone.

use tokio_fabric::Backend;

use super::step::Step;
use super::{ALONE, KILLED_LIMIT, STOPPED_LIMIT, assert_all, cells, is_deep, play_all};
use crate::kill_matrix::death::{Death, Protocol};

/// Each step that is about TLS, and some of each other kind; all of them in the long run, on each
/// backend.
fn some(death: Death, times: usize) -> Vec<super::Cell> {
    let some = [
        Step::HalfAnswer,
        Step::TieOurs,
        Step::BeforeAck,
        Step::HalfWrite,
        Step::HalfMessage,
        Step::CtsUnanswered,
        Step::HalfData,
    ];
    let mut cells = cells(death, &[Protocol::Secure], times);
    cells.retain(|cell| {
        let is_one = cell.step.is_of_tls() || some.contains(&cell.step);
        is_deep() || is_one && cell.backend == Backend::Epoll
    });
    cells
}

/// docs/tls.md: "If the stream ends without [close_notify] (the peer was killed, or the connection
/// was cut), operations [...] report ConnectionReset".
#[test]
fn a_killed_peer_ends_everything_at_every_step() {
    let _alone = ALONE.lock();
    let outcomes = play_all(some(Death::Killed, if is_deep() { 25 } else { 1 }));
    assert_all(&outcomes, KILLED_LIMIT);
}

/// docs/reliability.md: "A stopped process [...] is detected by unanswered probes".
#[test]
fn a_stopped_peer_is_found() {
    let _alone = ALONE.lock();
    let outcomes = play_all(some(Death::Stopped, if is_deep() { 5 } else { 1 }));
    assert_all(&outcomes, STOPPED_LIMIT);
}
