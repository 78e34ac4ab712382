//! The attribute macro `service` of tokio-fabric-rpc. From a trait it generates the trait with
//! `Send` futures, a server, a client, and a mock for tests.

mod client;
mod method;
mod mock;
mod server;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::parse::Parser;
use syn::{Error, ItemTrait, LitStr, Path, Result, TraitItem, parse_macro_input};

use method::Method;

/// Generates a server, a client and a mock from a trait.
///
/// Each method is an `async fn name(&self, cx: &Cx, arguments..) -> Result<T>`, or `-> Result<T,
/// E>` with an error type of its own. The type must be called `Result`: the macro does not see
/// through an alias of another name. Arguments, `T` and `E` are types that the codec supports: by
/// default those that implement serde's `Serialize` and `DeserializeOwned`.
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
/// # Arguments and results with a special meaning
///
/// - `Bytes`, as the only argument or as `Result<Bytes>`, is sent as it is, without a codec.
/// - `Pull` is memory that the client lends with `Lend::read(buffer)` and that the handler reads;
///   `Push` is memory that the client lends with `Lend::write(buffer)` and that the handler writes
///   to. A method can have up to four of them. Their methods fail with a `Status`, so a handler
///   with its own error type `E` that applies `?` to them needs `E: From<Status>`.
/// - `Streaming<T>` is sent item by item, as an argument or as `Result<Streaming<T>>`. A method
///   that takes a `Pull` or `Push` cannot return a stream, since the memory is returned when the
///   call's future is ready, which is when a stream begins.
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
/// - `#[rpc(version = "2")]`: part of the method's name on the wire, so that versions of a method
///   can coexist.
#[proc_macro_attribute]
pub fn service(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as ItemTrait);
    match write(attribute, item) {
        Ok(tokens) => tokens.into(),
        Err(error) => error.into_compile_error().into(),
    }
}

fn write(attribute: TokenStream, mut item: ItemTrait) -> Result<Tokens> {
    let mut wire_name = item.ident.to_string();
    let mut codec: Path = syn::parse_quote!(::tokio_fabric_rpc::Postcard);
    let settings = syn::meta::parser(|meta| {
        if meta.path.is_ident("name") {
            wire_name = meta.value()?.parse::<LitStr>()?.value();
        } else if meta.path.is_ident("codec") {
            codec = meta.value()?.parse()?;
        } else {
            return Err(meta.error("`name = \"..\"` or `codec = Path`"));
        }
        Ok(())
    });
    settings.parse(attribute)?;
    if !item.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &item.generics,
            "a service has no parameters",
        ));
    }
    let mut methods = Vec::new();
    for member in &mut item.items {
        let TraitItem::Fn(function) = member else {
            return Err(Error::new_spanned(member, "a service has methods alone"));
        };
        methods.push(Method::parse(&wire_name, function)?);
    }
    if methods.is_empty() {
        return Err(Error::new_spanned(&item.ident, "a service without methods"));
    }
    item.supertraits
        .push(syn::parse_quote!(::core::marker::Send));
    item.supertraits
        .push(syn::parse_quote!(::core::marker::Sync));
    item.supertraits.push(syn::parse_quote!('static));
    let name = |suffix: &str| format_ident!("{}{suffix}", item.ident);
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
