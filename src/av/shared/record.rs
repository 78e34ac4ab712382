//! The bytes of a shared vector's file: a header of 64 bytes, then one record of 64 bytes for each
//! index. Numbers are little-endian; all bytes not named here are 0.
//!
//! ```text
//! header  0 magic "tofabav1"   8 vector (4)   12 type   13 changing   16 map_addr (8)
//!        24 changes (8)       56 checksum (8)
//! record  0 state   1 family (4, 6)   2 port (2)   4 generation (4)   8 zone (4)   12 flow (4)
//!        16 address (16)      32 vector (4)   36 index (4)   56 checksum (8)
//! ```
//!
//! A record of zeros was never written, and is free.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::is_invalid_peer;
use crate::av::table::{AddressSlot, Entry, SlotState};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{FabricAddr, canonical};
use crate::info::AvType;

pub(super) const RECORD_SIZE: usize = 64;
const CHECKED: usize = RECORD_SIZE - 8;
const MAGIC: [u8; 8] = *b"tofabav1";

const FREE: u8 = 1;
const RESERVED: u8 = 2;
const USED: u8 = 3;

/// Returns the offset of the record of this index.
pub(super) fn offset(index: u32) -> u64 {
    (u64::from(index) + 1) * RECORD_SIZE as u64
}

fn seal(mut bytes: [u8; RECORD_SIZE]) -> [u8; RECORD_SIZE] {
    let sum = checksum(&bytes[..CHECKED]);
    bytes[CHECKED..].copy_from_slice(&sum);
    bytes
}

fn is_sealed(bytes: &[u8; RECORD_SIZE]) -> bool {
    checksum(&bytes[..CHECKED]) == bytes[CHECKED..]
}

fn checksum(bytes: &[u8]) -> [u8; 8] {
    let hash = blake3::hash(bytes);
    let mut sum = [0; 8];
    sum.copy_from_slice(&hash.as_bytes()[..8]);
    sum
}

fn number<const N: usize>(bytes: &[u8; RECORD_SIZE], at: usize) -> [u8; N] {
    let mut number = [0; N];
    number.copy_from_slice(&bytes[at..at + N]);
    number
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) vector: u32,
    pub(super) av_type: AvType,
    pub(super) map_addr: u64,
    /// Increases with each change.
    pub(super) changes: u64,
    /// Whether records are being written, or were when their writer died.
    pub(super) changing: bool,
}

impl Header {
    /// Creates the header of a new vector, with a random id.
    pub(super) fn new(av_type: AvType, map_addr: u64) -> Result<Self> {
        let random = getrandom::u64().map_err(|error| {
            let message = format!("random bits for a shared address vector: {error}");
            Error::new(ErrorKind::System, message)
        })?;
        Ok(Header {
            vector: FabricAddr::shared_vector(random as u32),
            av_type: match av_type {
                AvType::Unspec => AvType::Table,
                asked => asked,
            },
            map_addr: match map_addr {
                0 => random | 1,
                asked => asked,
            },
            changes: 0,
            changing: false,
        })
    }

    pub(super) fn begin_change(&mut self) {
        self.changing = true;
        self.changes = self.changes.wrapping_add(1);
    }

    pub(super) fn end_change(&mut self) {
        self.changing = false;
    }

    pub(super) fn encode(&self) -> [u8; RECORD_SIZE] {
        let mut bytes = [0; RECORD_SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.vector.to_le_bytes());
        bytes[12] = u8::from(self.av_type == AvType::Table);
        bytes[13] = u8::from(self.changing);
        bytes[16..24].copy_from_slice(&self.map_addr.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.changes.to_le_bytes());
        seal(bytes)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes: &[u8; RECORD_SIZE] = bytes.try_into().map_err(|_| "it has no header")?;
        if number(bytes, 0) != MAGIC {
            return Err("it is not of this version");
        }
        let vector = u32::from_le_bytes(number(bytes, 8));
        if !is_sealed(bytes) || vector >= FabricAddr::VECTOR_COUNT {
            return Err("its header is damaged");
        }
        Ok(Header {
            vector,
            av_type: match bytes[12] {
                0 => AvType::Map,
                _ => AvType::Table,
            },
            map_addr: u64::from_le_bytes(number(bytes, 16)),
            changes: u64::from_le_bytes(number(bytes, 24)),
            changing: bytes[13] != 0,
        })
    }
}

pub(super) fn encode(slot: &AddressSlot, vector: u32, index: u32) -> [u8; RECORD_SIZE] {
    let mut bytes = [0; RECORD_SIZE];
    bytes[0] = match slot.state {
        SlotState::Free => FREE,
        SlotState::Reserved => RESERVED,
        SlotState::Used(_) => USED,
    };
    bytes[4..8].copy_from_slice(&slot.generation.to_le_bytes());
    bytes[32..36].copy_from_slice(&vector.to_le_bytes());
    bytes[36..40].copy_from_slice(&index.to_le_bytes());
    if let SlotState::Used(entry) = slot.state {
        bytes[2..4].copy_from_slice(&entry.address.port().to_le_bytes());
        match entry.address {
            SocketAddr::V4(v4) => {
                bytes[1] = 4;
                bytes[16..20].copy_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                bytes[1] = 6;
                bytes[8..12].copy_from_slice(&v6.scope_id().to_le_bytes());
                bytes[12..16].copy_from_slice(&v6.flowinfo().to_le_bytes());
                bytes[16..32].copy_from_slice(&v6.ip().octets());
            }
        }
    }
    seal(bytes)
}

/// Returns the slot of this index; `None` if the bytes were not written for this index by an owner
/// of this vector.
pub(super) fn decode(bytes: &[u8], vector: u32, index: u32) -> Option<AddressSlot> {
    let bytes: &[u8; RECORD_SIZE] = bytes.try_into().ok()?;
    if *bytes == [0; RECORD_SIZE] {
        return Some(AddressSlot::NEW);
    }
    let generation = u32::from_le_bytes(number(bytes, 4));
    let written_for = (
        u32::from_le_bytes(number(bytes, 32)),
        u32::from_le_bytes(number(bytes, 36)),
    );
    if !is_sealed(bytes) || written_for != (vector, index) {
        return None;
    }
    let state = match bytes[0] {
        FREE if generation <= FabricAddr::GENERATION_COUNT => SlotState::Free,
        RESERVED if generation < FabricAddr::GENERATION_COUNT => SlotState::Reserved,
        USED if generation < FabricAddr::GENERATION_COUNT => SlotState::Used(Entry {
            address: address(bytes)?,
            user_id: None,
            auth_key: None,
        }),
        _ => return None,
    };
    Some(AddressSlot { generation, state })
}

fn address(bytes: &[u8; RECORD_SIZE]) -> Option<SocketAddr> {
    let port = u16::from_le_bytes(number(bytes, 2));
    let address = match bytes[1] {
        4 => SocketAddr::new(IpAddr::V4(Ipv4Addr::from(number::<4>(bytes, 16))), port),
        6 => {
            let ip = Ipv6Addr::from(number::<16>(bytes, 16));
            let flow = u32::from_le_bytes(number(bytes, 12));
            let zone = u32::from_le_bytes(number(bytes, 8));
            SocketAddr::V6(SocketAddrV6::new(ip, port, flow, zone))
        }
        _ => return None,
    };
    (!is_invalid_peer(address)).then_some(canonical(address))
}
