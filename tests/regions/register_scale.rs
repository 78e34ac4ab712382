//! Asynchronous registration at scale: many at once, long ones, huge ones.

use std::time::{Duration, Instant};

use crate::common::alone::{alone, alone_in_control_group};
use crate::common::matrix::{Opens, over_all_combinations, over_all_drivers};
use crate::common::on;
use crate::common::pages::{PAGE, Pages};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use futures::{StreamExt, stream::FuturesUnordered};
use tokio_fabric::testing::Peer;
use tokio_fabric::{
    Access, Backend, ErrorKind, Event, Hints, UserContext,
    buf::{MappedBuffer, PageKind},
    domain::{DomainBind, RegionHandle, Register, RegisterBufs, RegistrationProgress},
    info::MrMode,
};

/// Registration in this domain is asynchronous, and has work to do.
fn asynchronous(net: &impl Opens) -> Peer {
    let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
    net.peer_with(hints, DomainBind::REG_MR)
}

/// Threads of this process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the kernel's list of threads");
    tasks.count()
}

/// A thousand registrations are in flight at once, and few threads work for them.
#[test]
fn a_thousand_registrations_are_in_flight_on_a_few_threads() {
    alone("register_scale::a_thousand_registrations");
}

#[test]
#[ignore = "the other process of another test"]
fn a_thousand_registrations() {
    on(Backend::Loopback, |net| async move {
        let peer = asynchronous(&net);
        let before = threads();
        let mut registering: FuturesUnordered<_> = (0..1000u64)
            .map(|number| {
                let buffer = MappedBuffer::new(64 << 10).unwrap();
                let register = peer.domain.register(buffer).key(number + 1);
                register.into_future()
            })
            .collect();
        let (mut done, mut most) = (0, 0);
        while let Some(region) = registering.next().await {
            assert_eq!(region.unwrap().len(), 64 << 10);
            done += 1;
            most = most.max(threads());
        }
        assert_eq!(done, 1000);
        assert!(most < before + 40, "{most} threads, {before} before");
        assert_eq!(peer.domain.region_count(), 0);
    });
}

/// fi_domain(3): "the provider should perform all memory registration operations asynchronously"
/// fi_domain(3): "with the completion reported through the event queue." For all memory, whether it
/// has pages to fault in or not. Ruling 7: what is awaited without a context has no event.
#[test]
fn read_only_memory_is_registered_asynchronously_too() {
    over_all_drivers(|net| async move {
        let peer = net.peer_with(Hints::new(), DomainBind::REG_MR);
        let pages = Pages::new(4);
        let (domain, bytes) = (&peer.domain, Bytes::from(vec![7u8; 100_000]));
        reported(&peer, || domain.register(vec![7u8; 10_000])).await;
        reported(&peer, || domain.register(vec![7u8; 10_000]).lazily()).await;
        reported(&peer, || domain.register(pages.range(0, 4 * PAGE))).await;
        reported(&peer, || domain.register_read_only(bytes.clone())).await;
        reported(&peer, || domain.register_read_only(bytes.clone()).pinned()).await;

        // With pages to fault in, read-only memory is at work when the call returns.
        let peer = asynchronous(&net);
        reported(&peer, || peer.domain.register_read_only(bytes.clone())).await;
        let mut was_at_work = false;
        // A loaded machine may keep this thread away for a whole registration, not for all of them.
        for _ in 0..20 {
            let progress = RegistrationProgress::new();
            let large = Bytes::from(vec![0u8; 8 << 20]);
            let register = peer.domain.register_read_only(large).progress(&progress);
            let mut registration = register.into_future();
            let region = match (&mut registration).now_or_never() {
                Some(region) => region.unwrap(),
                None => {
                    was_at_work = true;
                    registration.await.unwrap()
                }
            };
            assert_eq!(region.access(), Access::READ_ONLY);
            assert_eq!(progress.bytes_ready(), 8 << 20);
            if was_at_work {
                break;
            }
        }
        assert!(was_at_work, "each had ended when the call returned");
    });
}

/// In this domain, which registers asynchronously, nothing is registered at once, and each end is
/// reported once: to the future, by an event, or by both.
async fn reported<B: RegisterBufs + std::fmt::Debug, R: RegionHandle + std::fmt::Debug>(
    peer: &Peer,
    register: impl Fn() -> Register<B, R>,
) {
    let refused = register().now().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadState);
    assert!(refused.into_parts().1.is_some(), "the memory comes back");
    assert_eq!(peer.domain.region_count(), 0);
    let context_of = |event: Option<Event>| match event {
        Some(Event::MrComplete { context, region }) => {
            assert_eq!(region.context(), Some(context));
            context
        }
        Some(Event::MrReadOnlyComplete { context, region }) => {
            assert_eq!(region.context(), Some(context));
            context
        }
        other => panic!("{other:?} instead of a registration's end"),
    };
    register().submit(5u64).unwrap();
    assert_eq!(context_of(peer.events.next().await), UserContext(5));
    assert_eq!(peer.domain.region_count(), 0, "the event had it");
    let region = register().context(6u64).await.unwrap();
    assert_eq!(context_of(peer.events.try_next()), UserContext(6));
    assert_eq!(peer.domain.region_count(), 1);
    drop(region);
    drop(register().await.unwrap());
    assert!(peer.events.is_empty(), "no event was asked for");
    // Dropped, it is undone, and reports that it was or that it had come to its end before.
    drop(register().key(9).context(7u64).into_future());
    match peer.events.next().await {
        Some(Event::Error(failed)) => {
            assert_eq!(failed.context, Some(UserContext(7)));
            assert!(failed.error.is_canceled());
        }
        ended => assert_eq!(context_of(ended), UserContext(7)),
    }
    drop(register().key(9).await.unwrap());
    assert!(peer.events.is_empty());
}

/// A short registration does not wait for the end of long ones that were asked for before it: each
/// gets a turn after a piece.
#[test]
fn a_short_registration_overtakes_long_ones() {
    on(Backend::Loopback, |net| async move {
        let peer = asynchronous(&net);
        let long = RegistrationProgress::new();
        const LEN: usize = 1 << 30;
        let registering: Vec<_> = (0..4)
            .map(|_| {
                let register = peer.domain.register(MappedBuffer::new(LEN).unwrap());
                register.progress(&long).into_future()
            })
            .collect();
        for _ in 0..3 {
            drop(peer.domain.register(vec![0u8; 4096]).await.unwrap());
        }
        assert!(long.bytes_ready() < LEN, "the long ones were first");
        drop(registering);
    });
}

/// Futures that are dropped undo their registrations, a thousand of them, in whatever state, and
/// each reports it once.
#[test]
fn a_thousand_dropped_registrations_leave_nothing() {
    over_all_drivers(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
        let fabric = net.net().fabric_with(hints).unwrap();
        let events = fabric.event_queue().size(1000).open().unwrap();
        let domain = fabric.domain().open().unwrap();
        domain.bind(&events, DomainBind::REG_MR).unwrap();
        for number in 0..1000u64 {
            let register = domain.register(vec![1u8; 8192]).key(7000 + number);
            let mut registration = register.context(number).into_future();
            // At once, while it is at work, and when it has ended.
            for _ in 0..number % 5 {
                tokio::task::yield_now().await;
            }
            if number % 7 == 0 {
                registration = match futures::poll!(&mut registration).is_ready() {
                    true => continue,
                    false => registration,
                };
            }
            drop(registration);
        }
        let mut events_of = vec![0; 1000];
        for _ in 0..1000 {
            match events.next().await {
                Some(Event::MrComplete { context, .. }) => events_of[context.0 as usize] += 1,
                Some(Event::Error(failed)) => {
                    assert!(failed.error.is_canceled(), "{failed}");
                    events_of[failed.context.unwrap().0 as usize] += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(events_of.iter().all(|count| *count == 1) && events.is_empty());
        assert_eq!(domain.region_count(), 0);
        // The keys are free again.
        let again = (0..1000u64).map(|number| {
            let register = domain.register(vec![1u8; 8]).key(7000 + number);
            register.into_future()
        });
        let regions = join_all(again).await;
        assert_eq!(domain.region_count(), 1000);
        assert!(regions.into_iter().all(|region| region.is_ok()));
    });
}

/// Memory that the system cannot have is refused, and nothing is ended for want of it.
#[test]
fn more_memory_than_there_is_is_not_faulted_in() {
    on(Backend::Loopback, |net| async move {
        let peer = net.peer_with(Hints::new(), DomainBind::REG_MR);
        let register = peer.domain.register(MappedBuffer::new(1 << 45).unwrap());
        let refused = register.await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::LimitReached);
        let (error, back) = refused.into_parts();
        assert!(error.to_string().contains("lazily"), "{error}");
        let register = peer.domain.register(back.unwrap()).lazily();
        assert_eq!(register.await.unwrap().len(), 1 << 45);
    });
}

/// api.md: "registering 64 GiB (sparse) must not stall a runtime worker"; and on TCP the plain path
/// takes no time by the size.
#[test]
fn sixty_four_sparse_gibibytes_are_registered_in_no_time() {
    const LEN: usize = 64 << 30;
    over_all_drivers(|net| async move {
        let peer = net.peer_with(Hints::new(), DomainBind::REG_MR);
        let progress = RegistrationProgress::new();
        let mut best = [Duration::MAX; 2];
        for _ in 0..20 {
            for (len, best) in [4096, LEN].into_iter().zip(&mut best) {
                let buffer = MappedBuffer::new(len).unwrap();
                let started = Instant::now();
                let register = peer.domain.register(buffer).progress(&progress);
                let region = register.lazily().await.unwrap();
                *best = (*best).min(started.elapsed());
                assert_eq!(region.len(), len);
                region.write_at(len - 4, b"last").unwrap();
                let mut bytes = [1; 8];
                region.read_at(len - 8, &mut bytes).unwrap();
                assert_eq!(&bytes, b"\0\0\0\0last");
            }
        }
        assert_eq!(progress.bytes_ready(), 20 * (LEN + 4096));
        let [small, large] = best;
        assert!(
            large < small * 10 + Duration::from_micros(100),
            "{small:?}, {large:?}"
        );
    });
}

/// A long registration can be watched, and given up: the pages that came
/// into being go again, and its runtime was never stopped.
#[test]
fn a_long_registration_is_given_up_in_the_middle() {
    on(Backend::Epoll, |net| async move {
        let peer = asynchronous(&net);
        let progress = RegistrationProgress::new();
        let register = peer.domain.register(MappedBuffer::new(2 << 30).unwrap());
        let registration = register.key(3).progress(&progress).into_future();
        let mut looks = 0;
        while progress.bytes_ready() < 64 << 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            looks += 1;
        }
        assert!(looks > 1, "it was over at once");
        drop(registration);
        // Its piece in work is the last.
        let next = peer.domain.register(vec![0u8; 8]).key(3).await.unwrap();
        assert_eq!(next.key(), 3);
        let seen = progress.bytes_ready();
        drop(peer.domain.register(vec![0u8; 8]).await.unwrap());
        assert!(progress.bytes_ready() <= seen + (32 << 20));
        assert_eq!(peer.domain.region_count(), 1);
    });
}

/// Mapped buffers are made of huge pages where the system offers them, and say so; a registration
/// faults them in and peers use them like all memory.
#[test]
fn huge_pages_are_used_when_offered() {
    on(Backend::Loopback, |net| async move {
        let peer = asynchronous(&net);
        let len = (8 << 20) + 5;
        let buffer = MappedBuffer::huge(len).unwrap();
        assert_eq!((buffer.len(), buffer[len - 1]), (len, 0));
        assert!(buffer.as_ptr().addr().is_multiple_of(2 << 20));
        let (pages, start) = (buffer.pages(), buffer.as_ptr().addr());
        let region = peer.domain.register(buffer).await.unwrap();
        let huge = huge_bytes(start);
        match pages {
            PageKind::Huge => assert_eq!(huge, 10 << 20),
            // All of the pages if the system finds whole ones: it may be short of them.
            PageKind::Transparent => assert!(huge > 0, "no huge page at all"),
            _ => assert_eq!(huge, 0),
        }
        region.write_at(len - 3, b"end").unwrap();
        let back: MappedBuffer = region.deregister().await.unwrap();
        assert_eq!((&back[len - 3..], back.pages()), (&b"end"[..], pages));
    });
}

/// How much of the mapping that begins there is in huge pages, as the kernel counts it.
fn huge_bytes(start: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("the kernel's list of mappings");
    let mut lines = maps.lines();
    let head = format!("{start:x}-");
    lines
        .find(|line| line.starts_with(&head))
        .expect("the mapping is listed");
    let names = ["AnonHugePages:", "Private_Hugetlb:"];
    let lines = lines.take_while(|line| line.split(' ').next().is_some_and(|it| it.ends_with(':')));
    let numbers = lines.filter_map(|line| {
        let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
        rest.trim().trim_end_matches(" kB").parse::<usize>().ok()
    });
    numbers.sum::<usize>() << 10
}

/// A mapped buffer goes into operations like any other, and comes back as itself.
#[test]
fn mapped_buffers_are_buffers() {
    over_all_combinations(|net| async move {
        let (_initiator, _target, a, b) = net.toward(Hints::new()).await;
        let mut buffer = MappedBuffer::new(10_000).unwrap();
        buffer.fill(7);
        let place = buffer.as_ptr();
        let receive = b.recv(MappedBuffer::new(20_000).unwrap()).into_future();
        let (_, back) = a.send(buffer).await.unwrap();
        assert_eq!(back.as_ptr(), place);
        let (received, into) = receive.await.unwrap();
        assert_eq!(received.len, 10_000);
        assert_eq!((into[9_999], into[10_000], into.len()), (7, 0, 20_000));
        let empty = MappedBuffer::new(0).unwrap();
        assert!(empty.is_empty());
        let error = MappedBuffer::new(usize::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitReached);
        assert!(MappedBuffer::huge(usize::MAX - 4095).is_err());
    });
}

/// A registration costs the same among a hundred thousand others.
#[test]
fn registrations_cost_the_same_among_many() {
    on(Backend::Loopback, |net| async move {
        let peer = net.peer().unwrap();
        let round = || {
            let started = Instant::now();
            for _ in 0..500 {
                drop(peer.domain.register(Vec::<u8>::new()).now().unwrap());
            }
            started.elapsed()
        };
        let best = || (0..5).map(|_| round()).min().unwrap();
        let few = best();
        let others: Vec<_> = (0..100_000)
            .map(|_| peer.domain.register(Vec::<u8>::new()).now().unwrap())
            .collect();
        let many = best();
        assert!(many < few * 12, "{few:?} among none, {many:?} among many");
        let started = Instant::now();
        drop(others);
        let each = started.elapsed() / 100_000;
        assert!(
            each < few / 500 * 30,
            "{each:?} each to end them, {few:?} for 500"
        );
    });
}

/// docs/operating.md: "memory of the machine, or of the container": "a registration that exceeds it
/// fails with `LimitReached`".
#[test]
fn a_registration_that_a_control_group_has_no_memory_for_is_refused() {
    let test = "register_scale::in_a_small_control_group";
    alone_in_control_group(test, 96 << 20);
}

#[test]
#[ignore = "the other process of another test"]
fn in_a_small_control_group() {
    on(Backend::Loopback, |net| async move {
        let peer = asynchronous(&net);
        for pinned in [false, true] {
            let register = |bytes| {
                let register = peer.domain.register(MappedBuffer::new(bytes).unwrap());
                match pinned {
                    true => register.pinned(),
                    false => register,
                }
            };
            let kept = register(40 << 20).await.unwrap();
            // More than there is, and more than is left.
            for (bytes, said) in [(256 << 20, "has in all"), (64 << 20, "has left")] {
                let error = register(bytes).await.unwrap_err().into_error();
                assert_eq!(error.kind(), ErrorKind::LimitReached, "{error}");
                let said = format!("a control group of this process {said}");
                assert!(error.to_string().contains(&said), "{error}");
            }
            kept.deregister().await.unwrap();
            register(40 << 20).await.unwrap();
        }
    });
}
