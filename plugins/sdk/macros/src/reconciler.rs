use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Attribute, BareFnArg, Ident, Result, Token, Type, Visibility, parenthesized, parse::Parse,
    parse::ParseStream, punctuated::Punctuated,
};

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
pub fn expand(function: &Function) -> Result<TokenStream> {
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
        ::ostler_sdk::plugin!(#name);
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
            let made = syn::parse_str(source).and_then(|f: Function| expand(&f));
            let error = made.expect_err(source).to_string();
            assert!(error.contains(words), "{source}: {error}");
        }
    }
}
