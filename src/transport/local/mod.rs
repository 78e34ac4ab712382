//! Two processes of one host: their connection's bytes move from the socket to shared memory.
//!
//! A connection begins over TCP. If both ends are on one host, of one user, and allow it, they meet
//! once more over a Unix socket (`rendezvous.rs`), and share a file in memory (`memory.rs`) with a
//! ring of bytes for each direction (`ring.rs`). From then on a *carrier* (`carrier.rs`) moves the
//! bytes of the link, under which the TCP connection stays open: it says when the peer has gone.
//! Whatever fails leaves the connection as it is.

mod carrier;
mod memory;
mod rendezvous;
mod ring;

pub(super) use carrier::Doorbell;
pub(crate) use carrier::{LocalCarrier, LocalParts};
pub(crate) use rendezvous::{Expectation, LocalOffer, is_of_this_host, meet, offer};

#[cfg(test)]
pub(super) fn parts_of_len(ring_len: usize) -> [LocalParts; 2] {
    use carrier::make_bell;
    use memory::SharedFile;

    let file = SharedFile::create(ring_len).expect("shared memory");
    let same = file.as_fd().try_clone_to_owned().expect("a descriptor");
    let same = SharedFile::received(same).expect("such a file");
    let bell = || make_bell().expect("a doorbell");
    let again = |bell: &std::os::fd::OwnedFd| bell.try_clone().expect("a descriptor");
    let (first, second) = (bell(), bell());
    [
        LocalParts {
            file,
            side: 0,
            own_bell: again(&first),
            peer_bell: again(&second),
        },
        LocalParts {
            file: same,
            side: 1,
            own_bell: second,
            peer_bell: first,
        },
    ]
}
