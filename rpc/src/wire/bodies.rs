//! Bodies that outlive the message that they came in.

use bytes::{Bytes, BytesMut};

use crate::limits::{BODIES_CHUNK, SHARED_BODY_MAX};

/// Copies bodies behind one another, into memory that is used again once all of them are dropped.
/// A short one that is kept keeps the others' memory, a chunk's, which is why chunks are small.
#[derive(Debug, Default)]
pub struct Bodies(BytesMut);

impl Bodies {
    /// The same bytes.
    #[inline]
    pub fn copy(&mut self, body: &[u8]) -> Bytes {
        if body.is_empty() {
            return Bytes::new();
        }
        if body.len() > SHARED_BODY_MAX {
            return Bytes::copy_from_slice(body);
        }
        if self.0.capacity() < body.len() {
            self.0.reserve(BODIES_CHUNK);
        }
        self.0.extend_from_slice(body);
        self.0.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_once_all_of_a_chunk_is_dropped() {
        let mut bodies = Bodies::default();
        let mut fill = || -> Vec<Bytes> {
            let each = vec![7; SHARED_BODY_MAX];
            (0..BODIES_CHUNK / SHARED_BODY_MAX)
                .map(|_| bodies.copy(&each))
                .collect()
        };
        let first = fill();
        let (place, kept) = (first[0].as_ptr(), first[1].clone());
        drop(first);
        // One of them is there.
        let second = fill();
        assert!(second.iter().all(|it| it.as_ptr() != place));
        assert_eq!(kept, vec![7; SHARED_BODY_MAX]);
        let place = second[0].as_ptr();
        drop(second);
        assert_eq!(fill()[0].as_ptr(), place);
    }

    #[test]
    fn a_large_body_keeps_no_others_memory() {
        let mut bodies = Bodies::default();
        let small = bodies.copy(b"small");
        let large = bodies.copy(&[1; SHARED_BODY_MAX + 1]);
        assert_eq!(
            (&small[..], large.len()),
            (&b"small"[..], SHARED_BODY_MAX + 1)
        );
        assert!(large.is_unique() && !small.is_unique());
        assert!(bodies.copy(&[]).is_empty());
    }
}
