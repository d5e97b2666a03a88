use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, Data, DeriveInput, Field, Fields, LitStr, Result, Type, parse_quote};

/// Adds the derives; those for the schema are left out on wasm.
pub fn expand(mut input: DeriveInput) -> Result<TokenStream> {
    let rename = match &input.data {
        Data::Struct(data) => struct_names(&input.attrs, &data.fields)?,
        _ => quote!(),
    };
    // The name identifies the schema.
    let name = input.ident.to_string();
    schema_only(&mut input.attrs)?;
    let own = std::mem::take(&mut input.attrs);
    input.attrs = vec![
        parse_quote!(#[derive(Clone, Debug, PartialEq, ::ostler_sdk::serde::Serialize, ::ostler_sdk::serde::Deserialize)]),
        parse_quote!(#[cfg_attr(not(target_arch = "wasm32"), derive(::ostler_sdk::schemars::JsonSchema))]),
        parse_quote!(#[cfg_attr(not(target_arch = "wasm32"), schemars(crate = "::ostler_sdk::schemars", rename = #name))]),
        parse_quote!(#[serde(crate = "::ostler_sdk::serde" #rename)]),
    ];
    input.attrs.extend(own);
    if let Data::Struct(data) = &mut input.data
        && let Fields::Named(fields) = &mut data.fields
    {
        for field in &mut fields.named {
            schema_only(&mut field.attrs)?;
            leave_out_when_empty(field);
        }
    }
    Ok(input.into_token_stream())
}

/// Serde attributes for the names of a struct: its fields are in camel case unless it has another `rename_all`, and a
/// deserializer knows it by an empty name, for which the SDK reads it field by field.
fn struct_names(attrs: &[Attribute], fields: &Fields) -> Result<TokenStream> {
    let mut names = if has_serde_word(attrs, "rename_all") {
        quote!()
    } else {
        quote!(, rename_all = "camelCase")
    };
    if !matches!(fields, Fields::Named(_)) {
        return Ok(names);
    }
    for field in fields {
        if has_serde_word(&field.attrs, "alias") {
            let message = "a field of an API has one name: `alias` is not supported";
            return Err(syn::Error::new_spanned(field, message));
        }
    }
    names.extend(quote!(, rename(deserialize = "")));
    Ok(names)
}

fn has_serde_word(attrs: &[Attribute], word: &str) -> bool {
    let is_word =
        |token: proc_macro2::TokenTree| matches!(token, proc_macro2::TokenTree::Ident(name) if name == word);
    attrs
        .iter()
        .filter(|attr| attr.path().is_ident("serde"))
        .filter_map(|attr| attr.meta.require_list().ok())
        .any(|list| list.tokens.clone().into_iter().any(is_word))
}

/// `validation` becomes the schema's CEL rules, and `schemars` conditional.
fn schema_only(attrs: &mut Vec<Attribute>) -> Result<()> {
    let mut rules = Vec::new();
    let mut kept = Vec::new();
    for attr in attrs.drain(..) {
        if attr.path().is_ident("validation") {
            let (mut rule, mut message) = (None, None);
            attr.parse_nested_meta(|meta| {
                let value: LitStr = meta.value()?.parse()?;
                match () {
                    () if meta.path.is_ident("rule") => rule = Some(value),
                    () if meta.path.is_ident("message") => message = Some(value),
                    () => return Err(meta.error("expected `rule` or `message`")),
                }
                Ok(())
            })?;
            let (Some(rule), Some(message)) = (rule, message) else {
                return Err(syn::Error::new_spanned(attr, "needs `rule` and `message`"));
            };
            rules.push(quote!({ "rule": #rule, "message": #message }));
        } else if attr.path().is_ident("schemars") {
            let meta = &attr.meta;
            kept.push(parse_quote!(#[cfg_attr(not(target_arch = "wasm32"), #meta)]));
        } else {
            kept.push(attr);
        }
    }
    if !rules.is_empty() {
        kept.push(parse_quote!(#[cfg_attr(not(target_arch = "wasm32"),
            schemars(extend("x-kubernetes-validations" = [#(#rules),*])))]));
    }
    *attrs = kept;
    Ok(())
}

/// Optional fields, lists and maps need no serde attribute of their own.
fn leave_out_when_empty(field: &mut Field) {
    let Type::Path(path) = &field.ty else { return };
    let Some(name) = path.path.segments.last().map(|s| s.ident.to_string()) else {
        return;
    };
    let skip = match name.as_str() {
        "Option" => "Option::is_none",
        "Vec" => "Vec::is_empty",
        "BTreeMap" => "::std::collections::BTreeMap::is_empty",
        _ => return,
    };
    let given = |word: &str| {
        field
            .attrs
            .iter()
            .any(|a| a.path().is_ident("serde") && a.meta.to_token_stream().to_string().contains(word))
    };
    if !given("default") && !given("skip_serializing_if") {
        field
            .attrs
            .push(parse_quote!(#[serde(default, skip_serializing_if = #skip)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand_source(source: &str) -> Result<String> {
        syn::parse_str(source)
            .and_then(expand)
            .map(|tokens| tokens.to_string())
    }

    #[test]
    fn expand_renames_fields_unless_the_struct_does() {
        let plain = expand_source("struct A { b_c: u8 }").expect("expands");
        assert!(plain.contains("\"camelCase\""), "{plain}");
        let snake = expand_source("#[serde(rename_all = \"snake_case\")] struct A { b_c: u8 }");
        let snake = snake.expect("expands");
        assert!(!snake.contains("\"camelCase\""), "{snake}");
    }

    #[test]
    fn expand_alias_is_refused() {
        let error = expand_source("struct A { #[serde(alias = \"x\")] b: u8 }").expect_err("is refused");
        assert!(error.to_string().contains("alias"), "{error}");
    }
}
