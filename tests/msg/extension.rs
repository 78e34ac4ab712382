//! What endpoints of this library have with each other beyond libfabric's protocol, and do without
//! where one side declines: `docs/extension.md`.

use crate::common::on_every_backend;
use tokio_fabric::testing::connect_endpoints;

/// docs/extension.md: "incarnation: random, not 0; another one after a restart".
#[test]
fn a_restarted_peer_has_another_incarnation() {
    on_every_backend(|net| async move {
        let (a, b, again) = (
            net.peer().unwrap(),
            net.peer().unwrap(),
            net.peer().unwrap(),
        );
        let mut seen = Vec::new();
        for peer in [&b, &b, &again] {
            let x = a.domain.endpoint().open().unwrap();
            assert_eq!(x.peer_incarnation(), None, "not connected yet");
            let y = peer.domain.endpoint().open().unwrap();
            connect_endpoints(&x, &y, &peer.fabric).await.unwrap();
            assert_ne!(y.peer_incarnation(), None);
            seen.push(x.peer_incarnation().expect("both have the extension"));
        }
        assert_eq!(seen[0], seen[1], "one life, two connections");
        assert_ne!(seen[0], seen[2], "another domain");
    });
}

/// docs/extension.md: "The extension is on exactly when both control frames carry an offer."
#[test]
fn who_declines_the_extension_is_a_plain_peer() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        for (ours, theirs) in [(true, true), (true, false), (false, true), (false, false)] {
            let x = a.domain.endpoint().extension(ours).open().unwrap();
            let y = b.domain.endpoint().extension(theirs).open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            let both = ours && theirs;
            assert_eq!(x.peer_incarnation().is_some(), both);
            assert_eq!(y.peer_incarnation().is_some(), both);
            let receive = y.recv(vec![0; 5]).post().unwrap();
            x.send("hello").await.unwrap();
            assert_eq!(receive.await.unwrap().1, b"hello");
        }
    });
}
