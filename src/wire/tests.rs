//! Golden bytes captured from libfabric, round trips in both byte orders, and hostile input.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::limits::{CM_DATA_SIZE_MAX, HEADER_SIZE_MAX};

mod control;
mod extension;
mod peer;

use control::control;

const ORDERS: [ByteOrder; 2] = [ByteOrder::Native, ByteOrder::Big];

/// Data frames captured between little-endian machines; `..n` stands for n bytes of payload.
const MESSAGE: &str = "03 00 0000 00 00 10 00 2000000000000000 ..16";
const MESSAGE_ACK_WANTED: &str = "03 00 0400 00 00 10 00 1400000000000000 66696e00";
const ACK: &str = "03 00 0000 02 00 10 00 1000000000000000";
const ACK_STALE_COUNT: &str = "03 00 0000 02 01 10 00 1000000000000000";
const WRITE: &str = "03 04 0000 00 01 28 00 4800000000000000 \
                     0400000000000000 2000000000000000 dec0000000000000 ..32";
const WRITE_DATA: &str = "03 04 0100 00 01 30 00 5000000000000000 efcdab8967452301 \
                          0400000000000000 2000000000000000 dec0000000000000 ..32";
const READ_REQUEST: &str = "03 02 0000 00 01 28 00 2800000000000000 \
                            0400000000000000 2000000000000000 dec0000000000000";
const READ_RESPONSE: &str = "03 03 0000 00 01 10 00 3000000000000000 ..32";
const TAGGED: &str = "03 01 0000 00 00 18 00 2800000000000000 d204000000000000 ..16";
const TAGGED_RTS: &str =
    "03 05 0000 01 00 20 00 2000000000000000 0100000000000000 204e000000000000";
const CTS: &str = "03 06 0000 01 00 10 00 1000000000000000";
const RENDEZVOUS_DATA: &str = "03 07 0000 01 00 10 00 304e000000000000 ..20000";

const REQUEST: &str = "03 00 0000 00000000 0000000000000000 0000000000000000 0100000000000000";
const RESPONSE: &str = "03 01 0000 00000000 0000000000000000 0000000000000000 0100000000000000";
const REJECT: &str = "03 06 0002 00000000 0000000000000000 0000000000000000 0000000000000000 3031";

const ALL_FRAMES: [&str; 12] = [
    MESSAGE,
    MESSAGE_ACK_WANTED,
    ACK,
    ACK_STALE_COUNT,
    WRITE,
    WRITE_DATA,
    READ_REQUEST,
    READ_RESPONSE,
    TAGGED,
    TAGGED_RTS,
    CTS,
    RENDEZVOUS_DATA,
];

fn message(len: u64) -> FrameHeader {
    FrameHeader::Message {
        data: None,
        ack: false,
        len,
    }
}

fn segments(list: &[(u64, u64, u64)]) -> Segments {
    let list: Vec<_> = list
        .iter()
        .map(|&(addr, len, key)| RemoteSegment { addr, len, key })
        .collect();
    Segments::new(&list).expect("the test's segments are valid")
}

fn write(data: Option<u64>, segments: Segments) -> FrameHeader {
    FrameHeader::Write {
        data,
        ack: false,
        commit: false,
        segments,
    }
}

/// The captured frames, with what they mean.
fn accepted() -> [(&'static str, FrameHeader); 12] {
    let one = segments(&[(4, 32, 0xc0de)]);
    [
        (MESSAGE, message(16)),
        (
            MESSAGE_ACK_WANTED,
            FrameHeader::Message {
                data: None,
                ack: true,
                len: 4,
            },
        ),
        (ACK, FrameHeader::Ack),
        (ACK_STALE_COUNT, FrameHeader::Ack),
        (WRITE, write(None, one.clone())),
        (WRITE_DATA, write(Some(0x0123_4567_89ab_cdef), one.clone())),
        (READ_REQUEST, FrameHeader::ReadRequest { segments: one }),
        (READ_RESPONSE, FrameHeader::ReadResponse { len: 32 }),
        (
            TAGGED,
            FrameHeader::Tagged {
                data: None,
                tag: 1234,
                ack: false,
                len: 16,
            },
        ),
        (
            TAGGED_RTS,
            FrameHeader::Rts {
                index: 1,
                tag: Some(1),
                data: None,
                ack: false,
                len: 20_000,
            },
        ),
        (CTS, FrameHeader::Cts { index: 1 }),
        (
            RENDEZVOUS_DATA,
            FrameHeader::Data {
                index: 1,
                has_data: false,
                ack: false,
                len: 20_000,
            },
        ),
    ]
}

/// The bytes that a capture stands for.
fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        if let Some(len) = word.strip_prefix("..") {
            bytes.resize(bytes.len() + len.parse::<usize>().unwrap(), 0xaa);
            continue;
        }
        let digits = word.as_bytes().chunks(2);
        bytes.extend(
            digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()),
        );
    }
    bytes
}

/// A little-endian capture as it would look on a connection of this order: each number of the
/// header turned round where that is big-endian.
fn frame(text: &str, order: ByteOrder) -> Vec<u8> {
    let mut bytes = bytes_of(text);
    if order == ByteOrder::Native && cfg!(target_endian = "little") {
        return bytes;
    }
    let header_len = usize::from(bytes[6]);
    bytes[2..4].reverse();
    for word in bytes[8..header_len].chunks_mut(8) {
        word.reverse();
    }
    bytes
}

/// A base header of these fields with `extra` words of zero behind it.
fn crafted(op: u8, op_data: u8, flags: u8, count: u8, header_len: u8, size: u64) -> Vec<u8> {
    let mut bytes = vec![3, op, flags, 0, op_data, count, header_len, 0];
    bytes.extend(size.to_le_bytes());
    bytes.resize(HEADER_SIZE_MAX, 0);
    bytes
}

/// Decodes a crafted little-endian header; the big-endian order is the one all machines have.
fn decode_crafted(mut bytes: Vec<u8>) -> Result<Decoded, WireError> {
    bytes[2..4].reverse();
    for word in bytes[8..].chunks_mut(8) {
        word.reverse();
    }
    decode(&bytes, ByteOrder::Big)
}

#[track_caller]
fn header_of(decoded: Result<Decoded, WireError>) -> FrameHeader {
    match decoded {
        Ok(Decoded::Frame { header, .. }) => header,
        other => panic!("expected a frame, got {other:?}"),
    }
}

/// What holds for the decoder's answer to any bytes at all.
#[track_caller]
fn check_answer(bytes: &[u8], order: ByteOrder) {
    match decode(bytes, order) {
        Ok(Decoded::Need(len)) => {
            assert!(len > bytes.len() && len <= HEADER_SIZE_MAX);
            assert!(len == 16 || bytes.len() >= 16);
        }
        Ok(Decoded::Frame {
            header,
            header_len,
            id,
        }) => {
            assert!((16..=HEADER_SIZE_MAX).contains(&header_len) && header_len <= bytes.len());
            assert!(
                header
                    .payload_len()
                    .checked_add(header_len as u64)
                    .is_some()
            );
            let again = header.encode(order, id);
            assert!(
                again.len() <= header_len,
                "only what is skipped may be lost"
            );
            assert_eq!(header_of(decode(&again, order)), header);
            // A trace must not be able to harm either.
            assert!(!header.to_string().is_empty());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

// ---- data frames: golden bytes ----

#[test]
fn captured_frames_decode() {
    for order in ORDERS {
        for (text, header) in accepted() {
            let bytes = frame(text, order);
            let header_len = bytes.len() - header.payload_len() as usize;
            let expected = Decoded::Frame {
                header,
                header_len,
                id: 0,
            };
            assert_eq!(
                decode(&bytes, order),
                Ok(expected.clone()),
                "{text} {order:?}"
            );
            // Neither payload nor the next frame makes a difference.
            assert_eq!(
                decode(&bytes[..header_len], order),
                Ok(expected.clone()),
                "{text}"
            );
        }
    }
}

#[test]
fn captured_frames_are_what_we_send() {
    for order in ORDERS {
        for (text, header) in accepted() {
            let mut bytes = frame(text, order);
            bytes.truncate(usize::from(bytes[6]));
            if matches!(header, FrameHeader::Ack | FrameHeader::ReadResponse { .. }) {
                bytes[5] = 0; // what a C peer leaves there; we send 0
            }
            assert_eq!(&*header.encode(order, 0), &bytes[..], "{text} {order:?}");
            bytes[7] = 0xa5;
            assert_eq!(&*header.encode(order, 0xa5), &bytes[..], "{text} {order:?}");
        }
    }
}

#[test]
fn unlike_machines_meet_in_big_endian() {
    let header = FrameHeader::Write {
        data: Some(0x0123_4567_89ab_cdef),
        ack: true,
        commit: true,
        segments: segments(&[(4, 32, 0xc0de), (0x1_0000, 0, 7)]),
    };
    let bytes = bytes_of(
        "03 04 000d 00 02 48 09 0000000000000068 0123456789abcdef \
         0000000000000004 0000000000000020 000000000000c0de \
         0000000000010000 0000000000000000 0000000000000007",
    );
    assert_eq!(&*header.encode(ByteOrder::Big, 9), &bytes[..]);
    assert_eq!(header_of(decode(&bytes, ByteOrder::Big)), header);
}

// ---- data frames: what is looked at, and what is not ----

#[test]
fn bytes_that_c_peers_leave_unset_are_ignored() {
    for order in ORDERS {
        for (text, header) in accepted() {
            let mut bytes = frame(text, order);
            let unknown_flag = if bytes_of(text) == bytes { 3 } else { 2 };
            bytes[0] = 77; // version
            bytes[unknown_flag] |= 0x80;
            bytes[7] = 0x5a; // id
            if header.segments().is_empty() {
                bytes[5] = 0xff; // count
            }
            assert_eq!(header_of(decode(&bytes, order)), header, "{text} {order:?}");
        }
    }
}

#[test]
fn fields_count_only_where_they_mean_something() {
    // An ack, a read request and a read response with all flags set, as left from other frames.
    let ack = crafted(0, 2, 0x0d, 0, 16, 16);
    assert_eq!(header_of(decode_crafted(ack)), FrameHeader::Ack);
    let response = crafted(3, 0, 0x0d, 1, 16, 48);
    let expected = FrameHeader::ReadResponse { len: 32 };
    assert_eq!(header_of(decode_crafted(response)), expected);
    let request = header_of(decode_crafted(crafted(2, 0, 0x0d, 1, 40, 40)));
    assert_eq!(request.data(), None);
    assert!(!request.wants_ack());
    // Commit means nothing for a message; only a write's payload can be persistent.
    let message = header_of(decode_crafted(crafted(0, 0, 0x08, 0, 16, 16)));
    assert!(!message.wants_ack());
    // Only 2 in op_data makes an ack; a C peer takes anything else for a message, so do we.
    for op_data in [1, 3, 255] {
        let decoded = decode_crafted(crafted(0, op_data, 0, 0, 16, 21));
        assert_eq!(header_of(decoded).payload_len(), 5);
    }
    // C peers leave the flags of the announcement in its data, which has no completion data.
    let data = header_of(decode_crafted(crafted(7, 9, 0x05, 0, 16, 21)));
    assert_eq!((data.payload_len(), data.data()), (5, None));
    let write = header_of(decode_crafted(crafted(4, 0, 0x08, 1, 40, 40)));
    assert!(write.wants_ack(), "a commit asks for an ack by itself");
}

#[test]
fn further_header_bytes_of_messages_and_read_responses_are_skipped() {
    for extra in 0..=104 {
        let decoded = decode_crafted(crafted(0, 0, 0, 0, 16 + extra, 16 + u64::from(extra) + 5));
        assert_eq!(
            decoded,
            Ok(Decoded::Frame {
                header: message(5),
                header_len: usize::from(16 + extra),
                id: 0
            })
        );
        let decoded = decode_crafted(crafted(3, 0, 0, 0, 16 + extra, 16 + u64::from(extra) + 5));
        assert_eq!(header_of(decoded), FrameHeader::ReadResponse { len: 5 });
    }
    // With completion data, which comes first.
    let mut bytes = crafted(0, 0, 1, 0, 32, 32);
    bytes[16] = 9;
    bytes[24] = 8;
    assert_eq!(header_of(decode_crafted(bytes)).data(), Some(9));
}

#[test]
fn headers_that_contradict_themselves_are_refused() {
    let refused = |op, op_data, flags, count, header_len, size| {
        let bytes = crafted(op, op_data, flags, count, header_len, size);
        let error = decode_crafted(bytes.clone()).unwrap_err();
        // Known with the base header already: nothing is waited for.
        assert_eq!(decode_crafted(bytes[..16].to_vec()), Err(error));
        error
    };
    let header = |op, header_len| WireError::HeaderSize { op, header_len };
    for op in (8..=255).filter(|op| !matches!(op, 0x80 | 0x82..=0x8b | 0x90..=0x92)) {
        assert_eq!(refused(op, 0, 0, 0, 16, 16), WireError::UnknownOp(op));
    }
    // hdr_size outside of its bounds, or not what op, flags and count make of it.
    for len in (0..16).chain(121..=255) {
        assert_eq!(refused(0, 0, 0, 0, len, 1 << 20), header(Op::Msg, len));
    }
    assert_eq!(refused(0, 0, 1, 0, 16, 16), header(Op::Msg, 16));
    assert_eq!(refused(0, 0, 1, 0, 23, 23), header(Op::Msg, 23));
    assert_eq!(refused(0, 2, 0, 0, 24, 24), header(Op::Ack, 24));
    assert_eq!(refused(2, 0, 0, 1, 64, 64), header(Op::ReadRequest, 64));
    assert_eq!(refused(4, 0, 0, 1, 48, 48), header(Op::Write, 48));
    assert_eq!(refused(4, 0, 1, 1, 40, 40), header(Op::Write, 40));
    assert_eq!(refused(4, 0, 0, 4, 88, 88), header(Op::Write, 88));
    assert_eq!(refused(1, 0, 0, 0, 16, 16), header(Op::Tagged, 16));
    assert_eq!(refused(1, 0, 0, 0, 32, 32), header(Op::Tagged, 32));
    assert_eq!(refused(1, 0, 1, 0, 24, 24), header(Op::Tagged, 24));
    assert_eq!(refused(5, 1, 0, 0, 24, 24), header(Op::TaggedRts, 24));
    assert_eq!(refused(5, 1, 0, 0, 40, 40), header(Op::TaggedRts, 40));
    assert_eq!(refused(5, 1, 1, 0, 32, 32), header(Op::TaggedRts, 32));
    assert_eq!(refused(0x8b, 1, 0, 0, 16, 16), header(Op::Rts, 16));
    assert_eq!(refused(0x8b, 1, 1, 0, 24, 24), header(Op::Rts, 24));
    // Announced messages have the names 1 to 254.
    for index in [0, 255] {
        for (op, name) in [
            (5, Op::TaggedRts),
            (6, Op::Cts),
            (7, Op::Data),
            (0x8b, Op::Rts),
        ] {
            let expected = WireError::Index { op: name, index };
            assert_eq!(refused(op, index, 0, 0, 24, 24), expected);
        }
    }
    // size below hdr_size.
    for size in [0, 15] {
        assert_eq!(
            refused(0, 0, 0, 0, 16, size),
            WireError::FrameSize {
                frame_len: size,
                header_len: 16
            }
        );
    }
    // Payload where there is none.
    for (op, op_data, count, len, name) in [
        (0, 2, 0, 16, Op::Ack),
        (2, 0, 1, 40, Op::ReadRequest),
        (5, 1, 0, 32, Op::TaggedRts),
        (6, 1, 0, 16, Op::Cts),
        (0x8b, 1, 0, 24, Op::Rts),
    ] {
        assert_eq!(
            refused(op, op_data, 0, count, len, u64::from(len) + 1),
            WireError::UnexpectedPayload {
                op: name,
                payload_len: 1
            }
        );
    }
    // No segments, or too many.
    for count in [0, 5, 255] {
        for op in [2, 4] {
            let expected = WireError::SegmentCount(usize::from(count));
            assert_eq!(refused(op, 0, 0, count, 40, 40), expected);
        }
    }
}

#[test]
fn segments_must_add_up() {
    let with_lens = |op, size, lens: [u64; 2]| {
        let mut bytes = crafted(op, 0, 0, 2, 64, size);
        bytes[24..32].copy_from_slice(&lens[0].to_le_bytes());
        bytes[48..56].copy_from_slice(&lens[1].to_le_bytes());
        decode_crafted(bytes)
    };
    assert_eq!(header_of(with_lens(4, 64 + 7, [3, 4])).payload_len(), 7);
    assert_eq!(header_of(with_lens(2, 64, [3, 4])).payload_len(), 0);
    for lens in [[3, 3], [3, 5], [0, 0]] {
        assert_eq!(
            with_lens(4, 64 + 7, lens),
            Err(WireError::SegmentsMismatch {
                payload_len: 7,
                segments_len: lens[0] + lens[1]
            })
        );
    }
    // A sum that wraps round to the payload's length, and one that no response could carry.
    for (op, size) in [(4, 64 + 7), (2, 64)] {
        for lens in [[u64::MAX, 8], [u64::MAX - 1, 1]] {
            assert_eq!(with_lens(op, size, lens), Err(WireError::SegmentsOverflow));
        }
    }
}

#[test]
fn segments_are_one_to_four_and_their_sum_is_known() {
    let segment = |len| RemoteSegment {
        addr: 1,
        len,
        key: 2,
    };
    assert_eq!(Segments::new(&[]), Err(WireError::SegmentCount(0)));
    assert_eq!(
        Segments::new(&[segment(1); 5]),
        Err(WireError::SegmentCount(5))
    );
    let four = Segments::new(&[segment(3); 4]).unwrap();
    assert_eq!((four.total(), four.as_slice().len()), (12, 4));
    let most = u64::MAX - HEADER_SIZE_MAX as u64;
    let largest = Segments::new(&[segment(most)]).unwrap();
    assert_eq!(write(None, largest.clone()).payload_len(), most);
    write(Some(1), largest).encode(ByteOrder::Native, 0);
    let too_long = Segments::new(&[segment(most), segment(1)]);
    assert_eq!(too_long, Err(WireError::SegmentsOverflow));
}

#[test]
fn empty_payloads_are_legal() {
    for order in ORDERS {
        for header in [
            message(0),
            FrameHeader::ReadResponse { len: 0 },
            write(None, segments(&[(0, 0, 1)])),
        ] {
            let bytes = header.encode(order, 0);
            assert_eq!(header_of(decode(&bytes, order)).payload_len(), 0);
        }
    }
}

// ---- data frames: damage ----

#[test]
fn every_truncation_asks_for_more() {
    for order in ORDERS {
        for (text, header) in accepted() {
            let bytes = frame(text, order);
            let header_len = bytes.len() - header.payload_len() as usize;
            for len in 0..header_len {
                let needed = if len < 16 { 16 } else { header_len };
                assert_eq!(decode(&bytes[..len], order), Ok(Decoded::Need(needed)));
            }
        }
        for text in ALL_FRAMES {
            let bytes = frame(text, order);
            for len in 0..bytes.len().min(200) {
                check_answer(&bytes[..len], order);
            }
        }
    }
}

#[test]
fn every_flipped_bit_is_survived() {
    for order in ORDERS {
        for text in ALL_FRAMES {
            let mut bytes = frame(text, order);
            bytes.truncate(200);
            for bit in 0..8 * bytes.len() {
                bytes[bit / 8] ^= 1 << (bit % 8);
                for len in [16, bytes.len() / 2, bytes.len()] {
                    check_answer(&bytes[..len], order);
                }
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

fn any_order() -> impl Strategy<Value = ByteOrder> {
    prop::sample::select(&ORDERS[..])
}

fn any_segments() -> impl Strategy<Value = Segments> {
    let len = prop_oneof![Just(0), 1..100_000_u64, 0..u64::MAX / 4 - 120];
    let segment = (any::<u64>(), len, any::<u64>());
    vec(segment, 1..=4).prop_map(|list| segments(&list))
}

fn any_header() -> impl Strategy<Value = FrameHeader> {
    let len = prop_oneof![Just(0), 1..100_000_u64, 0..u64::MAX - 120];
    let data = option::of(any::<u64>());
    prop_oneof![
        (data.clone(), any::<bool>(), len.clone())
            .prop_map(|(data, ack, len)| { FrameHeader::Message { data, ack, len } }),
        Just(FrameHeader::Ack),
        (data.clone(), any::<u64>(), any::<bool>(), len.clone()).prop_map(
            |(data, tag, ack, len)| FrameHeader::Tagged {
                data,
                tag,
                ack,
                len
            }
        ),
        (
            1..=254_u8,
            option::of(any::<u64>()),
            data.clone(),
            any::<bool>(),
            any::<u64>()
        )
            .prop_map(|(index, tag, data, ack, len)| FrameHeader::Rts {
                index,
                tag,
                data,
                ack,
                len
            }),
        (1..=254_u8).prop_map(|index| FrameHeader::Cts { index }),
        (1..=254_u8, any::<bool>(), any::<bool>(), len.clone()).prop_map(
            |(index, has_data, ack, len)| FrameHeader::Data {
                index,
                has_data,
                ack,
                len
            }
        ),
        any_segments().prop_map(|segments| FrameHeader::ReadRequest { segments }),
        len.clone()
            .prop_map(|len| FrameHeader::ReadResponse { len }),
        extension::any_header(),
        (data, any::<bool>(), any::<bool>(), any_segments()).prop_map(
            |(data, ack, commit, segments)| FrameHeader::Write {
                data,
                ack,
                commit,
                segments
            }
        ),
    ]
}

/// Bytes near enough to a header that every check gets its turn.
fn nearly_a_header() -> impl Strategy<Value = Vec<u8>> {
    let small_word = (0..100_u8).prop_map(|byte| vec![byte, 0, 0, 0, 0, 0, 0, 0]);
    let word = prop_oneof![4 => small_word, 1 => vec(any::<u8>(), 8)];
    let header_len = prop_oneof![4 => (1..16_u8).prop_map(|words| 8 * words), 1 => any::<u8>()];
    let op = prop_oneof![0..9_u8, 0x80..0x8c_u8, 0x90..0x94_u8];
    let base = (op, 0..16_u8, 0..3_u8, 0..6_u8, header_len);
    (base, vec(word, 1..16)).prop_map(|((op, flags, op_data, count, header_len), words)| {
        let mut bytes = vec![3, op, flags, 0, op_data, count, header_len, 0];
        bytes.extend(words.concat());
        bytes
    })
}

proptest! {
    #[test]
    fn headers_survive_the_wire(
        header in any_header(), order in any_order(), id: u8, rest in vec(any::<u8>(), 0..40)
    ) {
        let encoded = header.encode(order, id);
        let mut bytes = encoded.to_vec();
        bytes.extend(rest);
        let header_len = encoded.len();
        prop_assert_eq!(decode(&bytes, order), Ok(Decoded::Frame { header, header_len, id }));
        for len in 0..header_len {
            let needed = if len < 16 { 16 } else { header_len };
            prop_assert_eq!(decode(&bytes[..len], order), Ok(Decoded::Need(needed)));
        }
    }

    #[test]
    fn random_bytes_are_survived(bytes in vec(any::<u8>(), 0..160), order in any_order()) {
        check_answer(&bytes, order);
    }

    #[test]
    fn near_headers_are_survived(bytes in nearly_a_header(), order in any_order()) {
        check_answer(&bytes, order);
    }
}

// ---- errors and traces ----

#[test]
fn errors_have_the_kinds_libfabric_gives_them() {
    for (error, kind) in [
        (WireError::ControlVersion(4), ErrorKind::Incompatible),
        (WireError::ControlDataSize(257), ErrorKind::Incompatible),
        (WireError::ControlProbe, ErrorKind::Incompatible),
        (WireError::ControlType(9), ErrorKind::ConnectionRefused),
        (WireError::TaggedOnMsg, ErrorKind::ProtocolViolation),
        (WireError::UnknownOp(9), ErrorKind::ProtocolViolation),
    ] {
        let seen = Error::from(error);
        assert_eq!(seen.kind(), kind);
        assert!(seen.to_string().contains(&error.to_string()));
    }
}

#[test]
fn traces_are_one_line() {
    let line = |text| header_of(decode(&frame(text, ByteOrder::Big), ByteOrder::Big)).to_string();
    assert_eq!(line(MESSAGE), "message 16 B");
    assert_eq!(line(MESSAGE_ACK_WANTED), "message 4 B, ack wanted");
    assert_eq!(line(ACK), "ack");
    assert_eq!(
        line(WRITE_DATA),
        "write 32 B at 0x4+32, cq data 0x123456789abcdef"
    );
    assert_eq!(line(READ_REQUEST), "read-request 32 B at 0x4+32");
    assert_eq!(line(READ_RESPONSE), "read-response 32 B");
    assert_eq!(line(TAGGED), "tagged 16 B, tag 0x4d2");
    assert_eq!(line(TAGGED_RTS), "tagged-announcement #1 20000 B, tag 0x1");
    assert_eq!(line(CTS), "clear-to-send #1");
    assert_eq!(line(RENDEZVOUS_DATA), "rendezvous-data #1 20000 B");
    assert_eq!(
        control(ControlKind::Reject, b"01").to_string(),
        "connect reject, 2 B of data"
    );
}

#[test]
fn neither_keys_nor_private_data_are_shown() {
    const KEY: u64 = 0xdead_beef_0bad_f00d;
    let header = write(None, segments(&[(1, 2, KEY)]));
    let bytes = header.encode(ByteOrder::Native, 0);
    let frame = control(ControlKind::Request, b"secret");
    let shown = format!("{header:?} {header} {bytes:?} {frame:?} {frame}");
    for secret in [
        KEY.to_string(),
        format!("{KEY:x}"),
        "secret".to_string(),
        format!("{:?}", b"secret"),
    ] {
        assert!(!shown.contains(&secret), "{shown} has {secret}");
    }
}
