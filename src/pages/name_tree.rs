//! The names of a list as a tree, one level at a time: the next segment of each name after the prefix, with counts.

use std::collections::HashMap;

use super::format;

/// Maximum number of branches that are shown; the others are counted.
const BRANCHES_MAX: usize = 24;

/// One level of the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NameTree {
    /// The levels above, from the top: text and link. Empty at the top.
    pub path: Vec<(String, String)>,
    /// The branches with the most waiters first, then the largest.
    pub branches: Vec<Branch>,
    /// How many branches are not shown.
    pub hidden: usize,
}

/// Names with a common prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branch {
    /// The text after the prefix, with the `/`.
    pub text: String,
    /// The list of these names.
    pub href: String,
    /// Number of names in the branch.
    pub names: usize,
    /// Number of requests that wait for these names.
    pub waiting: usize,
}

fn link(prefix: &str) -> String {
    if prefix.is_empty() { "/ui/".to_owned() } else { format!("/ui/?prefix={}", format::query(prefix)) }
}

impl NameTree {
    /// The level below `prefix`. `names`: each with its number of waiters; all begin with `prefix`.
    pub(crate) fn of<'a>(prefix: &str, names: impl Iterator<Item = (&'a str, usize)>) -> Self {
        let mut found: HashMap<&str, (usize, usize)> = HashMap::new();
        for (name, waiting) in names {
            let rest = name.get(prefix.len()..).unwrap_or_default();
            // If the prefix ends before a `/`, the rest begins with it.
            let skipped = usize::from(rest.starts_with('/'));
            if let Some(end) = rest[skipped..].find('/') {
                let (count, waiters) = found.entry(&rest[..skipped + end + 1]).or_default();
                (*count, *waiters) = (*count + 1, *waiters + waiting);
            }
        }
        let branch = |(text, (names, waiting)): (&str, (usize, usize))| Branch {
            text: text.to_owned(),
            href: link(&format!("{prefix}{text}")),
            names,
            waiting,
        };
        let mut branches: Vec<Branch> = found.into_iter().map(branch).collect();
        branches.sort_unstable_by(|a, b| (b.waiting, b.names, &a.text).cmp(&(a.waiting, a.names, &b.text)));
        let hidden = branches.len().saturating_sub(BRANCHES_MAX);
        branches.truncate(BRANCHES_MAX);
        Self { path: path(prefix), branches, hidden }
    }
}

/// The levels above a prefix, and the prefix itself.
fn path(prefix: &str) -> Vec<(String, String)> {
    let mut path = Vec::new();
    let mut so_far = String::new();
    for part in prefix.split_inclusive('/') {
        if path.is_empty() {
            path.push(("all".to_owned(), link("")));
        }
        so_far.push_str(part);
        path.push((format::visible(part), link(&so_far)));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(prefix: &str, names: &[(&str, usize)]) -> NameTree {
        NameTree::of(prefix, names.iter().copied())
    }

    fn shown(tree: &NameTree) -> Vec<(&str, usize, usize)> {
        tree.branches.iter().map(|branch| (branch.text.as_str(), branch.names, branch.waiting)).collect()
    }

    #[test]
    fn names_are_grouped_by_what_follows_the_prefix_and_those_waited_for_come_first() {
        let names = [("a/1", 0), ("a/2", 0), ("b/x/1", 3), ("b/y/1", 1), ("c", 5)];
        let top = tree("", &names);
        assert_eq!(shown(&top), [("b/", 2, 4), ("a/", 2, 0)], "a name without a branch is in the list only");
        assert_eq!((top.path.len(), top.branches[0].href.as_str()), (0, "/ui/?prefix=b/"));
        let below = tree("b/", &names[2..4]);
        assert_eq!(shown(&below), [("x/", 1, 3), ("y/", 1, 1)]);
        let texts: Vec<_> = below.path.iter().map(|(text, href)| (text.as_str(), href.as_str())).collect();
        assert_eq!(texts, [("all", "/ui/"), ("b/", "/ui/?prefix=b/")]);
        assert_eq!(shown(&tree("b", &names[2..4])), [("/x/", 1, 3), ("/y/", 1, 1)]);
        assert_eq!(shown(&tree("ä", &[("ä/ö/1", 0), ("äö/1", 0)])), [("/ö/", 1, 0), ("ö/", 1, 0)]);
    }

    #[test]
    fn beyond_the_maximum_branches_are_counted() {
        let names: Vec<String> = (0..30).map(|i| format!("n{i:02}/x")).collect();
        let tree = NameTree::of("", names.iter().map(|name| (name.as_str(), 0)));
        assert_eq!((tree.branches.len(), tree.hidden, tree.branches[0].text.as_str()), (BRANCHES_MAX, 6, "n00/"));
    }
}
