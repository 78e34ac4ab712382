//! Services in other codecs than postcard.

use bytes::Bytes;
use tokio_fabric_rpc::{Code, Cx, Result, Server, Started, service, testing};

use super::{Handlers, ProbeServer, expect};

#[service]
trait Raw {
    async fn reverse(&self, cx: &Cx, bytes: Bytes) -> Result<Bytes>;
    async fn nothing(&self, cx: &Cx) -> Result<Bytes>;
}

struct Bare;

impl Raw for Bare {
    async fn reverse(&self, _: &Cx, bytes: Bytes) -> Result<Bytes> {
        Ok(bytes.iter().rev().copied().collect())
    }

    async fn nothing(&self, _: &Cx) -> Result<Bytes> {
        Ok(Bytes::new())
    }
}

/// "Mismatch is a clear status before decode": nothing is sent.
#[tokio::test(start_paused = true)]
async fn a_call_in_another_codec_is_refused_before_it_is_sent() {
    let (channel, server) = testing::pair(RawServer::new(Bare)).await.unwrap();
    let raw = RawClient::over(channel.clone());
    assert_eq!(raw.reverse("abc".into()).await.unwrap(), "cba");
    assert_eq!(raw.nothing().await.unwrap(), "");
    let probe = super::ProbeClient::over(channel);
    let refused = probe.check(1).await.unwrap_err();
    let tokio_fabric_rpc::CallError::Rpc(refused) = refused else {
        panic!("{refused:?}")
    };
    expect(&refused, Code::BadRequest, Started::NotStarted);
    assert!(
        refused.message().contains("the call is in postcard"),
        "{refused}"
    );
    assert_eq!(server.stats().started, 2);
}

/// Beside services in any codec.
#[tokio::test(start_paused = true)]
async fn services_of_bytes_are_in_no_codec() {
    let server = Server::new()
        .add(RawServer::new(Bare))
        .add(ProbeServer::new(Handlers::default()));
    let net = tokio_fabric::testing::Net::new(3);
    let (channel, _server) = testing::connect(&net, server).await.unwrap();
    let raw = RawClient::over(channel.clone());
    assert_eq!(raw.reverse("abc".into()).await.unwrap(), "cba");
    super::ProbeClient::over(channel).nothing().await.unwrap();
}

#[cfg(feature = "prost")]
mod prost {
    use tokio_fabric_rpc::{CallError, Code, Cx, Prost, Result, Server, Started, service, testing};

    use crate::{Handlers, ProbeServer, expect};

    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct Entry {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(uint64, tag = "2")]
        pub size: u64,
    }

    #[service(codec = Prost, signature = "")]
    trait Names {
        async fn longer(&self, cx: &Cx, entry: Entry) -> Result<Entry>;
        async fn fail(&self, cx: &Cx, entry: Entry) -> Result<(), Entry>;
        async fn nothing(&self, cx: &Cx) -> Result<()>;
    }

    struct Longer;

    impl Names for Longer {
        async fn longer(&self, _: &Cx, entry: Entry) -> Result<Entry> {
            let size = entry.size + 1;
            Ok(Entry { size, ..entry })
        }

        async fn fail(&self, _: &Cx, entry: Entry) -> Result<(), Entry> {
            Err(entry)
        }

        async fn nothing(&self, _: &Cx) -> Result<()> {
            Ok(())
        }
    }

    /// The same messages, in another service's eyes.
    #[service(codec = Prost, name = "Names", signature = "")]
    trait Others {
        async fn longer(&self, cx: &Cx, size: i32) -> Result<Entry>;
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_arguments_results_and_errors() {
        let (channel, _server) = testing::pair(NamesServer::new(Longer)).await.unwrap();
        let names = NamesClient::over(channel.clone());
        let entry = Entry {
            name: "a".repeat(1000),
            size: 7,
        };
        assert_eq!(names.longer(entry.clone()).await.unwrap().size, 8);
        assert_eq!(names.longer(Entry::default()).await.unwrap().size, 1);
        names.nothing().await.unwrap();
        match names.fail(entry.clone()).await.unwrap_err() {
            CallError::App(error) => assert_eq!(error, entry),
            CallError::Rpc(status) => panic!("{status}"),
        }
        let wrong = OthersClient::over(channel).longer(1).await.unwrap_err();
        expect(&wrong, Code::BadRequest, Started::NotStarted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_has_one_codec() {
        let server = Server::new()
            .add(NamesServer::new(Longer))
            .add(ProbeServer::new(Handlers::default()));
        let net = tokio_fabric::testing::Net::new(3);
        let failed = testing::connect(&net, server).await.unwrap_err();
        assert_eq!(failed.code(), Code::Internal);
        assert!(failed.message().contains("prost"), "{failed}");
    }
}

#[cfg(feature = "rkyv")]
mod rkyv {
    use tokio_fabric_rpc::{Code, Cx, Result, Rkyv, Started, service, testing};

    use crate::expect;

    #[derive(Clone, Debug, PartialEq, ::rkyv::Archive, ::rkyv::Serialize, ::rkyv::Deserialize)]
    pub struct Entry {
        name: String,
        sizes: Vec<u64>,
    }

    #[service(codec = Rkyv, signature = "")]
    trait Sums {
        async fn with(&self, cx: &Cx, entry: Entry, more: u64) -> Result<Entry>;
        async fn nothing(&self, cx: &Cx) -> Result<()>;
    }

    struct Adder;

    impl Sums for Adder {
        async fn with(&self, _: &Cx, mut entry: Entry, more: u64) -> Result<Entry> {
            entry.sizes.push(more);
            Ok(entry)
        }

        async fn nothing(&self, _: &Cx) -> Result<()> {
            Ok(())
        }
    }

    #[service(codec = Rkyv, name = "Sums", signature = "")]
    trait Others {
        async fn with(&self, cx: &Cx, text: String) -> Result<Entry>;
    }

    #[tokio::test(start_paused = true)]
    async fn archives_are_checked_and_copied_out() {
        let (channel, _server) = testing::pair(SumsServer::new(Adder)).await.unwrap();
        let sums = SumsClient::over(channel.clone());
        let entry = Entry {
            name: "x".repeat(300),
            sizes: vec![1, 2],
        };
        let longer = sums.with(entry.clone(), 3).await.unwrap();
        assert_eq!((longer.name, longer.sizes), (entry.name, vec![1, 2, 3]));
        sums.nothing().await.unwrap();
        let wrong = OthersClient::over(channel)
            .with("x".into())
            .await
            .unwrap_err();
        expect(&wrong, Code::BadRequest, Started::NotStarted);
    }
}
