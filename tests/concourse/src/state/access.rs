//! Users, tokens and roles.

use std::time::Duration;

use super::ConcourseModel;

/// A role in a team. Each has the rights of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SimulatedRole {
    /// Reads.
    Viewer,
    /// Triggers, pauses, pins.
    Operator,
    /// Changes pipelines.
    Member,
    /// Changes the team.
    Owner,
}

impl SimulatedRole {
    /// Parses the name of a role in a team's auth.
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "viewer" => Self::Viewer,
            "pipeline-operator" => Self::Operator,
            "member" => Self::Member,
            "owner" => Self::Owner,
            _ => return None,
        })
    }
}

/// The user a token was issued to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedUser {
    /// Name of the user.
    pub name: String,
    /// True when the token names the connector and the user's id there. Concourse matches team members by
    /// `connector:user`, so that a token without them has no role in any team.
    pub has_identity: bool,
}

#[derive(Debug)]
pub(super) struct Issued {
    user: SimulatedUser,
    until: Duration,
}

impl ConcourseModel {
    /// Returns whether this is the user's password.
    pub fn check_password(&self, user: &str, password: &str) -> bool {
        self.passwords.get(user).is_some_and(|p| p == password)
    }

    /// Changes a password, or adds a user.
    pub fn set_password(&mut self, user: &str, password: &str) {
        self.passwords.insert(user.to_owned(), password.to_owned());
    }

    /// Stores an issued token.
    pub fn store_token(&mut self, token: String, user: SimulatedUser, lifetime: Duration) {
        let now = self.now;
        self.tokens.retain(|_, issued| issued.until > now);
        let until = now.saturating_add(lifetime);
        self.tokens.insert(token, Issued { user, until });
    }

    /// Invalidates every issued token. Configured tokens stay valid.
    pub fn expire_tokens(&mut self) {
        self.tokens.clear();
    }

    /// Returns the user of a token that has not expired.
    pub fn token_user(&self, token: &str) -> Option<SimulatedUser> {
        let issued = self.tokens.get(token).filter(|t| t.until > self.now);
        let issued = issued.map(|t| t.user.clone());
        issued.or_else(|| {
            let name = self.fixed_tokens.get(token)?.clone();
            Some(SimulatedUser {
                name,
                has_identity: true,
            })
        })
    }

    /// Returns the roles of a user in a team.
    pub fn roles<'a>(&'a self, user: &SimulatedUser, team: &str) -> Vec<&'a str> {
        let member = format!("local:{}", user.name);
        let auth = self.team(team).filter(|_| user.has_identity);
        let auth = auth.into_iter().flat_map(|t| &t.auth);
        let own =
            auth.filter(|(_, members)| members.get("users").is_some_and(|users| users.contains(&member)));
        own.map(|(role, _)| role.as_str()).collect()
    }

    /// Returns whether a user is an admin: an owner of the team `main`.
    pub fn is_admin(&self, user: &SimulatedUser) -> bool {
        self.roles(user, "main").contains(&"owner")
    }

    /// Returns whether a user has a role, or a higher one, in a team.
    pub fn has_role(&self, user: &SimulatedUser, team: &str, role: SimulatedRole) -> bool {
        let mut roles = self
            .roles(user, team)
            .into_iter()
            .filter_map(SimulatedRole::from_name);
        roles.any(|r| r >= role) || self.is_admin(user)
    }
}
