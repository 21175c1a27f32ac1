//! Reads a configuration file as a layer; values are checked later.

use std::path::Path;

use super::error::{ConfigError, Origin};
use super::raw::{Layer, NodeEntry, RawValue};
use super::secret::Secret;
use super::setting_macro::nearest;

/// `config/redlockd.toml`: every setting with its default, range and reason.
pub const DEFAULTS: &str = include_str!("../../config/redlockd.toml");
/// Maximum size of a file: a hundred times that of the defaults.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Reads a file as a layer.
///
/// Errors: [`ConfigError`]; none repeats a line of the file, which may contain passwords.
pub(super) fn read(path: &Path) -> Result<Layer, Vec<ConfigError>> {
    let refuse = |reason: String| vec![ConfigError::File { path: path.to_owned(), reason }];
    let unreadable = |e: std::io::Error| refuse(format!("cannot be read: {e}"));
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > FILE_MAX_BYTES {
        return Err(refuse(format!("has {size} bytes, but must have at most {FILE_MAX_BYTES}")));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse(&text, Origin::File).map_err(|problem| match problem {
        FileError::NotToml(reason) => refuse(reason),
        FileError::Entries(errors) => errors,
    })
}

/// Why a file's text is refused.
#[derive(Debug)]
pub(super) enum FileError {
    /// The reason, with the line.
    NotToml(String),
    /// Errors in the list of nodes.
    Entries(Vec<ConfigError>),
}

/// Reads TOML as a layer.
pub(super) fn parse(text: &str, origin: Origin) -> Result<Layer, FileError> {
    let table: toml::Table = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1);
        let reason = e.message().lines().next().unwrap_or("unreadable").to_owned();
        FileError::NotToml(format!("is not TOML: line {line}: {reason}"))
    })?;
    let has_both = table.contains_key("node") && table.contains_key("nodes");
    let mut layer = Layer::new(origin);
    for (key, value) in table {
        match (key.as_str(), value) {
            ("node", value) => {
                let nodes = node_tables(value, origin).map_err(FileError::Entries)?;
                layer.put("nodes", RawValue::Nodes(nodes));
            }
            (_, value) => layer.put(key, RawValue::Toml(value)),
        }
    }
    if has_both {
        let both = "and [[node]] are both given: use one of them";
        return Err(FileError::Entries(vec![ConfigError::hidden("nodes", origin, both)]));
    }
    Ok(layer)
}

/// `[[node]]` tables.
fn node_tables(value: toml::Value, origin: Origin) -> Result<Vec<NodeEntry>, Vec<ConfigError>> {
    let refuse = |why: &str| vec![ConfigError::hidden("node", origin, why)];
    let toml::Value::Array(tables) = value else {
        return Err(refuse("must be tables, each beginning with [[node]]"));
    };
    let mut nodes = Vec::new();
    let mut errors = Vec::new();
    for table in tables {
        let toml::Value::Table(table) = table else {
            return Err(refuse("must be tables, each beginning with [[node]]"));
        };
        let unknown = table.keys().filter(|key| !matches!(key.as_str(), "url" | "name" | "password_file"));
        errors.extend(unknown.map(|key| ConfigError::UnknownKey {
            key: format!("node.{key}"),
            origin,
            nearest: nearest(key, ["url", "name", "password_file"]),
        }));
        let text = |key: &str| table.get(key).map(|value| value.as_str().map(str::to_owned));
        match (text("name"), text("url"), text("password_file")) {
            (name @ (None | Some(Some(_))), Some(Some(url)), file @ (None | Some(Some(_)))) => {
                nodes.push(NodeEntry { name: name.flatten(), url: Secret::new(url), password_file: file.flatten() });
            }
            _ => errors.extend(refuse("must have a `url`, and may have a `name` and a `password_file`, all texts")),
        }
    }
    if errors.is_empty() { Ok(nodes) } else { Err(errors) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> String {
        match parse(text, Origin::File) {
            Ok(layer) => format!("{:?}", layer.entries.keys()),
            Err(FileError::NotToml(reason)) => reason,
            Err(FileError::Entries(errors)) => super::super::error::ConfigErrors(errors).to_string(),
        }
    }

    #[test]
    fn invalid_toml_is_refused_with_the_line_and_without_the_text() {
        let text = errors("listen = \"127.0.0.1:1\"\nnodes = [\"redis://:hunter2@h\"\nretry_max = 1\n");
        assert!(text.starts_with("is not TOML: line ") && !text.contains("hunter2") && !text.contains('\n'), "{text}");
        assert!(
            errors("retry_max = 1\nretry_max = 2").starts_with("is not TOML: line 2"),
            "{}",
            errors("retry_max = 1\nretry_max = 2")
        );
    }

    #[test]
    fn node_tables_are_read_and_their_errors_named() {
        assert_eq!(errors("[[node]]\nurl = \"redis://h\"\n[[node]]\nname = \"b\"\nurl = \"redis://i\""), "[\"nodes\"]");
        assert_eq!(
            errors("[[node]]\nurl = \"redis://h\"\nnam = \"a\""),
            "`node.nam` in the configuration file is not a setting: did you mean `name`?"
        );
        let no_url = "`node` in the configuration file must have a `url`, and may have a `name` and a `password_file`, all \
                      texts";
        assert_eq!(errors("[[node]]\nname = \"a\""), no_url);
        assert_eq!(errors("[[node]]\nurl = 1"), no_url);
        assert_eq!(errors("[[node]]\nurl = \"redis://h\"\npassword_file = 1"), no_url);
        let tables = "`node` in the configuration file must be tables, each beginning with [[node]]";
        assert_eq!(errors("node = \"redis://h\""), tables);
        assert_eq!(errors("[node]\nurl = \"redis://h\""), tables);
        assert_eq!(errors("node = [1]"), tables);
    }

    #[test]
    fn list_and_tables_together_are_refused() {
        assert!(errors("nodes = []\n[[node]]\nurl = \"redis://h\"").contains("use one of them"));
    }

    #[test]
    fn missing_file_is_named() {
        let errors = read(Path::new("/nowhere/redlockd.toml")).expect_err("not there");
        assert!(errors[0].to_string().starts_with("the configuration file /nowhere/redlockd.toml cannot be read: "));
    }
}
