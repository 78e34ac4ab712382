//! Pages that change behind a region, and the call that announces it (`fi_mr(3)`: fi_mr_refresh,
//! FI_MR_MMU_NOTIFY).

use crate::common::matrix::over_all_combinations;
use crate::common::pages::{PAGE, Pages};
use crate::common::peers::{bytes_of, open_region, write};
use futures::FutureExt;
use tokio_fabric::{Error, ErrorKind, Hints, MemoryRegion, error::Refusal, info::MrMode};

/// A refresh that is at work. It looks at the pages elsewhere, and once in a while that is done
/// before it is asked again.
fn begin<B: 'static>(region: &MemoryRegion<B>) -> impl Future<Output = Result<(), Error>> {
    loop {
        let mut refreshing = Box::pin(region.refresh(&[]));
        if refreshing.as_mut().now_or_never().is_none() {
            return refreshing;
        }
    }
}

fn notify() -> Hints {
    Hints::new().domain(|domain| domain.required_mr_mode(MrMode::MMU_NOTIFY))
}

/// fi_domain(3): `FI_MR_MMU_NOTIFY`, mode bit.
/// fi_domain(3): "notifying the provider when the page tables referencing a registered memory
/// region may have been updated."
/// fi_domain(3): "Buffers used in data transfer operations may require notifying the provider of
/// their use before a data transfer"
/// fi_mr(3): "memory regions that are not necessarily backed by allocated physical pages at the
/// time the memory registration occurs."
/// fi_mr(3): "applications notify the provider prior to the MR being accessed as part of a data
/// transfer operation."
/// fi_mr(3): "This notification informs the provider that all necessary physical pages now back the
/// region."
/// fi_mr(3): "required to notify the provider of any change to the physical pages backing a
/// registered memory region"
/// fi_mr(3): "The iov parameter is optional and may be used to specify which portions of the
/// registered region requires updating."
/// fi_mr(3): "Providers are only guaranteed to update the specified address ranges."
/// fi_mr(3): "only needed if the physical pages might have been updated after the memory region was
/// created."
/// fi_mr(3): `fi_mr_refresh`: "Updates the memory pages associated with a memory region."
/// fi_mr(3): "Updates the memory pages associated with a memory region."
/// fi_mr(3): `fi_mr_refresh(iov)`, `fi_mr_refresh(count)`, arguments; and `fi_mr_refresh(flags)`,
/// of which there are none.
#[test]
fn with_mmu_notify_pages_are_refreshed_before_they_are_accessed() {
    over_all_combinations(|net| async move {
        let (initiator, target, x, _y) = net.toward(notify()).await;
        let pages = Pages::new(16);
        // The first four are there when it is registered: no refresh has to name those.
        pages.set(0, &[1; 4 * PAGE]);
        let region = open_region(&target, pages.range(0, 16 * PAGE)).await;
        let part = |from: usize, to: usize| {
            region
                .remote()
                .slice((from * PAGE) as u64..(to * PAGE) as u64)
                .unwrap()
        };
        write(&x, part(0, 4), 2).await.unwrap();
        let refused = async |from, to| {
            let (x, _y) = net.connect(&initiator, &target).await.unwrap();
            match write(&x, part(from, to), 9).await {
                Ok(()) => false,
                Err(error) => error.refusal() == Some(Refusal::Fault),
            }
        };
        assert!(refused(4, 5).await);
        assert!(refused(3, 5).await);
        // Two parts are named; what lies between them and behind them is not.
        region
            .refresh(&[4 * PAGE..6 * PAGE, 8 * PAGE..10 * PAGE])
            .await
            .unwrap();
        write(&x, part(0, 6), 3).await.unwrap();
        write(&x, part(8, 10), 3).await.unwrap();
        assert!(refused(6, 7).await);
        assert!(refused(5, 9).await);
        assert!(refused(15, 16).await);
        // Of all.
        region.refresh(&[]).await.unwrap();
        write(&x, part(0, 16), 4).await.unwrap();
        assert_eq!(pages.get(0, 16 * PAGE), vec![4; 16 * PAGE]);
        drop(initiator);
    });
}

/// fi_mr(3): "the provider should verify and update the registered region accordingly."
#[test]
fn a_refresh_verifies_that_there_is_memory() {
    over_all_combinations(|net| async move {
        let (initiator, target, x, _y) = net.toward(notify()).await;
        let pages = Pages::new(8);
        let region = open_region(&target, pages.range(0, 8 * PAGE)).await;
        region.refresh(&[]).await.unwrap();
        pages.unmap(2, 2);
        let error = region.refresh(&[]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadAddress);
        {
            let (x, _y) = net.connect(&initiator, &target).await.unwrap();
            assert!(write(&x, region.remote(), 1).await.is_err());
        }
        pages.map_again(2, 2);
        region
            .refresh(&[0..4 * PAGE, 2 * PAGE..8 * PAGE])
            .await
            .unwrap();
        write(&x, region.remote(), 1).await.unwrap();
        // Memory that a region owns is refreshed in the same way.
        let owned = open_region(&target, vec![0u8; 64 * PAGE]).await;
        owned.refresh(&[]).await.unwrap();
        write(&x, owned.remote(), 5).await.unwrap();
        assert_eq!(bytes_of(&owned), vec![5; 64 * PAGE]);
        for wrong in [0..64 * PAGE + 1, 70 * PAGE..71 * PAGE] {
            let error = owned.refresh(&[wrong]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let back = owned.deregister().await.unwrap();
        assert_eq!(back.len(), 64 * PAGE);
        let error = owned.refresh(&[]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadState);
    });
}

/// fi_mr(3): "The refresh operation has the effect of disabling and re-enabling access to the
/// registered region."
/// fi_mr(3): "Any operations from peers that attempt to access the region will fail while the
/// refresh is occurring."
/// fi_mr(3): "attempts to access the region by the local process through libfabric APIs may result
/// in a page fault", which here is an error of the call.
#[test]
fn while_a_refresh_runs_access_fails() {
    over_all_combinations(|net| async move {
        let (initiator, target, x, y) = net.toward(notify()).await;
        let region = open_region(&target, vec![0u8; 1 << 20]).await;
        region.refresh(&[]).await.unwrap();
        let refreshing = begin(&region);
        let error = region.read_at(0, &mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let error = y.send(region.slice(..8).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(
            region.refresh(&[]).await.unwrap_err().kind(),
            ErrorKind::Busy
        );
        assert_eq!(region.quiesce().await.unwrap_err().kind(), ErrorKind::Busy);
        let error = write(&x, region.remote().slice(0..64).unwrap(), 1)
            .await
            .unwrap_err();
        assert_eq!(error.refusal(), Some(Refusal::Held), "{error}");
        refreshing.await.unwrap();
        let (x, _y) = net.connect(&initiator, &target).await.unwrap();
        write(&x, region.remote(), 2).await.unwrap();
        // Given up, it lets go as well.
        let refreshing = begin(&region);
        drop(refreshing);
        region.read_at(0, &mut [0]).unwrap();
    });
}
