//! The end of remote access, shown by the processor: after `revoke` has returned the pages are
//! protected, and any touch of them is a signal, or an EFAULT that would fail a connection twice.

#[path = "revoke/arena.rs"]
mod arena;
mod common;
#[path = "common/peers.rs"]
mod peers;
#[allow(
    dead_code,
    reason = "the peers by hand use the bytes, not the connections"
)]
#[path = "hostile/raw.rs"]
mod raw;
#[path = "revoke/stalled.rs"]
mod stalled;

use arena::{Arena, Refusal, Target};
use common::on_every_backend;
use tokio_fabric::Access;

const LEN: usize = 64 << 10;
const PAGE: usize = 4096;

fn is_deep() -> bool {
    std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0")
}

/// Changes the protection of the whole pages within these bytes.
fn protect(start: usize, len: usize, protection: i32) {
    let first = start.next_multiple_of(PAGE);
    let end = (start + len) / PAGE * PAGE;
    // SAFETY: the pages lie within a live allocation of the test's; nothing may touch them while
    // they are protected, which is what the test is about, and they are opened again before the
    // allocation is given back.
    let answer = unsafe { libc::mprotect(first as *mut libc::c_void, end - first, protection) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

/// A region comes and goes under its peers, so often.
async fn race(arena: &mut Arena, rounds: usize) -> usize {
    let mut done = 0;
    for round in 0..rounds {
        let bytes = vec![0_u8; LEN];
        let start = bytes.as_ptr() as usize;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = arena
            .target
            .domain
            .register(bytes)
            .access(access)
            .now()
            .unwrap();
        let remote = region.remote();
        arena.publish(Target { round, remote }).await;
        // At once, or in the middle of what they do.
        if round % 3 > 0 {
            arena.work(round).await;
        }
        for _ in 0..round % 5 {
            tokio::task::yield_now().await;
        }
        region.revoke().await;
        protect(start, LEN, libc::PROT_NONE);
        done += arena.refusals(round).await;
        protect(start, LEN, libc::PROT_READ | libc::PROT_WRITE);
    }
    done
}

/// memory-model 4: "`revoke().await` = mark the region refused, cancel the kernel operations on it,
/// await their own ends": once it has returned no byte is touched, with eight peers at work, some
/// of them stalled in the middle of their payload. Refused peers lose their connections.
#[test]
fn after_revoke_the_pages_may_be_taken_away() {
    let rounds = if is_deep() { 1000 } else { 25 };
    on_every_backend(|net| async move {
        let mut arena = Arena::set(&net, Refusal::Closes).await;
        let begun = std::time::Instant::now();
        let done = race(&mut arena, rounds).await;
        println!(
            "{}: {rounds} rounds, {done} operations between, {:?}",
            net.backend(),
            begun.elapsed()
        );
        arena.clear().await;
    });
}
