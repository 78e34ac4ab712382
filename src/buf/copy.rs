//! The one place that copies bytes between raw spans and slices.
//!
//! Two kinds of memory, two ways:
//!
//! - **Exclusive** bytes (a buffer one operation owns, or read-only memory) are copied plainly:
//!   [`read_plain`], [`write_plain`].
//! - **Shared** bytes (writable region memory) may change at any time: the kernel writes what a
//!   peer sent, another thread writes through its own handle. [`read_shared`], [`write_shared`],
//!   [`copy_shared`].
//!
//! The argument for shared bytes. A plain or even volatile access that races with another thread's
//! is undefined in Rust; an atomic one is not. So every byte of shared memory belongs, for its
//! whole life, to exactly one *cell*: the largest aligned block of 8, 4, 2 or 1 bytes around it
//! that lies within the segment (smaller than 8 only before the first word and after the last).
//! Each access of this process to a cell is an atomic access of the cell's own size, relaxed: two
//! of our threads therefore never race on a location, nor with different sizes. A read of less than
//! a cell loads the whole cell. A write of less than a cell is a compare-and-exchange, which writes
//! the neighbouring bytes back only if they have not changed since they were read, so no update of
//! a neighbour is lost, not even one by the kernel. The kernel's accesses are not part of the Rust
//! program; for the program they are like relaxed accesses by bytes, and a concurrent copy yields a
//! mix of old and new bytes, which is what `fi_rma(3)` grants to unsynchronised accesses. These
//! copies order nothing: completions and the gate do.

use std::ptr;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use super::span::Span;

const WORD: usize = size_of::<u64>();

/// Copies out of exclusive memory.
///
/// # Safety
/// - The bytes of `from` are readable for the whole call, and
/// - nothing writes to them meanwhile.
pub(super) unsafe fn read_plain(from: Span, into: &mut [u8]) {
    debug_assert_eq!(from.len(), into.len());
    let len = from.len().min(into.len());
    // SAFETY: readable and unwritten by the caller's promise (memory-model rule 1); `into` is a
    // unique reference, so it cannot overlap memory that is readable here through `from`.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr().cast_const(), into.as_mut_ptr(), len) }
}

/// Copies into exclusive memory.
///
/// # Safety
/// - The bytes of `into` are writable for the whole call, and
/// - nothing else reads or writes them meanwhile.
pub(super) unsafe fn write_plain(into: Span, from: &[u8]) {
    debug_assert_eq!(into.len(), from.len());
    let len = into.len().min(from.len());
    // SAFETY: writable and untouched by others by the caller's promise (memory-model rule 1); a
    // live `&[u8]` cannot overlap memory that only the caller may write.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into.as_ptr(), len) }
}

/// Zeroes exclusive memory.
///
/// # Safety
/// As for [`write_plain`].
pub(super) unsafe fn zero_plain(into: Span) {
    // SAFETY: writable and untouched by others by the caller's promise (memory-model rule 1).
    unsafe { ptr::write_bytes(into.as_ptr(), 0, into.len()) }
}

/// Copies out of shared memory: `into.len()` bytes at `offset` of `segment`.
///
/// # Safety
/// - `segment` is one whole segment of writable region memory, or one whole mapping of memory that
///   another process writes or reads, and stays mapped during the whole call, and
/// - during the call, this process touches the segment only through the shared functions of this
///   module.
pub(crate) unsafe fn read_shared(segment: Span, offset: usize, into: &mut [u8]) {
    let into = Span::new(into.as_mut_ptr(), into.len());
    // SAFETY: `into` is a unique reference; the rest is the caller's promise.
    unsafe { load_shared(segment, offset, into) }
}

/// Copies out of shared memory to exclusive memory, which need not be initialised: `into.len()`
/// bytes at `offset` of `segment`.
///
/// # Safety
/// As for [`read_shared`] of `segment`, and as for [`write_plain`] of `into`.
pub(super) unsafe fn load_shared(segment: Span, offset: usize, into: Span) {
    assert_within(segment, offset, into.len());
    let mut done = 0;
    while done < into.len() {
        let at = offset + done;
        let cell = Cell::at(segment, at);
        let count = (cell.end() - at).min(into.len() - done);
        let skip = at - cell.start;
        // SAFETY: `cell` is a cell of `segment`, and the caller's promises are those asked for.
        let bytes = unsafe { cell.load(segment, Relaxed) };
        // SAFETY: a part of `into`, which is exclusive by the caller's promise.
        unsafe { write_plain(into.part(done, count), &bytes[skip..skip + count]) };
        done += count;
        if cell.size == WORD && cell.end() == offset + done {
            // The whole words in the middle, without the arithmetic above for each.
            let left = (into.len() - done).min(segment.len() - offset - done);
            for _ in 0..left / WORD {
                // SAFETY: the place follows a whole word and is thus aligned, and the word at it
                // ends within the segment; the rest is the caller's promise.
                let word = unsafe { word_at(segment, offset + done) }.load(Relaxed);
                // SAFETY: eight bytes at `done` are within `into`; the rest as above.
                unsafe { into.as_ptr().add(done).cast::<u64>().write_unaligned(word) };
                done += WORD;
            }
        }
    }
}

/// Copies into shared memory: all of `from` to `offset` of `segment`.
///
/// # Safety
/// As for [`read_shared`].
pub(crate) unsafe fn write_shared(segment: Span, offset: usize, from: &[u8]) {
    // SAFETY: `from` is a reference; the rest is the caller's promise.
    unsafe { store_shared(segment, offset, Span::of(from)) }
}

/// Copies exclusive memory to shared memory: all of `from` to `offset` of `segment`.
///
/// # Safety
/// As for [`read_shared`] of `segment`, and as for [`read_plain`] of `from`.
pub(super) unsafe fn store_shared(segment: Span, offset: usize, from: Span) {
    assert_within(segment, offset, from.len());
    let mut done = 0;
    while done < from.len() {
        let at = offset + done;
        let cell = Cell::at(segment, at);
        let count = (cell.end() - at).min(from.len() - done);
        let mut bytes = [0; WORD];
        // SAFETY: a part of `from`, which is readable, and not written meanwhile, by the caller's
        // promise.
        unsafe { read_plain(from.part(done, count), &mut bytes[..count]) };
        // SAFETY: `cell` is a cell of `segment`, and the caller's promises are those asked for.
        unsafe { cell.store(segment, at - cell.start, &bytes[..count]) };
        done += count;
        if cell.size == WORD && cell.end() == offset + done {
            let left = (from.len() - done).min(segment.len() - offset - done);
            for _ in 0..left / WORD {
                // SAFETY: eight bytes at `done` are within `from`; the rest is the caller's
                // promise.
                let word = unsafe { from.as_ptr().add(done).cast::<u64>().read_unaligned() };
                // SAFETY: as in `load_shared`.
                unsafe { word_at(segment, offset + done) }.store(word, Relaxed);
                done += WORD;
            }
        }
    }
}

/// Copies `len` bytes at `from_at` of one segment of shared memory to `to_at` of another.
///
/// # Safety
/// As for [`read_shared`], of both.
pub(super) unsafe fn copy_shared(from: Span, from_at: usize, to: Span, to_at: usize, len: usize) {
    assert_within(from, from_at, len);
    assert_within(to, to_at, len);
    // Fewer bytes than two words.
    let copy_few = |begin: usize, end: usize| {
        let mut few = [0; 2 * WORD];
        let few = &mut few[..end - begin];
        // SAFETY: the caller's promises.
        unsafe { read_shared(from, from_at + begin, few) };
        // SAFETY: the caller's promises.
        unsafe { write_shared(to, to_at + begin, few) };
    };
    let past_word = |span: Span, at: usize| span.as_ptr().addr().wrapping_add(at) % WORD;
    // From here on whole words are stored. A word that lies across two words of the source is
    // combined from both, which are within the segment too.
    let mut head = (WORD - past_word(to, to_at)) % WORD;
    let past = past_word(from, from_at + head);
    if from_at + head < past {
        head += WORD;
    }
    let head = head.min(len);
    copy_few(0, head);
    let mut done = head;
    // SAFETY: the offsets below are those of aligned words that end within the segments; the rest
    // is the caller's promise.
    let load = |at: usize| u64::from_le(unsafe { word_at(from, at) }.load(Relaxed));
    let store = |at: usize, word: u64| {
        // SAFETY: as above.
        unsafe { word_at(to, at) }.store(word.to_le(), Relaxed);
    };
    if past == 0 {
        while len - done >= WORD {
            store(to_at + done, load(from_at + done));
            done += WORD;
        }
    } else if len - done >= WORD {
        let shift = 8 * past;
        let mut low = load(from_at + done - past);
        while len - done >= WORD && from.len() - (from_at + done - past) >= 2 * WORD {
            let high = load(from_at + done - past + WORD);
            store(to_at + done, (low >> shift) | (high << (64 - shift)));
            low = high;
            done += WORD;
        }
    }
    copy_few(done, len);
}

/// Atomic read-modify-write of the `size` bytes (1, 2, 4 or 8) at `offset` of `segment`: calls
/// `change` with the value and stores the result by compare-and-exchange, again from the start if
/// the value changed in between; stores nothing for `None`. The load acquires, the store releases.
/// The bytes are at the front of the arrays. `None` if the address is not a multiple of the size,
/// or the bytes are not all within the segment; otherwise the previous value.
///
/// # Safety
/// As for [`read_shared`].
pub(super) unsafe fn update_shared(
    segment: Span,
    offset: usize,
    size: usize,
    mut change: impl FnMut([u8; WORD]) -> Option<[u8; WORD]>,
) -> Option<[u8; WORD]> {
    debug_assert!([1, 2, 4, 8].contains(&size));
    let end = offset.checked_add(size)?;
    let address = segment.as_ptr().addr().wrapping_add(offset);
    if end > segment.len() || !address.is_multiple_of(size) {
        return None;
    }
    // The cell contains all of the bytes: they are themselves an aligned block within the segment.
    let cell = Cell::at(segment, offset);
    let skip = offset - cell.start;
    // SAFETY: `cell` is a cell of `segment`, and the caller's promises are those asked for.
    let mut whole = unsafe { cell.load(segment, Acquire) };
    loop {
        let mut value = [0; WORD];
        value[..size].copy_from_slice(&whole[skip..skip + size]);
        let Some(changed) = change(value) else {
            return Some(value);
        };
        let mut new = whole;
        new[skip..skip + size].copy_from_slice(&changed[..size]);
        // SAFETY: as above.
        match unsafe { cell.exchange(segment, whole, new, AcqRel, Acquire) } {
            Ok(()) => return Some(value),
            Err(newer) => whole = newer,
        }
    }
}

/// Makes the page of the byte at `offset` present and private by a write that changes nothing.
/// Others may write at the same time.
///
/// # Safety
/// As for [`read_shared`].
pub(super) unsafe fn touch_shared(segment: Span, offset: usize) {
    assert_within(segment, offset, 1);
    let cell = Cell::at(segment, offset);
    // An exchange of a value for itself, not an `or` with zero: compilers turn an `or` with zero
    // into a read, and a read maps the shared zero page.
    // SAFETY: `cell` is a cell of `segment`, and the caller's promises are those asked for.
    let seen = unsafe { cell.load(segment, Relaxed) };
    // SAFETY: as above.
    let _ = unsafe { cell.exchange(segment, seen, seen, Relaxed, Relaxed) };
}

fn assert_within(segment: Span, offset: usize, len: usize) {
    let end = offset.checked_add(len);
    assert!(
        end.is_some_and(|end| end <= segment.len()),
        "a copy lies within its segment"
    );
}

/// The unit in which one byte of a segment is always accessed.
struct Cell {
    start: usize,
    size: usize,
}

impl Cell {
    /// The cell of the byte at `offset`: it depends on the segment alone, never on the access.
    fn at(segment: Span, offset: usize) -> Cell {
        let address = segment.as_ptr().addr().wrapping_add(offset);
        for size in [WORD, 4, 2] {
            match offset.checked_sub(address % size) {
                Some(start) if segment.len() - start >= size => return Cell { start, size },
                _ => {}
            }
        }
        Cell {
            start: offset,
            size: 1,
        }
    }

    fn end(&self) -> usize {
        self.start + self.size
    }

    /// Loads the cell's bytes to the front of an array.
    ///
    /// # Safety
    /// As for [`read_shared`]; `self` is a cell of `segment`.
    unsafe fn load(&self, segment: Span, order: Ordering) -> [u8; WORD] {
        let mut bytes = [0; WORD];
        // SAFETY: the cell lies within the segment and is aligned to its size, and is accessed in
        // this size only; the rest is the caller's promise (memory-model rules 2, 6).
        unsafe {
            let at = segment.as_ptr().add(self.start);
            match self.size {
                WORD => bytes = AtomicU64::from_ptr(at.cast()).load(order).to_ne_bytes(),
                4 => {
                    let value = AtomicU32::from_ptr(at.cast()).load(order);
                    bytes[..4].copy_from_slice(&value.to_ne_bytes());
                }
                2 => {
                    let value = AtomicU16::from_ptr(at.cast()).load(order);
                    bytes[..2].copy_from_slice(&value.to_ne_bytes());
                }
                _ => bytes[0] = AtomicU8::from_ptr(at).load(order),
            }
        }
        bytes
    }

    /// Replaces the cell's bytes with `new` if they are `old`; otherwise returns the current bytes.
    ///
    /// # Safety
    /// As for [`read_shared`]; `self` is a cell of `segment`.
    unsafe fn exchange(
        &self,
        segment: Span,
        old: [u8; WORD],
        new: [u8; WORD],
        stored: Ordering,
        seen: Ordering,
    ) -> Result<(), [u8; WORD]> {
        let mut newer = [0; WORD];
        macro_rules! exchange {
            ($at:expr, $atomic:ty, $number:ty, $size:literal) => {{
                let number = |bytes: &[u8; WORD]| {
                    let mut own = [0; $size];
                    own.copy_from_slice(&bytes[..$size]);
                    <$number>::from_ne_bytes(own)
                };
                <$atomic>::from_ptr($at.cast())
                    .compare_exchange(number(&old), number(&new), stored, seen)
                    .map(|_| ())
                    .map_err(|value| newer[..$size].copy_from_slice(&value.to_ne_bytes()))
            }};
        }
        // SAFETY: as in `load`; region memory is writable, as `from_ptr` asks.
        let done = unsafe {
            let at = segment.as_ptr().add(self.start);
            match self.size {
                WORD => exchange!(at, AtomicU64, u64, 8),
                4 => exchange!(at, AtomicU32, u32, 4),
                2 => exchange!(at, AtomicU16, u16, 2),
                _ => exchange!(at, AtomicU8, u8, 1),
            }
        };
        done.map_err(|()| newer)
    }

    /// Stores `from` at offset `skip` of the cell.
    ///
    /// # Safety
    /// As for [`read_shared`]; `self` is a cell of `segment`.
    unsafe fn store(&self, segment: Span, skip: usize, from: &[u8]) {
        if from.len() == WORD {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(from);
            // SAFETY: a word cell is aligned and within; the rest is the caller's promise.
            unsafe { word_at(segment, self.start) }.store(u64::from_ne_bytes(bytes), Relaxed);
            return;
        }
        // SAFETY: the caller's promises.
        let mut old = unsafe { self.load(segment, Relaxed) };
        loop {
            let mut new = old;
            new[skip..skip + from.len()].copy_from_slice(from);
            // SAFETY: the caller's promises.
            match unsafe { self.exchange(segment, old, new, Relaxed, Relaxed) } {
                Ok(()) => return,
                Err(newer) => old = newer,
            }
        }
    }
}

/// # Safety
/// As for [`read_shared`]; the address is a multiple of eight and the word ends within the segment.
unsafe fn word_at<'a>(segment: Span, offset: usize) -> &'a AtomicU64 {
    // SAFETY: aligned, within, allocated and only accessed by this module, by the caller's promise;
    // a word that lies within is always accessed as a word (memory-model rule 2 and the module's
    // argument). Region memory is writable, as `from_ptr` asks.
    unsafe { AtomicU64::from_ptr(segment.as_ptr().add(offset).cast()) }
}
