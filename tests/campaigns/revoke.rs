//! The end of remote access, shown by the processor: after `revoke` has returned the pages are
//! protected, and any touch of them is a signal, or an EFAULT that would fail a connection twice.

mod arena;
#[allow(
    dead_code,
    reason = "the peers by hand use the bytes, not the connections"
)]
mod stalled;

use std::cell::Cell;
use std::time::Instant;

use crate::common::{backends, on_threads};
use arena::{Arena, RefusalEffect, Target};
use tokio_fabric::{Access, Backend};

const LEN: usize = 20 << 10;
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

/// Rounds of one scene: its connections are long-lived, and the time limit of a test finds a hang.
const ROUNDS_MAX: usize = 500;

/// So many rounds in all, half of them on each kind of runtime.
fn race_on(backend: Backend, manner: RefusalEffect, rounds: usize) {
    if !backends().contains(&backend) {
        return;
    }
    for threads in [0, 2] {
        let (begun, done) = (Instant::now(), Cell::new(0));
        let mut left = rounds / 2;
        while left > 0 {
            let now = left.min(ROUNDS_MAX);
            left -= now;
            on_threads(threads, backend, async |net| {
                let mut arena = Arena::set(&net, manner).await;
                done.set(done.get() + race(&mut arena, now).await);
                arena.clear().await;
            });
        }
        println!(
            "{backend}, {manner:?}, {threads} threads: {} rounds, {} operations, {:?}",
            rounds / 2,
            done.get(),
            begun.elapsed()
        );
    }
}

/// memory-model 4: "`revoke().await` = mark the region refused, cancel the kernel operations on it,
/// await their own ends": once it has returned no byte is touched, with eight peers at work, some
/// of them stalled in the middle of their payload. Refused peers lose their connections.
#[test]
fn after_revoke_the_pages_may_be_taken_away() {
    let rounds = if is_deep() { 1000 } else { 40 };
    for backend in backends() {
        for manner in [RefusalEffect::Plain, RefusalEffect::Disconnect] {
            race_on(backend, manner, rounds);
        }
    }
}

/// The same, of peers whose connections live, so that a round costs little. `TOKIO_FABRIC_ROUNDS`
/// says how many.
fn race_long(backend: Backend) {
    let rounds = match std::env::var("TOKIO_FABRIC_ROUNDS") {
        Ok(rounds) => rounds.parse().expect("a number"),
        Err(_) if is_deep() => 1_000_000,
        Err(_) => 1_000,
    };
    race_on(backend, RefusalEffect::Continue, rounds);
}

/// memory-model 4: "It ends within the kernel's cancel time even if the peer stalls in
/// mid-payload".
#[test]
fn regions_are_revoked_under_eight_peers_in_process() {
    race_long(Backend::Loopback);
}

/// memory-model 4: "It ends within the kernel's cancel time even if the peer stalls in
/// mid-payload".
#[test]
fn regions_are_revoked_under_eight_peers_on_epoll() {
    race_long(Backend::Epoll);
}

/// memory-model 4: "It ends within the kernel's cancel time even if the peer stalls in
/// mid-payload".
#[test]
fn regions_are_revoked_under_eight_peers_on_io_uring() {
    race_long(Backend::IoUring);
}
