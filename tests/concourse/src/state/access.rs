//! Who is asking, and what they may do.

use std::time::Duration;

use super::Model;

/// A role in a team; each may what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Looks.
    Viewer,
    /// Triggers, pauses, pins.
    Operator,
    /// Changes pipelines.
    Member,
    /// Changes the team.
    Owner,
}

impl Role {
    /// By its name in a team's auth.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "viewer" => Self::Viewer,
            "pipeline-operator" => Self::Operator,
            "member" => Self::Member,
            "owner" => Self::Owner,
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub(super) struct Issued {
    user: String,
    until: Duration,
}

impl Model {
    /// Whether this is the user's password.
    pub fn knows(&self, user: &str, password: &str) -> bool {
        self.passwords.get(user).is_some_and(|p| p == password)
    }

    /// Changes a password, or makes a user.
    pub fn set_password(&mut self, user: &str, password: &str) {
        self.passwords.insert(user.to_owned(), password.to_owned());
    }

    /// Keeps an issued token.
    pub fn issue(&mut self, token: String, user: &str, lifetime: Duration) {
        let now = self.now;
        self.tokens.retain(|_, issued| issued.until > now);
        let until = now.saturating_add(lifetime);
        self.tokens.insert(
            token,
            Issued {
                user: user.to_owned(),
                until,
            },
        );
    }

    /// Ends every issued token. Configured ones last.
    pub fn expire_tokens(&mut self) {
        self.tokens.clear();
    }

    /// Whose token this is, if it still counts.
    pub fn bearer(&self, token: &str) -> Option<&str> {
        let issued = self
            .tokens
            .get(token)
            .filter(|t| t.until > self.now)
            .map(|t| &t.user);
        issued
            .or_else(|| self.fixed_tokens.get(token))
            .map(String::as_str)
    }

    /// The roles a user has in a team.
    pub fn roles<'a>(&'a self, user: &str, team: &str) -> Vec<&'a str> {
        let me = format!("local:{user}");
        let auth = self.team(team).into_iter().flat_map(|t| &t.auth);
        let mine = auth.filter(|(_, members)| members.get("users").is_some_and(|users| users.contains(&me)));
        mine.map(|(role, _)| role.as_str()).collect()
    }

    /// Owners of `main` may everything.
    pub fn is_admin(&self, user: &str) -> bool {
        self.roles(user, "main").contains(&"owner")
    }

    /// Whether a user may what this role may.
    pub fn may(&self, user: &str, team: &str, role: Role) -> bool {
        let mut roles = self.roles(user, team).into_iter().filter_map(Role::named);
        roles.any(|r| r >= role) || self.is_admin(user)
    }
}
