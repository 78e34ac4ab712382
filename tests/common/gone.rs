//! A peer by hand that is gone while this side does not read: what waits for it ends all the same.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{CompletionQueue, Endpoint, ErrorKind, Event, RemoteRegion, ep::Liveness};

use super::device::Device;
use super::peers::open_region;
use super::raw::{Raw, control};
use super::wire::{TlsStep, Wire};

/// How the peer goes.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    /// It ends its stream.
    Fin,
    /// It ends its stream, and then resets the connection.
    FinThenReset,
    Reset,
    /// It ends its stream within a record of TLS.
    HalfRecord,
    /// Its machine answers nothing any more.
    Silence,
    /// The same, within a record of TLS.
    SilenceInRecord,
}

impl Loss {
    fn is_silent(self) -> bool {
        matches!(self, Loss::Silence | Loss::SilenceInRecord)
    }

    /// Whether this is the error of what waited for the peer.
    fn is_told_by(self, kind: ErrorKind) -> bool {
        match self.is_silent() {
            true => kind == ErrorKind::TimedOut,
            false => is_loss(kind),
        }
    }
}

/// What reading waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// A receive, or room for the message.
    Room,
    /// The owner of a device, who copies the message.
    Device,
    /// Room in the completion queue, for the data of a write.
    Queue,
}

impl Pause {
    pub const ALL: [Pause; 3] = [Pause::Room, Pause::Device, Pause::Queue];
}

/// The length of the message that waits, and of the one behind it, which does not come as a whole.
const LENGTHS: [usize; 2] = [70_000, 300_000];

#[derive(Clone, Copy, Debug)]
struct Case {
    pause: Pause,
    extended: bool,
    /// The end is there before reading pauses.
    seen_before: bool,
    /// So many bytes come behind the message that waits.
    behind: usize,
    end: Loss,
}

/// Each case of a pause and these losses.
pub fn cases<'a>(
    net: &'a Net,
    pause: Pause,
    tls: Option<TlsStep>,
    ends: &[Loss],
) -> Vec<impl Future<Output = ()> + use<'a>> {
    let mut all = Vec::new();
    for extended in [false, true] {
        for seen_before in [false, true] {
            for behind in [0, 5, 16, 1016] {
                // Silence can only be waited for.
                for end in ends.iter().filter(|end| !(seen_before && end.is_silent())) {
                    let case = Case {
                        pause,
                        extended,
                        seen_before,
                        behind,
                        end: *end,
                    };
                    all.push(dies(net, case, tls));
                }
            }
        }
    }
    all
}

pub fn is_loss(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PeerClosed | ErrorKind::ConnectionReset)
}

/// Long enough for a busy machine.
async fn soon<T>(case: Case, future: impl IntoFuture<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    let ended = tokio::time::timeout(limit, future).await;
    ended.unwrap_or_else(|_| panic!("{case:?}: nothing comes"))
}

/// The header of a message of this length, and some bytes of it.
fn message(len: usize, sent: usize) -> Vec<u8> {
    let mut frame = vec![3, 0, 0, 0, 0, 0, 16, 0];
    frame.extend((16 + len as u64).to_ne_bytes());
    frame.resize(16 + sent, 7);
    frame
}

/// The HELLO of a peer that has the extension but for credit: identity, probes and CLOSE.
fn hello() -> Vec<u8> {
    let mut values: Vec<u8> = vec![0, 1, 0, 8];
    values.extend(7_u64.to_be_bytes());
    let mut frame = vec![3, 0x80, 0, 0, 0, 0, 16, 0];
    frame.extend((16 + values.len() as u64).to_ne_bytes());
    frame.extend(values);
    frame
}

/// Dials, with the extension or without.
fn dial(to: SocketAddr, extended: bool, tls: Option<TlsStep>) -> Wire {
    let mut stream = Wire::dialled(TcpStream::connect(to).unwrap(), tls);
    let mut request = control(3, 0, 0, 1_u64.to_ne_bytes(), b"");
    if extended {
        request[8..16].copy_from_slice(&[b't', b'o', b'f', b'a', 1, 0, 0, 0b0000_1111]);
    }
    stream.write_all(&request).unwrap();
    let mut answer = [0; 32];
    stream.read_exact(&mut answer).unwrap();
    if extended {
        stream.write_all(&hello()).unwrap();
    }
    stream
}

/// A write whose data come to the completion queue. With the extension each wants an answer.
fn write_with_data(region: RemoteRegion, extended: bool) -> Vec<u8> {
    let mut frame = Raw::rma(4, &[(region.addr, region.len, region.key)]);
    frame.flags = if extended { 5 } else { 1 };
    frame.words.insert(0, 7);
    frame.payload = vec![7; region.len as usize];
    frame.bytes()
}

/// An endpoint without room for messages, and a peer by hand that dialled it.
async fn with_peer(
    us: &Peer,
    queue: Option<&CompletionQueue>,
    extended: bool,
    tls: Option<TlsStep>,
) -> (Endpoint, Wire) {
    let listener = us.fabric.passive_endpoint(&us.events);
    let listener = listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = listener.local_addr();
    let dialled = tokio::task::spawn_blocking(move || dial(to, extended, tls));
    let Some(Event::ConnRequest(request)) = us.events.next().await else {
        panic!("no request");
    };
    let endpoint = us.domain.endpoint().unexpected_bytes(5000);
    let mut endpoint = endpoint.liveness(quick());
    if let Some(queue) = queue {
        endpoint = endpoint.receive_queue(queue);
    }
    let endpoint = endpoint.open().unwrap();
    endpoint.accept(request).await.unwrap();
    (endpoint, dialled.await.unwrap())
}

/// Seconds until a silent peer is dead: its system is asked once a second.
fn quick() -> Liveness {
    let interval = Duration::from_millis(200);
    Liveness::default().interval(interval).rounds(8)
}

/// One peer: reading its first message is paused, and its stream ends behind it.
async fn dies(net: &Net, case: Case, tls: Option<TlsStep>) {
    let us = net.peer().unwrap();
    let device = Device::that_blocks(LENGTHS.iter().sum::<usize>() + 64);
    device.serve(&us.domain);
    let queue = us.domain.completion_queue().size(1).open().unwrap();
    let region = open_region(&us, vec![0; 8]).await;
    let bound = (case.pause == Pause::Queue).then_some(&queue);
    let (ours, mut wire) = with_peer(&us, bound, case.extended, tls).await;
    let read = ours.read(vec![0; 64], RemoteRegion::new(0, 64, 1));
    let read = read.post().unwrap();
    let send = ours.send(vec![1; 64]).delivery_complete().post().unwrap();
    let receives = match case.pause {
        Pause::Room | Pause::Queue => Vec::new(),
        Pause::Device => {
            device.hold();
            let mut receives = Vec::new();
            for len in LENGTHS {
                let region = open_region(&us, device.allocate(len)).await;
                receives.push(ours.recv(region.slice(..).unwrap()).post().unwrap());
            }
            receives
        }
    };
    let before = ours.stats().bytes_received;
    let mut frames = match case.pause {
        Pause::Room | Pause::Device => message(LENGTHS[0], LENGTHS[0]),
        // The first fills the queue.
        Pause::Queue => write_with_data(region.remote(), case.extended).repeat(2),
    };
    let mut second = message(LENGTHS[1], 1000);
    second.truncate(case.behind);
    frames.extend(second);
    wire.put(&frames);
    if case.seen_before {
        finish(&mut wire, case.end);
    }
    let is_paused = || match case.pause {
        // Of what comes first, only the header can be taken.
        Pause::Room => ours.stats().bytes_received >= before + 16,
        // The endpoint is not to be asked: a call of it waits for the copy.
        Pause::Device => device.copies.load(SeqCst) > 0,
        // The second write waits behind the first, which has filled the queue.
        Pause::Queue => !queue.is_empty() && ours.stats().bytes_received >= before + 2 * 56,
    };
    soon(case, async {
        while !is_paused() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    if !case.seen_before {
        if case.end.is_silent() {
            soon(case, settled(&wire)).await;
        }
        finish(&mut wire, case.end);
    }
    // What is silent does not say that it has gone either.
    let _silent = case.end.is_silent().then_some(wire);
    device.release();
    let failed = soon(case, read).await.unwrap_err();
    assert!(case.end.is_told_by(failed.kind()), "{case:?}: {failed}");
    let failed = soon(case, send).await.unwrap_err();
    assert!(case.end.is_told_by(failed.kind()), "{case:?}: {failed}");
    assert!(!ours.is_connected(), "{case:?}");
    for (receive, len) in receives.into_iter().zip(LENGTHS) {
        match soon(case, receive).await {
            Ok((received, _)) => assert_eq!((received.len, len), (len, LENGTHS[0]), "{case:?}"),
            Err(failed) => assert!(case.end.is_told_by(failed.kind()), "{case:?}: {failed}"),
        }
    }
}

/// Waits until this side's system has all that the peer has sent, so that the peer's has nothing to
/// say of its own.
async fn settled(wire: &Wire) {
    let unconfirmed = || {
        let mut count: libc::c_int = 0;
        // SAFETY: the descriptor is open, and this request writes one `int`.
        let answer =
            unsafe { libc::ioctl(wire.socket().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        count
    };
    while unconfirmed() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn finish(wire: &mut Wire, end: Loss) {
    if matches!(end, Loss::HalfRecord | Loss::SilenceInRecord) {
        wire.put_half_a_record(&[7; 100]);
    }
    let socket = socket2::SockRef::from(wire.socket());
    if end.is_silent() {
        // It takes nothing that comes, and so acknowledges nothing.
        let nothing = socket2::SockFilter::new(6, 0, 0, 0);
        return socket.attach_filter(&[nothing]).unwrap();
    }
    if !matches!(end, Loss::Reset) {
        wire.socket().shutdown(Shutdown::Write).unwrap();
    }
    if matches!(end, Loss::FinThenReset | Loss::Reset) {
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
}
