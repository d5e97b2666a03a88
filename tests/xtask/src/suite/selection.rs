//! Selection of tests by tier and name.

use anyhow::{Result, bail};
use clap::ValueEnum;
use ostler_test_placement::{ApiServer, Placement};

/// A tier of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tier {
    /// Logic only: unit and property tests, including those of the plugins.
    Pure,
    /// The whole host with real components on the embedded API server.
    Embedded,
    /// Misbehaving components, and faults at random points, on the embedded API server.
    Hostile,
    /// The scenarios of both on a real control plane.
    Real,
    /// Scenarios with real containers on a node, which needs root.
    Node,
    /// The scenarios of the DevOps pack with a real Argo CD on a real control plane. Its build takes 8 minutes.
    Argocd,
    /// All tiers but argocd in full, and campaigns.
    All,
}

/// The word for the failure matrix of the DevOps and DNS packs: all tests with it in the name, campaigns included.
const FAILURE_MATRIX: &str = "matrix";

/// Returns the tier of a test.
fn tier_of(placement: Option<Placement>) -> Tier {
    match placement {
        None => Tier::Pure,
        Some(Placement { server, hostile, .. }) => match server {
            ApiServer::Embedded if hostile => Tier::Hostile,
            ApiServer::Embedded => Tier::Embedded,
            ApiServer::Real => Tier::Real,
            ApiServer::Node => Tier::Node,
        },
    }
}

/// The tests that a command asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestSelection {
    /// Tiers in full; without any, the tests of a change.
    tiers: Vec<Tier>,
    /// Parts of names, one of which a test has; without any, all tests.
    filters: Vec<String>,
}

impl TestSelection {
    /// Parses the arguments of `cargo xtask test`: tiers first, and parts of test names.
    pub fn parse(words: &[String]) -> Result<Self> {
        let mut selection = Self::default();
        if words == [FAILURE_MATRIX] {
            selection.tiers.push(Tier::All);
        }
        for word in words {
            match Tier::from_str(word, true) {
                Ok(tier) if selection.filters.is_empty() => selection.tiers.push(tier),
                Ok(_) => bail!("{word}: tiers come before parts of test names"),
                Err(_) => selection.filters.push(word.clone()),
            }
        }
        Ok(selection)
    }

    /// Returns true if the command names no tests, so that the selection is whole tiers.
    pub fn is_unfiltered(&self) -> bool {
        self.filters.is_empty()
    }

    /// Returns the parts of names.
    pub fn filters(&self) -> &[String] {
        &self.filters
    }

    /// Returns true if it may have tests that need a real control plane.
    pub fn needs_control_plane(&self) -> bool {
        let tiers = [Tier::Real, Tier::Node, Tier::Argocd];
        tiers.into_iter().any(|tier| self.includes(tier))
    }

    /// Returns true if it may have scenarios.
    pub fn has_scenarios(&self) -> bool {
        self.needs_control_plane() || self.includes(Tier::Embedded) || self.includes(Tier::Hostile)
    }

    /// Returns true if the command names this tier.
    pub fn names(&self, tier: Tier) -> bool {
        self.tiers.contains(&tier)
    }

    /// Returns true if it may have tests of this tier.
    pub fn includes(&self, tier: Tier) -> bool {
        match tier {
            Tier::Argocd => self.tiers.contains(&tier),
            _ => self.tiers.is_empty() || self.tiers.contains(&Tier::All) || self.tiers.contains(&tier),
        }
    }

    /// Returns true if it includes this test of this tier.
    pub fn selects(&self, test: &str, tier: Tier) -> bool {
        if !self.filters.is_empty() && !self.filters.iter().any(|part| test.contains(part)) {
            return false;
        }
        let placement = Placement::parse(test);
        if tier == Tier::Argocd {
            return placement.is_some_and(|placement| placement.argocd) && self.includes(tier);
        }
        if tier_of(placement) != tier || !self.includes(tier) {
            return false;
        }
        let Some(placement) = placement else {
            return true;
        };
        if placement.campaign {
            return self.tiers.contains(&Tier::All);
        }
        // What they show beyond the embedded API server, unless their tier is asked for.
        let is_by_default = placement.server == ApiServer::Embedded || placement.default;
        is_by_default || !self.tiers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: [&str; 12] = [
        "queue::tests::embedded_server_speaks_https",
        "deletion::chain_is_gone::embedded",
        "deletion::chain_is_gone::real",
        "leases::leader_hands_over::embedded",
        "leases::leader_hands_over::real_default",
        "hostile::loop_ends::embedded_hostile_alone",
        "hostile::loop_ends::real_hostile_alone",
        "devops::deployment_syncs::real_argocd",
        "chaos::objects_converge::embedded_hostile_campaign",
        "steps::pod_is_evicted::node",
        "node::host_is_installed::node_default",
        "devops::matrix::objects_survive::embedded_campaign",
    ];

    fn select(command: &str) -> Vec<usize> {
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        let selection = TestSelection::parse(&words).unwrap();
        let tiers = [
            Tier::Pure,
            Tier::Embedded,
            Tier::Hostile,
            Tier::Real,
            Tier::Node,
            Tier::Argocd,
        ];
        let selected = |test: &str| tiers.iter().any(|tier| selection.selects(test, *tier));
        (0..TESTS.len()).filter(|&n| selected(TESTS[n])).collect()
    }

    #[test]
    fn command_selects_tests_by_tier_and_name() {
        for (command, selected) in [
            ("", &[0, 1, 3, 4, 5, 10][..]),
            ("all", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
            ("matrix", &[11]),
            ("embedded matrix", &[]),
            ("pure", &[0]),
            ("embedded", &[1, 3]),
            ("hostile", &[5]),
            ("real", &[2, 4, 6, 7]),
            ("argocd", &[7]),
            ("node", &[9, 10]),
            ("pure hostile", &[0, 5]),
            ("embedded deletion::", &[1]),
            ("deletion::", &[1]),
            ("real deletion:: devops::", &[2, 7]),
            ("embedded nothing", &[]),
        ] {
            assert_eq!(select(command), selected, "cargo xtask test {command}");
        }
    }

    #[test]
    fn every_test_of_all_belongs_to_exactly_one_tier() {
        let selection = TestSelection::parse(&["all".to_owned()]).unwrap();
        for test in TESTS {
            let tiers = [Tier::Pure, Tier::Embedded, Tier::Hostile, Tier::Real, Tier::Node];
            let count = tiers
                .iter()
                .filter(|tier| selection.selects(test, **tier))
                .count();
            assert_eq!(count, 1, "{test}");
        }
    }

    #[test]
    fn tier_after_a_part_of_a_name_is_refused() {
        let words = ["deletion::".to_owned(), "real".to_owned()];
        let error = TestSelection::parse(&words).unwrap_err().to_string();
        assert!(error.contains("tiers come before"), "{error}");
    }
}
