//! Bodies that outlive the message in which they arrived.

use bytes::{Bytes, BytesMut};

use crate::limits::{BODIES_PIECE, SHARED_BODY_MAX};

/// Copies bodies of messages in pieces of several frames, into memory that is reused once all its
/// pieces are dropped. A short body that is kept keeps a whole piece, so pieces are small.
#[derive(Debug, Default)]
pub struct Bodies {
    memory: BytesMut,
    /// A copied piece of the message.
    piece: Bytes,
    /// Offset of the piece in the message.
    begin: usize,
}

impl Bodies {
    /// Starts with another message.
    pub fn begin_message(&mut self) {
        (self.piece, self.begin) = (Bytes::new(), 0);
    }

    /// Returns a body of the message as bytes that own their memory.
    #[inline]
    pub fn copy(&mut self, message: &[u8], body: &[u8]) -> Bytes {
        if body.is_empty() {
            return Bytes::new();
        }
        let at = body.as_ptr().addr() - message.as_ptr().addr();
        if at < self.begin || at + body.len() > self.begin + self.piece.len() {
            if body.len() > SHARED_BODY_MAX {
                return Bytes::copy_from_slice(body);
            }
            self.copy_piece(message, at);
            // The piece has no other body, for instance in a message of one frame.
            if self.piece.len() == body.len() {
                return std::mem::take(&mut self.piece);
            }
        }
        let at = at - self.begin;
        self.piece.slice(at..at + body.len())
    }

    /// Copies a piece of the message, from `begin` on.
    fn copy_piece(&mut self, message: &[u8], begin: usize) {
        self.piece = Bytes::new();
        let piece = &message[begin..message.len().min(begin + BODIES_PIECE)];
        if self.memory.capacity() < piece.len() {
            self.memory.reserve(BODIES_PIECE);
        }
        self.memory.extend_from_slice(piece);
        (self.piece, self.begin) = (self.memory.split().freeze(), begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bodies of 100 bytes one after the other, each filled with its number.
    fn message() -> Vec<u8> {
        (0..100_u8).flat_map(|it| [it; 100]).collect()
    }

    fn all(bodies: &mut Bodies, message: &[u8]) -> Vec<Bytes> {
        bodies.begin_message();
        let each = message.chunks(100);
        each.map(|it| bodies.copy(message, it)).collect()
    }

    #[test]
    fn bodies_are_what_the_message_has_and_their_memory_is_used_again() {
        let (mut bodies, message) = (Bodies::default(), message());
        let first = all(&mut bodies, &message);
        let (place, kept) = (first[0].as_ptr(), first[1].clone());
        assert_eq!(first.concat(), message);
        drop(first);
        // Checks one of them.
        let mut places = Vec::new();
        for _ in 0..100 {
            let copied = all(&mut bodies, &message);
            assert_eq!(copied.concat(), message);
            places.push(copied[0].as_ptr());
        }
        assert!(!places.contains(&place));
        assert_eq!(kept, vec![1; 100]);
        places.sort_unstable();
        places.dedup();
        assert!(places.len() < 50, "{} places", places.len());
    }

    #[test]
    fn what_is_skipped_and_another_message_make_no_difference() {
        let (mut bodies, message) = (Bodies::default(), message());
        for at in [0, 300, 350, 9_900, 200] {
            let body = &message[at..at + 50];
            assert_eq!(bodies.copy(&message, body), body);
        }
        // In the same memory.
        let mut other = message;
        other.fill(7);
        bodies.begin_message();
        assert_eq!(bodies.copy(&other, &other[..50]), vec![7; 50]);
    }

    #[test]
    fn a_body_that_is_kept_keeps_a_piece_and_a_large_one_itself() {
        let (mut bodies, message) = (Bodies::default(), message());
        let large = bodies.copy(&message, &message[..SHARED_BODY_MAX + 1]);
        assert!(large.is_unique());
        let small = bodies.copy(&message, &message[5000..5001]);
        assert!(!small.is_unique());
        assert!(bodies.copy(&message, &[]).is_empty());
    }
}
