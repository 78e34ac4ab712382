//! Services as a server sees them, and the lookup of their methods.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio_fabric::{Access, RemoteRegion};
use tokio_util::sync::ReusableBoxFuture;

use super::connection::ServerConnection;
use super::items::ReceivedItems;
use crate::codec::{self, CodecOf};
use crate::cx::Cx;
use crate::lend::{Pull, Push};
use crate::limits::{HEADER_LEN, LENT_BYTES_MAX, LISTED_SERVICES_MAX};
use crate::method::Method;
use crate::observe::MethodCounters;
use crate::status::{Code, Result, Status};
use crate::streaming::{ItemSource, Streaming};
use crate::wire::{Bodies, CodecName, FrameBuf, Streams, TYPED_ERROR, encode_status, frame_of};

/// A service that can be added to a [`Server`](super::Server). `#[service]` generates the
/// implementations.
pub trait Service: Send + Sync + 'static {
    /// The methods of the service.
    fn methods(&self) -> &'static [Method];

    /// The codec of the service's methods; `None` if they take and return only bytes.
    #[doc(hidden)]
    fn codec(&self) -> Option<CodecName>;

    /// Decodes a call of the method with this index, and returns the future that handles it.
    #[doc(hidden)]
    fn call(&self, method: usize, call: &mut Incoming<'_>) -> Result<Handling>;
}

/// A running handler, in memory that is reused for later calls.
#[derive(Debug)]
pub struct Handling(ReusableBoxFuture<'static, Reply>);

impl Handling {
    pub(crate) fn new(handler: impl Future<Output = Reply> + Send + 'static) -> Handling {
        Handling(ReusableBoxFuture::new(handler))
    }

    #[inline]
    pub(crate) fn poll(&mut self, task: &mut Context<'_>) -> Poll<Reply> {
        self.0.poll(task)
    }
}

pub(crate) enum IncomingBody<'a> {
    /// In the message in which the arguments arrived; `bodies` is the memory that they are copied
    /// to if they are kept.
    Read {
        body: &'a [u8],
        message: &'a [u8],
        bodies: &'a mut Bodies,
    },
    /// In memory of their own.
    Own(Bytes),
}

impl IncomingBody<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            IncomingBody::Read { body, .. } => body,
            IncomingBody::Own(body) => body,
        }
    }

    #[inline]
    pub(crate) fn kept(&mut self) -> Bytes {
        match self {
            IncomingBody::Read {
                body,
                message,
                bodies,
            } => bodies.copy(message, body),
            IncomingBody::Own(body) => body.clone(),
        }
    }
}

/// A call that has arrived.
pub struct Incoming<'a> {
    pub(crate) cx: &'a Cx,
    pub(crate) body: IncomingBody<'a>,
    pub(crate) lent: &'a [RemoteRegion],
    pub(crate) streams: Streams,
    pub(crate) connection: &'a Arc<ServerConnection>,
    /// The memory of a handler that has ended.
    pub(crate) spare: Option<Handling>,
}

impl fmt::Debug for Incoming<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Incoming").field(&self.cx).finish()
    }
}

impl Incoming<'_> {
    /// Returns the context of the call.
    #[inline]
    pub fn cx(&self) -> Cx {
        self.cx.clone()
    }

    /// Wraps the handler of the call.
    pub fn handling(&mut self, handler: impl Future<Output = Reply> + Send + 'static) -> Handling {
        match self.spare.take() {
            Some(Handling(mut place)) => {
                place.set(handler);
                Handling(place)
            }
            None => Handling::new(handler),
        }
    }

    /// Decodes the argument, or the tuple of several arguments.
    ///
    /// # Errors
    /// The arguments do not decode as this type.
    pub fn arguments<C: CodecOf<T>, T>(&self) -> Result<T> {
        C::decode(self.body.as_slice()).map_err(|why| Status::not_started(Code::BadRequest, why))
    }

    /// Checks that there are no arguments.
    ///
    /// # Errors
    /// There are arguments.
    #[inline]
    pub fn no_arguments(&self) -> Result<()> {
        match self.body.as_slice() {
            [] => Ok(()),
            _ => {
                let what = "arguments of a method without any";
                Err(Status::not_started(Code::BadRequest, what))
            }
        }
    }

    /// Checks that the caller and the method agree on which streams the call has.
    ///
    /// # Errors
    /// The caller and the method disagree.
    #[inline]
    pub fn streams(&self, takes: bool, gives: bool) -> Result<()> {
        let own = Streams {
            sends: takes,
            receives: gives,
        };
        match self.streams == own {
            true => Ok(()),
            false => {
                let what = "the method has other streams than the call";
                Err(Status::not_started(Code::BadRequest, what))
            }
        }
    }

    /// Returns the stream that the caller sends.
    pub fn items<C: CodecOf<T>, T: 'static>(&self) -> Streaming<T> {
        Streaming::new(ReceivedItems::<C, T>::new(self.connection, self.cx))
    }

    /// Checks that the call lends this number of pieces of memory.
    ///
    /// # Errors
    /// The call lends more or fewer.
    #[inline]
    pub fn lends(&self, count: usize) -> Result<()> {
        match self.lent.len() == count {
            true => Ok(()),
            false => {
                let what = format!(
                    "{} pieces were lent, the method takes {count}",
                    self.lent.len()
                );
                Err(Status::not_started(Code::BadRequest, what))
            }
        }
    }

    /// Returns a piece of lent memory, for the handler to read.
    ///
    /// # Errors
    /// The piece was not lent for reading, or is too long.
    pub fn pull(&self, at: usize) -> Result<Pull> {
        let region = self.lent_for(at, Access::REMOTE_READ)?;
        Ok(Pull::new(region, &self.connection.bulk, self.cx.deadline()))
    }

    /// Returns a piece of lent memory, for the handler to write to.
    ///
    /// # Errors
    /// The piece was not lent for writing, or is too long.
    pub fn push(&self, at: usize) -> Result<Push> {
        let region = self.lent_for(at, Access::REMOTE_WRITE)?;
        Ok(Push::new(region, &self.connection.bulk, self.cx.deadline()))
    }

    fn lent_for(&self, at: usize, access: Access) -> Result<RemoteRegion> {
        let region = self.lent.get(at).filter(|it| it.access == access).copied();
        let region = region.ok_or_else(|| {
            let what = format!("the lent memory of number {at} is not for {access:?}");
            Status::not_started(Code::BadRequest, what)
        })?;
        if region.len > LENT_BYTES_MAX {
            return Err(Status::not_started(
                Code::TooLarge,
                "more memory than can be lent",
            ));
        }
        Ok(region)
    }

    /// Returns the argument of a method that takes only `Bytes`.
    #[inline]
    pub fn bytes(&mut self) -> Bytes {
        self.body.kept()
    }
}

/// The response of a handler, as the layers of a server see it.
///
/// ```
/// # #[cfg(feature = "tower")] {
/// use tokio_fabric_rpc::{Reply, Server};
///
/// let log = tower::util::MapResponseLayer::new(|reply: Reply| {
///     println!("{:?}", reply.code()); // `None` for a result.
///     reply
/// });
/// let server = Server::new().layer(log);
/// # }
/// ```
pub struct Reply {
    pub(crate) code: u32,
    pub(crate) not_started: bool,
    /// The body behind room for a header. If this is empty, the body is `bytes`.
    frame: FrameBuf,
    bytes: Bytes,
    /// The items to be sent before the response.
    pub(crate) items: Option<ItemSource>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("code", &self.code)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Reply {
    /// The code of the failure; `None` for a result, and for an error of the method's own type.
    pub fn code(&self) -> Option<Code> {
        match self.code {
            0 | TYPED_ERROR => None,
            code => Some(Code::from_number(code)),
        }
    }

    /// True for a result.
    pub fn is_ok(&self) -> bool {
        self.code == 0
    }

    /// The result of a method.
    pub fn value<C: CodecOf<T>, T>(value: &T) -> Reply {
        Reply::encoded(0, codec::encode::<C, T>(value))
    }

    /// The result of a method that returns `Bytes`.
    #[inline]
    pub fn bytes(bytes: Bytes) -> Reply {
        Reply {
            code: 0,
            not_started: false,
            frame: FrameBuf::default(),
            bytes,
            items: None,
        }
    }

    /// An error of the method's own type.
    pub fn error<C: CodecOf<E>, E>(error: &E) -> Reply {
        Reply::encoded(TYPED_ERROR, codec::encode::<C, E>(error))
    }

    /// The stream that a method returns: its items, then a response without a body.
    pub fn stream<C: CodecOf<T>, T: 'static>(items: Streaming<T>) -> Reply {
        Reply {
            items: Some(items.into_source::<C>()),
            ..Reply::bytes(Bytes::new())
        }
    }

    /// A status that the handler returned. It counts as [`Started::Ran`](crate::Started::Ran), even
    /// if the handler passes on the status of its own call that was not started.
    pub fn status(status: &Status) -> Reply {
        Reply {
            code: status.code().number(),
            not_started: false,
            frame: encode_status(status),
            bytes: Bytes::new(),
            items: None,
        }
    }

    /// Creates a response of the library itself, which knows whether the handler may have run.
    pub(crate) fn refusal(status: &Status) -> Reply {
        Reply {
            not_started: status.is_not_started(),
            ..Reply::status(status)
        }
    }

    /// Returns the size of the response's frame, in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + self.body().len()
    }

    #[inline]
    pub(crate) fn body(&self) -> &[u8] {
        match self.frame.get(HEADER_LEN..) {
            Some(body) => body,
            None => &self.bytes,
        }
    }

    /// Returns the body without the header.
    pub(crate) fn into_body(self) -> Bytes {
        match self.frame.is_empty() {
            true => self.bytes,
            false => Bytes::from(self.frame.into_vec()).slice(HEADER_LEN..),
        }
    }

    /// Returns the frame with this header.
    pub(crate) fn frame(&mut self, head: &[u8; HEADER_LEN]) -> &mut FrameBuf {
        if self.frame.is_empty() {
            self.frame = frame_of(&self.bytes);
        }
        self.frame[..HEADER_LEN].copy_from_slice(head);
        &mut self.frame
    }

    /// Cuts the frame to this length. Its body must be the text of a status.
    pub(crate) fn truncate(&mut self, frame_len: usize) {
        self.frame.truncate(frame_len);
    }

    fn encoded(code: u32, frame: Result<FrameBuf>) -> Reply {
        match frame {
            Ok(frame) => Reply {
                code,
                not_started: false,
                frame,
                bytes: Bytes::new(),
                items: None,
            },
            Err(status) => Reply::status(&Status::new(Code::Internal, status.message().to_owned())),
        }
    }
}

/// The methods of a server's services, ordered by their numbers.
pub(crate) struct Routes {
    methods: Vec<RoutedMethod>,
    /// The common codec of all services that use one.
    pub(crate) codec: Option<CodecName>,
}

pub(crate) struct RoutedMethod {
    service: Arc<dyn Service>,
    index: usize,
    pub(crate) method: &'static Method,
    /// Whether layers and limits are bypassed for the method.
    pub(crate) is_builtin: bool,
    /// The limit of the method's calls, if it has its own.
    pub(crate) room: Option<Arc<Semaphore>>,
    pub(crate) counters: MethodCounters,
}

impl Routes {
    /// # Errors
    /// Two methods have the same number, so one of them needs another name or a version; services
    /// have different codecs; or a limit names a method that does not exist.
    pub(crate) fn new(
        services: Vec<Arc<dyn Service>>,
        builtin: Arc<dyn Service>,
        methods_max: &[(String, usize)],
    ) -> Result<Routes> {
        let (mut methods, mut codec) = (Vec::new(), None);
        let all = services.into_iter().map(|it| (it, false));
        for (service, is_builtin) in all.chain([(builtin, true)]) {
            match (codec, service.codec()) {
                (Some(one), Some(other)) if one != other => {
                    let what = format!(
                        "services in {one} and in {other}: each codec needs a server of its own"
                    );
                    return Err(Status::not_started(Code::Internal, what));
                }
                (known, of_service) => codec = known.or(of_service),
            }
            for (index, method) in service.methods().iter().enumerate() {
                methods.push(RoutedMethod {
                    service: Arc::clone(&service),
                    index,
                    method,
                    is_builtin,
                    room: None,
                    counters: MethodCounters::default(),
                });
            }
        }
        for (name, calls) in methods_max {
            let named = methods.iter_mut().find(|it| it.method.name == name);
            let named = named.filter(|it| !it.is_builtin).ok_or_else(|| {
                let what = format!("a limit of {name}, which none of the services has");
                Status::not_started(Code::Internal, what)
            })?;
            let room = (*calls).min(Semaphore::MAX_PERMITS);
            named.room = Some(Arc::new(Semaphore::new(room)));
        }
        methods.sort_by_key(|it| it.method.id);
        for pair in methods.windows(2) {
            let [one, other] = [pair[0].method, pair[1].method];
            if one.id == other.id {
                let what = format!(
                    "{} and {} have one number on the wire: rename one, or give it a version",
                    one.name, other.name
                );
                return Err(Status::not_started(Code::Internal, what));
            }
        }
        Ok(Routes { methods, codec })
    }

    /// Returns the index of the method with this number.
    pub(crate) fn find(&self, method: u32) -> Option<usize> {
        let found = self
            .methods
            .binary_search_by_key(&method, |it| it.method.id);
        found.ok()
    }

    /// Returns the status of a call whose method number is unknown.
    #[cold]
    pub(crate) fn why_unknown(&self, method: u32) -> Status {
        let mut like = self
            .methods
            .iter()
            .filter(|it| it.method.is_named_like(method));
        let what = match like.next() {
            Some(RoutedMethod { method, .. }) => format!(
                "the server's `{}` takes other arguments, or has another result: it is `{}`",
                method.name, method.signature
            ),
            None => format!(
                "it is of no name that the server knows: {}",
                self.services()
            ),
        };
        Status::not_started(Code::Unimplemented, what)
    }

    /// Returns a list of the services, and of the methods with versions, as text for a client that
    /// calls an unknown method.
    fn services(&self) -> String {
        let own = self.methods.iter().filter(|it| !it.is_builtin);
        let names = own.map(|it| it.method.name);
        let name_of = |name: &'static str| match name.split_once('/') {
            Some((service, _)) if !name.contains('#') => service,
            _ => name,
        };
        let names: BTreeSet<&str> = names.map(name_of).collect();
        if names.is_empty() {
            return "it has no services".to_owned();
        }
        let listed = names.iter().take(LISTED_SERVICES_MAX);
        let listed: Vec<_> = listed.map(|it| format!("`{it}`")).collect();
        let more = match names.len().saturating_sub(LISTED_SERVICES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("it has {}{more}", listed.join(", "))
    }

    /// Returns the method at an index that [`find`](Self::find) has returned.
    pub(crate) fn at(&self, route: usize) -> &RoutedMethod {
        &self.methods[route]
    }

    pub(crate) fn all(&self) -> &[RoutedMethod] {
        &self.methods
    }

    /// Decodes a call and returns the future that handles it. From then on, the handler counts as
    /// begun.
    #[inline]
    pub(crate) fn handle(&self, call: &mut Incoming<'_>) -> Result<Handling> {
        let (cx, routed) = (call.cx, self.at(call.cx.call().route));
        let handling = routed.service.call(routed.index, call)?;
        if let IncomingBody::Read { .. } = call.body {
            // The call is not open at its connection yet.
            cx.begin_alone();
            routed.counters.start_there();
        } else if cx.begin() {
            routed.counters.start();
        }
        Ok(handling)
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.methods.iter().map(|it| it.method.name);
        f.debug_set().entries(names).finish()
    }
}
