//! What the campaign's messages and writes carry: bytes that follow from the operation's number, so
//! that the receiver knows the operation and checks the bytes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use crate::common::seed::Random;

/// Longest payload.
pub const LEN_MAX: usize = 160 << 10;
/// Shortest one that names its operation: number and length, eight bytes each.
pub const NAMED_LEN_MIN: usize = 16;

/// Noise to cut payloads from: the same in every process.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random(0x6C65_6467_6572);
    (0..(LEN_MAX + 4096) / 8)
        .flat_map(|_| random.next().to_le_bytes())
        .collect()
});

/// `len` bytes of noise from `offset` on; what the readable part of a region holds.
pub fn noise(offset: usize, len: usize) -> &'static [u8] {
    &NOISE[offset..offset + len]
}

/// The payload of operation `id`.
pub fn payload(id: u64, len: usize) -> Vec<u8> {
    let mut bytes = noise((id as usize * 13) % 4096, len).to_vec();
    if len >= NAMED_LEN_MIN {
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        bytes[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    }
    bytes
}

/// The operation and length that received bytes name; `None` if they are too few to.
pub fn name(bytes: &[u8]) -> Option<(u64, usize)> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some((word(0)?, word(8)? as usize))
}

/// The digest by which payloads are compared.
pub fn digest(bytes: &[u8]) -> blake3::Hash {
    blake3::hash(bytes)
}

/// Memory that counts when it is freed.
struct Counted {
    bytes: Vec<u8>,
    freed: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Cuts `bytes` into `count` buffers; `freed` counts those that were freed.
pub fn counted(bytes: &[u8], count: usize, freed: &Arc<AtomicUsize>) -> Vec<Bytes> {
    cut(bytes.len(), count)
        .map(|(from, to)| {
            let bytes = bytes[from..to].to_vec();
            Bytes::from_owner(Counted {
                bytes,
                freed: Arc::clone(freed),
            })
        })
        .collect()
}

/// `count` ranges that make up `0..len`, one behind the other.
pub fn cut(len: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).map(move |at| (len * at / count, len * (at + 1) / count))
}
