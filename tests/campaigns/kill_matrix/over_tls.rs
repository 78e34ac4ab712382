//! The same deaths over TLS, of victims that seal their records with rustls alone: at the same
//! steps, within TLS's handshake, within a record, and with close_notify and without it.

use tokio_fabric::Backend;

use super::death::{Death, Protocol};
use super::step::Step;
use super::{ALONE, assert_all, cells, is_deep, is_found_in_time, is_killed_in_time, play_all};

/// Each step that is about TLS, and some of each other kind; all of them in the long run, on each
/// backend.
fn some(death: Death, times: usize) -> Vec<super::Cell> {
    let some = [
        Step::Silent,
        Step::HalfData,
        Step::BeforeVerdict,
        Step::HalfHello,
        Step::Idle,
        Step::HalfLargeMessage,
        Step::HalfWrite,
        Step::BeforeAck,
        Step::HalfAnswer,
        Step::WriteUnread,
        Step::PausedFull,
        Step::ItsClose,
    ];
    let mut cells = cells(death, &[Protocol::Secure], times);
    cells.retain(|cell| {
        let is_one = cell.step.is_of_tls() || some.contains(&cell.step);
        is_deep() || is_one && cell.backend == Backend::Epoll
    });
    cells
}

/// docs/tls.md: "If the stream ends without [close_notify] (the peer was killed, or the connection
/// was cut), operations and the Shutdown event report ConnectionReset".
#[test]
fn a_killed_peer_ends_everything_at_every_step() {
    let _alone = ALONE.lock();
    let (times, at_once) = if is_deep() { (25, 1) } else { (1, 6) };
    let outcomes = play_all(some(Death::Killed, times), at_once);
    assert_all(&outcomes, &[Protocol::Secure], is_killed_in_time);
}

/// docs/reliability.md: "A stopped process [...] is detected by unanswered probes".
#[test]
fn a_stopped_peer_is_found_if_it_could_have_answered() {
    let _alone = ALONE.lock();
    let (times, at_once) = if is_deep() { (5, 12) } else { (1, 20) };
    let mut cells = some(Death::Stopped, times);
    cells.sort_by_key(|cell| !cell.is_found());
    let outcomes = play_all(cells, at_once);
    assert_all(&outcomes, &[Protocol::Secure], is_found_in_time);
}
