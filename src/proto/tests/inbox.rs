//! Streams of messages: messages that come without a receive, are taken as they come, and go back.

use std::collections::VecDeque;

use super::extension::EXTENDED;
use super::pair::{Pair, Rng, TestConnection, sizes};
use crate::error::ErrorKind;
use crate::proto::{InboxId, InboxMessage, ReadCount, Sizes};
use crate::wire::ByteOrder;

/// A stream, as its reader has it.
struct Reader {
    inbox: InboxId,
    depth: usize,
    unread: VecDeque<InboxMessage>,
    read_count: ReadCount,
    read: Vec<Vec<u8>>,
}

impl Reader {
    fn open(side: &mut TestConnection, size: usize, depth: usize) -> Reader {
        let read_count = ReadCount::default();
        let count = read_count.clone();
        let inbox = (side.machine).open_inbox(size, depth, count, &mut side.host);
        side.take_events();
        Reader {
            inbox: inbox.expect("it has receives of its own"),
            depth,
            unread: VecDeque::new(),
            read_count,
            read: Vec::new(),
        }
    }

    /// Takes the messages that have come.
    fn take(&mut self, side: &mut TestConnection) {
        let read = &mut self.read;
        let back = |free: &mut Vec<Vec<u8>>| std::mem::swap(free, read);
        (side.machine).take_messages(self.inbox, &mut self.unread, back, &mut side.host);
        side.take_events();
        assert!(
            self.unread.len() <= self.depth,
            "at most `depth` in advance"
        );
    }

    /// Returns the oldest message that was taken: its bytes, and how many did not fit.
    fn next(&mut self) -> Option<(Vec<u8>, usize)> {
        let message = self.unread.pop_front()?;
        self.read_count.add_one();
        let bytes = message.buffer[..message.len].to_vec();
        self.read.push(message.buffer);
        Some((bytes, message.overflow))
    }

    fn close(self, side: &mut TestConnection) {
        side.machine.take_inbox_counts();
        side.machine.close_inbox(self.inbox, self.unread);
        side.take_events();
    }
}

fn message(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(len, number as u8);
    bytes
}

fn number_of(bytes: &[u8]) -> u32 {
    let number = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    assert!(bytes[4..].iter().all(|byte| *byte == number as u8));
    number
}

/// "Dropping the stream loses none either": whatever comes in whatever pieces, each message is had
/// once, by a stream, by a receive, or by what is opened last; by one reader in order.
#[test]
fn each_message_is_had_once_by_a_stream_or_a_receive() {
    for seed in 0..400 {
        let rng = &mut Rng(seed);
        let sizes = Sizes {
            unexpected_bytes: [0, 5000, 1 << 20][rng.below(3)],
            ..sizes()
        };
        let mut pair = match rng.chance(50) {
            true => Pair::idle_with(sizes, EXTENDED, EXTENDED),
            false => Pair::idle(sizes),
        };
        pair.handshake(ByteOrder::Native, b"", b"");
        let is_mixed = rng.chance(70);
        let (mut readers, mut had, mut tokens) = (Vec::<Reader>::new(), Vec::new(), 0..);
        let mut receives = Vec::new();
        let sent: u32 = 60;
        let mut next = 0;
        while next < sent {
            if pair.a.machine.outstanding() < 32 {
                let len = [4, 100, 3000, 40_000][rng.below(4)];
                pair.a.send(next.into(), &message(next, len));
                next += 1;
            }
            match rng.below(8) {
                0 if is_mixed || readers.is_empty() => {
                    readers.push(Reader::open(&mut pair.b, 40_000, 1 + rng.below(8)));
                }
                1 if is_mixed && !readers.is_empty() => {
                    let closed = readers.remove(rng.below(readers.len()));
                    closed.close(&mut pair.b);
                }
                2 if is_mixed && receives.len() < 60 => {
                    let token = tokens.next().expect("there are more");
                    pair.b.receive(token, 40_000);
                    receives.push(token);
                }
                3 | 4 => pair.run_in_pieces(1 + rng.below(50_000)),
                _ if !readers.is_empty() => {
                    let at = rng.below(readers.len());
                    readers[at].take(&mut pair.b);
                    for _ in 0..rng.below(4) {
                        had.extend(readers[at].next().map(|(bytes, _)| number_of(&bytes)));
                    }
                }
                _ => {}
            }
            pair.b.machine.check();
        }
        // The last reader has what is left.
        readers.drain(..).for_each(|it| it.close(&mut pair.b));
        let mut last = Reader::open(&mut pair.b, 40_000, 4);
        for _ in 0..200 {
            pair.run_in_pieces(60_000);
            last.take(&mut pair.b);
            while let Some((bytes, _)) = last.next() {
                had.push(number_of(&bytes));
            }
        }
        for token in receives {
            if pair.b.ended.contains_key(&token) {
                let (len, bytes) = pair.b.end_of(token);
                had.push(number_of(&bytes[..len.expect("it got one")]));
            }
        }
        if is_mixed {
            had.sort_unstable();
        }
        assert!(had.iter().copied().eq(0..sent), "seed {seed}: {had:?}");
    }
}

/// A message that has been read leaves its place to the next one at once, and not when its reader
/// comes for more: a burst behind a half-read one does not wait elsewhere. What came first is had
/// first all the same.
#[test]
fn a_place_is_free_as_soon_as_its_message_is_read() {
    let mut pair = Pair::idle(sizes());
    pair.handshake(ByteOrder::Native, b"", b"");
    let mut reader = Reader::open(&mut pair.b, 64, 2);
    let mut numbers = 0..;
    let mut send = |pair: &mut Pair| {
        let number: u32 = numbers.next().expect("there are more");
        pair.a.send(number.into(), &message(number, 8));
        pair.run_in_pieces(1000);
    };
    (0..2).for_each(|_| send(&mut pair));
    reader.take(&mut pair.b);
    let mut had = Vec::new();
    let mut next = |reader: &mut Reader| {
        let (bytes, _) = reader.next().expect("a message was taken");
        had.push(number_of(&bytes));
    };
    next(&mut reader);
    send(&mut pair);
    assert_eq!(pair.b.machine.stats().receives.unexpected_messages, 0);
    // No place, and then one, for which this one comes before the next.
    send(&mut pair);
    assert_eq!(pair.b.machine.stats().receives.unexpected_messages, 1);
    next(&mut reader);
    send(&mut pair);
    assert_eq!(pair.b.machine.stats().receives.unexpected_messages, 1);
    reader.take(&mut pair.b);
    next(&mut reader);
    next(&mut reader);
    reader.take(&mut pair.b);
    next(&mut reader);
    assert_eq!(had, [0, 1, 2, 3, 4]);
}

/// "A message that is longer than `size` gives the error Truncated", and the buffer what fits; here
/// whole, in pieces, and from among those that came before the stream.
#[test]
fn a_message_that_a_stream_has_no_room_for_is_cut() {
    for (before, piece) in [(false, usize::MAX), (false, 7), (true, usize::MAX)] {
        let mut pair = Pair::connected();
        let mut reader = None;
        if !before {
            reader = Some(Reader::open(&mut pair.b, 10, 4));
        }
        pair.a.send_acked(1, &[1; 30]);
        pair.a.send(2, &[2; 10]);
        pair.run_in_pieces(piece);
        let mut reader = reader.unwrap_or_else(|| Reader::open(&mut pair.b, 10, 4));
        reader.take(&mut pair.b);
        assert_eq!(reader.next(), Some((vec![1; 10], 20)));
        assert_eq!(reader.next(), Some((vec![2; 10], 0)));
        let counts = pair.b.machine.take_inbox_counts();
        assert_eq!((counts.whole, counts.truncated, counts.bytes), (1, 1, 10));
        pair.run();
        assert_eq!(pair.a.end_of(1).0, Ok(30), "it was acknowledged");
    }
}

/// A stream that closes while a message comes in for it gives the message to the next receive; a
/// stream whose connection ends then has the messages that came in full before.
#[test]
fn a_message_that_is_under_way_outlives_its_stream() {
    let mut pair = Pair::connected();
    let mut reader = Reader::open(&mut pair.b, 40_000, 2);
    pair.a.send(1, &message(1, 40_000));
    pair.a.hand_out();
    pair.a.move_out(20_000, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    reader.take(&mut pair.b);
    assert!(reader.next().is_none());
    reader.close(&mut pair.b);
    pair.run();
    pair.b.receive(1, 40_000);
    assert_eq!(number_of(&pair.b.end_of(1).1), 1);

    let mut reader = Reader::open(&mut pair.b, 40_000, 1);
    for number in 2..5 {
        pair.a.send(number.into(), &message(number, 100));
    }
    pair.run();
    pair.a.send(5, &message(5, 40_000));
    pair.a.hand_out();
    pair.a.move_out(20_000, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    pair.b.cut();
    for number in 2..4 {
        reader.take(&mut pair.b);
        assert_eq!(number_of(&reader.next().expect("it came").0), number);
    }
    reader.take(&mut pair.b);
    reader.close(&mut pair.b);
    pair.b.receive(4, 100);
    assert_eq!(number_of(&pair.b.end_of(4).1), 4, "taken, and not read");
    let mut late = Reader::open(&mut pair.b, 100, 1);
    late.take(&mut pair.b);
    assert!(late.next().is_none(), "the last was not whole");
    let why = pair.b.machine.why_ended();
    assert_eq!(why.kind(), ErrorKind::ConnectionReset);
}
