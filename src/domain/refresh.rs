//! Refreshing a region: faulting the pages behind it in again (`fi_mr_refresh`; `fi_mr(3)`).

use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::FAULT_CHUNK;
use crate::mr::MemoryRegion;
use crate::progress::{Engine, run_blocking_or_task};
use crate::sync::{DrainScope, HasGate, await_driving};

impl<B: 'static> MemoryRegion<B> {
    /// Declares that the pages behind parts of the region may have changed (`fi_mr_refresh`). The
    /// parts are in bytes from the start of the region; no parts mean the whole region.
    ///
    /// While the refresh runs, accesses of peers and new local operations are refused; a peer's
    /// transfer in progress fails. In a domain with
    /// [`MrMode::MMU_NOTIFY`](crate::info::MrMode::MMU_NOTIFY) the pages of the parts are then
    /// faulted in, on blocking threads, and peers may access them (until the first refresh they may
    /// access the pages that were present at registration). In other domains a refresh has no other
    /// effect, because nothing depends on the pages over TCP.
    ///
    /// # Errors
    /// `InvalidArgument` if a part is not within the region; `Busy` while the region is quiesced or
    /// another refresh runs; `BadState` if it is deregistered; `BadAddress` if there is no memory
    /// behind a part: peers can access neither that part nor those after it in the list.
    ///
    /// # Cancel safety
    /// If the future is dropped, the refresh ends after the chunk of pages in progress.
    #[doc(alias = "fi_mr_refresh")]
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
        let refreshing = memory.begin_refresh().map_err(crate::mr::gate_error)?;
        self.nudge();
        let drained = memory.drained(DrainScope::Remote);
        await_driving(self.progress(), drained).await;
        if self.memory().traits().notified_pages {
            for part in parts {
                self.fault_in_again(part.clone()).await?;
            }
        }
        drop(refreshing);
        Ok(())
    }

    async fn fault_in_again(&self, part: Range<usize>) -> Result<()> {
        let mut at = part.start;
        // Forgotten first: a page counts as present only once it has been faulted in again.
        self.memory().forget_pages(part.clone());
        while at < part.end {
            let (memory, from) = (self.memory().clone(), at);
            let step = FAULT_CHUNK.min(part.end - at);
            let (sender, result) = tokio::sync::oneshot::channel();
            run_blocking_or_task(self.is_seeded(), move || {
                // The receiver is gone if the refresh was dropped.
                let _ = sender.send(memory.fault_in_and_record(from, step));
            });
            result.await.map_err(|_| Engine::gone_error())??;
            at += step;
        }
        Ok(())
    }
}
