//! Control frames: captured bytes, every cut and damage, data of every length.

use super::*;

pub(super) fn control(kind: ControlKind, data: &[u8]) -> ControlFrame {
    ControlFrame::new(kind, Bytes::copy_from_slice(data)).unwrap()
}

/// A capture as this machine would send it.
fn control_bytes(text: &str) -> Vec<u8> {
    let mut bytes = bytes_of(text);
    if cfg!(target_endian = "big") {
        bytes[24..32].reverse();
    }
    bytes
}

/// Feeds pieces of `step` bytes, never more than the decoder wants; returns the end and how many
/// bytes were fed.
fn feed_in_steps(bytes: &[u8], step: usize) -> (Result<CmDecoded, WireError>, usize) {
    let mut decoder = CmDecoder::new();
    let mut fed = 0;
    loop {
        let len = decoder.wanted().min(step).min(bytes.len() - fed);
        let answer = decoder.feed(&bytes[fed..fed + len]);
        fed += len;
        match answer {
            Ok(CmDecoded::Need(wanted)) => {
                assert_eq!(wanted, decoder.wanted());
                assert!(wanted > 0);
                if fed == bytes.len() {
                    return (answer, fed);
                }
            }
            Ok(CmDecoded::Frame { .. }) | Err(_) => {
                assert_eq!(decoder.wanted(), 0);
                return (answer, fed);
            }
        }
    }
}

#[track_caller]
fn control_of(bytes: &[u8]) -> (ControlFrame, ByteOrder) {
    match CmDecoder::new().feed(bytes) {
        Ok(CmDecoded::Frame { frame, order, .. }) => (frame, order),
        other => panic!("expected a control frame, got {other:?}"),
    }
}

#[test]
fn captured_control_frames_decode_and_are_what_we_send() {
    for (text, frame) in [
        (REQUEST, control(ControlKind::Request, b"")),
        (RESPONSE, control(ControlKind::Response, b"")),
        (REJECT, control(ControlKind::Reject, b"01")),
    ] {
        let bytes = control_bytes(text);
        assert_eq!(frame.encode(), bytes, "{text}");
        let expected = CmDecoded::Frame {
            frame,
            order: ByteOrder::Native,
            consumed: bytes.len(),
        };
        assert_eq!(CmDecoder::new().feed(&bytes), Ok(expected), "{text}");
    }
}

#[test]
fn private_data_length_is_big_endian_up_to_256() {
    let data: Vec<u8> = (0..=255).collect();
    let frame = control(ControlKind::Request, &data);
    let bytes = frame.encode();
    assert_eq!(bytes[..4], [3, 0, 1, 0]);
    assert_eq!(control_of(&bytes), (frame, ByteOrder::Native));
    let too_long = ControlFrame::new(ControlKind::Request, Bytes::from(vec![0; 257]));
    assert_eq!(too_long, Err(WireError::ControlDataSize(257)));
    let mut bytes = control_bytes(REQUEST);
    bytes[2..4].copy_from_slice(&[1, 1]);
    assert_eq!(
        feed_in_steps(&bytes, 1),
        (Err(WireError::ControlDataSize(257)), 4)
    );
}

#[test]
fn the_probe_settles_the_byte_order() {
    let mut bytes = control_bytes(RESPONSE);
    bytes[24..32].reverse();
    assert_eq!(control_of(&bytes).1, ByteOrder::Big);
    for probe in [[0; 8], [1; 8], *b"GET / HT"] {
        bytes[24..32].copy_from_slice(&probe);
        assert_eq!(
            CmDecoder::new().feed(&bytes),
            Err(WireError::ControlProbe),
            "{probe:?}"
        );
    }
    // Known with the fixed part: the promised private data is not waited for.
    bytes[2..4].copy_from_slice(&[0, 200]);
    assert_eq!(
        feed_in_steps(&bytes, 32),
        (Err(WireError::ControlProbe), 32)
    );
    // Nothing follows a reject, so its probe says nothing.
    let mut bytes = control_bytes(REJECT);
    bytes[24..32].copy_from_slice(&[7; 8]);
    assert_eq!(control_of(&bytes).0, control(ControlKind::Reject, b"01"));
}

#[test]
fn the_unused_words_of_a_request_are_ignored() {
    let mut bytes = control_bytes(REQUEST);
    bytes[4..24].fill(0xff);
    assert_eq!(control_of(&bytes).0, control(ControlKind::Request, b""));
}

#[test]
fn another_protocol_is_known_by_its_first_bytes() {
    let (answer, fed) = feed_in_steps(b"GET / HTTP/1.1\r\n", 1);
    assert_eq!((answer, fed), (Err(WireError::ControlVersion(b'G')), 1));
    let (answer, fed) = feed_in_steps(&[3, 2, 0, 0], 1);
    assert_eq!((answer, fed), (Err(WireError::ControlType(2)), 2));
    // A frame that was refused once is refused for good.
    let mut decoder = CmDecoder::new();
    for _ in 0..2 {
        assert_eq!(decoder.feed(&[4]), Err(WireError::ControlVersion(4)));
        assert_eq!(decoder.wanted(), 0);
    }
}

#[test]
fn the_decoder_wants_no_byte_of_what_follows() {
    for data_len in [0, 1, 31, 256] {
        let frame = control(ControlKind::Response, &vec![0x5a; data_len]);
        let len = frame.encode().len();
        let mut bytes = frame.encode();
        bytes.extend(bytes_of(MESSAGE));
        for step in [1, 2, 3, 31, 32, 33, 1000] {
            let (answer, fed) = feed_in_steps(&bytes, step);
            assert_eq!(fed, len, "{data_len} bytes of data in steps of {step}");
            assert!(matches!(answer, Ok(CmDecoded::Frame { frame: got, .. }) if got == frame));
        }
        // Given more than it wants, it takes no more than it wants.
        let mut decoder = CmDecoder::new();
        assert_eq!(decoder.wanted(), 32);
        assert_eq!(decoder.feed(&[]), Ok(CmDecoded::Need(32)));
        assert_eq!(decoder.feed(&bytes[..3]), Ok(CmDecoded::Need(29)));
        assert_eq!(decoder.feed(&bytes[3..4]), Ok(CmDecoded::Need(len - 4)));
        let expected = |consumed| {
            Ok(CmDecoded::Frame {
                frame: frame.clone(),
                order: ByteOrder::Native,
                consumed,
            })
        };
        assert_eq!(decoder.feed(&bytes[4..]), expected(len - 4));
        assert_eq!(decoder.feed(&bytes[len..]), expected(0));
    }
}

#[test]
fn damaged_control_frames_are_survived() {
    for text in [REQUEST, RESPONSE, REJECT] {
        let mut bytes = control_bytes(text);
        for len in 0..bytes.len() {
            let (answer, fed) = feed_in_steps(&bytes[..len], 5);
            assert!(matches!(answer, Ok(CmDecoded::Need(_))));
            assert_eq!(fed, len);
        }
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let whole = CmDecoder::new().feed(&bytes);
            match (feed_in_steps(&bytes, 1).0, whole) {
                (Ok(CmDecoded::Need(a)), Ok(CmDecoded::Need(b))) => assert_eq!(a, b),
                (Err(a), Err(b)) => assert_eq!(a, b),
                (Ok(CmDecoded::Frame { frame: a, .. }), Ok(CmDecoded::Frame { frame: b, .. })) => {
                    assert_eq!(a, b);
                }
                (a, b) => panic!("bit {bit}: {a:?} in bytes, but {b:?} at once"),
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

proptest! {
    #[test]
    fn control_frames_survive_the_wire(
        kind in prop::sample::select(vec![
            ControlKind::Request, ControlKind::Response, ControlKind::Reject,
        ]),
        data in vec(any::<u8>(), 0..=CM_DATA_SIZE_MAX),
        swapped: bool,
        step in 1..300_usize,
    ) {
        let frame = control(kind, &data);
        let mut bytes = frame.encode();
        prop_assert_eq!(bytes.len(), 32 + data.len());
        if swapped {
            bytes[24..32].reverse(); // as a machine of the other kind writes it
        }
        bytes.push(0xff);
        let (answer, fed) = feed_in_steps(&bytes, step);
        prop_assert_eq!(fed, 32 + data.len());
        let Ok(CmDecoded::Frame { frame: got, order, .. }) = answer else {
            panic!("not a frame: {answer:?}");
        };
        prop_assert_eq!(got, frame);
        if kind != ControlKind::Reject {
            prop_assert_eq!(order == ByteOrder::Big, swapped);
        }
    }

    #[test]
    fn random_control_bytes_are_survived(
        kind in prop::sample::select(vec![0_u8, 1, 6, 2]),
        rest in vec(any::<u8>(), 0..320),
        step in 1..300_usize,
    ) {
        let _ = feed_in_steps(&rest, step);
        let mut bytes = vec![3, kind, 0];
        bytes.extend(rest);
        let _ = feed_in_steps(&bytes, step);
    }
}
