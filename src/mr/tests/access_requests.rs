//! Peers' claims at random, against plain sums.

use super::*;
use crate::random::RandomSource;

/// Claims of a campaign: 10^7 in the deep one.
fn claims() -> usize {
    match std::env::var("TOKIO_FABRIC_DEEP") {
        Ok(deep) if deep != "0" => 10_000_000,
        _ => 100_000,
    }
}

/// The memory that is granted, by plain sums of numbers that do not overflow.
struct Granted {
    key: u64,
    base: u64,
    len: usize,
    access: Access,
    revoked: bool,
    tag: Option<Tag>,
    context: Option<EndpointId>,
    auth_key: Option<AuthSecret>,
}

impl Granted {
    fn judge(&self, request: &AccessRequest, context: AccessContext<'_>) -> Result<usize, Refusal> {
        let proven = self.tag.is_none() || self.tag == request.tag;
        if !proven || self.context.is_some_and(|bound| bound != context.endpoint) {
            return Err(Refusal::UnknownKey);
        }
        if self.auth_key.is_some() && self.auth_key.as_ref() != context.key {
            return Err(Refusal::UnknownKey);
        }
        if self.revoked {
            return Err(Refusal::Revoked);
        }
        if !self.access.contains(request.need) || request.persistent {
            return Err(Refusal::AccessDenied);
        }
        let (first, last) = (u128::from(self.base), u128::from(request.addr));
        let end = last + u128::from(request.len);
        if last < first || end > first + self.len as u128 {
            return Err(Refusal::OutOfBounds);
        }
        Ok((request.addr - self.base) as usize)
    }
}

/// "no byte outside changed or leaked; each refused with the right code": offset, length, key,
/// right, revoked, proof, another session's key, against a table that knows nothing but sums.
#[test]
fn random_claims_are_judged_as_by_plain_sums() {
    let unbound = EndpointId::next();
    let own = EndpointId::next();
    let secrets = [b"one", b"two"].map(|key| AuthSecret::of(key));
    for (number, addressing) in [MrAddressing::Offset, MrAddressing::Virtual]
        .into_iter()
        .enumerate()
    {
        for demanded in [false, true] {
            let keys = KeyPolicy::Application { key_size: 8 };
            let mut table = MrTable::new(
                addressing,
                keys,
                RawKeys::new(demanded, &RandomSource::default()).unwrap(),
                RandomSource::default(),
            );
            let mut granted = Vec::new();
            for number in 0..24_u64 {
                let access = Access::from_bits_truncate((number % 4) << 12 | 1 << 11);
                let traits = RegionTraits {
                    by_endpoint: number % 5 == 0,
                    ..RegionTraits::plain(access.bits())
                };
                let buffers =
                    (0..=number % 3).map(|part| OwnedBuffer::from(vec![0; 40 * part as usize + 7]));
                let memory =
                    RegionMemory::new(buffers.collect::<Vec<_>>(), traits.clone()).unwrap();
                if traits.by_endpoint {
                    let closed: std::sync::Weak<NoCounter> = std::sync::Weak::new();
                    assert!(memory.attached().bind_endpoint(own, closed, None));
                }
                let revoked = number % 7 == 6;
                if revoked {
                    memory.gate().revoke();
                }
                let auth_key = secrets.get(number as usize % 4).cloned();
                let key = table
                    .insert(Some(number * 3 + 1), &memory, auth_key.clone())
                    .unwrap();
                let raw = table.raw_key(key, &memory);
                granted.push(Granted {
                    key,
                    base: addressing.base_of(&memory),
                    len: memory.len(),
                    access,
                    revoked,
                    tag: raw.demanded_tag(),
                    context: traits.by_endpoint.then_some(own),
                    auth_key,
                });
            }
            let mut state = 0x9E37_79B9_97F4_A7C1_u64 ^ number as u64;
            let mut random = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            for _ in 0..claims() / 4 {
                let about = &granted[(random() % 24) as usize];
                let near = |edge: u64, by: u64| edge.wrapping_add(by % 9).wrapping_sub(4);
                let request = AccessRequest {
                    key: if random() % 8 == 0 {
                        random() % 80
                    } else {
                        about.key
                    },
                    tag: match random() % 4 {
                        0 => None,
                        1 => granted[(random() % 24) as usize].tag,
                        _ => about.tag,
                    },
                    addr: match random() % 4 {
                        0 => random(),
                        1 => near(about.base, random()),
                        2 => near(about.base.wrapping_add(about.len as u64), random()),
                        _ => about.base + random() % (about.len as u64 + 1),
                    },
                    len: match random() % 4 {
                        0 => random() >> (random() % 64),
                        1 => near(about.len as u64, random()),
                        _ => random() % (about.len as u64 + 1),
                    },
                    need: match random() % 3 {
                        0 => Access::REMOTE_READ,
                        1 => Access::REMOTE_WRITE,
                        _ => Access::REMOTE,
                    },
                    persistent: random() % 16 == 0,
                };
                let context = if random() % 4 == 0 { unbound } else { own };
                let proven = match random() % 4 {
                    0 => about.auth_key.as_ref(),
                    other => secrets.get(other as usize - 1),
                };
                let context = AccessContext::new(context, proven);
                let named = granted.iter().find(|it| it.key == request.key);
                let expected =
                    named.map_or(Err(Refusal::UnknownKey), |it| it.judge(&request, context));
                let found = table.resolve(&request, context);
                let found = found.map(|found| {
                    assert_eq!(found.len() as u64, request.len);
                    found.offset()
                });
                assert_eq!(found, expected, "{request:?}");
            }
        }
    }
}

/// Stands for the type of a counter that was bound and is gone.
struct NoCounter;

impl crate::sync::Attachable for NoCounter {
    fn is_open(&self) -> bool {
        false
    }

    fn count(&self, _wakes: &mut crate::sync::WakeList) {}
}
