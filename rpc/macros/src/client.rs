//! The client that a trait becomes.

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{Ident, ItemTrait};

use crate::method::Method;

pub fn write(item: &ItemTrait, client: &Ident, methods: &[Method]) -> Tokens {
    let (name, visibility) = (&item.ident, &item.vis);
    let doc = format!("Calls a [`{name}`]. Clones share the connection.");
    let stubs = methods.iter().map(|method| stub(visibility, method));
    quote! {
        #[doc = #doc]
        #[derive(Clone, Debug)]
        #visibility struct #client {
            channel: ::tokio_fabric_rpc::Channel,
        }

        #[allow(dead_code, missing_docs, reason = "a program calls what it needs, and documents its trait")]
        impl #client {
            /// Connects to a server of it.
            ///
            /// # Errors
            /// As of `Channel::connect`.
            #visibility async fn connect(
                address: impl ::tokio_fabric_rpc::ToSocketAddrs,
            ) -> ::tokio_fabric_rpc::Result<Self> {
                ::core::result::Result::Ok(Self::over(
                    ::tokio_fabric_rpc::Channel::connect(address).await?,
                ))
            }

            /// Calls over a channel that others may use too.
            #visibility fn over(channel: ::tokio_fabric_rpc::Channel) -> Self {
                Self { channel }
            }

            /// The channel it calls over.
            #visibility fn channel(&self) -> &::tokio_fabric_rpc::Channel {
                &self.channel
            }

            #(#stubs)*
        }
    }
}

fn stub(visibility: &syn::Visibility, method: &Method) -> Tokens {
    let (name, docs, wire_name) = (&method.name, &method.docs, &method.wire_name);
    let output = &method.output;
    let parameters = method.arguments.iter().map(|(name, of)| quote!(#name: #of));
    let names: Vec<_> = method.arguments.iter().map(|(name, _)| name).collect();
    let arguments = match method.takes_bytes() {
        true => quote!(of_bytes(#(&#names)*)),
        false => {
            let tuple = Method::tuple(names.iter().map(|it| quote!(#it)));
            quote!(of(&#tuple))
        }
    };
    let error = match &method.error {
        Some(error) => quote!(::tokio_fabric_rpc::CallError<#error>),
        None => quote!(::tokio_fabric_rpc::Status),
    };
    let decode = match (&method.error, method.gives_bytes()) {
        (None, false) => quote!(result),
        (None, true) => quote!(bytes_result),
        (Some(_), false) => quote!(typed_result),
        (Some(_), true) => quote!(typed_bytes),
    };
    quote! {
        #(#docs)*
        #visibility fn #name(
            &self,
            #(#parameters),*
        ) -> ::tokio_fabric_rpc::Call<#output, #error> {
            const ID: u32 = ::tokio_fabric_rpc::generated::method_id(#wire_name);
            let arguments = ::tokio_fabric_rpc::generated::Arguments::#arguments;
            let decode = ::tokio_fabric_rpc::generated::#decode;
            self.channel.call(#wire_name, ID, arguments, decode)
        }
    }
}
