//! Probes of idle connections.

use std::time::Duration;

use super::{ports, run, run_all};
use crate::progress::Liveness;
use crate::testing::{Net, Peer, connect_endpoints};

/// Long enough for the probes to be shared, by far.
const IDLE: Duration = Duration::from_secs(20);
const CONNECTIONS: usize = 30;

/// Makes this many connections from `a` to `b`, watched only by `a`, with a receive posted on each.
async fn idle(a: &Peer, b: &Peer, connections: usize) -> Vec<crate::endpoint::Endpoint> {
    let mut all = Vec::new();
    for _ in 0..connections {
        let liveness = Liveness::default().idle_interval(IDLE);
        let near = a.domain.endpoint().liveness(liveness).open().unwrap();
        let far = b.domain.endpoint().liveness(Liveness::OFF).open().unwrap();
        connect_endpoints(&near, &far, &b.fabric).await.unwrap();
        near.recv(vec![0; 8]).queue(0_u64).try_post().unwrap();
        all.extend([near, far]);
    }
    all
}

fn probes(peer: &Peer) -> u64 {
    let all = ports(peer).into_iter();
    all.map(|port| port.lock("count").liveness.probes).sum()
}

/// docs/extension.md: "ten thousand connections between two processes need hardly more probes than
/// one".
#[test]
fn idle_connections_to_one_domain_share_its_probes() {
    run(|net: Net| async move {
        let [a, b] = [net.peer().unwrap(), net.peer().unwrap()];
        let all = idle(&a, &b, CONNECTIONS).await;
        tokio::time::sleep(10 * IDLE).await;
        let sent = probes(&a);
        // Once per half of the interval, and at least once per interval; in addition each
        // connection probes once in 64 intervals.
        assert!((8..=51).contains(&sent), "{sent} probes");
        assert!(all.iter().all(|endpoint| endpoint.is_connected()));
    });
}

/// docs/extension.md: connections share probes if the system probes whether they still exist;
/// without such a system each probes for itself.
#[test]
fn connections_that_no_system_probes_probe_for_themselves() {
    run(|net: Net| async move {
        let [a, b] = [net.peer().unwrap(), net.peer().unwrap()];
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS {
            all.extend(idle(&a, &b, 1).await);
            for port in ports(&a) {
                port.lock("as without a system").liveness.kept_alive = false;
            }
        }
        tokio::time::sleep(10 * IDLE).await;
        let sent = probes(&a);
        assert!(sent >= 8 * CONNECTIONS as u64, "{sent} probes");
    });
}

/// A message to an idle connection causes no heartbeat, even if nothing is outstanding for a
/// moment.
#[test]
fn a_connection_at_work_has_no_heartbeat_with_every_message() {
    run(|net: Net| async move {
        let [a, b] = [net.peer().unwrap(), net.peer().unwrap()];
        let all = idle(&a, &b, 1).await;
        tokio::time::sleep(4 * IDLE).await;
        let [near, far] = &all[..] else {
            unreachable!()
        };
        far.send("first").await.unwrap();
        let last = || ports(&a)[0].lock("look").liveness.machine.last();
        let (mut before, mut heartbeats) = (last(), 0);
        for _ in 0..20 {
            let answer = near.recv(vec![0; 8]).post().unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            let now = last();
            heartbeats += u32::from(now != before);
            before = now;
            far.send("next").await.unwrap();
            answer.await.unwrap();
        }
        assert!(heartbeats <= 2, "{heartbeats} heartbeats");
    });
}

/// Each domain is probed, however many others are alive.
#[test]
fn each_domain_is_probed() {
    run(|net: Net| async move {
        let a = net.peer().unwrap();
        let mut all = Vec::new();
        for _ in 0..10 {
            let b = net.peer().unwrap();
            all.push((idle(&a, &b, 1).await, b));
        }
        tokio::time::sleep(10 * IDLE).await;
        let sent = probes(&a);
        assert!(sent >= 10 * 8, "{sent} probes");
    });
}

/// The time limit of connecting causes no turn once the connection is up: with thousands of
/// connections that would be a turn each.
#[test]
fn a_connection_that_is_up_has_no_alarm() {
    run(|net: Net| async move {
        let [a, b] = [net.peer().unwrap(), net.peer().unwrap()];
        let _all = idle(&a, &b, 3).await;
        run_all().await;
        for port in ports(&a).into_iter().chain(ports(&b)) {
            let state = port.lock("look");
            assert_eq!(
                (
                    state.timers.alarm,
                    state.timers.stale_alarm,
                    state.life.deadline()
                ),
                (None, None, None)
            );
        }
    });
}
