//! A registration that faults 1 GiB in, beside a 1 ms tick on the same `current_thread` runtime:
//! awaited, it runs beside the runtime; within the call, it stops it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio_fabric::{
    Access, Domain, Event, EventQueue, Fabric, Hints, MemoryRegion, domain::DomainBind,
    info::MrMode,
};

const LEN: usize = 1 << 30;
const TICK: Duration = Duration::from_millis(1);

/// Runs a measurement on a fresh `current_thread` runtime, beside the tick. Gives what it gave and
/// by how much the worst tick was late.
fn beside_a_tick<T>(measured: impl Future<Output = T>) -> (T, Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let local = tokio::task::LocalSet::new();
    let worst = Rc::new(Cell::new(Duration::ZERO));
    let seen = Rc::clone(&worst);
    local.spawn_local(async move {
        loop {
            let due = Instant::now() + TICK;
            tokio::time::sleep(TICK).await;
            seen.set(seen.get().max(due.elapsed()));
        }
    });
    let value = local.block_on(&runtime, async {
        // The tick is running before, and sees the end.
        tokio::time::sleep(5 * TICK).await;
        let value = measured.await;
        tokio::time::sleep(5 * TICK).await;
        value
    });
    (value, worst.get())
}

fn domain(bound: bool) -> (Domain, EventQueue) {
    let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
    let fabric = Fabric::open(hints).unwrap();
    let domain = fabric.domain().open().unwrap();
    let events = fabric.event_queue().open().unwrap();
    if bound {
        domain.bind(&events, DomainBind::REG_MR).unwrap();
    }
    (domain, events)
}

/// How many of the pages under these bytes are in memory, and how many there are.
fn resident(start: *const u8, len: usize) -> (usize, usize) {
    let page = 4096;
    let first = start as usize / page * page;
    let pages = (start as usize + len - first).div_ceil(page);
    let mut map = vec![0_u8; pages];
    // SAFETY: mincore only looks up whether the pages of this range are in memory and writes one
    // byte per page; the map has a byte for each, and whatever the range is, the kernel checks it.
    let answer =
        unsafe { libc::mincore(first as *mut libc::c_void, pages * page, map.as_mut_ptr()) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    (map.iter().filter(|byte| **byte & 1 == 1).count(), pages)
}

/// Fresh memory: promised by the system, not there yet (but for its ends).
fn absent() -> (Vec<u8>, *const u8) {
    let bytes = vec![0; LEN];
    let start = bytes.as_ptr();
    let (there, pages) = resident(start, LEN);
    assert!(
        there < pages / 50,
        "{there} of {pages} pages are there before"
    );
    (bytes, start)
}

fn all_there<B: 'static>(start: *const u8, region: &MemoryRegion<B>) {
    let (there, pages) = resident(start, LEN);
    assert_eq!(there, pages, "pages are missing after registration");
    assert_eq!(region.len(), LEN);
}

/// What one registration took, and the worst tick beside it.
#[derive(Clone, Copy, Debug)]
struct Run {
    took: Duration,
    worst: Duration,
}

fn idle(took: Duration) -> Run {
    let ((), worst) = beside_a_tick(async { tokio::time::sleep(took).await });
    Run { took, worst }
}

fn awaited() -> Run {
    let (bytes, start) = absent();
    let ((took, events, region), worst) = beside_a_tick(async {
        let (domain, events) = domain(true);
        let started = Instant::now();
        let region = domain
            .register(bytes)
            .access(Access::REMOTE_READ)
            .context(7_u64)
            .await
            .unwrap();
        (started.elapsed(), events, region)
    });
    all_there(start, &region);
    let event = events.try_next();
    assert!(matches!(event, Some(Event::MrComplete { context, .. }) if context.0 == 7));
    Run { took, worst }
}

fn now() -> Run {
    let (bytes, start) = absent();
    let ((took, region), worst) = beside_a_tick(async {
        let (domain, _) = domain(false);
        let started = Instant::now();
        let region = domain
            .register(bytes)
            .access(Access::REMOTE_READ)
            .now()
            .unwrap();
        (started.elapsed(), region)
    });
    all_there(start, &region);
    Run { took, worst }
}

/// fi_mr(3), fi_domain(3): bound with REG_MR, "the memory registration is asynchronous"; it "must
/// not stall a runtime worker". The control is the same registration within the call.
#[test]
fn an_awaited_registration_does_not_stall_its_runtime() {
    // A busy machine disturbs now and then, more often the longer it is watched; what the library
    // does shows every time.
    let runs = (0..3).map(|_| {
        let awaited = awaited();
        (idle(awaited.took), awaited, now())
    });
    let runs: Vec<_> = runs.collect();
    let best = |of: fn(&(Run, Run, Run)) -> Run| runs.iter().map(of).min_by_key(|run| run.worst);
    let best = |of| best(of).expect("three runs");
    let (idle, awaited, now) = (best(|it| it.0), best(|it| it.1), best(|it| it.2));
    let ratio = |run: Run| run.worst.as_secs_f64() / idle.worst.as_secs_f64();
    println!("worst slip of a 1 ms tick: idle {:?}", idle.worst);
    println!(
        "awaited: {:?}, {:.1} times idle; took {:?}",
        awaited.worst,
        ratio(awaited),
        awaited.took
    );
    println!(
        "now:     {:?}, {:.1} times idle; took {:?}",
        now.worst,
        ratio(now),
        now.took
    );
    assert!(now.worst >= now.took / 2, "the control stalls its runtime");
    assert!(awaited.worst * 8 < now.worst, "as bad as within the call");
    let near = idle.worst.max(Duration::from_millis(4)) * 6;
    assert!(awaited.worst < near, "far from idle");
}
