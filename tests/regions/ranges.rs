//! Regions of address ranges: memory that may not be there (`fi_mr(3)`, scalable registration;
//! ruling 19).

use crate::common::matrix::over_all_combinations;
use crate::common::pages::{PAGE, Pages};
use crate::common::peers::{bytes_of, open_region, read, write};
use tokio_fabric::testing::Net;
use tokio_fabric::{Access, ErrorKind, Hints, buf::AddressRange, error::Refusal, info::MrMode};

/// fi_mr(3): "In scalable mode, registration occurs on memory address ranges."
/// fi_mr(3): "an application can register any range of addresses in their virtual address space"
/// fi_mr(3): "whether or not those addresses are backed by physical pages or have been allocated."
/// fi_mr(3): "address ranges given for a registration request do not need to map to data buffers
/// allocated by the application"
#[test]
fn any_range_of_addresses_is_registered_and_its_pages_are_used_once_they_are_there() {
    over_all_combinations(|net| async move {
        let (initiator, target, x, _y) = net.toward(Hints::new()).await;
        let pages = Pages::new(64);
        pages.unmap(0, 64);
        let region = open_region(&target, pages.range(100, 60 * PAGE)).await;
        assert_eq!((region.len(), region.remote().addr), (60 * PAGE, 0));
        // Nowhere at all is a range as well.
        // SAFETY: nothing is ever mapped at the first page, nor at the last addresses.
        let nowhere = [8, usize::MAX - PAGE]
            .map(|start| unsafe { AddressRange::new(std::ptr::without_provenance_mut(start), 64) });
        for range in nowhere {
            let region = open_region(&target, range).await;
            let error = region.read_at(0, &mut [0; 4]).unwrap_err();
            assert_eq!(
                (error.kind(), error.fi_errno()),
                (ErrorKind::BadAddress, 14)
            );
        }
        // The pages come; what peers write is in them, small and large.
        pages.map_again(0, 64);
        for (offset, len) in [(0, 10), (PAGE - 50, 100), (3 * PAGE + 1, 50 * PAGE)] {
            let range = region
                .remote()
                .slice(offset as u64..(offset + len) as u64)
                .unwrap();
            write(&x, range, 7).await.unwrap();
            assert_eq!(pages.get(100 + offset, len), vec![7; len]);
            pages.set(100 + offset, &vec![9; len]);
            assert_eq!(read(&x, range).await.unwrap(), vec![9; len]);
        }
        // They change; no call has to announce it.
        pages.unmap(0, 64);
        pages.map_again(0, 64);
        let first = region.remote().slice(0..8).unwrap();
        assert_eq!(read(&x, first).await.unwrap(), vec![0; 8]);
        drop(initiator);
    });
}

/// Ruling 19: "an access to an unmapped page fails with `FI_EFAULT`", and the process does not.
#[test]
fn an_access_to_a_page_that_is_not_there_fails_and_nothing_else() {
    over_all_combinations(|net| async move {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        let pages = Pages::new(600);
        pages.set(0, &vec![5; 600 * PAGE]);
        let region = open_region(&target, pages.range(0, 600 * PAGE)).await;
        let bystander = open_region(&target, vec![1u8; 64]).await;
        let (z, _z) = net.connect(&initiator, &target).await.unwrap();
        // Taken away later, not writable, not accessible; by staged and by direct transfers, at
        // once and behind a megabyte of pages that are there.
        pages.unmap(3, 1);
        pages.protect(10, 1, libc::PROT_READ);
        pages.protect(20, 1, libc::PROT_NONE);
        pages.unmap(500, 1);
        for (first, count, readable) in [
            (3, 1, false),
            (10, 1, true),
            (20, 1, false),
            (2, 30, false),
            (100, 450, false),
        ] {
            let (from, to) = ((first * PAGE) as u64, ((first + count) * PAGE) as u64);
            let range = region.remote().slice(from + 8..to - 8).unwrap();
            let (x, y) = net.connect(&initiator, &target).await.unwrap();
            let error = write(&x, range, 7).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadAddress, "{error}");
            assert_eq!(error.refusal(), Some(Refusal::Fault));
            drop((x, y));
            let (x, _y) = net.connect(&initiator, &target).await.unwrap();
            assert_eq!(read(&x, range).await.is_ok(), readable, "page {first}");
        }
        // No other connection has noticed.
        write(&z, bystander.remote(), 2).await.unwrap();
        assert_eq!(bytes_of(&bystander), vec![2; 64]);
        write(&z, region.remote().slice(0..64).unwrap(), 3)
            .await
            .unwrap();
        assert_eq!(pages.get(0, 65)[60..], [3, 3, 3, 3, 5]);
        assert_eq!(
            pages.get(10 * PAGE, 8),
            [5; 8],
            "a page that is read-only is not written"
        );
    });
}

/// The same where the page is missing so far behind that the transfer has long begun: the operation
/// fails, and where refusals are lived with, the connection goes on.
#[test]
fn a_hole_deep_in_a_large_transfer_fails_that_transfer() {
    const PAGES: usize = 1000;
    over_all_combinations(|net| async move {
        let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, _y) = net.connect_patient(&initiator, &target, 8).await.unwrap();
        let pages = Pages::new(PAGES);
        let region = open_region(&target, pages.range(0, PAGES * PAGE)).await;
        pages.unmap(PAGES - 500, 1);
        for _ in 0..2 {
            let error = write(&x, region.remote(), 7).await.unwrap_err();
            assert_eq!(error.refusal(), Some(Refusal::Fault), "{error}");
            let error = read(&x, region.remote()).await.unwrap_err();
            assert_eq!(error.refusal(), Some(Refusal::Fault), "{error}");
        }
        assert!(x.is_connected());
        pages.map_again(PAGES - 500, 1);
        write(&x, region.remote(), 8).await.unwrap();
        assert_eq!(
            read(&x, region.remote()).await.unwrap(),
            vec![8; PAGES * PAGE]
        );
    });
}

/// Ruling 19: "accessed only through the kernel", by its owner's calls too.
#[tokio::test]
async fn the_owners_copies_fail_where_no_page_is() {
    let domain = Net::loopback().peer().unwrap().domain;
    let pages = Pages::new(4);
    let region = domain.register(pages.range(0, 4 * PAGE)).now().unwrap();
    region.write_at(10, b"here").unwrap();
    let mut bytes = [0; 4];
    region.read_at(10, &mut bytes).unwrap();
    assert_eq!(&bytes, b"here");
    pages.unmap(1, 1);
    for (offset, len) in [(PAGE, 1), (PAGE - 2, 4), (2 * PAGE - 1, 1), (0, 4 * PAGE)] {
        let error = region.read_at(offset, &mut vec![0; len]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadAddress, "{len} at {offset}");
        let error = region.write_at(offset, &vec![1; len]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadAddress, "{len} at {offset}");
    }
    // No references, no atomics.
    assert_eq!(
        region.quiesce().await.unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(
        region.load::<u64>(0).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(
        region.store(0, 1u8).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    // What comes back is the range; without its type it has no bytes.
    let back = region.erase().deregister().await.unwrap().remove(0);
    assert_eq!((back.len(), &back[..]), (0, &[][..]));
    // And it is no buffer of an operation.
    let (x, _y) = Net::loopback().pair().await.unwrap();
    let refused = x.send(back).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let back = refused.into_parts().1.unwrap();
    let range = back.into_range().unwrap();
    assert_eq!(
        (range.start().addr(), range.len()),
        (pages.address(), 4 * PAGE)
    );
    // A range beyond the last address is none.
    // SAFETY: it is refused.
    let wraps = unsafe { AddressRange::new(std::ptr::without_provenance_mut(usize::MAX), 2) };
    let refused = domain.register(wraps).now().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert_eq!(refused.into_parts().1.unwrap().len(), 2);
}

/// Ruling 19, for operations of this process: one whose pages are not there is not posted, and its
/// connection goes on.
#[test]
fn a_local_operation_on_a_page_that_is_not_there_is_refused_before_anything_is_sent() {
    over_all_combinations(|net| async move {
        let (initiator, target, x, y) = net.toward(Hints::new()).await;
        let far = open_region(&target, vec![0u8; 4 * PAGE]).await;
        let pages = Pages::new(4);
        let region = open_region(&initiator, pages.range(0, 4 * PAGE)).await;
        pages.set(0, &[6; PAGE]);
        pages.unmap(2, 1);
        let hole = || region.slice(PAGE..3 * PAGE).unwrap();
        let there = || region.slice(..PAGE).unwrap();
        let remote = far.remote();
        let refused = x.send(hole()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadAddress);
        assert_eq!(
            refused.into_parts().1.map(|slice| slice.len()),
            Some(2 * PAGE)
        );
        let refused = x.write(hole(), remote).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadAddress);
        let refused = x.read(hole(), remote).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadAddress);
        assert!(x.is_connected());
        x.write(there(), remote).delivery_complete().await.unwrap();
        assert_eq!(bytes_of(&far)[..PAGE + 1], [&[6; PAGE][..], &[0]].concat());
        let received = y.recv(vec![0u8; PAGE]);
        let (sent, received) = tokio::join!(x.send(there()), received);
        sent.unwrap();
        assert_eq!(received.unwrap().1, vec![6; PAGE]);
        far.write_at(0, &[8; PAGE]).unwrap();
        x.read(there(), remote).await.unwrap();
        assert_eq!(pages.get(0, PAGE), vec![8; PAGE]);
    });
}

/// A receive waits for its pages until its message comes: if they are not there then, however long
/// the message is, the receive ends by that, and neither its connection nor the next message.
#[test]
fn a_receive_whose_pages_are_not_there_ends_alone() {
    const PAGES: usize = 100;
    over_all_combinations(|net| async move {
        let (_initiator, target, x, y) = net.toward(Hints::new()).await;
        let pages = Pages::new(PAGES);
        let region = open_region(&target, pages.range(0, PAGES * PAGE)).await;
        pages.unmap(3, 1);
        for len in [4 * PAGE, 20 * PAGE, PAGES * PAGE] {
            let receive = y.recv(region.slice(..len).unwrap()).post().unwrap();
            x.send(vec![1u8; len]).await.unwrap();
            let error = receive.await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadAddress, "{error}");
            x.send("next").await.unwrap();
            let (received, _) = y.recv(vec![0; 8]).await.unwrap();
            assert_eq!(received.len, 4);
        }
    });
}

/// fi_mr(3): "When set, all registered memory regions must be backed by physical memory pages at
/// the time the registration call is made."
#[test]
fn with_allocated_a_range_without_memory_is_not_registered() {
    over_all_combinations(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
        let (_initiator, target, x, _y) = net.toward(hints).await;
        let pages = Pages::new(8);
        let region = open_region(&target, pages.range(0, 8 * PAGE)).await;
        assert_eq!(resident(&pages, 8), 8, "every page is there now");
        write(&x, region.remote(), 1).await.unwrap();
        pages.unmap(6, 1);
        let refused = target.domain.register(pages.range(0, 8 * PAGE)).now();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadAddress);
        pages.protect(2, 1, libc::PROT_READ);
        let range = || target.domain.register(pages.range(0, 4 * PAGE));
        let refused = range().access(Access::REMOTE_WRITE).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadAddress);
        range()
            .access(Access::REMOTE_READ | Access::SEND)
            .await
            .unwrap();
    });
}

/// How many of the first pages are there.
fn resident(pages: &Pages, count: usize) -> usize {
    let mut states = vec![0_u8; count];
    // SAFETY: one byte per page.
    let asked = unsafe {
        let start = std::ptr::with_exposed_provenance_mut(pages.address());
        libc::mincore(start, count * PAGE, states.as_mut_ptr())
    };
    assert_eq!(asked, 0);
    states.iter().filter(|state| **state & 1 == 1).count()
}
