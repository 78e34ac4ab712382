//! The records of an open session: how rustls' own connections handle them, and what a peer with
//! its keys can do.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::{ClientConnection, Connection, ContentType, ServerConnection};

use super::{carry, for_tests, opened, records_of, seal, sessions, take};
use crate::error::ErrorKind;
use crate::limits::{TLS_EMPTY_RECORDS_MAX, TLS_KEY_UPDATES_MAX, TLS_RECORD_MAX};
use crate::random::SplitMix;
use crate::tls::TlsConfig;
use crate::tls::exporter::BINDING;
use crate::transport::tls::session::Session;

/// A session of ours, and a connection of rustls that handles its own records.
struct Pair {
    ours: Session,
    theirs: Connection,
}

impl Pair {
    fn shaken(ours: Session, mut theirs: Connection) -> Pair {
        theirs.set_buffer_limit(None);
        let mut pair = Pair { ours, theirs };
        while pair.ours.is_handshaking() || pair.theirs.is_handshaking() {
            pair.send_ours();
            pair.send_theirs();
        }
        pair
    }

    /// Returns what their side opens of our records.
    fn send_ours(&mut self) -> Vec<u8> {
        let bytes = records_of(&mut self.ours);
        let mut left = &bytes[..];
        let mut plaintext = Vec::new();
        while !left.is_empty() {
            self.theirs.read_tls(&mut left).unwrap();
            let state = self.theirs.process_new_packets().unwrap();
            let begin = plaintext.len();
            plaintext.resize(begin + state.plaintext_bytes_to_read(), 0);
            let read = self.theirs.reader().read_exact(&mut plaintext[begin..]);
            read.unwrap();
        }
        plaintext
    }

    /// Returns what our side opens of their records.
    fn send_theirs(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.theirs.wants_write() {
            self.theirs.write_tls(&mut bytes).unwrap();
        }
        let mut plaintext = Vec::new();
        for part in bytes.chunks(50_000) {
            take(&mut self.ours, part).unwrap();
            while self.ours.opened_len() > 0 {
                plaintext.extend(opened(&mut self.ours));
            }
        }
        plaintext
    }
}

fn pairs() -> [Pair; 2] {
    let config = for_tests();
    let to: std::net::SocketAddr = ([127, 0, 0, 1], 7).into();
    // With tickets, which the client must accept.
    let mut server = rustls::ServerConfig::clone(config.server.as_ref().unwrap());
    server.send_tls13_tickets = 4;
    let server = Arc::new(server);
    let client = config.client.clone().unwrap();
    let tickets = TlsConfig::new().server(Arc::clone(&server));
    let theirs = [
        Connection::from(ServerConnection::new(server).unwrap()),
        Connection::from(ClientConnection::new(client, to.ip().into()).unwrap()),
    ];
    let ours = [
        Session::client(&config, to).unwrap(),
        Session::server(&tickets).unwrap(),
    ];
    let mut pairs = ours.into_iter().zip(theirs);
    [(); 2].map(|()| {
        let (ours, theirs) = pairs.next().unwrap();
        Pair::shaken(ours, theirs)
    })
}

/// Data, key updates that either side asks for, the exporter and the end, as in the standard and in
/// rustls.
#[test]
fn rustls_takes_our_records_and_we_take_its() {
    for mut pair in pairs() {
        let binding = pair.ours.identity().unwrap().binding;
        let exported = pair.theirs.export_keying_material([0; 32], BINDING, None);
        assert_eq!(binding, exported.unwrap());
        let mut random = SplitMix(7);
        for round in 0..60 {
            let len = random.within(1, 80_000) as usize;
            let sent: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
            match round % 7 {
                1 => pair.theirs.refresh_traffic_keys().unwrap(),
                3 => super::refresh_keys(&mut pair.ours),
                _ => {}
            }
            pair.theirs.writer().write_all(&sent).unwrap();
            assert!(pair.send_theirs() == sent, "{len} bytes to ours");
            seal(&mut pair.ours, &sent);
            assert!(pair.send_ours() == sent, "{len} bytes to theirs");
        }
        pair.ours.close();
        pair.send_ours();
        assert_eq!(
            pair.theirs.reader().read(&mut [0]).unwrap(),
            0,
            "an end in order"
        );
        pair.theirs.send_close_notify();
        assert_eq!(pair.send_theirs(), b"");
        assert!(pair.ours.is_peer_closed());
    }
}

/// The contents of a record are the same wherever it is cut on its way.
#[test]
fn records_come_in_any_parts() {
    let mut random = SplitMix(16);
    let [mut client, mut server] = sessions();
    for round in 0..200_u64 {
        let len = random.within(1, 50_000) as usize;
        let sent: Vec<u8> = (0..len).map(|at| (at as u64 * 3 + round) as u8).collect();
        seal(&mut client, &sent);
        if round % 5 == 0 {
            super::refresh_keys(&mut client);
        }
        let bytes = records_of(&mut client);
        let mut left = &bytes[..];
        let mut received = Vec::new();
        let most = random.within(1, 40_000);
        while !left.is_empty() {
            let count = (random.within(1, most) as usize).min(left.len());
            let (part, rest) = left.split_at(count);
            left = rest;
            take(&mut server, part).unwrap();
            while server.opened_len() > 0 {
                // A part of it at a time, as for receives that are short of room.
                let opened = server.opened();
                let count = opened.len().min(random.within(1, 30_000) as usize);
                received.extend_from_slice(&opened[..count]);
                server.consume(count);
                server.take_in().unwrap();
            }
        }
        assert!(received == sent, "round {round}");
        assert_eq!(server.unread_len(), 0, "no memory is left with it");
        seal(&mut server, b"received");
        carry(&mut server, &mut client);
        assert_eq!(opened(&mut client), b"received");
    }
}

/// "The library seals no more with a key than its cipher allows": the next key comes in time.
#[test]
fn a_key_is_changed_before_it_is_worn_out() {
    let [mut client, mut server] = sessions();
    let max = client.open_parts().0.sealed_max();
    for _ in 0..2 {
        client.open_parts().0.skip(max - 2, 0);
        server.open_parts().0.skip(0, max - 2);
        for at in 0..5 {
            seal(&mut client, &[at; 9]);
            carry(&mut client, &mut server);
            assert_eq!(opened(&mut server), [at; 9]);
        }
        // It was asked to change its own key too.
        assert!(server.has_records());
        carry(&mut server, &mut client);
        seal(&mut server, b"with other keys");
        carry(&mut server, &mut client);
        assert_eq!(opened(&mut client), b"with other keys");
    }
}

/// Violations by a peer with the right keys: each ends the session, with the alert that reports it.
#[test]
fn a_peer_with_keys_is_held_to_the_standard() {
    const DATA: ContentType = ContentType::ApplicationData;
    const HANDSHAKE: ContentType = ContentType::Handshake;
    const ALERT: ContentType = ContentType::Alert;
    let update: &[u8] = &[24, 0, 0, 1, 0];
    let empties = usize::from(TLS_EMPTY_RECORDS_MAX);
    let updates = usize::from(TLS_KEY_UPDATES_MAX);
    let oversized = vec![0; TLS_RECORD_MAX + 100];
    type Sent<'a> = Vec<(ContentType, &'a [u8])>;
    let refused: [(&str, u8, Sent<'_>); 13] = [
        ("too many empty records", 50, vec![(DATA, b""); empties + 1]),
        (
            "a part of a message, then data",
            10,
            vec![(HANDSHAKE, &update[..3]), (DATA, b"1")],
        ),
        (
            "something behind an update",
            10,
            vec![(HANDSHAKE, &[24, 0, 0, 1, 0, 24])],
        ),
        (
            "an update of no kind",
            50,
            vec![(HANDSHAKE, &[24, 0, 0, 1, 2])],
        ),
        ("a long update", 50, vec![(HANDSHAKE, &[24, 0, 0, 2, 0, 0])]),
        ("a client's ticket", 10, vec![(HANDSHAKE, &[4, 0, 0, 1, 0])]),
        ("another handshake", 10, vec![(HANDSHAKE, &[1, 0, 0, 1, 0])]),
        ("a long message", 50, vec![(HANDSHAKE, &[4, 1, 0, 0])]),
        ("an empty message", 10, vec![(HANDSHAKE, b"")]),
        (
            "other ciphers",
            10,
            vec![(ContentType::ChangeCipherSpec, &[1])],
        ),
        (
            "a type of no kind",
            10,
            vec![(ContentType::Unknown(99), &[1])],
        ),
        ("a long alert", 50, vec![(ALERT, &[2, 0, 0])]),
        ("an oversized record", 22, vec![(DATA, &oversized)]),
    ];
    for (what, alert, records) in refused {
        let [mut client, mut server] = sessions();
        for (kind, plaintext) in records {
            let (open, records) = client.open_parts();
            open.seal_as(kind, plaintext, records);
        }
        let error = take(&mut server, &records_of(&mut client)).unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::ProtocolViolation,
            "{what}: {error}"
        );
        assert!(!server.has_bytes(), "{what}");
        let said = take(&mut client, &records_of(&mut server)).unwrap_err();
        let expected = rustls::AlertDescription::from(alert);
        assert!(
            said.to_string().contains(&format!("{expected:?}")),
            "{what}: {said}"
        );
    }

    // Each update is allowed, and this many are not.
    let [mut client, mut server] = sessions();
    for at in 0..=updates {
        let (open, records) = client.open_parts();
        open.update_key(true, records).unwrap();
        let taken = take(&mut server, &records_of(&mut client));
        assert_eq!(taken.is_ok(), at < updates, "{at}");
    }
}

/// The end of the peer's stream, whatever comes after it; and the end of a peer that gives a
/// reason.
#[test]
fn nothing_counts_behind_the_end() {
    let [mut client, mut server] = sessions();
    seal(&mut client, b"the last words");
    client.close();
    let (open, records) = client.open_parts();
    open.seal_as(ContentType::ApplicationData, b"no words", records);
    take(&mut server, &records_of(&mut client)).unwrap();
    assert_eq!(opened(&mut server), b"the last words");
    assert!(server.is_peer_closed());
    assert_eq!((server.opened_len(), server.unread_len()), (0, 0));

    let [mut client, mut server] = sessions();
    let (open, records) = client.open_parts();
    open.seal_as(ContentType::Alert, &[2, 40], records);
    let error = take(&mut server, &records_of(&mut client)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}
