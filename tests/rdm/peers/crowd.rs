//! More peers than an endpoint lets in that has not asked for them.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use tokio_fabric::{ErrorKind, RdmEndpoint};

use crate::common::on_every_backend_at_once;
use crate::common::peers::any;

/// A host's crowd comes in as far as there is as much room for all other hosts; who is beyond that
/// is rejected, and one of another host comes in.
#[test]
fn a_crowd_of_one_host_leaves_room_for_others() {
    const MAX: usize = 24;
    on_every_backend_at_once(|net| async move {
        let peer = net.peer().unwrap();
        let rdm = || peer.domain.rdm_endpoint();
        let open = |at| rdm().listen_at(at).open().unwrap();
        let builder = rdm().strangers_max(MAX).listen_at(any());
        let endpoint = builder.open().unwrap();
        let at = endpoint.local_addr();
        let send = |from: RdmEndpoint| async move {
            let to = from.insert(at).unwrap();
            let sent = from.send("hello", to).delivery_complete().await;
            (sent.map(drop).map_err(|failed| failed.kind()), from)
        };
        let crowd = (0..MAX / 2).map(|_| send(open(any())));
        let crowd = join_all(crowd).await;
        assert!(crowd.iter().all(|(sent, _)| sent.is_ok()), "{crowd:?}");

        let soon = Duration::from_millis(300);
        let one_more = rdm().connect_deadline(soon).listen_at(any());
        let (sent, _) = send(one_more.open().unwrap()).await;
        assert_eq!(sent, Err(ErrorKind::Unreachable));
        let (sent, _other) = send(open(SocketAddr::from(([127, 0, 0, 2], 0)))).await;
        assert_eq!(sent, Ok(()), "another host's");
        // Whom the application knows is no stranger.
        let known = open(any());
        endpoint.insert(known.local_addr()).unwrap();
        let (sent, _known) = send(known).await;
        assert_eq!(sent, Ok(()), "inserted");
    });
}
