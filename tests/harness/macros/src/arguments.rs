//! The arguments of `#[scenario]`, and the tests that follow from them.

use ostler_test_placement::{ApiServer, Placement};
use syn::{
    Ident, LitStr, Token,
    parse::{Parse, ParseStream},
};

/// Reasons in the output of `cargo test` for tests on servers that `cargo xtask test` starts.
const NEEDS_CONTROL_PLANE: &str = "needs the real control plane: cargo xtask test real";
const NEEDS_NODE: &str = "needs a node: cargo xtask test node";

/// The arguments of `#[scenario]`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ScenarioArguments {
    /// Reason to run it on the real API server by default.
    pub real: Option<String>,
    /// Reason to run it on the embedded API server only.
    pub embedded: Option<String>,
    /// Reason to run it on the real API server only.
    pub real_only: Option<String>,
    /// Reason to run it on a node only, by default.
    pub node_only: Option<String>,
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
    /// True when it runs on a node, too.
    pub node: bool,
}

/// A test of a scenario.
#[derive(Debug, PartialEq, Eq)]
pub struct Test {
    /// Its name: the API server and the tags.
    pub placement: Placement,
    /// Reason to ignore it in a plain `cargo test`.
    pub ignored: Option<String>,
}

impl Parse for ScenarioArguments {
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
                "node_only" => arguments.node_only = reason()?,
                "campaign" => arguments.campaign = reason()?,
                "hostile" => arguments.hostile = true,
                "alone" => arguments.alone = true,
                "simulated" => arguments.simulated = true,
                "argocd" => arguments.argocd = true,
                "node" => arguments.node = true,
                _ => {
                    return Err(syn::Error::new(
                        name.span(),
                        "not an argument of a scenario: write real, embedded, real_only, node_only or campaign \
                         with `= \"REASON\"`, or hostile, alone, simulated, argocd or node",
                    ));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let servers = [
            &arguments.real,
            &arguments.embedded,
            &arguments.real_only,
            &arguments.node_only,
        ];
        if servers.into_iter().flatten().count() > 1 {
            return Err(input.error("at most one of real, embedded, real_only and node_only"));
        }
        Ok(arguments)
    }
}

impl ScenarioArguments {
    /// Returns the tests of the scenario.
    pub fn tests(&self) -> Vec<Test> {
        let is_on_node_only = self.node_only.is_some();
        let servers = [
            (ApiServer::Embedded, self.real_only.is_none() && !is_on_node_only),
            (ApiServer::Real, self.embedded.is_none() && !is_on_node_only),
            (ApiServer::Node, self.node || is_on_node_only),
        ];
        let servers = servers.into_iter().filter(|(_, applies)| *applies);
        servers.map(|(server, _)| self.test(server)).collect()
    }

    fn test(&self, server: ApiServer) -> Test {
        let placement = Placement {
            server,
            default: match server {
                ApiServer::Embedded => false,
                ApiServer::Real => self.real.is_some() || self.real_only.is_some(),
                ApiServer::Node => self.node_only.is_some(),
            },
            hostile: self.hostile,
            alone: self.alone,
            argocd: server == ApiServer::Real && self.argocd,
            campaign: self.campaign.is_some(),
        };
        let ignored = match server {
            ApiServer::Embedded => self.campaign.clone(),
            ApiServer::Real => Some(NEEDS_CONTROL_PLANE.to_owned()),
            ApiServer::Node => Some(NEEDS_NODE.to_owned()),
        };
        Test { placement, ignored }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let arguments: ScenarioArguments = syn::parse_str(text).expect("arguments");
        arguments
            .tests()
            .into_iter()
            .map(|test| test.placement.to_string())
            .collect()
    }

    #[test]
    fn test_names_have_server_and_tags() {
        assert_eq!(names(""), ["embedded", "real"]);
        assert_eq!(names("simulated"), ["embedded", "real"]);
        assert_eq!(names("real = \"leases\""), ["embedded", "real_default"]);
        assert_eq!(names("embedded = \"faults\""), ["embedded"]);
        assert_eq!(names("real_only = \"HTTP/2\""), ["real_default"]);
        assert_eq!(names("argocd"), ["embedded", "real_argocd"]);
        assert_eq!(names("node"), ["embedded", "real", "node"]);
        assert_eq!(names("node_only = \"containers\""), ["node_default"]);
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
            let error = syn::parse_str::<ScenarioArguments>(text)
                .expect_err(text)
                .to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
