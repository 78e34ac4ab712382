//! The two ends of one direction of a stream: the sender's credit, and the receiver's unread items.
//!
//! The sender starts with a credit of [`STREAM_ITEMS`] and [`STREAM_BYTES`], and gets back the
//! credit of items that were read. So a reader that stops delays only its own stream.

use std::collections::VecDeque;

use crate::limits::{STREAM_BYTES, STREAM_ITEMS};
use crate::wire::{Credit, FrameBuf, Violation};

/// The body of an item.
pub type ItemBody = FrameBuf;

const INITIAL: Credit = Credit {
    items: STREAM_ITEMS,
    bytes: STREAM_BYTES,
};

/// The sender's end: the remaining credit.
#[derive(Debug)]
pub struct Outflow {
    left: Credit,
}

impl Outflow {
    pub fn new() -> Outflow {
        Outflow { left: INITIAL }
    }

    /// Takes the credit for an item of `len` bytes, if there is enough.
    pub fn take(&mut self, len: usize) -> bool {
        let bytes = u32::try_from(len).unwrap_or(u32::MAX);
        if self.left.items == 0 || self.left.bytes < bytes {
            return false;
        }
        self.left.items -= 1;
        self.left.bytes -= bytes;
        true
    }

    /// # Errors
    /// The credit exceeds the items, or the bytes, that were sent.
    pub fn handle_credit(&mut self, more: Credit) -> Result<(), Violation> {
        let sum = |left: u32, more: u32, most: u32| {
            let sum = left.checked_add(more).filter(|sum| *sum <= most);
            sum.ok_or(Violation("credit for more of a stream than was sent"))
        };
        self.left = Credit {
            items: sum(self.left.items, more.items, INITIAL.items)?,
            bytes: sum(self.left.bytes, more.bytes, INITIAL.bytes)?,
        };
        Ok(())
    }
}

/// The receiver's end: items that have arrived and are unread.
#[derive(Debug)]
pub struct Inflow {
    items: VecDeque<ItemBody>,
    /// Credit that the sender may still use.
    granted: Credit,
    /// Credit of items that were read, which is not granted again yet.
    read: Credit,
    is_over: bool,
}

impl Inflow {
    pub fn new() -> Inflow {
        Inflow {
            items: VecDeque::new(),
            granted: INITIAL,
            read: Credit::default(),
            is_over: false,
        }
    }

    /// # Errors
    /// The item exceeds the granted credit, or the stream has ended.
    pub fn handle_item(&mut self, body: &[u8]) -> Result<(), Violation> {
        if self.is_over {
            return Err(Violation("an item behind the last one"));
        }
        let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if self.granted.items == 0 || self.granted.bytes < bytes {
            return Err(Violation("more of a stream than was granted"));
        }
        self.granted.items -= 1;
        self.granted.bytes -= bytes;
        self.items.push_back(ItemBody::from_slice(body));
        Ok(())
    }

    /// # Errors
    /// The stream has ended already.
    pub fn handle_last(&mut self) -> Result<(), Violation> {
        match std::mem::replace(&mut self.is_over, true) {
            true => Err(Violation("a stream that ends twice")),
            false => Ok(()),
        }
    }

    /// Returns whether the stream has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the next item, and the credit to grant again: half of the total at a time, so that
    /// most items need no credit frame. The other half exceeds the largest item, so the sender
    /// always has enough credit once everything is read.
    pub fn read(&mut self) -> Option<(ItemBody, Option<Credit>)> {
        let body = self.items.pop_front()?;
        self.read.items += 1;
        self.read.bytes += body.len() as u32;
        let is_due = self.read.items >= INITIAL.items / 2 || self.read.bytes >= INITIAL.bytes / 2;
        if !is_due || self.is_over {
            return Some((body, None));
        }
        let more = std::mem::take(&mut self.read);
        self.granted.items += more.items;
        self.granted.bytes += more.bytes;
        Some((body, Some(more)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{FRAME_MAX, HEADER_LEN};

    const LARGEST: usize = FRAME_MAX - HEADER_LEN;

    #[test]
    fn a_sender_is_never_without_credit_for_what_was_read() {
        for lens in [
            vec![1],
            vec![LARGEST],
            vec![0],
            vec![1, LARGEST],
            vec![LARGEST, 30_000, 1],
        ] {
            let (mut sender, mut reader) = (Outflow::new(), Inflow::new());
            for len in lens.iter().cycle().take(200) {
                assert!(sender.take(*len), "{lens:?}");
                reader.handle_item(&vec![0; *len]).unwrap();
                let (body, credit) = reader.read().unwrap();
                assert_eq!(body.len(), *len);
                if let Some(credit) = credit {
                    sender.handle_credit(credit).unwrap();
                }
            }
        }
    }

    #[test]
    fn items_and_bytes_have_their_bounds() {
        let (mut sender, mut reader) = (Outflow::new(), Inflow::new());
        for _ in 0..STREAM_ITEMS {
            assert!(sender.take(1));
            reader.handle_item(&[0]).unwrap();
        }
        assert!(!sender.take(0));
        assert!(reader.handle_item(&[]).is_err());
        let (mut sender, mut reader) = (Outflow::new(), Inflow::new());
        for _ in 0..4 {
            assert!(sender.take(LARGEST));
            reader.handle_item(&[0; LARGEST]).unwrap();
        }
        assert!(!sender.take(LARGEST));
        assert!(reader.handle_item(&[0; LARGEST]).is_err());
    }

    #[test]
    fn no_reader_grants_what_was_not_sent() {
        let mut sender = Outflow::new();
        assert!(sender.take(10));
        let more = |items, bytes| Credit { items, bytes };
        assert!(sender.handle_credit(more(2, 0)).is_err());
        assert!(sender.handle_credit(more(0, 11)).is_err());
        assert!(sender.handle_credit(more(u32::MAX, 0)).is_err());
        sender.handle_credit(more(1, 10)).unwrap();
        assert!(sender.handle_credit(more(0, 1)).is_err());
    }

    #[test]
    fn nothing_follows_the_last_item() {
        let mut reader = Inflow::new();
        reader.handle_item(&[1]).unwrap();
        reader.handle_last().unwrap();
        assert!(reader.handle_item(&[]).is_err());
        assert!(reader.handle_last().is_err());
        assert!(reader.read().is_some() && reader.is_over());
        assert!(reader.read().is_none());
    }
}
