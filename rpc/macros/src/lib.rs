//! The attribute macro `service` of tokio-fabric-rpc. From a trait it generates the trait with
//! `Send` futures, a server, a client, and a mock for tests.

mod client;
mod method;
mod mock;
mod server;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{Error, ItemTrait, LitStr, Path, Result, TraitItem, parse_macro_input};

use method::Method;

/// Generates a server, a client and a mock from a trait.
///
/// Each method is an `async fn name(&self, cx: &Cx, arguments..) -> Result<T>`, or `-> Result<T,
/// E>` with its own error type. The type must be called `Result`: the macro does not resolve an
/// alias of another name. Arguments, `T` and `E` are types that the codec supports: by default
/// types that implement serde's `Serialize` and `DeserializeOwned`. A method may have a body, which
/// is its default implementation, and `#[cfg]`, which the macro repeats on all code that it
/// generates for the method.
///
/// For a trait `Name` the macro generates
///
/// - the trait itself, whose methods return futures that are `Send`;
/// - `NameServer`, which `Server::add` takes, made by `NameServer::new(implementation)`;
/// - `NameClient`, made by `NameClient::connect(address)` or `NameClient::over(channel)`, whose
///   methods return calls to be awaited;
/// - with the feature `test-util` `NameMock`, an implementation for tests: for each method `m` it
///   has `on_m(closure)`, `script_m(answers)` and `calls_of_m()`.
///
/// Methods and arguments may have any name. If a method has the name of a client function
/// (`connect`, `over`, `channel`, `layered`), the client has the method instead of the function;
/// use `NameClient::from(channel)`, `as_ref()` (the client's channel), and
/// `NameClient::from((channel, LayeredPath::new(service)))` in place of the function.
///
/// # Arguments and results with a special meaning
///
/// - `Bytes`, as the only argument or as `Result<Bytes>`, is sent unchanged, without a codec. An
///   argument is copied once at each end, a result once in all; together with other arguments, or
///   within another type, the codec makes one more copy. Lent memory is copied once, at the other
///   end.
/// - `Pull` is memory that the client lends with `Lend::read(buffer)` and that the handler reads;
///   `Push` is memory that the client lends with `Lend::write(buffer)` and that the handler writes
///   to. A method can have up to four of them. Their methods fail with a `Status`, so a handler
///   with its own error type `E` that applies `?` to them needs `E: From<Status>`.
/// - `Streaming<T>` is sent item by item, as an argument or as `Result<Streaming<T>>`. A method
///   that takes a `Pull` or `Push` cannot return a stream, since the memory is returned when the
///   call's future is ready, and a stream only begins then.
///
/// If a method has an error type `E`, its calls fail with a `CallError<E>`, which implements
/// `std::error::Error` if `E` implements `Debug` and `Display`.
///
/// # Settings
///
/// - `#[service(name = "..")]`: the name of the service on the wire. Default: the name of the
///   trait.
/// - `#[service(codec = Path)]`: the codec of arguments and results. Default: `Postcard`.
/// - `#[rpc(to_end)]` on a method: the handler of a cancelled call continues to its end.
/// - `#[rpc(idempotent)]`: a call may be retried even if it may have run.
/// - `#[rpc(spawn)]`: the handler runs in a task of its own from the beginning, for handlers that
///   compute for long before they first wait.
/// - `#[rpc(signature = "..")]`, and `#[service(signature = "..")]` for all methods without their
///   own: see below.
/// - `#[rpc(version = "2")]`: part of the method's name on the wire, so that versions of a method
///   can coexist.
///
/// # Signatures
///
/// A method is called only if both sides have the same signature for it. Otherwise the call fails
/// with `Unimplemented`, as not started, and the error has the server's signature, for instance
/// `(u64,str)->[u8]`. The signature is part of the method's number, so it costs a call nothing.
///
/// The signature consists of the arguments, the kinds of lent memory, the items of streams, the
/// result and the method's own error, as the codec encodes them (`CodecOf::shape`). With `Postcard`
/// these are the values that serde reads and writes: the names of fields count, the names of types
/// and aliases do not (`Vec<u8>` is `[u8]`, a struct with one unnamed field is that field), and an
/// enum counts only its first variant, so that variants can be appended. The signature does not
/// show which of these values a type accepts, what they mean, or, in a type that contains itself,
/// anything after the second level. With `Prost`, `Rkyv` and codecs without a `shape` of their own
/// it is the type as the trait spells it, without paths and without the type's contents.
///
/// `#[rpc(signature = "..")]` sets the text instead, for both sides. Use it for two types that you
/// know to be interchangeable, or with the old text (`Channel::describe` shows it) when a renamed
/// field keeps its meaning. With an empty text the number depends only on the name.
#[proc_macro_attribute]
pub fn service(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as ItemTrait);
    match write(attribute.into(), item) {
        Ok(tokens) => tokens.into(),
        Err(error) => error.into_compile_error().into(),
    }
}

fn write(attribute: Tokens, mut item: ItemTrait) -> Result<Tokens> {
    let mut wire_name = item.ident.unraw().to_string();
    let mut codec: Path = syn::parse_quote!(::tokio_fabric_rpc::Postcard);
    let mut signature = None;
    let settings = syn::meta::parser(|meta| {
        if meta.path.is_ident("name") {
            wire_name = meta.value()?.parse::<LitStr>()?.value();
        } else if meta.path.is_ident("codec") {
            codec = meta.value()?.parse()?;
        } else if meta.path.is_ident("signature") {
            signature = Some(meta.value()?.parse::<LitStr>()?.value());
        } else {
            return Err(meta.error("`name = \"..\"`, `codec = Path` or `signature = \"..\"`"));
        }
        Ok(())
    });
    settings.parse2(attribute)?;
    if !item.generics.params.is_empty() || item.generics.where_clause.is_some() {
        let what = "a service has no parameters and no `where`: it has one name on the wire";
        return Err(Error::new_spanned(&item.ident, what));
    }
    if item.unsafety.is_some() || item.modifiers.auto_token.is_some() {
        let what = "a service is neither an `unsafe` nor an `auto` trait";
        return Err(Error::new_spanned(&item.ident, what));
    }
    if let Some(cfg) = item.attrs.iter().find(|it| it.path().is_ident("cfg")) {
        let what = "`#[cfg]` goes above `#[service]`, so that it is for all that is generated";
        return Err(Error::new_spanned(cfg, what));
    }
    let mut methods = Vec::new();
    for member in &mut item.items {
        let TraitItem::Fn(function) = member else {
            let what = "a service has methods alone: constants and types go beside it";
            return Err(Error::new_spanned(member, what));
        };
        let mut method = Method::parse(&wire_name, function)?;
        method.signature = method.signature.or_else(|| signature.clone());
        methods.push(method);
    }
    if methods.is_empty() {
        return Err(Error::new_spanned(&item.ident, "a service without methods"));
    }
    item.supertraits
        .push(syn::parse_quote!(::core::marker::Send));
    item.supertraits
        .push(syn::parse_quote!(::core::marker::Sync));
    item.supertraits.push(syn::parse_quote!('static));
    let plain = item.ident.unraw();
    let name = |suffix: &str| format_ident!("{plain}{suffix}");
    let server = server::write(&item, &name("Server"), &methods, &codec);
    let client = client::write(&item, &name("Client"), &methods, &codec);
    let mock = mock::write(&item, &name("Mock"), &methods);
    Ok(quote! {
        #item
        #server
        #client
        #mock
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error for a trait that is not a service.
    fn refusal(trait_: &str) -> String {
        let item = syn::parse_str(trait_).expect("it is a trait");
        let written = write(Tokens::new(), item);
        written.expect_err("it is refused").to_string()
    }

    fn of_method(method: &str) -> String {
        refusal(&format!("trait Files {{ {method} }}"))
    }

    #[test]
    fn what_is_no_service_is_refused_by_the_macro_which_says_why() {
        for (trait_, what) in [
            ("trait Files {}", "without methods"),
            (
                "trait Files<T> { async fn a(&self, cx: &Cx) -> Result<()>; }",
                "no parameters",
            ),
            ("trait Files where Self: Sized {}", "no parameters"),
            ("unsafe trait Files {}", "`unsafe`"),
            ("#[cfg(unix)] trait Files {}", "above `#[service]`"),
            ("trait Files { const MAX: u32; }", "methods alone"),
            ("trait Files { type Handle; }", "methods alone"),
        ] {
            let said = refusal(trait_);
            assert!(said.contains(what), "{trait_}: {said}");
        }
        for (method, what) in [
            ("fn a(&self, cx: &Cx) -> Result<()>;", "is async"),
            (
                "async fn a<T>(&self, cx: &Cx) -> Result<()>;",
                "no parameters",
            ),
            (
                "async fn a(&self, cx: &Cx) -> Result<()> where u8: Copy;",
                "no parameters",
            ),
            (
                "async unsafe fn a(&self, cx: &Cx) -> Result<()>;",
                "neither `unsafe`",
            ),
            ("async fn a(&self) -> Result<()>;", "begins with"),
            ("async fn a(self, cx: &Cx) -> Result<()>;", "begins with"),
            (
                "async fn a(&mut self, cx: &Cx) -> Result<()>;",
                "begins with",
            ),
            (
                "async fn a(&self, cx: &mut Cx) -> Result<()>;",
                "begins with",
            ),
            (
                "async fn a(&self, cx: &Cx, (b, c): (u8, u8)) -> Result<()>;",
                "has a name",
            ),
            (
                "async fn a(&self, cx: &Cx, #[cfg(unix)] b: u8) -> Result<()>;",
                "no attributes",
            ),
            (
                "async fn a(&self, cx: &Cx, b: &str) -> Result<()>;",
                "owned",
            ),
            (
                "async fn a(&self, cx: &Cx, b: impl Into<u8>) -> Result<()>;",
                "no `impl`",
            ),
            (
                "async fn a(&self, cx: &Cx, b: Vec<Self>) -> Result<()>;",
                "`Self`",
            ),
            ("async fn a(&self, cx: &Cx) -> Result<&str>;", "owned"),
            ("async fn a(&self, cx: &Cx) -> Result<(), Self>;", "`Self`"),
            ("async fn a(&self, cx: &Cx) -> u64;", "gives `Result"),
            (
                "#[rpc(idempotnt)] async fn a(&self, cx: &Cx) -> Result<()>;",
                "`idempotent`",
            ),
        ] {
            let said = of_method(method);
            assert!(said.contains(what), "{method}: {said}");
        }
    }
}
