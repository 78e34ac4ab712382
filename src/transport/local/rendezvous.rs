//! The rendezvous: two processes of one host get a shared file, over a Unix socket that is closed
//! afterwards.
//!
//! ```text
//!   the side that connected                       the side that accepted
//!
//!   HELLO: host, name, token  <--- over TCP --->  HELLO: host, name, token
//!   connects to the name, checks the user         checks the user
//!   token, its doorbell  ---------------------->  finds the connection of the token
//!                        <----------------------  the file, its doorbell
//!   maps both
//!   one byte             ---------------------->  maps both
//! ```
//! A *name* identifies a process in the abstract namespace of Unix sockets. That belongs to the
//! network namespace: a process in another one cannot connect to the name. A *token* is random,
//! identifies one connection, and is valid for one rendezvous. Both sides check the other side's
//! user. Nothing is in a file system, and a killed process leaves nothing behind.
//!
//! A thread of this process accepts. It is started for the first connection for which another
//! process of this host may ask for shared memory. Each of its steps has a time limit.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};

use super::carrier::{LocalParts, is_bell, make_bell};
use super::memory::SharedFile;
use super::ring::map_rings;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    LISTEN_BACKLOG, LOCAL_PAUSE, LOCAL_PAUSES_MAX, LOCAL_RING_LEN, LOCAL_STEP_MAX,
};

/// The offer of shared memory that a side sends with the HELLO of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalOffer {
    /// Lets a peer on the same host recognise that host; reveals nothing to other peers.
    pub(crate) host: [u8; 8],
    pub(crate) name: [u8; 16],
    pub(crate) token: Token,
}

impl LocalOffer {
    /// Returns the offer in its wire format.
    pub(crate) fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.host);
        bytes[8..24].copy_from_slice(&self.name);
        bytes[24..].copy_from_slice(&self.token);
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; 40]) -> Self {
        let (mut host, mut name, mut token) = ([0; 8], [0; 16], [0; 16]);
        host.copy_from_slice(&bytes[..8]);
        name.copy_from_slice(&bytes[8..24]);
        token.copy_from_slice(&bytes[24..]);
        LocalOffer { host, name, token }
    }
}

/// Shows no fields, so that the token stays secret.
impl std::fmt::Debug for LocalOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalOffer").finish_non_exhaustive()
    }
}

/// A random number that identifies one connection.
pub(crate) type Token = [u8; 16];

/// Makes an offer of the domain with this incarnation, with a token. `None`: the system has no boot
/// id, or gave no random name.
pub(crate) fn offer(incarnation: u64, token: Token) -> Option<LocalOffer> {
    Some(LocalOffer {
        host: host_tag(incarnation)?,
        name: Acceptor::get()?.name,
        token,
    })
}

/// Returns true if the offer of a domain with this incarnation comes from this host.
pub(crate) fn is_of_this_host(offer: &LocalOffer, incarnation: u64) -> bool {
    host_tag(incarnation) == Some(offer.host)
}

/// A hash of this host's boot id and of the incarnation, which the peer knows.
fn host_tag(incarnation: u64) -> Option<[u8; 8]> {
    static BOOT: OnceLock<Option<String>> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let boot = BOOT.get_or_init(read).as_ref()?;
    let mut hasher = blake3::Hasher::new_derive_key("tokio-fabric 2026 same host");
    hasher.update(boot.trim().as_bytes());
    hasher.update(&incarnation.to_be_bytes());
    let mut tag = [0; 8];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    Some(tag)
}

/// Meets the peer that has made this offer. Blocks for two steps per attempt, and pauses between
/// attempts (at most `LOCAL_PAUSES_MAX`) while the connection `is_wanted`. `None`: the peer did not
/// expect this side, or not yet.
///
/// # Errors
/// The peer is in another network namespace, belongs to another user or turns this side away, or a
/// side lacks memory, descriptors or threads.
pub(crate) fn meet(offer: &LocalOffer, is_wanted: impl Fn() -> bool) -> Result<Option<LocalParts>> {
    for _ in 0..LOCAL_PAUSES_MAX {
        match try_to_meet(offer) {
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            met => return met,
        }
        // The peer may not have noticed yet that the connection is up; that takes moments.
        std::thread::park_timeout(LOCAL_PAUSE);
        if !is_wanted() {
            return Ok(None);
        }
    }
    try_to_meet(offer)
}

fn try_to_meet(offer: &LocalOffer) -> Result<Option<LocalParts>> {
    let socket = unix_socket()?;
    let address = address_of(&offer.name)?;
    let connected = uninterrupted(|| connect(&socket, &address));
    connected.map_err(|error| os_error(error, "meeting the peer"))?;
    set_limits(&socket)?;
    check_user(&socket)?;
    let own_bell = make_bell()?;
    send(&socket, &offer.token, &[own_bell.as_fd()])?;
    let ([answer], descriptors) = receive(&socket)?;
    if answer == LocalAnswer::Unknown as u8 {
        return Ok(None);
    }
    if answer == LocalAnswer::TurnedAway as u8 {
        let what = "as many connections of the peer as may have shared memory have it";
        return Err(Error::new(ErrorKind::LimitReached, what));
    }
    let [file, peer_bell] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|_| violation("it sent other descriptors than two"))?;
    check_bell(&peer_bell)?;
    let (writer, reader) = map_rings(&SharedFile::received(file)?, 1)?;
    send(&socket, &[LocalAnswer::Met as u8], &[])?;
    Ok(Some(LocalParts {
        writer,
        reader,
        own_bell,
        peer_bell,
    }))
}

/// The byte of a message without descriptors, and of the acceptor's answer with them.
#[derive(Clone, Copy)]
#[repr(u8)]
enum LocalAnswer {
    /// The acceptor shares no memory.
    TurnedAway = 0,
    /// The acceptor shares its file; the message has the file and its doorbell.
    Met = 1,
    /// The acceptor does not know the token, or not yet.
    Unknown = 2,
}

/// Called on the accepting thread with the result of the rendezvous.
pub(crate) type OnMet = Box<dyn FnOnce(Result<LocalParts>) + Send>;

/// Called once, on the accepting thread, when a peer presents the token. Returns `None` to refuse
/// the peer.
type WhenAsked = Box<dyn FnOnce() -> Option<OnMet> + Send>;

/// The Unix socket of this process at which other processes ask for shared memory.
struct Acceptor {
    name: [u8; 16],
    expected: Mutex<HashMap<Token, WhenAsked>>,
}

impl Acceptor {
    /// `None`: the system gave no random name.
    fn get() -> Option<&'static Arc<Acceptor>> {
        static ACCEPTOR: OnceLock<Option<Arc<Acceptor>>> = OnceLock::new();
        let make = || {
            let mut name = [0; 16];
            getrandom::fill(&mut name).ok()?;
            let expected = Mutex::default();
            Some(Arc::new(Acceptor { name, expected }))
        };
        ACCEPTOR.get_or_init(make).as_ref()
    }

    fn expected(&self) -> MutexGuard<'_, HashMap<Token, WhenAsked>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the accepting thread if it is not running.
    fn start(self: &Arc<Self>) -> Result<()> {
        static STARTED: Mutex<bool> = Mutex::new(false);
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if *started {
            return Ok(());
        }
        let doing = "listening for peers of this host";
        let socket = unix_socket()?;
        bind(&socket, &address_of(&self.name)?).map_err(|error| os_error(error, doing))?;
        listen(&socket, LISTEN_BACKLOG.into()).map_err(|error| os_error(error, doing))?;
        let acceptor = Arc::clone(self);
        std::thread::Builder::new()
            .name("fabric-local".to_owned())
            .spawn(move || acceptor.accept_all(&socket))
            .map_err(|error| Error::from_io(&error, doing))?;
        *started = true;
        Ok(())
    }

    fn accept_all(&self, socket: &OwnedFd) {
        loop {
            match accept_with(socket, SocketFlags::CLOEXEC) {
                Ok(peer) => {
                    if let Err(error) = self.serve(&peer) {
                        tracing::debug!(%error, "a peer of this host got no shared memory");
                    }
                }
                Err(Errno::INTR) => {}
                // A lack of descriptors, which is temporary.
                Err(_) => std::thread::park_timeout(LOCAL_STEP_MAX),
            }
        }
    }

    /// Serves one peer. Waits for the peer in two steps at most. Allocates nothing for a peer that
    /// is not expected or not admitted.
    fn serve(&self, peer: &OwnedFd) -> Result<()> {
        set_limits(peer)?;
        check_user(peer)?;
        let (token, mut descriptors) = receive::<16>(peer)?;
        let peer_bell = descriptors.pop().filter(|_| descriptors.is_empty());
        let peer_bell = peer_bell.ok_or_else(|| violation("it sent no doorbell"))?;
        check_bell(&peer_bell)?;
        let when_asked = self.expected().remove(&token);
        match when_asked.map(|ask| ask()) {
            None => send(peer, &[LocalAnswer::Unknown as u8], &[]),
            Some(None) => send(peer, &[LocalAnswer::TurnedAway as u8], &[]),
            Some(Some(on_met)) => {
                let met = share_with(peer, peer_bell);
                let failed = met.as_ref().err().cloned();
                on_met(met);
                failed.map_or(Ok(()), Err)
            }
        }
    }
}

fn share_with(peer: &OwnedFd, peer_bell: OwnedFd) -> Result<LocalParts> {
    let file = SharedFile::create(LOCAL_RING_LEN)?;
    let (writer, reader) = map_rings(&file, 0)?;
    let own_bell = make_bell()?;
    send(
        peer,
        &[LocalAnswer::Met as u8],
        &[file.as_fd(), own_bell.as_fd()],
    )?;
    receive::<1>(peer)?;
    Ok(LocalParts {
        writer,
        reader,
        own_bell,
        peer_bell,
    })
}

/// A rendezvous that this side expects; the drop ends the expectation.
#[derive(Debug)]
pub(crate) struct Expectation(Token);

impl Expectation {
    /// Expects the peer with this token, which was offered to it. `when_asked` is called on the
    /// accepting thread.
    ///
    /// # Errors
    /// The system has no thread, socket or random name left.
    pub(crate) fn new(
        token: Token,
        when_asked: impl FnOnce() -> Option<OnMet> + Send + 'static,
    ) -> Result<Self> {
        let none = || Error::new(ErrorKind::System, "the system gave no random name");
        let acceptor = Acceptor::get().ok_or_else(none)?;
        acceptor.start()?;
        acceptor.expected().insert(token, Box::new(when_asked));
        Ok(Expectation(token))
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        if let Some(acceptor) = Acceptor::get() {
            let expecting = acceptor.expected().remove(&self.0);
            drop(expecting); // Without the lock.
        }
    }
}

fn os_error(error: Errno, doing: &'static str) -> Error {
    Error::from_io(&error.into(), doing)
}

fn violation(what: &'static str) -> Error {
    Error::new(ErrorKind::ProtocolViolation, what)
}

fn unix_socket() -> Result<OwnedFd> {
    let made = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    made.map_err(|error| os_error(error, "opening a Unix socket"))
}

fn address_of(name: &[u8; 16]) -> Result<SocketAddrUnix> {
    let mut path = *b"tokio-fabric-................";
    path[13..].copy_from_slice(name);
    SocketAddrUnix::new_abstract_name(&path).map_err(|error| os_error(error, "naming a socket"))
}

fn set_limits(socket: &OwnedFd) -> Result<()> {
    let set = || {
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(LOCAL_STEP_MAX))?;
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(LOCAL_STEP_MAX))
    };
    set().map_err(|error| os_error(error, "preparing a Unix socket"))
}

/// Refuses a peer of another user.
fn check_user(socket: &OwnedFd) -> Result<()> {
    let peer = sockopt::socket_peercred(socket);
    let peer = peer.map_err(|error| os_error(error, "asking for the peer's user"))?;
    match peer.uid == rustix::process::geteuid() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::AccessDenied,
            "the peer is of another user",
        )),
    }
}

fn check_bell(bell: &OwnedFd) -> Result<()> {
    match is_bell(bell) {
        true => Ok(()),
        false => Err(violation("its doorbell is something else")),
    }
}

/// Repeats a call that a signal has interrupted, within the time limit of a step: the system does
/// not restart calls on sockets with time limits.
fn uninterrupted<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let begun = Instant::now();
    loop {
        match call() {
            Err(Errno::INTR) if begun.elapsed() < LOCAL_STEP_MAX => {}
            done => return done,
        }
    }
}

/// Sends a message, with descriptors.
fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = [IoSlice::new(bytes)];
    let sent = uninterrupted(|| sendmsg(socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL));
    sent.map(drop)
        .map_err(|error| os_error(error, "sending to a peer of this host"))
}

/// Receives a message of exactly `N` bytes, and its descriptors.
fn receive<const N: usize>(socket: &OwnedFd) -> Result<([u8; N], Vec<OwnedFd>)> {
    let mut bytes = [0; N];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = uninterrupted(|| {
        let mut into = [IoSliceMut::new(&mut bytes)];
        recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let received = received.map_err(|error| os_error(error, "waiting for a peer of this host"))?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        let what = "it closed the socket by which memory is shared, as one does that gets no memory \
                    or no doorbell";
        return Err(Error::new(ErrorKind::PeerClosed, what));
    }
    let is_cut = (received.flags).intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    if received.bytes != N || is_cut {
        return Err(violation("it sent another message than was to come"));
    }
    Ok((bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn token(seed: u8) -> Token {
        let mut token = [seed; 16];
        getrandom::fill(&mut token[1..]).expect("random bytes");
        token
    }

    /// Expects a peer; returns the offer for it, and where it arrives.
    fn expected(seed: u8) -> (LocalOffer, Expectation, mpsc::Receiver<LocalParts>) {
        let offer = offer(7, token(seed)).expect("an offer");
        let (sender, parts) = mpsc::channel();
        let on_met = move |met: Result<_>| drop(sender.send(met.expect("they meet")));
        let when_asked = || Some(Box::new(on_met) as OnMet);
        let expectation = Expectation::new(offer.token, when_asked).expect("a thread");
        (offer, expectation, parts)
    }

    fn met(offer: &LocalOffer) -> LocalParts {
        let met = meet(offer, || true).expect("it answers");
        met.expect("it is expected")
    }

    fn is_unknown(offer: &LocalOffer) {
        assert!(meet(offer, || true).expect("it answers").is_none());
    }

    #[test]
    fn two_sides_meet_and_share_both_rings() {
        let (offer, _expectation, parts) = expected(1);
        let mut near = met(&offer);
        let mut far = parts.recv().expect("it came");
        for (from, to) in [
            (&mut near.writer, &mut far.reader),
            (&mut far.writer, &mut near.reader),
        ] {
            from.write(b"across");
            assert!(!from.publish(6), "the other side is awake");
            assert_eq!(to.available().unwrap(), 6);
            let mut bytes = [0; 6];
            to.copy(&mut bytes);
            assert_eq!(&bytes, b"across");
        }
    }

    /// One that gets no memory closes the socket, which is not held to be a broken protocol.
    #[test]
    fn a_peer_that_leaves_without_a_word_is_no_liar() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.expect("two sockets");
        drop(theirs);
        let error = receive::<1>(&ours).expect_err("nothing came");
        assert_eq!(error.kind(), ErrorKind::PeerClosed, "{error}");
    }

    /// One that is not admitted learns why, and no memory is made for it.
    #[test]
    fn a_peer_that_is_turned_away_learns_why() {
        let offer = offer(7, token(8)).expect("an offer");
        let _expectation = Expectation::new(offer.token, || None).expect("a thread");
        let error = meet(&offer, || true).expect_err("it is turned away");
        assert_eq!(error.kind(), ErrorKind::LimitReached, "{error}");
    }

    #[test]
    fn a_token_is_good_once_and_for_one_who_is_expected() {
        let (offer, _expectation, parts) = expected(2);
        met(&offer);
        parts.recv().expect("it came");
        is_unknown(&offer);
        let (offer, expectation, _parts) = expected(3);
        drop(expectation);
        is_unknown(&offer);
        let stranger = LocalOffer {
            token: token(4),
            ..offer
        };
        is_unknown(&stranger);
    }

    /// The other side of a connection may be a moment behind.
    #[test]
    fn a_peer_that_comes_too_early_is_served() {
        let (offer, _other, _) = expected(10); // The thread accepts.
        let offer = LocalOffer {
            token: token(11),
            ..offer
        };
        let early = std::thread::spawn(move || met(&offer));
        std::thread::sleep(3 * LOCAL_PAUSE);
        assert!(!early.is_finished(), "it waits");
        let (sender, parts) = mpsc::channel();
        let on_met = move |met: Result<_>| drop(sender.send(met.expect("they meet")));
        let when_asked = || Some(Box::new(on_met) as OnMet);
        let _expectation = Expectation::new(offer.token, when_asked).expect("a thread");
        early.join().expect("they meet");
        parts.recv().expect("it came");
    }

    /// A runtime that ends waits for what blocks on its threads.
    #[test]
    fn no_connection_that_has_ended_is_waited_for() {
        let (offer, _other, _) = expected(12);
        let unknown = LocalOffer {
            token: token(13),
            ..offer
        };
        let asked = std::cell::Cell::new(0);
        let is_wanted = || asked.replace(asked.get() + 1) == 0;
        assert!(meet(&unknown, is_wanted).expect("it answers").is_none());
        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn an_offer_shows_its_host_to_its_host_alone() {
        let ours = offer(7, token(5)).expect("an offer");
        assert!(is_of_this_host(&ours, 7));
        assert!(!is_of_this_host(&ours, 8), "the number is mixed in");
        let other = LocalOffer {
            host: [0; 8],
            ..ours
        };
        assert!(!is_of_this_host(&other, 7));
    }

    /// A peer that sends no valid token and doorbell loses only its own connection.
    #[test]
    fn one_who_sends_nonsense_is_turned_away_and_others_are_served() {
        let (offer, _expectation, parts) = expected(6);
        let dial = || {
            let socket = unix_socket().expect("a socket");
            let address = address_of(&offer.name).expect("an address");
            connect(&socket, &address).expect("it listens");
            set_limits(&socket).expect("limits");
            socket
        };
        let is_turned_away = |socket: &OwnedFd| match receive::<1>(socket) {
            Ok(([answer], descriptors)) => {
                answer == LocalAnswer::Unknown as u8 && descriptors.is_empty()
            }
            Err(_) => true,
        };
        let silent = dial();
        drop(silent);
        let bell = make_bell().expect("a doorbell");
        for (bytes, descriptors) in [
            (&[0; 15][..], vec![bell.as_fd()]),
            (&[0; 17], vec![bell.as_fd()]),
            (&token(9), vec![bell.as_fd()]),
            (&offer.token, vec![]),
            (&offer.token, vec![bell.as_fd(), bell.as_fd()]),
            (&offer.token, vec![std::io::stdin().as_fd()]),
        ] {
            let socket = dial();
            send(&socket, bytes, &descriptors).expect("sent");
            assert!(is_turned_away(&socket), "{bytes:?}");
        }
        met(&offer);
        parts.recv().expect("it came");
    }
}
