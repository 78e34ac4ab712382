//! Registration: when it ends and where it reports (`fi_mr(3)`, rulings 7 and 8).

mod keys;

use crate::common::matrix::{Opens, over_all_combinations, over_all_drivers};
use crate::common::on_every_backend;
use crate::common::peers::{bytes_of, open_region};
use bytes::BytesMut;
use futures::FutureExt;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Access, ErrorKind, Event, Hints, MemoryRegion, UserContext,
    buf::{AddressRange, MappedBuffer},
    domain::{DomainBind, RegistrationProgress},
    error::OperationKind,
    info::MrMode,
};

/// Registration in this domain is asynchronous, and has work to do.
fn asynchronous(net: &impl Opens) -> Peer {
    let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
    net.peer_with(hints, DomainBind::REG_MR)
}

fn complete(event: Option<Event>) -> (UserContext, MemoryRegion) {
    match event {
        Some(Event::MrComplete { context, region }) => (context, region),
        other => panic!("{other:?} instead of a registration's end"),
    }
}

/// fi_mr(3): "By default, memory registration completes synchronously."
/// fi_mr(3): "the registration call will not return until the registration has completed."
/// fi_mr(3): "Register local memory buffers for direct fabric access"
/// fi_mr(3): `fi_mr_reg(domain)`, argument: the resource domain.
/// fi_mr(3): `fi_mr_reg(mr)`, argument: the memory region, output.
/// fi_mr(3): "Memory buffer to register with the fabric hardware"
/// fi_mr(3): "Length of memory buffer to register"
/// fi_mr(3): "The fi_mr_reg call registers the user-specified memory buffer with the resource
/// domain."
/// fi_mr(3): "This field is ignored for synchronous registration calls."
/// fi_mr(3): "are used to register one or more memory regions with fabric resources."
/// fi_mr(3): "The memory registration must have completed successfully before invoking this."
/// fi_mr(3): "The memory registration must have completed successfully before invoking this call."
#[test]
fn registration_is_synchronous_by_default() {
    over_all_drivers(|net| async move {
        let peer = net.peer().unwrap();
        let now = peer
            .domain
            .register(vec![3u8; 4096])
            .context(9u64)
            .now()
            .unwrap();
        assert_eq!((now.len(), bytes_of(&now)), (4096, vec![3u8; 4096]));
        let polled = peer
            .domain
            .register(vec![4u8; 16])
            .into_future()
            .now_or_never();
        let polled = polled.expect("ends at its first poll").unwrap();
        assert_ne!(polled.key(), now.key());
        assert_eq!(polled.slice(..).unwrap().len(), 16);
        assert_eq!(peer.domain.region_count(), 2);
        assert!(
            peer.events.is_empty(),
            "no event of a synchronous registration"
        );
        let refused = peer.domain.register(vec![5u8; 2]).submit(1u64).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadState);
        assert_eq!(refused.error().operation(), Some(OperationKind::Register));
        assert_eq!(refused.into_parts().1, Some(vec![5u8; 2]));
        assert!(peer.events.is_empty());
    });
}

/// `MemoryRegion::deregister`: "the buffers that it was made from", in the type they had, or
/// without it, which `downcast` then recovers.
#[tokio::test]
async fn what_came_back_is_what_went_in_and_is_registered_again() {
    let peer = Net::loopback().peer().unwrap();
    let mut back = vec![7u8; 32].into_boxed_slice();
    let start = back.as_ptr();
    for _ in 0..3 {
        let region = peer.domain.register(back).await.unwrap();
        assert_eq!(bytes_of(&region), [7; 32]);
        back = region.deregister().await.unwrap();
    }
    let region = peer.domain.register([back, Box::from([8u8; 8])]);
    let region = region.now().unwrap();
    assert_eq!((region.len(), region.segment_count()), (40, 2));
    let [first, second] = region.deregister().await.unwrap();
    assert_eq!((first.as_ptr(), &*first), (start, &[7u8; 32][..]));
    assert_eq!(*second, [8; 8]);

    let region = peer.domain.register(vec![first, second]).now().unwrap();
    let mut erased = region.erase().deregister().await.unwrap();
    assert_eq!(
        region.deregister().await.unwrap_err().kind(),
        ErrorKind::BadState
    );
    let second = erased.pop().unwrap().downcast::<Vec<u8>>().unwrap_err();
    assert_eq!(*second.downcast::<Box<[u8]>>().unwrap(), [8; 8]);
    let first: Box<[u8]> = erased.pop().unwrap().downcast().unwrap();
    assert_eq!((first.as_ptr(), &*first), (start, &[7u8; 32][..]));
    assert_eq!(peer.domain.region_count(), 0);
}

/// fi_mr(3): "can complete asynchronous by binding the resource domain to an event queue using the
/// FI_REG_MR flag."
/// fi_domain(3): `FI_REG_MR`, flag of fi_domain_bind.
/// fi_domain(3): "with the completion reported through the event queue."
/// fi_mr(3): "the result will be reported to the user through an event queue associated with the
/// resource domain."
/// fi_mr(3): "The context specified with the registration request is returned with the completion
/// event."
/// fi_mr(3): "the allocated memory region structure will be returned to the user through the mr
/// parameter."
/// fi_mr(3): "Application context associated with asynchronous memory registration operations."
/// fi_mr(3): "This value is returned as part of any asynchronous event associated with the
/// registration."
/// fi_mr(3): "User specified context associated with the memory region."
/// fi_domain(3): "They include address vector, memory registration, and connection management
/// routines."
#[test]
fn bound_with_reg_mr_the_event_reports_the_end() {
    over_all_drivers(|net| async move {
        let peer = asynchronous(&net);
        // The event alone.
        peer.domain
            .register(vec![1u8; 10_000])
            .submit(21u64)
            .unwrap();
        let (context, region) = complete(peer.events.next().await);
        assert_eq!(
            (context, region.context()),
            (UserContext(21), Some(UserContext(21)))
        );
        assert_eq!(bytes_of(&region), vec![1u8; 10_000]);
        // The future and the event.
        let awaited = peer
            .domain
            .register(vec![2u8; 8])
            .context(22u64)
            .await
            .unwrap();
        let (context, region) = complete(peer.events.try_next());
        assert_eq!((context, region.key()), (UserContext(22), awaited.key()));
        // The future alone.
        let silent = peer.domain.register(vec![3u8; 8]).await.unwrap();
        assert_eq!(silent.context(), None);
        assert!(peer.events.is_empty());
    });
}

/// api.md §3: `.now()` in a domain bound with REG_MR is an error: "this domain registers
/// asynchronously".
#[test]
fn a_domain_that_registers_asynchronously_does_nothing_at_once() {
    over_all_drivers(|net| async move {
        let peer = asynchronous(&net);
        let refused = peer.domain.register(vec![8u8; 3]).now().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadState);
        assert_eq!(refused.into_parts().1, Some(vec![8u8; 3]));
        assert_eq!(peer.domain.region_count(), 0);
    });
}

/// Asynchronous work does not run on the runtime: on one thread, the registration of 64 MiB is not
/// over when the call and its first poll return, and other tasks run meanwhile.
/// fi_domain(3): `FI_MR_ALLOCATED`, mode bit.
/// fi_domain(3): "physical pages must back all virtual addresses being registered."
/// fi_mr(3): "must be backed by physical memory pages at the time the registration call is made."
#[test]
fn the_work_of_registration_runs_beside_the_runtime() {
    crate::common::on(tokio_fabric::Backend::Loopback, |net| async move {
        let peer = asynchronous(&net);
        let buffer = vec![0u8; 64 << 20];
        let (start, len) = (buffer.as_ptr() as usize, buffer.len());
        assert!(
            resident(start, len) < len / 4096 / 2,
            "fresh memory has few pages yet"
        );
        let mut registration = peer.domain.register(buffer).context(1u64).into_future();
        assert!(
            (&mut registration).now_or_never().is_none(),
            "ended at once"
        );
        let ticks = tokio::spawn(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        ticks.await.unwrap();
        let region = registration.await.unwrap();
        assert_eq!(
            resident(start, len),
            len.div_ceil(4096),
            "physical pages back all of it"
        );
        assert_eq!(region.len(), len);
    });
}

/// fi_domain(3): `FI_MR_ALLOCATED`, mode bit.
/// fi_domain(3): "physical pages must back all virtual addresses being registered."
/// fi_mr(3): "must be backed by physical memory pages at the time the registration call is made."
/// However it is made, and whatever it asks for; without the mode they are left as they are.
#[test]
fn with_allocated_every_registration_has_its_pages() {
    over_all_drivers(|net| async move {
        let allocated = || Hints::new().domain(|it| it.required_mr_mode(MrMode::ALLOCATED));
        const LEN: usize = 256 << 10;
        for (hints, pages) in [(allocated(), LEN / 4096), (Hints::new(), 0)] {
            let peer = net.peer_with(hints, DomainBind::empty());
            for way in ["now", "awaited", "several"] {
                let [buffer, other] = [(); 2].map(|()| MappedBuffer::new(LEN).unwrap());
                let start = buffer.as_ptr().addr();
                let register = |buffer| peer.domain.register(buffer).lazily();
                let region = match way {
                    "now" => register(buffer).now().unwrap().erase(),
                    "awaited" => register(buffer).await.unwrap().erase(),
                    _ => {
                        let several = peer.domain.register([other, buffer]);
                        several.now().unwrap().erase()
                    }
                };
                assert_eq!(resident(start, LEN), pages, "{way}");
                drop(region);
            }
        }
    });
}

/// The guide, 2: "a registration also faults the pages in, on blocking threads"; `lazily` leaves
/// it, and so does a domain that registers within the call.
/// docs/memory-model.md: address ranges are not ours to touch, and read-only bytes never change.
#[test]
fn awaited_registration_faults_owned_memory_in_by_default() {
    const LEN: usize = 16 << 20;
    crate::common::on(tokio_fabric::Backend::Loopback, |net| async move {
        let bound = |hints| net.peer_with(hints, DomainBind::REG_MR);
        let notified = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::MMU_NOTIFY));
        let (awaiting, notified) = (bound(Hints::new()), bound(notified));
        let at_once = net.peer().unwrap();
        for (peer, lazily, expected) in [
            (&awaiting, false, true),
            (&awaiting, true, false),
            (&notified, false, false),
            (&at_once, false, false),
        ] {
            let buffer = MappedBuffer::new(LEN).unwrap();
            let start = buffer.as_ptr().addr();
            let progress = RegistrationProgress::new();
            let register = peer.domain.register(buffer).progress(&progress);
            let register = if lazily { register.lazily() } else { register };
            let region = register.context(7u64).await.unwrap();
            let present = resident(start, LEN);
            let all = if expected { LEN / 4096 } else { 0 };
            assert_eq!(present, all, "{lazily} {:?}", peer.domain);
            assert_eq!((region.len(), progress.bytes_ready()), (LEN, LEN));
        }
        let Some(Event::MrComplete { region, .. }) = awaiting.events.next().await else {
            panic!("the first registration has its event");
        };
        assert_eq!(region.len(), LEN);

        let memory = MappedBuffer::new(LEN).unwrap();
        let start = memory.as_ptr().cast_mut();
        // SAFETY: nothing looks at the buffer while the region exists.
        let range = unsafe { AddressRange::new(start, LEN) };
        let region = awaiting.domain.register(range).await.unwrap();
        assert_eq!(resident(start.addr(), LEN), 0);
        drop(region);
    });
}

/// Pages of a range that are in memory, as the kernel counts them.
fn resident(start: usize, len: usize) -> usize {
    let first = start / 4096 * 4096;
    let pages = (start + len).div_ceil(4096) - first / 4096;
    let mut map = std::fs::File::open("/proc/self/pagemap").expect("the kernel's page map");
    let mut words = vec![0u8; pages * 8];
    use std::io::{Read, Seek, SeekFrom};
    map.seek(SeekFrom::Start((first / 4096 * 8) as u64))
        .expect("within the map");
    map.read_exact(&mut words).expect("an entry per page");
    let present = words
        .chunks_exact(8)
        .filter(|word| word[7] & 0xc0 != 0)
        .count();
    present.min(len.div_ceil(4096))
}

/// Ruling 7: "The order is: result stored, event readable, wakers called."
/// fi_mr(3): "the mr output parameter will be written before any event associated with the
/// operation may be read by the application."
/// fi_mr(3): "The mr address must remain valid until the registration operation completes."
#[test]
fn when_the_event_is_readable_the_result_is_there() {
    over_all_drivers(|net| async move {
        let peer = asynchronous(&net);
        for round in 0..20u64 {
            let registration = peer
                .domain
                .register(vec![0u8; 1 << 16])
                .context(round)
                .into_future();
            let (context, region) = complete(peer.events.next().await);
            assert_eq!(context, UserContext(round));
            // The very next poll has the result, and it is the region of the event.
            let stored = registration
                .now_or_never()
                .expect("stored before the event")
                .unwrap();
            assert_eq!(stored.key(), region.key());
        }
    });
}

/// fi_mr(3): "An asynchronous event will not be generated unless the registration call returns
/// success (0)."
#[test]
fn no_event_of_a_registration_that_was_not_submitted() {
    over_all_drivers(|net| async move {
        let fabric = net.net().fabric().unwrap();
        let events = fabric.event_queue().size(1).writable().open().unwrap();
        let domain = fabric.domain().open().unwrap();
        domain.bind(&events, DomainBind::REG_MR).unwrap();
        events.write(7, bytes::Bytes::new()).unwrap();
        let full = domain.register(vec![1u8; 5]).submit(1u64).unwrap_err();
        assert_eq!(
            (full.kind(), full.error().fi_errno()),
            (ErrorKind::Again, 11)
        );
        assert_eq!(full.into_parts().1, Some(vec![1u8; 5]));
        // The awaited form waits for its place instead, and may be given up without a trace.
        let mut given_up = domain.register(vec![2u8; 5]).context(2u64).into_future();
        assert!((&mut given_up).now_or_never().is_none());
        drop(given_up);
        let mut waits = domain.register(vec![3u8; 5]).context(3u64).into_future();
        assert!((&mut waits).now_or_never().is_none());
        assert_eq!(domain.region_count(), 0);
        assert!(matches!(
            events.next().await,
            Some(Event::User { code: 7, .. })
        ));
        let region = waits.await.unwrap();
        assert_eq!(complete(events.next().await).1.key(), region.key());
        assert!(events.is_empty());
    });
}

/// Ruling 7: "If the registration fails later, there is one error event if a context was given."
#[test]
fn a_registration_that_fails_reports_one_error() {
    over_all_drivers(|net| async move {
        let peer = asynchronous(&net);
        let _taken = peer.domain.register(vec![0u8; 8]).key(40).await.unwrap();
        peer.domain
            .register(vec![1u8; 8])
            .key(40)
            .submit(4u64)
            .unwrap();
        match peer.events.next().await {
            Some(Event::Error(failed)) => {
                assert_eq!(failed.context, Some(UserContext(4)));
                assert_eq!(failed.error.kind(), ErrorKind::KeyInUse);
                assert_eq!(failed.error.fi_errno(), 266);
            }
            other => panic!("{other:?} instead of the error"),
        }
        let failed = peer
            .domain
            .register(vec![1u8; 8])
            .key(40)
            .context(5u64)
            .await
            .unwrap_err();
        assert_eq!(failed.into_parts().1, Some(vec![1u8; 8]));
        assert!(matches!(peer.events.try_next(), Some(Event::Error(_))));
        let silent = peer
            .domain
            .register(vec![1u8; 8])
            .key(40)
            .await
            .unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::KeyInUse);
        assert!(peer.events.is_empty());
    });
}

/// Ruling 7: "If the future is dropped, the registration is undone, with one Canceled event if a
/// context was given."
#[test]
fn a_dropped_registration_is_undone_and_reported_once() {
    on_every_backend(|net| async move {
        let peer = asynchronous(&net);
        let big = || vec![0u8; 128 << 20];
        // Two others keep the workers busy, so that this one is dropped before its work is done.
        let busy: Vec<_> = (0..2)
            .map(|_| peer.domain.register(big()).into_future())
            .collect();
        drop(
            peer.domain
                .register(vec![0u8; 1 << 20])
                .key(60)
                .context(6u64)
                .into_future(),
        );
        match peer.events.next().await {
            Some(Event::Error(failed)) => {
                assert_eq!(failed.context, Some(UserContext(6)));
                assert!(failed.error.is_canceled(), "{failed}");
            }
            other => panic!("{other:?} instead of Canceled"),
        }
        drop(
            peer.domain
                .register(vec![0u8; 1 << 20])
                .key(61)
                .into_future(),
        );
        for registration in busy {
            drop(registration.await.unwrap());
        }
        // Both keys are free, and there is no second event.
        let _first = peer.domain.register(vec![0u8; 8]).key(60).await.unwrap();
        let _second = peer.domain.register(vec![0u8; 8]).key(61).await.unwrap();
        assert_eq!(peer.domain.region_count(), 2);
        assert!(peer.events.is_empty());
    });
}

/// api.md §3: "progress of a long registration can be watched", awaited and submitted; one with no
/// pages to fault in is ready in one step.
#[test]
fn a_long_registration_can_be_watched() {
    on_every_backend(|net| async move {
        let peer = asynchronous(&net);
        const LEN: usize = 96 << 20;
        // A loaded machine may keep this thread away for a whole registration, not for all of them.
        let mut attempts = 0;
        while !watched(&peer, LEN).await {
            attempts += 1;
            assert!(attempts < 20, "nothing was ever seen on the way");
        }

        let submitted = RegistrationProgress::new();
        let register = peer.domain.register(vec![0; 1 << 20]).progress(&submitted);
        register.submit(1u64).unwrap();
        complete(peer.events.next().await);
        assert_eq!(submitted.bytes_ready(), 1 << 20);

        let plain = net.peer().unwrap();
        let at_once = RegistrationProgress::new();
        let register = plain.domain.register(vec![0; 100]).progress(&at_once);
        drop(register.now().unwrap());
        assert_eq!(at_once.bytes_ready(), 100);
    });
}

/// Registers so much and looks on; true if some of the way was seen.
async fn watched(peer: &Peer, len: usize) -> bool {
    let progress = RegistrationProgress::new();
    let registering = peer.domain.register(vec![0; len]).progress(&progress);
    let mut registering = std::pin::pin!(registering.into_future());
    let mut seen = false;
    loop {
        if let Some(region) = registering.as_mut().now_or_never() {
            assert_eq!(region.unwrap().len(), progress.bytes_ready());
            return seen;
        }
        let ready = progress.bytes_ready();
        seen |= 0 < ready && ready < len;
        tokio::task::yield_now().await;
    }
}

/// fi_mr(3): `fi_mr_regv`, function.
/// fi_mr(3): "The fi_mr_regv call adds support for a scatter-gather list to fi_mr_reg."
/// fi_mr(3): "Multiple memory buffers are registered as a single memory region."
/// fi_mr(3): "Otherwise, the operation is the same."
/// fi_mr(3): "Vectored memory buffer."
/// fi_mr(3): "Count of vectored buffer entries."
/// fi_mr(3): "This is an IO vector of addresses that will represent a single memory region."
/// fi_mr(3): "The number of entries in the iovec is specified by iov_count."
/// fi_mr(3): "The number of entries in the mr_iov array."
/// fi_mr(3): `fi_mr_attr.mr_iov`, structure field.
/// fi_mr(3): `fi_mr_attr.iov_count`, structure field.
/// fi_mr(3): "Otherwise, they perform the same general function."
/// fi_mr(3): "maximum number of memory buffers that may be associated with a single memory region
/// is specified as the mr_iov_limit"
/// fi_domain(3): "the maximum number of IO vectors (scatter-gather elements) that a single memory
/// registration operation may reference."
#[test]
fn several_buffers_are_one_region() {
    over_all_combinations(|net| async move {
        let (_initiator, target, x, _y) = net.toward(Hints::new()).await;
        let pieces = vec![vec![0u8; 3], vec![0u8; 0], vec![0u8; 5], vec![0u8; 8]];
        let region = open_region(&target, pieces).await;
        assert_eq!((region.len(), region.segment_count()), (16, 4));
        // All that one buffer may be asked for with, several may.
        let described = |buffers: Vec<Vec<u8>>| {
            let register = target.domain.register(buffers).key(0xbeef);
            let register = register.access(Access::SEND | Access::REMOTE_READ);
            let region = register.context(5u64).now().unwrap();
            (
                region.key(),
                region.access(),
                region.context(),
                region.flags(),
            )
        };
        let one = described(vec![vec![0u8; 8]]);
        assert_eq!(one.0, 0xbeef);
        assert_eq!(described(vec![vec![0u8; 5], vec![0u8; 3]]), one);
        let bytes: Vec<u8> = (1..=16).collect();
        x.write(bytes.clone(), region.remote())
            .delivery_complete()
            .await
            .unwrap();
        let (_, read) = x
            .read(vec![0u8; 9], region.remote().slice(2..11).unwrap())
            .await
            .unwrap();
        assert_eq!(read, &bytes[2..11]);
        let back = region.deregister().await.unwrap();
        assert_eq!(back, [&bytes[..3], &[], &bytes[3..8], &bytes[8..]]);
        // As many as the domain's attribute says, and no more.
        let limit = target.domain.info().domain.mr_iov_limit;
        let most: Vec<_> = (0..limit).map(|_| vec![0u8; 2]).collect();
        assert_eq!(open_region(&target, most).await.segment_count(), limit);
        let many: Vec<_> = (0..=limit).map(|_| vec![0u8; 2]).collect();
        let refused = target.domain.register(many.clone()).now().unwrap_err();
        assert_eq!(
            (refused.kind(), refused.error().fi_errno()),
            (ErrorKind::TooLarge, 90)
        );
        assert_eq!(
            refused.into_parts().1,
            Some(many.clone()),
            "the buffers come back"
        );
        let refused = target.domain.register(many.clone()).await.unwrap_err();
        assert_eq!(refused.into_parts().1, Some(many.clone()));
        let bound = asynchronous(&net);
        let refused = bound
            .domain
            .register(many.clone())
            .context(1u64)
            .await
            .unwrap_err();
        assert_eq!(refused.into_parts().1, Some(many.clone()));
        let refused = bound
            .domain
            .register(many.clone())
            .submit(1u64)
            .unwrap_err();
        assert_eq!(refused.into_parts().1, Some(many));
        assert!(bound.events.is_empty());
    });
}

/// fi_mr(3): `fi_mr_regattr`, function.
/// fi_mr(3): "a more generic, extensible registration call that allows the user to specify the
/// registration request using a struct"
/// fi_mr(3): "Memory region attributes"
/// fi_mr(3): `fi_mr_attr`, structure.
/// fi_mr(3): "individual fields also apply to other memory registration calls"
/// fi_mr(3): `fi_mr_attr.access`, structure field.
/// fi_mr(3): `fi_mr_attr.requested_key`, structure field.
/// fi_mr(3): `fi_mr_attr.context`, structure field.
/// fi_mr(3): "An application specified access key associated with the memory region."
/// fi_mr(3): "Memory access permissions associated with registration"
#[test]
fn one_builder_describes_all_of_a_registration() {
    over_all_drivers(|net| async move {
        let peer = asynchronous(&net);
        let access = Access::SEND | Access::REMOTE_READ;
        let pieces = [BytesMut::zeroed(4), BytesMut::zeroed(6)];
        let register = peer
            .domain
            .register(pieces)
            .access(access)
            .key(12)
            .context(13u64);
        let region = register.await.unwrap();
        assert_eq!(
            (region.len(), region.segment_count(), region.key()),
            (10, 2, 12)
        );
        assert_eq!(
            (region.access(), region.context()),
            (access, Some(UserContext(13)))
        );
        let remote = region.remote();
        assert_eq!((remote.addr, remote.len, remote.key), (0, 10, 12));
        assert_eq!(remote.access, Access::REMOTE_READ);
    });
}

/// Ruling 8: "Not reading the queue delays only the objects that report to it": registrations
/// without a context go on when the queue is full.
#[test]
fn a_full_queue_harms_only_those_who_asked_for_events() {
    over_all_drivers(|net| async move {
        let fabric = net.net().fabric().unwrap();
        let events = fabric.event_queue().size(1).open().unwrap();
        let domain = fabric.domain().open().unwrap();
        domain.bind(&events, DomainBind::REG_MR).unwrap();
        // The only slot is taken from here on, before its event is written.
        domain.register(vec![0u8; 8]).submit(1u64).unwrap();
        let refused = domain.register(vec![0u8; 8]).submit(2u64).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Again);
        for _ in 0..50 {
            domain.register(vec![0u8; 8]).await.unwrap();
        }
        drop(complete(events.next().await));
        assert_eq!((events.len(), domain.region_count()), (0, 0));
    });
}
