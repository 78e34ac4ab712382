//! Datagrams of a domain in which all buffers are registered (`FI_MR_LOCAL`).

use tokio_fabric::{ErrorKind, info::MrMode};

use super::{DgramDomain, hints};
use crate::common::on_every_backend;

/// Of datagrams as of messages.
/// fi_domain(3): "Data buffers used in send and receive operations and as the source buffer for RMA
/// and atomic operations must be registered"
#[test]
fn with_local_all_buffers_of_datagrams_are_registered() {
    on_every_backend(|net| async move {
        let local = hints().domain(|domain| domain.required_mr_mode(MrMode::LOCAL));
        let (strict, other) = (DgramDomain::with(&net, local), DgramDomain::new(&net));
        let (x, y) = (strict.open(), other.open());
        let (to_y, to_x) = (strict.knows(&y), other.knows(&x));
        for refused in [
            x.send(vec![3u8; 8], to_y).await.map(drop),
            x.recv(vec![3u8; 8]).await.map(drop),
        ] {
            let failed = refused.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::InvalidArgument);
            assert!(failed.to_string().contains("FI_MR_LOCAL"), "{failed}");
            assert_eq!(failed.into_parts().1, Some(vec![3; 8]));
        }
        let region = strict.domain.register(vec![4u8; 8]).await.unwrap();
        let receive = y.recv(vec![0u8; 8]).post().unwrap();
        x.send(region.slice(..).unwrap(), to_y).await.unwrap();
        assert_eq!(receive.await.unwrap().1, [4; 8]);
        let receive = x.recv(region.slice(..).unwrap()).post().unwrap();
        y.send(vec![5u8; 8], to_x).await.unwrap();
        receive.await.unwrap();
        assert_eq!(region.deregister().await.unwrap(), [5; 8]);
    });
}
