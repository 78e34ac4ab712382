//! A region and the results of operations on it that have not been fetched yet.

use crate::common::matrix::over_all_combinations;
use tokio_fabric::{Access, Hints};

/// memory-model.md: an operation owns its buffer "from post to end". One that has ended holds up
/// neither `quiesce` nor `deregister`, however long its future waits to be polled.
#[test]
fn an_ended_operation_does_not_hold_its_region() {
    over_all_combinations(|net| async move {
        let (_initiator, _target, a, b) = net.toward(Hints::new()).await;
        let access = Access::LOCAL | Access::REMOTE;
        let source = a
            .domain()
            .register(vec![7; 1 << 20])
            .access(access)
            .await
            .unwrap();
        let target = b
            .domain()
            .register(vec![0; 1 << 20])
            .access(access)
            .await
            .unwrap();
        let written = a
            .write(source.slice(..).unwrap(), target.remote())
            .post()
            .unwrap();
        let read = a.read(
            source.slice(..16).unwrap(),
            target.remote().slice(..16).unwrap(),
        );
        let read = read.post().unwrap();
        let sent = a.send(source.slice(..16).unwrap()).post().unwrap();
        let received = b.recv(target.slice(..16).unwrap()).post().unwrap();
        // A message that comes after them all, answered: each of them has ended, unseen.
        a.send(vec![1]).await.unwrap();
        b.recv(vec![0]).await.unwrap();
        b.send(vec![1]).await.unwrap();
        a.recv(vec![0]).await.unwrap();

        let bytes = source.quiesce().await.unwrap();
        assert_eq!(bytes[..], vec![7; 1 << 20]);
        drop(bytes);
        drop(target.quiesce().await.unwrap());
        // The slices come back from the results all the same, and can be used again.
        let (_, slice) = written.await.unwrap();
        a.send(slice.slice(..1).unwrap()).await.unwrap();
        assert_eq!(source.deregister().await.unwrap().len(), 1 << 20);
        assert_eq!(target.deregister().await.unwrap()[..16], [7; 16]);
        drop((read, sent, received));
    });
}

/// Ruling 4: "a message that was already matched to it returns to the head of the unexpected
/// messages": when it had come into a region, the region is free again and what is written there
/// does not change it.
#[test]
fn a_message_given_back_does_not_stay_in_its_region() {
    over_all_combinations(|net| async move {
        let (_initiator, _target, a, b) = net.toward(Hints::new()).await;
        let region = b
            .domain()
            .register(vec![0; 16])
            .access(Access::RECV)
            .await
            .unwrap();
        let unseen = b.recv(region.slice(..).unwrap()).post().unwrap();
        a.send(b"message".to_vec()).await.unwrap();
        a.send(vec![1]).await.unwrap();
        b.recv(vec![0]).await.unwrap();
        drop(unseen);
        region.write_at(0, &[9; 16]).unwrap();
        assert_eq!(region.deregister().await.unwrap()[..], [9; 16]);
        let (received, bytes) = b.recv(vec![0; 16]).await.unwrap();
        assert_eq!(&bytes[..received.len], b"message");
    });
}
