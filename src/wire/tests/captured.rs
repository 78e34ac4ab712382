//! Data frames captured from libfabric: what they mean, and that we say the same.

use super::*;

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
