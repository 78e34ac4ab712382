//! Generates the server of a trait.

use proc_macro2::TokenStream as Tokens;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Ident, ItemTrait, Path};

use crate::method::{Method, Right, joined, local, placed};

pub fn write(item: &ItemTrait, server: &Ident, methods: &[Method], codec: &Path) -> Tokens {
    let (name, visibility) = (&item.ident, &item.vis);
    let doc = format!("A server of [`{name}`], to be passed to `Server::add`.");
    let table = methods.iter().map(|method| {
        let (cfgs, described) = (&method.cfgs, method.described(codec));
        quote!(#(#cfgs)* #described)
    });
    let indices = methods.iter().map(|method| {
        let (cfgs, name) = (&method.cfgs, &method.name);
        quote!(#(#cfgs)* #name)
    });
    let codec_of = codec_of(methods, codec);
    let arms = methods.iter().map(|method| arm(name, method, codec));
    let checks = methods.iter().map(|method| {
        let (arguments, result) = (method.arguments_check(codec), result_check(method));
        quote!(#arguments #result)
    });
    let (index, call) = (local("index"), local("call"));
    quote! {
        #(#checks)*

        #[doc = #doc]
        #visibility struct #server<__Service>(::std::sync::Arc<__Service>);

        #[allow(dead_code, reason = "a program serves as it likes")]
        impl<__Service: #name> #server<__Service> {
            /// A server of this implementation.
            #visibility fn new(service: __Service) -> Self {
                Self::from_arc(::std::sync::Arc::new(service))
            }

            /// A server of a shared implementation.
            #visibility fn from_arc(service: ::std::sync::Arc<__Service>) -> Self {
                #server(service)
            }

            /// Listens and serves only this service, until the future is dropped. Use `Server` for
            /// settings, several services or a graceful end.
            ///
            /// # Errors
            /// As for `Server::listen`.
            ///
            /// # Cancel safety
            /// Dropping the future closes all connections at once.
            #visibility async fn listen(
                self,
                address: impl ::tokio_fabric_rpc::ToSocketAddrs,
            ) -> ::tokio_fabric_rpc::Result<()> {
                ::tokio_fabric_rpc::Server::new().add(self).listen(address).await
            }
        }

        impl<__Service> ::core::clone::Clone for #server<__Service> {
            fn clone(&self) -> Self {
                #server(::std::sync::Arc::clone(&self.0))
            }
        }

        impl<__Service> ::core::fmt::Debug for #server<__Service> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(::core::stringify!(#server))
            }
        }

        impl<__Service: #name> ::tokio_fabric_rpc::Service for #server<__Service> {
            fn methods(&self) -> &'static [::tokio_fabric_rpc::Method] {
                static METHODS: ::std::sync::LazyLock<
                    ::std::boxed::Box<[::tokio_fabric_rpc::Method]>,
                > =
                    ::std::sync::LazyLock::new(|| ::std::boxed::Box::new([#(#table),*]));
                &METHODS
            }

            fn codec(&self) -> ::core::option::Option<::tokio_fabric_rpc::generated::CodecName> {
                #codec_of
            }

            #[allow(deprecated, reason = "what is called is the caller's choice")]
            fn call(
                &self,
                #index: usize,
                #call: &mut ::tokio_fabric_rpc::generated::Incoming<'_>,
            ) -> ::tokio_fabric_rpc::Result<::tokio_fabric_rpc::generated::Handling> {
                /// The index of each method in the table.
                #[allow(dead_code, non_camel_case_types, reason = "named like the methods")]
                enum __Index {
                    #(#indices),*
                }
                match #index {
                    #(#arms)*
                    _ => ::core::unreachable!("the table has no such method"),
                }
            }
        }
    }
}

/// Refuses the `Result` of another crate, at the type in the trait.
fn result_check(method: &Method) -> Tokens {
    let (cfgs, result, output) = (&method.cfgs, &method.result, &method.output);
    let error = match &method.error {
        Some(error) => quote!(#error),
        None => quote!(::tokio_fabric_rpc::Status),
    };
    quote_spanned! {result.span()=>
        #(#cfgs)*
        #[allow(clippy::type_complexity, reason = "it is what the method gives")]
        const _: fn(#result) -> ::core::result::Result<#output, #error> = |result| result;
    }
}

/// Generates the service's codec; none if no method that is configured in uses it.
fn codec_of(methods: &[Method], codec: &Path) -> Tokens {
    let some = quote! {
        ::core::option::Option::Some(::tokio_fabric_rpc::generated::codec_name::<#codec>())
    };
    let mut encoding = methods.iter().filter(|it| it.uses_codec());
    if encoding.clone().any(|it| it.cfgs.is_empty()) {
        return some;
    }
    let checks = encoding.by_ref().map(|method| {
        let cfgs = &method.cfgs;
        quote!(#(#cfgs)* { codec = #some; })
    });
    quote! {
        #[allow(unused_mut, unused_assignments, reason = "methods may be configured out")]
        let mut codec = ::core::option::Option::None;
        #(#checks)*
        codec
    }
}

fn arm(service: &Ident, method: &Method, codec: &Path) -> Tokens {
    let (name, cfgs) = (&method.name, &method.cfgs);
    let [index, call, handler, cx, value, error] =
        ["index", "call", "handler", "cx", "value", "error"].map(local);
    let names: Vec<_> = method.arguments.iter().map(|(it, _)| quote!(#it)).collect();
    let order = &method.order;
    let lent_count = method.lent.len();
    let lent = method
        .lent
        .iter()
        .enumerate()
        .map(|(at, (name, right))| match right {
            Right::Pull => quote!(let #name = #call.pull(#at)?;),
            Right::Push => quote!(let #name = #call.push(#at)?;),
        });
    let pattern = joined(&names);
    let types: Vec<_> = method.arguments.iter().map(|(_, it)| quote!(#it)).collect();
    let types = joined(&types);
    let arguments = match (method.takes_bytes(), names.is_empty()) {
        (true, _) => quote!(#call.bytes()),
        (_, true) => quote!(#call.no_arguments()?),
        _ => {
            let at = method.arguments_span();
            let (codec, types) = (placed(codec, at), placed(types, at));
            quote!(#call.arguments::<#codec, #types>()?)
        }
    };
    let at = method.result.span();
    let of_result = placed(codec, method.output.span());
    let reply = match (method.gives_bytes(), &method.received) {
        (_, Some(_)) => quote!(stream::<#of_result, _>(#value)),
        (true, None) => quote!(bytes(#value)),
        (false, None) => quote!(value::<#of_result, _>(&#value)),
    };
    let failure = match &method.error {
        Some(of) => {
            let of_error = placed(codec, of.span());
            quote!(error::<#of_error, _>(&#error))
        }
        None => {
            let mut error = error.clone();
            error.set_span(error.span().located_at(at));
            quote_spanned!(at=> status(&#error))
        }
    };
    let (takes, gives) = (method.sent.is_some(), method.received.is_some());
    let sent = method.sent.iter();
    let sent = sent.map(|(name, of)| {
        let codec = placed(codec, of.span());
        quote!(let #name = #call.items::<#codec, #of>();)
    });
    quote! {
        #(#cfgs)*
        #index if #index == __Index::#name as usize => {
            #call.lends(#lent_count)?;
            #call.streams(#takes, #gives)?;
            #(#sent)*
            #(#lent)*
            let #pattern = #arguments;
            let (#handler, #cx) = (::std::sync::Arc::clone(&self.0), #call.cx());
            ::core::result::Result::Ok(#call.handling(async move {
                match <__Service as #service>::#name(&#handler, &#cx, #(#order),*).await {
                    ::core::result::Result::Ok(#value) => {
                        ::tokio_fabric_rpc::Reply::#reply
                    }
                    ::core::result::Result::Err(#error) => {
                        ::tokio_fabric_rpc::Reply::#failure
                    }
                }
            }))
        }
    }
}
