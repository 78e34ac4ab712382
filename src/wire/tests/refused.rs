//! Data frames that contradict themselves, and the borders of what is legal.

use super::*;

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
    for op in (8..=255).filter(|op| !matches!(op, 0x80 | 0x82..=0x8d | 0x90..=0x92)) {
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
    // Announced messages have the indices 1 to 254.
    for index in [0, 255] {
        for (op, name) in [
            (5, Op::TaggedRts),
            (6, Op::Cts),
            (7, Op::Data),
            (0x8b, Op::Rts),
            (0x8c, Op::Withdraw),
            (0x8d, Op::Withdrawn),
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
