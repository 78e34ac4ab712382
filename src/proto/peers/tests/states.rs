//! Every drawn edge of a peer's states is walked.

use super::*;
use crate::edges::EdgeCoverage;

const PEER: u16 = GREATER;

#[test]
fn every_edge_of_a_peers_states_is_walked() {
    let coverage = EdgeCoverage::begin("PeerState");
    let fresh = || Endpoint::new(settings());
    let (peer, second) = (at(PEER), Duration::from_secs(1));

    // Dialled: connected, ended in order and lost; rejected and paused; overtaken by a request.
    let mut endpoint = fresh();
    let attempt = endpoint.up(PEER, 1);
    endpoint.peers.handle_ending(peer, attempt, endpoint.now);
    (endpoint.peers).handle_closed(peer, attempt, true, endpoint.now);
    let attempt = endpoint.up(PEER, 1);
    (endpoint.peers).handle_closed(peer, attempt, false, endpoint.now);
    let mut endpoint = fresh();
    let attempt = endpoint.dialled(PEER);
    (endpoint.peers).handle_failed(peer, attempt, Failure::Passing, endpoint.now);
    // Given up during the pause.
    endpoint.peers.begin_close(endpoint.now, endpoint.now);
    let mut endpoint = fresh();
    endpoint.dialled(PEER);
    let attempt = endpoint.accepted(PEER, 1);

    // Accepted: by another incarnation, which fails; connected, and restarted twice.
    endpoint.accepted(PEER, 2);
    let attempt = match endpoint.accepted(PEER, 3) {
        newer if newer != attempt => newer,
        same => panic!("{same:?}"),
    };
    (endpoint.peers).handle_failed(peer, attempt, Failure::Passing, endpoint.now);
    let attempt = endpoint.accepted(PEER, 4);
    (endpoint.peers).handle_connected(peer, attempt, 4, endpoint.now);
    let attempt = endpoint.accepted(PEER, 5);
    (endpoint.peers).handle_connected(peer, attempt, 5, endpoint.now);
    endpoint.peers.handle_ending(peer, attempt, endpoint.now);
    let attempt = endpoint.accepted(PEER, 6);

    // Connections that are not the current attempt's.
    (endpoint.peers).handle_connected(peer, attempt, 6, endpoint.now);
    let later = endpoint.peers.new_attempt();
    (endpoint.peers).adopt_connection(peer, later, 7, endpoint.now);
    endpoint.peers.handle_ending(peer, later, endpoint.now);
    let last = endpoint.peers.new_attempt();
    (endpoint.peers).adopt_connection(peer, last, 8, endpoint.now);
    let mut endpoint = fresh();
    let attempt = endpoint.peers.new_attempt();
    (endpoint.peers).adopt_connection(peer, attempt, 1, endpoint.now);
    endpoint.pass(second);

    coverage.expect_all();
}
