//! Access to the memory behind a gate, in every order of entering, leaving, shutting and waiting.

use loom::future::block_on;
use loom::sync::Arc as Shared;
use loom::thread;

use super::*;
use crate::sync::model::{Memory, Model};

pub(crate) const MODELS: &[Model] = &[
    Model::of(
        "gate: no user is inside once it is closed and drained",
        closed_and_drained,
    )
    .bounded(3),
    Model::of(
        "gate: the last of both roles to leave wakes the waiter",
        both_leave,
    )
    .bounded(3),
    Model::of(
        "gate: peers are gone once it is revoked and drained of them, others stay",
        revoked,
    ),
    Model::of("gate: a quiesce excludes all users until its end", quiesced),
    Model::of(
        "gate: a refresh and a quiesce exclude each other",
        excluding,
    ),
    Model::of(
        "gate: a parked gate that is drained keeps peers out until it is lifted",
        parked,
    ),
    Model::of(
        "gate: what is behind a closed and drained gate goes to one caller, after all readers",
        claimed,
    )
    .bounded(3),
    Model::of(
        "gate: a waiter that goes away takes no wake-up along",
        cancelled,
    )
    .bounded(3),
];

/// A region, reduced to its gate and memory.
struct Region {
    gate: Gate,
    memory: Memory,
}

impl Region {
    fn new() -> Shared<Region> {
        Shared::new(Region {
            gate: Gate::new(),
            memory: Memory::default(),
        })
    }

    /// Reads, if the gate admits it.
    fn read(&self, role: Role) {
        if let Ok(inside) = self.gate.enter(role) {
            self.memory.read();
            drop(inside);
        }
    }

    /// The future of [`HasGate::drained`], which needs the standard library's `Arc`.
    async fn drained(&self, roles: DrainScope) {
        let mut key = None;
        std::future::poll_fn(|cx| self.gate.poll_drained(roles, &mut key, cx.waker())).await;
    }
}

fn spawn(region: &Shared<Region>, run: fn(&Region)) -> thread::JoinHandle<()> {
    let region = Shared::clone(region);
    thread::spawn(move || run(&region))
}

fn closed_and_drained() {
    let region = Region::new();
    let users = [
        spawn(&region, |region| region.read(Role::Local)),
        spawn(&region, |region| region.read(Role::Remote)),
    ];
    if !region.gate.close().unwrap() {
        block_on(region.drained(DrainScope::All));
    }
    region.memory.write();
    users.map(|user| user.join().unwrap());
}

fn both_leave() {
    let region = Region::new();
    for role in [Role::Local, Role::Remote] {
        std::mem::forget(region.gate.enter(role).unwrap());
    }
    let leaving = [
        spawn(&region, |region| region.gate.exit(Role::Local)),
        spawn(&region, |region| region.gate.exit(Role::Remote)),
    ];
    block_on(region.drained(DrainScope::All));
    leaving.map(|leaving| leaving.join().unwrap());
}

fn revoked() {
    let region = Region::new();
    let operation = region.gate.enter(Role::Local).unwrap();
    let peer = spawn(&region, |region| {
        region.read(Role::Remote);
        region.read(Role::Remote);
    });
    region.gate.revoke();
    block_on(region.drained(DrainScope::Remote));
    region.memory.write();
    peer.join().unwrap();
    drop(operation);
}

fn quiesced() {
    let region = Region::new();
    let user = spawn(&region, |region| {
        region.read(Role::Local);
        region.read(Role::Remote);
    });
    region.gate.begin_quiesce().unwrap();
    block_on(region.drained(DrainScope::All));
    region.memory.write();
    region.gate.end_quiesce();
    user.join().unwrap();
}

fn excluding() {
    let region = Region::new();
    let refresher = spawn(&region, |region| {
        if region.gate.shut_for_refresh().is_ok() {
            region.memory.write();
            region.gate.clear(REFRESHING);
        }
    });
    if region.gate.begin_quiesce().is_ok() {
        region.memory.write();
        region.gate.end_quiesce();
    }
    refresher.join().unwrap();
}

fn parked() {
    let region = Region::new();
    let peer = spawn(&region, |region| {
        region.read(Role::Remote);
        region.read(Role::Remote);
    });
    region.gate.park(true);
    block_on(region.drained(DrainScope::Remote));
    region.memory.write();
    region.gate.park(false);
    peer.join().unwrap();
}

fn claimed() {
    let region = Region::new();
    let take = |region: &Region| {
        if region.gate.try_claim() {
            region.memory.write();
        }
    };
    let others = [
        spawn(&region, |region| {
            if let Ok(looking) = region.gate.enter_unless_closed() {
                region.memory.read();
                drop(looking);
            }
        }),
        spawn(&region, take),
    ];
    region.gate.close().unwrap();
    take(&region);
    others.map(|other| other.join().unwrap());
    take(&region);
    assert_eq!(region.memory.read(), 1, "it went to one");
}

fn cancelled() {
    let region = Region::new();
    let inside = region.gate.enter(Role::Local).unwrap();
    let leaving = spawn(&region, |region| region.gate.exit(Role::Local));
    std::mem::forget(inside);
    // One waiter polls once and is dropped, like a future that lost a race.
    let other = spawn(&region, |region| {
        let mut key = None;
        let polled = region
            .gate
            .poll_drained(DrainScope::All, &mut key, Waker::noop());
        if polled.is_pending() {
            region.gate.cancel_wait(&mut key);
        }
    });
    block_on(region.drained(DrainScope::All));
    assert!(region.gate.is_drained(DrainScope::All));
    leaving.join().unwrap();
    other.join().unwrap();
}
