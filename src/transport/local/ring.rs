//! A ring of bytes in shared memory: one process writes, another reads.
//!
//! Both processes count bytes from the ring's first byte on; a byte's place is its number modulo
//! the ring's length. Each side keeps its own count in private memory, never reads it back from
//! shared memory, and checks the other side's count against it before use. An impossible count
//! breaks the connection and nothing else.
//!
//! The bytes are copied out once, and never examined in the ring: the writer may change them at any
//! time.

use std::mem::{align_of, size_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::param::page_size;

use super::memory::{Mapping, SharedFile};
use crate::buf::{CopyFrom, CopyTo, Span};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::AwaitedCount;

/// The control words of one direction, in shared memory. All words of an unused ring are zero.
#[repr(C, align(128))]
struct RingWords {
    /// Number of bytes written; the reader sleeps for it.
    written: AwaitedCount,
    /// Number of bytes read; the writer sleeps for it.
    read: AwaitedCount,
    /// 0 while the writer's bytes go through the socket. Later: the number of bytes that the writer
    /// has sent through the socket, plus one; all further bytes are in the ring.
    begun: AtomicU64,
    /// A [`ReaderState`]; 0 at the beginning.
    reader: AtomicU64,
}

/// The state of the reader of a ring. Any other number means that the reader has not begun.
#[derive(Clone, Copy)]
#[repr(u64)]
enum ReaderState {
    Open = 1,
    /// The reader will not read the ring again.
    Gone = 2,
}

const _: () = assert!(2 * size_of::<RingWords>() <= 4096, "both are in one page");

/// The words of both directions.
#[derive(Clone, Debug)]
struct BothWords(Arc<Mapping>);

impl BothWords {
    #[inline]
    fn of(&self, direction: usize) -> &RingWords {
        debug_assert!(direction < 2);
        let start = self.0.start().cast::<RingWords>();
        debug_assert!(
            start
                .as_ptr()
                .addr()
                .is_multiple_of(align_of::<RingWords>())
        );
        // SAFETY: the mapping begins at a page boundary, is at least one page long, which holds the
        // words of both directions, and lives as long as the reference. The words are atomics, for
        // which any value is valid and which may change at any time.
        unsafe { start.add(direction).as_ref() }
    }
}

/// The ring of one direction, as mapped by this side.
#[derive(Debug)]
struct RingMemory {
    words: BothWords,
    direction: usize,
    bytes: Mapping,
}

impl RingMemory {
    #[inline]
    fn words(&self) -> &RingWords {
        self.words.of(self.direction)
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn span(&self) -> Span {
        Span::new(self.bytes.start().as_ptr(), self.bytes.len())
    }

    /// Returns the places and lengths of the `len` bytes from `number` on: the part up to the
    /// ring's end, and the part at its beginning.
    #[inline]
    fn parts(&self, number: u64, len: usize) -> [(usize, usize); 2] {
        let (at, here) = self.place(number);
        let first = len.min(here);
        [(at, first), (0, len - first)]
    }

    /// Returns the place of a byte, and the number of bytes from there to the ring's end.
    #[inline]
    fn place(&self, number: u64) -> (usize, usize) {
        let at = (number & (self.len() - 1)) as usize; // The length is a power of two.
        (at, self.bytes.len() - at)
    }
}

/// Makes both ends of one side's rings; side 0 has made the file.
pub(super) fn map_rings(file: &SharedFile, side: usize) -> Result<(RingWriter, RingReader)> {
    let words = BothWords(Arc::new(file.map_words()?));
    let ring = |direction, is_written| {
        Ok::<_, Error>(RingMemory {
            words: words.clone(),
            direction,
            bytes: file.map_ring(direction, is_written)?,
        })
    };
    let writer = RingWriter {
        ring: ring(side, true)?,
        pages: RingPages::default(),
        written: 0,
        read: 0,
    };
    let reader = RingReader {
        ring: ring(1 - side, false)?,
        read: 0,
        written: 0,
        sleeps: false,
    };
    Ok((writer, reader))
}

/// Makes the error of an impossible count that the other side has stored.
fn impossible(what: &'static str) -> Error {
    Error::new(ErrorKind::ProtocolViolation, what)
}

/// The populated pages of a ring: those of the bytes with numbers `from..to`.
#[derive(Debug, Default)]
struct RingPages {
    from: u64,
    to: u64,
}

/// The end that writes.
#[derive(Debug)]
pub(super) struct RingWriter {
    ring: RingMemory,
    pages: RingPages,
    written: u64,
    /// The last observed count of the reader.
    read: u64,
}

impl RingWriter {
    /// Returns true while the other side reads the ring.
    pub(super) fn is_read(&self) -> bool {
        self.ring.words().reader.load(Ordering::Acquire) == ReaderState::Open as u64
    }

    /// Returns true once the reader will not read the ring any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.ring.words().reader.load(Ordering::Relaxed) == ReaderState::Gone as u64
    }

    /// Informs the other side that all bytes after the first `sent` of the socket are in the ring.
    pub(super) fn begin(&mut self, sent: u64) {
        self.ring.words().begun.store(sent + 1, Ordering::Release);
    }

    /// Returns how many bytes may be written now.
    ///
    /// # Errors
    /// The reader has stored an impossible count.
    #[inline]
    pub(super) fn room(&mut self) -> Result<usize> {
        let read = self.ring.words().read.get();
        if read < self.read || self.written < read {
            return Err(impossible("it has read more of the ring than is written"));
        }
        self.read = read;
        Ok((self.ring.len() - (self.written - read)) as usize)
    }

    /// Populates the pages of the next `len` bytes, for which there must be room.
    ///
    /// # Errors
    /// The system has no memory left.
    #[inline]
    pub(super) fn prepare(&mut self, len: usize) -> Result<()> {
        let end = self.written + len as u64;
        match end <= self.pages.to {
            true => Ok(()),
            false => self.populate(end),
        }
    }

    #[cold]
    fn populate(&mut self, end: u64) -> Result<()> {
        while self.pages.to < end {
            let (at, here) = self.ring.place(self.pages.to);
            let wanted = (end - self.pages.to) as usize;
            let len = wanted.next_multiple_of(page_size()).min(here);
            self.ring.bytes.populate(at, len)?;
            self.pages.to += len as u64;
            if self.pages.to - self.pages.from >= self.ring.len() {
                self.pages.to = u64::MAX; // All pages are populated.
            }
        }
        Ok(())
    }

    /// Frees the pages of the ring if it is empty.
    pub(super) fn give_back(&mut self) {
        let is_empty = self.ring.words().read.get() == self.written;
        if is_empty && self.pages.from < self.pages.to {
            self.ring.bytes.give_back();
            let page = self.written & !(page_size() as u64 - 1);
            self.pages = RingPages {
                from: page,
                to: page,
            };
        }
    }

    /// Returns the room of the next `len` bytes, which must be free, in two parts around the end of
    /// the ring. Bytes written there are not published.
    pub(super) fn room_for(&mut self, len: usize) -> [CopyTo<'_>; 2] {
        let room = self.ring.len() - (self.written - self.read);
        assert!(len as u64 <= room, "bytes are written where there is room");
        (self.ring.parts(self.written, len)).map(|(at, len)| {
            // SAFETY: the span is the whole ring, mapped for writing as long as `self` is borrowed;
            // this process accesses the mapping only through such ranges.
            unsafe { CopyTo::shared(self.ring.span(), at, len) }
        })
    }

    #[cfg(test)]
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        for mut part in self.room_for(bytes.len()) {
            let (now, rest) = bytes.split_at(part.len());
            part.write(now);
            bytes = rest;
        }
    }

    /// Publishes the next bytes, which have been written. Returns true if the reader sleeps, and
    /// must be woken.
    #[must_use = "the reader may sleep"]
    pub(super) fn publish(&mut self, len: usize) -> bool {
        self.written += len as u64;
        self.ring.words().written.advance(self.written)
    }

    #[cfg(test)]
    pub(super) fn claim_written(&mut self, count: u64) {
        let _ = self.ring.words().written.advance(count);
    }

    /// Sleeps until a quarter of the ring is free. Returns false if there is room already. Called
    /// while the ring is full.
    #[must_use = "there may be room"]
    pub(super) fn sleep_for_room(&self) -> bool {
        let quarter = self.ring.len() / 4;
        (self.ring.words().read).sleep_until(self.read + quarter)
    }

    /// Returns how many written bytes the other side has read, and how many it has not.
    pub(super) fn progress(&self) -> (u64, u64) {
        let read = self.ring.words().read.get().min(self.written);
        (read, self.written - read)
    }
}

/// The end that reads.
#[derive(Debug)]
pub(super) struct RingReader {
    ring: RingMemory,
    read: u64,
    /// The last observed count of the writer.
    written: u64,
    /// True if this side has registered to be woken.
    sleeps: bool,
}

impl RingReader {
    fn set_state(&self, state: ReaderState) {
        (self.ring.words().reader).store(state as u64, Ordering::Release);
    }

    /// Informs the writer that this side reads the ring.
    pub(super) fn open(&self) {
        self.set_state(ReaderState::Open);
    }

    /// Informs the writer that this side will not read the ring any more.
    pub(super) fn abandon(&self) {
        self.set_state(ReaderState::Gone);
    }

    /// Returns the number of bytes that the writer has sent through the socket, once it has changed
    /// to the ring.
    pub(super) fn begun(&self) -> Option<u64> {
        let begun = self.ring.words().begun.load(Ordering::Acquire);
        begun.checked_sub(1)
    }

    /// Returns how many bytes can be read now.
    ///
    /// # Errors
    /// The writer has stored an impossible count.
    #[inline]
    pub(super) fn available(&mut self) -> Result<usize> {
        let written = self.ring.words().written.get();
        if written < self.written || written - self.read > self.ring.len() {
            return Err(impossible("it has written more to the ring than fits"));
        }
        self.written = written;
        Ok((written - self.read) as usize)
    }

    /// Returns the writer's count, unchecked.
    pub(super) fn written(&self) -> u64 {
        self.ring.words().written.get()
    }

    /// As [`available`](Self::available), but corrects an impossible count instead of failing.
    pub(super) fn unread(&self) -> u64 {
        let written = self.ring.words().written.get();
        written.saturating_sub(self.read).min(self.ring.len())
    }

    /// Returns the next `len` bytes, which must be available, in two parts around the end of the
    /// ring.
    pub(super) fn bytes(&self, len: usize) -> [CopyFrom<'_>; 2] {
        let available = self.written - self.read;
        assert!(len as u64 <= available, "only what is available is read");
        (self.ring.parts(self.read, len)).map(|(at, len)| {
            // SAFETY: the span is the whole ring, mapped as long as `self` is borrowed; this
            // process accesses the mapping only through such ranges.
            unsafe { CopyFrom::shared(self.ring.span(), at, len) }
        })
    }

    /// Copies the next bytes, which must be available.
    pub(super) fn copy(&self, into: &mut [u8]) {
        let mut into = into;
        for part in self.bytes(into.len()) {
            let (now, rest) = into.split_at_mut(part.len());
            part.read(now);
            into = rest;
        }
    }

    /// Frees the room of the next `len` bytes, which have been copied. Returns true if the writer
    /// sleeps, and must be woken.
    #[must_use = "the writer may sleep"]
    pub(super) fn consume(&mut self, len: usize) -> bool {
        debug_assert!(len as u64 <= self.written - self.read);
        self.read += len as u64;
        self.ring.words().read.advance(self.read)
    }

    #[cfg(test)]
    pub(super) fn claim_read(&mut self, count: u64) {
        let _ = self.ring.words().read.advance(count);
    }

    /// Registers to be woken once `len` unread bytes, at most a quarter of the ring, are there.
    /// Returns false if they are there already.
    #[must_use = "the bytes may be there"]
    pub(super) fn sleep_for(&mut self, len: u64) -> bool {
        let len = len.clamp(1, self.ring.len() / 4);
        self.sleeps = self.ring.words().written.sleep_until(self.read + len);
        self.sleeps
    }

    /// Stops sleeping, if this side sleeps.
    #[inline]
    pub(super) fn awake(&mut self) {
        if std::mem::take(&mut self.sleeps) {
            self.ring.words().written.awake();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::LOCAL_RING_LEN_MIN;

    const LEN: usize = LOCAL_RING_LEN_MIN;

    fn pair() -> ((RingWriter, RingReader), (RingWriter, RingReader)) {
        let file = SharedFile::create(LEN).expect("a file");
        let map = |side| map_rings(&file, side).expect("rings");
        (map(0), map(1))
    }

    fn pattern(from: u64, len: usize) -> Vec<u8> {
        (from..from + len as u64)
            .map(|at| (at ^ (at >> 8)) as u8)
            .collect()
    }

    proptest! {
        /// Any sequence of writes and reads, of any length, around the end of the ring.
        #[test]
        fn bytes_come_out_as_they_went_in(steps in prop::collection::vec((0..LEN, 0..LEN), 1..40)) {
            let ((mut writer, _), (_, mut reader)) = pair();
            let (mut written, mut read) = (0u64, 0u64);
            for (write, take) in steps {
                let len = write.min(writer.room().unwrap());
                let bytes = pattern(written, len);
                for part in [&bytes[..len / 3], &bytes[len / 3..]] {
                    writer.write(part);
                    prop_assert!(!writer.publish(part.len()), "nobody sleeps");
                }
                written += len as u64;
                prop_assert_eq!(reader.available().unwrap() as u64, written - read);
                let len = take.min(reader.available().unwrap());
                let mut bytes = vec![0; len];
                let (first, rest) = bytes.split_at_mut(len / 2);
                for part in [first, rest] {
                    reader.copy(part);
                    prop_assert!(!reader.consume(part.len()), "nobody sleeps");
                }
                prop_assert_eq!(&bytes, &pattern(read, len));
                read += len as u64;
                prop_assert_eq!(writer.progress(), (read, written - read));
            }
        }

        /// Whatever the other side stores, in whatever order: an error, or no more than fits.
        #[test]
        fn a_count_that_cannot_be_is_refused(
            stores in prop::collection::vec(
                (any::<bool>(), any::<u64>(), 0..2 * LEN as u64),
                1..40,
            ),
        ) {
            let ((mut writer, mut reader), (mut liar_writes, mut liar_reads)) = pair();
            let (mut most_written, mut most_read) = (0, 0);
            for (is_small, wild, small) in stores {
                let claim = if is_small { small } else { wild };
                liar_writes.claim_written(claim);
                liar_reads.claim_read(claim);
                match reader.available() {
                    Ok(len) => {
                        prop_assert!(len <= LEN && claim >= most_written);
                        most_written = claim;
                        reader.copy(&mut vec![0; len]);
                        let _ = reader.consume(len / 2);
                    }
                    Err(error) => prop_assert_eq!(error.kind(), ErrorKind::ProtocolViolation),
                }
                match writer.room() {
                    Ok(room) => {
                        prop_assert!(room <= LEN && claim >= most_read);
                        most_read = claim;
                        writer.write(&vec![1; room]);
                        let _ = writer.publish(room / 2);
                    }
                    Err(error) => prop_assert_eq!(error.kind(), ErrorKind::ProtocolViolation),
                }
            }
        }
    }

    /// Through any number of laps, with any bytes unread when it is asked for.
    #[test]
    fn an_empty_ring_gives_its_pages_back_and_goes_on() {
        let file = SharedFile::create(LEN).expect("a file");
        let (mut writer, _) = map_rings(&file, 0).expect("rings");
        let (_, mut reader) = map_rings(&file, 1).expect("rings");
        let kept = || 512 * rustix::fs::fstat(file.as_fd()).expect("a file").st_blocks as usize;
        let words = page_size();
        let mut at = 0;
        for (len, unread) in [
            (40, 0),
            (LEN, 0),
            (3 * LEN / 4 + 1, 0),
            (LEN / 2, 1),
            (LEN / 2, 0),
        ] {
            let before = kept();
            writer.prepare(len).unwrap();
            assert!(kept() >= before.max(len / page_size() * page_size()));
            assert!(kept() <= page_size() + LEN);
            writer.write(&pattern(at, len));
            assert!(!writer.publish(len), "the reader is awake");
            writer.give_back();
            let available = reader.available().unwrap();
            let mut bytes = vec![0; available];
            reader.copy(&mut bytes);
            let begin = at + len as u64 - available as u64;
            assert_eq!(bytes, pattern(begin, available), "unread bytes are kept");
            assert!(!reader.consume(available - unread), "the writer is awake");
            at += len as u64;
            writer.give_back();
            assert_eq!(kept() == words, unread == 0, "{len} {unread}");
            assert!(writer.room().is_ok());
        }
    }

    /// docs/extension.md, section 12: the words of a direction, and where they lie.
    #[test]
    fn words_lie_where_the_page_says() {
        let file = SharedFile::create(LEN).expect("a file");
        let (mut writer, reader) = map_rings(&file, 1).expect("rings");
        writer.begin(41);
        assert!(!writer.publish(0x0102), "the reader is awake");
        assert!(
            writer.ring.words().read.sleep_until(7),
            "as a full writer does"
        );
        reader.open();
        let mut page = vec![0u8; page_size()];
        rustix::io::pread(file.as_fd(), &mut page, 0).expect("its bytes");
        let word = |at: usize| u64::from_ne_bytes(page[at..at + 8].try_into().unwrap());
        let set: Vec<_> = (0..page.len())
            .step_by(8)
            .map(|at| (at, word(at)))
            .filter(|(_, word)| *word != 0)
            .collect();
        // The first direction's reader; then the second direction, 640 bytes later.
        let second = 640;
        assert_eq!(
            set,
            [
                (520, 1),
                (second, 0x0102),
                (second + 384, 7),
                (second + 512, 42)
            ]
        );
    }

    #[test]
    fn a_full_ring_has_room_for_nothing_until_it_is_read() {
        let ((mut writer, _), (_, mut reader)) = pair();
        writer.write(&vec![7; LEN]);
        assert!(!writer.publish(LEN));
        assert_eq!(writer.room().unwrap(), 0);
        assert!(writer.sleep_for_room());
        assert_eq!(reader.available().unwrap(), LEN);
        assert!(!reader.consume(LEN / 4 - 1), "less than is worth waking it");
        assert!(reader.consume(1), "a quarter is free");
        assert_eq!(writer.room().unwrap(), LEN / 4);
    }

    #[test]
    fn a_reader_sleeps_until_as_much_has_come_as_it_waits_for() {
        let ((mut writer, _), (_, mut reader)) = pair();
        assert!(reader.sleep_for(100));
        writer.write(&[1; 100]);
        assert!(!writer.publish(99));
        assert!(writer.publish(1));
        assert!(!reader.sleep_for(100), "it is there");
        // Never for more than the writer can be sure to write.
        let ((mut writer, _), (_, mut reader)) = pair();
        assert!(reader.sleep_for(u64::MAX));
        writer.write(&vec![1; LEN / 4]);
        assert!(writer.publish(LEN / 4));
    }
}
