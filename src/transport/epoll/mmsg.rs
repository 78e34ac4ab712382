//! Several datagrams by one system call.
//!
//! Raw iovecs are used for the reason given in [`super::calls`]: payloads may be bytes of regions.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use socket2::{SockAddr, SockAddrStorage};

use super::udp::Moved;
use crate::buf::{Payload, SpanList};
use crate::id::canonical;
use crate::limits::DATAGRAMS_PER_CALL;
use crate::transport::udp::{OutgoingDatagram, ReceivedDatagram, RecvBuffer};

/// The spans of several datagrams in one list, and the end of each datagram's spans.
struct Lists {
    spans: SpanList,
    ends: [usize; DATAGRAMS_PER_CALL],
    count: usize,
}

impl Lists {
    fn new() -> Self {
        Lists {
            spans: SpanList::new(),
            ends: [0; DATAGRAMS_PER_CALL],
            count: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.count == DATAGRAMS_PER_CALL
    }

    /// Adds a datagram of `len` bytes if there is room for all of its spans.
    fn push(&mut self, len: usize, fill: impl FnOnce(&mut SpanList)) -> bool {
        let begin = self.spans.as_iovecs().len();
        if self.is_full() {
            return false;
        }
        fill(&mut self.spans);
        let listed = &self.spans.as_iovecs()[begin..];
        if listed.iter().map(|span| span.iov_len).sum::<usize>() < len {
            return false;
        }
        self.ends[self.count] = self.spans.as_iovecs().len();
        self.count += 1;
        true
    }

    /// Makes the kernel's headers: one for the datagrams up to each of `ends`.
    ///
    /// The headers point into `self`, which must outlive their use.
    fn headers(&self, ends: impl Iterator<Item = usize>) -> [libc::mmsghdr; DATAGRAMS_PER_CALL] {
        // SAFETY: `mmsghdr` is a plain C struct of numbers and pointers, for which all zeros is a
        // value: no address, no control data, no vectors, no flags.
        let mut headers: [libc::mmsghdr; DATAGRAMS_PER_CALL] = unsafe { mem::zeroed() };
        let mut begin = 0;
        for (header, end) in headers.iter_mut().zip(ends) {
            let end = end.checked_sub(1).map_or(0, |last| self.ends[last]);
            let spans = &self.spans.as_iovecs()[begin..end];
            begin = end;
            // The kernel's type has no const form; it never writes to the vector itself.
            header.msg_hdr.msg_iov = spans.as_ptr().cast_mut();
            header.msg_hdr.msg_iovlen = spans.len() as _;
        }
        headers
    }
}

/// A group of datagrams that are sent as one buffer, which the system cuts up (UDP_SEGMENT). The
/// group begins where the previous group ends. `end`: the index after its last datagram; `segment`:
/// the length of each datagram but the last, if there are several.
struct SegmentedSend {
    end: usize,
    segment: Option<u16>,
}

/// Maximum length of one buffer: the maximum length of a datagram.
const SEGMENTED_BYTES_MAX: usize = 0xffff - 48;

/// Groups consecutive datagrams to one peer that have the same length. The last of a group may be
/// shorter.
fn group(datagrams: &[OutgoingDatagram<'_>], segmented: bool) -> Vec<SegmentedSend> {
    let mut groups: Vec<SegmentedSend> = Vec::with_capacity(datagrams.len());
    let mut begin = 0;
    while let Some(first) = datagrams.get(begin) {
        let len = first.payload.len();
        let (mut end, mut bytes) = (begin + 1, len);
        let followers = datagrams[end..].iter().take_while(|_| segmented && len > 0);
        for next in followers {
            let next_len = next.payload.len();
            let fits = (1..=len).contains(&next_len) && bytes + next_len <= SEGMENTED_BYTES_MAX;
            if next.to != first.to || !fits {
                break;
            }
            bytes += next_len;
            end += 1;
            if next_len < len {
                break;
            }
        }
        let segment = u16::try_from(len).ok().filter(|_| end - begin > 1);
        groups.push(SegmentedSend { end, segment });
        begin = end;
    }
    groups
}

/// Returns an address in the form that a socket bound to `local` takes: an IPv6 socket reaches IPv4
/// as `::ffff:a.b.c.d`.
fn for_socket(local: SocketAddr, to: SocketAddr) -> SockAddr {
    match (local, to) {
        (SocketAddr::V6(_), SocketAddr::V4(v4)) => {
            SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())).into()
        }
        _ => to.into(),
    }
}

/// Room for the control message with the segment length.
type Control = [u64; 4];

/// Sets the segment length in the header; `room` becomes the header's control data.
fn set_segment(header: &mut libc::msghdr, segment: u16, room: &mut Control) {
    const DATA: libc::c_uint = mem::size_of::<u16>() as libc::c_uint;
    header.msg_control = room.as_mut_ptr().cast();
    // SAFETY: arithmetic on a constant.
    let space = unsafe { libc::CMSG_SPACE(DATA) };
    debug_assert!(space as usize <= mem::size_of::<Control>());
    header.msg_controllen = space as _;
    // SAFETY: the control data is `room`, borrowed here, aligned as words are, and large enough for
    // one header with this data (asserted above), so the first header and its data lie within.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(header);
        (*message).cmsg_level = libc::SOL_UDP;
        (*message).cmsg_type = libc::UDP_SEGMENT;
        (*message).cmsg_len = libc::CMSG_LEN(DATA) as _;
        libc::CMSG_DATA(message)
            .cast::<u16>()
            .write_unaligned(segment);
    }
}

/// Sends as many of these datagrams as possible, in order, by the socket at `local`. Returns their
/// number, at least one, or the error of the first datagram. `segmented`: sends datagrams as one
/// buffer where possible, at a fraction of the system's cost.
pub(in crate::transport) fn send(
    fd: &OwnedFd,
    local: SocketAddr,
    datagrams: &[OutgoingDatagram<'_>],
    segmented: bool,
) -> io::Result<usize> {
    let mut lists = Lists::new();
    for datagram in datagrams {
        let len = datagram.payload.len();
        let fill = |spans: &mut SpanList| datagram.payload.spans(0, len, spans);
        if !lists.push(len, fill) {
            break;
        }
    }
    let Some(first) = datagrams.first() else {
        return Ok(0);
    };
    if lists.count == 0 {
        return send_copied(fd, local, first);
    }
    let groups = group(&datagrams[..lists.count], segmented);
    let mut headers = lists.headers(groups.iter().map(|group| group.end));
    let to = |group: &SegmentedSend| for_socket(local, datagrams[group.end - 1].to);
    let names: Vec<SockAddr> = groups.iter().map(to).collect();
    let mut controls = [[0; 4]; DATAGRAMS_PER_CALL];
    for (index, group) in groups.iter().enumerate() {
        let header = &mut headers[index].msg_hdr;
        header.msg_name = names[index].as_ptr().cast_mut().cast();
        header.msg_namelen = names[index].len();
        if let Some(segment) = group.segment {
            set_segment(header, segment, &mut controls[index]);
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY:
    // - The first headers, one per group, are filled, and name addresses in `names`, control data
    //   in `controls` and iovecs in `lists`; all outlive this non-blocking call, after which the
    //   kernel holds copies and no pointer. It writes to the headers' `msg_len` only.
    // - The iovecs were made from payloads that are borrowed here, so the memory stays allocated
    //   (memory-model rule 1). The payloads are of operations of this process, which are inside
    //   their regions' gates from post to end (rule 4).
    // - The kernel only reads them, and no Rust code forms a reference to region bytes (rule 2).
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            groups.len() as libc::c_uint,
            flags as _,
        )
    };
    let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
    Ok(sent.checked_sub(1).map_or(0, |last| groups[last].end))
}

/// Sends one datagram that has more pieces than a list holds, as one copy.
fn send_copied(
    fd: &OwnedFd,
    local: SocketAddr,
    datagram: &OutgoingDatagram<'_>,
) -> io::Result<usize> {
    let mut bytes = vec![0; datagram.payload.len()];
    let fault = |_| io::Error::from_raw_os_error(libc::EFAULT);
    datagram.payload.copy_out(0, &mut bytes).map_err(fault)?;
    let copied = Payload::from_vec(bytes);
    let datagram = OutgoingDatagram {
        to: datagram.to,
        payload: &copied,
    };
    send(fd, local, &[datagram], false)
}

/// Receives into these buffers, in order. Returns an error only if no datagram was received.
pub(in crate::transport) fn receive(
    fd: &OwnedFd,
    buffers: &mut [RecvBuffer],
    arrived: &mut Vec<ReceivedDatagram>,
) -> io::Result<Moved> {
    let mut lists = Lists::new();
    for buffer in buffers.iter_mut() {
        let pushed = match buffer {
            RecvBuffer::Direct(payload) => {
                let len = payload.len();
                lists.push(len, |spans| payload.spans(0, len, spans))
            }
            RecvBuffer::Stage(stage) => {
                let room = stage.spare();
                lists.push(room.len(), |spans| {
                    spans.push_room(room);
                })
            }
        };
        if !pushed {
            break;
        }
    }
    let mut names: [SockAddrStorage; DATAGRAMS_PER_CALL] =
        std::array::from_fn(|_| SockAddrStorage::zeroed());
    let names_at = names.as_mut_ptr();
    let size = mem::size_of::<SockAddrStorage>() as libc::socklen_t;
    let mut headers = lists.headers(1..=lists.count);
    for (index, header) in headers.iter_mut().enumerate() {
        header.msg_hdr.msg_name = names_at.wrapping_add(index).cast();
        header.msg_hdr.msg_namelen = size;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY:
    // - The first `count` headers are filled, and name storage in `names` and iovecs in `lists`;
    //   all outlive this non-blocking call, after which the kernel keeps no pointer.
    // - The iovecs were made from `buffers`, which are borrowed for change, so the memory stays
    //   allocated and has no other user (memory-model rule 1). A direct buffer is writable, as its
    //   type says, and inside its regions' gates (rule 4); the spare room of a stage is its own.
    // - No Rust reference covers those bytes: a buffer is taken apart into raw parts while held
    //   (rule 1), region bytes are never Rust buffers (rule 2), and the slice of the spare room is
    //   not used after it was listed. The writer is the kernel.
    let received = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            lists.count as libc::c_uint,
            flags as _,
            std::ptr::null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for (index, name) in names.into_iter().enumerate().take(received) {
        let header = &headers[index];
        // With MSG_TRUNC this is the datagram's length, even if that exceeds the buffer.
        let len = header.msg_len as usize;
        match &mut buffers[index] {
            RecvBuffer::Stage(stage) => {
                let room = stage.spare().len();
                stage.fill(len.min(room));
            }
            RecvBuffer::Direct(payload) => {
                let written = len.min(payload.len());
                // SAFETY: the header had the payload's spans from its start, and the kernel has
                // written the datagram there, or as much of it as fits.
                unsafe { payload.assume_written(0, written) };
            }
        }
        // SAFETY: the kernel has written an address of that length into the storage, which was
        // zeroed before and is large enough for any.
        let name = unsafe { SockAddr::new(name, header.msg_hdr.msg_namelen) };
        arrived.push(ReceivedDatagram {
            from: name.as_socket().map_or(UNKNOWN_SOURCE, canonical),
            len,
        });
    }
    // A call that ends early has drained the socket, unless the next buffer may be unwritable; then
    // the next call shows which.
    let drained = received < lists.count
        && match &buffers[received] {
            RecvBuffer::Direct(payload) => payload.is_owned(),
            RecvBuffer::Stage(_) => true,
        };
    Ok(Moved {
        count: received,
        drained,
    })
}

/// The source of a datagram whose address is not an Internet address.
const UNKNOWN_SOURCE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Returns how many datagrams were dropped for lack of room in the socket's buffer (`SO_MEMINFO`).
pub(in crate::transport) fn dropped(fd: &OwnedFd) -> u64 {
    const WORDS: usize = libc::SK_MEMINFO_DROPS as usize + 1;
    let mut words = [0u32; WORDS];
    let mut size = mem::size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to `words`, whose type takes any bits, and the
    // number of them to `size`.
    let got = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    if got == 0 {
        u64::from(words[WORDS - 1])
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    /// docs/datagrams.md: waiting datagrams are sent "by one `sendmmsg` for up to 32", and
    /// datagrams of one length to one peer as one buffer; one `recvmmsg` takes as many.
    #[test]
    fn one_call_sends_and_one_receives_as_many_as_there_are() {
        let [near, far] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let to = far.local_addr().unwrap();
        let (near, far) = (OwnedFd::from(near), OwnedFd::from(far));
        for segmented in [false, true] {
            let bytes = |at: usize| vec![at as u8; 100];
            let payloads: Vec<_> = (0..DATAGRAMS_PER_CALL)
                .map(|at| Payload::from_vec(bytes(at)))
                .collect();
            let outgoing: Vec<_> = (payloads.iter())
                .map(|payload| OutgoingDatagram { to, payload })
                .collect();
            let buffers = if segmented { 1 } else { DATAGRAMS_PER_CALL };
            assert_eq!(group(&outgoing, segmented).len(), buffers);
            let sent = send(&near, to, &outgoing, segmented).unwrap();
            assert_eq!(sent, DATAGRAMS_PER_CALL);
            let mut buffers: Vec<_> = (0..DATAGRAMS_PER_CALL)
                .map(|_| RecvBuffer::Direct(Payload::from_vec(vec![0; 100])))
                .collect();
            let mut arrived = Vec::new();
            let moved = receive(&far, &mut buffers, &mut arrived).unwrap();
            assert_eq!(moved.count, DATAGRAMS_PER_CALL);
            for (at, (buffer, arrived)) in buffers.iter().zip(&arrived).enumerate() {
                let RecvBuffer::Direct(payload) = buffer else {
                    panic!()
                };
                let mut got = vec![0; 100];
                payload.copy_out(0, &mut got).unwrap();
                assert_eq!((arrived.len, got), (100, bytes(at)));
            }
        }
    }
}
