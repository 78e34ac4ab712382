//! The bytes of the messages, by which a receiver checks that a message is whole and identifies it.

/// Bytes that identify the message and its sender; a pattern that depends on both fills the rest.
pub const HEADER: usize = 16;

/// Fills message `number` of the endpoint of this incarnation.
pub fn write(bytes: &mut [u8], incarnation: u64, number: u64) {
    bytes[..8].copy_from_slice(&incarnation.to_le_bytes());
    bytes[8..HEADER].copy_from_slice(&number.to_le_bytes());
    fill(&mut bytes[HEADER..], seed(incarnation, number));
}

/// Returns the incarnation and the number of a message; `None` if its bytes are not as sent.
pub fn read(bytes: &[u8]) -> Option<(u64, u64)> {
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    let word = |at: usize| Some(u64::from_le_bytes(header[at..at + 8].try_into().ok()?));
    let (incarnation, number) = (word(0)?, word(8)?);
    is_filled(rest, seed(incarnation, number)).then_some((incarnation, number))
}

/// Fills with the pattern of this seed. An endpoint's region holds such a pattern too.
pub fn fill(bytes: &mut [u8], seed: u64) {
    for (piece, word) in bytes.chunks_mut(8).zip(words(seed)) {
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
    }
}

/// True if the bytes hold the pattern of this seed.
pub fn is_filled(bytes: &[u8], seed: u64) -> bool {
    let mut pieces = bytes.chunks(8).zip(words(seed));
    pieces.all(|(piece, word)| *piece == word.to_le_bytes()[..piece.len()])
}

fn seed(incarnation: u64, number: u64) -> u64 {
    incarnation ^ number.rotate_left(32)
}

/// SplitMix64: fast, and different for any two seeds.
fn words(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}
