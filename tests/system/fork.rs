//! A process that forks, and what its child must not have in common with it.

use std::io::{Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio_fabric::buf::AddressRange;
use tokio_fabric::domain::RegistrationCache;
use tokio_fabric::mr::CacheWatch;
use tokio_fabric::{Access, Domain, EndpointType, Fabric, Hints};

use crate::common::alone::alone;
use crate::common::left_out;

fn keys(domain: &Domain) -> [u64; 8] {
    let region = |_| domain.register(vec![0u8; 8]).now().unwrap();
    let regions: [_; 8] = std::array::from_fn(region);
    regions.each_ref().map(|region| region.key())
}

/// "no key can be guessed": what a child of a fork registers has keys that its parent does not
/// give, though its domain began as a copy of the parent's, with random bits that were drawn ahead.
#[test]
fn a_forked_child_gives_other_keys_than_its_parent() {
    alone("fork::parent_and_child");
}

#[tokio::test]
#[ignore = "the other process of another test"]
async fn parent_and_child() {
    let fabric = Fabric::open(Hints::new()).unwrap();
    let domain = fabric.domain().open().unwrap();
    // Some bits are drawn now, and some are left.
    keys(&domain);
    let (mut from_child, mut to_parent) = pipe().unwrap();
    // SAFETY: the child has a copy of this thread only. It uses the domain, whose locks no other
    // thread holds, and the allocator, which the C library makes usable again after a fork; then it
    // ends at once.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            let drawn = catch_unwind(AssertUnwindSafe(|| keys(&domain)));
            if let Ok(keys) = drawn {
                let bytes = keys.map(u64::to_ne_bytes).concat();
                let _ = to_parent.write_all(&bytes);
            }
            // SAFETY: nothing of the parent's is ended or flushed a second time.
            unsafe { libc::_exit(0) }
        }
        _ => drop(to_parent),
    }
    let own = keys(&domain);
    let mut bytes = [0; 64];
    from_child.read_exact(&mut bytes).expect("the child's keys");
    let (words, _) = bytes.as_chunks();
    let others: [u64; 8] = std::array::from_fn(|at| u64::from_ne_bytes(words[at]));
    assert!(
        others.iter().all(|key| !own.contains(key)),
        "{own:?} {others:?}"
    );
}

/// `CacheWatch::System`, in a forked child, which inherits its parent's watch of memory: neither
/// finds a registration of memory that is another now, nor takes the other's watch away.
#[test]
fn a_watched_cache_is_not_stale_in_a_forked_child_nor_in_its_parent() {
    alone("fork::a_watched_cache_on_both_sides");
}

#[tokio::test]
#[ignore = "the other process of another test"]
async fn a_watched_cache_on_both_sides() {
    const LEN: usize = 64 << 10;
    let map = |at: *mut libc::c_void, fixed| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, in place of this test's own, to which no reference exists.
        let start = unsafe { libc::mmap(at, LEN, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start
    };
    let start = map(std::ptr::null_mut(), 0);
    // Other memory at the same place, at once: another thread could be given the place.
    let renew = || assert_eq!(map(start, libc::MAP_FIXED), start);
    // SAFETY: no registration is used while the memory is renewed.
    let range = unsafe { AddressRange::new(start.cast(), LEN) };
    let key = |cache: &RegistrationCache| {
        let region = cache.register(&range, ..).access(Access::REMOTE_READ);
        region.now().unwrap().key()
    };
    // True if what was registered is found again, and not once the memory is another.
    let is_watched = |cache: &RegistrationCache| {
        let first = key(cache);
        let is_found = key(cache) == first;
        renew();
        is_found && key(cache) != first
    };
    let fabric = Fabric::open(Hints::new()).unwrap();
    let domain = fabric.domain().open().unwrap();
    let open = || domain.cache().watch(CacheWatch::System).open();
    let cache = match open() {
        Ok(cache) => cache,
        Err(error) => return left_out(error),
    };
    assert!(is_watched(&cache));
    let kept = key(&cache);
    let (mut from_child, mut to_parent) = pipe().unwrap();
    // SAFETY: as above; the thread that reads the notices holds no lock, since no memory goes.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            let checked = catch_unwind(AssertUnwindSafe(|| {
                let inherited = key(&cache) != kept;
                drop(cache);
                [inherited, is_watched(&open().unwrap())].map(u8::from)
            }));
            let _ = to_parent.write_all(&checked.unwrap_or_default());
            // SAFETY: nothing of the parent's is ended or flushed a second time.
            unsafe { libc::_exit(0) }
        }
        _ => drop(to_parent),
    }
    let mut said = [0; 2];
    from_child
        .read_exact(&mut said)
        .expect("what the child saw");
    assert_eq!(
        said,
        [1, 1],
        "not found by the inherited cache; watched by its own"
    );
    assert_eq!(key(&cache), kept, "the parent's is as it was");
    assert!(is_watched(&cache));
}

/// A named address vector stays while its opener has it open, whatever a child does with the copy
/// of it that it inherits.
#[test]
fn a_named_vector_outlives_what_a_forked_child_drops() {
    alone("fork::a_named_vector_of_parent_and_child");
}

#[tokio::test]
#[ignore = "the other process of another test"]
async fn a_named_vector_of_parent_and_child() {
    let fabric = Fabric::open(Hints::new().endpoint(EndpointType::Rdm)).unwrap();
    let domain = fabric.domain().open().unwrap();
    let name = format!("fork-{}", std::process::id());
    let open = || domain.address_vector().name(&name).open().unwrap();
    let vector = open();
    let address = ([127, 0, 0, 1], 1).into();
    let peer = vector.insert(address).now().unwrap();
    let (mut from_child, mut to_parent) = pipe().unwrap();
    // SAFETY: as above.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(vector)));
            let _ = to_parent.write_all(&[u8::from(dropped.is_ok())]);
            // SAFETY: nothing of the parent's is ended or flushed a second time.
            unsafe { libc::_exit(0) }
        }
        _ => drop(to_parent),
    }
    let mut said = [0];
    from_child.read_exact(&mut said).expect("a word");
    assert_eq!(said, [1], "it is dropped");
    assert_eq!(open().lookup(peer).unwrap(), address, "the same vector");
    assert_eq!(vector.lookup(peer).unwrap(), address);
}
