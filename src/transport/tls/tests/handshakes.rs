//! Handshakes with malformed or fragmented bytes.

use super::{for_tests, records_of, take};
use crate::random::SplitMix;
use crate::transport::tls::session::Session;

/// Both sides, and the client's first message.
fn begun() -> ([Session; 2], Vec<u8>) {
    let config = for_tests();
    let mut client = Session::client(&config, ([127, 0, 0, 1], 7).into()).unwrap();
    let hello = records_of(&mut client);
    ([client, Session::server(&config).unwrap()], hello)
}

/// Splits the unsealed records of a handshake into records of at most `len` bytes.
fn split(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut left = bytes;
    while !left.is_empty() {
        let end = 5 + usize::from(u16::from_be_bytes([left[3], left[4]]));
        let (record, rest) = left.split_at(end);
        left = rest;
        if record[0] != 22 {
            out.extend_from_slice(record);
            continue;
        }
        for part in record[5..].chunks(len) {
            out.extend_from_slice(&record[..3]);
            out.extend_from_slice(&(part.len() as u16).to_be_bytes());
            out.extend_from_slice(part);
        }
    }
    out
}

/// "Handshake messages may be fragmented across several records": and may come in any parts.
#[test]
fn messages_of_a_handshake_come_in_many_records() {
    for len in [1, 3, 4, 7, 100] {
        let ([mut client, mut server], hello) = begun();
        let mut to_server = hello;
        while client.is_handshaking() || server.is_handshaking() {
            for part in split(&to_server, len).chunks(11) {
                take(&mut server, part).unwrap();
            }
            for part in split(&records_of(&mut server), len).chunks(13) {
                take(&mut client, part).unwrap();
            }
            to_server = records_of(&mut client);
        }
        let [ours, theirs] = [&client, &server].map(|side| side.identity().unwrap().binding);
        assert_eq!(ours, theirs);
    }
}

/// A handshake that is changed in any way ends or waits, except for changes that the standard says
/// to ignore.
#[test]
fn a_changed_handshake_comes_to_nothing() {
    let mut random = SplitMix(17);
    let mut change = move |bytes: &mut Vec<u8>| {
        let at = random.within(0, bytes.len() as u64 - 1) as usize;
        match random.within(0, 3) {
            0 => bytes[at] ^= 1 << random.within(0, 7),
            1 => bytes.truncate(at),
            2 => drop(bytes.splice(at..at, [random.next() as u8])),
            _ => drop(bytes.remove(at)),
        }
    };
    let mut passed = 0;
    for round in 0..600 {
        let ([mut client, mut server], mut bytes) = begun();
        let flight = round % 3;
        if flight == 0 {
            change(&mut bytes);
        }
        let mut is_refused = take(&mut server, &bytes).is_err();
        let mut bytes = records_of(&mut server);
        if flight == 1 {
            change(&mut bytes);
        }
        is_refused |= take(&mut client, &bytes).is_err();
        let mut bytes = records_of(&mut client);
        if flight == 2 && !bytes.is_empty() {
            change(&mut bytes);
        }
        is_refused |= take(&mut server, &bytes).is_err();
        if !is_refused && !client.is_handshaking() && !server.is_handshaking() {
            // Only an irrelevant byte was changed: a version in a record's header.
            let bindings = [&client, &server].map(|side| side.identity().unwrap().binding);
            assert_eq!(bindings[0], bindings[1], "round {round}");
            passed += 1;
        }
    }
    assert!(passed < 20, "{passed} changes were not seen");
}
