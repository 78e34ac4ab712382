//! The `service` attribute of tokio-fabric-rpc. A trait becomes the trait with futures that are
//! `Send`, a server of it, and a client.

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

/// Makes a service of a trait; see the crate `tokio-fabric-rpc`.
///
/// Each method is `async fn name(&self, cx: &Cx, arguments..) -> Result<T>` or `-> Result<T, E>`,
/// where arguments, `T` and `E` are what the codec takes: `serde`'s `Serialize` and
/// `DeserializeOwned` by default. A method whose only argument is `Bytes` takes the request as it
/// is, and one that gives `Result<Bytes>` answers so. For the trait `Name` it writes `NameServer`
/// and `NameClient`, and with the feature `test-util` a `NameMock`, which answers as a test says:
/// for a method `m`, `on_m(closure)`, `script_m(answers)` and `calls_of_m()`.
///
/// An argument that is a `Streaming<T>` is sent item by item, and so is the result of a method that
/// gives `Result<Streaming<T>>`.
///
/// `#[service(name = "..")]` is what the service is called on the wire, by default the trait's
/// name; `#[service(codec = Path)]` is the codec of its arguments and results, by default postcard.
///
/// `#[rpc(..)]` at a method: `to_end` (a cancelled call goes on to its end), `idempotent` (it may
/// be made again though it may have run), `version = "2"` (another method on the wire).
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
