use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, Data, DeriveInput, Field, Fields, LitStr, Result, Type, parse_quote};

/// Adds the derives, and makes what only the schema needs vanish on wasm.
pub fn expand(mut input: DeriveInput) -> Result<TokenStream> {
    let rename = match &input.data {
        Data::Struct(_) => quote!(, rename_all = "camelCase"),
        _ => quote!(),
    };
    schema_only(&mut input.attrs)?;
    let own = std::mem::take(&mut input.attrs);
    input.attrs = vec![
        parse_quote!(#[derive(Clone, Debug, PartialEq, ::ostler_sdk::serde::Serialize, ::ostler_sdk::serde::Deserialize)]),
        parse_quote!(#[cfg_attr(not(target_arch = "wasm32"), derive(::ostler_sdk::schemars::JsonSchema))]),
        parse_quote!(#[cfg_attr(not(target_arch = "wasm32"), schemars(crate = "::ostler_sdk::schemars"))]),
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
