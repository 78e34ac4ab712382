//! A registration that faults 1 GiB in, beside a 1 ms tick on the same `current_thread` runtime:
//! awaited, it runs beside the runtime; within the call, it stops it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::alone::alone;
use tokio_fabric::{
    Access, Domain, Event, EventQueue, Fabric, Hints, MemoryRegion, domain::DomainBind,
    info::MrMode,
};

const LEN: usize = 1 << 30;
const TICK: Duration = Duration::from_millis(1);

/// The processor time of this thread so far, which no other load of the machine changes.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap()
}

/// Runs a measurement on a fresh `current_thread` runtime, beside the tick. Gives what it gave and
/// what it did to the runtime.
fn beside_a_tick<T>(measured: impl Future<Output = T>) -> (T, Run) {
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
    let (value, busy) = local.block_on(&runtime, async {
        // The tick is running before, and sees the end.
        tokio::time::sleep(5 * TICK).await;
        let before = thread_time();
        let value = measured.await;
        let busy = thread_time() - before;
        tokio::time::sleep(5 * TICK).await;
        (value, busy)
    });
    let worst = worst.get();
    (value, Run { busy, worst })
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

/// What one registration was to its runtime.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Processor time that it took of the runtime's thread.
    busy: Duration,
    /// By how much the worst tick beside it was late.
    worst: Duration,
}

fn awaited() -> Run {
    let (bytes, start) = absent();
    let ((events, region), run) = beside_a_tick(async {
        let (domain, events) = domain(true);
        let region = domain
            .register(bytes)
            .access(Access::REMOTE_READ)
            .context(7_u64)
            .await
            .unwrap();
        (events, region)
    });
    all_there(start, &region);
    let event = events.try_next();
    assert!(matches!(event, Some(Event::MrComplete { context, .. }) if context.0 == 7));
    run
}

fn now() -> Run {
    let (bytes, start) = absent();
    let (region, run) = beside_a_tick(async {
        let (domain, _) = domain(false);
        let register = domain.register(bytes).access(Access::REMOTE_READ);
        register.now().unwrap()
    });
    all_there(start, &region);
    run
}

/// fi_mr(3), fi_domain(3): bound with REG_MR, "the memory registration is asynchronous"; it "must
/// not stall a runtime worker". The control is the same registration within the call.
///
/// In a process of its own: who faults so many pages in keeps all others of the process waiting
/// for its memory map.
#[test]
fn an_awaited_registration_does_not_stall_its_runtime() {
    alone("registration_stall::gibibytes_are_registered");
}

#[test]
#[ignore = "the other process of another test"]
fn gibibytes_are_registered() {
    // A busy machine makes ticks late now and then; what the library does shows every time.
    let runs: Vec<_> = (0..3).map(|_| (awaited(), now())).collect();
    let best = |of: fn(&(Run, Run)) -> Run| runs.iter().map(of).min_by_key(|run| run.worst);
    let best = |of| best(of).expect("three runs");
    let (awaited, now) = (best(|it| it.0), best(|it| it.1));
    println!("awaited: {awaited:?}\nnow: {now:?}");
    assert!(now.worst >= now.busy / 2, "the control stalls its runtime");
    // The ticks take their time too.
    assert!(awaited.busy * 2 < now.busy, "its work is the runtime's");
    assert!(awaited.worst * 2 < now.worst, "as late as within the call");
}
