use heck::ToLowerCamelCase;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Attribute, DeriveInput, Expr, ExprLit, Ident, Lit, LitInt, LitStr, Meta, Path, Result, Token,
    parenthesized, parse::Parse, parse::ParseStream, spanned::Spanned,
};

/// The arguments of `#[resource(…)]`.
#[derive(Default)]
pub struct Args {
    group: String,
    version: String,
    kind: Option<String>,
    plural: Option<String>,
    doc: Option<String>,
    namespaced: bool,
    status: Option<Path>,
    short_names: Vec<LitStr>,
    categories: Vec<LitStr>,
    columns: Vec<TokenStream>,
}

impl Parse for Args {
    fn parse(input: ParseStream) -> Result<Self> {
        let mut args = Self::default();
        while !input.is_empty() {
            let key = input.call(syn::ext::IdentExt::parse_any)?;
            let key: Ident = key;
            match key.to_string().as_str() {
                "namespaced" => args.namespaced = true,
                "printcolumn" => args.columns.push(expand_column(input)?),
                "status" => {
                    input.parse::<Token![=]>()?;
                    args.status = Some(input.parse()?);
                }
                name => {
                    input.parse::<Token![=]>()?;
                    let value: LitStr = input.parse()?;
                    match name {
                        "group" => args.group = value.value(),
                        "version" => args.version = value.value(),
                        "kind" => args.kind = Some(value.value()),
                        "plural" => args.plural = Some(value.value()),
                        "doc" => args.doc = Some(value.value()),
                        "shortname" => args.short_names.push(value),
                        "category" => args.categories.push(value),
                        _ => return Err(syn::Error::new(key.span(), "unknown argument")),
                    }
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        for (name, value) in [("group", &args.group), ("version", &args.version)] {
            if value.is_empty() {
                return Err(input.error(format!("`{name}` is missing")));
            }
        }
        Ok(args)
    }
}

/// `(name = "…", type = "…", json_path = "…", priority = 1)`
fn expand_column(input: ParseStream) -> Result<TokenStream> {
    let content;
    parenthesized!(content in input);
    let mut fields = Vec::new();
    while !content.is_empty() {
        let key = syn::ext::IdentExt::parse_any(&content)?;
        let key: Ident = key;
        content.parse::<Token![=]>()?;
        let name = match key.to_string().as_str() {
            name @ ("name" | "type" | "description") => name.to_owned(),
            "json_path" | "jsonPath" => "jsonPath".to_owned(),
            "priority" => {
                let value: LitInt = content.parse()?;
                fields.push(quote!("priority": #value));
                content.parse::<Option<Token![,]>>()?;
                continue;
            }
            other => {
                return Err(syn::Error::new(
                    key.span(),
                    format!("unknown column argument `{}`", other.to_lower_camel_case()),
                ));
            }
        };
        let value: LitStr = content.parse()?;
        fields.push(quote!(#name: #value));
        content.parse::<Option<Token![,]>>()?;
    }
    Ok(quote!(::ostler_sdk::serde_json::json!({ #(#fields),* })))
}

/// The API type, the kind's constants, and the alias for the whole object.
pub fn expand(args: &Args, input: DeriveInput) -> Result<TokenStream> {
    let (spec, visibility) = (input.ident.clone(), input.vis.clone());
    if !input.generics.params.is_empty() {
        return Err(syn::Error::new(input.generics.span(), "a spec has no parameters"));
    }
    let Args {
        group,
        version,
        namespaced,
        short_names,
        categories,
        columns,
        ..
    } = args;
    let name = spec.to_string();
    let kind = args.kind.as_deref().or(name.strip_suffix("Spec"));
    let Some(kind) = kind.filter(|kind| !kind.is_empty()) else {
        let missing = "`kind` is missing, and the name does not end with `Spec`";
        return Err(syn::Error::new(spec.span(), missing));
    };
    let doc = args.doc.clone().unwrap_or_else(|| doc_text(&input.attrs));
    let plural = args
        .plural
        .clone()
        .unwrap_or_else(|| format!("{}s", kind.to_lowercase()));
    let status = args
        .status
        .as_ref()
        .map_or_else(|| quote!(::ostler_sdk::NoStatus), |path| quote!(#path));
    let alias = format_ident!("{kind}");
    let alias_doc = format!("A whole `{kind}` object.");
    let crd_test = format_ident!("write_crd_of_{}", kind.to_lowercase());
    let item = crate::api::expand(input)?;
    Ok(quote! {
        #item

        #[doc = #alias_doc]
        #visibility type #alias = ::ostler_sdk::Object<#spec>;

        impl ::ostler_sdk::KindSpec for #spec {
            const GROUP: &'static str = #group;
            const VERSION: &'static str = #version;
            const KIND: &'static str = #kind;
            const NAMESPACED: bool = #namespaced;
            type Status = #status;
        }

        #[cfg(not(target_arch = "wasm32"))]
        impl ::ostler_sdk::crd::CrdDefinition for #spec {
            const PLURAL: &'static str = #plural;
            const DESCRIPTION: &'static str = #doc;
            const SHORT_NAMES: &'static [&'static str] = &[#(#short_names),*];
            const CATEGORIES: &'static [&'static str] = &[#(#categories),*];
            fn columns() -> Vec<::ostler_sdk::serde_json::Value> {
                vec![#(#columns),*]
            }
        }

        #[cfg(all(test, not(target_arch = "wasm32")))]
        #[test]
        #[ignore = "writes a CRD, for `ostler plugin crds`"]
        #[allow(unnameable_test_items)]
        fn #crd_test() {
            ::ostler_sdk::crd::write_file::<#spec>();
        }
    })
}

/// The first paragraph of an item's documentation.
fn doc_text(attrs: &[Attribute]) -> String {
    let lines = attrs.iter().filter_map(|attr| match &attr.meta {
        Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(line), ..
            }) => Some(line.value().trim().to_owned()),
            _ => None,
        },
        _ => None,
    });
    let lines: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    lines.join(" ")
}
