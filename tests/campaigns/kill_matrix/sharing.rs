//! A victim's part in shared memory, by hand (docs/extension.md, section 12). It reads and writes
//! words and rings through the file, and maps nothing.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::{pread, pwrite, write};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType, accept, bind, connect, listen,
    recvmsg, sendmsg, socket,
};

use super::step::Step;
use crate::common::wire::Frame;

/// The incarnation of every victim.
pub const INCARNATION: [u8; 8] = [9; 8];

const PAGE: u64 = 4096;
const RING: u64 = 1 << 20;
/// Offsets of words, within those of a direction.
const WRITTEN: u64 = 0;
const READ: u64 = 256;
const BEGUN: u64 = 512;
const READER: u64 = 520;
/// Where the words of the second direction are.
const OTHER: u64 = 640;

/// What a side offers with its HELLO.
pub struct Offer {
    name: [u8; 16],
    token: [u8; 16],
}

impl Offer {
    /// The victim's own.
    pub fn new() -> Offer {
        let mut name = *b"a victim........";
        name[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        Offer {
            name,
            token: [7; 16],
        }
    }

    /// Value 6 of a HELLO.
    pub fn to_value(&self) -> Vec<u8> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
        let mut host = blake3::Hasher::new_derive_key("tokio-fabric 2026 same host");
        host.update(boot.trim().as_bytes()).update(&INCARNATION);
        let host = host.finalize();
        let host = &host.as_bytes()[..8];
        [&[0, 6, 0, 40], host, &self.name, &self.token].concat()
    }

    /// The survivor's.
    pub fn of(hello: &Frame) -> Offer {
        let mut values = &hello.payload[..];
        while let [_, kind, high, low, rest @ ..] = values {
            let (value, rest) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            if *kind == 6 {
                return Offer {
                    name: value[8..24].try_into().expect("sixteen"),
                    token: value[24..].try_into().expect("sixteen"),
                };
            }
            values = rest;
        }
        panic!("the survivor offers no memory");
    }

    fn address(&self) -> SocketAddrUnix {
        let path = [&b"tokio-fabric-"[..], &self.name].concat();
        SocketAddrUnix::new_abstract_name(&path).expect("a name")
    }

    /// Where an acceptor is asked. Made before HELLO is sent.
    pub fn listen(&self) -> OwnedFd {
        let asked = unix_socket();
        bind(&asked, &self.address()).expect("a name of its own");
        listen(&asked, 8).expect("a socket");
        asked
    }
}

/// What both share; kept until the victim dies.
#[derive(Default)]
pub struct Sharing {
    kept: Vec<OwnedFd>,
    file: Option<OwnedFd>,
    their_bell: Option<OwnedFd>,
    /// Offsets of the words of what it sends, and of what it receives.
    sends: u64,
    receives: u64,
}

impl Sharing {
    /// Asks, as the initiator of the connection does, up to the step.
    pub fn ask(theirs: &Offer, step: Step) -> Sharing {
        loop {
            let asking = unix_socket();
            if connect(&asking, &theirs.address()).is_err() {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("a doorbell");
            send(&asking, &theirs.token, &[bell.as_fd()]);
            let mut sharing = Sharing {
                kept: vec![bell],
                sends: OTHER,
                ..Sharing::default()
            };
            if step == Step::SharingAsked {
                sharing.kept.push(asking);
                return sharing;
            }
            let (answer, descriptors) = receive(&asking);
            if answer == [2] {
                continue;
            }
            let [file, their_bell] = <[OwnedFd; 2]>::try_from(descriptors).expect("two");
            send(&asking, &[1], &[]);
            (sharing.file, sharing.their_bell) = (Some(file), Some(their_bell));
            sharing.kept.push(asking);
            return sharing;
        }
    }

    /// Answers the survivor, as the acceptor of the connection does, up to the step.
    pub fn answer(asked: OwnedFd, step: Step) -> Sharing {
        let asking = accept(&asked).expect("the survivor asks");
        let (token, mut descriptors) = receive(&asking);
        assert_eq!(token, Offer::new().token);
        let mut sharing = Sharing {
            their_bell: descriptors.pop(),
            receives: OTHER,
            ..Sharing::default()
        };
        if step > Step::SharingAsked {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create(c"victim", flags).expect("memory");
            ftruncate(&file, PAGE + 2 * RING).expect("memory");
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            fcntl_add_seals(&file, seals).expect("seals");
            let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("a doorbell");
            send(&asking, &[1], &[file.as_fd(), bell.as_fd()]);
            sharing.kept.push(bell);
            sharing.file = Some(file);
        }
        if step > Step::SharingSent {
            assert_eq!(receive(&asking).0, [1], "it has mapped the file");
        }
        sharing.kept.extend([asked, asking]);
        sharing
    }

    /// Goes on to the step, having sent so many bytes through TCP.
    pub fn come_to(&self, step: Step, tcp: &mut TcpStream, sent: u64, half: &[u8]) {
        if step <= Step::SharingSent {
            return;
        }
        until(|| self.word(self.sends + READER) == 1);
        if matches!(step, Step::SharingOne | Step::SharingBoth) {
            self.send_half(half, sent);
        }
        if step < Step::SharingBoth {
            return;
        }
        self.set(self.receives + READER, 1);
        let all = fstat(self.file()).expect("a file").st_size as u64;
        let ring = (all - PAGE) / 2;
        tcp.set_nonblocking(true).expect("an option");
        let mut some = [0; 1 << 16];
        until(|| {
            match tcp.read(&mut some) {
                Ok(count) => assert_ne!(count, 0, "the survivor has given it up"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            let written = self.word(self.receives + WRITTEN);
            if step == Step::SharingBoth {
                // It takes what comes, twice the ring, and no more.
                self.set(self.receives + READ, written.min(2 * ring));
                self.wake();
                written > 2 * ring
            } else {
                written == ring
            }
        });
        assert_ne!(self.word(self.receives + BEGUN), 0);
    }

    /// Sends half of a message through the ring, and waits until it is taken.
    fn send_half(&self, half: &[u8], sent: u64) {
        assert!(half.len() < RING as usize, "it has room");
        let ring = PAGE + if self.sends == 0 { 0 } else { RING };
        assert_eq!(pwrite(self.file(), half, ring), Ok(half.len()));
        self.set(self.sends + BEGUN, sent + 1);
        self.set(self.sends + WRITTEN, half.len() as u64);
        self.wake();
        until(|| self.word(self.sends + READ) == half.len() as u64);
    }

    fn wake(&self) {
        let bell = self.their_bell.as_ref().expect("it is there");
        write(bell, &1u64.to_ne_bytes()).expect("it rings");
    }

    fn file(&self) -> &OwnedFd {
        self.file.as_ref().expect("it is shared")
    }

    fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        assert_eq!(pread(self.file(), &mut word[..], at), Ok(8));
        u64::from_ne_bytes(word)
    }

    fn set(&self, at: u64, word: u64) {
        assert_eq!(pwrite(self.file(), &word.to_ne_bytes(), at), Ok(8));
    }
}

fn until(mut is_met: impl FnMut() -> bool) {
    while !is_met() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn unix_socket() -> OwnedFd {
    socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket")
}

fn send(to: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let bytes = [IoSlice::new(bytes)];
    sendmsg(to, &bytes, &mut ancillary, SendFlags::NOSIGNAL).expect("the survivor is there");
}

fn receive(from: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        from,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::empty(),
    );
    let count = received.expect("the survivor is there").bytes;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    (bytes[..count].to_vec(), descriptors)
}
