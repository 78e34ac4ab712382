//! Generates the client of a trait.

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Ident, ItemTrait, Path, Type};

use crate::method::{Method, Right, joined, placed};

pub fn write(item: &ItemTrait, client: &Ident, methods: &[Method], codec: &Path) -> Tokens {
    let (name, visibility) = (&item.ident, &item.vis);
    let doc =
        format!("A client of [`{name}`], whose methods return calls. Clones share the channel.");
    let stubs = methods.iter().map(|method| stub(visibility, method, codec));
    // A method with one of these names replaces the function; `From` and `AsRef` do the same.
    let own = |name: &str, function: Tokens| match methods.iter().any(|it| it.name == name) {
        true => Tokens::new(),
        false => function,
    };
    let connect = own(
        "connect",
        quote! {
            /// Connects to a server of this service, with the default settings.
            ///
            /// # Errors
            /// As for `Channel::connect`.
            #visibility async fn connect(
                target: impl ::core::convert::Into<::tokio_fabric_rpc::Target>,
            ) -> ::tokio_fabric_rpc::Result<Self> {
                let channel = ::tokio_fabric_rpc::Channel::connect(target).await?;
                ::core::result::Result::Ok(<Self as ::core::convert::From<_>>::from(channel))
            }
        },
    );
    let over = own(
        "over",
        quote! {
            /// A client that uses this channel, which other clients may use too.
            #visibility fn over(channel: ::tokio_fabric_rpc::Channel) -> Self {
                <Self as ::core::convert::From<_>>::from(channel)
            }
        },
    );
    let layered = own(
        "layered",
        quote! {
            /// A client whose calls pass through this service: layers of `tower` around
            /// `Channel::service`, or a load balancer over several channels.
            #visibility fn layered<__Layered: ::core::clone::Clone>(
                self,
                service: __Layered,
            ) -> #client<::tokio_fabric_rpc::LayeredPath<__Layered>> {
                let path = ::tokio_fabric_rpc::LayeredPath::new(service);
                <#client<_> as ::core::convert::From<_>>::from((self.channel, path))
            }
        },
    );
    let channel = own(
        "channel",
        quote! {
            /// The client's channel, which sends its calls unless a service chooses another
            /// channel.
            #visibility fn channel(&self) -> &::tokio_fabric_rpc::Channel {
                &self.channel
            }
        },
    );
    quote! {
        #[doc = #doc]
        #[derive(::core::clone::Clone, ::core::fmt::Debug)]
        #visibility struct #client<__Path = ::tokio_fabric_rpc::DirectPath> {
            channel: ::tokio_fabric_rpc::Channel,
            path: __Path,
        }

        /// A client that uses this channel, which other clients may use too.
        impl ::core::convert::From<::tokio_fabric_rpc::Channel> for #client {
            fn from(channel: ::tokio_fabric_rpc::Channel) -> Self {
                let path = ::tokio_fabric_rpc::DirectPath;
                Self { channel, path }
            }
        }

        /// A client that sends its calls over this channel by this path.
        impl<__Path: ::tokio_fabric_rpc::CallPath>
            ::core::convert::From<(::tokio_fabric_rpc::Channel, __Path)> for #client<__Path>
        {
            fn from((channel, path): (::tokio_fabric_rpc::Channel, __Path)) -> Self {
                Self { channel, path }
            }
        }

        /// The client's channel, which sends its calls unless a service chooses another channel.
        impl<__Path> ::core::convert::AsRef<::tokio_fabric_rpc::Channel> for #client<__Path> {
            fn as_ref(&self) -> &::tokio_fabric_rpc::Channel {
                &self.channel
            }
        }

        #[allow(dead_code, reason = "a program calls what it needs")]
        impl #client {
            #connect
            #over
        }

        #[allow(dead_code, missing_docs, reason = "a program calls what it needs, and documents its trait")]
        impl<__Path: ::tokio_fabric_rpc::CallPath> #client<__Path> {
            #layered
            #channel
            #(#stubs)*
        }
    }
}

fn stub(visibility: &syn::Visibility, method: &Method, codec: &Path) -> Tokens {
    let (name, attributes, described) = (&method.name, &method.attributes, method.described(codec));
    let output = &method.output;
    let lent = Lent::of(method);
    let parameters = method.order.iter().map(|name| {
        let mut plain = method.arguments.iter().filter(|(it, _)| it == name);
        let of = plain.next().map(|(_, of)| quote!(#of));
        let mut sent = method.sent.iter().filter(|(it, _)| it == name);
        let sent = sent
            .next()
            .map(|(_, of)| quote!(::tokio_fabric_rpc::Streaming<#of>));
        let of = of.or(sent).unwrap_or_else(|| lent.type_of(name));
        quote!(#name: #of)
    });
    let (bounds, lends) = (&lent.bounds, lent.call());
    let names: Vec<_> = method.arguments.iter().map(|(it, _)| quote!(#it)).collect();
    let arguments = match method.has_bare_request() {
        true => {
            let name_of_codec = match method.uses_codec() {
                true => quote!(Some(::tokio_fabric_rpc::generated::codec_name::<#codec>())),
                false => quote!(None),
            };
            let bytes = names.first().cloned().unwrap_or_else(|| quote!([]));
            quote!(of_bytes(&#bytes, ::core::option::Option::#name_of_codec))
        }
        false => {
            let at = method.arguments_span();
            let (packed, codec) = (joined(&names), placed(codec, at));
            quote_spanned!(at=> of::<#codec, _>(&#packed))
        }
    };
    let error = match &method.error {
        Some(error) => quote!(::tokio_fabric_rpc::CallError<#error>),
        None => quote!(::tokio_fabric_rpc::Status),
    };
    // So that the compiler reports an unsupported type at that type.
    let of_result = placed(codec, output.span());
    let of_error = placed(codec, method.error.as_ref().unwrap_or(output).span());
    let decode = match (&method.error, method.gives_bytes(), &method.received) {
        (None, _, Some(_)) => quote!(empty_stream),
        (Some(_), _, Some(_)) => quote!(typed_empty_stream::<#of_error, _, _>),
        (None, false, None) => quote!(result::<#of_result, _>),
        (None, true, None) => quote!(bytes_result),
        (Some(_), false, None) => quote!(typed_result::<#of_error, _, _>),
        (Some(_), true, None) => quote!(typed_bytes::<#of_error, _>),
    };
    let sending = method.sent.iter().map(|(name, of)| {
        let codec = placed(codec, of.span());
        quote!(.sending::<#codec, _>(#name))
    });
    let receives = method.received.iter();
    let receiving = receives
        .map(|_| quote!(.receiving(::tokio_fabric_rpc::generated::received::<#of_result, _>)));
    let of_call = lent.type_of_call(output, &error);
    quote! {
        #(#attributes)*
        #visibility fn #name<#(#bounds),*>(
            &self,
            #(#parameters),*
        ) -> __Path::CallOf<#of_call> {
            // A single expression, so that its names cannot collide with the arguments' names.
            ::tokio_fabric_rpc::CallPath::make(
                &self.path,
                self.channel
                    .call(
                        {
                            static __METHOD: ::std::sync::LazyLock<::tokio_fabric_rpc::Method> =
                                ::std::sync::LazyLock::new(|| #described);
                            &*__METHOD
                        },
                        ::tokio_fabric_rpc::generated::Arguments::#arguments,
                        ::tokio_fabric_rpc::generated::#decode,
                    )
                    #(#sending)* #(#receiving)* #lends,
            )
        }
    }
}

/// The lent memory of a method, in its client function.
struct Lent<'a> {
    names: Vec<&'a Ident>,
    types: Vec<Tokens>,
    bounds: Vec<Tokens>,
}

impl Lent<'_> {
    fn of(method: &Method) -> Lent<'_> {
        let mut lent = Lent {
            names: Vec::new(),
            types: Vec::new(),
            bounds: Vec::new(),
        };
        for (at, (name, right)) in method.lent.iter().enumerate() {
            let buffer = format_ident!("__B{at}");
            let (of, bound) = match right {
                Right::Pull => (quote!(LentRead), quote!(LendBuf)),
                Right::Push => (quote!(LentWrite), quote!(LendBufMut)),
            };
            lent.names.push(name);
            lent.types.push(quote!(::tokio_fabric_rpc::#of<#buffer>));
            lent.bounds
                .push(quote!(#buffer: ::tokio_fabric_rpc::#bound));
        }
        lent
    }

    fn type_of(&self, name: &Ident) -> Tokens {
        let at = self.names.iter().position(|it| *it == name);
        at.map(|at| self.types[at].clone()).unwrap_or_default()
    }

    fn type_of_call(&self, output: &Type, error: &Tokens) -> Tokens {
        if self.names.is_empty() {
            return quote!(::tokio_fabric_rpc::Call<#output, #error>);
        }
        let loan = joined(&self.types);
        quote!(::tokio_fabric_rpc::LendingCall<#output, #error, #loan>)
    }

    fn call(&self) -> Tokens {
        if self.names.is_empty() {
            return Tokens::new();
        }
        let names: Vec<_> = self.names.iter().map(|it| quote!(#it)).collect();
        let loan = joined(&names);
        quote!(.lending(#loan))
    }
}
