//! The controls: the C programs against themselves. When these pass and a test against our
//! endpoints fails, the fault is ours.

use crate::harness::{PATIENCE, PeerProgram, PingPong, fi_pingpong, libfabric};

#[test]
fn the_c_peer_agrees_with_itself() {
    let Some(peer) = libfabric().or_left_out("the_c_peer_agrees_with_itself") else {
        return;
    };
    let names = peer.scenarios();
    assert!(names.len() >= 13, "{names:?}");
    let both_forms = |name: &String| [name.clone(), format!("{name}.swap")];
    let scenarios: Vec<String> = names.iter().flat_map(both_forms).collect();
    // Most of a run is the start of two programs, so several runs go side by side.
    std::thread::scope(|scope| {
        for share in scenarios.chunks(scenarios.len().div_ceil(8)) {
            scope.spawn(|| {
                share
                    .iter()
                    .for_each(|scenario| run_both_ends(peer, scenario))
            });
        }
    });
}

fn run_both_ends(peer: &PeerProgram, scenario: &str) {
    let mut listener = peer.listen(scenario);
    let mut connector = peer.connect(scenario, listener.address());
    if !scenario.starts_with("killed") {
        connector.finish(PATIENCE).assert_ok();
        listener.finish(PATIENCE).assert_ok();
        return;
    }
    // The listener is the target, unless they are swapped; the target is killed.
    let swapped = scenario.ends_with(".swap");
    let target = if swapped {
        &mut connector
    } else {
        &mut listener
    };
    target.wait_for_line("GOT", PATIENCE);
    target.kill();
    let initiator = if swapped { listener } else { connector };
    initiator.finish(PATIENCE).assert_ok();
}

#[test]
fn fi_pingpong_agrees_with_itself() {
    let Some(program) = fi_pingpong().or_left_out("fi_pingpong_agrees_with_itself") else {
        return;
    };
    let options = PingPong {
        size: "64".into(),
        ..PingPong::default()
    };
    let server = program.server(&options);
    program
        .client(&options, server.address())
        .finish(PATIENCE)
        .assert_success();
    server.finish(PATIENCE).assert_success();
}
