//! The last part of a scenario test's name: its API server and tags. `#[scenario]` writes it, and `cargo xtask test` selects tests
//! by it.

use std::fmt;

/// The API server that a scenario runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApiServer {
    /// The one in this repository, which each test starts.
    Embedded,
    /// kube-apiserver with the controllers for garbage and namespaces.
    Real,
    /// kube-apiserver with all controllers and a node that runs containers.
    Node,
}

impl ApiServer {
    const ALL: [Self; 3] = [Self::Embedded, Self::Real, Self::Node];

    /// Returns its name, with which the names of its tests begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Real => "real",
            Self::Node => "node",
        }
    }
}

/// Place of a scenario test in the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its API server.
    pub server: ApiServer,
    /// True for a test on the real API server or a node that runs by default.
    pub default: bool,
    /// True for attacks and random faults.
    pub hostile: bool,
    /// True when nothing may run beside it.
    pub alone: bool,
    /// True when it runs with a real Argo CD, too.
    pub argocd: bool,
    /// True when it runs in `cargo xtask test all` only.
    pub campaign: bool,
}

impl Placement {
    /// The place of a test without tags.
    pub fn new(server: ApiServer) -> Self {
        Self {
            server,
            default: false,
            hostile: false,
            alone: false,
            argocd: false,
            campaign: false,
        }
    }

    /// Reads the place from the name of a test; `None` for a test that is not one of a scenario.
    pub fn parse(test: &str) -> Option<Self> {
        let last = test.rsplit("::").next().unwrap_or(test);
        let mut words = last.split('_');
        let server = words.next()?;
        let server = ApiServer::ALL.into_iter().find(|known| known.name() == server)?;
        let mut placement = Self::new(server);
        for word in words {
            // Another word is that of a sentence which begins with the name of a server.
            let (_, tag) = placement.tags_mut().into_iter().find(|(name, _)| *name == word)?;
            *tag = true;
        }
        Some(placement)
    }

    fn tags_mut(&mut self) -> [(&'static str, &mut bool); 5] {
        [
            ("default", &mut self.default),
            ("hostile", &mut self.hostile),
            ("alone", &mut self.alone),
            ("argocd", &mut self.argocd),
            ("campaign", &mut self.campaign),
        ]
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.server.name())?;
        let mut placement = *self;
        for (name, applies) in placement.tags_mut() {
            if *applies {
                write!(f, "_{name}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_is_read_from_its_name() {
        for server in ApiServer::ALL {
            for tags in 0..1_u8 << 5 {
                let mut placement = Placement::new(server);
                for (bit, (_, applies)) in placement.tags_mut().into_iter().enumerate() {
                    *applies = tags >> bit & 1 == 1;
                }
                let test = format!("deletion::chain_is_gone::{placement}");
                assert_eq!(Placement::parse(&test), Some(placement), "{test}");
            }
        }
    }

    #[test]
    fn sentence_that_begins_with_the_name_of_a_server_is_no_placement() {
        for test in [
            "watches::embedded_server_speaks_https",
            "queue::tests::real_time",
            "x",
            "",
        ] {
            assert_eq!(Placement::parse(test), None, "{test}");
        }
    }
}
