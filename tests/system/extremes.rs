//! Every time and count that a program may set, at its ends: 0, 1 and the largest. What means
//! nothing is refused with its name, what means "none" or "no limit" works, and nothing panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::common::on_each_at_once;
use crate::common::peers::any;
use tokio_fabric::ep::Liveness;
use tokio_fabric::rdm::IdlePolicy;
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{AddressVector, Domain, EndpointType, ErrorKind, Hints, Result};

const TIMES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];

/// Opened, or refused for what it was given.
#[track_caller]
fn check<T>(name: &str, value: impl std::fmt::Debug, open: impl FnOnce() -> Result<T>) {
    let opened = catch_unwind(AssertUnwindSafe(open));
    let opened = opened.unwrap_or_else(|_| panic!("{name}({value:?}) panics"));
    if let Err(error) = opened {
        use ErrorKind::{InvalidArgument, LimitReached, TooLarge};
        let is_named = [InvalidArgument, LimitReached, TooLarge].contains(&error.kind());
        assert!(is_named, "{name}({value:?}): {error}");
    }
}

struct Stage {
    peer: Peer,
    rdm: Domain,
    datagrams: (Domain, AddressVector),
}

impl Stage {
    fn open(net: &Net) -> Stage {
        let domain = |kind| {
            let fabric = net.fabric_with(Hints::new().endpoint(kind)).unwrap();
            fabric.domain().open().unwrap()
        };
        let datagrams = domain(EndpointType::Dgram);
        Stage {
            peer: net.peer().unwrap(),
            rdm: domain(EndpointType::Rdm),
            datagrams: (
                datagrams.clone(),
                datagrams.address_vector().open().unwrap(),
            ),
        }
    }

    fn counts(&self, value: usize) {
        let Stage { peer, rdm, .. } = self;
        let (domain, fabric) = (&peer.domain, &peer.fabric);
        let small = u32::try_from(value).unwrap_or(u32::MAX);
        check("size", value, || {
            domain.completion_queue().size(value).open()
        });
        check("size", value, || fabric.event_queue().size(value).open());
        check("size", value, || {
            domain.receive_context().size(value).open()
        });
        let context = || domain.receive_context();
        check("unexpected_bytes", value, || {
            context().unexpected_bytes(value).open()
        });
        check("unexpected_bytes_per_peer", value, || {
            context().unexpected_bytes_per_peer(value).open()
        });
        check("rendezvous_min", value, || {
            context().rendezvous_min(value).open()
        });
        check("max_message_size", value, || {
            context().max_message_size(value).open()
        });
        check("min_multi_recv", value, || {
            context().min_multi_recv(value).open()
        });
        check("min_free", value, || {
            let many = context().open()?.multi_recv(vec![0; 64]);
            let posted = many.min_free(value).queue(1u64).post();
            posted.map_err(|failed| failed.into_error())
        });
        check("transmit_size", value, || {
            domain.endpoint().transmit_size(value).open()
        });
        check("receive_size", value, || {
            domain.endpoint().receive_size(value).open()
        });
        check("unexpected_bytes", value, || {
            domain.endpoint().unexpected_bytes(value).open()
        });
        let liveness = Liveness::default().rounds(small);
        check("rounds", value, || {
            domain.endpoint().liveness(liveness).open()
        });
        let listener = || fabric.passive_endpoint(&peer.events);
        check("half_open_max", value, || {
            listener().half_open_max(value).listen_at(any())
        });
        let open = || rdm.rdm_endpoint().listen_at(any());
        check("transmit_size", value, || {
            open().transmit_size(value).open()
        });
        check("strangers_max", value, || {
            open().strangers_max(value).open()
        });
        check("receive_size", value, || open().receive_size(value).open());
        check("unexpected_bytes", value, || {
            open().unexpected_bytes(value).open()
        });
        check("unexpected_bytes_per_peer", value, || {
            open().unexpected_bytes_per_peer(value).open()
        });
        check("rendezvous_min", value, || {
            open().rendezvous_min(value).open()
        });
        check("max_message_size", value, || {
            open().max_message_size(value).open()
        });
        check("min_multi_recv", value, || {
            open().min_multi_recv(value).open()
        });
        let scalable = || rdm.scalable_endpoint().listen_at(any());
        check("contexts", value, || scalable().contexts(value).open());
        let (domain, vector) = &self.datagrams;
        let open = || domain.dgram_endpoint().address_vector(vector).bind(any());
        check("transmit_size", value, || {
            open().transmit_size(value).open()
        });
        check("receive_size", value, || open().receive_size(value).open());
        check("unexpected_bytes", value, || {
            open().unexpected_bytes(value).open()
        });
        check("socket_buffer", value, || {
            open().socket_buffer(value).open()
        });
        let cache = || peer.domain.cache();
        check("max_size", value, || cache().max_size(value).open());
        check("max_count", value, || cache().max_count(value).open());
        let vector = || rdm.address_vector();
        check("count", value, || vector().count(value).open());
        check("endpoints_per_node", value, || {
            vector().endpoints_per_node(value).open()
        });
        check("rx_ctx_bits", value, || vector().rx_ctx_bits(small).open());
        check("progress_shards", value, || {
            fabric.domain().progress_shards(value).open()
        });
    }

    fn times(&self, value: Duration) {
        let Stage { peer, rdm, .. } = self;
        let (domain, fabric) = (&peer.domain, &peer.fabric);
        let listener = || fabric.passive_endpoint(&peer.events);
        check("handshake_timeout", value, || {
            listener().handshake_timeout(value).listen_at(any())
        });
        let open = || rdm.rdm_endpoint().listen_at(any());
        check("connect_deadline", value, || {
            open().connect_deadline(value).open()
        });
        let idle = IdlePolicy::CloseAfter(value);
        check("idle", value, || open().idle(idle).open());
        check("busy_poll", value, || {
            fabric.domain().busy_poll(value).open()
        });
        for liveness in [
            Liveness::default().interval(value),
            Liveness::default().idle_interval(value),
            Liveness::default().interval(value).rounds(u32::MAX),
        ] {
            check("liveness", value, || {
                domain.endpoint().liveness(liveness).open()
            });
            check("found_within", value, || Ok(liveness.found_within()));
        }
    }
}

#[test]
fn every_time_and_count_takes_its_ends_or_is_refused_by_name() {
    on_each_at_once(|net| async move {
        let stage = Stage::open(&net);
        for value in [0, 1, usize::MAX] {
            stage.counts(value);
        }
        for value in TIMES {
            stage.times(value);
        }
    });
}

/// A time limit that is beyond any clock is none.
#[test]
fn operations_take_each_time_limit() {
    on_each_at_once(|net| async move {
        let [us, them] = [(); 2].map(|()| net.peer().unwrap());
        for limit in TIMES {
            let [a, b] = [&us, &them].map(|it| it.domain.endpoint().open().unwrap());
            connect_endpoints(&a, &b, &them.fabric).await.unwrap();
            let receiving = b.recv(vec![0; 8]).timeout(limit).post().unwrap();
            let sent = a.send("hello").timeout(limit).await;
            let is_limited = limit < Duration::from_secs(1);
            let received = match is_limited {
                // Whichever was first.
                true => receiving.await.map(|(received, _)| received.len),
                false => Ok(receiving.await.unwrap().0.len),
            };
            match received {
                Ok(len) => assert_eq!(len, 5),
                Err(failed) => assert_eq!(failed.kind(), ErrorKind::TimedOut),
            }
            assert!(sent.is_ok() || is_limited, "{sent:?}");
        }
    });
}

/// Each setting of the interface is in this file.
#[test]
fn no_setting_is_left_out() {
    let here = include_str!("extremes.rs");
    let mut left_out = Vec::new();
    let mut folders = vec![std::path::PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let settings = text.lines().filter_map(|line| {
                let (name, argument) = line
                    .trim()
                    .strip_prefix("pub fn ")?
                    .split_once("(mut self, ")?;
                let (_, kind) = argument.split_once(": ")?;
                let kind = kind.strip_suffix(") -> Self {")?.rsplit("::").next()?;
                ["Duration", "usize", "u32"]
                    .contains(&kind)
                    .then(|| name.to_owned())
            });
            let missing = settings.filter(|name| !here.contains(&format!("{name}(")));
            left_out.extend(missing);
        }
    }
    assert!(left_out.is_empty(), "{left_out:?}");
}
