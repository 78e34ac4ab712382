//! Parses one method of a service, and rewrites it in the trait to a function that returns a
//! future.

use proc_macro2::{Delimiter, Group, Span, TokenStream as Tokens, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, LitStr, Pat, Path, PathArguments, Result,
    ReturnType, Signature, TraitItemFn, Type, TypePath, parse_quote,
};

/// The right of a handler to lent memory.
#[derive(Clone, Copy)]
pub enum Right {
    Pull,
    Push,
}

pub struct Method {
    pub name: Ident,
    /// The attributes that the method's function in the client repeats, including `cfg`.
    pub attributes: Vec<Attribute>,
    /// Only the `cfg` attributes, which all code generated for the method repeats.
    pub cfgs: Vec<Attribute>,
    /// `Service/method#version`.
    pub wire_name: String,
    pub arguments: Vec<(Ident, Type)>,
    /// The arguments that are lent memory.
    pub lent: Vec<(Ident, Right)>,
    /// The argument that is a stream, and its items.
    pub sent: Option<(Ident, Type)>,
    /// The items of the stream that the method returns.
    pub received: Option<Type>,
    /// All arguments, in the method's order.
    pub order: Vec<Ident>,
    /// All arguments, with their types in the trait.
    pub inputs: Vec<(Ident, Type)>,
    /// The method's return type.
    pub result: Type,
    /// `T` and, below, `E` of the result; no `E`: the error is a `Status`.
    pub output: Type,
    pub error: Option<Type>,
    pub to_end: bool,
    pub idempotent: bool,
    pub spawn: bool,
    /// The signature that `signature = ".."` sets in place of the types.
    pub signature: Option<String>,
}

impl Method {
    /// Parses the method, and rewrites `function`.
    pub fn parse(service: &str, function: &mut TraitItemFn) -> Result<Method> {
        let attributes = attributes_of(function, &["cfg", "doc", "deprecated", "must_use"]);
        let cfgs = attributes_of(function, &["cfg"]);
        let signature = &mut function.sig;
        check_kind(signature)?;
        let mut wire_name = format!("{service}/{}", signature.ident.unraw());
        let (mut to_end, mut idempotent, mut spawn) = (false, false, false);
        let mut signature_set = None;
        for attribute in function.attrs.iter().filter(|it| it.path().is_ident("rpc")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("to_end") {
                    to_end = true;
                } else if meta.path.is_ident("idempotent") {
                    idempotent = true;
                } else if meta.path.is_ident("spawn") {
                    spawn = true;
                } else if meta.path.is_ident("version") {
                    let version = meta.value()?.parse::<LitStr>()?.value();
                    wire_name = format!("{wire_name}#{version}");
                } else if meta.path.is_ident("signature") {
                    signature_set = Some(meta.value()?.parse::<LitStr>()?.value());
                } else {
                    let what = "`to_end`, `idempotent`, `spawn`, `version = \"..\"` or \
                                `signature = \"..\"`";
                    return Err(meta.error(what));
                }
                Ok(())
            })?;
        }
        function.attrs.retain(|it| !it.path().is_ident("rpc"));
        let mut inputs = signature.inputs.iter();
        let takes_self = matches!(inputs.next(), Some(FnArg::Receiver(it))
            if matches!(it.kind, syn::ReceiverKind::Reference(_, _, None)));
        let takes_cx = matches!(inputs.next(), Some(FnArg::Typed(it))
            if matches!(&*it.ty, Type::Reference(it) if it.mutability.is_none()));
        if !takes_self || !takes_cx {
            let what = "a method begins with `&self` and `cx: &Cx`";
            return Err(Error::new_spanned(&signature.ident, what));
        }
        let (mut arguments, mut lent, mut order) = (Vec::new(), Vec::new(), Vec::new());
        let rest = inputs;
        let mut inputs = Vec::new();
        let mut sent = None;
        for input in rest {
            let FnArg::Typed(typed) = input else { continue };
            let Pat::Ident(name) = &*typed.pat else {
                return Err(Error::new_spanned(&typed.pat, "an argument has a name"));
            };
            if let Some(attribute) = typed.attrs.first() {
                let what = "an argument has no attributes: it is encoded with the others";
                return Err(Error::new_spanned(attribute, what));
            }
            check_type(&typed.ty)?;
            order.push(name.ident.clone());
            inputs.push((name.ident.clone(), (*typed.ty).clone()));
            match (right_of(&typed.ty), items_of(&typed.ty)) {
                (Some(right), _) => lent.push((name.ident.clone(), right)),
                (None, Some(items)) if sent.is_none() => sent = Some((name.ident.clone(), items)),
                (None, Some(_)) => {
                    return Err(Error::new_spanned(name, "a call sends one stream"));
                }
                (None, None) => arguments.push((name.ident.clone(), (*typed.ty).clone())),
            }
            if lent.len() > 4 {
                return Err(Error::new_spanned(name, "a call lends up to four pieces"));
            }
        }
        let (output, error) = result_of(&signature.output, &signature.ident)?;
        check_type(&output)?;
        error.as_ref().map_or(Ok(()), check_type)?;
        let received = items_of(&output);
        if received.is_some() && !lent.is_empty() {
            let what = "lent memory is back when the call's future is ready, which is when its \
                        stream begins: a call that lends gives no stream";
            return Err(Error::new_spanned(&signature.ident, what));
        }
        let method = Method {
            name: signature.ident.clone(),
            attributes,
            cfgs,
            wire_name,
            arguments,
            lent,
            sent,
            received,
            order,
            inputs,
            result: match &signature.output {
                ReturnType::Type(_, result) => (**result).clone(),
                ReturnType::Default => unreachable!("it has a result"),
            },
            output,
            error,
            to_end,
            idempotent,
            spawn,
            signature: signature_set,
        };
        let result = &method.result;
        signature.output = parse_quote! {
            -> impl ::core::future::Future<Output = #result> + ::core::marker::Send
        };
        signature.asyncness = None;
        if let Some(body) = &mut function.default {
            *body = parse_quote!({ async move #body });
        }
        Ok(method)
    }

    /// True if the request consists of the bytes of the only argument.
    pub fn takes_bytes(&self) -> bool {
        matches!(&self.arguments[..], [(_, argument)] if is_bytes(argument))
    }

    /// Returns the span of the only argument, or of the method's name for several, which the codec
    /// encodes as one tuple.
    pub fn arguments_span(&self) -> Span {
        match &self.arguments[..] {
            [(_, argument)] => argument.span(),
            _ => self.name.span(),
        }
    }

    /// True if the request consists of the bytes of the only argument, or of nothing.
    pub fn has_bare_request(&self) -> bool {
        self.arguments.is_empty() || self.takes_bytes()
    }

    /// True if the codec encodes any part of a call.
    pub fn uses_codec(&self) -> bool {
        let is_bare = self.has_bare_request() && self.sent.is_none();
        !is_bare || !self.gives_bytes() || self.error.is_some()
    }

    /// True if the response consists of the bytes of the result.
    pub fn gives_bytes(&self) -> bool {
        is_bytes(&self.output)
    }

    /// Generates the method's description.
    pub fn described(&self, codec: &Path) -> Tokens {
        let (wire_name, signature) = (&self.wire_name, self.signature(codec));
        let (to_end, idempotent, spawn) = (self.to_end, self.idempotent, self.spawn);
        quote! {
            ::tokio_fabric_rpc::generated::described(
                #wire_name,
                #signature,
                [#to_end, #idempotent, #spawn],
            )
        }
    }

    /// Generates a check that `Postcard` supports each argument: it encodes several as one tuple,
    /// of which the compiler would not name the wrong part. Other codecs need not support each
    /// argument alone.
    pub fn arguments_check(&self, codec: &Path) -> Tokens {
        if codec
            .segments
            .last()
            .is_none_or(|it| it.ident != "Postcard")
            || self.has_bare_request()
        {
            return Tokens::new();
        }
        let shapes = self.arguments.iter();
        let shapes = shapes.map(|(_, of)| shape(codec, of.span(), &quote!(#of)));
        let cfgs = &self.cfgs;
        quote!(#(#cfgs)* const _: fn() = || { #(let _ = #shapes;)* };)
    }

    /// Generates the signature: the types as the codec encodes them. The generated code uses the
    /// codec here first, so that the compiler reports an unsupported type at that type.
    fn signature(&self, codec: &Path) -> Tokens {
        if let Some(text) = &self.signature {
            return quote!(::std::string::String::from(#text));
        }
        let types: Vec<_> = self.arguments.iter().map(|(_, it)| quote!(#it)).collect();
        let arguments = match (self.takes_bytes(), &self.arguments[..]) {
            (true, _) => quote!(::std::string::String::from("bytes")),
            (_, []) => quote!(::std::string::String::from("()")),
            _ => {
                let at = self.arguments_span();
                shape(codec, at, &placed(joined(&types), at))
            }
        };
        let optional = |of: Option<&Type>| match of {
            Some(of) => {
                let shape = shape(codec, of.span(), &quote!(#of));
                quote!(::core::option::Option::Some(#shape))
            }
            None => quote!(::core::option::Option::None),
        };
        let lent = self.lent.iter().map(|(_, right)| match right {
            Right::Pull => "pull",
            Right::Push => "push",
        });
        let sent = optional(self.sent.as_ref().map(|(_, items)| items));
        let error = optional(self.error.as_ref());
        let output = self.received.as_ref().unwrap_or(&self.output);
        let received = self.received.is_some();
        let result = match self.gives_bytes() {
            true => quote!(::std::string::String::from("bytes")),
            false => shape(codec, output.span(), &quote!(#output)),
        };
        quote! {
            ::tokio_fabric_rpc::generated::Signature {
                arguments: #arguments,
                lent: &[#(#lent),*],
                sent: #sent,
                result: #result,
                received: #received,
                error: #error,
            }
            .write()
        }
    }
}

/// Moves the tokens to another span, so that the compiler reports a type that the codec does not
/// support at that type.
pub fn placed(tokens: impl ToTokens, at: Span) -> Tokens {
    let place = |token| match token {
        TokenTree::Group(group) => {
            let mut placed = Group::new(group.delimiter(), placed(group.stream(), at));
            placed.set_span(at);
            TokenTree::Group(placed)
        }
        mut token => {
            token.set_span(at);
            token
        }
    };
    tokens.into_token_stream().into_iter().map(place).collect()
}

/// Generates the call for the codec's shape of a type.
fn shape(codec: &Path, at: Span, of: &Tokens) -> Tokens {
    let (spelled, codec) = (spelled(of.clone()), placed(codec, at));
    quote_spanned!(at=> ::tokio_fabric_rpc::generated::shape::<#codec, #of>(#spelled))
}

/// Returns a type as text, without spaces and without the paths of names.
fn spelled(of: Tokens) -> String {
    let mut text: Vec<String> = Vec::new();
    for token in of {
        match token {
            TokenTree::Group(group) => {
                let inner = spelled(group.stream());
                text.push(match group.delimiter() {
                    Delimiter::Parenthesis => format!("({inner})"),
                    Delimiter::Bracket => format!("[{inner}]"),
                    Delimiter::Brace => format!("{{{inner}}}"),
                    Delimiter::None => inner,
                });
            }
            // The second colon of `::`: removes the path before it.
            TokenTree::Punct(it)
                if it.as_char() == ':' && text.last().is_some_and(|it| it == ":") =>
            {
                text.pop();
                let is_name = |it: &String| it.chars().all(|it| it.is_alphanumeric() || it == '_');
                if text.last().is_some_and(is_name) {
                    text.pop();
                }
            }
            other => text.push(other.to_string()),
        }
    }
    text.concat()
}

/// Returns a name for generated code that cannot collide with the program's names.
pub fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

fn attributes_of(function: &TraitItemFn, names: &[&str]) -> Vec<Attribute> {
    let is_named = |it: &&Attribute| names.iter().any(|name| it.path().is_ident(name));
    function.attrs.iter().filter(is_named).cloned().collect()
}

/// Checks that the method is a plain async function.
fn check_kind(signature: &Signature) -> Result<()> {
    if signature.asyncness.is_none() {
        let what = "a method of a service is async";
        return Err(Error::new_spanned(&signature.ident, what));
    }
    let generics = &signature.generics;
    if !generics.params.is_empty() || generics.where_clause.is_some() {
        let what = "a method has no parameters and no `where`: both sides know its types";
        return Err(Error::new_spanned(&signature.ident, what));
    }
    if !matches!(signature.safety, syn::Safety::Default)
        || signature.constness.is_some()
        || signature.abi.is_some()
    {
        let what = "a method is neither `unsafe` nor `const` nor `extern`";
        return Err(Error::new_spanned(&signature.ident, what));
    }
    Ok(())
}

/// Checks that the type is owned, and that client and server can name it.
fn check_type(of: &Type) -> Result<()> {
    if let Type::ImplTrait(_) = of {
        let what = "what a call sends has a type with a name, no `impl`";
        return Err(Error::new_spanned(of, what));
    }
    check_tokens(of.to_token_stream())
}

/// Checks the tokens of a type. An error is at the wrong token, wherever it is in the type.
fn check_tokens(tokens: Tokens) -> Result<()> {
    let mut quote = None;
    for token in tokens {
        let (at, before) = (token.span(), quote.take());
        match token {
            TokenTree::Punct(it) if it.as_char() == '&' => {
                let what = "what a call sends is owned: `String` or `Bytes`, no reference";
                return Err(Error::new(at, what));
            }
            TokenTree::Punct(it) if it.as_char() == '\'' => quote = Some(at),
            TokenTree::Ident(name) if before.is_some() && name != "static" => {
                let what = "what a call sends is owned: it has no lifetime but `'static`";
                return Err(Error::new(at, what));
            }
            TokenTree::Ident(name) if name == "Self" => {
                let what = "`Self` is another type in the client: write the type's name";
                return Err(Error::new(at, what));
            }
            TokenTree::Group(group) => check_tokens(group.stream())?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns one part unchanged, several parts as a tuple.
pub fn joined(parts: &[Tokens]) -> Tokens {
    match parts {
        [one] => one.clone(),
        several => quote!((#(#several),*)),
    }
}

/// Returns `T` and `E` of `Result<T>` or `Result<T, E>`.
fn result_of(output: &ReturnType, method: &Ident) -> Result<(Type, Option<Type>)> {
    let what = "a method gives `Result<T>` or `Result<T, E>`, and no alias of another name";
    let ReturnType::Type(_, result) = output else {
        return Err(Error::new_spanned(method, what));
    };
    let wrong = || Error::new_spanned(result, what);
    let last = last_segment(result).ok_or_else(wrong)?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return Err(wrong());
    };
    let mut types = arguments.args.iter().filter_map(|it| match it {
        GenericArgument::Type(it) => Some(it.clone()),
        _ => None,
    });
    match (
        last.ident == "Result",
        types.next(),
        types.next(),
        types.next(),
    ) {
        (true, Some(output), error, None) => {
            let is_status = |it: &Type| last_segment(it).is_some_and(|it| it.ident == "Status");
            Ok((output, error.filter(|it| !is_status(it))))
        }
        _ => Err(wrong()),
    }
}

fn last_segment(of: &Type) -> Option<&syn::PathSegment> {
    match of {
        Type::Path(TypePath { path, .. }) => path.segments.last(),
        _ => None,
    }
}

fn right_of(of: &Type) -> Option<Right> {
    let last = last_segment(of).filter(|it| it.arguments.is_none())?;
    match last.ident.to_string().as_str() {
        "Pull" => Some(Right::Pull),
        "Push" => Some(Right::Push),
        _ => None,
    }
}

/// Returns the `T` of `Streaming<T>`.
fn items_of(of: &Type) -> Option<Type> {
    let last = last_segment(of).filter(|it| it.ident == "Streaming")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.first() {
        Some(GenericArgument::Type(items)) => Some(items.clone()),
        _ => None,
    }
}

fn is_bytes(of: &Type) -> bool {
    last_segment(of).is_some_and(|it| it.ident == "Bytes" && it.arguments.is_none())
}
