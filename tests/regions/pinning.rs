//! Regions whose pages stay in memory, and the limit on that. What is locked is counted by process,
//! so one test runs the others in processes of their own.

use crate::common::alone::alone;
use tokio_fabric::{
    Domain, ErrorKind, EventQueue, Fabric, Hints,
    buf::{AddressRange, MappedBuffer},
    domain::{DomainBind, RegistrationProgress},
    info::MrMode,
};

const MIB: usize = 1 << 20;

/// Bytes that are locked, as the kernel counts them.
fn locked() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel's page");
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let number = line.expect("a line").trim().trim_end_matches(" kB");
    number.parse::<usize>().expect("a number") << 10
}

fn domain(mode: MrMode) -> (Domain, EventQueue) {
    let fabric = Fabric::open(Hints::new().domain(|domain| domain.required_mr_mode(mode))).unwrap();
    let domain = fabric.domain().open().unwrap();
    let events = fabric.event_queue().open().unwrap();
    domain.bind(&events, DomainBind::REG_MR).unwrap();
    (domain, events)
}

/// "pinning and fault-in happen only when asked": nothing is locked without, not even by a
/// registration that backs its pages; asked for, the pages of all buffers are, until the region has
/// gone; pages of two regions until both have.
#[test]
fn pages_are_pinned_only_when_asked_and_until_the_region_ends() {
    alone("pinning::pinned_pages_come_and_go");
    alone("pinning::in_a_process_with_a_limit");
}

#[tokio::test]
#[ignore = "the other process of another test"]
async fn pinned_pages_come_and_go() {
    for mode in [MrMode::empty(), MrMode::ALLOCATED] {
        let (domain, _events) = domain(mode);
        let plain = domain.register(MappedBuffer::new(MIB).unwrap()).await;
        assert_eq!(locked(), 0);
        let buffers = || [2 * MIB, 3 * MIB].map(|len| MappedBuffer::new(len).unwrap());
        let progress = RegistrationProgress::new();
        let register = domain.register(buffers()).pinned().progress(&progress);
        let pinned = register.await.unwrap();
        assert_eq!((locked(), progress.bytes_ready()), (5 * MIB, 5 * MIB));
        pinned.write_at(2 * MIB - 2, b"both").unwrap();
        let buffers = pinned.deregister().await.unwrap();
        assert_eq!((locked(), &buffers[1][..2]), (0, &b"th"[..]));

        let mapped = MappedBuffer::new(4 * MIB).unwrap();
        let start = mapped.as_ptr().cast_mut();
        // SAFETY: the buffer is not looked at while the regions exist.
        let part = |from: usize, len| unsafe { AddressRange::new(start.add(from), len) };
        let first = domain.register(part(100, MIB)).pinned().await.unwrap();
        let second = domain.register(part(MIB / 2, MIB)).pinned().await.unwrap();
        assert_eq!(locked(), MIB * 3 / 2);
        drop(first);
        assert_eq!(locked(), MIB);
        drop(second);
        assert_eq!(locked(), 0);
        // What is not mapped, or not readable, cannot be pinned. It is not the limit's doing.
        let closed = MappedBuffer::new(32 * MIB).unwrap();
        let place = closed.as_ptr().cast_mut();
        // SAFETY: the pages are the test's own, and are not read any more.
        let done = unsafe { libc::mprotect(place.cast(), 32 * MIB, libc::PROT_NONE) };
        assert_eq!(done, 0);
        // SAFETY: as for `part`.
        let closed_range = unsafe { AddressRange::new(place, 32 * MIB) };
        for missing in [part(3 * MIB, 1 << 40), closed_range] {
            let failed = domain.register(missing).pinned().await.unwrap_err();
            assert_eq!(locked(), 0, "nothing of it is left");
            assert_eq!(failed.kind(), ErrorKind::BadAddress, "{failed}");
        }
        drop((plain, mapped));
    }
}

/// "Pinning honours RLIMIT_MEMLOCK with a clear error": the kind, the limit by name and number, and
/// the buffers back; what fits goes on.
#[test]
#[ignore = "run by the other with a limit of its own"]
fn in_a_process_with_a_limit() {
    give_up_privilege();
    let limit = libc::rlimit {
        rlim_cur: 2 * MIB as u64,
        rlim_max: 2 * MIB as u64,
    };
    // SAFETY: the limit is a plain value that outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
    // Its threads are made by this one, which has no privilege.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (domain, events) = domain(MrMode::empty());
        let fits = domain.register(MappedBuffer::new(MIB).unwrap()).pinned();
        let fits = fits.await.unwrap();
        let buffer = MappedBuffer::new(5 * MIB / 4).unwrap();
        let place = buffer.as_ptr();
        let failed = domain.register(buffer).pinned().context(1u64).await;
        let failed = failed.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::LimitReached);
        let words = failed.error().to_string();
        for part in ["RLIMIT_MEMLOCK", "2097152", "1048576"] {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(failed.into_parts().1.unwrap().as_ptr(), place);
        assert_eq!((events.len(), locked(), domain.region_count()), (1, MIB, 1));
        drop(fits);
        let fits = domain.register(vec![0u8; MIB]).pinned().await.unwrap();
        assert!(locked() >= MIB);
        drop(fits);
        assert_eq!(locked(), 0);
    });
}

/// The system lets privileged threads lock what they like.
fn give_up_privilege() {
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    let nothing = [0u32; 6];
    // SAFETY: the two arrays are a header and data of this version, and outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), nothing.as_ptr()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
