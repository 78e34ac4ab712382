//! The rules one by one, on one machine; whole endpoints in all interleavings are in
//! [`simulation`].

mod net;
mod simulation;
mod states;
mod verification;

use std::net::SocketAddr;

use super::address::wins;
use super::*;
use crate::limits::{
    RDM_RECONNECT_PAUSE_MAX, RDM_RECONNECT_PAUSE_MIN, RDM_REJECTIONS_MAX, RDM_STRANGERS_MAX_DEFAULT,
};

const DEADLINE: Duration = Duration::from_secs(30);

fn at(port: u16) -> PeerAddr {
    SocketAddr::from(([10, 0, 0, 2], port)).into()
}

/// Our own port at 10.0.0.2, and peers' ports that make a greater and a smaller address.
const OURS: u16 = 5000;
const GREATER: u16 = 5001;
const SMALLER: u16 = 4999;

fn settings() -> PeerSettings {
    PeerSettings {
        incarnation: 7,
        connect_deadline: DEADLINE,
        idle: None,
        strangers_max: RDM_STRANGERS_MAX_DEFAULT,
    }
}

/// A machine and its time.
struct Endpoint {
    peers: Peers,
    now: Instant,
}

impl Endpoint {
    fn new(settings: PeerSettings) -> Self {
        Endpoint {
            peers: Peers::new(settings, 1),
            now: Instant::now(),
        }
    }

    fn request(&mut self, from: u16, incarnation: u32) -> Answer {
        self.ask(Request {
            from: at(from),
            to: at(OURS),
            incarnation,
            undialable: false,
            is_proven: true,
            is_known: false,
        })
    }

    /// A request without proof.
    fn request_unproven(&mut self, from: u16, incarnation: u32) -> Answer {
        self.ask(Request {
            from: at(from),
            to: at(OURS),
            incarnation,
            undialable: false,
            is_proven: false,
            is_known: false,
        })
    }

    fn ask(&mut self, request: Request) -> Answer {
        let answer = self.peers.handle_request(&request, self.now);
        self.peers.check();
        answer
    }

    #[track_caller]
    fn accepted(&mut self, from: u16, incarnation: u32) -> AttemptId {
        match self.request(from, incarnation) {
            Answer::Accept(attempt) => attempt,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn dialled(&mut self, peer: u16) -> AttemptId {
        self.peers.want(at(peer), self.now);
        self.dials(peer)
    }

    #[track_caller]
    fn dials(&mut self, peer: u16) -> AttemptId {
        match self.peers.poll_command() {
            Some(Command::Dial { peer: to, attempt }) if to == at(peer) => attempt,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that the connection of this attempt is in doubt.
    #[track_caller]
    fn doubts(&mut self, peer: u16, attempt: AttemptId) {
        let peer = at(peer);
        let doubt = Command::Doubt { peer, attempt };
        assert_eq!(self.peers.poll_command(), Some(doubt));
    }

    fn up(&mut self, peer: u16, incarnation: u32) -> AttemptId {
        let attempt = self.dialled(peer);
        self.peers
            .handle_connected(at(peer), attempt, incarnation, self.now);
        attempt
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.peers.handle_timeout(self.now);
        self.peers.check();
    }

    /// Lets time pass until there is a command; returns how long that took.
    #[track_caller]
    fn next(&mut self) -> (Duration, Command) {
        let begun = self.now;
        loop {
            if let Some(command) = self.peers.poll_command() {
                return (self.now - begun, command);
            }
            self.now = self.peers.next_deadline().expect("something is due");
            self.pass(Duration::ZERO);
        }
    }
}

/// wire-protocol.md 2.4: "compare P's address with ours: bytes of the IP in network order, then
/// bytes of the port"; P smaller: rejected; P greater: "drop ours, accept P's".
#[test]
fn the_greater_address_wins_a_tie() {
    let mut endpoint = Endpoint::new(settings());
    endpoint.dialled(SMALLER);
    assert_eq!(endpoint.request(SMALLER, 1), Answer::Reject);
    let ours = endpoint.dialled(GREATER);
    let theirs = endpoint.accepted(GREATER, 1);
    assert_ne!(ours, theirs);
    // The end of our own attempt changes nothing now.
    endpoint
        .peers
        .handle_failed(at(GREATER), ours, Failure::Rejected, endpoint.now);
    endpoint
        .peers
        .handle_connected(at(GREATER), theirs, 1, endpoint.now);
    assert_eq!(endpoint.request(GREATER, 1), Answer::Reject);
    endpoint.doubts(GREATER, theirs);
    assert_eq!(endpoint.peers.poll_command(), None);

    let v4 = |ip: [u8; 4], port| PeerAddr::from(SocketAddr::from((ip, port)));
    let v6 = |text: &str| PeerAddr::from(text.parse::<SocketAddr>().unwrap());
    assert!(wins(v4([10, 0, 1, 0], 1), v4([10, 0, 0, 255], 9)));
    assert!(wins(v4([200, 0, 0, 0], 1), v4([100, 0, 0, 0], 1)));
    assert!(wins(v4([10, 0, 0, 1], 0x0100), v4([10, 0, 0, 1], 0x00ff)));
    assert!(!wins(v4([10, 0, 0, 1], 5), v4([10, 0, 0, 1], 5)));
    assert!(wins(v6("[fe80::1]:1"), v4([255, 0, 0, 1], 5)));
    assert!(wins(v6("[2:ff00::]:1"), v6("[2:00ff::]:2"),));
}

/// wire-protocol.md 2.4, connected: "equals request's pid → reject. Different → peer restarted:
/// close the old, accept the new".
#[test]
fn another_incarnation_replaces_the_old_connection() {
    let mut endpoint = Endpoint::new(settings());
    let old = endpoint.up(GREATER, 1);
    assert_eq!(endpoint.request(GREATER, 1), Answer::Reject);
    endpoint.doubts(GREATER, old);
    let new = endpoint.accepted(GREATER, 2);
    let close = Command::Close {
        peer: at(GREATER),
        attempt: old,
        why: Close::Restarted,
    };
    assert_eq!(endpoint.peers.poll_command(), Some(close));
    endpoint
        .peers
        .handle_closed(at(GREATER), old, false, endpoint.now);
    // Also before it was up: then nothing is lost, and the attempt just begins again.
    assert_eq!(endpoint.request(GREATER, 2), Answer::Reject);
    let newer = endpoint.accepted(GREATER, 3);
    assert_ne!(new, newer);
    assert_eq!(endpoint.peers.poll_command(), None);
}

/// "connection to oneself works": our own request is accepted beside the connection it came over,
/// once, and only if it is ours.
#[test]
fn a_request_of_our_own_is_accepted_beside_the_attempt() {
    let mut endpoint = Endpoint::new(settings());
    assert_eq!(endpoint.request(OURS, 7), Answer::Reject);
    let attempt = endpoint.dialled(OURS);
    assert_eq!(endpoint.request(OURS, 8), Answer::Reject);
    assert_eq!(endpoint.request(OURS, 7), Answer::AcceptSelf);
    assert_eq!(endpoint.request(OURS, 7), Answer::Reject);
    endpoint
        .peers
        .handle_connected(at(OURS), attempt, 7, endpoint.now);
    assert_eq!(endpoint.peers.poll_command(), None);
}

/// "an operation to a peer that never answers ends as Unreachable at the connect deadline": one
/// attempt waits for it all the time, refused ones are repeated with growing pauses.
#[test]
fn a_peer_that_is_not_there_is_given_up_at_the_deadline() {
    let mut endpoint = Endpoint::new(settings());
    endpoint.dialled(GREATER);
    let given_up = Command::GiveUp {
        peer: at(GREATER),
        why: GiveUp::Deadline,
    };
    assert_eq!(endpoint.next(), (DEADLINE, given_up));

    endpoint.pass(DEADLINE);
    assert_eq!(endpoint.peers.len(), 0, "nothing is remembered of it");
    let begun = endpoint.now;
    let mut attempt = endpoint.dialled(GREATER);
    let mut pauses = Vec::new();
    loop {
        endpoint
            .peers
            .handle_failed(at(GREATER), attempt, Failure::Passing, endpoint.now);
        let (pause, command) = endpoint.next();
        match command {
            Command::Dial { attempt: next, .. } => attempt = next,
            other => {
                assert_eq!(other, given_up);
                break;
            }
        }
        pauses.push(pause);
    }
    assert_eq!(endpoint.now - begun, DEADLINE);
    assert!(pauses[0] >= RDM_RECONNECT_PAUSE_MIN / 2 && pauses[0] <= RDM_RECONNECT_PAUSE_MIN);
    assert!(pauses.iter().all(|pause| *pause <= RDM_RECONNECT_PAUSE_MAX));
    assert!(pauses.len() < 75, "{} attempts", pauses.len());
    let distinct: std::collections::HashSet<_> = pauses.iter().collect();
    assert!(distinct.len() > pauses.len() / 2, "pauses differ");
}

/// "give up with an error after k rejects in a row"; a connection between them starts the row anew.
#[test]
fn a_peer_that_always_rejects_is_given_up() {
    let mut endpoint = Endpoint::new(settings());
    let mut attempt = endpoint.dialled(GREATER);
    for _ in 1..RDM_REJECTIONS_MAX {
        endpoint
            .peers
            .handle_failed(at(GREATER), attempt, Failure::Rejected, endpoint.now);
        match endpoint.next() {
            (_, Command::Dial { attempt: next, .. }) => attempt = next,
            other => panic!("{other:?}"),
        }
    }
    endpoint
        .peers
        .handle_failed(at(GREATER), attempt, Failure::Rejected, endpoint.now);
    let given_up = Command::GiveUp {
        peer: at(GREATER),
        why: GiveUp::Rejected,
    };
    assert_eq!(endpoint.peers.poll_command(), Some(given_up));
    // An operation that is posted again at once does not make it dial without a pause.
    endpoint.peers.want(at(GREATER), endpoint.now);
    assert_eq!(endpoint.peers.poll_command(), None);
    let (pause, command) = endpoint.next();
    assert!(matches!(command, Command::Dial { .. }));
    assert!(pause >= RDM_RECONNECT_PAUSE_MAX / 2);
}

/// An attempt that no repetition will mend is given up at once.
#[test]
fn what_cannot_succeed_is_not_repeated() {
    let mut endpoint = Endpoint::new(settings());
    let attempt = endpoint.dialled(GREATER);
    endpoint
        .peers
        .handle_failed(at(GREATER), attempt, Failure::Final, endpoint.now);
    let why = GiveUp::Final;
    let peer = at(GREATER);
    assert_eq!(
        endpoint.peers.poll_command(),
        Some(Command::GiveUp { peer, why })
    );
}

/// wire-protocol.md 2.5: "A peer marked \"firewall\" is never dialled".
#[test]
fn a_peer_behind_a_firewall_is_never_dialled() {
    let mut endpoint = Endpoint::new(settings());
    let request = Request {
        from: at(GREATER),
        to: at(OURS),
        incarnation: 1,
        undialable: true,
        is_proven: false,
        is_known: false,
    };
    let Answer::Accept(attempt) = endpoint.peers.handle_request(&request, endpoint.now) else {
        panic!("not accepted")
    };
    endpoint
        .peers
        .handle_connected(at(GREATER), attempt, 1, endpoint.now);
    endpoint
        .peers
        .handle_closed(at(GREATER), attempt, true, endpoint.now);
    endpoint.pass(DEADLINE);
    endpoint.peers.want(at(GREATER), endpoint.now);
    let why = GiveUp::Undialable;
    let peer = at(GREATER);
    assert_eq!(
        endpoint.peers.poll_command(),
        Some(Command::GiveUp { peer, why })
    );
    endpoint.peers.check();
    let request = Request {
        undialable: false,
        ..request
    };
    assert!(matches!(
        endpoint.peers.handle_request(&request, endpoint.now),
        Answer::Accept(_)
    ));
}

/// What is posted while a connection ends goes over the next, which is dialled when the old one has
/// ended; a peer that is faster with that is accepted.
#[test]
fn the_next_connection_begins_when_the_old_one_has_ended() {
    let mut endpoint = Endpoint::new(settings());
    let old = endpoint.up(GREATER, 1);
    endpoint.peers.handle_ending(at(GREATER), old, endpoint.now);
    endpoint.peers.want(at(GREATER), endpoint.now);
    assert_eq!(endpoint.peers.poll_command(), None);
    endpoint
        .peers
        .handle_closed(at(GREATER), old, true, endpoint.now);
    let next = endpoint.dials(GREATER);
    endpoint
        .peers
        .handle_connected(at(GREATER), next, 1, endpoint.now);
    endpoint
        .peers
        .handle_ending(at(GREATER), next, endpoint.now);
    endpoint.accepted(GREATER, 1);
    endpoint
        .peers
        .handle_closed(at(GREATER), next, true, endpoint.now);
    assert_eq!(endpoint.peers.poll_command(), None);
}

/// "idle policy (keep, or close after a duration)".
#[test]
fn an_idle_connection_is_closed_after_its_time() {
    let idle = Duration::from_secs(8);
    let mut endpoint = Endpoint::new(PeerSettings {
        idle: Some(idle),
        ..settings()
    });
    let attempt = endpoint.up(GREATER, 1);
    let peer = at(GREATER);
    let mut looks = Vec::new();
    // It is at work at first, then something is outstanding, then it is silent.
    for activity in [
        Some(1),
        Some(2),
        None,
        None,
        Some(2),
        Some(2),
        Some(2),
        Some(2),
        Some(2),
    ] {
        let (_, command) = endpoint.next();
        assert_eq!(command, Command::CheckIdle { peer, attempt });
        endpoint
            .peers
            .handle_activity(peer, attempt, activity, endpoint.now);
        looks.push(endpoint.peers.poll_command());
    }
    let close = Command::Close {
        peer,
        attempt,
        why: Close::Idle,
    };
    let (last, before) = looks.split_last().unwrap();
    assert_eq!(*last, Some(close));
    assert!(before.iter().all(Option::is_none), "{before:?}");

    let mut endpoint = Endpoint::new(settings());
    endpoint.up(GREATER, 1);
    assert_eq!(
        endpoint.peers.next_deadline(),
        None,
        "kept, and no timer runs"
    );
}

/// "bounded memory against a hostile crowd": of unsolicited peers, so many in all, and of one host
/// as many as are left for others; wanted peers are not counted.
#[test]
fn a_crowd_of_strangers_is_bounded() {
    const MAX: usize = 64;
    let mut endpoint = Endpoint::new(PeerSettings {
        strangers_max: MAX,
        ..settings()
    });
    // A host's crowd takes half of what the hosts before have left, and each host finds room.
    let mut attempts = Vec::new();
    for (host, share) in [
        (1, 32),
        (2, 16),
        (3, 8),
        (4, 4),
        (5, 2),
        (6, 1),
        (7, 1),
        (8, 0),
    ] {
        let accepted = (0..100).filter_map(|port| {
            let answer = endpoint.ask(from_host(host, port));
            let Answer::Accept(attempt) = answer else {
                return None;
            };
            Some((from_host(host, port).from, attempt))
        });
        let accepted: Vec<_> = accepted.collect();
        assert_eq!(accepted.len(), share, "host {host}");
        attempts.extend(accepted);
    }
    assert_eq!(endpoint.peers.len(), MAX);
    // A wanted peer comes in all the same, and makes room.
    let wanted = from_host(1, 9999);
    endpoint.peers.want(wanted.from, endpoint.now);
    assert!(matches!(endpoint.ask(wanted), Answer::Accept(_)));
    let other = from_host(9, 1);
    assert_eq!(endpoint.ask(other), Answer::Reject);
    endpoint.peers.want(from_host(1, 5).from, endpoint.now);
    assert!(matches!(endpoint.ask(other), Answer::Accept(_)));
    // A known peer takes the place of no other.
    let known = |port| Request {
        is_known: true,
        ..from_host(9, port)
    };
    endpoint.peers.want(from_host(1, 6).from, endpoint.now);
    assert!(matches!(endpoint.ask(known(2)), Answer::Accept(_)));
    assert!(matches!(endpoint.ask(from_host(10, 1)), Answer::Accept(_)));
    // Peers that go are forgotten.
    for (from, attempt) in attempts {
        let failure = Failure::Passing;
        (endpoint.peers).handle_failed(from, attempt, failure, endpoint.now);
    }
    endpoint.pass(RDM_RECONNECT_PAUSE_MAX);
    let left = "those that are wanted, and the last three";
    assert_eq!(endpoint.peers.len(), 6, "{left}");
}

/// Thousands of honest nodes behind one address are no attack.
#[test]
fn a_crowd_of_one_host_is_let_in() {
    let mut endpoint = Endpoint::new(settings());
    for port in 0..5_000 {
        // Not by `ask`, which checks all peers each time.
        let answer = (endpoint.peers).handle_request(&from_host(1, port), endpoint.now);
        assert!(matches!(answer, Answer::Accept(_)), "number {port}");
    }
    endpoint.peers.check();
}

fn from_host(host: u8, port: u16) -> Request {
    Request {
        from: SocketAddr::from(([10, 1, 0, host], port)).into(),
        to: at(OURS),
        incarnation: 1,
        undialable: false,
        is_proven: false,
        is_known: false,
    }
}

/// A closing endpoint waits for wanted peers until its own deadline, and accepts no others.
#[test]
fn a_closing_endpoint_takes_only_who_is_wanted() {
    let mut endpoint = Endpoint::new(settings());
    endpoint.dialled(GREATER);
    let until = endpoint.now + Duration::from_secs(5);
    endpoint.peers.begin_close(until, endpoint.now);
    assert_eq!(endpoint.request(SMALLER, 1), Answer::Reject);
    endpoint.accepted(GREATER, 1);
    let why = GiveUp::Deadline;
    let peer = at(GREATER);
    let given_up = Command::GiveUp { peer, why };
    assert_eq!(endpoint.next(), (Duration::from_secs(5), given_up));
}
