//! The end of a region (`fi_close` of `fi_mr(3)`), and what a registration says that must be so.

use crate::common::matrix::{Combination, Opens, ReliableEndpoint, over_all_combinations};
use crate::common::peers::{bytes_of, open_region};
use futures::FutureExt;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Error, ErrorKind, Hints, RemoteRegion, domain::DomainBind, error::Refusal, info::MrMode,
};

/// Two endpoints that live with refusals.
async fn patient(net: &Combination) -> (Peer, Peer, ReliableEndpoint, ReliableEndpoint) {
    let (initiator, target) = (net.peer().unwrap(), net.peer().unwrap());
    let (x, y) = net.connect_patient(&initiator, &target, 100).await.unwrap();
    (initiator, target, x, y)
}

async fn write(x: &ReliableEndpoint, remote: RemoteRegion) -> Result<(), Error> {
    crate::common::peers::write(x, remote, 0xaa).await
}

/// fi_mr(3): "The state of the local endpoint will be unaffected."
/// fi_mr(3): "Once unregistered, further access to the registered memory is not guaranteed." Here
/// it is refused.
#[test]
fn access_to_a_closed_region_is_an_error_at_the_peer_and_nowhere_else() {
    over_all_combinations(|net| async move {
        let (_initiator, target, x, y) = patient(&net).await;
        let other = open_region(&target, vec![1u8; 64]).await;
        for dropped in [false, true] {
            let region = open_region(&target, vec![1u8; 64]).await;
            let remote = region.remote();
            write(&x, remote).await.unwrap();
            if dropped {
                drop(region);
            } else {
                assert_eq!(region.deregister().await.unwrap()[..], [0xaa; 64]);
            }
            let error = write(&x, remote).await.unwrap_err();
            assert_eq!(error.refusal(), Some(Refusal::Revoked), "{error}");
            let read = x.read(vec![0u8; 64], remote).await.unwrap_err();
            assert_eq!(read.error().refusal(), Some(Refusal::Revoked));
            // Both ends go on: messages, and other regions.
            let receive = x.recv(vec![0u8; 4]);
            let (sent, received) = tokio::join!(y.send("fine"), receive);
            sent.unwrap();
            assert_eq!(received.unwrap().1, b"fine");
            write(&x, other.remote()).await.unwrap();
            assert!(x.is_connected() && y.is_connected());
        }
    });
}

/// fi_mr(3): "Applications are responsible for ensuring that a MR is no longer needed prior to
/// closing it." What they still have posted is waited for here, and new use is refused.
#[test]
fn closing_waits_for_what_is_posted_and_refuses_what_is_not() {
    over_all_combinations(|net| async move {
        let (_initiator, target, x, y) = net.toward(Hints::new()).await;
        let region = open_region(&target, vec![1u8; 64]).await;
        let posted = y.recv(region.slice(..).unwrap()).post().unwrap();
        let mut closing = Box::pin(region.deregister());
        assert!(closing.as_mut().now_or_never().is_none());
        let late = y.send(region.slice(..).unwrap()).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::BadState);
        x.send(vec![2u8; 64]).await.unwrap();
        posted.await.unwrap();
        assert_eq!(closing.await.unwrap()[..], [2; 64]);
    });
}

/// fi_mr(3): "Optional specified offset for accessing specified registered buffers."
/// fi_mr(3): `fi_mr_attr.offset`, structure field.
/// fi_mr(3): "This parameter is reserved for future use and must be 0."
/// fi_mr(3): "The offset parameter is reserved for future use and must be 0."
/// fi_mr(3): "The offset field is reserved for future use and must be 0."
#[tokio::test]
async fn an_offset_is_none() {
    let domain = Net::loopback().peer().unwrap().domain;
    domain.register(vec![0u8; 8]).offset(0).now().unwrap();
    let failed = domain.register(vec![7u8; 8]).offset(4).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::InvalidArgument);
    assert!(failed.error().to_string().contains("offset"), "{failed}");
    assert_eq!(failed.into_parts().1, Some(vec![7u8; 8]));
}

/// fi_mr(3): "providers that support basic registration usually required FI_MR_LOCAL."
/// fi_mr(3): "FI_MR_BASIC must either be set alone, or in conjunction with FI_MR_LOCAL."
#[test]
fn basic_goes_with_local() {
    over_all_combinations(|net| async move {
        let both =
            Hints::new().domain(|domain| domain.required_mr_mode(MrMode::BASIC | MrMode::LOCAL));
        let basic = net.peer_with(both, DomainBind::empty());
        let far = net.peer().unwrap();
        let (x, y) = net.connect(&basic, &far).await.unwrap();
        let region = open_region(&basic, vec![3u8; 32]).await;
        let unregistered = x.send(vec![0u8; 8]).await.unwrap_err();
        assert_eq!(unregistered.kind(), ErrorKind::InvalidArgument);
        let receive = y.recv(vec![0u8; 32]);
        let (sent, received) = tokio::join!(x.send(region.slice(..).unwrap()), receive);
        sent.unwrap();
        assert_eq!(received.unwrap().1, [3; 32]);
        // The rest of basic: addresses are virtual, keys the library's.
        assert_ne!(region.remote().addr, 0);
        let asked = basic
            .domain
            .register(vec![0u8; 8])
            .key(5)
            .now()
            .unwrap_err();
        assert_eq!(asked.kind(), ErrorKind::KeyRejected);
        write(&y, region.remote().slice(1..3).unwrap())
            .await
            .unwrap();
        assert_eq!(bytes_of(&region)[..4], [3, 0xaa, 0xaa, 3]);
    });
}

/// fi_mr(3): "Multiple memory buffers are registered as a single memory region." With as many as
/// there may be, every access that begins in one and ends in another.
#[test]
fn accesses_cross_the_borders_of_sixteen_buffers() {
    over_all_combinations(|net| async move {
        let (_initiator, target, x, _y) = patient(&net).await;
        let limit = target.domain.info().domain.mr_iov_limit;
        assert!(limit >= 16);
        let sizes: Vec<usize> = (0..limit).map(|at| [1, 7, 0, 4096, 33][at % 5]).collect();
        let region = open_region(
            &target,
            sizes.iter().map(|it| vec![0u8; *it]).collect::<Vec<_>>(),
        );
        let region = region.await;
        let len: usize = sizes.iter().sum();
        assert_eq!((region.len(), region.segment_count()), (len, limit));
        let mut model = vec![0u8; len];
        let mut border = 0;
        for (number, size) in sizes.iter().enumerate() {
            border += size;
            for (before, behind) in [(0, 1), (1, 1), (3, 0), (40, 40), (5000, 9000)] {
                let (from, to) = (border.saturating_sub(before), (border + behind).min(len));
                let range = region.remote().slice(from as u64..to as u64).unwrap();
                let fresh = (number * 5 + before) as u8;
                x.write(vec![fresh; to - from], range)
                    .delivery_complete()
                    .await
                    .unwrap();
                model[from..to].fill(fresh);
                assert!(bytes_of(&region) == model);
                let (_, bytes) = x.read(vec![0; to - from], range).await.unwrap();
                assert!(bytes == model[from..to]);
            }
        }
        let one_more = RemoteRegion::new(len as u64 - 1, 2, region.key());
        let error = write(&x, one_more).await.unwrap_err();
        assert_eq!(error.refusal(), Some(Refusal::OutOfBounds));
        let buffers = region.deregister().await.unwrap();
        assert_eq!(buffers.iter().map(|it| it.len()).collect::<Vec<_>>(), sizes);
        let too_many: Vec<_> = (0..=limit).map(|_| vec![0u8; 1]).collect();
        let failed = target.domain.register(too_many).now().unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::TooLarge);
    });
}
