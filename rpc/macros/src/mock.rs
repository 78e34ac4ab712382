//! Generates the mock of a trait, with the feature `test-util`.

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::ext::IdentExt;
use syn::{Ident, ItemTrait};

use crate::method::{Method, local};

pub fn write(item: &ItemTrait, mock: &Ident, methods: &[Method]) -> Tokens {
    let (name, visibility) = (&item.ident, &item.vis);
    let doc = format!(
        "A mock of [`{name}`] for tests. Each method has scripted answers, then a closure. A call \
         without an answer panics."
    );
    let fields = methods.iter().map(|method| {
        let (name, types, result) = (&method.name, types_of(method), &method.result);
        let cfgs = &method.cfgs;
        quote!(#(#cfgs)* #name: ::tokio_fabric_rpc::testing::MockMethod<(#(#types,)*), #result>)
    });
    let values = methods.iter().map(|method| {
        let (name, wire_name, cfgs) = (&method.name, &method.wire_name, &method.cfgs);
        quote!(#(#cfgs)* #name: ::tokio_fabric_rpc::testing::MockMethod::new(#wire_name))
    });
    let setters = methods.iter().map(|method| setters(visibility, method));
    let handlers = methods.iter().map(|method| {
        let (method_name, result) = (&method.name, &method.result);
        let (names, types, cfgs) = (names_of(method), types_of(method), &method.cfgs);
        quote! {
            #(#cfgs)*
            async fn #method_name(
                &self,
                _: &::tokio_fabric_rpc::Cx,
                #(#names: #types),*
            ) -> #result {
                self.#method_name.answer((#(#names,)*)).await
            }
        }
    });
    quote! {
        ::tokio_fabric_rpc::if_test_util! {
            #[doc = #doc]
            #[derive(::core::fmt::Debug)]
            #[allow(dead_code, reason = "a test uses it or not")]
            #visibility struct #mock {
                #(#fields),*
            }

            #[allow(dead_code, reason = "a test uses what it needs")]
            impl #mock {
                /// A mock without answers.
                #visibility fn new() -> Self {
                    Self { #(#values),* }
                }

                #(#setters)*
            }

            impl ::core::default::Default for #mock {
                fn default() -> Self {
                    Self::new()
                }
            }

            impl #name for #mock {
                #(#handlers)*
            }
        }
    }
}

fn names_of(method: &Method) -> Vec<&Ident> {
    method.inputs.iter().map(|(name, _)| name).collect()
}

fn types_of(method: &Method) -> Vec<&syn::Type> {
    method.inputs.iter().map(|(_, of)| of).collect()
}

fn setters(visibility: &syn::Visibility, method: &Method) -> Tokens {
    let (name, result) = (&method.name, &method.result);
    let (names, types) = (names_of(method), types_of(method));
    let plain = name.unraw();
    let on = format_ident!("on_{plain}");
    let script = format_ident!("script_{plain}");
    let calls = format_ident!("calls_of_{plain}");
    let docs = [
        format!("Answers the calls of `{name}` that its script does not answer."),
        format!("Appends answers to the script of `{name}`. Each is given once, in this order."),
        format!("How often `{name}` was called."),
    ];
    let [on_doc, script_doc, calls_doc] = &docs;
    let (cfgs, answer) = (&method.cfgs, local("answer"));
    quote! {
        #(#cfgs)*
        #[doc = #on_doc]
        #visibility fn #on<__F>(
            &self,
            #answer: impl Fn(#(#types),*) -> __F
                + ::core::marker::Send
                + ::core::marker::Sync
                + 'static,
        ) -> &Self
        where
            __F: ::core::future::Future<Output = #result> + ::core::marker::Send + 'static,
        {
            self.#name.on(move |(#(#names,)*)| #answer(#(#names),*));
            self
        }

        #(#cfgs)*
        #[doc = #script_doc]
        #visibility fn #script(
            &self,
            answers: impl ::core::iter::IntoIterator<Item = #result>,
        ) -> &Self {
            self.#name.script(answers);
            self
        }

        #(#cfgs)*
        #[doc = #calls_doc]
        #visibility fn #calls(&self) -> usize {
            self.#name.calls()
        }
    }
}
