//! Scenarios about access that the target must refuse: the connection ends, no byte is written, and
//! the target goes on.

use tokio_fabric::{Access, Caps, Endpoint, Hints, RemoteRegion};

use super::memory::{assert_region, at, open_initiator, open_target, region};
use super::session::{Session, assert_bytes, await_done, pattern};

const LEN: usize = 4096;

/// What the initiator does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mistake {
    Key,
    Bounds,
    Wrap,
    Rights,
    /// None: the target's endpoint was opened without the capability.
    Capability,
    Segment,
}

/// One scenario: the mistake, made by a write or by a read.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    pub mistake: Mistake,
    pub write: bool,
}

impl Refused {
    pub async fn run(self, mut session: Session, initiator: bool) {
        // Only a target that listens can be asked again.
        let again = session.is_listener() != initiator;
        if initiator {
            self.make_mistake(&mut session).await;
            if again {
                initiate_again(session).await;
            }
        } else {
            self.refuse(&mut session).await;
            if again {
                serve_again(session).await;
            }
        }
    }

    fn segments(self, remote: RemoteRegion) -> Vec<RemoteRegion> {
        let RemoteRegion { addr, key, .. } = remote;
        match self.mistake {
            Mistake::Key => vec![RemoteRegion::new(addr, 64, key.wrapping_add(1))],
            Mistake::Bounds => vec![RemoteRegion::new(addr + LEN as u64 - 32, 64, key)],
            Mistake::Wrap => vec![RemoteRegion::new(u64::MAX - 31, 64, key)],
            Mistake::Rights | Mistake::Capability => vec![RemoteRegion::new(addr, 64, key)],
            Mistake::Segment => (0..4)
                .map(|i| RemoteRegion::new(addr + 100 * i, 16, key.wrapping_add((i == 2).into())))
                .collect(),
        }
    }

    async fn make_mistake(self, session: &mut Session) {
        let (endpoint, remote, done) = open_initiator(session, LEN).await;
        let buffer = self.attempt(&endpoint, &self.segments(remote)).await;
        assert_eq!(buffer, [0xAA; 64], "the initiator's buffer");
        session.shutdown_seen().await;
        let error = done.await.unwrap_err().into_error();
        assert!(error.is_connection_lost(), "{error}");
    }

    async fn attempt(self, endpoint: &Endpoint, segments: &[RemoteRegion]) -> Vec<u8> {
        let buffer = vec![0xAA; 64];
        // A plain write may end well before the target has looked at it.
        let failed = match self.write {
            true => endpoint
                .write(buffer, segments)
                .delivery_complete()
                .await
                .unwrap_err(),
            false => endpoint.read(buffer, segments).await.unwrap_err(),
        };
        let (error, buffer) = failed.into_parts();
        assert!(error.is_connection_lost(), "{error}");
        buffer.unwrap()
    }

    async fn refuse(self, session: &mut Session) {
        if self.mistake == Mistake::Capability {
            session.reopen(Hints::new().caps(Caps::MSG | Caps::ATOMIC));
        }
        let mut access = Access::REMOTE;
        if self.mistake == Mistake::Rights {
            access -= if self.write {
                Access::REMOTE_WRITE
            } else {
                Access::REMOTE_READ
            };
        }
        let region = region(session, vec![0xEE; LEN], access).await;
        let done = open_target(session, &region).await;
        session.shutdown_seen().await;
        let error = done.await.unwrap_err().into_error();
        assert!(!error.is_canceled(), "{error}");
        assert_region(&region, &[0xEE; LEN]);
        region.deregister().await.unwrap();
        if self.mistake == Mistake::Capability {
            session.reopen(Hints::new());
        }
    }
}

/// The second connection, which must work.
async fn initiate_again(mut session: Session) {
    let (endpoint, remote, done) = open_initiator(&mut session, LEN).await;
    endpoint
        .write(pattern(64, 0xA1), at(remote, 0, 64))
        .await
        .unwrap();
    let (_, bytes) = endpoint.read(vec![0; 64], at(remote, 0, 64)).await.unwrap();
    assert_bytes("read of the second connection", &bytes, &pattern(64, 0xA1));
    session.initiator_farewell(done).await;
}

async fn serve_again(mut session: Session) {
    let region = region(&session, vec![0xEE; LEN], Access::REMOTE).await;
    let done = open_target(&mut session, &region).await;
    await_done(done).await;
    let mut image = vec![0xEE; LEN];
    image[..64].copy_from_slice(&pattern(64, 0xA1));
    assert_region(&region, &image);
    session.target_farewell().await;
}
