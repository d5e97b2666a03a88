//! `#[scenario]`: the test functions of a scenario, one for each API server it runs on.

mod arguments;
#[cfg(test)]
mod table;

use proc_macro::TokenStream;
use proc_macro2::{Ident, Span, TokenStream as Tokens};
use quote::quote;
use syn::{ItemFn, parse_macro_input};

use crate::arguments::ScenarioArguments;

/// Makes tests of a function with one parameter, its `Lab`, or with none.
///
/// The tests of `name` are `name::embedded` and `name::real`, for the two API servers. The second one is ignored unless it is
/// asked for, because it needs the control plane that `cargo xtask test` starts. What follows the name of the server are tags, by
/// which `cargo xtask test` selects tests: `name::real_default` belongs to the run without arguments.
///
/// | argument | meaning |
/// |---|---|
/// | none | both API servers; `cargo xtask test` leaves out the real one, `test real` and `test all` do not |
/// | `real = "REASON"` | both, and the real one by default: the reason is what it shows that the embedded server cannot |
/// | `embedded = "REASON"` | the embedded API server only |
/// | `real_only = "REASON"` | the real one only, by default |
/// | `hostile` | an attack, or faults at random points: the tier hostile |
/// | `alone` | it measures latencies or memory, so nothing runs beside it |
/// | `simulated` | skipped where a real Concourse is used: it injects faults, or reads counters of the simulator |
/// | `argocd` | runs with a real Argo CD, too, in the tier argocd |
/// | `node` | runs on a node, too, in the tier node: its pods are real ones |
/// | `node_only = "REASON"` | on a node only, by default |
/// | `campaign = "REASON"` | in `cargo xtask test all` only |
#[proc_macro_attribute]
pub fn scenario(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let arguments = parse_macro_input!(arguments as ScenarioArguments);
    match expand(&arguments, &function) {
        Ok(tokens) => tokens.into(),
        Err(error) => error.into_compile_error().into(),
    }
}

/// Returns the function, and a module of its name with its tests.
fn expand(arguments: &ScenarioArguments, function: &ItemFn) -> syn::Result<Tokens> {
    let signature = &function.sig;
    let name = &signature.ident;
    if signature.inputs.len() > 1 {
        return Err(syn::Error::new_spanned(
            &signature.inputs,
            "a scenario has one parameter, its Lab, or none",
        ));
    }
    let is_async = signature.asyncness.is_some();
    let tests = arguments.tests().into_iter().map(|test| {
        let test_name = Ident::new(&test.placement.to_string(), Span::call_site());
        let server = Ident::new(test.placement.server.name(), Span::call_site());
        let ignored = test.ignored.map(|reason| quote!(#[ignore = #reason]));
        if !is_async {
            return quote! {
                #[test]
                #ignored
                fn #test_name() {
                    super::#name();
                }
            };
        }
        let run = match arguments {
            ScenarioArguments {
                campaign: Some(_), ..
            } => "run_campaign",
            ScenarioArguments { alone: true, .. } => "run_alone",
            _ => "run_bounded",
        };
        let run = Ident::new(run, Span::call_site());
        let body = if signature.inputs.is_empty() {
            quote!(super::#name().await;)
        } else if arguments.simulated {
            quote! {
                let lab = ::ostler_test_harness::Lab::#server().await;
                if lab.concourse.is_simulated("it injects faults or reads counters") {
                    super::#name(lab).await;
                }
            }
        } else {
            quote!(super::#name(::ostler_test_harness::Lab::#server().await).await;)
        };
        quote! {
            #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #ignored
            async fn #test_name() {
                ::ostler_test_harness::#run(async { #body }).await;
            }
        }
    });
    Ok(quote! {
        #function
        mod #name {
            #(#tests)*
        }
    })
}
