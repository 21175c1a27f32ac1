//! The configured list of nodes: names, and URLs as secrets.

use std::path::PathBuf;

use super::raw::{NodeEntry, RawValue};
use super::secret::{Secret, redact};
use super::value_types::{ValueError, ValueType};
use crate::nodes::redis::NodeUrl;
use crate::types::NodeId;

/// Maximum number of nodes: each acquire asks all of them, and tolerating more than seven failures has no use.
pub const MAX_NODES: usize = 15;

/// One configured Redis node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSpec {
    /// The node's configured name, if it has one.
    pub name: Option<NodeId>,
    /// The node's URL, with user and password.
    pub url: Secret,
    /// File with the node's password, if it has its own.
    pub password_file: Option<PathBuf>,
    id: NodeId,
    parsed: NodeUrl,
}

impl NodeSpec {
    /// The node's name, or its address if it has none. All instances must use the same.
    pub fn id(&self) -> &NodeId {
        &self.id
    }

    /// The node's parsed URL; its password may still be in a file.
    pub fn parsed(&self) -> &NodeUrl {
        &self.parsed
    }

    /// Errors: the reason, which follows "node 2"; never the URL.
    fn read(entry: NodeEntry) -> Result<Self, String> {
        let parsed = NodeUrl::parse(entry.url.reveal()).map_err(|why| why.0)?;
        let name =
            entry.name.map(|name| NodeId::parse(&name)).transpose().map_err(|e| format!("is badly named: {e}"))?;
        let id = match &name {
            Some(name) => name.clone(),
            None => NodeId::parse(&parsed.address().replace(['[', ']'], ""))
                .map_err(|_| "needs a name, since its address is long or has unusual characters".to_owned())?,
        };
        let password_file = entry.password_file.filter(|path| !path.is_empty()).map(PathBuf::from);
        let node = Self { name, url: entry.url, password_file, id, parsed };
        match node.password_file.is_some() && node.parsed.has_password() {
            true => Err("has a password in its URL and a `password_file`, but must have one of them".to_owned()),
            false => Ok(node),
        }
    }
}

/// The list of nodes; their URLs may have passwords.
pub(super) fn node_list() -> ValueType<Vec<NodeSpec>> {
    const REQUIREMENT: &str = "a list of node URLs, such as [\"redis://10.0.0.1:6379\"]";
    let read = |raw: &RawValue| {
        let entries: Vec<NodeEntry> = match raw {
            RawValue::Nodes(entries) => entries.clone(),
            // An unset variable in `--set nodes=$NODES` must not start embedded nodes.
            RawValue::Text(text) if text.trim().is_empty() => vec![NodeEntry::split("")],
            other => {
                let texts = other.list().ok_or_else(|| refuse(format!("must be {REQUIREMENT}")))?;
                texts.iter().map(|text| NodeEntry::split(text)).collect()
            }
        };
        if entries.len() > MAX_NODES {
            return Err(refuse(format!("has {} nodes, but must have at most {MAX_NODES}", entries.len())));
        }
        let read = |(i, entry)| NodeSpec::read(entry).map_err(|why| refuse(format!("is wrong: node {} {why}", i + 1)));
        entries.into_iter().enumerate().map(read).collect()
    };
    let to_toml = |value: &Vec<NodeSpec>| {
        let shown = |node: &NodeSpec| format!("{}={}", node.id(), redact(node.url.reveal()));
        value.iter().map(shown).collect::<Vec<_>>().into()
    };
    ValueType::new(REQUIREMENT, read, to_toml).with_range(format!(
        "a list of at most {MAX_NODES} URLs: redis://[user:password@]host[:port][/db], rediss:// (TLS), \
         redis+unix:///path or unix:///path"
    ))
}

/// Never shows the value, which may contain passwords.
fn refuse(why: String) -> ValueError {
    ValueError::Sentence(why)
}

#[cfg(test)]
mod tests {
    use super::super::error::Origin;
    use super::*;
    use proptest::prelude::*;

    fn read(raw: RawValue) -> Result<Vec<NodeSpec>, String> {
        crate::config::setting_macro::read("nodes", node_list(), Origin::Environment, raw).map_err(|e| e.to_string())
    }

    fn list(text: &str) -> Result<Vec<NodeSpec>, String> {
        read(RawValue::Text(text.into()))
    }

    fn one(text: &str) -> NodeSpec {
        list(text).expect(text).remove(0)
    }

    #[test]
    fn names_precede_an_equals_sign_and_default_to_the_address() {
        let named = one("a-1=redis://:p=q@h:1");
        assert_eq!((named.name.as_ref().map(NodeId::as_str), named.id().as_str()), (Some("a-1"), "a-1"));
        assert_eq!(named.url.reveal(), "redis://:p=q@h:1");
        let plain = one("redis://:p=q@[::1]:1");
        assert_eq!((plain.name.as_ref(), plain.id().as_str()), (None, "::1:1"));
        assert!(one("rediss://h").parsed().is_tls() && !one("redis://h").parsed().is_tls());
    }

    #[test]
    fn invalid_node_is_refused_by_its_position_and_without_its_secret() {
        for bad in [
            "",
            "h:6379",
            "http://h",
            "redis://",
            "redis://:SECRET@",
            "redis://:SECRET@h:0",
            "redis://:SEC/RET@h:1",
            "redis://SECRET/x@h",
            "redis://user:123/SECRET@h",
            "redis://user:123?SECRET@h",
            "redis://:SECRET@h:99999",
            "redis://:SECRET@h h",
            "unix://run/SECRET",
            "redis:///1",
            "a b=redis://:SECRET@h",
            "=redis://:SECRET@h",
        ] {
            let text = list(&format!("redis://ok,{bad}")).expect_err(bad);
            assert!(text.contains("`nodes` in the environment is wrong: node 2 "), "{text}");
            assert!(!text.contains("SECRET") && !text.contains("RET@"), "{text}");
        }
    }

    #[test]
    fn a_node_has_one_password() {
        let entry = |url: &str| NodeEntry { password_file: Some("/f".into()), ..NodeEntry::split(url) };
        let table = |url| read(RawValue::Nodes(vec![entry(url)]));
        assert_eq!(table("redis://u@h").expect("good")[0].password_file, Some("/f".into()));
        assert!(table("redis://u:SECRET@h").is_err_and(|e| e.contains("one of them")));
    }

    #[test]
    fn socket_with_an_unusual_path_needs_a_name() {
        assert!(list("unix:///tmp/a b").is_err());
        assert!(list("unix:///tmp/a+b").expect_err("+ is not in names").contains("needs a name"));
        assert_eq!(one("a=unix:///tmp/a+b").id().as_str(), "a");
    }

    #[test]
    fn more_nodes_than_the_limit_are_refused() {
        let urls = |n: usize| (0..n).map(|i| format!("redis://h{i}")).collect::<Vec<_>>().join(",");
        assert_eq!(list(&urls(MAX_NODES)).map(|n| n.len()), Ok(MAX_NODES));
        assert!(list(&urls(MAX_NODES + 1)).expect_err("16").contains("at most 15"));
    }

    proptest! {
        #[test]
        fn no_url_panics_and_debug_hides_it(text in "(a=)?(redis|rediss|unix)://\\PC{0,20}SECRET\\PC{0,20}") {
            // A socket's path is its address, and may hold anything.
            prop_assume!(!text.contains("unix:///"));
            let shown = format!("{:?}", list(&text));
            prop_assert!(!shown.contains("SECRET@"), "{}", shown);
        }
    }
}
