//! Queue lanes of the work that the host does itself.

/// A queue lane of work that the host does itself. All other lanes are those of plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLane {
    /// `Upstream` objects.
    Upstreams,
    /// `Cluster` objects.
    Clusters,
    /// `Plugin` objects.
    Plugins,
    /// RoleBindings of the host and of plugins, which stay until nothing needs them for its cleanup.
    RoleBindings,
    /// Deleted objects that no plugin reconciles, and others hold.
    Unowned,
}

impl HostLane {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Upstreams,
        Self::Clusters,
        Self::Plugins,
        Self::RoleBindings,
        Self::Unowned,
    ];

    /// Returns the name of the lane, which is also the field manager of its objects' status. No plugin can have this name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Upstreams => "upstreams",
            Self::Clusters => "clusters",
            Self::Plugins => "plugins",
            Self::RoleBindings => "role-bindings",
            Self::Unowned => "ostler",
        }
    }

    /// Returns the number of its objects that are reconciled concurrently.
    pub const fn max_concurrent(self) -> u32 {
        match self {
            // A health check of one that is down waits for its timeout, and must not delay the others.
            Self::Upstreams | Self::Clusters => 32,
            Self::Plugins | Self::RoleBindings | Self::Unowned => 2,
        }
    }

    /// Returns the lane of this name; none for that of a plugin.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lane| lane.name() == name)
    }
}
