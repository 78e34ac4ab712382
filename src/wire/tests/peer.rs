//! The private data of connectionless endpoints: captured bytes, both versions against all kinds of
//! answer, our own block, and RXM's request.

use std::num::NonZeroU32;

use super::extension::golden;
use super::*;

fn read(text: &str) -> PeerData {
    PeerData::read(&bytes_of(text)).expect("eight bytes and more")
}

fn incarnation(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("not zero")
}

/// For each capture the request, its response, and whether announcements are agreed on. The
/// responders are libfabric 2.6, 2.6 and 1.17.
const CAPTURES: [(&str, &str, bool); 3] = [
    ("01 00 aaf7 0000453e", "81 00 aaf7 00004539", true),
    ("00 00 896d 00004562", "00 00 896d 0000455c", false),
    ("01 00 83ff 0000454c", "01 00 83ff 0000454a", false),
];

#[test]
fn captured_private_data_mean_what_they_did() {
    for (request, response, announces) in CAPTURES {
        let (request, response) = (read(request), read(response));
        assert_eq!(request.port(), response.port(), "the requester's");
        assert_ne!(request.incarnation(), response.incarnation());
        assert_eq!(response.agrees_to_announcements(), announces);
        assert_eq!((request.offer(), response.offer()), (None, None));
        assert!(!request.is_behind_firewall());
    }
    assert_eq!(read(CAPTURES[0].0).port(), 0xaaf7);
    assert_eq!(read(CAPTURES[0].0).incarnation(), 0x453e);
}

/// A request for version 1 is answered as understood; one for 0 gets 0.
#[test]
fn our_private_data_are_those_of_the_captures() {
    let request = PeerData::request(0xaaf7, incarnation(0x453e), None);
    assert_eq!(request.encode(), bytes_of(CAPTURES[0].0));
    let response = request.response(incarnation(0x4539), None);
    assert_eq!(response.encode(), bytes_of(CAPTURES[0].1));
    let response = read(CAPTURES[1].0).response(incarnation(0x455c), None);
    assert_eq!(response.encode(), bytes_of(CAPTURES[1].1));
    assert!(!response.agrees_to_announcements());
    // A later version than any there is: the highest that both have.
    let response = read("02 00 0001 00000001").response(incarnation(5), None);
    assert_eq!(response.encode(), bytes_of("81 00 0001 00000005"));
    // A reject carries the request's bytes back.
    assert_eq!(
        read("01 03 0102 03040506").plain()[..],
        bytes_of("01 03 0102 03040506")
    );
}

/// A response echoes the features that are known; the first feature asks not to be dialled.
#[test]
fn unknown_features_are_not_echoed() {
    let asked = read("01 ff 0001 00000001");
    assert!(asked.is_behind_firewall());
    let response = asked.response(incarnation(2), None);
    assert_eq!(response.encode(), bytes_of("81 01 0001 00000002"));
}

/// docs/extension.md, section 1: the block behind the eight bytes.
#[test]
fn the_golden_private_data_of_the_page_are_what_we_send() {
    let offered = Capabilities::CREDIT | Capabilities::RENDEZVOUS;
    let request = PeerData::request(0x1234, incarnation(7), Some(ExtensionOffer::new(offered)));
    assert_eq!(request.encode(), golden("peer request"));
    let asked = PeerData::read(&golden("peer request")).expect("our own");
    assert_eq!(asked, request);
    let answer = asked.offer().map(|offer| offer.answer(Capabilities::all()));
    let response = asked.response(incarnation(9), answer);
    assert_eq!(response.encode(), golden("peer response"));
    assert_eq!(PeerData::read(&golden("peer response")), Ok(response));
}

/// docs/extension.md, section 9: a reject over a key says which side has one, if its request had a
/// block, and carries the rejecter's incarnation.
#[test]
fn a_reject_says_who_has_a_key_and_which_life_rejects() {
    let asked = PeerData::read(&golden("peer request")).expect("our own");
    let ours = incarnation(9);
    assert_eq!(asked.reject(ours, true), golden("peer unproven"));
    let has_key = |data: Vec<u8>| {
        PeerData::read(&data).map(|data| data.offer().map(ExtensionOffer::proves_key))
    };
    assert_eq!(has_key(asked.reject(ours, true)), Ok(Some(true)));
    assert_eq!(has_key(asked.reject(ours, false)), Ok(Some(false)));
    let plain = read("01 00 0001 00000001");
    assert_eq!(plain.reject(ours, true), plain.plain());
}

/// docs/extension.md, section 8: contexts are named behind the offer that has them, and by nothing
/// else.
#[test]
fn the_golden_names_of_contexts_are_what_we_send() {
    let offered = Capabilities::CREDIT | Capabilities::RENDEZVOUS;
    let named = NamedContexts { from: 1, to: 258 };
    let offer = ExtensionOffer::new(offered | Capabilities::CONTEXTS);
    let request = PeerData::request(0x1234, incarnation(7), Some(offer)).between(named);
    assert_eq!(request.encode(), golden("peer contexts"));
    let asked = PeerData::read(&golden("peer contexts")).expect("our own");
    assert_eq!((asked, asked.contexts()), (request, named));
    assert_eq!(asked.port(), 0x1234);
    let accepted = asked.response(incarnation(9), Some(offer.answer(Capabilities::all())));
    assert_eq!(accepted.contexts(), named, "echoed");
    // A side that knows no contexts answers without them, which means the first ones.
    let answer = offer.answer(offered);
    let response = asked.response(incarnation(9), Some(answer)).encode();
    let response = PeerData::read(&response).expect("an answer");
    assert_eq!(response.contexts(), NamedContexts::FIRST);
    assert!(!response.names_contexts());

    assert_eq!(asked.reject_context(incarnation(9)), golden("peer none"));
    let rejected = PeerData::read(&golden("peer none")).expect("a reject");
    assert!(rejected.names_contexts() && !rejected.offer().unwrap().proves_key());
    // A requester that has a key learns no more of the rejecter's key.
    let offer = ExtensionOffer::new(Capabilities::AUTH | Capabilities::CONTEXTS);
    let keyed = PeerData::request(1, incarnation(7), Some(offer)).between(named);
    let rejected = PeerData::read(&keyed.reject_context(incarnation(9))).expect("a reject");
    assert!(rejected.names_contexts() && rejected.offer().unwrap().proves_key());
}

/// Names that are cut off make no request at all; bytes behind them are a later version's, and a
/// second block behind the first is skipped with everything else there.
#[test]
fn hostile_names_of_contexts() {
    let with = |block: &str| {
        let data = bytes_of(&format!("01 00 0000 00000001 {block}"));
        PeerData::read(&data).map(|data| data.contexts())
    };
    let named = Ok(NamedContexts { from: 2, to: 65535 });
    assert_eq!(with("746f6661 000a 01000284 0002ffff 0001"), named);
    assert_eq!(with("746f6661 000c 01000284 0002ffff 0001 0303"), named);
    let second = "746f6661 000a 01000284 00040004 0001";
    assert_eq!(
        with(&format!("746f6661 000a 01000284 0002ffff 0001 {second}")),
        named
    );
    // Not offered: the six bytes are a later version's.
    assert_eq!(
        with("746f6661 000a 01000084 0002ffff 0001"),
        Ok(NamedContexts::FIRST)
    );
    // The version does not exist: the block is none.
    assert_eq!(
        with("746f6661 000a 00000284 0002ffff 0001"),
        Ok(NamedContexts::FIRST)
    );
    for wrong in [
        "746f6661 0004 01000284",
        "746f6661 0004 01000284 0002ffff 0001",
        "746f6661 0009 01000284 0002ffff 0001",
        "746f6661 000b 01000284 0002ffff 0001",
        "746f6661 ffff 01000284 0002ffff 0001",
    ] {
        assert!(
            matches!(with(wrong), Err(WireError::PeerData(_))),
            "{wrong}"
        );
    }
    // The port is in the block, and nowhere else.
    let twice = bytes_of("01 00 0001 00000001 746f6661 000a 01000284 0002ffff 0001");
    assert!(PeerData::read(&twice).is_err());
}

/// A block that is longer than what is known is of a later version; one that is shorter, or not
/// all there, is none. Without our magic it is skipped.
#[test]
fn blocks_of_all_kinds() {
    let with = |block: &str| {
        let data = bytes_of(&format!("01 00 0001 00000001 {block}"));
        PeerData::read(&data).map(|data| data.offer().map(ExtensionOffer::capabilities))
    };
    let credit = Ok(Some(Capabilities::CREDIT));
    assert_eq!(with("746f6661 0004 01000004"), credit);
    assert_eq!(with("746f6661 0006 01000004 ffff"), credit);
    assert_eq!(with("746f6661 0004 01000004 0102"), credit, "behind it");
    assert_eq!(with("746f6661 0004 01007c04 "), credit, "unknown bits");
    assert_eq!(with("746f6661 0004 00000004"), Ok(None), "no such version");
    for none in ["", "746f66", "616f6661 0004 01000004", "..16"] {
        assert_eq!(with(none), Ok(None), "{none}");
    }
    for wrong in [
        "746f6661",
        "746f6661 0003 01000004",
        "746f6661 0005 01000004",
    ] {
        assert!(
            matches!(with(wrong), Err(WireError::PeerData(_))),
            "{wrong}"
        );
    }
    for len in 0..8 {
        assert_eq!(
            PeerData::read(&[1; 8][..len]),
            Err(WireError::PeerData(len))
        );
    }
}

#[test]
fn a_request_of_rxm_is_known_and_nothing_else_is_taken_for_one() {
    let rxm = bytes_of("01 02 04 03 db9d 02 00 00400000 00100000 00000000 13450000");
    assert!(is_rxm_request(&rxm));
    let mut changed = rxm.clone();
    changed[1] = 1;
    assert!(is_rxm_request(&changed), "of a big-endian machine");
    for (at, byte) in [(0, 2), (1, 0), (1, 3), (2, 5), (3, 4)] {
        let mut changed = rxm.clone();
        changed[at] = byte;
        assert!(!is_rxm_request(&changed));
    }
    assert!(!is_rxm_request(&rxm[..23]));
    for (request, ..) in CAPTURES {
        assert!(!is_rxm_request(&bytes_of(request)));
    }
    // A request of this library that looks like it, with a block of as many bytes.
    let mut ours = rxm;
    ours[8..14].copy_from_slice(b"tofa\0\x0a");
    assert!(!is_rxm_request(&ours));
    assert_eq!(RXM_REJECT, [1, 1]);
}

proptest! {
    #[test]
    fn random_private_data_are_survived(data in vec(any::<u8>(), 0..64), block: bool) {
        let mut data = data;
        if block && data.len() >= 12 {
            data[8..12].copy_from_slice(b"tofa");
        }
        let _ = is_rxm_request(&data);
        if let Ok(read) = PeerData::read(&data) {
            prop_assert_eq!(&read.plain()[..], &data[..8]);
            prop_assert_eq!(PeerData::read(&read.encode()), Ok(read));
        }
    }
}
