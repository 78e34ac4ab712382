//! Refreshing a region: looking at the pages behind it again (`fi_mr_refresh`; `fi_mr(3)`).

use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::FAULT_CHUNK;
use crate::mr::MemoryRegion;
use crate::progress::{Engine, beside_or_task};
use crate::sync::{DrainScope, HasGate};

impl<B: 'static> MemoryRegion<B> {
    /// Tells the library that the pages behind these parts of the region, in bytes from its start,
    /// may have changed (`fi_mr_refresh`); behind all of it, if no part is named.
    ///
    /// While it runs, peers and new local operations are refused; a peer's transfer in progress
    /// ends with an error. In a domain with [`MrMode::MMU_NOTIFY`](crate::info::MrMode::MMU_NOTIFY)
    /// the pages of the parts are then made present, and peers may access what is there: from its
    /// registration on that is what had pages then. Over TCP nothing else is kept of them, so in
    /// other domains a refresh has no other effect.
    ///
    /// Making pages present takes its time, and happens beside the runtime.
    ///
    /// # Errors
    /// `InvalidArgument` if a part is not all within the region; `Busy` while it is quiesced, or
    /// refreshed by somebody else; `BadState` if it is deregistered; `BadAddress` if no memory is
    /// behind a part: peers cannot access that one, nor what follows it in the list.
    ///
    /// # Cancel safety
    /// Dropping the future ends the refresh after the piece that is being looked at.
    pub async fn refresh(&self, parts: &[Range<usize>]) -> Result<()> {
        let all = 0..self.len();
        let parts = match parts {
            [] => std::slice::from_ref(&all),
            parts => parts,
        };
        for part in parts {
            if part.start > part.end || part.end > self.len() {
                let message = "iov: a part to refresh is not all within the region";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        }
        let memory = self.memory();
        let refreshing = memory.begin_refresh().map_err(crate::mr::closed)?;
        self.nudge();
        memory.drained(DrainScope::Remote).await;
        if self.memory().traits().notified_pages {
            for part in parts {
                self.look_at(part.clone()).await?;
            }
        }
        drop(refreshing);
        Ok(())
    }

    async fn look_at(&self, part: Range<usize>) -> Result<()> {
        let mut at = part.start;
        // What is there is known only when it has been found.
        self.memory().forget_pages(part.clone());
        while at < part.end {
            let (memory, from) = (self.memory().clone(), at);
            let step = FAULT_CHUNK.min(part.end - at);
            let (tell, told) = tokio::sync::oneshot::channel();
            beside_or_task(self.is_seeded(), move || {
                // Nobody listens when the refresh was given up.
                let _ = tell.send(memory.find_pages(from, step));
            });
            told.await.map_err(|_| Engine::gone_error())??;
            at += step;
        }
        Ok(())
    }
}
