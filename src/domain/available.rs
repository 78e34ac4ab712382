//! Whether the system has memory for pages that are about to be faulted in. The kernel ends a
//! process that touches more than it has, so such a registration is refused. A control group's own
//! limit is not considered.

use std::fs;

use crate::error::{Error, ErrorKind, Result};

/// What `/proc/meminfo` says, in bytes, swap included.
struct Memory {
    total: u64,
    available: u64,
}

impl Memory {
    fn now() -> Option<Memory> {
        Memory::parse(&fs::read_to_string("/proc/meminfo").ok()?)
    }

    fn parse(text: &str) -> Option<Memory> {
        let field = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let kibibytes = value.trim().strip_suffix(" kB")?;
            kibibytes.parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Memory {
            total: field("MemTotal")?.checked_add(field("SwapTotal")?)?,
            available: field("MemAvailable")?.checked_add(field("SwapFree")?)?,
        })
    }

    fn has_room_for(&self, chunk: usize, total: usize) -> Result<()> {
        let (needed, has, what) = if total as u64 > self.total {
            (total, self.total, "has in all")
        } else if chunk as u64 > self.available {
            (chunk, self.available, "has left")
        } else {
            return Ok(());
        };
        let message = format!(
            "faulting in {needed} bytes, more than the system {what} ({has}): \
             Register::lazily leaves pages as they are"
        );
        Err(Error::new(ErrorKind::LimitReached, message))
    }
}

/// Checks that the system has memory for the next `chunk` bytes of a region of `total` bytes, all
/// of whose pages will be faulted in. Passes where `/proc/meminfo` cannot be read.
pub(super) fn check(chunk: usize, total: usize) -> Result<()> {
    Memory::now().map_or(Ok(()), |memory| memory.has_room_for(chunk, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_must_fit_what_is_left_and_the_whole_what_there_is() {
        let text = "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    100 kB\n\
                    SwapTotal:        50 kB\nSwapFree:         20 kB\n";
        let memory = Memory::parse(text).unwrap();
        assert_eq!((memory.total, memory.available), (1050 << 10, 120 << 10));
        assert!(memory.has_room_for(120 << 10, 1050 << 10).is_ok());
        for (piece, of, said) in [
            ((120 << 10) + 1, 1050 << 10, "has left (122880)"),
            (1, (1050 << 10) + 1, "has in all (1075200)"),
        ] {
            let error = memory.has_room_for(piece, of).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitReached);
            assert!(error.to_string().contains(said), "{error}");
        }
        assert!(Memory::parse("MemTotal: many\n").is_none());
        assert!(Memory::now().is_some(), "this system has /proc/meminfo");
    }
}
