//! Checks that the system and the control groups of this process have memory for the pages that a
//! registration will fault in. The kernel kills a process that touches more pages, so such a
//! registration is refused.

use std::fs;

use super::control_groups::ControlGroup;
use crate::error::{Error, ErrorKind, Result};

/// Sizes that `/proc/meminfo` gives, in bytes; `total` and `available` include swap.
struct Memory {
    total: u64,
    available: u64,
    swap: u64,
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
            swap: field("SwapFree")?,
        })
    }

    fn has_room_for(&self, chunk: usize, total: usize) -> Result<()> {
        if total as u64 > self.total {
            Err(too_much(total, "the system has in all", self.total))
        } else if chunk as u64 > self.available {
            Err(too_much(chunk, "the system has left", self.available))
        } else {
            Ok(())
        }
    }
}

/// The control groups that limit the registration of one region; `None` until they are read.
#[derive(Default)]
pub(super) struct MemoryLimits(Option<Vec<ControlGroup>>);

impl MemoryLimits {
    /// Checks that there is memory for the next `chunk` bytes of a region of `total` bytes, all of
    /// whose pages will be faulted in. A limit that cannot be read is ignored.
    pub(super) fn check(&mut self, chunk: usize, total: usize) -> Result<()> {
        let Some(memory) = Memory::now() else {
            return Ok(());
        };
        memory.has_room_for(chunk, total)?;
        let groups = self.0.get_or_insert_with(ControlGroup::of_this_process);
        for group in groups {
            let limit = group.limit();
            if total as u64 > limit.saturating_add(memory.swap) {
                let what = "a control group of this process has in all";
                return Err(too_much(total, what, limit));
            }
            // Twice the chunk: page tables, and memory that others take meanwhile, need room too.
            let room = group.room(memory.swap);
            if let Some(room) = room.filter(|room| 2 * chunk as u64 > *room) {
                let what = "a control group of this process has left";
                return Err(too_much(chunk, what, room));
            }
        }
        Ok(())
    }
}

fn too_much(needed: usize, what: &str, has: u64) -> Error {
    let message = format!(
        "faulting in {needed} bytes, more than {what} ({has}): Register::lazily leaves pages as \
         they are"
    );
    Error::new(ErrorKind::LimitReached, message)
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
