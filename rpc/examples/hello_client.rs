//! Calls the server of `hello_server.rs`, which has the trait.

#[path = "hello_server.rs"]
#[allow(dead_code, reason = "the client has no use for the server")]
mod hello;

use hello::HelloClient;
#[tokio::main]
async fn main() -> tokio_fabric_rpc::Result<()> {
    let hello = HelloClient::connect("127.0.0.1:7471").await?;
    println!("{}", hello.hello("world".into()).await?);
    Ok(())
}
