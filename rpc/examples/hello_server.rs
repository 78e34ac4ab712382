//! The service, and its server.

use tokio_fabric_rpc::{Cx, Result, service};
#[service]
pub trait Hello {
    async fn hello(&self, cx: &Cx, name: String) -> Result<String>;
}
struct Greeter;
impl Hello for Greeter {
    async fn hello(&self, _: &Cx, name: String) -> Result<String> {
        Ok(format!("Hello, {name}!"))
    }
}
#[tokio::main]
async fn main() -> Result<()> {
    HelloServer::new(Greeter).listen("127.0.0.1:7471").await
}
