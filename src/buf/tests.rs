//! Promises of the memory model that this folder keeps. The unsafe code of the tests reads and
//! writes through spans as the kernel would.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::exclusive::Quiescing;
use super::span::Span;
use super::*;
use crate::sync::{Drained, GateClosed, Role};

fn memory(segments: &[&[u8]]) -> Arc<RegionMemory> {
    let held: Vec<_> = segments.iter().map(|it| Held::from(it.to_vec())).collect();
    RegionMemory::new(held, RegionTraits::plain(0)).unwrap()
}

/// Reads through the spans, as `sendmsg` would.
fn read_spans(list: &SpanList) -> Vec<u8> {
    let mut bytes = Vec::new();
    for span in list.iter() {
        // SAFETY: the callers keep the payload and its leases, and write nothing meanwhile.
        bytes.extend(unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len()) });
    }
    bytes
}

/// Writes through the spans, as `recvmsg` would.
fn write_spans(list: &SpanList, mut bytes: &[u8]) {
    for span in list.iter() {
        let (now, rest) = bytes.split_at(span.len());
        // SAFETY: the callers own the writable payload and nobody else touches it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), span.as_ptr(), now.len()) };
        bytes = rest;
    }
}

fn round_trip<B: IoBuf>(buffer: B) -> B {
    let payload = buffer.into_payload(LocalUse::Send).ok().unwrap();
    // Moved about, as operations are.
    let boxed = Box::new(payload);
    B::from_payload(*boxed).expect("the same type comes back")
}

/// Rule 1: "An operation owns its buffer from post to end", and api.md decision 1: "gives it back
/// with the result": the very buffer, of the same type, not a copy.
#[test]
fn every_buffer_type_comes_back_itself() {
    let mut vec = Vec::with_capacity(64);
    vec.extend_from_slice(b"vector");
    let (at, capacity) = (vec.as_ptr(), vec.capacity());
    let vec = round_trip(vec);
    assert_eq!(
        (vec.as_ptr(), vec.capacity(), &vec[..]),
        (at, capacity, &b"vector"[..])
    );

    let boxed: Box<[u8]> = Box::from(&b"boxed"[..]);
    let at = boxed.as_ptr();
    let boxed = round_trip(boxed);
    assert_eq!((boxed.as_ptr(), &*boxed), (at, &b"boxed"[..]));

    let text = String::from("text");
    let at = text.as_ptr();
    let text = round_trip(text);
    assert_eq!((text.as_ptr(), &*text), (at, "text"));

    let counted: Arc<[u8]> = Arc::from(&b"counted"[..]);
    let other = Arc::clone(&counted);
    let counted = round_trip(counted);
    assert!(Arc::ptr_eq(&counted, &other));
    assert_eq!(Arc::strong_count(&other), 2);

    let bytes = Bytes::from(vec![1, 2, 3]);
    let at = bytes.as_ptr();
    assert_eq!(round_trip(bytes).as_ptr(), at);

    let bytes_mut = BytesMut::from(&b"mutable"[..]);
    let at = bytes_mut.as_ptr();
    let bytes_mut = round_trip(bytes_mut);
    assert_eq!((bytes_mut.as_ptr(), &*bytes_mut), (at, &b"mutable"[..]));

    let fixed: &'static [u8] = b"static";
    assert_eq!(round_trip(fixed).as_ptr(), fixed.as_ptr());
    let fixed: &'static str = "static";
    assert_eq!(round_trip(fixed).as_ptr(), fixed.as_ptr());

    let buffer = Buffer::from(vec![7; 3]);
    let at = buffer.as_ptr();
    assert_eq!(round_trip(buffer).as_ptr(), at);
}

/// Rule 1: "Only initialised bytes are registered or sent": the length counts, not the capacity.
#[test]
fn only_the_initialised_bytes_are_offered() {
    let mut vec = Vec::with_capacity(100);
    vec.extend_from_slice(&[1; 10]);
    assert_eq!(Held::from(vec).len(), 10);
    let mut bytes = BytesMut::with_capacity(100);
    bytes.extend_from_slice(&[1; 10]);
    assert_eq!(Held::from(bytes).span().len(), 10);
    assert_eq!(Payload::from_vec(Vec::new()).len(), 0);
}

/// api.md decision 1: dropping detaches, and "the buffer lives until nobody can touch it": an owner
/// that was taken apart is freed exactly once, as its own type would be.
#[test]
fn dropped_payload_frees_each_buffer_once() {
    struct Owner(Arc<AtomicBool>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            b"owned"
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            assert!(!self.0.swap(true, Ordering::SeqCst), "freed twice");
        }
    }
    let freed = Arc::new(AtomicBool::new(false));
    let counted: Arc<[u8]> = Arc::from(&b"counted"[..]);
    let payload = Payload::from_pieces(vec![
        Memory::Held(Bytes::from_owner(Owner(Arc::clone(&freed))).into()),
        Memory::Held(Arc::clone(&counted).into()),
        Memory::Held(vec![0; 5].into()),
        Memory::Held(Box::<[u8]>::from(&b"boxed"[..]).into()),
        Memory::Held(String::from("text").into()),
        Memory::Held(BytesMut::from(&b"m"[..]).into()),
    ]);
    assert_eq!(Arc::strong_count(&counted), 2);
    assert!(!freed.load(Ordering::SeqCst));
    drop(payload);
    assert_eq!(Arc::strong_count(&counted), 1);
    assert!(freed.load(Ordering::SeqCst));
}

/// House rule 18, "Buffers go in by value and come back": arrays and vectors of buffers come back
/// in order, and a payload of other buffers is not mistaken for them.
#[test]
fn several_buffers_come_back_in_order_and_only_as_what_they_were() {
    let three = [vec![1], vec![2, 2], vec![]];
    let at = three.each_ref().map(|it| it.as_ptr());
    let payload = three.into_payload(LocalUse::Send).ok().unwrap();
    assert_eq!((payload.len(), payload.piece_count()), (3, 3));
    let three = <[Vec<u8>; 3]>::from_payload(payload).unwrap();
    assert_eq!(three.each_ref().map(|it| it.as_ptr()), at);

    let many = Vec::from(three.clone());
    assert_eq!((ConvertMany::count(&many), many.total_len()), (3, 3));
    let payload = many.into_payload(LocalUse::Send).ok().unwrap();
    assert_eq!(Vec::<Vec<u8>>::from_payload(payload).unwrap(), three);

    let none: [Vec<u8>; 0] = [];
    let payload = none.into_payload(LocalUse::Send).ok().unwrap();
    assert_eq!((payload.len(), payload.piece_count()), (0, 0));
    assert!(<[Vec<u8>; 0]>::from_payload(payload).is_some());

    let payload = vec![1u8].into_payload(LocalUse::Send).ok().unwrap();
    assert!(Bytes::from_payload(payload).is_none());
    let payload = three.into_payload(LocalUse::Send).ok().unwrap();
    assert!(<[Vec<u8>; 2]>::from_payload(payload).is_none());
}

/// `Buffer`'s promise: the very buffer that went in, with its type put aside.
#[test]
fn buffer_gives_bytes_vec_and_type_back() {
    let vec = vec![1, 2, 3];
    let at = vec.as_ptr();
    let mut buffer = Payload::from_vec(vec).into_buffers().take_first().unwrap();
    buffer.as_mut_slice().unwrap()[0] = 9;
    assert_eq!((&*buffer, buffer.len()), (&[9, 2, 3][..], 3));
    assert_eq!(format!("{buffer:?}"), "Buffer(3 bytes)");
    let buffer = buffer.downcast::<Bytes>().unwrap_err();
    let back = buffer.downcast::<Vec<u8>>().unwrap();
    assert_eq!(back.as_ptr(), at);

    let mut buffer = Buffer::new(Bytes::from_static(b"fixed").into());
    assert!(
        buffer.as_mut_slice().is_none(),
        "Bytes may have other owners"
    );
    let buffer = buffer.into_vec().unwrap_err();
    assert_eq!(buffer.downcast::<Bytes>().unwrap(), "fixed");
    let boxed: Box<[u8]> = Box::from(&b"boxed"[..]);
    let at = boxed.as_ptr();
    let back = Buffer::new(boxed.into()).into_vec().unwrap();
    assert_eq!(back.as_ptr(), at);
}

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
    assert_eq!(drained(Drained::All), Poll::Ready(()));

    let leases = payload.lease().unwrap();
    assert!(!leases.is_empty());
    assert_eq!(drained(Drained::Remote), Poll::Pending);
    memory.gate().revoke();
    assert_eq!(payload.lease().unwrap_err(), GateClosed::Revoked);
    assert_eq!(payload.copy_in(0, b"ab"), Err(GateClosed::Revoked.into()));
    assert_eq!(
        payload.copy_out(0, &mut [0; 2]),
        Err(GateClosed::Revoked.into())
    );
    drop(leases);
    assert_eq!(drained(Drained::Remote), Poll::Ready(()));

    let local = RegionUse::local(Arc::clone(&memory), 0, 10).unwrap();
    assert_eq!(local.role(), Role::Local);
    let mut payload = Payload::from_memory(Memory::Region(local));
    assert!(payload.needs_no_lease() && payload.lease().unwrap().is_empty());
    payload.copy_in(0, b"xy").unwrap();
    assert_eq!(drained(Drained::All), Poll::Pending);
    drop(payload);
    assert_eq!(drained(Drained::All), Poll::Ready(()));
}

/// Invariant "no lease outlives memory": with the last handle gone, a payload and its leases keep
/// the bytes where the kernel was told they are.
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
    let vec = memory
        .take()
        .unwrap()
        .into_one()
        .unwrap()
        .into_vec()
        .unwrap();
    assert_eq!((vec.as_ptr().addr() as u64, &vec[..]), (at, &b"bytes"[..]));
    assert!(memory.take().is_none(), "given away once");
    drop(vec);
    assert_eq!(stalled.copy_in(0, b"late"), Err(GateClosed::Closed.into()));
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
    assert_eq!(memory.write_at(0, b"x"), Err(GateClosed::Quiesced.into()));
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
    assert_eq!(memory.gate().close(), Err(GateClosed::Quiesced));
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
    for held in [
        Held::from(Bytes::from(vec![1, 2, 3])),
        Held::from(Arc::clone(&counted)),
        Held::from(&b"static"[..]),
        Held::from("text"),
    ] {
        let memory = RegionMemory::new(vec![held], RegionTraits::plain(0)).unwrap();
        let slice = memory.as_read_only().unwrap();
        let copy = slice.to_vec();
        memory.gate().close().unwrap();
        drop(memory.take().unwrap());
        drop(memory.take().unwrap());
        assert_eq!(slice, copy);
    }
    assert_eq!(Arc::strong_count(&counted), 1);
    assert!(memory(&[b"writable"]).as_read_only().is_none());
    let mixed = vec![Held::from(vec![1]), Held::from("read-only")];
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

/// House section 6: "tx: sent <= handed_out <= queued": the cursor covers header and payload.
#[test]
fn frame_gives_what_is_left_of_header_and_payload() {
    let whole = b"headerpayload in pieces";
    for cut in 0..=whole.len() {
        let pieces = vec![
            Memory::Held(b"payload "[..].to_vec().into()),
            Memory::Held("in pieces".into()),
        ];
        let mut frame = Frame::new(b"header", Payload::from_pieces(pieces), 7);
        assert_eq!((frame.len(), frame.token()), (whole.len(), 7));
        frame.advance(cut);
        assert_eq!(frame.remaining(), whole.len() - cut);
        for limit in [0, 1, 5, usize::MAX] {
            let mut list = SpanList::new();
            frame.spans(limit, &mut list);
            let expected = &whole[cut..][..limit.min(whole.len() - cut)];
            assert_eq!(read_spans(&list), expected);
            assert_eq!(list.bytes(), expected.len());
            let mut copy = vec![0; limit.min(100)];
            let count = frame.copy_out(&mut copy).unwrap();
            assert_eq!(
                &copy[..count],
                &whole[cut..][..copy.len().min(whole.len() - cut)]
            );
        }
        assert_eq!(frame.is_done(), cut == whole.len());
        assert_eq!(frame.into_payload().len(), 17);
    }
}

/// House rule 4 of the idea, "every queue has a bound": a full list takes no more and says so.
#[test]
fn span_list_is_bounded_and_skips_empty_spans() {
    let byte = [1u8];
    let mut list = SpanList::new();
    assert!(list.push(Span::of(&[])));
    assert!(list.is_empty());
    for _ in 0..span::SPAN_LIST_MAX {
        assert!(list.push(Span::of(&byte)));
    }
    assert!(list.is_full() && !list.push(Span::of(&byte)));
    assert_eq!((list.count(), list.bytes()), (128, 128));
    let many = (0..200).map(|_| Memory::Held(vec![1].into())).collect();
    list.clear();
    Payload::from_pieces(many).spans(0, 200, &mut list);
    assert_eq!(list.bytes(), 128);
}

/// `StagePool`'s promise: buffers are reused, at most so many lie idle, and none shows a former
/// user's bytes.
#[test]
fn stages_return_to_their_pool_empty() {
    let pool = StagePool::new(1);
    let (mut first, second) = (pool.take(), pool.take());
    first.spare()[..5].copy_from_slice(b"hello");
    first.fill(5);
    first.advance(2);
    assert_eq!(&*first, b"llo");
    first.advance(3);
    assert!(first.is_empty());
    drop(first);
    drop(second);
    assert_eq!(pool.idle_count(), 1);
    let again = pool.take();
    assert!(again.is_empty());
    assert_eq!(pool.idle_count(), 0);
}

/// Everything that crosses threads does.
#[test]
fn what_operations_hold_is_send_and_what_is_shared_is_sync() {
    fn send<T: Send>() {}
    fn sync<T: Send + Sync>() {}
    send::<Payload>();
    send::<Leases>();
    send::<Frame>();
    send::<Stage>();
    send::<Quiescing>();
    sync::<Held>();
    sync::<Buffer>();
    sync::<RegionMemory>();
    sync::<Exclusive>();
    sync::<StagePool>();
}

/// One piece of a random payload: 0 a buffer, 1 a local use, 2 a peer's.
fn piece(kind: u8, bytes: &[u8], before: usize, after: usize) -> Memory {
    if kind == 0 {
        return Memory::Held(bytes.to_vec().into());
    }
    let mut whole = vec![0xEE; before];
    whole.extend_from_slice(bytes);
    whole.extend(vec![0xEE; after]);
    // Two segments, cut in the middle of it all.
    let tail = whole.split_off(whole.len() / 2);
    let memory =
        RegionMemory::new(vec![whole.into(), tail.into()], RegionTraits::plain(0)).unwrap();
    Memory::Region(if kind == 1 {
        RegionUse::local(memory, before, bytes.len()).unwrap()
    } else {
        RegionUse::remote(memory, before, bytes.len())
    })
}

/// As many cases as `PROPTEST_CASES` asks for; few where each takes long.
fn cases() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig::with_cases(4)
    } else {
        ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    /// A payload is one range of bytes, whatever its pieces: copies and spans agree with a plain
    /// vector, and touch nothing beside the range.
    #[test]
    fn payload_behaves_as_one_range_of_bytes(
        parts in prop::collection::vec(
            (0u8..3, prop::collection::vec(any::<u8>(), 0..40), 0usize..20, 0usize..20),
            0..6,
        ),
        edits in prop::collection::vec(
            (any::<u16>(), any::<u16>(), any::<u8>(), any::<bool>()),
            0..8,
        ),
    ) {
        let mut oracle: Vec<u8> = parts.iter().flat_map(|it| it.1.clone()).collect();
        let pieces =
            parts.iter().map(|(kind, bytes, before, after)| piece(*kind, bytes, *before, *after));
        let mut payload = Payload::from_pieces(pieces.collect());
        prop_assert_eq!(payload.len(), oracle.len());
        for (at, len, value, through_spans) in edits {
            let at = usize::from(at) % (oracle.len() + 1);
            let len = usize::from(len) % (oracle.len() - at + 1);
            let new: Vec<u8> = (0..len).map(|step| value.wrapping_add(step as u8)).collect();
            if through_spans {
                let leases = payload.lease().unwrap();
                let mut list = SpanList::new();
                payload.spans(at, len, &mut list);
                prop_assert_eq!(list.bytes(), len);
                write_spans(&list, &new);
                drop(leases);
            } else {
                payload.copy_in(at, &new).unwrap();
            }
            oracle[at..at + len].copy_from_slice(&new);
            let mut seen = vec![0; oracle.len() - at];
            payload.copy_out(at, &mut seen).unwrap();
            prop_assert_eq!(&seen, &oracle[at..]);
        }
        for piece in payload.into_pieces() {
            if let Memory::Region(region) = piece {
                let mut whole = vec![0; region.memory().len()];
                region.memory().read_at(0, &mut whole).unwrap();
                whole.drain(region.offset()..region.offset() + region.len());
                prop_assert!(whole.iter().all(|byte| *byte == 0xEE), "beside the range");
            }
        }
    }

    /// A shared copy is a copy, at every offset, length and alignment of the segment.
    #[test]
    fn shared_copies_equal_plain_ones(
        len in 0usize..80,
        skip in 0usize..9,
        at in any::<u8>(),
        count in any::<u8>(),
        seed in any::<u8>(),
    ) {
        // BytesMut lets the segment begin at any alignment.
        let mut whole = BytesMut::zeroed(len + skip);
        let segment = whole.split_off(skip);
        let memory = RegionMemory::new(vec![segment.into()], RegionTraits::plain(0)).unwrap();
        let at = usize::from(at) % (len + 1);
        let count = usize::from(count) % (len - at + 1);
        let new: Vec<u8> = (0..count).map(|step| seed.wrapping_add(step as u8) | 1).collect();
        memory.write_at(at, &new).unwrap();
        let mut all = vec![0; len];
        memory.read_at(0, &mut all).unwrap();
        let mut expected = vec![0; len];
        expected[at..at + count].copy_from_slice(&new);
        prop_assert_eq!(&all, &expected);
        let mut part = vec![0; count];
        memory.read_at(at, &mut part).unwrap();
        prop_assert_eq!(part, new);
    }
}
