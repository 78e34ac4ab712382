//! Put and get between two peers: the smallest complete program. Both peers are in this process;
//! they still connect over TCP.

use tokio_fabric::{Access, Event, Fabric, Hints, RemoteRegion, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let fabric = Fabric::open(Hints::new())?;
    let events = fabric.event_queue().open()?;
    let listener = fabric
        .passive_endpoint(&events)
        .listen_at(([127, 0, 0, 1], 0).into())?;
    let address = listener.local_addr();
    tokio::try_join!(serve(fabric.clone(), events), call(fabric, address))?;
    Ok(())
}

/// The peer whose memory is written and read.
async fn serve(fabric: Fabric, events: tokio_fabric::EventQueue) -> Result<()> {
    let domain = fabric.domain().open()?;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = domain.register(vec![0; 1 << 20]).access(access).await?;
    let Some(Event::ConnRequest(request)) = events.next().await else {
        unreachable!("nothing else is bound")
    };
    let peer = request
        .accept(&domain)
        .data(region.remote().to_bytes())
        .await?;
    peer.recv(vec![0; 3]).await?; // until the other side is done
    let mut bytes = [0; 5];
    region.read_at(0, &mut bytes)?;
    println!("served: {}", String::from_utf8_lossy(&bytes));
    Ok(())
}

/// The peer that writes and reads.
async fn call(fabric: Fabric, address: std::net::SocketAddr) -> Result<()> {
    let peer = fabric.domain().open()?.endpoint().open()?;
    let remote = RemoteRegion::from_bytes(&peer.connect(address).await?)?;
    peer.write(b"hello".to_vec(), remote.slice(0..5)?).await?;
    let (n, bytes) = peer.read(vec![0; 5], remote.slice(0..5)?).await?;
    println!("got back: {}", String::from_utf8_lossy(&bytes[..n]));
    println!("by way of: {}", peer.path()); // `local` once it is busy
    peer.send("bye").delivery_complete().await?;
    Ok(())
}
