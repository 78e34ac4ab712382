//! What is logged (docs/events.md): levels, fields and spans as the page has them, nothing per
//! message above `trace`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tokio_fabric::ep::Liveness;
use tokio_fabric::testing::{Net, connect, connect_endpoints};
use tokio_fabric::{Access, Endpoint, RemoteRegion};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::common::backends;
use crate::common::peers::{any, no_listener, request};

/// An event as it came.
#[derive(Clone, Debug)]
struct Seen {
    level: Level,
    message: String,
    fields: BTreeSet<String>,
    /// The spans it was in, the innermost first.
    spans: Vec<&'static str>,
}

#[derive(Default)]
struct Collected {
    events: Vec<Seen>,
    /// Name, parent, and the fields that have a value.
    spans: BTreeMap<u64, (&'static str, Option<u64>, BTreeSet<String>)>,
    entered: Vec<u64>,
}

/// Collects events up to a level.
#[derive(Clone)]
struct Collector {
    most: Level,
    collected: Arc<Mutex<Collected>>,
}

impl Collector {
    fn new(most: Level) -> Self {
        Collector {
            most,
            collected: Arc::default(),
        }
    }

    fn events(&self) -> Vec<Seen> {
        self.collected.lock().unwrap().events.clone()
    }

    fn of(&self, message: &str) -> Vec<Seen> {
        let events = self.events().into_iter();
        events.filter(|seen| seen.message == message).collect()
    }
}

struct Names<'a>(&'a mut BTreeSet<String>, &'a mut String);

impl Visit for Names<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => *self.1 = format!("{value:?}"),
            name => drop(self.0.insert(name.to_owned())),
        }
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio_fabric") && *metadata.level() <= self.most
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut collected = self.collected.lock().unwrap();
        let id = collected.spans.len() as u64 + 1;
        let parent = span.parent().map(Id::into_u64);
        let parent = parent.or_else(|| {
            collected
                .entered
                .last()
                .copied()
                .filter(|_| !span.is_root())
        });
        let mut fields = BTreeSet::new();
        span.record(&mut Names(&mut fields, &mut String::new()));
        let name = span.metadata().name();
        collected.spans.insert(id, (name, parent, fields));
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut collected = self.collected.lock().unwrap();
        if let Some((_, _, fields)) = collected.spans.get_mut(&span.into_u64()) {
            values.record(&mut Names(fields, &mut String::new()));
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let (mut fields, mut message) = (BTreeSet::new(), String::new());
        event.record(&mut Names(&mut fields, &mut message));
        let mut collected = self.collected.lock().unwrap();
        let mut at = event.parent().map(Id::into_u64);
        at = at.or_else(|| collected.entered.last().copied());
        let mut spans = Vec::new();
        while let Some((name, parent, _)) = at.and_then(|at| collected.spans.get(&at)) {
            spans.push(*name);
            at = *parent;
        }
        let level = *event.metadata().level();
        collected.events.push(Seen {
            level,
            message,
            fields,
            spans,
        });
    }

    fn enter(&self, span: &Id) {
        self.collected.lock().unwrap().entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let mut collected = self.collected.lock().unwrap();
        let at = collected
            .entered
            .iter()
            .rposition(|id| *id == span.into_u64());
        if let Some(at) = at {
            collected.entered.remove(at);
        }
    }
}

/// Runs it with a collector, in a runtime whose time passes at once.
fn collecting(most: Level, test: impl AsyncFn(&Collector)) {
    let collector = Collector::new(most);
    // While a process has one subscriber only, an event that another test's thread comes to first
    // is switched off for all.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    tracing::subscriber::with_default(collector.clone(), || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(test(&collector));
    });
}

/// Everything that a person expects in a log.
async fn live(net: &Net) {
    let (us, them) = (
        net.node("here").peer().unwrap(),
        net.node("there").peer().unwrap(),
    );
    let requests = them.fabric.event_queue().open().unwrap();
    let listener = them.fabric.passive_endpoint(&requests);
    let listener = listener.listen_at(net.node("there").addr(7471)).unwrap();
    // One is rejected, one meets no listener.
    let rejected = us.domain.endpoint().open().unwrap();
    let dialing = tokio::spawn(rejected.connect(listener.local_addr()).into_future());
    request(&requests).await.reject().send().unwrap();
    dialing.await.unwrap().unwrap_err();
    let nowhere = us.domain.endpoint().open().unwrap();
    nowhere.connect(no_listener()).await.unwrap_err();
    // One is up, is refused an access, and asks a peer that is silent.
    let quick = Liveness::default()
        .interval(Duration::from_millis(100))
        .rounds(3);
    let a = us.domain.endpoint().liveness(quick).open().unwrap();
    let dialing = tokio::spawn(a.connect(listener.local_addr()).into_future());
    let b = request(&requests).await.accept(&them.domain).await.unwrap();
    dialing.await.unwrap().unwrap();
    let receive = b.recv(vec![0; 8]).post().unwrap();
    a.send("x").await.unwrap();
    receive.await.unwrap();
    let region = them.domain.register(vec![0u8; 8]);
    let region = region.access(Access::REMOTE_READ).await.unwrap();
    net.hang("there");
    a.read(vec![0; 8], region.remote()).await.unwrap_err();
}

/// Connections that end in order, and peers of connectionless endpoints.
async fn end(net: &Net) {
    let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
    let (a, b) = connect(&us, &them).await.unwrap();
    let region = them.domain.register(vec![0u8; 8]);
    let region = region.access(Access::REMOTE_READ).await.unwrap();
    let unknown = RemoteRegion {
        key: region.remote().key ^ 1,
        ..region.remote()
    };
    a.read(vec![0; 8], unknown).await.unwrap_err();
    b.shutdown().await.unwrap();
    let (c, d) = connect(&us, &them).await.unwrap();
    futures::future::try_join(c.shutdown(), d.shutdown())
        .await
        .unwrap();
    let builder = us.domain.rdm_endpoint().listen_at(any());
    let x = builder
        .connect_deadline(Duration::from_secs(1))
        .open()
        .unwrap();
    let peer = x.insert(no_listener()).unwrap();
    x.send_tagged("x", peer, 1).await.unwrap_err();
    drop((a, b, c, d, x, region));
    us.domain.closed().await;
}

/// The rows of the page: level and fields by message.
fn rows() -> Vec<(Level, String, BTreeSet<String>)> {
    let page = include_str!("../../docs/events.md").lines();
    let rows = page.skip_while(|line| !line.starts_with("| level | event"));
    let rows = rows.skip(2).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let fields = cells[3].split('`').skip(1).step_by(2).map(str::to_owned);
        (
            cells[1].parse().unwrap(),
            cells[2].to_owned(),
            fields.collect(),
        )
    });
    rows.collect()
}

/// docs/events.md: what is emitted is in the table, and what a person expects is emitted.
#[test]
fn what_is_logged_is_what_the_page_says() {
    collecting(Level::TRACE, async |log| {
        let net = Net::new(11);
        live(&net).await;
        end(&net).await;
        let rows = rows();
        for seen in log.events() {
            let row = rows.iter().find(|(level, message, fields)| {
                (*level, message) == (seen.level, &seen.message) && *fields == seen.fields
            });
            assert!(row.is_some(), "no such row: {seen:?}");
        }
        let common = [
            "connection lost",
            "connection not established",
            "the peer is given up",
            "domain opened",
            "domain closed",
            "listening",
            "request accepted",
            "request rejected",
            "connected",
            "connection ended",
            "an access of the peer is refused",
            "the peer is asked whether it is alive",
            "posted",
            "received",
            "handed out",
        ];
        for message in common {
            assert!(!log.of(message).is_empty(), "{message}");
        }
        // Each in its spans.
        for message in ["connected", "connection lost", "connection ended"] {
            for seen in log.of(message) {
                assert_eq!(seen.spans, ["connection", "domain"], "{message}");
            }
        }
        assert!(
            log.of("handed out")
                .iter()
                .all(|seen| seen.spans == ["connection", "domain"])
        );
        let collected = log.collected.lock().unwrap();
        let fields = |wanted: &str| -> BTreeSet<String> {
            let spans = collected
                .spans
                .values()
                .filter(|(name, ..)| *name == wanted);
            spans.flat_map(|(_, _, fields)| fields.clone()).collect()
        };
        let set = |names: [&str; 2]| BTreeSet::from(names.map(str::to_owned));
        assert_eq!(fields("domain"), set(["backend", "domain"]));
        assert_eq!(fields("connection"), set(["endpoint", "peer"]));
    });
}

/// Who listens for `debug` hears nothing of single messages.
#[test]
fn messages_are_traced_and_nothing_more() {
    collecting(Level::DEBUG, async |log| {
        let net = Net::new(12);
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let (a, b) = (
            us.domain.endpoint().open().unwrap(),
            them.domain.endpoint().open().unwrap(),
        );
        connect_endpoints(&a, &b, &them.fabric).await.unwrap();
        let mut before = 0;
        for round in 0..100 {
            // Both sides are up with the first.
            if round == 1 {
                before = log.events().len();
            }
            let receive = b.recv(vec![0; 8]).post().unwrap();
            a.send("x").await.unwrap();
            receive.await.unwrap();
        }
        assert!(before > 0);
        assert_eq!(log.events().len(), before);
    });
}

/// A subscriber that asks the endpoint about itself with every event, as one does that adds
/// statistics to a log.
struct Asking {
    endpoint: Arc<Mutex<Option<Endpoint>>>,
    asked: Arc<AtomicU64>,
}

impl Subscriber for Asking {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio_fabric")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        let Some(endpoint) = self.endpoint.lock().unwrap().clone() else {
            return;
        };
        // What takes the lock of the connection.
        let _ = (
            endpoint.stats(),
            endpoint.is_connected(),
            endpoint.peer_addr(),
        );
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The guide, 10: "A subscriber may call the objects that an event is about": at every level, from
/// the connection's beginning to its loss.
#[test]
fn a_subscriber_may_ask_the_endpoint_that_an_event_is_about() {
    for backend in backends() {
        let (sender, ended) = mpsc::channel();
        // A thread of its own: it would not come back from a lock.
        std::thread::spawn(move || {
            let (endpoint, asked) = (Arc::<Mutex<_>>::default(), Arc::<AtomicU64>::default());
            let asking = Asking {
                endpoint: Arc::clone(&endpoint),
                asked: Arc::clone(&asked),
            };
            // While a process has one subscriber only, an event that another test's thread comes to
            // first is switched off for all.
            let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
            let _asking = tracing::subscriber::set_default(asking);
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let net = Net::on(backend);
                let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
                let a = us.domain.endpoint().open().unwrap();
                let b = them.domain.endpoint().open().unwrap();
                *endpoint.lock().unwrap() = Some(a.clone());
                connect_endpoints(&a, &b, &them.fabric).await.unwrap();
                let receive = b.recv(vec![0; 8]).post().unwrap();
                a.send("hello").await.unwrap();
                receive.await.unwrap();
                a.inject(b"injected").unwrap();
                b.recv(vec![0; 8]).await.unwrap();
                // Refused at the endpoint that is asked, and lost.
                let refused = b.write(vec![0; 8], RemoteRegion::new(0, 8, 3)).await;
                assert!(refused.is_err());
                let _ = a.recv(vec![0; 8]).await;
                *endpoint.lock().unwrap() = None;
            });
            sender.send(asked.load(Ordering::Relaxed)).unwrap();
        });
        let asked = ended.recv_timeout(Duration::from_secs(60));
        assert!(asked.expect("it came back from every event") > 10);
    }
}
