//! Data frames that are cut short, damaged, or made of anything; and all there are, to and fro.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

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
