//! The same deaths over TLS, of victims that seal their records with rustls alone: at the same
//! steps, within TLS's handshake, within a record, and with close_notify and without it.

use super::campaign;
use super::cell::Cell;
use super::death::{Death, Protocol};
use super::step::Step;

/// In a short run each step that is about TLS or about keys, and some of each other kind.
fn is_played(cell: &Cell) -> bool {
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
    let is_special = cell.step.is_of_tls() || cell.protocol.is_keyed();
    cell.is_played_if(is_special || some.contains(&cell.step))
}

/// docs/tls.md: "If the stream ends without [close_notify] (the peer was killed, or the connection
/// was cut), operations and the Shutdown event report ConnectionReset".
#[test]
fn a_killed_peer_ends_everything_at_every_step() {
    campaign(Death::Killed, &[Protocol::Secure], is_played);
}

/// docs/reliability.md: "A stopped process [...] is detected by unanswered probes".
#[test]
fn a_stopped_peer_is_found_if_it_could_have_answered() {
    campaign(Death::Stopped, &[Protocol::Secure], is_played);
}

/// docs/extension.md, section 9: "a proof is valid within one TLS connection only". A peer that has a
/// key dies while the keys are proven, or later.
#[test]
fn a_peer_with_a_key_that_dies_ends_everything() {
    for death in Death::ALL {
        campaign(death, &[Protocol::KeyedSecure], is_played);
    }
}
