//! No byte outside of what was granted is changed or leaked, whatever a peer asks for: regions
//! between pages that must not be touched, beside bytes that must keep their values.

use crate::common::pages::{PAGE, Pages};
use crate::common::seed::{Random, seed};
use crate::common::{backends, on};
use futures::FutureExt;
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{
    Access, Endpoint, Error, MemoryRegion, RemoteRegion, ep::OnRefusal, error::Refusal,
};

/// Bytes of each region: more than a page, and no multiple of anything.
const LEN: usize = PAGE + 1003;
/// What stands around a region, and must stand there still.
const CANARY: u8 = 0xc5;

/// One region of the target's and what its bytes should be.
struct Field {
    region: MemoryRegion,
    access: Access,
    /// Peers have lost it.
    revoked: bool,
    model: Vec<u8>,
    around: Around,
}

/// Where the bytes around the region are.
enum Around {
    /// The region ends, or begins, where a page begins that must not be touched.
    Guarded { pages: Pages, start: usize },
    /// It is made of three buffers; each lies between others of the same allocation.
    Neighbours(Vec<bytes::BytesMut>),
}

impl Field {
    /// In the middle of four pages, between two that are protected; at their end or their
    /// beginning.
    fn guarded(peer: &Peer, access: Access, at_end: bool) -> Field {
        let pages = Pages::new(6);
        pages.set(PAGE, &[CANARY; 4 * PAGE]);
        let start = if at_end { 5 * PAGE - LEN } else { PAGE };
        let model: Vec<u8> = (0..LEN).map(|at| at as u8).collect();
        pages.set(start, &model);
        pages.protect(0, 1, libc::PROT_NONE);
        pages.protect(5, 1, libc::PROT_NONE);
        let range = peer.domain.register(pages.range(start, LEN)).access(access);
        Field {
            region: range.now().unwrap().erase(),
            access,
            revoked: false,
            model,
            around: Around::Guarded { pages, start },
        }
    }

    /// Of three buffers that the region owns.
    fn vector(peer: &Peer, access: Access) -> Field {
        let model: Vec<u8> = (0..LEN).map(|at| (at * 3) as u8).collect();
        let mut neighbours = Vec::new();
        let mut buffers = Vec::new();
        for part in [0..1, 1..2003, 2003..LEN] {
            let mut before = bytes::BytesMut::new();
            before.extend_from_slice(&[CANARY; 13]);
            before.extend_from_slice(&model[part]);
            before.extend_from_slice(&[CANARY; 17]);
            let mut buffer = before.split_off(13);
            let behind = buffer.split_off(buffer.len() - 17);
            buffers.push(buffer);
            neighbours.extend([before, behind]);
        }
        let registered = peer.domain.register(buffers).access(access);
        Field {
            region: registered.now().unwrap().erase(),
            access,
            revoked: false,
            model,
            around: Around::Neighbours(neighbours),
        }
    }

    /// All is as it should be, inside and outside.
    fn check(&self, after: &Request) {
        let mut bytes = vec![0; LEN];
        match &self.around {
            Around::Guarded { pages, start } => {
                let all = pages.get(PAGE, 4 * PAGE);
                let (before, rest) = all.split_at(start - PAGE);
                let (own, behind) = rest.split_at(LEN);
                bytes.copy_from_slice(own);
                let canary = [CANARY; 4 * PAGE];
                assert!(before == &canary[..before.len()], "{after:?}");
                assert!(behind == &canary[..behind.len()], "{after:?}");
            }
            Around::Neighbours(neighbours) => {
                self.region.read_at(0, &mut bytes).unwrap();
                let mut all = neighbours.iter().flatten();
                assert!(all.all(|byte| *byte == CANARY), "{after:?}");
            }
        }
        assert!(bytes == self.model, "{after:?}");
    }
}

#[derive(Clone, Copy, Debug)]
struct Request {
    field: usize,
    /// Not the region's key.
    other_key: bool,
    write: bool,
    offset: u64,
    len: usize,
}

/// Why a request has to be refused, if it has to.
fn judge(field: &Field, request: &Request) -> Option<Refusal> {
    let end = u128::from(request.offset) + request.len as u128;
    let need = match request.write {
        true => Access::REMOTE_WRITE,
        false => Access::REMOTE_READ,
    };
    if request.other_key {
        Some(Refusal::UnknownKey)
    } else if field.revoked {
        Some(Refusal::Revoked)
    } else if !field.access.contains(need) {
        Some(Refusal::AccessDenied)
    } else if end > LEN as u128 {
        Some(Refusal::OutOfBounds)
    } else {
        None
    }
}

/// Two peers, and a connection between them that is made anew when it has been closed.
struct Bench {
    initiator: Peer,
    target: Peer,
    connection: Option<(Endpoint, Endpoint)>,
    fields: Vec<Field>,
    done: usize,
}

impl Bench {
    async fn new(net: &Net) -> Bench {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        let mut fields = Vec::new();
        for access in [
            Access::REMOTE,
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::LOCAL,
        ] {
            fields.push(Field::guarded(&target, access, true));
            fields.push(Field::guarded(&target, access, false));
            fields.push(Field::vector(&target, access));
        }
        for at_end in [true, false] {
            let mut field = Field::guarded(&target, Access::REMOTE, at_end);
            field.region.revoke().await;
            field.revoked = true;
            fields.push(field);
        }
        Bench {
            initiator,
            target,
            connection: None,
            fields,
            done: 0,
        }
    }

    async fn endpoint(&mut self) -> Endpoint {
        if let Some((x, _)) = &self.connection
            && x.is_connected()
        {
            return x.clone();
        }
        self.connection = None;
        for peer in [&self.initiator, &self.target] {
            while let Some(Some(_)) = peer.events.next().now_or_never() {}
        }
        let [x, y] = [&self.initiator, &self.target].map(|peer| {
            let endpoint = peer.domain.endpoint();
            let lives = OnRefusal::Continue { limit: u32::MAX };
            endpoint.on_refusal(lives).open().unwrap()
        });
        connect_endpoints(&x, &y, &self.target.fabric)
            .await
            .unwrap();
        self.connection.insert((x, y)).0.clone()
    }

    async fn try_one(&mut self, request: Request) {
        let x = self.endpoint().await;
        let field = &mut self.fields[request.field];
        let key = field.region.key() ^ u64::from(request.other_key);
        let remote = RemoteRegion::new(request.offset, request.len as u64, key);
        let expected = judge(field, &request);
        self.done += 1;
        let fresh = self.done as u8;
        let refused = if request.write {
            let written = x
                .write(vec![fresh; request.len], remote)
                .delivery_complete()
                .await;
            if written.is_ok() && expected.is_none() {
                let at = request.offset as usize;
                field.model[at..at + request.len].fill(fresh);
            }
            written.map(drop).map_err(Error::from)
        } else {
            let read = x.read(vec![!CANARY; request.len], remote).await;
            read.map_err(Error::from).map(|(_, bytes)| {
                let at = request.offset as usize;
                let right = expected.is_some() || bytes == field.model[at..at + request.len];
                assert!(right, "{request:?}");
            })
        };
        match (refused, expected) {
            (Ok(()), None) => {}
            (Err(error), Some(_)) if error.refusal() == expected => {}
            (result, expected) => panic!("{request:?}: {result:?} instead of {expected:?}"),
        }
        // Looking at everything takes longer than the request.
        if self.done.is_multiple_of(16) {
            field.check(&request);
        }
        if self.done.is_multiple_of(1024) {
            self.check_all(&request);
        }
    }

    fn check_all(&self, after: &Request) {
        self.fields.iter().for_each(|field| field.check(after));
    }
}

/// fi_mr(3): "Remote memory keys provide limited protection against unwanted access by a remote
/// node." Here the limit is the region: every edge there is, of every region that is at an edge.
/// fi_domain(3): "attempt to access outside of the target memory region will fail, resulting in a
/// transmit error."
#[test]
fn every_edge_of_every_region_is_kept() {
    for backend in backends() {
        on(backend, |net| async move {
            let mut bench = Bench::new(&net).await;
            let len = LEN as u64;
            let offsets = [
                0,
                1,
                8,
                PAGE as u64,
                len - 8,
                len - 1,
                len,
                len + 1,
                1 << 32,
                1 << 63,
                u64::MAX - len,
                u64::MAX - 7,
                u64::MAX,
            ];
            for field in 0..bench.fields.len() {
                for other_key in [false, true] {
                    for write in [false, true] {
                        for offset in offsets {
                            // A wrong key is wrong everywhere: a few places will do.
                            let lens: &[usize] = match other_key {
                                true => &[8],
                                false => &[0, 1, 8, LEN - 1, LEN, LEN + 1],
                            };
                            for &len in lens {
                                let request = Request {
                                    field,
                                    other_key,
                                    write,
                                    offset,
                                    len,
                                };
                                bench.try_one(request).await;
                                if offset < LEN as u64 + 2 {
                                    bench.fields[field].check(&request);
                                }
                            }
                        }
                    }
                }
            }
        });
    }
}

/// Requests of one run.
const PORTION: usize = 10_000;

fn requests() -> usize {
    match std::env::var("TOKIO_FABRIC_DEEP") {
        Ok(deep) if deep != "0" => 1_000_000,
        _ => 20_000,
    }
}

/// The same at random: 20,000 requests in all, half of them such as to be refused.
#[test]
fn random_requests_change_and_leak_nothing_outside() {
    let seed = seed("guarded");
    let backends = backends();
    let each = requests().div_ceil(backends.len());
    for (number, backend) in backends.into_iter().enumerate() {
        // In portions, since each has a time limit.
        for from in (0..each).step_by(PORTION) {
            on(backend, |net| async move {
                let mut random = Random(seed ^ (number * each + from) as u64);
                let mut bench = Bench::new(&net).await;
                let mut last = None;
                for _ in from..each.min(from + PORTION) {
                    let request = request(&mut random, bench.fields.len());
                    bench.try_one(request).await;
                    last = Some(request);
                }
                bench.check_all(&last.expect("there are requests"));
            });
        }
    }
}

fn request(random: &mut Random, fields: usize) -> Request {
    let mut len = match random.below(4) {
        0 => random.below(9),
        1 => random.below(200),
        2 => random.below(LEN + 1),
        _ => LEN - random.below(16),
    };
    let inside = random.below(LEN + 1 - len) as u64;
    let offset = match random.below(8) {
        0 => inside + random.below(LEN) as u64,
        1 => random.next() >> random.below(64),
        2 => u64::MAX - random.below(2 * LEN) as u64,
        _ => inside,
    };
    if random.chance(3) {
        len = LEN + random.below(64);
    }
    Request {
        // Most of them where something is granted.
        field: if random.chance(60) {
            random.below(3)
        } else {
            random.below(fields)
        },
        other_key: random.chance(5),
        write: random.chance(50),
        offset,
        len,
    }
}
