//! Metadata of a call, which is sent in addition to its body: pairs of names and values.

use super::Violation;
use crate::limits::{METADATA_ENTRIES_MAX, METADATA_MAX};
use crate::status::{Code, Status};

/// The metadata of a call: pairs of a name (UTF-8) and a value (bytes), at most 16 pairs and 1 KiB
/// encoded.
///
/// A caller adds entries with [`Call::meta`](crate::Call::meta); a handler reads them with
/// [`Cx::metadata`](crate::Cx::metadata).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The encoding on the wire, checked. Each entry: length of the name (1 byte), length of the
    /// value (2 bytes), name, value.
    encoded: Vec<u8>,
}

/// Bytes before a name.
const ENTRY_HEAD: usize = 3;

impl Metadata {
    /// The value of the first entry with this name.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.iter();
        entries.find(|(it, _)| *it == name).map(|(_, value)| value)
    }

    /// The entries, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = &self.encoded[..];
        std::iter::from_fn(move || {
            let (name, value, after) = split(rest)?;
            rest = after;
            Some((name, value))
        })
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.encoded.is_empty()
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`Code::TooLarge`] if the entry does not fit.
    pub(crate) fn push(&mut self, name: &str, value: &[u8]) -> Result<(), Status> {
        let len = self.encoded.len() + ENTRY_HEAD + name.len() + value.len();
        let (Ok(name_len), Ok(value_len)) = (u8::try_from(name.len()), u16::try_from(value.len()))
        else {
            return Err(too_large());
        };
        if len > METADATA_MAX || self.iter().count() == METADATA_ENTRIES_MAX {
            return Err(too_large());
        }
        self.encoded.push(name_len);
        self.encoded.extend_from_slice(&value_len.to_le_bytes());
        self.encoded.extend_from_slice(name.as_bytes());
        self.encoded.extend_from_slice(value);
        Ok(())
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Checks metadata that a peer has sent.
    #[inline]
    pub(super) fn check(encoded: &[u8]) -> Result<(), Violation> {
        match encoded {
            [] => Ok(()),
            some => Self::check_some(some),
        }
    }

    fn check_some(encoded: &[u8]) -> Result<(), Violation> {
        if encoded.len() > METADATA_MAX {
            return Err(Violation("more metadata than a call may have"));
        }
        let mut rest = encoded;
        let mut count = 0;
        while !rest.is_empty() {
            count += 1;
            if count > METADATA_ENTRIES_MAX {
                return Err(Violation("more entries of metadata than a call may have"));
            }
            (_, _, rest) = split(rest).ok_or(Violation("metadata that is cut off or no text"))?;
        }
        Ok(())
    }

    /// Replaces the metadata by bytes that were checked.
    #[inline]
    pub(crate) fn set_checked(&mut self, encoded: &[u8]) {
        self.encoded.clear();
        if !encoded.is_empty() {
            self.encoded.extend_from_slice(encoded);
        }
    }
}

fn too_large() -> Status {
    let what = "metadata: 16 entries, and 1 KiB of them, is what a call may have";
    Status::not_started(Code::TooLarge, what)
}

/// Splits off the first entry.
fn split(encoded: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (head, rest) = encoded.split_first_chunk::<ENTRY_HEAD>()?;
    let (name, rest) = rest.split_at_checked(head[0].into())?;
    let value_len = u16::from_le_bytes([head[1], head[2]]);
    let (value, rest) = rest.split_at_checked(value_len.into())?;
    Some((std::str::from_utf8(name).ok()?, value, rest))
}

/// Shows only the names: values may be secret.
impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set()
            .entries(self.iter().map(|(name, _)| name))
            .finish()
    }
}
