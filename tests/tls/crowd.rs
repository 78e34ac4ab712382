//! Many peers that do at once what costs the other side a handshake each.

use futures::future::{join_all, select};
use tokio_fabric::testing::Net;

use crate::common::gone::{Loss, Pause, cases};
use crate::common::peers::{any, request};
use crate::common::tls::Node;
use crate::common::wire::TlsStep;
use crate::common::{on_every_backend_at_once, on_sockets_at_once};

fn secured(net: Net) -> Net {
    net.tls(Node::here().config())
}

/// A crowd that connects at once is no attack with TLS either, whose handshakes take their time:
/// those that are too many wait in the backlog, and none is closed.
#[test]
fn more_clients_at_once_than_may_be_half_open_are_all_answered() {
    on_every_backend_at_once(|net| async move {
        let net = secured(net);
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let requests = b.fabric.event_queue().open().unwrap();
        let builder = b.fabric.passive_endpoint(&requests).half_open_max(2);
        let listener = builder.listen_at(any()).unwrap();
        let connecting = (0..40).map(|_| {
            let endpoint = a.domain.endpoint().open().unwrap();
            let connecting = endpoint.connect(listener.local_addr()).into_future();
            async move { connecting.await.map(|_| endpoint) }
        });
        let connecting = join_all(connecting);
        let accepting = async {
            let mut accepted = Vec::new();
            loop {
                let asked = request(&requests).await;
                accepted.push(asked.accept(&b.domain).into_future());
            }
        };
        let both = select(Box::pin(connecting), Box::pin(accepting));
        let futures::future::Either::Left((connected, _accepting)) = both.await;
        for result in connected {
            assert!(result.unwrap().is_connected());
        }
        let stats = listener.stats();
        assert_eq!((stats.evicted, stats.timed_out), (0, 0));
    });
}

/// "A peer's death is always found", also while reading is paused, wherever in the records of TLS
/// the stream ends.
#[test]
fn a_peer_that_is_gone_is_found_while_reading_is_paused() {
    let ends = [
        Loss::Fin,
        Loss::FinThenReset,
        Loss::Reset,
        Loss::HalfRecord,
        Loss::Silence,
        Loss::SilenceInRecord,
    ];
    on_sockets_at_once(|net| async move {
        let net = secured(net);
        for pause in Pause::ALL {
            join_all(cases(&net, pause, Some(TlsStep::Done), &ends)).await;
        }
    });
}
