//! The bytes that are sent, and their comparison.

/// The pattern with seed `seed` over `len` bytes.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed) as u8).collect()
}

/// Fails, naming the first difference only: buffers are large.
#[track_caller]
pub fn assert_bytes(what: &str, got: &[u8], want: &[u8]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    if let Some(at) = got.iter().zip(want).position(|(got, want)| got != want) {
        panic!(
            "{what}: byte {at} of {} is {:#04x}, not {:#04x}",
            got.len(),
            got[at],
            want[at]
        );
    }
}
