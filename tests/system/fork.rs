//! A process that forks, and what its child must not have in common with it.

use std::io::{Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio_fabric::{Domain, Fabric, Hints};

use crate::common::alone::alone;

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
