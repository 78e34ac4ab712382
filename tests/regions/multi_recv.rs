//! Slices of regions that take several messages of connected endpoints (`FI_MULTI_RECV`).

use futures::future::join;
use tokio::io::AsyncWriteExt;

use crate::common::device::Device;
use crate::common::matrix::{Opens, drive, over_all_drivers};
use crate::common::on_sockets_at_once;
use crate::common::pages::{PAGE, Pages};
use crate::common::peers::{bytes_of, listener, request};
use crate::common::raw::{self, Raw};
use tokio_fabric::testing::{Peer, connect_endpoints};
use tokio_fabric::{
    Completion, Endpoint, ErrorKind, Hints, UserContext,
    buf::RegionBuf,
    cq::CompletionFlags,
    domain::DomainBind,
    ep::SharedReceiveContext,
    info::MrMode,
    mr::{MemoryRegion, RegionSlice},
};

/// Endpoints of one domain that share receives, and a client of each.
struct Server {
    peer: Peer,
    context: SharedReceiveContext,
    /// Each client's end and the server's.
    connections: Vec<(Endpoint, Endpoint)>,
    client: Peer,
}

impl Server {
    async fn open(net: &impl Opens, hints: Hints, connections: usize) -> Server {
        let peer = net.peer_with(hints, DomainBind::empty());
        let client = net.peer_with(Hints::new(), DomainBind::empty());
        Server::of(peer, client, connections).await
    }

    async fn of(peer: Peer, client: Peer, connections: usize) -> Server {
        let context = peer.domain.receive_context().open().unwrap();
        let mut server = Server {
            peer,
            context,
            connections: Vec::new(),
            client,
        };
        for _ in 0..connections {
            let client = server.client.domain.endpoint().open().unwrap();
            let builder = server.peer.domain.endpoint();
            let own = builder.receive_context(&server.context).open().unwrap();
            let connected = connect_endpoints(&client, &own, &server.peer.fabric).await;
            connected.unwrap();
            server.connections.push((client, own));
        }
        server
    }

    async fn region<B: RegionBuf + 'static>(&self, buffer: B) -> MemoryRegion<B> {
        self.peer.domain.register(buffer).await.unwrap()
    }

    fn post(&self, slice: RegionSlice, min_free: usize) {
        let pool = self.context.multi_recv(slice).min_free(min_free);
        pool.queue(7u64).try_post().unwrap();
    }

    async fn next(&self) -> Completion {
        self.context.receive_queue().next().await.unwrap()
    }

    /// The next completion, which is of this message.
    async fn takes(&self, from: &Endpoint, len: usize, offset: usize) {
        let mut completion = self.next().await;
        completion.result.as_ref().unwrap();
        assert_eq!(
            (completion.endpoint, completion.context),
            (from.id(), UserContext(7))
        );
        assert_eq!((completion.len, completion.offset), (len, offset));
        assert!(
            completion.take_buffer().is_none(),
            "the bytes are in the region"
        );
    }
}

fn all<B: 'static>(region: &MemoryRegion<B>) -> RegionSlice {
    region.slice(..).unwrap()
}

/// Messages of several connections come into one slice, as FI_MR_LOCAL asks for: those that were
/// there before it, an empty one, staged and announced ones, and one that is longer than what is
/// left. fi_cq(3), `buf`: each lies where its completion says.
#[test]
fn one_slice_takes_the_messages_of_many_connections() {
    over_all_drivers(|net| async move {
        let local = Hints::new().domain(|it| it.required_mr_mode(MrMode::LOCAL));
        let server = Server::open(&net, local, 3).await;
        let mut expected = vec![0; 200_000];
        let early = [(0, 300), (1, 0), (2, 40_000)];
        let now = [(1, 8), (0, 0), (2, 100_000), (1, 20_000)];
        for (value, (at, len)) in early.into_iter().enumerate() {
            let sent = server.connections[at].0.send(vec![value as u8 + 1; len]);
            sent.delivery_complete().await.unwrap();
        }
        let region = server.region(expected.clone()).await;
        let refused = server.context.multi_recv(vec![0; 8]).queue(1u64).post();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        server.post(region.slice(1_000..190_000).unwrap(), 5_000);
        let mut offset = 0;
        for (value, (at, len)) in early.into_iter().chain(now).enumerate() {
            let (client, own) = &server.connections[at];
            if value >= early.len() {
                client.send(vec![value as u8 + 1; len]).await.unwrap();
            }
            server.takes(own, len, offset).await;
            expected[1_000 + offset..][..len].fill(value as u8 + 1);
            offset += len;
        }
        // The last one is longer than the rest of the buffer.
        let (client, own) = &server.connections[0];
        let rest = 189_000 - offset;
        client.send(vec![9; rest + 1]).await.unwrap();
        let completion = server.next().await;
        assert_eq!((completion.endpoint, completion.offset), (own.id(), offset));
        let failed = completion.result.unwrap_err();
        assert_eq!(
            (failed.error.kind(), failed.overflow_len),
            (ErrorKind::Truncated, 1)
        );
        expected[1_000 + offset..][..rest].fill(9);
        assert_eq!(server.next().await.flags, CompletionFlags::MULTI_RECV);
        assert_eq!(region.deregister().await.unwrap(), expected);
    });
}

/// A message that breaks off with its connection gives its part of the slice back; one that is
/// behind it by then keeps its place, and the part is taken by none.
#[test]
fn a_connection_killed_in_mid_message_gives_its_part_of_a_slice_back() {
    on_sockets_at_once(|net| async move {
        let server = Server::open(&net, Hints::new(), 1).await;
        let (client, own) = &server.connections[0];
        let region = server.region(vec![0; 10_000]).await;
        server.post(all(&region), 2_000);
        let (listener, requests) = listener(&server.peer);
        let half = Raw {
            frame_len: Some(16 + 3_000),
            payload: vec![7; 1000],
            ..Raw::new(0)
        };
        let mut offset = 0;
        for is_followed in [false, true] {
            let accepting = async {
                let request = request(&requests).await;
                let builder = server.peer.domain.endpoint();
                let endpoint = builder.receive_context(&server.context).open().unwrap();
                endpoint.accept(request).await.unwrap()
            };
            let (mut stream, broken) = join(raw::accepted(listener.local_addr()), accepting).await;
            stream.write_all(&half.bytes()).await.unwrap();
            while first(&region, offset) != 7 {
                tokio::task::yield_now().await;
            }
            if is_followed {
                client.send(vec![1; 100]).await.unwrap();
                server.takes(own, 100, offset + 3_000).await;
                offset += 3_100;
            }
            drop(stream);
            while broken.is_connected() {
                tokio::task::yield_now().await;
            }
            client.send(vec![2; 50]).await.unwrap();
            server.takes(own, 50, offset).await;
            offset += 50;
        }
        let bytes = bytes_of(&region);
        assert_eq!(bytes[..50], [2; 50]);
        assert_eq!(bytes[50..][..1000], [7; 1000], "its part was taken by none");
        assert_eq!(
            bytes[3_050..][..150],
            [[1; 100].as_slice(), &[2; 50]].concat()
        );
    });
}

fn first(region: &MemoryRegion<Vec<u8>>, at: usize) -> u8 {
    let mut byte = [0];
    region.read_at(at, &mut byte).unwrap();
    byte[0]
}

/// Ruling 19: where a page of an address range is not there, the message that is to lie on it ends
/// alone and takes up its place; those before and behind it come.
#[test]
fn a_message_on_a_page_that_is_not_there_ends_alone() {
    over_all_drivers(|net| async move {
        let server = Server::open(&net, Hints::new(), 2).await;
        let pages = Pages::new(100);
        let region = server.region(pages.range(0, 100 * PAGE)).await;
        pages.unmap(1, 1);
        pages.unmap(40, 1);
        server.post(all(&region), PAGE);
        let mut offset = 0;
        for (at, len, comes) in [
            (0, PAGE, true),
            (1, 100, false),
            (0, PAGE - 100, false),
            (1, 2 * PAGE, true),
            (0, 80 * PAGE, false),
            (1, 10 * PAGE, true),
        ] {
            let (client, own) = &server.connections[at];
            client.send(vec![at as u8 + 1; len]).await.unwrap();
            match comes {
                true => server.takes(own, len, offset).await,
                false => {
                    let completion = server.next().await;
                    assert_eq!((completion.endpoint, completion.offset), (own.id(), offset));
                    let error = completion.result.unwrap_err().error;
                    assert_eq!(error.kind(), ErrorKind::BadAddress, "{error}");
                }
            }
            if comes {
                assert_eq!(pages.get(offset, len), vec![at as u8 + 1; len]);
            }
            offset += len;
        }
    });
}

/// The bytes of a device's memory are moved by its owner alone, in pieces, wherever they lie.
#[test]
fn one_slice_of_a_device_takes_the_messages_of_many_connections() {
    over_all_drivers(|net| async move {
        let peer = net.undriven(Hints::new(), DomainBind::empty());
        let device = Device::new(8 << 20);
        device.serve(&peer.domain);
        drive(&peer.domain);
        let server = Server::of(peer, net.peer().unwrap(), 2).await;
        let region = server.region(device.allocate(5 << 20)).await;
        let mut expected = vec![7; 300];
        let early = server.connections[0].0.send(expected.clone());
        early.delivery_complete().await.unwrap();
        server.post(all(&region), 1 << 20);
        server.takes(&server.connections[0].1, 300, 0).await;
        for (value, len) in [1, 20_000, 1 << 20, (3 << 20) + 5].into_iter().enumerate() {
            let (client, own) = &server.connections[value % 2];
            client.send(vec![value as u8; len]).await.unwrap();
            server.takes(own, len, expected.len()).await;
            expected.extend(vec![value as u8; len]);
        }
        assert_eq!(server.next().await.flags, CompletionFlags::MULTI_RECV);
        assert!(bytes_of(&region)[..expected.len()] == expected);
    });
}

/// fi_mr(3): "the provider associates memory regions with endpoints rather than domains.": a
/// context that endpoints share is one of those, and a region is bound to it.
#[test]
fn with_endpoint_a_region_is_bound_to_the_context_that_receives_into_it() {
    over_all_drivers(|net| async move {
        let hints = Hints::new().domain(|it| it.required_mr_mode(MrMode::ENDPOINT));
        let server = Server::open(&net, hints, 1).await;
        let (client, own) = &server.connections[0];
        let [bound, other] = [(); 2].map(|()| server.peer.domain.register(vec![0; 100]).now());
        let (bound, other) = (bound.unwrap(), other.unwrap());
        bound.bind_endpoint(&server.context).unwrap();
        bound.enable().unwrap();
        // An endpoint that was opened with the context is not the context.
        other.bind_endpoint(own).unwrap();
        other.enable().unwrap();
        let refused = server.context.recv(all(&other)).post().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let refused = server.context.multi_recv(all(&other)).queue(1u64).post();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        server.post(all(&bound), 90);
        client.send(vec![3; 20]).await.unwrap();
        server.takes(own, 20, 0).await;
        assert_eq!(server.next().await.flags, CompletionFlags::MULTI_RECV);
        let busy = bound.deregister().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        assert!(
            busy.to_string()
                .contains(&format!("{:?}", server.context.id()))
        );
        let context = server.context.clone();
        drop((server.connections, server.client));
        while context.close().is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(bound.deregister().await.unwrap()[..20], [3; 20]);
    });
}
