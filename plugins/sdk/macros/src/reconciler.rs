use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Attribute, BareFnArg, Ident, Result, Token, Type, Visibility, parenthesized, parse::Parse,
    parse::ParseStream, punctuated::Punctuated,
};

/// Arguments of the attribute.
#[derive(Default)]
pub struct ReconcilerArguments {
    /// The message handler.
    messages: Option<syn::Path>,
}

impl Parse for ReconcilerArguments {
    fn parse(input: ParseStream) -> Result<Self> {
        if input.is_empty() {
            return Ok(Self::default());
        }
        let name: Ident = input.parse()?;
        if name != "messages" {
            let words = "`reconciler` takes no argument but `messages`: a plugin with a finalizer, hooks or several kinds implements `Reconciler`";
            return Err(syn::Error::new(name.span(), words));
        }
        input.parse::<Token![=]>()?;
        let messages = Some(input.parse()?);
        Ok(Self { messages })
    }
}

/// A function; what comes after its parameters is the compiler's business.
pub struct Function {
    attrs: Vec<Attribute>,
    visibility: Visibility,
    name: Ident,
    parameters: Punctuated<BareFnArg, Token![,]>,
    rest: TokenStream,
}

impl Parse for Function {
    fn parse(input: ParseStream) -> Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        input.parse::<Token![fn]>()?;
        let name = input.parse()?;
        let content;
        parenthesized!(content in input);
        Ok(Self {
            attrs,
            visibility,
            name,
            parameters: content.parse_terminated(BareFnArg::parse, Token![,])?,
            rest: input.parse()?,
        })
    }
}

/// A value of the function's name that is a reconciler, and the plugin that has it.
pub fn expand(arguments: &ReconcilerArguments, function: &Function) -> Result<TokenStream> {
    let Function {
        attrs,
        visibility,
        name,
        parameters,
        rest,
    } = function;
    let object = match parameters.iter().nth(1).map(|p| &p.ty) {
        Some(Type::Reference(object)) if parameters.len() == 2 => &object.elem,
        _ => {
            let form = "a reconciler takes the context and an object: `fn reconcile(ctx: &Context, object: &MyKind)`";
            return Err(syn::Error::new(name.span(), form));
        }
    };
    let messages = arguments
        .messages
        .as_ref()
        .map(|handler| quote!(; messages = #handler));
    // A `cfg` attribute of the function also applies to the generated items.
    let conditions: Vec<_> = attrs.iter().filter(|a| a.path().is_ident("cfg")).collect();
    Ok(quote! {
        #(#attrs)*
        #[allow(non_camel_case_types)]
        #visibility struct #name;

        #(#conditions)*
        impl ::ostler_sdk::Reconciler for #name {
            type Spec = <#object as ::ostler_sdk::guest::Whole>::Spec;

            fn reconcile(&self, #parameters) #rest
        }

        #(#conditions)*
        ::ostler_sdk::plugin!(#name #messages);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_reconciler_function_is_refused() {
        for (source, words) in [
            (
                "fn f(ctx: &Context) -> R {}",
                "a reconciler takes the context and an object",
            ),
            (
                "fn f(ctx: &Context, object: Kind) -> R {}",
                "a reconciler takes the context and an object",
            ),
            (
                "fn f(a: &A, b: &B, c: &C) -> R {}",
                "a reconciler takes the context and an object",
            ),
            ("struct F;", "expected `fn`"),
        ] {
            let made =
                syn::parse_str(source).and_then(|f: Function| expand(&ReconcilerArguments::default(), &f));
            let error = made.expect_err(source).to_string();
            assert!(error.contains(words), "{source}: {error}");
        }
    }

    #[test]
    fn message_handler_is_the_only_argument() {
        let arguments: ReconcilerArguments = syn::parse_str("messages = events::handle").expect("arguments");
        let function = syn::parse_str("fn f(ctx: &Context, object: &Kind) -> R {}").expect("a function");
        let expanded = expand(&arguments, &function).expect("expanded").to_string();
        assert!(
            expanded.contains("plugin ! (f ; messages = events :: handle)"),
            "{expanded}"
        );
        for source in ["finalizer", "messages", "messages = a, b"] {
            assert!(syn::parse_str::<ReconcilerArguments>(source).is_err(), "{source}");
        }
    }
}
