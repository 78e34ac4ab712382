//! The extension's frames: golden bytes, offers of every kind, and HELLOs that are none.

use super::*;
use crate::error::Refusal;
use crate::wire::CloseReason;
use crate::wire::extension::reason_of;

/// The page that specifies the extension; its golden bytes are checked here.
const PAGE: &str = include_str!("../../../docs/extension.md");

/// Returns the golden bytes of this name.
pub(super) fn golden(name: &str) -> Vec<u8> {
    let (_, block) = PAGE.split_once("```golden\n").expect("the golden block");
    let (block, _) = block.split_once("```").expect("its end");
    let mut bytes = String::new();
    let mut is_wanted = false;
    for line in block.lines() {
        let rest = match line.split_once(':') {
            Some((found, rest)) => {
                is_wanted = found == name;
                rest
            }
            None => line,
        };
        if is_wanted {
            bytes.push_str(rest);
        }
    }
    assert!(!bytes.is_empty(), "no golden bytes are called {name:?}");
    bytes_of(&bytes)
}

pub(super) fn any_header() -> impl Strategy<Value = FrameHeader> {
    let reason = (1..=255_u8).prop_map(|byte| reason_of(byte).unwrap());
    prop_oneof![
        any::<u64>().prop_map(|token| FrameHeader::Ping { token }),
        any::<u64>().prop_map(|token| FrameHeader::Pong { token }),
        any::<u64>().prop_map(|posted| FrameHeader::Credit { posted }),
        any::<u64>().prop_map(|sent| FrameHeader::Stalled { sent }),
        prop_oneof![Just(CloseReason::Done), Just(CloseReason::Refusals)]
            .prop_map(|reason| FrameHeader::Close { reason }),
        any::<u64>().prop_map(|count| FrameHeader::Acks { count }),
        (1..=254_u8).prop_map(|index| FrameHeader::Withdraw { index }),
        (1..=254_u8).prop_map(|index| FrameHeader::Withdrawn { index }),
        reason
            .clone()
            .prop_map(|reason| FrameHeader::Refused { reason }),
        option::of(reason).prop_map(|refused| FrameHeader::ReadEnd { refused }),
        (0..u64::MAX - 120).prop_map(|len| FrameHeader::ReadData { len }),
        any_atomic(),
    ]
}

fn any_atomic() -> impl Strategy<Value = FrameHeader> {
    let form = prop_oneof![
        Just((AtomicForm::Update, 1)),
        Just((AtomicForm::Fetch, 0)),
        Just((AtomicForm::Fetch, 1)),
        Just((AtomicForm::Compare, 2)),
    ];
    let segment = (any::<u64>(), 1..=1024_u64, any::<u64>());
    let parts = (form, any::<u8>(), any::<u64>(), vec(segment, 1..=4));
    parts.prop_map(|((form, arrays), operation, numbers, list)| {
        let segments = segments(&list);
        FrameHeader::Atomic {
            call: AtomicCall {
                form,
                operation,
                numbers,
            },
            len: arrays * segments.total(),
            segments,
        }
    })
}

/// An atomic operation on the eight bytes at 8 under the key 7, with so many bytes of payload.
fn atomic(form: AtomicForm, operation: u8, len: u64) -> FrameHeader {
    FrameHeader::Atomic {
        call: AtomicCall {
            form,
            operation,
            numbers: 7,
        },
        segments: segments(&[(8, 8, 7)]),
        len,
    }
}

/// docs/extension.md, section 11: operands are as long as the memory, of 1 to 4,096 bytes; twice
/// that of one that compares, and perhaps nothing of one that returns numbers.
#[test]
fn an_atomic_operation_has_operands_of_the_right_length() {
    let good = [
        (AtomicForm::Update, vec![8]),
        (AtomicForm::Fetch, vec![0, 8]),
        (AtomicForm::Compare, vec![16]),
    ];
    for (form, lens) in good {
        for payload in [0, 1, 7, 8, 9, 16, 17, 24, 4096, 1 << 40] {
            let mut bytes = atomic(form, 2, lens[0])
                .encode(ByteOrder::Native, 0)
                .to_vec();
            let size = bytes.len() as u64 + payload;
            bytes[8..16].copy_from_slice(&size.to_ne_bytes());
            let decoded = decode(&bytes, ByteOrder::Native);
            match lens.contains(&payload) {
                true => assert_eq!(header_of(decoded), atomic(form, 2, payload)),
                false => assert!(matches!(decoded, Err(WireError::AtomicSize { .. }))),
            }
        }
    }
    for (list, fits) in [
        (vec![(0, 0, 1)], false),
        (vec![(0, 4096, 1)], true),
        (vec![(0, 4095, 1), (9, 1, 2)], true),
        (vec![(0, 4096, 1), (0, 1, 1)], false),
        (vec![(0, u64::MAX / 2, 1)], false),
    ] {
        let segments = segments(&list);
        let header = FrameHeader::Write {
            data: Some(7),
            ack: true,
            commit: false,
            segments: segments.clone(),
        };
        let mut bytes = header.encode(ByteOrder::Native, 0).to_vec();
        bytes[1] = 0x90;
        let decoded = decode(&bytes, ByteOrder::Native);
        assert_eq!(decoded.is_ok(), fits, "{header:?}");
    }
}

/// docs/extension.md, section 10: what is sent is what the page shows.
#[cfg(target_endian = "little")]
#[test]
fn the_golden_bytes_of_the_page_are_what_we_send() {
    let token = 0x1122_3344_5566_7788;
    for (name, header) in [
        ("ping", FrameHeader::Ping { token }),
        ("pong", FrameHeader::Pong { token }),
        ("credit", FrameHeader::Credit { posted: 10 }),
        ("stalled", FrameHeader::Stalled { sent: 10 }),
        (
            "refused",
            FrameHeader::Refused {
                reason: Refusal::UnknownKey,
            },
        ),
        ("read data", FrameHeader::ReadData { len: 4096 }),
        ("read end", FrameHeader::ReadEnd { refused: None }),
        (
            "read refused",
            FrameHeader::ReadEnd {
                refused: Some(Refusal::Revoked),
            },
        ),
        (
            "close",
            FrameHeader::Close {
                reason: CloseReason::Done,
            },
        ),
        (
            "close, refused",
            FrameHeader::Close {
                reason: CloseReason::Refusals,
            },
        ),
        (
            "close, unasked",
            FrameHeader::Close {
                reason: CloseReason::NoReceive,
            },
        ),
        (
            "close, too long",
            FrameHeader::Close {
                reason: CloseReason::TooLong,
            },
        ),
        ("acks", FrameHeader::Acks { count: 64 }),
        ("withdraw", FrameHeader::Withdraw { index: 2 }),
        ("withdrawn", FrameHeader::Withdrawn { index: 2 }),
        ("atomic", atomic(AtomicForm::Update, 2, 8)),
        ("fetch atomic", atomic(AtomicForm::Fetch, 10, 0)),
        ("compare atomic", atomic(AtomicForm::Compare, 12, 16)),
        (
            "announcement",
            FrameHeader::Rts {
                index: 1,
                tag: None,
                data: None,
                ack: true,
                len: 20_000,
            },
        ),
        (
            "announced data",
            FrameHeader::Rts {
                index: 2,
                tag: None,
                data: Some(7),
                ack: false,
                len: 20_000,
            },
        ),
    ] {
        let bytes = golden(name);
        assert_eq!(&*header.encode(ByteOrder::Native, 5), bytes, "{name}");
        assert_eq!(header_of(decode(&bytes, ByteOrder::Native)), header);
    }
}

/// docs/extension.md, sections 1 and 2, as section 10 shows them.
#[cfg(target_endian = "little")]
#[test]
fn the_golden_handshake_of_the_page_is_what_we_send() {
    let both = Capabilities::REFUSAL | Capabilities::LIVENESS;
    let offer = ExtensionOffer::new(both);
    let frame = ControlFrame::new(ControlKind::Request, Bytes::new()).unwrap();
    assert_eq!(frame.with_offer(Some(offer)).encode(), golden("request"));
    let answer = offer.answer(Capabilities::REFUSAL | Capabilities::CLOSE);
    let frame = ControlFrame::new(ControlKind::Response, Bytes::new()).unwrap();
    assert_eq!(frame.with_offer(Some(answer)).encode(), golden("response"));
    assert!(answer.answers(offer) && !offer.answers(answer));
    let hello = some_hello();
    assert_eq!(
        hello.encode(ByteOrder::Native, 0, |_| None),
        golden("hello")
    );
}

fn some_hello() -> Hello {
    Hello {
        incarnation: 0x0102_0304_0506_0708,
        messages: MessageCredit {
            budget_bytes: 1 << 20,
            overhead_bytes: 128,
            posted: 2,
        },
        refusals_max: 7,
        probes_after_ms: None,
        announce_min: None,
        local: None,
    }
}

/// docs/extension.md, section 2: the values that a HELLO may have beyond those that it must have.
#[cfg(target_endian = "little")]
#[test]
fn the_golden_hello_of_who_shares_receives_is_what_we_send() {
    let hello = Hello {
        probes_after_ms: Some(750),
        announce_min: Some(65_536),
        local: None,
        ..some_hello()
    };
    let bytes = hello.encode(ByteOrder::Native, 0, |_| None);
    assert_eq!(bytes, golden("hello shared"));
    let consumed = bytes.len();
    let read = read_hello(&bytes, ByteOrder::Native, 3);
    assert!(matches!(read, Ok(HelloDecoded::Hello { hello: read, .. }) if read == hello));
    assert_eq!(consumed, 16 + 64);
    let twice = [&bytes[16..], &bytes[16 + 52..]].concat();
    assert_eq!(
        read_hello(&hello_of(&twice), ByteOrder::Native, 1000),
        Err(WireError::HelloValue(5))
    );
}

/// docs/extension.md, section 12: the offer of shared memory.
#[cfg(target_endian = "little")]
#[test]
fn the_golden_hello_of_who_offers_shared_memory_is_what_we_send() {
    let hello = Hello {
        local: Some(Box::new(std::array::from_fn(|at| at as u8))),
        ..some_hello()
    };
    let bytes = hello.encode(ByteOrder::Native, 0, |_| None);
    assert_eq!(bytes, golden("hello local"));
    let read = read_hello(&bytes, ByteOrder::Native, 3);
    assert!(matches!(read, Ok(HelloDecoded::Hello { hello: read, .. }) if read == hello));
}

/// Feeds a HELLO in pieces of `step` bytes.
fn read_hello(bytes: &[u8], order: ByteOrder, step: usize) -> Result<HelloDecoded, WireError> {
    let mut decoder = HelloDecoder::new(order);
    let mut read = Ok(HelloDecoded::Need);
    for piece in bytes.chunks(step) {
        read = decoder.feed(piece);
        if read != Ok(HelloDecoded::Need) {
            break;
        }
    }
    read
}

/// A frame with these values.
fn hello_of(values: &[u8]) -> Vec<u8> {
    let header = FrameHeader::Hello {
        len: values.len() as u64,
    };
    let mut frame = header.encode(ByteOrder::Native, 0).to_vec();
    frame.extend(values);
    frame
}

#[test]
fn a_hello_is_read_in_pieces_of_any_size() {
    for order in ORDERS {
        let hello = some_hello();
        let mut bytes = hello.encode(order, 0, |_| None);
        let len = bytes.len();
        bytes.extend([9; 5]);
        for step in 1..=bytes.len() {
            let Ok(HelloDecoded::Hello { hello: read, .. }) = read_hello(&bytes, order, step)
            else {
                panic!("not read in pieces of {step}");
            };
            assert_eq!(read, hello);
        }
        let whole = HelloDecoded::Hello {
            hello,
            consumed: len,
        };
        assert_eq!(HelloDecoder::new(order).feed(&bytes), Ok(whole));
    }
}

/// docs/extension.md: "An unknown type is skipped, unless its highest bit [...] is set".
#[test]
fn what_an_unknown_value_means() {
    let incarnation = [0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1];
    let read = |values: &[&[u8]]| read_hello(&hello_of(&values.concat()), ByteOrder::Native, 7);
    assert!(matches!(
        read(&[&[0x12, 0x34, 0, 2, 7, 7], &incarnation]),
        Ok(HelloDecoded::Hello { .. })
    ));
    let critical = read(&[&incarnation, &[0x92, 0x34, 0, 0]]);
    assert_eq!(critical, Err(WireError::HelloCritical(0x9234)));
    assert_eq!(read(&[]), Err(WireError::HelloValue(1)));
    assert_eq!(
        read(&[&incarnation, &incarnation]),
        Err(WireError::HelloValue(1))
    );
    assert_eq!(read(&[&incarnation, &[0, 9]]), Err(WireError::HelloCut));
    assert_eq!(
        read(&[&incarnation, &[0, 9, 0, 1]]),
        Err(WireError::HelloCut)
    );
    let zero = [0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(read(&[&zero]), Err(WireError::HelloValue(1)));
}

/// A length is checked before anything is kept for it.
#[test]
fn a_hello_has_a_bound() {
    for len in [4081, 1 << 40, u64::MAX - 120] {
        let header = FrameHeader::Hello { len }.encode(ByteOrder::Native, 0);
        let read = HelloDecoder::new(ByteOrder::Native).feed(&header);
        assert!(matches!(read, Err(WireError::FrameSize { .. })), "{len}");
    }
    let missing = HelloDecoder::new(ByteOrder::Native).feed(&frame(MESSAGE, ByteOrder::Native));
    assert_eq!(missing, Err(WireError::HelloMissing(Op::Msg)));
}

proptest! {
    #[test]
    fn offers_survive_the_wire_and_other_bytes_are_none(bytes: [u8; 8], bits: u16) {
        let offer = ExtensionOffer::new(Capabilities::from_bits_truncate(bits));
        prop_assert_eq!(ExtensionOffer::from_bytes(offer.to_bytes()), Some(offer));
        prop_assert_eq!(ExtensionOffer::from_bytes(bytes).is_some(), &bytes[..4] == b"tofa" && bytes[4] > 0);
    }

    #[test]
    fn random_values_are_survived(values in vec(any::<u8>(), 0..200), step in 1..50_usize) {
        let _ = read_hello(&hello_of(&values), ByteOrder::Native, step);
    }
}
