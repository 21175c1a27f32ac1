//! Holds the documents against the program: the table of settings, links, and the environment
//! variables and settings that they mention. `make docs-table` writes the table anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use redlockd::config::{DEFAULTS, KEYS};

const DOCUMENTS: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/security.md"];
const BEGIN: &str = "<!-- settings -->\n";
const END: &str = "<!-- /settings -->";
/// Set: the table is written rather than compared.
const WRITE_VARIABLE: &str = "REDLOCKD_WRITE_DOCUMENTS";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// What `config/redlockd.toml` says of a key: what it is, its range, and its default.
fn row(key: &str) -> String {
    let (head, tail) = DEFAULTS.split_once(&format!("\n{key} = ")).expect("every key is in the file");
    let default = tail.lines().next().expect("there is a value");
    let comment: Vec<&str> =
        head.rsplit("\n\n").next().expect("a split has a part").lines().map(|l| l.trim_start_matches("# ")).collect();
    let range_at = comment.iter().position(|l| l.starts_with("Range: ")).expect("each key has a range");
    let what = comment[..range_at].join(" ");
    let range = comment[range_at].trim_start_matches("Range: ");
    format!("| `{key}` | `{default}` | {} | {} |\n", range.replace('|', "\\|"), what.replace('|', "\\|"))
}

#[test]
fn the_table_of_settings_is_the_shipped_file() {
    let rows: String = KEYS.iter().map(|key| row(key.name)).collect();
    let table = format!("| Key | Default | Range | What it is |\n|---|---|---|---|\n{rows}");
    let readme = read("README.md");
    let (before, rest) = readme.split_once(BEGIN).expect("the table's begin mark");
    let (written, after) = rest.split_once(END).expect("the table's end mark");
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        std::fs::write(path("README.md"), format!("{before}{BEGIN}{table}{END}{after}")).expect("writable");
    } else {
        assert!(written == table, "README.md is not up to date: run `make docs-table`");
    }
}

#[test]
fn relative_links_lead_somewhere() {
    let mut links = 0;
    for document in DOCUMENTS {
        for link in read(document).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !link.contains("://") {
                let file = link.split('#').next().unwrap_or_default();
                let beside = path(document).parent().map(|dir| dir.join(file)).unwrap_or_default();
                assert!(file.is_empty() || beside.exists(), "{document}: {link}");
                links += 1;
            }
        }
    }
    assert!(links > 0);
}

/// `REDLOCKD_…` in a document is a variable that exists.
#[test]
fn the_variables_that_are_mentioned_exist() {
    let known: BTreeSet<String> = KEYS.iter().map(redlockd::config::Key::variable).collect();
    let others = ["REDLOCKD_CONFIG", "REDLOCKD_KEY_FILE", "REDLOCKD_IDLE_CONNECTIONS", WRITE_VARIABLE];
    for document in DOCUMENTS.into_iter().chain(["config/redlockd.toml", "examples/five-nodes.sh"]) {
        let text = read(document);
        let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
        let words = text.split(|c| !is_name(c)).filter(|word| word.starts_with("REDLOCKD_") && word.len() > 9);
        for word in words {
            assert!(known.contains(word) || others.contains(&word), "{document} mentions {word}");
        }
    }
}

/// In ARCHITECTURE.md, a limit that is said to be a setting is one.
#[test]
fn the_limits_that_are_called_settings_are_settings() {
    let text = read("ARCHITECTURE.md");
    let limits = text.split("\n## Limits\n").nth(1).expect("a section on limits");
    let named = limits.lines().filter_map(|line| line.split("setting `").nth(1)?.split('`').next());
    let named: Vec<&str> = named.collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        assert!(redlockd::config::Key::find(name).is_some(), "{name} is not a setting");
    }
}
