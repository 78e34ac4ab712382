//! Promises of the memory model that this folder keeps. The unsafe code of the tests reads and
//! writes through spans as the kernel would.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::quiesced_access::Quiescing;
use super::span::Span;
use super::*;
use crate::limits::{SPAN_LIST_MAX, STAGES_PER_THREAD_MAX};
use crate::sync::{DrainScope, GateError, Role};

mod regions;
mod rights;
mod spare;

fn memory(segments: &[&[u8]]) -> Arc<RegionMemory> {
    let owned: Vec<_> = segments
        .iter()
        .map(|it| OwnedBuffer::from(it.to_vec()))
        .collect();
    RegionMemory::new(owned, RegionTraits::plain(0)).unwrap()
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
        // SAFETY: the callers own the writable payload and nothing else touches it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), span.as_ptr(), now.len()) };
        bytes = rest;
    }
}

fn round_trip<B: IoBuf>(buffer: B) -> B {
    let payload = buffer.into_payload(LocalUse::Send).ok().unwrap();
    // The payload is moved about, as operations are.
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
    assert_eq!(OwnedBuffer::from(vec).len(), 10);
    let mut bytes = BytesMut::with_capacity(100);
    bytes.extend_from_slice(&[1; 10]);
    assert_eq!(OwnedBuffer::from(bytes).span().len(), 10);
    assert_eq!(Payload::from_vec(Vec::new()).len(), 0);
}

/// api.md decision 1: whatever is dropped, the buffer lives as long as anything can touch it: an
/// owner that was taken apart is freed exactly once, as its own type would be.
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
    let payload = Payload::from_parts(vec![
        Memory::Owned(Bytes::from_owner(Owner(Arc::clone(&freed))).into()),
        Memory::Owned(Arc::clone(&counted).into()),
        Memory::Owned(vec![0; 5].into()),
        Memory::Owned(Box::<[u8]>::from(&b"boxed"[..]).into()),
        Memory::Owned(String::from("text").into()),
        Memory::Owned(BytesMut::from(&b"m"[..]).into()),
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
    assert_eq!((payload.len(), payload.buffer_count()), (3, 3));
    let three = <[Vec<u8>; 3]>::from_payload(payload).unwrap();
    assert_eq!(three.each_ref().map(|it| it.as_ptr()), at);

    let many = Vec::from(three.clone());
    assert_eq!((ConvertMany::count(&many), many.total_len()), (3, 3));
    let payload = many.into_payload(LocalUse::Send).ok().unwrap();
    assert_eq!(Vec::<Vec<u8>>::from_payload(payload).unwrap(), three);

    let none: [Vec<u8>; 0] = [];
    let payload = none.into_payload(LocalUse::Send).ok().unwrap();
    assert_eq!((payload.len(), payload.buffer_count()), (0, 0));
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
    let mut buffer = Payload::from_vec(vec).into_buffers().pop().unwrap();
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

/// A batch of three frames, and all their bytes: two frames have payloads, and between them is one
/// whose bytes were appended to the heads.
fn three_frames() -> (SendBatch, &'static [u8]) {
    let parts = vec![
        Memory::Owned(b"payload "[..].to_vec().into()),
        Memory::Owned("in pieces".into()),
    ];
    let write = |head: &'static [u8]| move |room: &mut [u8]| room.copy_from_slice(head);
    let mut batch = SendBatch::default();
    batch.push(6, write(b"header"), Payload::from_parts(parts), 1);
    batch.heads_mut().extend_from_slice(b"copied");
    batch.push_appended(6, 2);
    batch.push(2, write(b"h3"), Payload::from_vec(b"end".to_vec()), 3);
    (batch, b"headerpayload in piecescopiedh3end")
}

/// House section 6: "tx: sent <= handed_out <= queued": the cursor covers heads and payloads, and
/// each frame that has gone gives its payload back.
#[test]
fn a_batch_gives_what_is_left_of_heads_and_payloads() {
    let (_, whole) = three_frames();
    for cut in 0..=whole.len() {
        let (mut batch, _) = three_frames();
        let (mut left, mut gone) = (cut, Vec::new());
        while let Some(step) = batch.advance(&mut left) {
            if !step.is_gone {
                break;
            }
            let payload = batch.pop().expect("it has gone");
            gone.push((step.token, payload.len()));
        }
        let ends = [23, 29, 34].iter().filter(|end| **end <= cut).count();
        assert_eq!(gone, [(1, 17), (2, 0), (3, 3)][..ends]);
        assert_eq!((left, batch.len()), (0, 3 - ends));
        assert_eq!(batch.remaining(), whole.len() - cut);
        for limit in [0, 1, 5, usize::MAX] {
            let mut list = SpanList::new();
            batch.spans(limit, &mut list);
            let expected = &whole[cut..][..limit.min(whole.len() - cut)];
            assert_eq!(read_spans(&list), expected);
            assert_eq!(list.bytes(), expected.len());
            for skipped in 0..=expected.len() {
                let mut copy = vec![0; expected.len() - skipped];
                let (count, refused) = batch.copy_out(skipped, CopyTo::Slice(&mut copy));
                assert!(refused.is_none());
                assert_eq!(&copy[..count], &expected[skipped..]);
                #[cfg(feature = "tls")]
                {
                    let mut slices = Slices::new();
                    assert_eq!(batch.slices(skipped, count, &mut slices), Some(count));
                    assert_eq!(slices.concat(), &expected[skipped..]);
                }
            }
        }
    }
}

/// A frame that takes another's place may have a longer head, or a shorter one; what is pushed
/// while the batch is away comes behind it.
#[test]
fn frames_of_a_batch_are_replaced_and_joined() {
    let write = |head: &'static [u8]| move |room: &mut [u8]| room.copy_from_slice(head);
    for head in [&b"a longer one"[..], b"s", b""] {
        let (mut batch, _) = three_frames();
        batch.drop_sent(3);
        batch.replace(1, head.len(), write(head), Payload::from_vec(vec![b'!']), 4);
        let mut meanwhile = SendBatch::default();
        meanwhile.push_bytes(b"hello".to_vec(), 5);
        let (mut sent, _) = three_frames();
        sent.drop_sent(29);
        meanwhile.append(&mut sent);
        assert!(sent.is_empty() && sent.remaining() == 0);
        batch.append(&mut meanwhile);
        let mut bytes = vec![0; batch.remaining()];
        batch.copy_out(0, CopyTo::Slice(&mut bytes));
        let parts: [&[u8]; 5] = [b"derpayload in pieces", head, b"!", b"h3end", b"helloh3end"];
        assert_eq!(bytes, parts.concat());
        let tokens: Vec<_> = batch.drain().map(|(token, _)| token).collect();
        assert_eq!(tokens, [1, 4, 3, 5, 3]);
    }
}

/// House rule 4 of the idea, "every queue has a bound": a full list takes no more and says so.
#[test]
fn span_list_is_bounded_and_skips_empty_spans() {
    let byte = [1u8];
    let mut list = SpanList::new();
    assert!(list.push(Span::of(&[])));
    assert!(list.is_empty());
    for _ in 0..SPAN_LIST_MAX {
        assert!(list.push(Span::of(&byte)));
    }
    assert!(list.is_full() && !list.push(Span::of(&byte)));
    assert_eq!((list.count(), list.bytes()), (128, 128));
    let many = (0..200).map(|_| Memory::Owned(vec![1].into())).collect();
    list.clear();
    Payload::from_parts(many).spans(0, 200, &mut list);
    assert_eq!(list.bytes(), 128);
}

/// Buffers of stages are reused, only a few lie idle, and none shows a former user's bytes.
#[test]
fn buffers_of_stages_are_used_again() {
    let mut first = Stage::take();
    let others: Vec<Stage> = (0..STAGES_PER_THREAD_MAX).map(|_| Stage::take()).collect();
    first.spare()[..5].copy_from_slice(b"hello");
    first.fill(5);
    first.advance(2);
    assert_eq!(&*first, b"llo");
    first.advance(3);
    assert!(first.is_empty());
    drop(first);
    assert_eq!(Stage::idle_count(), 1);
    let again = Stage::take();
    assert!(again.is_empty());
    assert_eq!(Stage::idle_count(), 0);
    drop((again, others));
    assert_eq!(Stage::idle_count(), STAGES_PER_THREAD_MAX);
}

/// Everything that crosses threads does.
#[test]
fn what_operations_hold_is_send_and_what_is_shared_is_sync() {
    fn send<T: Send>() {}
    fn sync<T: Send + Sync>() {}
    send::<Payload>();
    send::<Leases>();
    send::<OutFrame>();
    send::<Stage>();
    send::<Quiescing>();
    sync::<OwnedBuffer>();
    sync::<Buffer>();
    sync::<RegionMemory>();
    sync::<QuiescedAccess>();
}

/// One piece of a random payload: 0 a buffer, 1 a local use, 2 a peer's.
fn piece(kind: u8, bytes: &[u8], before: usize, after: usize) -> Memory {
    if kind == 0 {
        return Memory::Owned(bytes.to_vec().into());
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

    /// A payload is one range of bytes, whatever its parts: copies and spans agree with a plain
    /// vector, and touch nothing beside the range. Slices do too, and are of no region.
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
        #[cfg(feature = "tls")]
        let kinds: Vec<u8> = parts.iter().flat_map(|it| vec![it.0; it.1.len()]).collect();
        let parts =
            parts.iter().map(|(kind, bytes, before, after)| piece(*kind, bytes, *before, *after));
        let mut payload = Payload::from_parts(parts.collect());
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
            #[cfg(feature = "tls")]
            {
                let mut slices = Slices::new();
                let has_region = kinds[at..at + len].iter().any(|kind| *kind != 0);
                prop_assert_eq!(payload.slices(at, len, &mut slices), !has_region);
                prop_assert!(has_region || slices.concat() == oracle[at..at + len]);
            }
        }
        for piece in payload.into_parts() {
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

    /// What goes between a payload, of whatever memory, and shared memory is copied, at every
    /// offset, length and alignment of both; nothing beside it is touched.
    #[test]
    fn copies_between_payloads_and_shared_memory_equal_plain_ones(
        kind in 0u8..3,
        skips in (0usize..9, 0usize..9),
        len in 0usize..1200,
        seed in any::<u8>(),
    ) {
        let new: Vec<u8> = (0..len).map(|step| seed.wrapping_add(step as u8)).collect();
        let mut ring = vec![0u64; 160];
        let ring = Span::new(ring.as_mut_ptr().cast(), 1280);
        // SAFETY: the words are there to the end of the test, and are touched so alone.
        let (from, to) = unsafe {
            (
                |at, len| CopyFrom::shared(ring, at, len),
                |at, len| CopyTo::shared(ring, at, len),
            )
        };
        let mut payload = Payload::from_parts(vec![piece(kind, &new, skips.0, 3)]);
        payload.copy_out_to(0, to(skips.1, len)).unwrap();
        let mut seen = vec![1; 1280];
        from(0, 1280).read(&mut seen);
        let mut expected = vec![0; 1280];
        expected[skips.1..skips.1 + len].copy_from_slice(&new);
        prop_assert_eq!(&seen, &expected);

        let turned: Vec<u8> = new.iter().map(|byte| !byte).collect();
        to(skips.1, len).write(&turned);
        payload.copy_in_from(0, from(skips.1, len)).unwrap();
        let mut seen = vec![0; len];
        payload.copy_out(0, &mut seen).unwrap();
        prop_assert_eq!(seen, turned);
        for piece in payload.into_parts() {
            if let Memory::Region(region) = piece {
                let mut whole = vec![0; region.memory().len()];
                region.memory().read_at(0, &mut whole).unwrap();
                whole.drain(region.offset()..region.offset() + region.len());
                prop_assert!(whole.iter().all(|byte| *byte == 0xEE), "beside the range");
            }
        }
    }
}
