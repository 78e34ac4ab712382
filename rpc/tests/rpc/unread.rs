//! Peers that do not read what they are sent: what is kept for them is bounded.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_fabric::Endpoint;
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{Code, Cx, Result, Server, Started, Streaming, service, testing};

use super::batches::batch;
use super::expect;
use super::hostile::{frame, hello_with, numbers, raw_client, raw_server, request, shutdown};

fn hello() -> Vec<u8> {
    hello_with(16 << 20)
}

#[service(signature = "")]
trait Flood {
    /// Reads all.
    async fn drink(&self, cx: &Cx, items: Streaming<u8>) -> Result<()>;
    /// Numbered items without end.
    async fn pour(&self, cx: &Cx) -> Result<Streaming<Vec<u8>>>;
    /// Takes them.
    async fn fill(&self, cx: &Cx, items: Streaming<Vec<u8>>) -> Result<()>;
}

/// Items without end, which are counted.
fn numbered(count: &Arc<AtomicUsize>) -> Streaming<Vec<u8>> {
    let count = Arc::clone(count);
    Streaming::of(std::iter::repeat_with(move || {
        let mut item = vec![0; 1000];
        let number = count.fetch_add(1, SeqCst) as u32;
        item[..4].copy_from_slice(&number.to_le_bytes());
        item
    }))
}

/// Grants credit for an item of the first call.
async fn credit(endpoint: &Endpoint) {
    let credit = numbers(frame(5, 0, &[]), 1, POURED);
    endpoint.send(credit).await.unwrap();
}

/// Grants credit for all items that were [made](numbered), but reads none, until no more are made:
/// how many there are, and how many were granted.
async fn credit_unread(endpoint: &Endpoint, made: &AtomicUsize) -> (usize, usize) {
    let (mut credited, mut last) = (0, 0);
    loop {
        sleep(Duration::from_millis(1)).await;
        let now = made.load(SeqCst);
        if now == last {
            return (last, credited);
        }
        last = now;
        assert!(last < 5000, "without end");
        // The last one waits for credit.
        while credited + 1 < last {
            credit(endpoint).await;
            credited += 1;
        }
    }
}

/// Then reads them, and some more.
async fn read_credited(endpoint: &Endpoint, (made, mut credited): (usize, usize)) {
    for number in 0..made + 100 {
        let (_, item) = endpoint.recv(vec![0; 2000]).await.unwrap();
        assert_eq!(item[0], 4);
        assert_eq!(item[18..22], (number as u32).to_le_bytes());
        if credited <= number {
            credit(endpoint).await;
            credited += 1;
        }
    }
}

/// Bytes of an item that is poured, encoded: more than the library copies.
const POURED: u32 = 1002;

/// Items that were poured.
struct Flooder(Arc<AtomicUsize>);

impl Flood for Flooder {
    async fn drink(&self, _: &Cx, mut items: Streaming<u8>) -> Result<()> {
        while let Some(item) = items.next().await {
            item?;
        }
        Ok(())
    }

    async fn pour(&self, _: &Cx) -> Result<Streaming<Vec<u8>>> {
        Ok(numbered(&self.0))
    }

    async fn fill(&self, _: &Cx, _: Streaming<Vec<u8>>) -> Result<()> {
        unreachable!("it is called of another server")
    }
}

/// G9: a client that says that it has read what it has not is sent no more than the library has
/// room for. Once it reads, all of that comes, in its order, and more.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_no_item_is_sent_a_bounded_number() {
    let net = Net::new(23);
    let poured = Arc::new(AtomicUsize::new(0));
    let server = Server::new().add(FloodServer::new(Flooder(Arc::clone(&poured))));
    let (_channel, server) = testing::connect(&net, server.window(1)).await.unwrap();
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello()).await;
    let pour = request(0, "Flood/pour", 1 << 6, &[]);
    endpoint.send(pour).await.unwrap();
    let unread = credit_unread(&endpoint, &poured).await;
    read_credited(&endpoint, unread).await;
    assert_eq!(server.stats().violations, 0);
}

/// The same of a server.
#[tokio::test(start_paused = true)]
async fn a_server_that_reads_no_item_is_sent_a_bounded_number() {
    let net = Net::new(25);
    let (_peer, endpoint, channel) = raw_server(&net, hello()).await;
    let client = FloodClient::over(channel);
    let made = Arc::default();
    let call = client.fill(numbered(&made)).no_deadline();
    let _call = tokio::spawn(call.into_future());
    endpoint.recv(vec![0; 256]).await.unwrap();
    let unread = credit_unread(&endpoint, &made).await;
    read_credited(&endpoint, unread).await;
}

/// Nor does one that reads no credit, and sends as if it had, fill the server's memory with that.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_no_credit_loses_its_connection() {
    let net = Net::new(24);
    let poured = Arc::default();
    let server = Server::new().add(FloodServer::new(Flooder(Arc::clone(&poured))));
    let (_channel, server) = testing::connect(&net, server.window(2)).await.unwrap();
    let (peer, endpoint) = raw_client(&net, server.local_addr(), hello()).await;
    // All that is on its way to it is full of another stream.
    let pour = request(0, "Flood/pour", 1 << 6, &[]);
    endpoint.send(pour).await.unwrap();
    credit_unread(&endpoint, &poured).await;
    let drink = request(1, "Flood/drink", 1 << 5, &[]);
    endpoint.send(drink).await.unwrap();
    let items = batch(&vec![frame(4, 1, &[1]); 8]);
    for _ in 0..200 {
        if endpoint.send(items.clone()).await.is_err() {
            break;
        }
        // They are read.
        sleep(Duration::from_millis(1)).await;
    }
    shutdown(&peer).await;
    assert_eq!(server.stats().violations, 1);
}

/// The same of a server.
#[tokio::test(start_paused = true)]
async fn a_server_that_reads_no_credit_loses_its_client() {
    let mut hello = hello();
    // Two calls at a time.
    hello[8..10].copy_from_slice(&[2, 0]);
    let (_peer, endpoint, channel) = raw_server(&Net::new(26), hello).await;
    let client = FloodClient::over(channel);
    let made = Arc::default();
    let fill = client.fill(numbered(&made)).no_deadline();
    let _fill = tokio::spawn(fill.into_future());
    endpoint.recv(vec![0; 256]).await.unwrap();
    credit_unread(&endpoint, &made).await;
    let reading = tokio::spawn(async move {
        let mut items = client.pour().no_deadline().await.unwrap();
        while let Some(item) = items.next().await {
            if let Err(status) = item {
                return status;
            }
        }
        panic!("it has no end")
    });
    sleep(Duration::from_millis(1)).await;
    let items = batch(&vec![frame(4, 1, &[0]); 8]);
    for _ in 0..200 {
        if reading.is_finished() || endpoint.send(items.clone()).await.is_err() {
            break;
        }
        // They are read.
        sleep(Duration::from_millis(1)).await;
    }
    let lost = timeout(Duration::from_secs(60), reading).await;
    let lost = lost.expect("it ends").unwrap();
    expect(&lost, Code::ConnectionLost, Started::MaybeRan);
    assert!(lost.message().contains("does not read"), "{lost}");
}
