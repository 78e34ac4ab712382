//! Bodies that claim more than they have: as requests, results, errors and items.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use serde::{Deserialize, Serialize};
use tokio_fabric_rpc::limits::{ELEMENTS_WITHOUT_BYTES_MAX, NESTING_MAX};
use tokio_fabric_rpc::{
    CallError, Code, Cx, Lend, Pull, Result, Started, Status, Streaming, service, testing,
};

use super::expect;

/// What is encoded in no bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Nothing;

type Nested = VecDeque<((), Nothing)>;

#[derive(Debug, Serialize, Deserialize)]
enum Tree {
    Leaf,
    Node(Box<Tree>),
}

impl Tree {
    fn depth(&self) -> u64 {
        let (mut depth, mut at) = (1, self);
        while let Tree::Node(next) = at {
            (depth, at) = (depth + 1, next);
        }
        depth
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Length(u64);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What takes and gives collections.
#[service(name = "Marks", signature = "")]
trait Marks {
    async fn units(&self, cx: &Cx, list: Vec<()>, rest: u32) -> Result<u64>;
    async fn nested(&self, cx: &Cx, list: Nested, rest: u32) -> Result<u64>;
    async fn map(&self, cx: &Cx, map: BTreeMap<Nothing, ()>, rest: u32) -> Result<u64>;
    async fn words(&self, cx: &Cx, list: Vec<String>, rest: u32) -> Result<u64>;
    async fn large(&self, cx: &Cx, list: Vec<Option<[u64; 32]>>, rest: u32) -> Result<u64>;
    async fn tree(&self, cx: &Cx, tree: Tree) -> Result<u64>;
    async fn item(&self, cx: &Cx, lists: Streaming<Vec<Nothing>>) -> Result<u64>;
    async fn result(&self, cx: &Cx, len: u64) -> Result<Vec<Nothing>>;
    async fn error(&self, cx: &Cx, len: u64) -> Result<(), Nested>;
    async fn items(&self, cx: &Cx, len: u64) -> Result<Streaming<Vec<()>>>;
    async fn ping(&self, cx: &Cx, data: Pull) -> Result<u64>;
}

/// The same methods, with a length where the elements are.
#[service(name = "Marks", signature = "")]
trait Forged {
    async fn units(&self, cx: &Cx, list: u64, rest: u32) -> Result<u64>;
    async fn nested(&self, cx: &Cx, list: u64, rest: u32) -> Result<u64>;
    async fn map(&self, cx: &Cx, map: u64, rest: u32) -> Result<u64>;
    async fn words(&self, cx: &Cx, list: u64, rest: u32) -> Result<u64>;
    async fn large(&self, cx: &Cx, list: u64, rest: u32) -> Result<u64>;
    async fn item(&self, cx: &Cx, lists: Streaming<u64>) -> Result<u64>;
    async fn result(&self, cx: &Cx, len: u64) -> Result<u64>;
    async fn error(&self, cx: &Cx, len: u64) -> Result<(), Length>;
    async fn items(&self, cx: &Cx, len: u64) -> Result<Streaming<u64>>;
}

struct Counter;

impl Marks for Counter {
    async fn units(&self, _: &Cx, list: Vec<()>, _: u32) -> Result<u64> {
        Ok(list.len() as u64)
    }

    async fn nested(&self, _: &Cx, list: Nested, _: u32) -> Result<u64> {
        Ok(list.len() as u64)
    }

    async fn map(&self, _: &Cx, map: BTreeMap<Nothing, ()>, _: u32) -> Result<u64> {
        Ok(map.len() as u64)
    }

    async fn words(&self, _: &Cx, list: Vec<String>, _: u32) -> Result<u64> {
        Ok(list.len() as u64)
    }

    async fn large(&self, _: &Cx, list: Vec<Option<[u64; 32]>>, _: u32) -> Result<u64> {
        Ok(list.len() as u64)
    }

    async fn tree(&self, _: &Cx, tree: Tree) -> Result<u64> {
        Ok(tree.depth())
    }

    async fn item(&self, _: &Cx, mut lists: Streaming<Vec<Nothing>>) -> Result<u64> {
        match lists.next().await {
            Some(list) => Ok(list?.len() as u64),
            None => Err(Status::application(1, "nothing was sent")),
        }
    }

    async fn result(&self, _: &Cx, len: u64) -> Result<Vec<Nothing>> {
        Ok(vec![Nothing; len as usize])
    }

    async fn error(&self, _: &Cx, len: u64) -> Result<(), Nested> {
        Err(vec![((), Nothing); len as usize].into())
    }

    async fn items(&self, _: &Cx, len: u64) -> Result<Streaming<Vec<()>>> {
        Ok(Streaming::of([vec![(); len as usize]]))
    }

    async fn ping(&self, _: &Cx, data: Pull) -> Result<u64> {
        Ok(data.read(usize::MAX).await?.len() as u64)
    }
}

struct Forger;

impl Forged for Forger {
    async fn units(&self, _: &Cx, list: u64, _: u32) -> Result<u64> {
        Ok(list)
    }

    async fn nested(&self, _: &Cx, list: u64, _: u32) -> Result<u64> {
        Ok(list)
    }

    async fn map(&self, _: &Cx, map: u64, _: u32) -> Result<u64> {
        Ok(map)
    }

    async fn words(&self, _: &Cx, list: u64, _: u32) -> Result<u64> {
        Ok(list)
    }

    async fn large(&self, _: &Cx, list: u64, _: u32) -> Result<u64> {
        Ok(list)
    }

    async fn item(&self, _: &Cx, _: Streaming<u64>) -> Result<u64> {
        Ok(0)
    }

    async fn result(&self, _: &Cx, len: u64) -> Result<u64> {
        Ok(len)
    }

    async fn error(&self, _: &Cx, len: u64) -> Result<(), Length> {
        Err(Length(len))
    }

    async fn items(&self, _: &Cx, len: u64) -> Result<Streaming<u64>> {
        Ok(Streaming::of([len]))
    }
}

const MANY: [u64; 4] = [1 << 16, 1 << 32, u64::MAX >> 1, u64::MAX];

/// "A server decodes requests on the task that reads the frames of all connections": if one of
/// these took as long as it claims, this test would not end.
#[tokio::test(start_paused = true)]
async fn a_request_that_claims_more_than_it_has_is_refused_at_once() {
    let (channel, server) = testing::pair(MarksServer::new(Counter)).await.unwrap();
    let (marks, forged) = (
        MarksClient::over(channel.clone()),
        ForgedClient::over(channel),
    );
    let most = ELEMENTS_WITHOUT_BYTES_MAX;
    let units = vec![(); most];
    assert_eq!(marks.units(units, 1).await.unwrap(), most as u64);
    for len in MANY {
        for call in [
            forged.units(len, 1),
            forged.nested(len, 1),
            forged.map(len, 1),
            forged.words(len, 1),
            forged.large(len, 1),
        ] {
            expect(
                &call.await.unwrap_err(),
                Code::BadRequest,
                Started::NotStarted,
            );
        }
        let item = forged.item(Streaming::of([len])).await.unwrap_err();
        assert_eq!(item.code(), Code::BadRequest, "{item}");
    }
    assert_eq!(marks.ping(Lend::read("abc")).await.unwrap().0, 3);
    assert_eq!(server.stats().violations, 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_claims_more_than_it_has_fails_its_call_alone() {
    let (channel, _server) = testing::pair(ForgedServer::new(Forger)).await.unwrap();
    let marks = MarksClient::over(channel);
    assert_eq!(marks.result(1000).await.unwrap().len(), 1000);
    for len in MANY {
        let result = marks.result(len).await.unwrap_err();
        assert_eq!(result.code(), Code::Internal, "{result}");
        match marks.error(len).await.unwrap_err() {
            CallError::Rpc(status) => assert_eq!(status.code(), Code::Internal),
            CallError::App(list) => panic!("{} elements", list.len()),
        }
        let mut items = marks.items(len).await.unwrap();
        let item = items.next().await.unwrap().unwrap_err();
        assert_eq!(item.code(), Code::BadRequest, "{item}");
    }
    assert_eq!(marks.words(Vec::new(), 0).await.unwrap(), 0);
}

/// Neither as a request nor in one that is read by reference does it end the stack.
#[tokio::test(start_paused = true)]
async fn a_value_that_is_nested_too_deep_is_refused() {
    let (channel, _server) = testing::pair(MarksServer::new(Counter)).await.unwrap();
    let marks = MarksClient::over(channel);
    let nested = |depth: usize| (1..depth).fold(Tree::Leaf, |it, _| Tree::Node(Box::new(it)));
    assert_eq!(
        marks.tree(nested(NESTING_MAX)).await.unwrap(),
        NESTING_MAX as u64
    );
    for depth in [NESTING_MAX + 1, 1000] {
        let refused = marks.tree(nested(depth)).await.unwrap_err();
        expect(&refused, Code::BadRequest, Started::NotStarted);
        assert!(refused.message().contains("nested"), "{refused}");
    }
}
