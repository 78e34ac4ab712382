//! Peers' access to a cached registration, in every order of requests for it, drops of its handles
//! and evictions.

use loom::thread;

use super::*;
use crate::buf::RegionTraits;

use crate::mr::{KeyPolicy, MrAddressing, MrTable, Parent, RawKeys, prepare};
use crate::random::RandomSource;
use crate::sync::model::Model;
use crate::sync::{DomainScope, GateError, Role};

pub(crate) const MODELS: &[Model] = &[
    Model::of("cache: the last of two handles keeps peers out", last),
    Model::of("cache: one that is asked for again lets peers in", again),
    Model::of(
        "cache: an eviction takes no registration that has a handle",
        make_room,
    ),
    Model::of(
        "cache: what is forgotten ends with its last handle",
        forgotten,
    ),
    Model::of(
        "cache: two requests that miss the same range have one registration",
        missed,
    )
    .bounded(3),
];

const KIND: Kind = Kind {
    access: Access::REMOTE_READ,
    writable: true,
    unowned: false,
};

/// The parts of a domain that its regions use.
struct TestDomain(Lock<MrTable>, DomainScope);

impl Parent for TestDomain {
    fn table(&self) -> &Lock<MrTable> {
        &self.0
    }

    fn scope(&self) -> &DomainScope {
        &self.1
    }

    fn nudge(&self) {}
}

/// A cache, and the range that all ask it for.
struct CacheSetup {
    cache: Arc<Shared>,
    domain: Arc<TestDomain>,
    range: Range<usize>,
}

impl CacheSetup {
    fn new() -> Arc<CacheSetup> {
        let raw = RawKeys::new(false, &RandomSource::default()).unwrap();
        let (addressing, keys) = (MrAddressing::Offset, KeyPolicy::Provider);
        let table = MrTable::new(addressing, keys, raw, RandomSource::default());
        Arc::new(CacheSetup {
            cache: Shared::new(Settings::default(), 1),
            domain: Arc::new(TestDomain(Lock::new(table), DomainScope::apart())),
            range: 4096..4100,
        })
    }

    /// Returns a handle of a registration that is there, or of a new one.
    fn ask(&self) -> CachedRegion {
        if let Some(found) = self.cache.find(KIND, &self.range) {
            return found;
        }
        let traits = RegionTraits::plain(KIND.access.bits());
        let memory = prepare(smallvec![vec![0; 4].into()], traits);
        let fresh = FreshRegion::create(PreparedRegion {
            memory: memory.unwrap_or_else(|_| panic!("memory of one buffer")),
            requested_key: None,
            auth_key: None,
            context: None,
            parent: Arc::clone(&self.domain) as _,
        });
        let fresh = fresh.unwrap_or_else(|_| panic!("a key of its own"));
        let (asked, addresses) = (&self.range, self.range.clone());
        self.cache.insert(KIND, asked, addresses, fresh)
    }
}

/// Checks that peers are admitted.
fn gate_of(memory: &crate::buf::RegionMemory) -> Result<(), GateError> {
    memory.gate().is_open(Role::Remote)
}

fn last() {
    let setup = CacheSetup::new();
    let handle = setup.ask();
    let memory = Arc::clone(handle.memory());
    let other = handle.clone();
    let lets_go = thread::spawn(move || drop(other));
    drop(handle);
    lets_go.join().unwrap();
    assert_eq!(gate_of(&memory), Err(GateError::Parked));
}

fn again() {
    let setup = CacheSetup::new();
    let handle = setup.ask();
    let memory = Arc::clone(handle.memory());
    let lets_go = thread::spawn(move || drop(handle));
    let again = setup.ask();
    assert!(Arc::ptr_eq(&memory, again.memory()));
    assert_eq!(gate_of(&memory), Ok(()));
    lets_go.join().unwrap();
    assert_eq!(gate_of(&memory), Ok(()));
    drop(again);
    assert_eq!(gate_of(&memory), Err(GateError::Parked));
}

fn make_room() {
    let setup = CacheSetup::new();
    let idle = setup.ask();
    let memory = Arc::clone(idle.memory());
    drop(idle);
    let clears = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || setup.cache.clear())
    };
    let handle = setup.ask();
    assert_eq!(gate_of(handle.memory()), Ok(()));
    let cleared = clears.join().unwrap();
    let is_kept = Arc::ptr_eq(&memory, handle.memory());
    assert_eq!(cleared, usize::from(!is_kept));
    assert_eq!(gate_of(handle.memory()), Ok(()));
}

fn forgotten() {
    let setup = CacheSetup::new();
    let handle = setup.ask();
    let memory = Arc::clone(handle.memory());
    let other = handle.clone();
    let lets_go = thread::spawn(move || drop(other));
    let forgotten = setup.cache.forget(&setup.range);
    assert_eq!((forgotten, gate_of(&memory)), (1, Ok(())));
    drop(handle);
    lets_go.join().unwrap();
    assert_eq!(gate_of(&memory), Err(GateError::Closed));
}

fn missed() {
    let setup = CacheSetup::new();
    let other = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || setup.ask())
    };
    let handle = setup.ask();
    let other = other.join().unwrap();
    assert!(Arc::ptr_eq(handle.memory(), other.memory()));
    assert_eq!(setup.cache.stats().count, 1);
    assert_eq!(gate_of(handle.memory()), Ok(()));
}
