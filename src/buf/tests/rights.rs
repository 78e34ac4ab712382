//! What a buffer may be used for never grows on its way through an operation, a region or a cache:
//! docs/memory-model.md, "Ways to a stronger right, and why they are closed".

use std::any::type_name;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::super::*;

/// One buffer of each type, with its type erased, by name.
fn one_of_each() -> Vec<(&'static str, Buffer)> {
    fn erased<B>(buffer: B) -> (&'static str, Buffer)
    where
        OwnedBuffer: From<B>,
    {
        (type_name::<B>(), Buffer::new(OwnedBuffer::from(buffer)))
    }
    // SAFETY: nothing is ever mapped at the first page.
    let range = unsafe { AddressRange::new(std::ptr::without_provenance_mut(16), 8) };
    vec![
        erased(vec![1u8; 8]),
        erased(Box::<[u8]>::from([2u8; 8])),
        erased(BytesMut::from(&[3u8; 8][..])),
        erased(MappedBuffer::new(8).unwrap()),
        erased(String::from("a string")),
        erased(Bytes::from(vec![5u8; 8])),
        erased(Arc::<[u8]>::from([6u8; 8])),
        erased::<&'static [u8]>(b"a static"),
        erased::<&'static str>("a static"),
        erased(range),
        erased(SharedBuffer::new(vec![7u8; 16]).window(4..12).unwrap()),
    ]
}

/// `Buffer::downcast`: "The buffer as the type that was passed in", and as no other.
#[test]
fn a_buffer_is_downcast_to_its_own_type_alone() {
    fn check<B: IoBuf>() {
        for (name, buffer) in one_of_each() {
            let is_own = buffer.downcast::<B>().is_ok();
            assert_eq!(is_own, name == type_name::<B>(), "{name} as another type");
        }
    }
    check::<Vec<u8>>();
    check::<Box<[u8]>>();
    check::<BytesMut>();
    check::<MappedBuffer>();
    check::<String>();
    check::<Bytes>();
    check::<Arc<[u8]>>();
    check::<&'static [u8]>();
    check::<&'static str>();
    for (name, buffer) in one_of_each() {
        let is_range = buffer.into_range().is_ok();
        assert_eq!(is_range, name == type_name::<AddressRange>(), "{name}");
    }
    for (name, buffer) in one_of_each() {
        let is_window = buffer.into_window().is_ok();
        assert_eq!(is_window, name == type_name::<SharedWindow>(), "{name}");
    }
}

/// `Buffer::as_mut_slice`: "`None` if the buffer has a read-only type"; `into_vec`: "the buffer
/// was a `Vec`, a boxed slice or a `String`", of which there is one owner.
#[test]
fn an_erased_buffer_is_changed_only_if_its_type_is_owned_and_writable() {
    let writable = [
        type_name::<Vec<u8>>(),
        type_name::<Box<[u8]>>(),
        type_name::<BytesMut>(),
        type_name::<MappedBuffer>(),
    ];
    let owned = [
        type_name::<Vec<u8>>(),
        type_name::<Box<[u8]>>(),
        type_name::<String>(),
    ];
    for (name, mut buffer) in one_of_each() {
        let is_writable = buffer.as_mut_slice().is_some();
        assert_eq!(is_writable, writable.contains(&name), "{name}");
        assert_eq!(buffer.into_vec().is_ok(), owned.contains(&name), "{name}");
    }
}

/// The memory of a region or an operation: an erased buffer cannot become it again without its
/// type, and a range only by the type that names it.
#[test]
fn an_erased_buffer_is_no_memory_of_a_region() {
    for (name, buffer) in one_of_each() {
        let refused = buffer.into_owned_buffers().err();
        assert!(refused.is_some(), "{name}");
    }
    let several: Vec<Buffer> = one_of_each().into_iter().map(|(_, it)| it).collect();
    let (_, back) = several.into_owned_buffers().err().unwrap();
    assert_eq!(back.len(), one_of_each().len(), "all come back");
}

/// Memory that is sent is seen as a slice, unless it is opaque.
#[cfg(feature = "tls")]
#[test]
fn no_slice_is_sent_of_opaque_memory() {
    for (name, buffer) in one_of_each() {
        let owned = buffer.into_owned_buffer();
        let (is_opaque, len) = (owned.is_opaque(), owned.len());
        let payload = Payload::from(owned);
        let mut slices = Slices::new();
        assert!(len > 0, "{name}");
        assert_eq!(payload.slices(0, len, &mut slices), !is_opaque, "{name}");
    }
}

/// "No writer ever gets the span of a buffer that is not writable": regions of read-only and
/// writable buffers, or of ranges and owned ones, are never joined, so no segment lends its kind to
/// another.
#[test]
fn buffers_of_different_kinds_are_not_one_region() {
    let kind = |buffer: &OwnedBuffer| {
        let is_shared = buffer.is_shared_window();
        (buffer.is_writable(), buffer.is_range(), is_shared)
    };
    let count = one_of_each().len();
    for (at, with) in (0..count).flat_map(|at| (0..count).map(move |with| (at, with))) {
        let [one, other] = [at, with].map(|at| one_of_each().swap_remove(at).1.into_owned_buffer());
        let alike = kind(&one) == kind(&other);
        let joined = RegionMemory::new(vec![one, other], RegionTraits::plain(0));
        assert_eq!(joined.is_ok(), alike, "buffers {at} and {with}");
    }
}

/// `Bytes` and `Arc` that an operation or a region holds are counted as held, so that their own
/// ways to become writable (`try_into_mut`, `get_mut`) see it.
#[test]
fn counted_memory_that_is_held_cannot_be_taken_for_writing_by_its_other_owners() {
    let bytes = Bytes::from(vec![1u8; 64]);
    let owned = OwnedBuffer::from(bytes.clone());
    let bytes = bytes.try_into_mut().expect_err("the operation has it too");
    drop(owned);
    assert!(bytes.try_into_mut().is_ok(), "now it is alone");

    let mut counted: Arc<[u8]> = Arc::from([1u8; 64]);
    let memory = RegionMemory::new(
        vec![OwnedBuffer::from(counted.clone())],
        RegionTraits::plain(0),
    )
    .unwrap();
    let _ = memory.gate().close();
    let back = memory.take().unwrap();
    assert!(Arc::get_mut(&mut counted).is_none());
    drop(back);
    // Readers of a read-only region may still look at it.
    assert!(Arc::get_mut(&mut counted).is_none());
    drop(memory);
    assert!(Arc::get_mut(&mut counted).is_some());
}

/// Whatever a window of shared memory comes back as, its bytes are never seen as a slice, sent or
/// received into by themselves, and never become the whole: its other owners may write to them.
#[test]
fn a_window_of_shared_memory_is_never_seen_as_a_slice() {
    let shared = SharedBuffer::new(vec![7u8; 16]);
    let erased = || Buffer::new(OwnedBuffer::from(shared.window(4..12).unwrap()));
    let mut buffer = erased();
    assert!(buffer.is_empty() && buffer.as_mut_slice().is_none());
    for usage in [LocalUse::Send, LocalUse::Receive] {
        assert!(erased().into_memory(usage).is_err());
        assert!(shared.window(..).unwrap().into_memory(usage).is_err());
    }
    let many = Payload::from_memory(Memory::Owned(shared.window(..).unwrap().into()));
    assert!(BufferCursor::new(many, 1).is_err(), "many messages");
    // It is no part of a message's buffer, so it stays what it is.
    let whole = erased().into_whole().unwrap();
    let window = whole.into_window().unwrap();
    let shared = shared.into_buffer().unwrap_err();
    drop((window, buffer));
    assert_eq!(*shared.into_buffer().unwrap(), [7; 16]);
}

/// A message's part of a larger buffer (`FI_MULTI_RECV`) gives the whole only to its last owner,
/// and is none of the types that the whole could be.
#[test]
fn a_part_becomes_the_whole_for_its_last_owner_alone() {
    let whole = Arc::new(OwnedBuffer::from(vec![0u8; 64]));
    let [first, second] = [0, 32].map(|at| Buffer::new(OwnedBuffer::window(&whole, at, 32)));
    drop(whole);
    let first = first.downcast::<Vec<u8>>().unwrap_err();
    assert!(first.into_whole().is_none(), "another part is out");
    let whole = second.into_whole().expect("the last part");
    assert_eq!(whole.downcast::<Vec<u8>>().unwrap().len(), 64);
}
