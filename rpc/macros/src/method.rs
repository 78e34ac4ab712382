//! One method of a service, taken apart; in the trait it becomes a function that gives a future.

use proc_macro2::{Span, TokenStream as Tokens, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, LitStr, Pat, PathArguments, Result,
    ReturnType, Signature, TraitItemFn, Type, TypePath, parse_quote,
};

/// What a handler may do with lent memory.
#[derive(Clone, Copy)]
pub enum Right {
    Pull,
    Push,
}

pub struct Method {
    pub name: Ident,
    /// What its function in the client has of its attributes: `cfg`, too.
    pub attributes: Vec<Attribute>,
    /// Of these only `cfg`: all that is generated for it is there if it is.
    pub cfgs: Vec<Attribute>,
    /// `Service/method#version`.
    pub wire_name: String,
    pub arguments: Vec<(Ident, Type)>,
    /// Of arguments that are lent memory.
    pub lent: Vec<(Ident, Right)>,
    /// The argument that is a stream, and its items.
    pub sent: Option<(Ident, Type)>,
    /// The items of the stream that it gives.
    pub received: Option<Type>,
    /// All of them, in the order of the method's.
    pub order: Vec<Ident>,
    /// All of them with the types that the trait has for them.
    pub inputs: Vec<(Ident, Type)>,
    /// What it gives.
    pub result: Type,
    /// `T` and `E` of its result; no `E`: a status.
    pub output: Type,
    pub error: Option<Type>,
    pub to_end: bool,
    pub idempotent: bool,
    pub spawn: bool,
}

impl Method {
    /// Takes it apart, and rewrites it.
    pub fn parse(service: &str, function: &mut TraitItemFn) -> Result<Method> {
        let attributes = attributes_of(function, &["cfg", "doc", "deprecated", "must_use"]);
        let cfgs = attributes_of(function, &["cfg"]);
        let signature = &mut function.sig;
        check_kind(signature)?;
        let mut wire_name = format!("{service}/{}", signature.ident.unraw());
        let (mut to_end, mut idempotent, mut spawn) = (false, false, false);
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
                } else {
                    let what = "`to_end`, `idempotent`, `spawn` or `version = \"..\"`";
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

    /// True if the request is the bytes of its only argument.
    pub fn takes_bytes(&self) -> bool {
        matches!(&self.arguments[..], [(_, argument)] if is_bytes(argument))
    }

    /// True if the bytes of its only argument, or none, are the request.
    pub fn has_bare_request(&self) -> bool {
        self.arguments.is_empty() || self.takes_bytes()
    }

    /// True if anything of it is encoded.
    pub fn uses_codec(&self) -> bool {
        let is_bare = self.has_bare_request() && self.sent.is_none();
        !is_bare || !self.gives_bytes() || self.error.is_some()
    }

    /// True if the answer is the bytes of its result.
    pub fn gives_bytes(&self) -> bool {
        is_bytes(&self.output)
    }

    /// What it is to the layer.
    pub fn described(&self) -> Tokens {
        let (wire_name, to_end) = (&self.wire_name, self.to_end);
        let (idempotent, spawn) = (self.idempotent, self.spawn);
        quote! {
            ::tokio_fabric_rpc::Method {
                name: #wire_name,
                id: ::tokio_fabric_rpc::generated::method_id(#wire_name),
                to_end: #to_end,
                idempotent: #idempotent,
                spawn: #spawn,
            }
        }
    }
}

/// A name in what is generated that no name of the program's collides with.
pub fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

fn attributes_of(function: &TraitItemFn, names: &[&str]) -> Vec<Attribute> {
    let is_named = |it: &&Attribute| names.iter().any(|name| it.path().is_ident(name));
    function.attrs.iter().filter(is_named).cloned().collect()
}

/// A plain function that is async.
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

/// What is sent is owned, and of a type that client and server know.
fn check_type(of: &Type) -> Result<()> {
    match of {
        Type::Reference(_) => {
            let what = "what a call sends is owned: `String` or `Bytes`, no reference";
            return Err(Error::new_spanned(of, what));
        }
        Type::ImplTrait(_) => {
            let what = "what a call sends has a type with a name, no `impl`";
            return Err(Error::new_spanned(of, what));
        }
        _ => {}
    }
    match names_self(of.to_token_stream()) {
        true => {
            let what = "`Self` is another type in the client: write the type's name";
            Err(Error::new_spanned(of, what))
        }
        false => Ok(()),
    }
}

fn names_self(tokens: Tokens) -> bool {
    tokens.into_iter().any(|it| match it {
        TokenTree::Ident(name) => name == "Self",
        TokenTree::Group(group) => names_self(group.stream()),
        _ => false,
    })
}

/// One as it is, several as a tuple.
pub fn joined(parts: &[Tokens]) -> Tokens {
    match parts {
        [one] => one.clone(),
        several => quote!((#(#several),*)),
    }
}

/// `T` and `E` of `Result<T>` or `Result<T, E>`.
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

/// The `T` of `Streaming<T>`.
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
