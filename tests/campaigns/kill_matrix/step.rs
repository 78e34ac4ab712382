//! The steps of the protocol at which a peer dies.

use std::fmt;

use super::death::Protocol;
use super::greeting::ProofStep;
use crate::common::wire::TlsStep;

/// Where a peer is when it dies. Each is reached by bytes, not by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The TCP connection is there, and not a byte of the victim's.
    Silent,
    /// Half of its first flight of TLS.
    HalfFlight,
    /// All of its part of TLS's handshake but the end.
    Unfinished,
    /// TLS's handshake is done, and not a byte within.
    Sealed,
    /// Half of its control header.
    HalfControl,
    /// Its control header, and half of the private data that it announces.
    HalfData,
    /// The whole request; the verdict is not given.
    BeforeVerdict,
    /// The control frames are exchanged; its HELLO has not come.
    BeforeHello,
    /// The challenge is there. The victim's proof is not.
    Unproven,
    /// Half of its proof.
    HalfProof,
    /// Its proof; it has read nothing that follows.
    Proven,
    /// Half of its HELLO.
    HalfHello,
    /// Its part of the handshake is done; it has read nothing of ours.
    AnswerUnread,
    /// Its HELLO has come; it has not read ours.
    AfterHello,
    /// Connected, idle; only receives are posted.
    Idle,
    /// Half of the base header of a message.
    HalfHeader,
    /// The base header of a write, and half of its segment.
    HalfSegment,
    /// The header of a large message, and nothing of its payload.
    HeaderAlone,
    /// Half of a message that would be copied from a staging buffer.
    HalfSmallMessage,
    /// Half of a message that goes straight into a posted buffer.
    HalfLargeMessage,
    /// Half of a message without a posted receive.
    HalfEarlyMessage,
    /// Half of the record of a message.
    HalfRecord,
    /// Half of a write into our region.
    HalfWrite,
    /// Our reads are answered, our sends and writes not acknowledged.
    BeforeAck,
    /// Our sends and writes are acknowledged, our reads not answered.
    BeforeAnswer,
    /// The header of the answer to our read, and nothing of its payload.
    AnswerHeader,
    /// Half of the answer to our read.
    HalfAnswer,
    /// It reads nothing, in the middle of a large message of ours.
    SendUnread,
    /// It reads nothing, in the middle of a large write of ours.
    WriteUnread,
    /// It has asked for our memory and does not read the answer.
    ReadUnread,
    /// Its messages wait in the socket, since no receives are posted here.
    Paused,
    /// The same, and they fill the socket, so that the end of its stream does not come through.
    PausedFull,
    /// Shared memory is asked for, and not answered.
    SharingAsked,
    /// Its descriptors are sent; it does not read whether they were mapped.
    SharingSent,
    /// Both have mapped the memory. The victim does not open the ring that it reads.
    SharingMapped,
    /// Half of a large message is in the ring, and taken out of it. Ours go through TCP.
    SharingOne,
    /// The same, and ours go through the other ring; it has read some of a large message.
    SharingBoth,
    /// The ring is full of a large message of ours, of which it reads nothing.
    SharingFull,
    /// We close, and it does not read what is left to be sent.
    OurClose,
    /// It has closed its direction, and reads nothing.
    ItsClose,
    /// It has sent TLS's close_notify alone, and reads nothing.
    ItsCloseNotify,
    /// It has closed its direction without close_notify, and reads nothing.
    ItsTruncation,
}

/// Who dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    Dials,
    Listens,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No connection is established.
    Handshake,
    /// It is.
    Connected,
}

impl Step {
    pub const ALL: [Step; 42] = [
        Step::Silent,
        Step::HalfFlight,
        Step::Unfinished,
        Step::Sealed,
        Step::HalfControl,
        Step::HalfData,
        Step::BeforeVerdict,
        Step::BeforeHello,
        Step::Unproven,
        Step::HalfProof,
        Step::Proven,
        Step::HalfHello,
        Step::AnswerUnread,
        Step::AfterHello,
        Step::Idle,
        Step::HalfHeader,
        Step::HalfSegment,
        Step::HeaderAlone,
        Step::HalfSmallMessage,
        Step::HalfLargeMessage,
        Step::HalfEarlyMessage,
        Step::HalfRecord,
        Step::HalfWrite,
        Step::BeforeAck,
        Step::BeforeAnswer,
        Step::AnswerHeader,
        Step::HalfAnswer,
        Step::SendUnread,
        Step::WriteUnread,
        Step::ReadUnread,
        Step::Paused,
        Step::PausedFull,
        Step::SharingAsked,
        Step::SharingSent,
        Step::SharingMapped,
        Step::SharingOne,
        Step::SharingBoth,
        Step::SharingFull,
        Step::OurClose,
        Step::ItsClose,
        Step::ItsCloseNotify,
        Step::ItsTruncation,
    ];

    /// For tables.
    pub fn about(self) -> &'static str {
        match self {
            Step::Silent => "TCP connected, nothing sent",
            Step::HalfFlight => "half of its first flight of TLS",
            Step::Unfinished => "its part of TLS's handshake, but for the end",
            Step::Sealed => "TLS's handshake done, nothing within",
            Step::HalfControl => "half a control header",
            Step::HalfData => "half of the private data",
            Step::BeforeVerdict => "whole request, before the verdict",
            Step::BeforeHello => "before its HELLO",
            Step::Unproven => "challenged, its proof not sent",
            Step::HalfProof => "half of its proof",
            Step::Proven => "its proof, nothing follows",
            Step::HalfHello => "half of its HELLO",
            Step::AfterHello => "its HELLO sent, ours unread",
            Step::AnswerUnread => "handshake done on its side, ours unread",
            Step::Idle => "connected, idle, receives posted",
            Step::HalfHeader => "half a data header",
            Step::HalfSegment => "half of a write's segment",
            Step::HeaderAlone => "header of a message without payload",
            Step::HalfSmallMessage => "half of a small message",
            Step::HalfLargeMessage => "half of a large message",
            Step::HalfEarlyMessage => "half of a message without a receive",
            Step::HalfRecord => "half of the record of a message",
            Step::HalfWrite => "half of a write into our region",
            Step::BeforeAck => "before its acks",
            Step::BeforeAnswer => "before its answer to our read",
            Step::AnswerHeader => "header of its answer to our read",
            Step::HalfAnswer => "half of its answer to our read",
            Step::SendUnread => "our large message, unread",
            Step::WriteUnread => "our large write, unread",
            Step::ReadUnread => "our answer to its read, unread",
            Step::Paused => "its messages, with no receive posted",
            Step::PausedFull => "the same, as many as the socket takes",
            Step::SharingAsked => "shared memory asked for",
            Step::SharingSent => "descriptors of shared memory sent",
            Step::SharingMapped => "shared memory mapped",
            Step::SharingOne => "half of a large message in the ring",
            Step::SharingBoth => "the same, ours in the other ring",
            Step::SharingFull => "our large message in a full ring, unread",
            Step::OurClose => "our close, unread",
            Step::ItsClose => "its close, ours unread",
            Step::ItsCloseNotify => "its close_notify, ours unread",
            Step::ItsTruncation => "its close without close_notify",
        }
    }

    pub fn stage(self) -> Stage {
        if self < Step::AnswerUnread {
            Stage::Handshake
        } else {
            Stage::Connected
        }
    }

    /// Whether receives are posted here.
    pub fn has_receives(self) -> bool {
        !matches!(
            self,
            Step::HalfEarlyMessage | Step::Paused | Step::PausedFull
        )
    }

    /// Whether anything but receives is posted here.
    pub fn has_transmits(self) -> bool {
        self != Step::Idle
    }

    /// Whether more is sent than a socket holds, and the victim reads none of it.
    pub fn fills_the_socket(self) -> bool {
        matches!(
            self,
            Step::SendUnread
                | Step::WriteUnread
                | Step::ReadUnread
                | Step::OurClose
                | Step::ItsClose
                | Step::ItsCloseNotify
                | Step::ItsTruncation
        )
    }

    /// Whether the victim reads our frames before it goes on: those of the standard set.
    pub fn reads_ours(self) -> bool {
        let unread = self.fills_the_socket() && self != Step::ReadUnread;
        let unread = unread || self.is_of_sharing();
        self > Step::AfterHello && self.has_transmits() && !unread
    }

    /// Whether a victim that speaks this comes to it. One with a key comes to the steps from the
    /// control frames to HELLO, and to some later ones.
    pub fn is_of(self, protocol: Protocol) -> bool {
        let behind_the_proof = [Step::BeforeAck, Step::HalfWrite, Step::WriteUnread];
        match self {
            _ if protocol.is_keyed() => {
                let in_handshake = Step::BeforeHello <= self && self <= Step::HalfHello;
                in_handshake || behind_the_proof.contains(&self)
            }
            _ if self.is_of_proof() => false,
            _ if self.is_of_sharing() => protocol == Protocol::Extended,
            Step::BeforeHello | Step::HalfHello | Step::AfterHello => protocol.is_extended(),
            _ if self.is_of_tls() => protocol == Protocol::Secure,
            Step::AnswerUnread => protocol == Protocol::Plain,
            _ => true,
        }
    }

    /// Whether it is about the proof of an authorization key.
    pub fn is_of_proof(self) -> bool {
        Step::Unproven <= self && self <= Step::Proven
    }

    /// Whether it is about shared memory.
    pub fn is_of_sharing(self) -> bool {
        Step::SharingAsked <= self && self <= Step::SharingFull
    }

    /// Whether more is sent than a ring holds.
    pub fn fills_the_ring(self) -> bool {
        matches!(self, Step::SharingBoth | Step::SharingFull)
    }

    /// Whether a victim that has this role comes to it: who accepts sends the descriptors.
    pub fn is_of_role(self, victim: Victim) -> bool {
        self != Step::SharingSent || victim == Victim::Listens
    }

    /// How far the proofs have come.
    pub fn proof(self) -> ProofStep {
        ProofStep::at(self, [Step::Unproven, Step::HalfProof, Step::Proven])
    }

    /// Whether it is about TLS.
    pub fn is_of_tls(self) -> bool {
        let handshake = Step::HalfFlight <= self && self <= Step::Sealed;
        handshake || self == Step::HalfRecord || self > Step::ItsClose
    }

    /// How far TLS has come.
    pub fn tls(self) -> TlsStep {
        match self {
            Step::Silent => TlsStep::Nothing,
            Step::HalfFlight => TlsStep::HalfFlight,
            Step::Unfinished => TlsStep::Unfinished,
            _ => TlsStep::Done,
        }
    }

    /// Whether the victim has ended its direction, in whatever way.
    pub fn is_its_close(self) -> bool {
        self >= Step::ItsClose
    }

    pub fn named(name: &str) -> Step {
        let step = Step::ALL.into_iter().find(|step| step.to_string() == name);
        step.expect("the name of a step")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Victim {
    pub const ALL: [Victim; 2] = [Victim::Dials, Victim::Listens];
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Victim::Dials => "dials",
            Victim::Listens => "listens",
        })
    }
}
