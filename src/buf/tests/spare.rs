//! Capacity that is offered to receives.

use std::panic::AssertUnwindSafe;

use super::*;

/// Offers these buffers to a receive, fills them with these bytes, and returns them.
fn filled<B: IoBufsMut>(buffers: B, bytes: &[u8]) -> B {
    let mut payload = Box::new(buffers.into_payload(LocalUse::Receive).ok().unwrap());
    payload.copy_in(0, bytes).unwrap();
    payload.end(bytes.len());
    B::from_payload(*payload).unwrap()
}

/// `IoBufMut`: an empty buffer "offers its whole capacity", and only to what fills it.
#[test]
fn capacity_is_offered_by_what_is_empty_to_what_fills_it() {
    for usage in [LocalUse::Receive, LocalUse::Read] {
        let offered = Vec::<u8>::with_capacity(100).into_payload(usage);
        assert!(offered.ok().unwrap().len() >= 100);
        let offered = BytesMut::with_capacity(100).into_payload(usage);
        assert!(offered.ok().unwrap().len() >= 100);
        let mut begun = Vec::with_capacity(100);
        begun.push(1u8);
        assert_eq!(begun.into_payload(usage).ok().unwrap().len(), 1);
        assert_eq!(Vec::<u8>::new().into_payload(usage).ok().unwrap().len(), 0);
    }
    for usage in [LocalUse::Send, LocalUse::Write] {
        let sent = Vec::<u8>::with_capacity(100).into_payload(usage);
        assert_eq!(sent.ok().unwrap().len(), 0);
    }
    let owned = Vec::<u8>::with_capacity(100)
        .into_owned_buffer()
        .ok()
        .unwrap();
    assert_eq!(owned.len(), 0, "a region registers no capacity");
}

/// Rule 1: no byte is seen that was not received, on whichever way the buffer comes back.
#[test]
fn nothing_is_seen_of_capacity_that_was_not_received_into() {
    let offer = || {
        let mut used = vec![0xEE; 64];
        used.clear();
        used.into_payload(LocalUse::Receive).ok().unwrap()
    };
    // The buffers of a post that was refused, or of an operation that failed.
    assert_eq!(Vec::<u8>::from_payload(offer()).unwrap(), [0u8; 0]);
    // The buffer of a completion without its type.
    let buffer = offer().into_buffers().pop().unwrap();
    assert_eq!((&*buffer, buffer.len()), (&[][..], 0));
    assert_eq!(buffer.into_vec().unwrap(), [0u8; 0]);
    let mut ended = offer();
    ended.copy_in(0, b"seen").unwrap();
    ended.end(4);
    let buffer = ended.into_buffers().pop().unwrap();
    assert_eq!(&*buffer, b"seen");
    let back = buffer.downcast::<Vec<u8>>().unwrap();
    assert_eq!((&back[..], back.capacity()), (&b"seen"[..], 64));
    // Bytes behind a gap do not count, and bytes before one do.
    let mut gap = offer();
    gap.copy_in(10, b"behind").unwrap();
    gap.end(0);
    assert_eq!(Vec::<u8>::from_payload(gap).unwrap(), [0u8; 0]);
    let mut gap = offer();
    gap.copy_in(0, b"before").unwrap();
    gap.copy_in(10, b"behind").unwrap();
    gap.copy_in(3, b"ore and").unwrap();
    gap.end(10);
    assert_eq!(Vec::<u8>::from_payload(gap).unwrap(), b"before and");
    // Bytes that were not written are not read either.
    let mut partly = offer();
    partly.copy_in(0, b"seen").unwrap();
    let read = AssertUnwindSafe(|| partly.copy_out(0, &mut [0; 5]));
    let read = std::panic::catch_unwind(read);
    assert!(read.is_err(), "a read lies within what was written");
    // A buffer for many messages: its parts show zeros at most.
    let mut cursor = BufferCursor::new(offer(), 1).unwrap();
    let part = cursor.allocate(16).into_buffers().pop().unwrap();
    assert_eq!(&*part, [0; 16]);
    drop(cursor);
    assert_eq!(
        part.into_whole().unwrap().downcast::<Vec<u8>>().unwrap(),
        [0u8; 0]
    );
    // What is freed is freed as it was allocated.
    drop(offer());
}

proptest! {
    #![proptest_config(cases())]

    /// Several buffers, some with bytes and some with capacity alone, are filled in order: a buffer
    /// with bytes keeps its length, one without has the bytes that were received.
    #[test]
    fn buffers_are_filled_in_order_and_capacity_is_cut_to_what_came(
        shapes in prop::collection::vec((any::<bool>(), 0usize..40), 0..5),
        part in any::<u16>(),
        of_vec in any::<bool>(),
    ) {
        let make = |(spare, len): (bool, usize)| match spare {
            true => Vec::with_capacity(len),
            false => vec![0xEE; len],
        };
        let before: Vec<Vec<u8>> = shapes.iter().copied().map(make).collect();
        let offered: Vec<usize> = before
            .iter()
            .map(|it| if it.is_empty() { it.capacity() } else { it.len() })
            .collect();
        let total: usize = offered.iter().sum();
        let came = usize::from(part) % (total + 1);
        let bytes: Vec<u8> = (0..came).map(|at| at as u8).collect();
        let after: Vec<Vec<u8>> = if of_vec {
            filled(again(&before).collect::<Vec<_>>(), &bytes)
        } else {
            let many: Vec<BytesMut> = again(&before).map(as_bytes_mut).collect();
            filled(many, &bytes).iter().map(|it| it.to_vec()).collect()
        };
        let mut left = &bytes[..];
        for ((was, offered), is) in before.iter().zip(offered).zip(&after) {
            let (now, rest) = left.split_at(left.len().min(offered));
            left = rest;
            prop_assert_eq!(&is[..now.len()], now);
            let len = if was.is_empty() { now.len() } else { was.len() };
            prop_assert_eq!(is.len(), len);
            prop_assert!(is[now.len()..].iter().all(|byte| *byte == 0xEE));
        }
    }
}

/// Copies the buffers, capacity included.
fn again<'a>(buffers: &'a [Vec<u8>]) -> impl Iterator<Item = Vec<u8>> + 'a {
    buffers.iter().map(|it| {
        let mut again = Vec::with_capacity(it.capacity());
        again.extend_from_slice(it);
        again
    })
}

/// Copies a buffer to a `BytesMut`, capacity included.
fn as_bytes_mut(buffer: Vec<u8>) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(buffer.capacity());
    bytes.extend_from_slice(&buffer);
    bytes
}
