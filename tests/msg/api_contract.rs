//! What the types themselves promise: which threads they may go to, what they show of secrets, and
//! the numbers of errors.

use std::fmt::Debug;
use std::future::{Future, IntoFuture};

use crate::common::on_every_backend;
use crate::common::peers::listener;
use bytes::Bytes;
use tokio_fabric::testing::{FaultPlan, Net, Peer, RdmSide, connect};
use tokio_fabric::*;
use tokio_fabric::{
    av::*, buf::*, cntr::*, cq::*, domain::*, ep::*, eq::*, error::*, mr::*, op::*, rdm::*,
};

fn handle<T: Clone + Send + Sync + Unpin + Debug + 'static>() {}
fn value<T: Send + Sync + Unpin + Debug + 'static>() {}
fn movable<T: Send + Unpin + Debug + 'static>() {}
fn sends<T: IntoFuture>(_: T) -> T::IntoFuture
where
    T::IntoFuture: Future + Send + 'static,
{
    unimplemented!("only its type is looked at")
}

/// api.md decision 8: "Handles are `Clone + Send + Sync`", whatever they belong to; and everything
/// has a Debug form.
#[test]
fn public_types_go_to_any_thread() {
    handle::<Fabric>();
    handle::<Domain>();
    handle::<Endpoint>();
    handle::<PassiveEndpoint>();
    handle::<RdmEndpoint>();
    handle::<RdmSide>();
    handle::<IdlePolicy>();
    handle::<Received>();
    handle::<MessageInfo>();
    handle::<Peek>();
    value::<ClaimedMessage>();
    handle::<EventQueue>();
    handle::<CompletionQueue>();
    handle::<Counter>();
    handle::<AddressVector>();
    handle::<FabricAddr>();
    handle::<MemoryRegion>();
    value::<MappedKey>();
    value::<AddressRange>();
    value::<RawKey>();
    handle::<ReadOnlyRegion>();
    handle::<RemoteRegion>();
    handle::<RemoteRegions>();
    handle::<Access>();
    handle::<Error>();
    handle::<Refusal>();
    handle::<OnRefusal>();
    handle::<EventError>();
    handle::<CompletionError>();
    handle::<CounterError>();
    handle::<Info>();
    handle::<Hints>();
    handle::<UserContext>();
    handle::<EndpointId>();
    handle::<OperationId>();
    handle::<Backend>();
    handle::<Net>();
    handle::<Peer>();
    handle::<FaultPlan>();
    value::<RegionSlice>();
    value::<Quiesced>();
    value::<ConnRequest>();
    value::<Failed<Vec<u8>>>();
    value::<CounterWait>();
    value::<tokio_fabric::ep::Liveness>();
    movable::<Event>();
    movable::<Completion>();
    movable::<Buffer>();
    movable::<Connect>();
    movable::<Accept>();
    movable::<Reject>();
    movable::<AddressVectorBuilder>();
    movable::<Insert<FabricAddr>>();
    movable::<Insertion<Vec<Result<FabricAddr>>>>();
    movable::<Register<Vec<u8>>>();
    movable::<Registration<Vec<u8>>>();
    movable::<RegisterReadOnly<Bytes>>();
    movable::<SendMessage<Vec<u8>>>();
    movable::<Recv<Vec<u8>>>();
    movable::<RecvFrom<Vec<u8>>>();
    movable::<RecvTagged<Vec<u8>>>();
    movable::<RecvClaimed<Vec<u8>>>();
    movable::<Queued<MultiRecv<Vec<u8>>>>();
    movable::<RdmEndpointBuilder>();
    movable::<RmaWrite<Vec<u8>>>();
    movable::<RmaRead<Vec<u8>>>();
    movable::<Op<Vec<u8>>>();
    movable::<Op<Vec<u8>, Received>>();
    movable::<QueuedOp<Vec<u8>>>();
    movable::<Queued<RmaWrite<Vec<u8>>>>();
    movable::<FabricBuilders>();
}

type FabricBuilders = (DomainBuilder, EndpointBuilder, PassiveEndpointBuilder);

/// Every future may be spawned: on a multi-threaded runtime nothing else is of use.
#[test]
fn futures_may_be_spawned() {
    // Never called; that it compiles is the test.
    #[allow(dead_code, reason = "its types are the test")]
    fn all(
        x: Endpoint,
        (y, to): (RdmEndpoint, FabricAddr),
        domain: Domain,
        request: ConnRequest,
        remote: RemoteRegion,
    ) {
        fn spawn(future: impl Future + Send + 'static) {
            drop(future);
        }
        spawn(sends(x.send(vec![0u8])));
        spawn(sends(x.send([Bytes::new(), Bytes::new()]).queue(1u64)));
        spawn(sends(x.recv(vec![0u8])));
        spawn(sends(x.write(vec![0u8], remote)));
        spawn(sends(x.read(vec![0u8], remote)));
        spawn(sends(y.send(vec![0u8], to)));
        spawn(sends(y.send_tagged(vec![0u8], to, 1).queue(1u64)));
        spawn(sends(y.recv(vec![0u8]).from(to)));
        spawn(sends(y.recv_tagged(vec![0u8], 1).ignore(1)));
        spawn(sends(y.multi_recv(vec![0u8]).queue(1u64)));
        spawn(sends(y.write(vec![0u8], to, remote)));
        spawn(sends(y.peek_tagged(1)));
        spawn(sends(x.connect(crate::common::peers::any())));
        spawn(sends(x.accept(request)));
        spawn(sends(domain.register(vec![0u8])));
        spawn(sends(domain.register_read_only("text")));
        spawn(async move {
            x.shutdown().await.ok();
            y.resolve("peer:1").await.ok();
            y.shutdown().await.ok();
            domain.close().await.ok();
        });
    }
    fn region(region: MemoryRegion, queue: CompletionQueue, events: EventQueue, counter: Counter) {
        fn spawn(future: impl Future + Send + 'static) {
            drop(future);
        }
        spawn(region.quiesce());
        spawn(region.revoke());
        spawn(region.deregister());
        spawn(counter.wait_for(1));
        spawn(async move {
            (
                queue.next().await,
                events.next().await,
                queue.next_batch(1).await,
            )
        });
    }
    let _ = region;
}

/// Keys are what protects a region, so no Debug form shows one, wherever it hides; nor private
/// data.
#[test]
fn no_debug_form_shows_a_key() {
    on_every_backend(|net| async move {
        const KEY: u64 = 0x1234_5678_9abc_def1;
        const SECRET: &str = "hunter2";
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = connect(&a, &b).await.unwrap();
        let (listener, requests) = listener(&b);
        let region = b.domain.register(vec![0u8; 8]).key(KEY).now().unwrap();
        let fixed = b
            .domain
            .register_read_only("fixed")
            .key(KEY + 1)
            .now()
            .unwrap();
        let remote = region.remote();
        let write = x.write(vec![0u8; 8], remote);
        let mut shown = format!("{remote:?} {region:?} {region:#?} {fixed:?} {:?}", b.domain);
        shown += &format!("{write:?} {:?}", x.read(vec![0u8; 8], [remote; 2]));
        shown += &format!("{:?}", write.queue(1u64));
        shown += &format!("{:?}", RemoteRegions::from(remote));
        shown += &format!("{:?}", b.domain.register(vec![0u8; 8]).key(KEY));
        shown += &format!("{:?}", b.domain.register_read_only("fixed").key(KEY));
        let taken = b.domain.register(vec![0u8; 8]).key(KEY).now().unwrap_err();
        shown += &format!("{taken:?} {taken} {:?}", taken.error());
        let connect = a
            .domain
            .endpoint()
            .open()
            .unwrap()
            .connect(listener.local_addr())
            .data(SECRET);
        shown += &format!("{connect:?}");
        let connecting = connect.into_future();
        let asked = requests.next().await;
        shown += &format!("{asked:?}");
        let Some(Event::ConnRequest(asked)) = asked else {
            panic!("{asked:?}")
        };
        let reject = asked.reject().data(SECRET);
        shown += &format!("{reject:?}");
        reject.send().unwrap();
        let refused = connecting.await.unwrap_err();
        shown += &format!("{refused:?} {refused}");
        let connected = {
            let connect = a
                .domain
                .endpoint()
                .open()
                .unwrap()
                .connect(listener.local_addr());
            let connecting = connect.into_future();
            let asked = crate::common::peers::request(&requests).await;
            let accept = asked.accept(&b.domain).data(SECRET);
            shown += &format!("{accept:?}");
            let _y = accept.await.unwrap();
            assert_eq!(connecting.await.unwrap(), SECRET);
            std::iter::from_fn(|| a.events.try_next())
        };
        for event in connected {
            shown += &format!("{event:?}");
        }
        let lost = x.read(vec![0u8; 8], RemoteRegion::new(0, 9, KEY)).await;
        shown += &format!("{lost:?} {y:?}");
        let mut guard = region.quiesce().await.unwrap();
        guard.copy_from_slice(b"hunter2!");
        shown += &format!("{guard:?} {:?}", region.slice(..).unwrap());
        for secret in [KEY, KEY + 1] {
            for form in [
                secret.to_string(),
                format!("{secret:x}"),
                format!("{secret:X}"),
            ] {
                assert!(!shown.contains(&form), "{form} in {shown}");
            }
        }
        let bytes = format!("{:?}", SECRET.as_bytes());
        let bytes = bytes.trim_matches(['[', ']']);
        assert!(!shown.contains(SECRET) && !shown.contains(bytes), "{shown}");
    });
}

/// fi_domain(3): "Fabric errno values are defined in rdma/fi_errno.h."
#[test]
fn errors_have_libfabrics_numbers() {
    use ErrorKind::*;
    for (kind, number) in [
        (Again, 11),
        (LimitReached, 12),
        (AccessDenied, 13),
        (BadAddress, 14),
        (Busy, 16),
        (InvalidArgument, 22),
        (Unsupported, 38),
        (NoMatch, 61),
        (NoCapability, 95),
        (TooLarge, 90),
        (Incompatible, 92),
        (AddressInUse, 98),
        (AddressNotAvailable, 99),
        (ConnectionReset, 104),
        (AlreadyConnected, 106),
        (NotConnected, 107),
        (PeerClosed, 108),
        (TimedOut, 110),
        (ConnectionRefused, 111),
        (Unreachable, 113),
        (ProtocolViolation, 121),
        (Canceled, 125),
        (KeyRejected, 129),
        (NotAuthorized, 129),
        (DriverGone, 256),
        (TooSmall, 257),
        (BadState, 258),
        (BadFlags, 260),
        (NoEventQueue, 261),
        (NoRuntime, 261),
        (Truncated, 265),
        (KeyInUse, 266),
        (NoReceive, 269),
        (NoMessage, 42),
    ] {
        assert_eq!(kind.fi_errno(), number, "{kind:?}");
    }
}

/// What does not depend on run-time state is fixed: flags have libfabric's values.
#[test]
fn flags_have_libfabrics_values() {
    let access = [
        (Access::READ, 8),
        (Access::WRITE, 9),
        (Access::RECV, 10),
        (Access::SEND, 11),
        (Access::REMOTE_READ, 12),
        (Access::REMOTE_WRITE, 13),
    ];
    for (right, bit) in access {
        assert_eq!(right.bits(), 1 << bit, "{right:?}");
    }
    assert_eq!(DomainBind::REG_MR.bits(), 1 << 59);
    assert_eq!(CompletionFlags::REMOTE_CQ_DATA.bits(), 1 << 17);
    assert_eq!(CompletionFlags::TAGGED.bits(), 1 << 3);
    assert_eq!(CompletionFlags::MULTI_RECV.bits(), 1 << 16);
    assert_eq!(CompletionFlags::CLAIM.bits(), 1 << 59);
}

type Boxed = Box<dyn std::error::Error + Send + Sync>;

/// Every error of a call or an operation, with its buffers or without, becomes by `?` what programs
/// return: this crate's own, a boxed one, `anyhow`'s, and that of `std::io`.
#[test]
fn errors_convert_by_a_question_mark() {
    macro_rules! fails_as {
        ($error:ty) => {{
            async fn connected(endpoint: &Endpoint, domain: &Domain) -> Result<(), $error> {
                endpoint.inject(b"x")?;
                endpoint.send("x").await?;
                endpoint.send("x").post()?.await?;
                endpoint.send(b"x".to_vec()).queue(1u64).await?;
                endpoint.recv(vec![0; 8]).await?;
                domain.register(vec![0; 8]).now()?;
                domain.register(vec![0; 8]).await?;
                Ok(())
            }
            async fn rdm(endpoint: &RdmEndpoint, to: FabricAddr) -> Result<(), $error> {
                endpoint.send("x", to).await?;
                endpoint.recv(vec![0u8; 8]).try_post()?.await?;
                Ok(())
            }
            let _ = (connected, rdm);
        }};
    }
    fails_as!(Error);
    fails_as!(Boxed);
    fails_as!(anyhow::Error);
    fails_as!(std::io::Error);
}

/// The nearest kind of `std::io`, with the error itself inside.
#[test]
fn an_io_error_has_the_error_inside() {
    on_every_backend(|net| async move {
        let idle = net.peer().unwrap().domain.endpoint().open().unwrap();
        let failed: std::io::Error = idle.send("x").await.unwrap_err().into();
        assert_eq!(failed.kind(), std::io::ErrorKind::NotConnected);
        let inside = failed.get_ref().and_then(|it| it.downcast_ref::<Error>());
        assert_eq!(inside.unwrap().operation(), Some(OperationKind::Send));
    });
}

/// `Messages`: "With a `size` or a `depth` of 0 the stream returns `InvalidArgument` and ends."
#[tokio::test]
async fn a_stream_of_no_messages_is_an_error() {
    let (a, _b) = Net::loopback().pair().await.unwrap();
    let (rdm, _other) = Net::loopback().rdm_pair().unwrap();
    for (size, depth, what) in [
        (0, 0, "size is 0"),
        (0, 1, "size is 0"),
        (1, 0, "depth is 0"),
    ] {
        let of_rdm = rdm.endpoint.messages(size, depth);
        for mut messages in [a.messages(size, depth), of_rdm] {
            let error = messages.next().await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(what), "{error}");
            assert!(messages.next().await.is_none());
        }
    }
}

/// `Fabric::open` and `DomainBuilder::open` say which of them fails for hints that cannot be met,
/// and domains of either reliable type have endpoints of the other.
#[tokio::test]
async fn hints_that_cannot_be_met_fail_where_they_are_said_to() {
    let unknown = Fabric::open(Hints::new().backend("epol")).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
    assert!(unknown.to_string().contains("\"epoll\""), "{unknown}");
    let datagrams = Hints::new().endpoint(EndpointType::Dgram);
    let none = Fabric::open(datagrams.caps(Caps::RMA)).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NoMatch);
    if !cfg!(feature = "io-uring") {
        let fabric = Fabric::open(Hints::new().backend("io-uring")).unwrap();
        let missing = fabric.domain().open().unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Unsupported);
    }
    for of in [EndpointType::Msg, EndpointType::Rdm, EndpointType::Dgram] {
        let fabric = Fabric::open(Hints::new().endpoint(of)).unwrap();
        let domain = fabric.domain().open().unwrap();
        domain.endpoint().open().unwrap();
        domain.rdm_endpoint().open().unwrap();
        let events = fabric.event_queue().open().unwrap();
        let listener = fabric.passive_endpoint(&events);
        listener.listen_at(([127, 0, 0, 1], 0).into()).unwrap();
    }
}
