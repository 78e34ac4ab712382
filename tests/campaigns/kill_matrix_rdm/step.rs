//! The steps at which a connectionless endpoint's peer dies.

use crate::common::wire::TlsStep;
use crate::kill_matrix::death::Protocol;
use crate::kill_matrix::greeting::ProofStep;

/// Where a peer is when it dies. Each is reached by bytes, not by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Our first flight of TLS is there, and not answered.
    Unsealed,
    /// Half of its flight of TLS.
    HalfFlight,
    /// Our request is there, and not answered.
    Connect,
    /// Half of its answer.
    HalfAnswer,
    /// Its answer, without its challenge.
    Unchallenged,
    /// Its challenge, and no answer to our proof.
    Unproven,
    /// Half of its proof.
    HalfProof,
    /// Its proof, and nothing behind it.
    Proven,
    /// Both dial, ours stays: its request is rejected, ours is not answered.
    TieOurs,
    /// Both dial, its stays: its request is accepted, and nothing follows.
    TieTheirs,
    /// Our messages and writes are not acknowledged, our reads not answered.
    BeforeAck,
    /// All is acknowledged, our reads are not answered.
    BeforeAnswer,
    /// Half of the answer to our read.
    HalfRead,
    /// Half of a write into our region.
    HalfWrite,
    /// It reads nothing, in the middle of a large write of ours.
    WriteUnread,
    /// Half of a message for which there is a receive.
    HalfMessage,
    /// Half of a tagged message for which there is a receive.
    HalfTagged,
    /// Half of a tagged message without a receive.
    HalfEarly,
    /// Our announcement is not answered.
    RtsUnanswered,
    /// Its announcement is kept: no receive matches.
    RtsKept,
    /// We have asked for its data, and none come.
    CtsUnanswered,
    /// Half of the data we have asked for.
    HalfData,
    /// It has asked for our data, and reads none.
    DataUnread,
    /// Half of the record of a message.
    HalfRecord,
    /// TLS's close_notify alone, in the middle of a large write of ours.
    CloseNotify,
    /// The end of its stream without close_notify, there too.
    Truncation,
}

/// Who dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    Dials,
    Listens,
    Both,
}

impl Step {
    pub const ALL: [Step; 26] = [
        Step::Unsealed,
        Step::HalfFlight,
        Step::Connect,
        Step::HalfAnswer,
        Step::Unchallenged,
        Step::Unproven,
        Step::HalfProof,
        Step::Proven,
        Step::TieOurs,
        Step::TieTheirs,
        Step::BeforeAck,
        Step::BeforeAnswer,
        Step::HalfRead,
        Step::HalfWrite,
        Step::WriteUnread,
        Step::HalfMessage,
        Step::HalfTagged,
        Step::HalfEarly,
        Step::RtsUnanswered,
        Step::RtsKept,
        Step::CtsUnanswered,
        Step::HalfData,
        Step::DataUnread,
        Step::HalfRecord,
        Step::CloseNotify,
        Step::Truncation,
    ];

    /// For tables.
    pub fn about(self) -> &'static str {
        match self {
            Step::Unsealed => "our first flight of TLS, unanswered",
            Step::HalfFlight => "half of its flight of TLS",
            Step::Connect => "our request, unanswered",
            Step::HalfAnswer => "half of its answer",
            Step::Unchallenged => "its answer, without its challenge",
            Step::Unproven => "its challenge, our proof unanswered",
            Step::HalfProof => "half of its proof",
            Step::Proven => "its proof, nothing follows",
            Step::TieOurs => "both dial, ours stays and is unanswered",
            Step::TieTheirs => "both dial, its is accepted, nothing follows",
            Step::BeforeAck => "before its acks",
            Step::BeforeAnswer => "before its answer to our read",
            Step::HalfRead => "half of its answer to our read",
            Step::HalfWrite => "half of a write into our region",
            Step::WriteUnread => "our large write, unread",
            Step::HalfMessage => "half of a message",
            Step::HalfTagged => "half of a tagged message",
            Step::HalfEarly => "half of a tagged message without a receive",
            Step::RtsUnanswered => "our RTS, no CTS",
            Step::RtsKept => "its RTS, which no receive matches",
            Step::CtsUnanswered => "our CTS, no DATA",
            Step::HalfData => "half of its DATA",
            Step::DataUnread => "its CTS, our DATA unread",
            Step::HalfRecord => "half of the record of a message",
            Step::CloseNotify => "its close_notify, our large write unread",
            Step::Truncation => "its end without close_notify, our large write unread",
        }
    }

    /// The connection is not there.
    pub fn is_before(self) -> bool {
        self < Step::TieTheirs
    }

    /// It is about the proof of an authorization key.
    pub fn is_of_proof(self) -> bool {
        Step::Unchallenged <= self && self <= Step::Proven
    }

    /// It is about TLS.
    pub fn is_of_tls(self) -> bool {
        self < Step::Connect || self > Step::DataUnread
    }

    /// How far the proofs have come.
    pub fn proof(self) -> ProofStep {
        ProofStep::at(self, [Step::Unproven, Step::HalfProof, Step::Proven])
    }

    /// How far TLS has come.
    pub fn tls(self) -> TlsStep {
        match self {
            Step::Unsealed => TlsStep::Nothing,
            Step::HalfFlight => TlsStep::HalfFlight,
            _ => TlsStep::Done,
        }
    }

    /// A large write of ours is under way, and nothing of it is read but the beginning.
    pub fn has_large_write(self) -> bool {
        self == Step::WriteUnread || self.is_its_close()
    }

    /// The victim has ended its direction.
    pub fn is_its_close(self) -> bool {
        matches!(self, Step::CloseNotify | Step::Truncation)
    }

    /// Whether a victim of this role comes to it.
    pub fn is_of(self, victim: Victim) -> bool {
        match self {
            _ if self < Step::Connect => victim == Victim::Listens,
            Step::Connect | Step::HalfAnswer => victim == Victim::Listens,
            _ if self.is_of_proof() => victim == Victim::Listens,
            Step::TieOurs | Step::TieTheirs => victim == Victim::Both,
            _ => victim != Victim::Both,
        }
    }

    /// Whether a receive of ours becomes the dying connection's.
    pub fn has_bound_receive(self) -> bool {
        let tagged = [Step::HalfTagged, Step::CtsUnanswered, Step::HalfData];
        self == Step::HalfMessage || tagged.contains(&self)
    }

    /// Frames of ours that the victim reads before it goes on.
    pub fn reads(self, standard: usize) -> usize {
        match self {
            _ if self <= Step::TieTheirs || self.has_large_write() => 0,
            Step::RtsUnanswered | Step::DataUnread => standard + 1,
            _ => standard,
        }
    }

    fn named(name: &str) -> Option<Step> {
        Step::ALL
            .into_iter()
            .find(|step| format!("{step:?}") == name)
    }
}

impl Victim {
    pub const ALL: [Victim; 3] = [Victim::Dials, Victim::Listens, Victim::Both];
}

/// The values of these names.
pub fn named(step: &str, victim: &str, protocol: &str) -> (Step, Victim, Protocol) {
    let victims = Victim::ALL.into_iter();
    (
        Step::named(step).expect("a step"),
        (victims.into_iter().find(|it| format!("{it:?}") == victim)).expect("a role"),
        Protocol::named(protocol),
    )
}
