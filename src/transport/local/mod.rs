//! Two processes of one host: their connection's bytes move from the socket to shared memory.
//!
//! A connection begins over TCP. If both ends are on one host, belong to one user and allow it, the
//! two processes also connect over a Unix socket (`rendezvous.rs`), and share a file in memory
//! (`memory.rs`) with a ring of bytes for each direction (`ring.rs`). From then on a *carrier*
//! (`carrier.rs`) moves the bytes of the link. The TCP connection stays open, to report when the
//! peer is gone. If any step fails, the connection stays on TCP.

mod carrier;
mod memory;
mod rendezvous;
mod ring;

pub(crate) use carrier::{Doorbell, LocalCarrier, LocalParts};
pub(crate) use rendezvous::{Expectation, LocalOffer, OnMet, Token, is_of_this_host, meet, offer};

/// The name of an impossible value, and the function that stores it.
#[cfg(test)]
type Lie = (&'static str, fn(&mut LocalParts));

/// Impossible values that a side can store before it has begun to use its ring.
#[cfg(test)]
pub(super) const LIES: [Lie; 4] = [
    ("it has written without having begun", |it| {
        it.writer.claim_written(1);
    }),
    ("it has written more than fits", |it| {
        it.writer.begin(0);
        it.writer.claim_written(u64::MAX);
    }),
    ("it has sent less through the socket than it has", |it| {
        it.writer.begin(1);
    }),
    ("it has read what was not written", |it| {
        it.reader.open();
        it.reader.claim_read(u64::MAX);
    }),
];

#[cfg(test)]
pub(super) fn parts_of_len(ring_len: usize) -> [LocalParts; 2] {
    use carrier::make_bell;
    use memory::SharedFile;
    use ring::map_rings;

    let file = SharedFile::create(ring_len).expect("shared memory");
    let bell = || make_bell().expect("a doorbell");
    let again = |bell: &std::os::fd::OwnedFd| bell.try_clone().expect("a descriptor");
    let bells = [bell(), bell()];
    [0, 1].map(|side| {
        let (writer, reader) = map_rings(&file, side).expect("rings");
        LocalParts {
            writer,
            reader,
            own_bell: again(&bells[side]),
            peer_bell: again(&bells[1 - side]),
        }
    })
}
