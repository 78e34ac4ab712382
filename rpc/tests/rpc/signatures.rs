//! Two sides whose traits are not the same: a method whose types differ is not called, and what
//! may be added breaks nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio_fabric_rpc::{Channel, Code, Listening, Result, Service, Started, Status, testing};

use crate::expect;

#[derive(Debug, Serialize, Deserialize)]
pub struct Point {
    x: i32,
    y: i32,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Moved {
    y: i32,
    x: i32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Figure {
    Circle(u8),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum LaterFigure {
    Circle(u8),
    Square { side: u8 },
}

type Number = u64;

mod first {
    use super::*;
    use tokio_fabric_rpc::{Cx, Pull, Push, Streaming, service};

    #[service]
    pub trait Sums {
        async fn echo(&self, cx: &Cx, number: u64) -> Result<u64>;
        async fn same(
            &self,
            cx: &Cx,
            by: std::collections::BTreeMap<String, Number>,
        ) -> Result<u64>;
        async fn add(&self, cx: &Cx, one: u64, other: u64) -> Result<u64>;
        async fn result(&self, cx: &Cx) -> Result<u64>;
        async fn error(&self, cx: &Cx) -> Result<u64>;
        async fn own_error(&self, cx: &Cx) -> Result<u64, u8>;
        async fn fields(&self, cx: &Cx, at: Point) -> Result<()>;
        async fn bytes(&self, cx: &Cx, bytes: Vec<u8>) -> Result<()>;
        async fn lent(&self, cx: &Cx, data: Pull) -> Result<()>;
        async fn stream(&self, cx: &Cx, numbers: Streaming<u64>) -> Result<()>;
        async fn streamed(&self, cx: &Cx) -> Result<Streaming<u64>>;
        async fn figure(&self, cx: &Cx, figure: Figure) -> Result<Figure>;
        async fn unused(&self, cx: &Cx, into: Push) -> Result<()>;
        #[rpc(signature = "a point")]
        async fn pinned(&self, cx: &Cx, at: Point) -> Result<()>;
    }
}

mod second {
    use super::*;
    use tokio_fabric_rpc::{Cx, Push, Streaming, service};

    #[service]
    pub trait Sums {
        async fn echo(&self, cx: &Cx, text: String) -> Result<String>;
        async fn same(
            &self,
            cx: &Cx,
            by: BTreeMap<Box<str>, u64>,
        ) -> tokio_fabric_rpc::Result<Number>;
        async fn add(&self, cx: &Cx, one: u64) -> Result<u64>;
        async fn result(&self, cx: &Cx) -> Result<u32>;
        async fn error(&self, cx: &Cx) -> Result<u64, u8>;
        async fn own_error(&self, cx: &Cx) -> Result<u64, u16>;
        async fn fields(&self, cx: &Cx, at: Moved) -> Result<()>;
        async fn bytes(&self, cx: &Cx, bytes: Bytes) -> Result<()>;
        async fn lent(&self, cx: &Cx, data: Push) -> Result<()>;
        async fn stream(&self, cx: &Cx, numbers: Streaming<u32>) -> Result<()>;
        async fn streamed(&self, cx: &Cx) -> Result<Streaming<u32>>;
        async fn figure(&self, cx: &Cx, figure: LaterFigure) -> Result<LaterFigure>;
        async fn more(&self, cx: &Cx) -> Result<()>;
        #[rpc(signature = "a point")]
        async fn pinned(&self, cx: &Cx, at: Moved) -> Result<()>;
    }
}

async fn first_at(server: impl Service) -> (first::SumsClient, Channel, Listening) {
    let (channel, listening) = testing::pair(server).await.unwrap();
    (first::SumsClient::over(channel.clone()), channel, listening)
}

#[track_caller]
fn differs(status: Status, method: &str) {
    expect(&status, Code::Unimplemented, Started::NotStarted);
    let what = format!("the server's `Sums/{method}` takes other arguments");
    assert!(status.message().contains(&what), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_method_with_other_types_at_the_server_is_not_called() {
    // A mock without answers: any call of it would panic.
    let server = second::SumsServer::new(second::SumsMock::new());
    let (sums, _channel, listening) = first_at(server).await;
    let at = Point { x: 1, y: 2 };
    differs(sums.echo(7).await.unwrap_err(), "echo");
    differs(sums.add(1, 2).await.unwrap_err(), "add");
    differs(sums.result().await.unwrap_err(), "result");
    differs(sums.error().await.unwrap_err(), "error");
    match sums.own_error().await.unwrap_err() {
        tokio_fabric_rpc::CallError::Rpc(status) => differs(status, "own_error"),
        other => panic!("{other:?}"),
    }
    differs(sums.fields(at).await.unwrap_err(), "fields");
    differs(sums.bytes(vec![3, 1, 2, 3]).await.unwrap_err(), "bytes");
    let failed = sums.lent(tokio_fabric_rpc::Lend::read(vec![1; 64])).await;
    differs(failed.unwrap_err().into_error(), "lent");
    let numbers = tokio_fabric_rpc::Streaming::new(futures::stream::iter([Ok(1)]));
    differs(sums.stream(numbers).await.unwrap_err(), "stream");
    differs(sums.streamed().await.unwrap_err(), "streamed");
    assert_eq!(listening.stats().started, 0);
    // It says what the server's is.
    let status = sums.echo(7).await.unwrap_err();
    assert!(status.message().ends_with("it is `str->str`"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn types_that_are_one_to_the_codec_may_be_spelled_differently() {
    let mock = second::SumsMock::new();
    mock.on_same(|by| async move { Ok(by.values().sum()) });
    mock.script_pinned([Ok(())]);
    let (sums, _channel, _listening) = first_at(second::SumsServer::new(mock)).await;
    let by = BTreeMap::from([("a".to_owned(), 3), ("b".to_owned(), 4)]);
    assert_eq!(sums.same(by).await.unwrap(), 7);
    // And those of which the program says so.
    sums.pinned(Point { x: 1, y: 2 }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_method_or_a_variant_that_is_added_breaks_nothing() {
    let mock = second::SumsMock::new();
    mock.on_figure(|figure| async move { Ok(figure) });
    let (sums, channel, _listening) = first_at(second::SumsServer::new(mock)).await;
    assert_eq!(
        sums.figure(Figure::Circle(3)).await.unwrap(),
        Figure::Circle(3)
    );
    // A method that the server has no more is another failure.
    let into = tokio_fabric_rpc::Lend::write(vec![0; 8]);
    let gone = sums.unused(into).await.unwrap_err();
    expect(gone.error(), Code::Unimplemented, Started::NotStarted);
    assert!(
        !gone.error().message().contains("other arguments"),
        "{gone}"
    );
    // The newer side is the client.
    let mock = first::SumsMock::new();
    mock.on_figure(|figure| async move { Ok(figure) });
    let (older, _older) = testing::pair(first::SumsServer::new(mock)).await.unwrap();
    let newer = second::SumsClient::over(older);
    let circle = LaterFigure::Circle(3);
    assert_eq!(newer.figure(circle).await.unwrap(), LaterFigure::Circle(3));
    let square = newer
        .figure(LaterFigure::Square { side: 2 })
        .await
        .unwrap_err();
    expect(&square, Code::BadRequest, Started::NotStarted);
    drop(channel);
}

/// Where the codec lets a struct grow, the signature does too.
mod messages {
    use tokio_fabric_rpc::{Cx, Prost, Result, service};

    pub mod older {
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Point {
            #[prost(int32, tag = "1")]
            pub x: i32,
        }
    }

    pub mod newer {
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Point {
            #[prost(int32, tag = "1")]
            pub x: i32,
            #[prost(int32, tag = "2")]
            pub y: i32,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Circle {
            #[prost(int32, tag = "1")]
            pub radius: i32,
        }
    }

    pub mod at_client {
        use super::*;
        #[service(codec = Prost)]
        pub trait Figures {
            async fn twice(&self, cx: &Cx, at: older::Point) -> Result<older::Point>;
            async fn other(&self, cx: &Cx, at: older::Point) -> Result<()>;
        }
    }

    pub mod at_server {
        use super::newer::Point;
        use super::*;
        #[service(codec = Prost)]
        pub trait Figures {
            async fn twice(&self, cx: &Cx, at: Point) -> Result<Point>;
            async fn other(&self, cx: &Cx, at: newer::Circle) -> Result<()>;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_may_get_a_field_where_its_codec_takes_that_and_not_another_name() {
    use messages::{at_client, at_server, newer, older};
    let mock = at_server::FiguresMock::new();
    mock.on_twice(|at| async move {
        Ok(newer::Point {
            x: 2 * at.x,
            y: 2 * at.y,
        })
    });
    let server = at_server::FiguresServer::new(mock);
    let (channel, _listening) = testing::pair(server).await.unwrap();
    let figures = at_client::FiguresClient::over(channel);
    assert_eq!(figures.twice(older::Point { x: 3 }).await.unwrap().x, 6);
    let other = figures.other(older::Point { x: 3 }).await.unwrap_err();
    expect(&other, Code::Unimplemented, Started::NotStarted);
    assert!(other.message().contains("it is `Circle->()`"), "{other}");
}
