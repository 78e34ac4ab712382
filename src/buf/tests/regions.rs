//! Promises about the bytes of regions: access to them, and their lifetime.

use super::*;

/// Rule 2: "All access goes through `buf/copy.rs`: one module, one written argument, volatile or
/// byte-atomic copies between raw spans": bytes beside a copy, in the same word, are never lost.
#[test]
fn concurrent_copies_into_one_word_lose_no_byte() {
    let memory = memory(&[&[0; 24]]);
    std::thread::scope(|scope| {
        for byte in 0..24 {
            let memory = &memory;
            scope.spawn(move || {
                for value in 1..=if cfg!(miri) { 3 } else { 2_000u32 } {
                    memory.write_at(byte, &[value as u8]).unwrap();
                    let mut seen = [0];
                    memory.read_at(byte, &mut seen).unwrap();
                    assert_eq!(seen[0], value as u8, "only this thread writes this byte");
                }
            });
        }
    });
}

/// Rule 6: "Atomics act on naturally aligned addresses (checked; a `Vec<u8>` promises no
/// alignment)", everywhere in a segment, also in its first and last bytes; and never across
/// buffers.
#[test]
fn aligned_integers_are_changed_whole_and_others_refused() {
    let size_max = 24;
    for skip in 0..8 {
        for len in 1..=size_max {
            // A region that begins anywhere and ends anywhere, with bytes around it in other ones.
            let whole = Bytes::from(vec![0; 64]);
            let lead = (whole.as_ptr().addr().wrapping_neg() % 8 + skip) % 8;
            let mut first = BytesMut::from(whole);
            let mut middle = first.split_off(lead);
            let last = middle.split_off(len);
            let memory = RegionMemory::new(vec![middle.into()], RegionTraits::plain(0)).unwrap();
            let base = memory.base_addr() as usize;
            for size in [1, 2, 4, 8] {
                for offset in 0..size_max + 8 {
                    let fits = (base + offset).is_multiple_of(size) && offset + size <= len;
                    memory.write_at(0, &vec![7; len]).unwrap();
                    let mut seen = 0;
                    let updated = memory.update(offset, size, |old| {
                        seen += 1;
                        assert_eq!(old[..size], [7; 8][..size]);
                        Some([9; 8])
                    });
                    let expected = fits.then(|| {
                        let mut old = [0; 8];
                        old[..size].fill(7);
                        old
                    });
                    assert_eq!((updated, seen), (Ok(expected), usize::from(fits)));
                    let mut bytes = vec![0; len];
                    memory.read_at(0, &mut bytes).unwrap();
                    let changed = |at: usize| fits && (offset..offset + size).contains(&at);
                    let right = bytes
                        .iter()
                        .enumerate()
                        .all(|(at, byte)| match changed(at) {
                            true => *byte == 9,
                            false => *byte == 7,
                        });
                    assert!(right, "{size} at {offset} of {len} at {skip}: {bytes:?}");
                }
            }
            assert!(first.iter().chain(&last).all(|byte| *byte == 0));
        }
    }
    let two = memory(&[&[0; 32], &[0; 4]]);
    for offset in [29, 36, usize::MAX - 3, usize::MAX] {
        assert_eq!(
            two.update(offset, 8, |_| panic!("never asked")),
            Ok(None),
            "{offset}"
        );
    }
    let fixed: &'static [u8] = &[5; 16];
    let fixed = RegionMemory::new(vec![fixed.into()], RegionTraits::plain(0)).unwrap();
    assert_eq!(fixed.update(0, 1, |_| panic!("never asked")), Ok(None));
}

/// Rule 6: "with CPU atomics": no update is lost, whatever sizes share a word, beside plain copies
/// to its other bytes.
#[test]
fn updates_of_neighbours_are_not_lost() {
    const ROUNDS: u32 = if cfg!(miri) { 5 } else { 20_000 };
    let memory = memory(&[&[0; 16]]);
    let first = (memory.base_addr().wrapping_neg() % 8) as usize;
    let add = |offset: usize, size: usize| {
        let added = memory.update(offset, size, |old| {
            Some((u64::from_le_bytes(old).wrapping_add(1)).to_le_bytes())
        });
        assert!(added.unwrap().is_some());
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..ROUNDS).for_each(|_| add(first, 4)));
            scope.spawn(|| (0..ROUNDS).for_each(|_| add(first + 4, 2)));
        }
        scope.spawn(|| (0..ROUNDS).for_each(|at| memory.write_at(first + 7, &[at as u8]).unwrap()));
    });
    if cfg!(target_endian = "little") {
        let mut bytes = [0; 8];
        memory.read_at(first, &mut bytes).unwrap();
        assert_eq!(
            u32::from_le_bytes(bytes[..4].try_into().unwrap()),
            2 * ROUNDS
        );
        let half = u16::from_le_bytes(bytes[4..6].try_into().unwrap());
        assert_eq!(half, (2 * ROUNDS) as u16);
        assert_eq!(bytes[7], (ROUNDS - 1) as u8);
    }
}

/// Rule 4: "Leases are per kernel operation": a peer's use enters only while leased, and is refused
/// once the region is; a local use is inside from its making to its drop.
#[test]
fn leases_are_taken_per_kernel_operation() {
    let memory = memory(&[b"0123456789"]);
    let noop = Waker::noop();
    let remote = RegionUse::remote(Arc::clone(&memory), 2, 5);
    let mut payload = Payload::from_region_uses(vec![remote]);
    let drained = |roles| memory.gate().poll_drained(roles, &mut None, noop);
    assert_eq!(drained(DrainScope::All), Poll::Ready(()));

    let leases = payload.lease().unwrap();
    assert!(!leases.is_empty());
    assert_eq!(drained(DrainScope::Remote), Poll::Pending);
    memory.gate().revoke();
    assert_eq!(payload.lease().unwrap_err(), GateError::Revoked);
    assert_eq!(payload.copy_in(0, b"ab"), Err(GateError::Revoked.into()));
    assert_eq!(
        payload.copy_out(0, &mut [0; 2]),
        Err(GateError::Revoked.into())
    );
    drop(leases);
    assert_eq!(drained(DrainScope::Remote), Poll::Ready(()));

    let local = RegionUse::local(Arc::clone(&memory), 0, 10).unwrap();
    assert_eq!(local.role(), Role::Local);
    let mut payload = Payload::from_memory(Memory::Region(local));
    assert!(payload.needs_no_lease() && payload.lease().unwrap().is_empty());
    payload.copy_in(0, b"xy").unwrap();
    assert_eq!(drained(DrainScope::All), Poll::Pending);
    drop(payload);
    assert_eq!(drained(DrainScope::All), Poll::Ready(()));
}

/// Invariant "no lease outlives memory": with the last handle gone, a payload and its leases keep
/// the bytes at the addresses that were given to the kernel.
#[test]
fn leased_memory_outlives_its_region_handle() {
    let memory = memory(&[b"still", b"here"]);
    let remote = RegionUse::remote(Arc::clone(&memory), 3, 4);
    let payload = Payload::from_region_uses(vec![remote]);
    let leases = payload.lease().unwrap();
    memory.gate().close().unwrap();
    assert!(memory.take().is_none(), "a lease is out");
    drop(memory);
    let mut list = SpanList::new();
    payload.spans(0, 4, &mut list);
    assert_eq!(read_spans(&list), b"llhe");
    drop(leases);
}

/// Rule 4: the region's memory comes back when *kernel operations* have ended, "even if the peer
/// stalls in mid-payload": an unleased use does not hold the buffers, and finds the gate shut.
#[test]
fn stalled_peer_does_not_hold_the_buffers() {
    let memory = memory(&[b"bytes"]);
    let at = memory.base_addr();
    let stalled = RegionUse::remote(Arc::clone(&memory), 0, 5);
    let mut stalled = Payload::from_region_uses(vec![stalled]);
    assert!(memory.take().is_none(), "open regions keep their buffers");
    memory.gate().close().unwrap();
    let vec = memory.take().unwrap().pop().unwrap().into_vec().unwrap();
    assert_eq!((vec.as_ptr().addr() as u64, &vec[..]), (at, &b"bytes"[..]));
    assert!(memory.take().is_none(), "given away once");
    drop(vec);
    assert_eq!(stalled.copy_in(0, b"late"), Err(GateError::Closed.into()));
    assert!(stalled.lease().is_err());
}

/// Rule 3: "A `Quiesced` guard gives `&mut [u8]`: taking it excludes peers, local operations on the
/// region and all clones"; the future that waits for it may be dropped.
#[tokio::test]
async fn exclusion_gives_slices_and_ends_with_guard_or_future() {
    let memory = memory(&[b"ab", b"cde"]);
    let user = RegionUse::local(Arc::clone(&memory), 0, 1).unwrap();
    let mut waiting = Box::pin(memory.quiesce().unwrap());
    assert!(futures::poll!(&mut waiting).is_pending());
    assert_eq!(memory.write_at(0, b"x"), Err(GateError::Quiesced.into()));
    drop(waiting);
    memory.write_at(0, b"x").unwrap();
    let waiting = memory.quiesce().unwrap();
    drop(user);
    let mut guard = waiting.await;
    assert!(memory.quiesce().is_err());
    assert_eq!(
        (guard.segment(0), guard.segment(1)),
        (&b"xb"[..], &b"cde"[..])
    );
    guard.segment_mut(1)[2] = b'f';
    let slices: Vec<_> = guard.segments_mut().collect();
    assert_eq!(slices, [&b"xb"[..], &b"cdf"[..]]);
    assert_eq!(memory.gate().close(), Err(GateError::Quiesced));
    drop(guard);
    let mut bytes = [0; 5];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"xbcdf");
}

/// Rule 3: a read-only region gives `&[u8]`; taking its buffers shares them, so that slices given
/// out before stay good.
#[test]
fn read_only_memory_is_shared_and_never_taken() {
    let counted: Arc<[u8]> = Arc::from(&b"counted"[..]);
    for owned in [
        OwnedBuffer::from(Bytes::from(vec![1, 2, 3])),
        OwnedBuffer::from(Arc::clone(&counted)),
        OwnedBuffer::from(&b"static"[..]),
        OwnedBuffer::from("text"),
    ] {
        let memory = RegionMemory::new(vec![owned], RegionTraits::plain(0)).unwrap();
        let slice = memory.as_read_only().unwrap();
        let copy = slice.to_vec();
        memory.gate().close().unwrap();
        drop(memory.take().unwrap());
        drop(memory.take().unwrap());
        assert_eq!(slice, copy);
    }
    assert_eq!(Arc::strong_count(&counted), 1);
    assert!(memory(&[b"writable"]).as_read_only().is_none());
    let mixed = vec![OwnedBuffer::from(vec![1]), OwnedBuffer::from("read-only")];
    assert_eq!(
        RegionMemory::new(mixed, RegionTraits::plain(0))
            .unwrap_err()
            .len(),
        2
    );
}

/// `FI_MR_ALLOCATED`, fi_mr(3): "all registered memory regions must be backed by physical memory
/// pages at the time the registration call is made".
#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn fault_in_makes_pages_present_and_keeps_bytes() {
    let page = rustix::param::page_size();
    let len = 64 * page + 123;
    // Zeroed by the system's allocator: no page is there before it is touched.
    let memory = RegionMemory::new(
        vec![vec![0; len].into(), vec![0; 10].into()],
        RegionTraits::plain(0),
    )
    .unwrap();
    memory.write_at(len - 1, b"end").unwrap();
    let chunk = 10 * page + 1;
    for from in (0..memory.len()).step_by(chunk) {
        memory
            .fault_in(from, chunk.min(memory.len() - from))
            .unwrap();
    }
    let start = (memory.base_addr() as usize).next_multiple_of(page);
    let mut present = vec![0u8; 64];
    // SAFETY: 64 whole pages from `start` may reach past the buffer by less than a page of the same
    // mapping; mincore only looks, and `present` has a byte for each page asked for.
    let code = unsafe {
        libc::mincore(
            start as *mut libc::c_void,
            63 * page,
            present.as_mut_ptr().cast(),
        )
    };
    assert_eq!(code, 0);
    assert!(
        present[..63].iter().all(|state| state & 1 == 1),
        "a page is missing"
    );
    let mut end = [0; 3];
    memory.read_at(len - 1, &mut end).unwrap();
    assert_eq!(&end, b"end");

    let fixed: &'static [u8] = &[3; 9000];
    let fixed = RegionMemory::new(vec![fixed.into()], RegionTraits::plain(0)).unwrap();
    fixed.fault_in(0, 9000).unwrap();
    fixed.gate().close().unwrap();
    assert!(fixed.fault_in(0, 1).is_err());
}
