//! What the macro refuses. `//~` is for the line above: the place's text, and what is said.
use tokio_fabric_rpc::{Cx, Result, Streaming, service};

#[service]
trait Borrows {
    async fn a(&self, cx: &Cx, name: &str) -> Result<()>;
    //~ `&` what a call sends is owned: `String` or `Bytes`, no reference
}

#[service]
trait BorrowsWithin {
    async fn a(&self, cx: &Cx, count: u64, names: Vec<&'static str>) -> Result<()>;
    //~ `&` what a call sends is owned: `String` or `Bytes`, no reference
}

#[service]
trait HasLifetime {
    async fn a(&self, cx: &Cx, name: std::borrow::Cow<'_, str>) -> Result<()>;
    //~ `'_` what a call sends is owned: it has no lifetime but `'static`
}

#[service]
trait GivesReference {
    async fn a(&self, cx: &Cx) -> Result<Option<&str>>;
    //~ `&` what a call sends is owned: `String` or `Bytes`, no reference
}

#[service]
trait NamesSelf {
    async fn a(&self, cx: &Cx, other: Vec<Self>) -> Result<()>;
    //~ `Self` `Self` is another type in the client: write the type's name
}

#[service]
trait GivesNoResult {
    async fn a(&self, cx: &Cx) -> u64;
    //~ `u64` a method gives `Result<T>` or `Result<T, E>`, and no alias of another name
}

#[service]
trait SendsTwoStreams {
    async fn a(&self, cx: &Cx, one: Streaming<u8>, other: Streaming<u8>) -> Result<()>;
    //~ `other` a call sends one stream
}

#[service]
trait HasNoContext {
    async fn a(&self, name: String) -> Result<()>;
    //~ `a` a method begins with `&self` and `cx: &Cx`
}

#[service]
trait IsGeneric {
    async fn a<T>(&self, cx: &Cx, it: T) -> Result<()>;
    //~ `a` a method has no parameters and no `where`: both sides know its types
}

fn main() {}
