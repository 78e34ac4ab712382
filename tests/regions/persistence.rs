//! Writes that are persistent when they end (`fi_mr(3)`: FI_RMA_PMEM; FI_COMMIT_COMPLETE).

use std::io::Write;

use crate::common::matrix::over_all_combinations;
use crate::common::pages::{PAGE, Pages};
use crate::common::peers::{open_region, peer_with};
use tempfile::NamedTempFile;
use tokio_fabric::testing::{Net, Peer, connect};
use tokio_fabric::{
    Caps, Error, ErrorKind, Hints, MemoryRegion,
    buf::AddressRange,
    domain::DomainBind,
    error::Refusal,
    info::Persistence,
    mr::{MrBind, MrFlags},
};

/// A file of zeros, on the device that the crate is built on and not in memory.
fn file(pages: usize) -> NamedTempFile {
    let mut file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&vec![0; pages * PAGE]).unwrap();
    file.as_file().sync_all().unwrap();
    file
}

fn register(peer: &Peer, pages: &Pages, len: usize) -> Result<MemoryRegion<AddressRange>, Error> {
    let range = peer.domain.register(pages.range(0, len));
    range.flags(MrFlags::RMA_PMEM).now().map_err(Error::from)
}

/// Kilobytes of the mapping that its file on the device does not have yet.
fn dirty(pages: &Pages) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let own = format!("{:x}-", pages.address());
    let mapping = maps
        .lines()
        .skip_while(|line| !line.starts_with(&own))
        .skip(1);
    mapping
        .take_while(|line| !line.starts_with("VmFlags"))
        .filter(|line| line.contains("_Dirty:"))
        .map(|line| {
            line.split_ascii_whitespace()
                .nth(1)
                .unwrap()
                .parse::<usize>()
                .unwrap()
        })
        .sum()
}

/// fi_mr(3): `FI_RMA_PMEM`, flag of registration.
/// fi_mr(3): "the underlying memory region is backed by persistent memory and will be used in RMA
/// operations."
/// fi_mr(3): "must be specified if persistent completion semantics or persistent data transfers are
/// required"
#[test]
fn a_committed_write_is_on_the_device_when_it_ends() {
    over_all_combinations(|net| async move {
        let (_initiator, target, x, _y) = net.toward(Hints::new()).await;
        assert_eq!(
            target.domain.info().domain.persistence,
            Persistence::Synchronize
        );
        let file = file(64);
        let pages = Pages::of_file(file.as_file(), 64);
        let region = register(&target, &pages, 64 * PAGE).unwrap();
        let commits = target.domain.counter().unwrap();
        region.bind_counter(&commits, MrBind::REMOTE_WRITE).unwrap();
        // A write that was reported as landed need not be on the device.
        let remote = region.remote();
        x.write(vec![1u8; 64 * PAGE], remote)
            .delivery_complete()
            .await
            .unwrap();
        assert!(dirty(&pages) > 0);
        x.write(vec![2u8; 64 * PAGE], remote)
            .commit_complete()
            .await
            .unwrap();
        assert_eq!(dirty(&pages), 0);
        // Small, with data, among others that wait for it: all of them end, in order.
        let mut all = Vec::new();
        for round in 0..20_u64 {
            let range = remote.slice(round * 100..round * 100 + 8).unwrap();
            let write = x.write(vec![3u8; 8], range);
            all.push(match round % 3 {
                0 => write.commit_complete().post().unwrap(),
                1 => write.commit_complete().imm(round).post().unwrap(),
                _ => write.delivery_complete().post().unwrap(),
            });
        }
        for write in all {
            write.await.unwrap();
        }
        assert_eq!(commits.wait_for(22).await.unwrap(), 22);
        assert_eq!(
            std::fs::read(file.path()).unwrap()[..9],
            [3, 3, 3, 3, 3, 3, 3, 3, 2]
        );
    });
}

/// fi_mr(3): "persistent completion semantics" are for regions that were registered for them; and
/// what cannot be made persistent does not end as if it had been.
#[test]
fn a_commit_elsewhere_is_refused() {
    over_all_combinations(|net| async move {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        let plain = open_region(&target, vec![0u8; 64]).await;
        let (x, _y) = net.connect(&initiator, &target).await.unwrap();
        assert!(
            x.write(vec![1u8; 64], plain.remote())
                .commit_complete()
                .await
                .is_err()
        );
        let (x, _y) = net.connect(&initiator, &target).await.unwrap();
        // The file is gone from under its mapping when the write comes.
        let file = file(8);
        let pages = Pages::of_file(file.as_file(), 8);
        let region = register(&target, &pages, 8 * PAGE).unwrap();
        pages.unmap(3, 1);
        let committed = x
            .write(vec![1u8; 8 * PAGE], region.remote())
            .commit_complete()
            .await;
        assert_eq!(
            committed.unwrap_err().error().refusal(),
            Some(Refusal::Fault)
        );
    });
}

/// fi_mr(3): "Returned if the specified flags are not supported by the provider."
#[tokio::test]
async fn only_mapped_files_are_registered_as_persistent() {
    let net = Net::loopback();
    let target = net.peer().unwrap();
    let file = file(8);
    let (mapped, anonymous) = (Pages::of_file(file.as_file(), 8), Pages::new(8));
    register(&target, &mapped, 8 * PAGE).unwrap();
    for (pages, what) in [(&anonymous, "anonymous"), (&mapped, "in part")] {
        if what == "in part" {
            mapped.map_again(5, 1);
        }
        let error = register(&target, pages, 8 * PAGE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{what}");
    }
    let owned = target
        .domain
        .register(vec![0u8; 64])
        .flags(MrFlags::RMA_PMEM)
        .now();
    let failed = owned.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::InvalidArgument);
    assert!(failed.into_parts().1.is_some());
    // Without the capability there are no such flags, here and there.
    let without = Hints::new().caps(Caps::MSG | Caps::RMA);
    let without = peer_with(&net, without, DomainBind::empty());
    let error = register(&without, &mapped, PAGE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFlags);
    let region = register(&target, &mapped, PAGE).unwrap();
    let (x, _y) = connect(&without, &target).await.unwrap();
    let write = x.write(vec![0u8; 8], region.remote()).commit_complete();
    assert_eq!(write.await.unwrap_err().kind(), ErrorKind::NoCapability);
}
