//! The proof of an authorization key (docs/extension.md, section 9), by code that shares none with
//! the library.

use super::raw::Raw;

const SECRET: &str = "tokio-fabric 2026-11-21 authorization key, version 1";
const PROOF: u8 = 0x81;
const INTRODUCTION_SIZE: usize = 36;

/// A side that proves a key.
#[derive(Clone, Copy)]
pub struct Prover<'a> {
    pub key: &'a [u8],
    /// What it offers, and what both agree on: bits of the extension's capabilities.
    pub offers: u16,
    pub agreed: u16,
    /// What TLS exports for this. Nothing without TLS.
    pub binding: &'a [u8],
}

/// Both sides have introduced themselves.
pub struct Proving {
    session: [u8; 32],
    is_initiator: bool,
}

fn frame(step: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut proof = Raw::new(PROOF);
    proof.op_data = step;
    proof.payload = payload;
    proof.bytes()
}

impl Prover<'_> {
    /// Version 1, what it can do, and bytes that the other side's introduction has not.
    fn introduction(&self) -> Vec<u8> {
        let [high, low] = self.offers.to_be_bytes();
        [&[1, 0, high, low][..], &[7; 32]].concat()
    }

    /// The first word of who was asked for a connection.
    pub fn challenge(&self) -> Vec<u8> {
        frame(1, self.introduction())
    }

    fn proving(&self, acceptor: &[u8], initiator: &[u8], is_initiator: bool) -> Proving {
        let secret = blake3::derive_key(SECRET, self.key);
        let [high, low] = self.agreed.to_be_bytes();
        let agreed = [&b"tofa\x01\0"[..], &[high, low]].concat();
        let said = [&agreed[..], acceptor, initiator, self.binding].concat();
        Proving {
            session: *blake3::keyed_hash(&secret, &said).as_bytes(),
            is_initiator,
        }
    }

    /// Of the answer to the challenge, which has to prove the key.
    pub fn challenged(&self, answer: &[u8]) -> Proving {
        let (initiator, proof) = answer.split_at(INTRODUCTION_SIZE);
        let proving = self.proving(&self.introduction(), initiator, false);
        assert_eq!(proof, proving.keyed(1, &[]), "the other side's proof");
        proving
    }

    /// Of the challenge; with the frame that answers it.
    pub fn answer(&self, challenge: &[u8]) -> (Proving, Vec<u8>) {
        let proving = self.proving(challenge, &self.introduction(), true);
        let payload = [self.introduction(), proving.keyed(1, &[]).to_vec()].concat();
        (proving, frame(2, payload))
    }
}

impl Proving {
    /// The frame with the proof of who has challenged.
    pub fn confirm(&self) -> Vec<u8> {
        frame(3, self.keyed(2, &[]).to_vec())
    }

    /// Checks the proof of who has challenged. Gives the private data behind it.
    pub fn check(&self, confirm: &[u8]) -> Vec<u8> {
        let (proof, data) = confirm.split_at(32);
        assert_eq!(proof, self.keyed(2, data), "the other side's proof");
        data.to_vec()
    }

    /// The seal of the HELLO with these values.
    pub fn seal(&self, values: &[u8]) -> [u8; 32] {
        self.keyed(if self.is_initiator { 3 } else { 4 }, values)
    }

    fn keyed(&self, what: u8, of: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.session, &[&[what], of].concat()).as_bytes()
    }
}
