//! Teams.

use std::collections::BTreeMap;

use serde::Serialize;

use super::ConcourseModel;

/// Users and groups by role.
pub type SimulatedTeamAuth = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// A team.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SimulatedTeam {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Members by role.
    pub auth: SimulatedTeamAuth,
}

impl ConcourseModel {
    /// Finds a team by name.
    pub fn team(&self, name: &str) -> Option<&SimulatedTeam> {
        self.teams.iter().find(|t| t.name == name)
    }

    /// Returns a team's name by id.
    pub fn team_name(&self, id: u64) -> &str {
        self.teams.iter().find(|t| t.id == id).map_or("", |t| &t.name)
    }

    /// Creates or updates a team. Returns true for a new one.
    pub fn set_team(&mut self, name: &str, auth: SimulatedTeamAuth) -> (SimulatedTeam, bool) {
        if let Some(team) = self.teams.iter_mut().find(|t| t.name == name) {
            team.auth = auth;
            return (team.clone(), false);
        }
        let team = SimulatedTeam {
            id: self.ids.team.next(),
            name: name.to_owned(),
            auth,
        };
        self.teams.push(team.clone());
        (team, true)
    }

    /// Renames a team. Returns false when the name is taken.
    pub fn rename_team(&mut self, name: &str, new: &str) -> bool {
        if name != new && self.team(new).is_some() {
            return false;
        }
        if let Some(team) = self.teams.iter_mut().find(|t| t.name == name) {
            new.clone_into(&mut team.name);
        }
        true
    }

    /// Deletes a team with its pipelines and builds.
    pub fn delete_team(&mut self, name: &str) {
        let Some(id) = self.team(name).map(|t| t.id) else {
            return;
        };
        let pipelines: Vec<u64> = self
            .pipelines
            .iter()
            .filter(|p| p.team_id == id)
            .map(|p| p.id)
            .collect();
        for pipeline in pipelines {
            self.delete_pipeline(pipeline);
        }
        self.builds.retain(|_, b| b.team_id != id);
        self.teams.retain(|t| t.id != id);
    }
}
