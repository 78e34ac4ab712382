//! The victim's part in the proof of an authorization key (docs/extension.md, section 9), which
//! shares no code with the library.

use crate::common::raw::Raw;

/// The survivor's address vector has it, for the victim's address.
pub const KEY: &[u8] = b"the key of one that dies";
const SECRET: &str = "tokio-fabric 2026-11-21 authorization key, version 1";

const PROOF: u8 = 0x81;
/// What both agree on: version 1, heartbeats and the proof.
const AGREED: &[u8; 8] = b"tofa\x01\0\0\x12";
const INTRODUCTION_SIZE: usize = 36;

/// Both sides have introduced themselves.
pub struct Proving {
    session: [u8; 32],
    is_initiator: bool,
}

/// The victim's introduction: what it can do, and bytes that the survivor's has not.
fn introduction() -> Vec<u8> {
    [&[1, 0, 0, 0x12][..], &[7; 32]].concat()
}

fn frame(step: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut proof = Raw::new(PROOF);
    proof.op_data = step;
    proof.payload = payload;
    proof.bytes()
}

/// The first word of a victim that was asked for a connection.
pub fn challenge() -> Vec<u8> {
    frame(1, introduction())
}

impl Proving {
    fn new(acceptor: &[u8], initiator: &[u8], is_initiator: bool) -> Proving {
        let secret = blake3::derive_key(SECRET, KEY);
        let said = [&AGREED[..], acceptor, initiator].concat();
        Proving {
            session: *blake3::keyed_hash(&secret, &said).as_bytes(),
            is_initiator,
        }
    }

    /// Of the survivor's answer to the challenge, which has to prove the key.
    pub fn challenged(answer: &[u8]) -> Proving {
        let (initiator, proof) = answer.split_at(INTRODUCTION_SIZE);
        let proving = Proving::new(&introduction(), initiator, false);
        assert_eq!(proof, proving.keyed(1, &[]), "the survivor's proof");
        proving
    }

    /// Of the survivor's challenge; with the frame that answers it.
    pub fn answer(challenge: &[u8]) -> (Proving, Vec<u8>) {
        let proving = Proving::new(challenge, &introduction(), true);
        let payload = [introduction(), proving.keyed(1, &[]).to_vec()].concat();
        (proving, frame(2, payload))
    }

    /// The frame with the proof of a victim that has challenged.
    pub fn confirm(&self) -> Vec<u8> {
        frame(3, self.keyed(2, &[]).to_vec())
    }

    /// Checks the survivor's proof.
    pub fn check(&self, confirm: &[u8]) {
        assert_eq!(confirm, self.keyed(2, &[]), "the survivor's proof");
    }

    /// The seal of the victim's HELLO with these values.
    pub fn seal(&self, values: &[u8]) -> [u8; 32] {
        self.keyed(if self.is_initiator { 3 } else { 4 }, values)
    }

    fn keyed(&self, what: u8, of: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.session, &[&[what], of].concat()).as_bytes()
    }
}
