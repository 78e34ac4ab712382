//! Golden bytes captured from libfabric, round trips in both byte orders, and hostile input.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::limits::{CM_DATA_SIZE_MAX, HEADER_SIZE_MAX};

mod captured;
mod control;
mod damage;
mod extension;
mod peer;
mod refused;
mod shown;

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

/// Checks what holds for the decoder's answer to any bytes at all.
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
