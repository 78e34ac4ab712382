//! The same deaths over TLS, of victims that seal their records with rustls alone.

use super::campaign;
use super::cell::Cell;
use super::step::Step;
use crate::kill_matrix::death::{Death, Protocol};

/// In a short run each step that is about TLS or about keys, and some of each other kind.
fn is_played(cell: &Cell) -> bool {
    let some = [
        Step::HalfAnswer,
        Step::TieOurs,
        Step::BeforeAck,
        Step::HalfWrite,
        Step::HalfMessage,
        Step::CtsUnanswered,
        Step::HalfData,
    ];
    let is_special = cell.step.is_of_tls() || cell.protocol.is_keyed();
    cell.is_played_if(is_special || some.contains(&cell.step))
}

/// docs/tls.md: "If the stream ends without [close_notify] (the peer was killed, or the connection
/// was cut), operations [...] report ConnectionReset".
#[test]
fn a_killed_peer_ends_everything_at_every_step() {
    campaign(Death::Killed, &[Protocol::Secure], is_played);
}

/// docs/reliability.md: "A stopped process [...] is detected by unanswered probes".
#[test]
fn a_stopped_peer_is_found() {
    campaign(Death::Stopped, &[Protocol::Secure], is_played);
}

/// docs/extension.md, section 9: "a proof is valid within one TLS connection only". A peer that has a
/// key dies while the keys are proven, or later.
#[test]
fn a_peer_with_a_key_of_its_own_that_dies_ends_what_is_its_own() {
    for death in Death::ALL {
        campaign(death, &[Protocol::KeyedSecure], is_played);
    }
}
