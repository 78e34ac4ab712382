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
    // Either end listens in every second one; in the deep run both do in each. Most of a run is the
    // start of two programs, so several go side by side.
    let deep = std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0");
    let forms = |(at, name)| {
        let forms = ["", ".swap"].into_iter().enumerate();
        let forms = forms.filter(move |(form, _)| deep || *form == at % 2);
        forms.map(move |(_, form)| format!("{name}{form}"))
    };
    let scenarios: Vec<String> = names.iter().enumerate().flat_map(forms).collect();
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
