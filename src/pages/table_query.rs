//! The query of the tables of waiters and of owners: search text, order and page; and the links that keep them.

use std::cmp::Ordering;

use super::format;
use super::locks::Column;
use super::paging::Paging;

/// A column to sort by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SortColumn {
    /// Its name in queries.
    pub name: &'static str,
    pub text: &'static str,
    /// The first click shows the largest values first.
    pub descends_first: bool,
}

const fn column(name: &'static str, text: &'static str, descends_first: bool) -> SortColumn {
    SortColumn { name, text, descends_first }
}

/// A table: its path and its columns. It is sorted by the first column by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Table {
    /// Path of the page.
    pub path: &'static str,
    /// The columns to sort by.
    pub columns: &'static [SortColumn],
}

/// The table of waiters.
pub(crate) const WAITERS: Table = Table {
    path: "/ui/waiters",
    columns: &[
        column("waiting", "Waiting time", true),
        column("resource", "Resource", false),
        column("owner", "Owner and note", false),
        column("left", "Gives up in", false),
        column("holder", "Held by", false),
    ],
};

/// The table of owners.
pub(crate) const OWNERS: Table = Table {
    path: "/ui/owners",
    columns: &[
        column("leases", "Leases", true),
        column("owner", "Owner", false),
        column("waiters", "Waiters", true),
        column("held", "Longest held", true),
        column("expires", "Next to expire", false),
    ],
};

/// The query of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableQuery {
    pub(super) table: Table,
    /// The text that a row must contain; case is ignored. Empty: any row.
    pub find: String,
    /// The name of a column of the table.
    pub sort: &'static str,
    /// Largest values first.
    pub descending: bool,
    /// Page number, from 1.
    pub page: usize,
}

impl TableQuery {
    /// All rows of this table in its default order.
    pub(crate) fn of(table: Table) -> Self {
        let first = table.columns.first().copied().unwrap_or(column("", "", false));
        Self { table, find: String::new(), sort: first.name, descending: first.descends_first, page: 1 }
    }

    /// Path of the page.
    pub(crate) fn path(&self) -> &'static str {
        self.table.path
    }

    /// Whether one of these texts contains the search text.
    pub(super) fn finds<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> bool {
        let wanted = self.find.to_lowercase();
        wanted.is_empty() || texts.into_iter().any(|text| text.to_lowercase().contains(&wanted))
    }

    /// The order as requested.
    pub(super) fn ordered(&self, ascending: Ordering) -> Ordering {
        if self.descending { ascending.reverse() } else { ascending }
    }

    /// Whether the order differs from the table's default.
    pub(crate) fn is_ordered(&self) -> bool {
        let own = Self::of(self.table);
        (self.sort, self.descending) != (own.sort, own.descending)
    }

    /// The paging for this number of rows.
    pub(super) fn paging(&self, total: usize) -> Paging {
        Paging::new(total, self.page, self.link(self.sort, self.descending))
    }

    fn link(&self, sort: &'static str, descending: bool) -> String {
        let mut parts = Vec::new();
        if !self.find.is_empty() {
            parts.push(format!("find={}", format::query(&self.find)));
        }
        if (Self { sort, descending, ..self.clone() }).is_ordered() {
            parts.push(format!("sort={sort}&dir={}", if descending { "desc" } else { "asc" }));
        }
        let path = self.table.path;
        if parts.is_empty() { path.to_owned() } else { format!("{path}?{}", parts.join("&")) }
    }

    /// The heading of a column, with its link.
    pub(crate) fn heading(&self, name: &str) -> Column {
        let known = self.table.columns.iter().find(|column| column.name == name);
        let column = known.copied().unwrap_or(column("", "", false));
        let is_sorted = self.sort == name;
        let descending = if is_sorted { !self.descending } else { column.descends_first };
        let sorted = match (is_sorted, self.descending) {
            (false, _) => "none",
            (true, false) => "ascending",
            (true, true) => "descending",
        };
        Column { text: column.text, href: self.link(column.name, descending), sorted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_keep_what_is_found_and_ordered() {
        let query = TableQuery { find: "a b".to_owned(), ..TableQuery::of(OWNERS) };
        assert_eq!(query.heading("leases").href, "/ui/owners?find=a%20b&sort=leases&dir=asc");
        assert_eq!(query.heading("owner").href, "/ui/owners?find=a%20b&sort=owner&dir=asc");
        assert_eq!((query.heading("leases").sorted, query.heading("held").sorted), ("descending", "none"));
        let other = TableQuery { sort: "owner", descending: false, ..query };
        assert_eq!(other.heading("leases").href, "/ui/owners?find=a%20b", "the table's own order");
        let next = other.paging(101).next();
        assert_eq!(next.as_deref(), Some("/ui/owners?find=a%20b&sort=owner&dir=asc&page=2"));
        assert!(other.is_ordered() && !TableQuery::of(WAITERS).is_ordered());
        assert!(other.finds(["x", "an A B c"]) && !other.finds(["ab"]) && TableQuery::of(WAITERS).finds([]));
    }
}
