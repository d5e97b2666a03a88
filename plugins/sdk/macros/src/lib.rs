//! The attribute macros of ostler-sdk: [`macro@api`] for the types of an API,
//! [`macro@resource`] for the spec of a kind, [`macro@reconciler`] for the function that reconciles it.

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
///     doc = "Description for kubectl explain",
///     printcolumn(name = "Ready", type = "string", json_path = ".status.ready", priority = 1))]
/// ```
///
/// By default the kind is the struct's name without `Spec`, its plural has an `s`, and `doc` is the first paragraph of the
/// struct's documentation.
#[proc_macro_attribute]
pub fn resource(args: TokenStream, item: TokenStream) -> TokenStream {
    let args = parse_macro_input!(args as resource::Args);
    let input = parse_macro_input!(item as DeriveInput);
    resource::expand(&args, input)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes a function the reconciler of a kind, and exports it as a plugin: the shortest form, for one kind without cleanup.
/// Other plugins have a type that implements `Reconciler`.
///
/// ```text
/// #[reconciler]
/// pub fn reconcile(ctx: &Context, object: &Greeting) -> Result<Outcome, Failure> { … }
/// ```
///
/// `#[reconciler(messages = handle)]` also exports the function `handle`, or another `MessageHandler`.
///
/// In native tests the function's name is a value: `MockHost::new().reconcile(&reconcile, &object)`.
#[proc_macro_attribute]
pub fn reconciler(args: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(args as reconciler::ReconcilerArguments);
    let function = parse_macro_input!(item as reconciler::Function);
    reconciler::expand(&arguments, &function)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
