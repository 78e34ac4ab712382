//! The peer that dies: a process that speaks the protocol by hand up to one step, says so, and
//! waits for its end.

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::step::{Step, Victim, named};
use crate::common::child;
use crate::common::raw::{Raw, control, request};
use crate::common::wire::{Frame, HELLO, TlsStep, Wire};
use crate::kill_matrix::death::Protocol;
use crate::kill_matrix::greeting::{hello, prove};

/// The variable with the process's step, role and protocol, our address, and our region.
pub const ORDER: &str = "TOKIO_FABRIC_VICTIM";
/// The frames of the survivor's standard set: three messages, two reads, two writes.
pub const STANDARD_FRAMES: usize = 7;
/// The tag that the survivor awaits, and one that it does not.
pub const AWAITED: u64 = 9;
const NOT_AWAITED: u64 = 77;
/// Bytes of what is sent by halves.
pub const LARGE: usize = 1 << 20;

const MESSAGE: u8 = 0;
const TAGGED: u8 = 1;
const READ: u8 = 2;
const ANSWER: u8 = 3;
const WRITE: u8 = 4;
const RTS: u8 = 5;
const CTS: u8 = 6;
const DATA: u8 = 7;
const ACK: u8 = 2;
const ACCEPT: u8 = 1;
const REJECT: u8 = 6;
/// "I understood version 1": tagged messages may be announced.
const UNDERSTOOD: u8 = 0x81;

/// The process. Never ends by itself.
pub fn run() {
    let Ok(order) = std::env::var(ORDER) else {
        return; // This process is no victim.
    };
    child::end_with_the_parent();
    let [step, role, protocol, us, addr, key] = *order.split(' ').collect::<Vec<_>>() else {
        panic!("{order:?} is no order");
    };
    let (step, role, protocol) = named(step, role, protocol);
    let us: SocketAddr = us.parse().expect("our address");
    let [addr, key] = [addr, key].map(|word| word.parse::<u64>().expect("a number"));
    // Of the same host, of which there is one for each cell.
    let listener = TcpListener::bind((us.ip(), 0)).expect("a port");
    let here = listener.local_addr().expect("a bound address");
    let mut streams = match role {
        Victim::Both => {
            child::say(here);
            let (theirs, _) = listener.accept().expect("the survivor dials");
            let mut theirs = Wire::accepted(theirs, protocol.tls(step.tls()));
            theirs.take_control();
            let (stream, kind, _) = dial(us, here, protocol);
            let due = if step == Step::TieOurs {
                REJECT
            } else {
                ACCEPT
            };
            assert_eq!(kind, due, "the survivor's answer");
            vec![stream, theirs]
        }
        Victim::Dials => {
            if protocol.is_keyed() {
                // The survivor has to know our address, and its key, before it knows us.
                child::say(here);
                listener.accept().expect("the survivor has it");
            }
            let (mut stream, kind, _) = dial(us, here, protocol);
            assert_eq!(kind, ACCEPT, "the survivor's answer");
            greet(&mut stream, step, protocol, true);
            child::say(here);
            vec![stream]
        }
        Victim::Listens => {
            child::say(here);
            let (socket, _) = listener.accept().expect("the survivor dials");
            let mut stream = Wire::accepted(socket, protocol.tls(step.tls()));
            if step >= Step::Connect {
                answer(&mut stream, step, protocol, here);
            }
            vec![stream]
        }
    };
    come_to(&mut streams[0], step, addr, key);
    child::say("there");
    loop {
        std::thread::park();
    }
}

/// Takes the survivor's request, and answers it up to the step.
fn answer(stream: &mut Wire, step: Step, protocol: Protocol, here: SocketAddr) {
    let (_, asked) = stream.take_control();
    let mut data = private(protocol, here, UNDERSTOOD);
    data[2..4].copy_from_slice(&asked[2..4]);
    let answer = control(3, ACCEPT, data.len() as u16, 1_u64.to_ne_bytes(), &data);
    match step {
        Step::Connect => {}
        Step::HalfAnswer => stream.put(&answer[..20]),
        _ => {
            stream.put(&answer);
            greet(stream, step, protocol, false);
        }
    }
}

fn dial(us: SocketAddr, here: SocketAddr, protocol: Protocol) -> (Wire, u8, Vec<u8>) {
    // From the host that it listens at, by which the survivor knows it.
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::new(here.ip(), 0)).expect("a port");
    connect(&socket, &us).expect("the survivor listens");
    let mut stream = Wire::dialled(TcpStream::from(socket), protocol.tls(TlsStep::Done));
    stream.put(&request(&private(protocol, here, 1)));
    let (kind, data) = stream.take_control();
    (stream, kind, data)
}

/// Our private data: libfabric's eight bytes, and an offer of the extension.
fn private(protocol: Protocol, here: SocketAddr, version: u8) -> Vec<u8> {
    let mut data = vec![version, 0];
    data.extend(here.port().to_be_bytes());
    data.extend(std::process::id().to_be_bytes());
    if protocol.is_extended() {
        data.extend(b"tofa\0\x04\x01\0\0");
        data.push(protocol.capabilities());
    }
    data
}

/// Proves the key, if there is one, and exchanges HELLO with the survivor, up to the step.
fn greet(stream: &mut Wire, step: Step, protocol: Protocol, is_initiator: bool) {
    let mut proving = None;
    if protocol.is_keyed() {
        proving = prove(stream, is_initiator, step.proof());
        if step.is_of_proof() {
            return;
        }
    }
    if protocol.is_extended() {
        let proving = proving.map(|(proving, _)| proving);
        stream.put(&hello(proving.as_ref(), &[]));
        let first = stream.take_any_frame();
        assert_eq!(first.op, HELLO, "the survivor's first frame");
    }
}

/// Speaks from the handshake's end to the step.
fn come_to(stream: &mut Wire, step: Step, addr: u64, key: u64) {
    let frames: Vec<Frame> = (0..step.reads(STANDARD_FRAMES))
        .map(|_| stream.take_frame())
        .collect();
    let whole = |mut frame: Raw, len: usize| {
        frame.payload = vec![5; len];
        frame.bytes()
    };
    let half = |bytes: Vec<u8>| bytes[..bytes.len() / 2].to_vec();
    let tagged = |tag| {
        let mut frame = Raw::new(TAGGED);
        frame.words = vec![tag];
        frame
    };
    let rts = |tag| {
        let mut frame = Raw::new(RTS);
        (frame.op_data, frame.words) = (1, vec![tag, LARGE as u64]);
        frame.bytes()
    };
    let bytes = match step {
        Step::BeforeAnswer => {
            let mut ack = Raw::new(MESSAGE);
            ack.op_data = ACK;
            ack.bytes().repeat(5)
        }
        Step::HalfRead => {
            let asked = frames
                .iter()
                .find(|frame| frame.op == READ)
                .expect("a read");
            half(whole(Raw::new(ANSWER), asked.words[1] as usize))
        }
        Step::HalfWrite => half(whole(Raw::rma(WRITE, &[(addr, LARGE as u64, key)]), LARGE)),
        Step::HalfMessage => half(whole(Raw::new(MESSAGE), LARGE)),
        Step::HalfTagged => half(whole(tagged(AWAITED), LARGE)),
        Step::HalfEarly => half(whole(tagged(NOT_AWAITED), 2000)),
        Step::RtsKept => rts(NOT_AWAITED),
        Step::CtsUnanswered | Step::HalfData => {
            stream.put(&rts(AWAITED));
            let clear = stream.take_frame();
            assert_eq!((clear.op, clear.index), (CTS, 1), "the answer to our RTS");
            let mut data = Raw::new(DATA);
            data.op_data = 1;
            match step {
                Step::HalfData => half(whole(data, LARGE)),
                _ => Vec::new(),
            }
        }
        Step::RtsUnanswered | Step::DataUnread => {
            let announced = frames.iter().find(|frame| frame.op == RTS).expect("an RTS");
            let mut clear = Raw::new(CTS);
            clear.op_data = announced.index;
            match step {
                Step::DataUnread => clear.bytes(),
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    };
    stream.put(&bytes);
    if step == Step::DataUnread || step.has_large_write() {
        // Some of it, so that it is under way.
        stream.read_exact(&mut [0; 4096]).expect("a large frame");
    }
    match step {
        Step::HalfRecord => stream.put_half_a_record(&whole(Raw::new(MESSAGE), 64)),
        Step::CloseNotify => stream.close_notify(),
        Step::Truncation => {
            let socket = stream.socket();
            socket.shutdown(Shutdown::Write).expect("a connection");
        }
        _ => {}
    }
}
