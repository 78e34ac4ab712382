//! What the compiler refuses. `//~` is for the line above: the place's text, and what is said.
use tokio_fabric_rpc::{Cx, Result, Streaming, service};

pub struct Plain;

#[service]
pub trait Takes {
    async fn a(&self, cx: &Cx, count: u64, it: Plain) -> Result<()>;
    //~ `Plain` `Plain: serde::Serialize` is not satisfied
}

#[service]
pub trait TakesOne {
    async fn a(&self, cx: &Cx, it: Plain) -> Result<()>;
    //~ `Plain` `Plain: serde::Serialize` is not satisfied
}

#[service]
pub trait Gives {
    async fn a(&self, cx: &Cx) -> Result<Vec<Plain>>;
    //~ `Vec` `Plain: serde::Serialize` is not satisfied
}

#[service]
pub trait Streams {
    async fn a(&self, cx: &Cx, them: Streaming<Plain>) -> Result<()>;
    //~ `Plain` `Plain: serde::Serialize` is not satisfied
}

#[service]
pub trait Fails {
    async fn a(&self, cx: &Cx) -> Result<(), Plain>;
    //~ `Plain` `Plain: serde::Serialize` is not satisfied
}

#[service]
pub trait OfAnotherCrate {
    async fn a(&self, cx: &Cx) -> std::io::Result<u64>;
    //~ `std` mismatched types
}

fn main() {}
