//! Recording statistics with the crate `metrics`, with names and units by OpenTelemetry's
//! conventions.
//!
//! The application reads the statistics of an object from time to time and records them, so no
//! recorder is called on the path of a message.

use metrics::{Label, Unit, counter, gauge, histogram};

use crate::error::OperationKind;

use super::{
    DgramStats, DomainStats, EndpointStats, LatencySample, ListenerStats, OperationCounts,
    OperationStats, QueueStats, ReceiveStats,
};

/// Name, unit and meaning of a metric.
type Description = (&'static str, Unit, &'static str);

const COUNTERS: [Description; 15] = [
    (
        "fabric.operations",
        Unit::Count,
        "Operations that have ended",
    ),
    (
        "fabric.operation.io",
        Unit::Bytes,
        "Payload of those that succeeded",
    ),
    ("fabric.network.io", Unit::Bytes, "Bytes of frames"),
    (
        "fabric.accesses",
        Unit::Count,
        "Accesses of peers that were done",
    ),
    (
        "fabric.refusals",
        Unit::Count,
        "Accesses of peers that were refused",
    ),
    (
        "fabric.connections.established",
        Unit::Count,
        "Connections that came up",
    ),
    (
        "fabric.connections.lost",
        Unit::Count,
        "Connections that ended with an error",
    ),
    (
        "fabric.stalls",
        Unit::Count,
        "Times that a message waited for credit",
    ),
    (
        "fabric.probe.misses",
        Unit::Count,
        "Intervals with an unanswered probe",
    ),
    (
        "fabric.driver.wakes",
        Unit::Count,
        "Times that drivers were woken",
    ),
    (
        "fabric.driver.completions",
        Unit::Count,
        "Operations that ended in turns",
    ),
    (
        "fabric.registrations",
        Unit::Count,
        "Regions that were registered",
    ),
    (
        "fabric.requests",
        Unit::Count,
        "Connection requests, by what became of them",
    ),
    (
        "fabric.datagrams.dropped",
        Unit::Count,
        "Datagrams that came and were dropped",
    ),
    (
        "fabric.queue.full",
        Unit::Count,
        "Times that a queue had no place",
    ),
];

const GAUGES: [Description; 11] = [
    (
        "fabric.operations.in_flight",
        Unit::Count,
        "Operations that have not ended",
    ),
    (
        "fabric.operations.waiting",
        Unit::Count,
        "Operations that wait for room",
    ),
    (
        "fabric.receives.posted",
        Unit::Count,
        "Receives that wait for a message",
    ),
    (
        "fabric.messages.unexpected",
        Unit::Count,
        "Messages that wait for a receive",
    ),
    (
        "fabric.messages.unexpected.size",
        Unit::Bytes,
        "What they cost",
    ),
    ("fabric.connections", Unit::Count, "Connections that are up"),
    (
        "fabric.connections.local",
        Unit::Count,
        "Connections that are up and go through shared memory",
    ),
    ("fabric.regions", Unit::Count, "Regions that are registered"),
    (
        "fabric.driver.time",
        Unit::Seconds,
        "Time spent in turns so far",
    ),
    (
        "fabric.driver.turn.longest",
        Unit::Seconds,
        "The longest turn so far",
    ),
    (
        "fabric.queue.length",
        Unit::Count,
        "Entries that wait to be read",
    ),
];

const DURATION: Description = (
    "fabric.operation.duration",
    Unit::Seconds,
    "From the post of an operation to its end, of one in sixty-four",
);

/// Describes all metrics to the installed recorder. Call it once, before the first metrics are
/// recorded.
///
/// ```
/// tokio_fabric::stats::describe_metrics(); // Does nothing without a recorder.
/// ```
pub fn describe_metrics() {
    for (name, unit, what) in COUNTERS {
        metrics::describe_counter!(name, unit, what);
    }
    for (name, unit, what) in GAUGES {
        metrics::describe_gauge!(name, unit, what);
    }
    let (name, unit, what) = DURATION;
    metrics::describe_histogram!(name, unit, what);
}

fn with(labels: &[Label], more: &[(&'static str, &'static str)]) -> Vec<Label> {
    let more = more
        .iter()
        .map(|(key, value)| Label::from_static_parts(key, value));
    labels.iter().cloned().chain(more).collect()
}

fn count(name: &'static str, labels: Vec<Label>, value: u64) {
    counter!(name, labels).absolute(value);
}

fn set(name: &'static str, labels: &[Label], value: f64) {
    gauge!(name, labels.to_vec()).set(value);
}

impl OperationStats {
    fn record(&self, labels: &[Label]) {
        let kinds = ["send", "receive", "write", "read", "atomic"];
        for (kind, counts) in kinds.into_iter().zip(self.each()) {
            let OperationCounts {
                succeeded,
                canceled,
                failed,
                bytes,
            } = *counts;
            let outcomes = [
                ("success", succeeded),
                ("canceled", canceled),
                ("error", failed),
            ];
            for (outcome, value) in outcomes {
                let labels = with(labels, &[("operation", kind), ("outcome", outcome)]);
                count("fabric.operations", labels, value);
            }
            count(
                "fabric.operation.io",
                with(labels, &[("operation", kind)]),
                bytes,
            );
        }
    }
}

impl ReceiveStats {
    fn record(&self, labels: &[Label]) {
        set("fabric.receives.posted", labels, self.posted as f64);
        set(
            "fabric.messages.unexpected",
            labels,
            self.unexpected_messages as f64,
        );
        set(
            "fabric.messages.unexpected.size",
            labels,
            self.unexpected_bytes as f64,
        );
    }
}

impl EndpointStats {
    /// Records the statistics with these labels, in the installed recorder of `metrics`.
    pub fn record_metrics(&self, labels: &[Label]) {
        self.operations.record(labels);
        self.receives.record(labels);
        for (way, bytes) in [
            ("transmit", self.bytes_sent),
            ("receive", self.bytes_received),
        ] {
            let labels = with(labels, &[("network.io.direction", way)]);
            count("fabric.network.io", labels, bytes);
        }
        let refusals = [
            ("unknown_key", self.refusals.unknown_key),
            ("out_of_bounds", self.refusals.out_of_bounds),
            ("access_denied", self.refusals.access_denied),
            ("revoked", self.refusals.revoked),
            ("other", self.refusals.other),
        ];
        for (reason, value) in refusals {
            count(
                "fabric.refusals",
                with(labels, &[("reason", reason)]),
                value,
            );
        }
        let counts = [
            ("fabric.accesses", self.accesses),
            ("fabric.connections.established", self.connects),
            ("fabric.connections.lost", self.losses),
            ("fabric.stalls", self.stalls),
            ("fabric.probe.misses", self.probe_misses),
        ];
        for (name, value) in counts {
            count(name, labels.to_vec(), value);
        }
        set("fabric.operations.in_flight", labels, self.in_flight as f64);
        set("fabric.operations.waiting", labels, self.waiting as f64);
        set("fabric.connections", labels, self.connections as f64);
        let local = self.connections_local as f64;
        set("fabric.connections.local", labels, local);
    }
}

impl DgramStats {
    /// As [`EndpointStats::record_metrics`].
    pub fn record_metrics(&self, labels: &[Label]) {
        self.operations.record(labels);
        self.receives.record(labels);
        count("fabric.datagrams.dropped", labels.to_vec(), self.dropped);
        set("fabric.operations.in_flight", labels, self.in_flight as f64);
        set("fabric.operations.waiting", labels, self.waiting as f64);
    }
}

impl DomainStats {
    /// As [`EndpointStats::record_metrics`].
    pub fn record_metrics(&self, labels: &[Label]) {
        let counts = [
            ("fabric.driver.wakes", self.driver.wakes),
            ("fabric.driver.completions", self.driver.completions),
            ("fabric.registrations", self.registrations),
        ];
        for (name, value) in counts {
            count(name, labels.to_vec(), value);
        }
        set("fabric.regions", labels, self.regions as f64);
        set(
            "fabric.driver.time",
            labels,
            self.driver.turn_time.as_secs_f64(),
        );
        let longest = self.driver.longest_turn.as_secs_f64();
        set("fabric.driver.turn.longest", labels, longest);
    }
}

impl ListenerStats {
    /// As [`EndpointStats::record_metrics`].
    pub fn record_metrics(&self, labels: &[Label]) {
        let outcomes = [
            ("accepted", self.accepted),
            ("rejected", self.rejected),
            ("invalid", self.invalid),
            ("timed_out", self.timed_out),
            ("evicted", self.evicted),
        ];
        for (outcome, value) in outcomes {
            count(
                "fabric.requests",
                with(labels, &[("outcome", outcome)]),
                value,
            );
        }
    }
}

impl QueueStats {
    /// As [`EndpointStats::record_metrics`].
    pub fn record_metrics(&self, labels: &[Label]) {
        count("fabric.queue.full", labels.to_vec(), self.full);
        set("fabric.queue.length", labels, self.len as f64);
    }
}

impl LatencySample {
    /// Records the sample in the histogram of its kind of operation.
    pub fn record_metrics(&self, labels: &[Label]) {
        let kind = match self.operation {
            OperationKind::Write => "write",
            OperationKind::Read => "read",
            OperationKind::Atomic | OperationKind::FetchAtomic => "atomic",
            _ => "send",
        };
        let labels = with(labels, &[("operation", kind)]);
        histogram!(DURATION.0, labels).record(self.duration.as_secs_f64());
    }
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata,
        Recorder, SharedString,
    };

    use super::*;
    use crate::testing::{Net, connect};

    /// What was described and recorded, and what else is called each time.
    #[derive(Clone, Default)]
    struct Recorded(Arc<Mutex<(Vec<String>, Samples)>>, Option<Callback>);

    type Callback = Arc<dyn Fn() + Send + Sync>;

    /// By name and labels.
    type Samples = BTreeMap<String, Vec<f64>>;

    struct Metric(Recorded, String);

    impl Metric {
        fn add(&self, value: f64) {
            self.0.call_back();
            let mut recorded = self.0.0.lock().unwrap();
            recorded.1.entry(self.1.clone()).or_default().push(value);
        }
    }

    impl CounterFn for Metric {
        fn increment(&self, _: u64) {
            unreachable!("counts are absolute");
        }
        fn absolute(&self, value: u64) {
            self.add(value as f64);
        }
    }

    impl GaugeFn for Metric {
        fn increment(&self, _: f64) {
            unreachable!("gauges are set");
        }
        fn decrement(&self, _: f64) {
            unreachable!("gauges are set");
        }
        fn set(&self, value: f64) {
            self.add(value);
        }
    }

    impl HistogramFn for Metric {
        fn record(&self, value: f64) {
            self.add(value);
        }
    }

    impl Recorded {
        fn call_back(&self) {
            if let Some(callback) = &self.1 {
                callback();
            }
        }

        fn described(&self, kind: &str, name: &KeyName, unit: Option<Unit>) {
            self.call_back();
            let unit = unit.expect("each has a unit").as_str();
            let line = format!("{kind} {} {unit}", name.as_str());
            self.0.lock().unwrap().0.push(line);
        }

        fn metric(&self, key: &Key) -> Arc<Metric> {
            self.call_back();
            let labels = key
                .labels()
                .map(|it| format!(" {}={}", it.key(), it.value()));
            let name = format!("{}{}", key.name(), labels.collect::<String>());
            Arc::new(Metric(self.clone(), name))
        }

        fn last(&self, name: &str) -> f64 {
            let recorded = self.0.lock().unwrap();
            let values = recorded.1.get(name);
            *values
                .and_then(|it| it.last())
                .unwrap_or_else(|| panic!("no {name}: {:?}", recorded.1))
        }
    }

    impl Recorder for Recorded {
        fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
            self.described("counter", &name, unit);
        }
        fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
            self.described("gauge", &name, unit);
        }
        fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
            self.described("histogram", &name, unit);
        }
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.metric(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.metric(key))
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.metric(key))
        }
    }

    /// Each metric is described, with its unit, and has the value that the statistics have; of the
    /// operations the time of one in 64 is taken.
    #[tokio::test]
    async fn statistics_are_recorded_under_the_names_that_are_described() {
        let net = Net::new(1);
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let (a, b) = connect(&us, &them).await.unwrap();
        for _ in 0..100 {
            let receive = b.recv(vec![0; 8]).post().unwrap();
            a.send("12345678").await.unwrap();
            receive.await.unwrap();
        }
        let samples = a.take_latencies();
        assert_eq!(samples.len(), 2, "{samples:?}");
        assert!(a.take_latencies().is_empty() && b.take_latencies().is_empty());

        let recorded = Recorded::default();
        let labels = [Label::new("endpoint", "a")];
        metrics::with_local_recorder(&recorded, || {
            describe_metrics();
            a.stats().record_metrics(&labels);
            us.domain.stats().record_metrics(&labels);
            us.events.stats().record_metrics(&labels);
            ListenerStats::default().record_metrics(&labels);
            DgramStats::default().record_metrics(&labels);
            samples.iter().for_each(|it| it.record_metrics(&labels));
        });
        let (described, values) = recorded.0.lock().unwrap().clone();
        let names = described.iter().map(|it| it.split(' ').nth(1).unwrap());
        let names: Vec<&str> = names.collect();
        for name in values.keys() {
            let name = name.split(' ').next().unwrap();
            assert!(names.contains(&name), "{name} is not described");
        }
        for name in names {
            let is_it = |key: &String| key.split(' ').next() == Some(name);
            assert!(values.keys().any(is_it), "{name} is not recorded");
        }
        assert!(described.contains(&"histogram fabric.operation.duration seconds".to_owned()));
        assert!(described.contains(&"counter fabric.network.io bytes".to_owned()));
        // Datagrams of none came last, under the same labels: hence another look.
        metrics::with_local_recorder(&recorded, || a.stats().record_metrics(&labels));
        let of = |name: &str| recorded.last(name);
        assert_eq!(
            of("fabric.operations endpoint=a operation=send outcome=success"),
            100.0
        );
        assert_eq!(of("fabric.operation.io endpoint=a operation=send"), 800.0);
        assert_eq!(of("fabric.connections endpoint=a"), 1.0);
        let duration = of("fabric.operation.duration endpoint=a operation=send");
        assert!(duration > 0.0 && duration < 60.0, "{duration}");
    }

    /// No lock is held while a recorder is called: it may look at what it records, for example for
    /// labels of its own.
    #[test]
    fn a_recorder_may_ask_the_objects_that_it_records() {
        let (sender, ended) = std::sync::mpsc::channel();
        // A thread of its own: it would not come back from a lock.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let net = Net::loopback();
                let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
                let (a, b) = connect(&us, &them).await.unwrap();
                let listener = them.fabric.passive_endpoint(&them.events).listen().unwrap();
                for _ in 0..64 {
                    let receive = b.recv(vec![0; 8]).post().unwrap();
                    a.send("12345678").await.unwrap();
                    receive.await.unwrap();
                }
                let samples = a.take_latencies();
                assert!(!samples.is_empty());
                let asked = Arc::new(Mutex::new(0));
                let (endpoint, domain, events) = (a.clone(), us.domain.clone(), us.events.clone());
                let (listening, count) = (listener.stats(), Arc::clone(&asked));
                let callback = move || {
                    let _ = (endpoint.stats(), domain.stats(), events.stats());
                    let _ = (listener.stats(), endpoint.take_latencies());
                    *count.lock().unwrap() += 1;
                };
                let recorded = Recorded(Arc::default(), Some(Arc::new(callback)));
                metrics::with_local_recorder(&recorded, || {
                    describe_metrics();
                    a.stats().record_metrics(&[]);
                    us.domain.stats().record_metrics(&[]);
                    us.events.stats().record_metrics(&[]);
                    listening.record_metrics(&[]);
                    samples.iter().for_each(|it| it.record_metrics(&[]));
                });
                sender.send(*asked.lock().unwrap()).unwrap();
            });
        });
        let asked = ended.recv_timeout(std::time::Duration::from_secs(60));
        assert!(asked.expect("it came back from every call") > 30);
    }
}
