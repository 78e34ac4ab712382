//! The end of the handshake, as victims of both matrices speak it by hand: the proofs of a key, and
//! HELLO.

use super::death::Protocol;
use super::sharing::INCARNATION;
use crate::common::proof::{Prover, Proving};
use crate::common::raw::Raw;
use crate::common::wire::{HELLO, Wire};

/// The victim's, and the survivor's.
pub const KEY: &[u8] = b"the key of one that dies";

/// How far a victim comes with the proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProofStep {
    /// It sends nothing, and reads nothing.
    Nothing,
    /// The challenge has come or is sent, and no proof of its own.
    Challenged,
    /// Half of its proof.
    Half,
    /// Its whole proof. It does not read the answer.
    Proven,
    /// Both have proven the key.
    Done,
}

impl ProofStep {
    /// How far they have come at a step of a matrix, of whose steps three are about them.
    pub fn at<Step: PartialOrd>(step: Step, [unproven, half, proven]: [Step; 3]) -> ProofStep {
        if step < unproven {
            ProofStep::Nothing
        } else if step < half {
            ProofStep::Challenged
        } else if step < proven {
            ProofStep::Half
        } else if step == proven {
            ProofStep::Proven
        } else {
            ProofStep::Done
        }
    }
}

/// Proves the key to the survivor, up to the step. If both have proven it, gives what seals HELLO,
/// and the private data that come with the survivor's proof.
pub fn prove(
    stream: &mut Wire,
    is_initiator: bool,
    until: ProofStep,
) -> Option<(Proving, Vec<u8>)> {
    if until == ProofStep::Nothing {
        return None;
    }
    let capabilities = u16::from(Protocol::Keyed.capabilities());
    let prover = Prover {
        key: KEY,
        offers: capabilities,
        agreed: capabilities,
        binding: &stream.binding(),
    };
    let (proving, proof) = if is_initiator {
        let challenge = stream.take_any_frame();
        prover.answer(&challenge.payload)
    } else {
        stream.put(&prover.challenge());
        let answer = stream.take_any_frame();
        let proving = prover.challenged(&answer.payload);
        let proof = proving.confirm();
        (proving, proof)
    };
    match until {
        ProofStep::Challenged => {}
        ProofStep::Half => stream.put(&proof[..proof.len() / 2]),
        _ => stream.put(&proof),
    }
    if until < ProofStep::Done {
        return None;
    }
    let data = match is_initiator {
        true => proving.check(&stream.take_any_frame().payload),
        false => Vec::new(),
    };
    Some((proving, data))
}

/// The victim's HELLO with these values besides, sealed by what was proven.
pub fn hello(proving: Option<&Proving>, values: &[u8]) -> Vec<u8> {
    let mut hello = Raw::new(HELLO);
    // An incarnation: a type, a length, and a number that is not 0.
    hello.payload = [&[0, 1, 0, 8], &INCARNATION[..], values].concat();
    if let Some(proving) = proving {
        let seal = proving.seal(&hello.payload);
        hello.payload.extend([0x80, 0x10, 0, 32]);
        hello.payload.extend(seal);
    }
    hello.bytes()
}
