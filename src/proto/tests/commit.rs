//! Writes that end when they are persistent: what waits for them, and what ends them.

use super::pair::{PLAIN, Pair, REMOTE, TestConnection, operation, segments, sizes};
use crate::buf::{Payload, RegionMemory, RegionTraits};
use crate::error::{Error, ErrorKind, Refusal};
use crate::mr::MrFlags;
use crate::proto::{ExtensionParams, OFFERED, OpKind};
use crate::wire::ByteOrder;

const KEY: u64 = 77;

/// Two machines, the second with a persistent region; with the extension, they live with refusals.
pub(super) fn pair(extended: bool) -> Pair {
    let living = ExtensionParams {
        capabilities: OFFERED,
        refusals_max: 8,
        ..PLAIN
    };
    let params = if extended { living } else { PLAIN };
    let mut pair = Pair::idle_with(sizes(), params, params);
    pair.handshake(ByteOrder::Native, b"", b"");
    let traits = RegionTraits {
        flags: MrFlags::RMA_PMEM.bits(),
        ..RegionTraits::plain(REMOTE.bits())
    };
    let memory = RegionMemory::new(vec![vec![0; 64].into()], traits).unwrap();
    let regions = &mut pair.b.host.regions;
    regions.insert(Some(KEY), &memory, None).unwrap();
    pair
}

pub(super) fn commit(side: &mut TestConnection, token: u64, data: Option<u64>) {
    let post = operation(
        OpKind::Write {
            data,
            ack: false,
            commit: true,
            segments: segments(&[(KEY, 0, 8)]),
        },
        Payload::from_vec(vec![token as u8; 8]),
    );
    side.post(token, post);
}

/// A commit is answered once it is persistent, and everything behind it keeps its order; nothing is
/// read meanwhile.
#[test]
fn a_commit_is_acknowledged_when_it_is_persistent_and_in_its_turn() {
    for extended in [false, true] {
        let mut pair = pair(extended);
        commit(&mut pair.a, 1, Some(5));
        pair.a.write(2, b"behind", &[(KEY, 8, 6)]);
        commit(&mut pair.a, 3, None);
        pair.run();
        assert!(pair.b.is_paused());
        assert!(pair.a.order.is_empty() && pair.b.remote_data.is_empty());
        let memory = pair.b.machine.poll_commit().expect("it has landed");
        assert_eq!(super::pair::bytes_of(&memory), [1; 8]);
        assert!(
            pair.b.machine.poll_commit().is_none(),
            "it is asked for once"
        );
        pair.run();
        assert!(pair.a.order.is_empty());
        pair.b.machine.handle_committed(memory, Ok(()));
        pair.b.take_events();
        assert_eq!(pair.b.remote_data, [(5, 8)]);
        pair.run();
        assert_eq!(pair.a.order, [1, 2]);
        let memory = pair.b.machine.poll_commit().expect("the next one");
        pair.b.machine.handle_committed(memory, Ok(()));
        pair.run();
        assert_eq!(pair.a.order, [1, 2, 3]);
        for token in 1..=3 {
            assert!(pair.a.end_of(token).0.is_ok());
        }
    }
}

/// "Every accepted operation ends exactly once", and what comes back late from the device is
/// dropped.
#[test]
fn a_connection_that_ends_while_a_commit_is_made_ends_it() {
    for extended in [false, true] {
        let mut pair = pair(extended);
        commit(&mut pair.a, 1, Some(5));
        pair.run();
        let memory = pair.b.machine.poll_commit().expect("it has landed");
        pair.b.cut();
        pair.b.machine.handle_committed(memory, Ok(()));
        pair.b.take_events();
        assert!(pair.b.remote_data.is_empty());
        pair.a.cut();
        assert_eq!(pair.a.end_kind(1), ErrorKind::ConnectionReset);
    }
}

/// A write that cannot be made persistent is refused where that can be said, and else ends the
/// connection.
#[test]
fn a_commit_that_fails_is_no_success() {
    let missing = || Error::new(ErrorKind::BadAddress, "");
    let mut living = pair(true);
    commit(&mut living.a, 1, Some(5));
    living.run();
    let memory = living.b.machine.poll_commit().expect("it has landed");
    living.b.machine.handle_committed(memory, Err(missing()));
    living.b.take_events();
    living.run();
    assert_eq!((living.b.host.unasked, living.b.remote_data.len()), (0, 0));
    let end = living.a.ended.remove(&1).expect("it has ended");
    assert_eq!(
        end.end.result.clone().unwrap_err().refusal(),
        Some(Refusal::Fault)
    );
    living.a.write(2, b"next", &[(KEY, 0, 4)]);
    living.run();
    assert!(living.a.end_of(2).0.is_ok());
    let mut plain = pair(false);
    commit(&mut plain.a, 1, None);
    plain.run();
    let memory = plain.b.machine.poll_commit().expect("it has landed");
    plain.b.machine.handle_committed(memory, Err(missing()));
    let fault = plain.b.machine.fault().expect("the wire has no other word");
    assert_eq!(fault.kind(), ErrorKind::BadAddress);
}
