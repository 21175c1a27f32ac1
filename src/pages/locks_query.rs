//! Filters and order of the list of locks, and the links that keep them.

use super::format;

/// A column to sort by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    /// Name of the resource.
    Resource,
    Owner,
    /// Time since the grant.
    Held,
    /// Remaining validity.
    Expires,
    Fence,
    /// Number of waiters; by default the largest first.
    #[default]
    Waiters,
}

impl Sort {
    /// All columns with their names in queries.
    pub(crate) const ALL: [(Self, &'static str); 6] = [
        (Self::Resource, "resource"),
        (Self::Owner, "owner"),
        (Self::Held, "held"),
        (Self::Expires, "expires"),
        (Self::Fence, "fence"),
        (Self::Waiters, "waiters"),
    ];

    /// The name in queries.
    pub(crate) fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(sort, _)| *sort == self).map_or("waiters", |(_, name)| name)
    }
}

/// The state of a resource in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListedState {
    /// A lease is active.
    Held,
    /// The last lease has expired, and its safety margin has not passed yet.
    LockDelay,
    /// Fewer than a quorum of the nodes confirm the lease, and the other nodes do not answer or have no vote.
    Unknown,
    /// Not held, but there are waiters for it.
    Waited,
}

impl ListedState {
    /// All states with their names in queries and on the page.
    pub(crate) const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Held, "held", "held"),
        (Self::LockDelay, "lock-delay", "expired"),
        (Self::Unknown, "unknown", "unknown"),
        (Self::Waited, "waited", "waited for"),
    ];
}

/// Filters and order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocksQuery {
    /// Prefix of the name.
    pub prefix: String,
    /// Part of the owner label; case is ignored.
    pub owner: String,
    /// Part of the name, the owner, the note or a value of the metadata; case is ignored.
    pub find: String,
    /// Only this state. [`ListedState::Waited`]: all resources with waiters, held or not.
    pub state: Option<ListedState>,
    /// The column to sort by.
    pub sort: Sort,
    /// Largest values first.
    pub descending: bool,
    /// Page number, from 1.
    pub page: usize,
}

impl Default for LocksQuery {
    fn default() -> Self {
        let text = String::new;
        let (prefix, owner, find) = (text(), text(), text());
        Self { prefix, owner, find, state: None, sort: Sort::default(), descending: true, page: 1 }
    }
}

impl LocksQuery {
    /// Path and query of the page with these filters and this order.
    pub(super) fn link(&self, sort: Sort, descending: bool) -> String {
        let mut parts = Vec::new();
        let mut add = |name: &str, value: &str| {
            if !value.is_empty() {
                parts.push(format!("{name}={}", format::query(value)));
            }
        };
        add("prefix", &self.prefix);
        add("owner", &self.owner);
        add("find", &self.find);
        add("state", self.state_name());
        if !(sort == Sort::default() && descending) {
            add("sort", sort.as_str());
            add("dir", if descending { "desc" } else { "" });
        }
        if parts.is_empty() { "/ui/".to_owned() } else { format!("/ui/?{}", parts.join("&")) }
    }

    /// Name of the state in the filter; empty for all states.
    fn state_name(&self) -> &'static str {
        ListedState::ALL.iter().find(|(state, ..)| Some(*state) == self.state).map_or("", |(_, name, _)| name)
    }

    /// Whether the list has the default order: the most waiters first.
    pub(crate) fn has_default_order(&self) -> bool {
        self.sort == Sort::default() && self.descending
    }

    /// Whether a filter is set.
    pub(crate) fn is_filtered(&self) -> bool {
        [&self.prefix, &self.owner, &self.find].iter().any(|text| !text.is_empty()) || self.state.is_some()
    }
}
