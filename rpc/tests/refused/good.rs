//! Builds: the programs beside it fail for what they are refused for, and for nothing else.
use tokio_fabric_rpc::{Cx, Pull, Result, Streaming, service};

#[service(name = "Store")]
pub trait Files {
    #[rpc(idempotent, version = "2", signature = "str+pull->u64")]
    async fn put(&self, cx: &Cx, name: String, data: Pull) -> Result<u64>;
    async fn names(&self, cx: &Cx, of: std::borrow::Cow<'static, str>) -> Result<Streaming<String>>;
    async fn size(&self, cx: &Cx, name: String) -> Result<u64, u8>;
    async fn plain(&self, cx: &Cx) -> std::result::Result<(), tokio_fabric_rpc::Status>;
}

fn main() {}
