//! The peer that dies: a process that speaks the protocol by hand up to one step, says so, and
//! waits for its end.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use tokio_fabric::RemoteRegion;

use super::death::Protocol;
use super::greeting::{hello, prove};
use super::sharing::{Offer, Sharing};
use super::step::Step;
use crate::common::child;
use crate::common::raw::{Raw, control, request};
use crate::common::wire::{Frame, HELLO, Wire};

/// The variable with the process's step, its protocol, and the address to dial, if any.
pub const ORDER: &str = "TOKIO_FABRIC_VICTIM";

/// The frames of the survivor's standard set: two sends, two reads, two writes.
pub const STANDARD_FRAMES: usize = 6;
/// Bytes of the survivor's region.
pub const REGION_LEN: u64 = 8 << 20;
/// Where the regions of C survivors are, which send no private data.
pub const C_KEY: u64 = 0xFEDC_BA98_C0DE_0001;

const MESSAGE: u8 = 0;
const READ: u8 = 2;
const ANSWER: u8 = 3;
const WRITE: u8 = 4;
const ACK: u8 = 2;
const LARGE: usize = 1 << 20;
/// Bytes of a control frame without private data.
const CONTROL: u64 = 32;

/// How many bytes this read request asks for.
fn asked(request: &Frame) -> usize {
    let segments = request.words.chunks(3);
    segments.map(|segment| segment[1] as usize).sum()
}

/// The process. Never ends by itself.
pub fn run() {
    let Ok(order) = std::env::var(ORDER) else {
        return; // This process is no victim.
    };
    child::end_with_the_parent();
    let [step, protocol, dial] = *order.split(' ').collect::<Vec<_>>() else {
        panic!("{order:?} is no order");
    };
    let (step, protocol) = (Step::named(step), Protocol::named(protocol));
    let mut victim = match dial.parse::<SocketAddr>() {
        Ok(address) => Victim::dialing(step, protocol, address),
        Err(_) => Victim::listening(step, protocol),
    };
    victim.come_to(step, protocol);
    child::say(victim.stream.socket().local_addr().expect("a connection"));
    loop {
        std::thread::park();
    }
}

struct Victim {
    stream: Wire,
    region: RemoteRegion,
    /// What it shares, and how many bytes it has sent before.
    sharing: Option<(Sharing, u64)>,
}

impl Victim {
    fn dialing(step: Step, protocol: Protocol, address: SocketAddr) -> Victim {
        let socket = TcpStream::connect(address).expect("the survivor listens");
        let mut stream = Wire::dialled(socket, protocol.tls(step.tls()));
        let asking = |data: &[u8]| offering(protocol, request(data));
        match step {
            _ if step < Step::HalfControl => {}
            Step::HalfControl => stream.put(&asking(b"")[..16]),
            Step::HalfData => stream.put(&asking(&[7; 64])[..64]),
            _ => stream.put(&asking(b"")),
        }
        let data = match step {
            Step::AnswerUnread => Vec::new(),
            _ if step > Step::BeforeVerdict => take_control(&mut stream, 1),
            _ => Vec::new(),
        };
        Victim::greeting(stream, data, step, protocol, true)
    }

    fn listening(step: Step, protocol: Protocol) -> Victim {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        child::say(listener.local_addr().expect("a bound address"));
        let (socket, _) = listener.accept().expect("the survivor dials");
        let mut stream = Wire::accepted(socket, protocol.tls(step.tls()));
        let data = match step {
            Step::AnswerUnread => Vec::new(),
            _ if step < Step::HalfControl => Vec::new(),
            _ => take_control(&mut stream, 0),
        };
        let answer = |data: &[u8]| {
            let frame = control(3, 1, data.len() as u16, 1_u64.to_ne_bytes(), data);
            offering(protocol, frame)
        };
        match step {
            Step::BeforeVerdict => {}
            _ if step < Step::HalfControl => {}
            Step::HalfControl => stream.put(&answer(b"")[..16]),
            Step::HalfData => stream.put(&answer(&[7; 64])[..64]),
            _ => stream.put(&answer(b"")),
        }
        Victim::greeting(stream, data, step, protocol, false)
    }

    /// Proves the key, if there is one, and exchanges HELLO with the survivor, up to the step. The
    /// survivor's region is in its private data; with a key, an acceptor's come with its proof.
    fn greeting(
        mut stream: Wire,
        mut data: Vec<u8>,
        step: Step,
        protocol: Protocol,
        is_initiator: bool,
    ) -> Victim {
        let (mut proving, mut sharing) = (None, None);
        if protocol.is_keyed()
            && let Some((proven, behind)) = prove(&mut stream, is_initiator, step.proof())
        {
            proving = Some(proven);
            if is_initiator {
                data = behind;
            }
        }
        if protocol.is_extended() && step >= Step::HalfHello {
            let ours = step.is_of_sharing().then(Offer::new);
            let asked = ours.as_ref().filter(|_| !is_initiator).map(Offer::listen);
            let values = ours.map_or_else(Vec::new, |ours| ours.to_value());
            let hello = hello(proving.as_ref(), &values);
            match step {
                Step::HalfHello => stream.put(&hello[..20]),
                _ => stream.put(&hello),
            }
            if step > Step::AfterHello {
                let first = stream.take_any_frame();
                assert_eq!(first.op, HELLO, "the survivor's first frame");
                if step.is_of_sharing() {
                    let shared = match asked {
                        None => Sharing::ask(&Offer::of(&first), step),
                        Some(asked) => Sharing::answer(asked, step),
                    };
                    sharing = Some((shared, CONTROL + hello.len() as u64));
                }
            }
        }
        let region = RemoteRegion::from_bytes(&data);
        Victim {
            stream,
            region: region.unwrap_or(RemoteRegion::new(0, REGION_LEN, C_KEY)),
            sharing,
        }
    }

    /// Speaks from the handshake's end to the step.
    fn come_to(&mut self, step: Step, protocol: Protocol) {
        let count = if step.reads_ours() {
            STANDARD_FRAMES
        } else {
            0
        };
        let frames: Vec<Frame> = (0..count).map(|_| self.stream.take_frame()).collect();
        let read = |at| frames.iter().filter(|frame| frame.op == READ).nth(at);
        let message = |len: usize| whole(Raw::new(MESSAGE), len);
        let answer =
            |frame: Option<&Frame>| whole(Raw::new(ANSWER), asked(frame.expect("a read request")));
        let RemoteRegion { addr, len, key, .. } = self.region;
        let bytes = match step {
            Step::HalfHeader => message(64)[..8].to_vec(),
            Step::HalfSegment => Raw::rma(WRITE, &[(addr, len, key)]).bytes()[..28].to_vec(),
            Step::HeaderAlone => message(LARGE)[..16].to_vec(),
            Step::HalfSmallMessage => message(64)[..48].to_vec(),
            Step::HalfLargeMessage => message(LARGE)[..LARGE / 2].to_vec(),
            Step::HalfEarlyMessage => message(2000)[..1000].to_vec(),
            Step::HalfWrite => {
                let write = Raw::rma(WRITE, &[(addr, LARGE as u64, key)]);
                whole(write, LARGE)[..LARGE / 2].to_vec()
            }
            Step::BeforeAck => [answer(read(0)), answer(read(1))].concat(),
            Step::BeforeAnswer => {
                let mut ack = Raw::new(MESSAGE);
                ack.op_data = ACK;
                ack.bytes().repeat(4)
            }
            Step::AnswerHeader => answer(read(0))[..16].to_vec(),
            Step::HalfAnswer => {
                let answer = answer(read(0));
                answer[..answer.len() / 2].to_vec()
            }
            Step::ReadUnread => Raw::rma(READ, &[(addr, len, key); 4]).bytes(),
            // More than the staging buffers of a connection, less than a socket's first window.
            Step::Paused if protocol.is_secure() => message(1000).repeat(180),
            Step::Paused => message(1000).repeat(65),
            _ => Vec::new(),
        };
        self.stream.put(&bytes);
        if let Some((sharing, sent)) = &self.sharing {
            let mut tcp = self.stream.socket().try_clone().expect("a descriptor");
            let half = &message(LARGE)[..LARGE / 2];
            sharing.come_to(step, &mut tcp, *sent, half);
        }
        if step == Step::PausedFull {
            self.fill(&message(1000));
        }
        if step == Step::HalfRecord {
            self.stream.put_half_a_record(&message(64));
        }
        if step.is_its_close() {
            // Some of ours, so that it is under way.
            let mut some = [0; 4096];
            self.stream.read_exact(&mut some).expect("a large message");
            if step != Step::ItsTruncation {
                self.stream.close_notify();
            }
            if step != Step::ItsCloseNotify {
                let socket = self.stream.socket();
                socket.shutdown(Shutdown::Write).expect("a connection");
            }
        }
    }

    /// Writes until nothing is taken any more.
    fn fill(&mut self, frame: &[u8]) {
        let limit = Some(Duration::from_millis(300));
        let socket = self.stream.socket();
        socket.set_write_timeout(limit).expect("an option");
        while self
            .stream
            .write(&frame.repeat(100))
            .is_ok_and(|n| n == 100 * frame.len())
        {}
    }
}

fn whole(mut frame: Raw, payload_len: usize) -> Vec<u8> {
    frame.payload = vec![5; payload_len];
    frame.bytes()
}

/// The control frame, with an offer of the extension's version 1.
fn offering(protocol: Protocol, mut frame: Vec<u8>) -> Vec<u8> {
    if protocol.is_extended() {
        frame[8..15].copy_from_slice(b"tofa\x01\0\0");
        frame[15] = protocol.capabilities();
    }
    frame
}

/// Takes a control frame of this kind. Gives its private data.
fn take_control(stream: &mut Wire, kind: u8) -> Vec<u8> {
    let (of_kind, data) = stream.take_control();
    assert_eq!(of_kind, kind, "a control frame of another kind");
    data
}
