//! Selection of tests by tier and name.

use anyhow::{Result, bail};
use clap::ValueEnum;

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
    /// The scenarios of the DevOps pack with a real Argo CD on a real control plane. Its build takes 8 minutes.
    Argocd,
    /// All tiers but argocd in full, and campaigns.
    All,
}

/// The API server that a scenario runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApiServer {
    Embedded,
    Real,
}

/// Place of a test in the suite, from the last part of its name: `embedded` or `real`, followed by tags. `#[scenario]` makes
/// these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Its API server; a pure test has none.
    pub server: Option<ApiServer>,
    /// It runs without other tests.
    pub alone: bool,
    hostile: bool,
    default: bool,
    argocd: bool,
    campaign: bool,
}

impl Placement {
    /// Reads the place from the name of a test.
    pub fn parse(test: &str) -> Self {
        let last = test.rsplit("::").next().unwrap_or(test);
        let mut words = last.split('_');
        let server = match words.next() {
            Some("embedded") => ApiServer::Embedded,
            Some("real") => ApiServer::Real,
            _ => return Self::default(),
        };
        let mut placement = Self {
            server: Some(server),
            ..Self::default()
        };
        for word in words {
            match word {
                "alone" => placement.alone = true,
                "hostile" => placement.hostile = true,
                "default" => placement.default = true,
                "argocd" => placement.argocd = true,
                "campaign" => placement.campaign = true,
                // A sentence that begins with the same word.
                _ => return Self::default(),
            }
        }
        placement
    }

    fn tier(self) -> Tier {
        match self.server {
            None => Tier::Pure,
            Some(ApiServer::Real) => Tier::Real,
            Some(ApiServer::Embedded) if self.hostile => Tier::Hostile,
            Some(ApiServer::Embedded) => Tier::Embedded,
        }
    }
}

/// The tests that a command asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Tiers in full; without any, the tests of a change.
    tiers: Vec<Tier>,
    /// Parts of names, one of which a test has; without any, all tests.
    filters: Vec<String>,
}

impl Selection {
    /// Parses the arguments of `cargo xtask test`: tiers first, and parts of test names.
    pub fn parse(words: &[String]) -> Result<Self> {
        let mut selection = Self::default();
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
        self.includes(Tier::Real) || self.includes(Tier::Argocd)
    }

    /// Returns true if it may have scenarios.
    pub fn has_scenarios(&self) -> bool {
        let tiers = [Tier::Embedded, Tier::Hostile, Tier::Real, Tier::Argocd];
        tiers.into_iter().any(|tier| self.includes(tier))
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
            return placement.argocd && self.includes(tier);
        }
        if placement.tier() != tier || !self.includes(tier) {
            return false;
        }
        if placement.campaign {
            return self.tiers.contains(&Tier::All);
        }
        // What the real API server shows beyond the embedded one, unless its tier is asked for.
        tier != Tier::Real || !self.tiers.is_empty() || placement.default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: [&str; 9] = [
        "queue::tests::embedded_server_speaks_https",
        "deletion::chain_is_gone::embedded",
        "deletion::chain_is_gone::real",
        "leases::leader_hands_over::embedded",
        "leases::leader_hands_over::real_default",
        "hostile::loop_ends::embedded_hostile_alone",
        "hostile::loop_ends::real_hostile_alone",
        "devops::deployment_syncs::real_argocd",
        "chaos::objects_converge::embedded_hostile_campaign",
    ];

    fn select(command: &str) -> Vec<usize> {
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        let selection = Selection::parse(&words).unwrap();
        let tiers = [
            Tier::Pure,
            Tier::Embedded,
            Tier::Hostile,
            Tier::Real,
            Tier::Argocd,
        ];
        let selected = |test: &str| tiers.iter().any(|tier| selection.selects(test, *tier));
        (0..TESTS.len()).filter(|&n| selected(TESTS[n])).collect()
    }

    #[test]
    fn command_selects_tests_by_tier_and_name() {
        for (command, selected) in [
            ("", &[0, 1, 3, 4, 5][..]),
            ("all", &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
            ("pure", &[0]),
            ("embedded", &[1, 3]),
            ("hostile", &[5]),
            ("real", &[2, 4, 6, 7]),
            ("argocd", &[7]),
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
        let selection = Selection::parse(&["all".to_owned()]).unwrap();
        for test in TESTS {
            let tiers = [Tier::Pure, Tier::Embedded, Tier::Hostile, Tier::Real];
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
        let error = Selection::parse(&words).unwrap_err().to_string();
        assert!(error.contains("tiers come before"), "{error}");
    }
}
