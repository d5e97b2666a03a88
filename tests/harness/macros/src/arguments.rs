//! The arguments of `#[scenario]`, and the tests that follow from them.

use syn::{
    Ident, LitStr, Token,
    parse::{Parse, ParseStream},
};

/// Reason in the output of `cargo test` for tests on the real API server.
const NEEDS_CONTROL_PLANE: &str = "needs the real control plane: cargo xtask test real";

/// The arguments of `#[scenario]`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Reason to run it on the real API server by default.
    pub real: Option<String>,
    /// Reason to run it on the embedded API server only.
    pub embedded: Option<String>,
    /// Reason to run it on the real API server only.
    pub real_only: Option<String>,
    /// Reason to run it in campaigns only.
    pub campaign: Option<String>,
    /// True for attacks and random faults.
    pub hostile: bool,
    /// True when nothing may run beside it.
    pub alone: bool,
    /// True when it needs the simulator of Concourse.
    pub simulated: bool,
    /// True when it runs with a real Argo CD, too.
    pub argocd: bool,
}

/// A test of a scenario.
#[derive(Debug, PartialEq, Eq)]
pub struct Test {
    /// Name of the API server.
    pub server: &'static str,
    /// Name of the test function: the API server and the tags.
    pub name: String,
    /// Reason to ignore it in a plain `cargo test`.
    pub ignored: Option<String>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = Self::default();
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            let reason = || -> syn::Result<Option<String>> {
                input.parse::<Token![=]>()?;
                let reason: LitStr = input.parse()?;
                if reason.value().trim().is_empty() {
                    return Err(syn::Error::new(reason.span(), "the reason is empty"));
                }
                Ok(Some(reason.value()))
            };
            match name.to_string().as_str() {
                "real" => arguments.real = reason()?,
                "embedded" => arguments.embedded = reason()?,
                "real_only" => arguments.real_only = reason()?,
                "campaign" => arguments.campaign = reason()?,
                "hostile" => arguments.hostile = true,
                "alone" => arguments.alone = true,
                "simulated" => arguments.simulated = true,
                "argocd" => arguments.argocd = true,
                _ => {
                    return Err(syn::Error::new(
                        name.span(),
                        "not an argument of a scenario: write real, embedded, real_only or campaign with `= \"REASON\"`, \
                         or hostile, alone, simulated or argocd",
                    ));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let servers = [&arguments.real, &arguments.embedded, &arguments.real_only];
        if servers.into_iter().flatten().count() > 1 {
            return Err(input.error("at most one of real, embedded and real_only"));
        }
        Ok(arguments)
    }
}

impl Arguments {
    /// Returns the tests of the scenario.
    pub fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        if self.real_only.is_none() {
            tests.push(self.test("embedded"));
        }
        if self.embedded.is_none() {
            tests.push(self.test("real"));
        }
        tests
    }

    fn test(&self, server: &'static str) -> Test {
        let is_real = server == "real";
        let by_default = self.real.is_some() || self.real_only.is_some();
        let mut name = server.to_owned();
        for (tag, applies) in [
            ("default", is_real && by_default),
            ("hostile", self.hostile),
            ("alone", self.alone),
            ("argocd", is_real && self.argocd),
            ("campaign", self.campaign.is_some()),
        ] {
            if applies {
                name.push('_');
                name.push_str(tag);
            }
        }
        let campaign = self.campaign.clone();
        Test {
            server,
            name,
            ignored: if is_real {
                Some(NEEDS_CONTROL_PLANE.to_owned())
            } else {
                campaign
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let arguments: Arguments = syn::parse_str(text).expect("arguments");
        arguments.tests().into_iter().map(|test| test.name).collect()
    }

    #[test]
    fn test_names_have_server_and_tags() {
        assert_eq!(names(""), ["embedded", "real"]);
        assert_eq!(names("simulated"), ["embedded", "real"]);
        assert_eq!(names("real = \"leases\""), ["embedded", "real_default"]);
        assert_eq!(names("embedded = \"faults\""), ["embedded"]);
        assert_eq!(names("real_only = \"HTTP/2\""), ["real_default"]);
        assert_eq!(names("argocd"), ["embedded", "real_argocd"]);
        assert_eq!(
            names("hostile, alone"),
            ["embedded_hostile_alone", "real_hostile_alone"]
        );
        assert_eq!(
            names("embedded = \"it is slow\", hostile, campaign = \"ten minutes\""),
            ["embedded_hostile_campaign"]
        );
    }

    #[test]
    fn invalid_arguments_are_refused_with_the_remedy() {
        for (text, message) in [
            ("reel", "not an argument of a scenario: write real"),
            ("real", "expected `=`"),
            ("real = \" \"", "the reason is empty"),
            ("real = \"a\", embedded = \"b\"", "at most one of"),
        ] {
            let error = syn::parse_str::<Arguments>(text).expect_err(text).to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
