//! The attribute macros of ostler-sdk: [`macro@api`] for the types of an API,
//! [`macro@resource`] for the spec of a kind, [`macro@reconciler`] for what reconciles it.

mod api;
mod reconciler;
mod resource;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a struct or enum a part of an API: serde with camelCase fields, optional fields left out when empty, and a
/// schema for the CRD (which a component does not carry).
///
/// `#[serde(rename_all = "…")]` replaces camelCase, for the types of another API. As in Kubernetes, a field that is
/// `null` is read like one that is missing. The SDK reads such a struct in less code than serde's own, so that typed
/// specs keep components small; `#[serde(alias)]` is not supported.
///
/// `#[validation(rule = "…", message = "…")]` adds a CEL rule to the type or to
/// a field; `#[schemars(…)]` gives lengths, patterns and ranges.
#[proc_macro_attribute]
pub fn api(_args: TokenStream, item: TokenStream) -> TokenStream {
    let input = parse_macro_input!(item as DeriveInput);
    api::expand(input)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes a struct the spec of a kind (and an [`macro@api`] type), and declares
/// a type alias with the kind's name for the whole object.
///
/// ```text
/// #[resource(group = "examples.ostler.dev", version = "v1alpha1", kind = "Greeting",
///     plural = "greetings", namespaced, status = GreetingStatus, shortname = "gr", category = "examples",
///     doc = "What kubectl explain says",
///     printcolumn(name = "Ready", type = "string", json_path = ".status.ready", priority = 1))]
/// ```
///
/// The kind is the struct's name without `Spec`, its plural has an `s`, and `doc` is the first paragraph of the
/// struct's own documentation, where nothing else is said.
#[proc_macro_attribute]
pub fn resource(args: TokenStream, item: TokenStream) -> TokenStream {
    let args = parse_macro_input!(args as resource::Args);
    let input = parse_macro_input!(item as DeriveInput);
    resource::expand(&args, input)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes a function the reconciler of a kind, and a plugin of it: the shortest form, for what has one kind and leaves
/// nothing to clean up. Anything more is a type that implements `Reconciler`.
///
/// ```text
/// #[reconciler]
/// pub fn reconcile(ctx: &Context, object: &Greeting) -> Result<Outcome, Failure> { … }
/// ```
///
/// For a test in memory it is a value: `Host::new().reconcile(&reconcile, &object)`.
#[proc_macro_attribute]
pub fn reconciler(args: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(first) = args.into_iter().next() {
        let words = "it takes nothing: what has a finalizer, hooks or several kinds implements `Reconciler`";
        let error = syn::Error::new(first.span().into(), words);
        return error.into_compile_error().into();
    }
    let function = parse_macro_input!(item as reconciler::Function);
    reconciler::expand(&function)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
