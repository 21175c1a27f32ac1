//! The tree itself is tested: the law of layers, what each file says of itself, its size, and words
//! that have no place in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Rooms by layer: a file imports only rooms of lower layers, and its own.
const LAYERS: &[(&str, u8)] = &[
    ("api", 0),
    ("types", 0),
    ("duration", 0),
    ("mutant", 0),
    ("protocol", 1),
    ("redlock", 2),
    ("manager", 3),
    ("nodes", 3),
    ("auth", 3),
    ("audit", 4),
    ("metrics", 4),
    ("views", 4),
    ("config", 4),
    ("http", 5),
    ("client", 5),
    ("app", 6),
    ("shutdown", 6),
    ("telemetry", 6),
    ("cli", 7),
    ("main", 8),
];

/// Lines beyond which a file is to be split: some room above the 400 that are the aim.
const LINES_MAX: usize = 560;

/// Words that name the place where the project is made, or that its terms replace.
const BANNED: &[&str] = &["blacklist", "whitelist", "FIXME", "XXX:"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).expect("readable").map(|e| e.expect("readable").path()) {
        match entry {
            path if path.is_dir() => files.extend(rust_files(&path)),
            path if path.extension().is_some_and(|e| e == "rs") => files.push(path),
            _ => {}
        }
    }
    files.sort();
    files
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("readable")
}

/// Source files with their path below `src/`.
fn sources() -> Vec<(String, String)> {
    let src = root().join("src");
    let below = |file: &PathBuf| file.strip_prefix(&src).expect("below src").to_string_lossy().into_owned();
    rust_files(&src).iter().map(|file| (below(file), read(file))).collect()
}

/// The part of a file that is not its test module.
fn production(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

fn room_of(path: &str) -> &str {
    let first = path.split('/').next().unwrap_or(path);
    let name = first.strip_suffix(".rs").unwrap_or(first);
    name.strip_suffix("_tests").unwrap_or(name)
}

fn layer_of(room: &str) -> u8 {
    LAYERS.iter().find(|(name, _)| *name == room).unwrap_or_else(|| panic!("room {room} has no layer")).1
}

/// Rooms that a text names as `crate::room`, also within braces.
fn imported_rooms(text: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        if let Some(inner) = rest.strip_prefix('{') {
            let inner = inner.split('}').next().unwrap_or_default();
            rooms.extend(inner.split(',').map(|part| word(part.trim()).to_owned()));
        } else {
            rooms.insert(word(rest).to_owned());
        }
    }
    rooms.retain(|room| !room.is_empty());
    rooms
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    &text[..end]
}

#[test]
fn a_file_imports_only_lower_layers_and_its_own_room() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let room = room_of(&path).to_owned();
        if room == "lib" {
            continue;
        }
        for other in imported_rooms(production(&text)) {
            if other != room && layer_of(&other) >= layer_of(&room) {
                wrong.push(format!("src/{path} imports {other}"));
            }
        }
    }
    assert!(wrong.is_empty(), "imports that point up:\n{}", wrong.join("\n"));
}

#[test]
fn a_child_never_imports_its_parent() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let Some((dir, file)) = path.rsplit_once('/') else { continue };
        if file == "mod.rs" || path.ends_with("_tests.rs") || file == "tests.rs" {
            continue;
        }
        for line in production(&text).lines() {
            let Some(rest) = line.trim().strip_prefix("use super::") else { continue };
            let src = root().join("src").join(dir);
            let names = rest.trim_start_matches('{').trim_end_matches([';', '}']).split(", ");
            let names = if rest.starts_with('{') { names.map(word).collect() } else { vec![word(rest)] };
            for sibling in names {
                let exists = src.join(format!("{sibling}.rs")).exists() || src.join(sibling).is_dir();
                if !exists && sibling != "super" {
                    wrong.push(format!("src/{path}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "children that import their parent:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_owns() {
    for file in ["src", "tests"].iter().flat_map(|d| rust_files(&root().join(d))) {
        assert!(read(&file).starts_with("//! "), "{} does not open with `//! `", file.display());
    }
}

#[test]
fn files_stay_readable() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "src/{path} has {lines} lines: split it");
    }
}

#[test]
fn every_source_file_is_part_of_the_program() {
    let all = sources();
    for (path, _) in &all {
        let file = Path::new(path);
        let stem = file.file_stem().and_then(|s| s.to_str()).expect("a name");
        if matches!(path.as_str(), "main.rs" | "lib.rs") || stem == "mod" {
            continue;
        }
        let mentioned = all.iter().any(|(_, text)| {
            text.contains(&format!("mod {stem};")) || text.contains(&format!("#[path = \"{stem}.rs\"]"))
        });
        assert!(mentioned, "src/{path} is declared nowhere");
    }
}

#[test]
fn words_that_have_no_place_here() {
    let documents = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "openapi.yaml", "Makefile"];
    let documents = documents.iter().map(|name| root().join(name));
    let code = ["src", "docs"].iter().map(|d| root().join(d)).filter(|d| d.exists()).flat_map(|d| rust_files(&d));
    for file in documents.chain(code) {
        let text = read(&file);
        for banned in BANNED {
            assert!(!text.contains(banned), "{} says {banned:?}", file.display());
        }
    }
}

/// The algorithm spawns nothing but its own clean-up, and only the composition root spawns for long.
#[test]
fn tasks_are_spawned_where_they_are_owned() {
    for (path, text) in sources() {
        let room = room_of(&path);
        if path.ends_with("_tests.rs") || path.ends_with("/tests.rs") {
            continue;
        }
        let spawns = production(&text).contains("tokio::spawn(");
        assert!(!spawns || room == "app", "src/{path} spawns a task that nobody awaits: use a tracker");
    }
}

/// `select!` without `biased;` draws its order from the runtime, which no seed reaches: a simulation
/// with one in it does not repeat itself.
#[test]
fn every_select_has_an_order() {
    for (path, text) in sources() {
        assert_eq!(unordered_selects(production(&text)), 0, "src/{path}: a `select!` does not begin with `biased;`");
    }
}

fn unordered_selects(text: &str) -> usize {
    let begins = |rest: &&str| !rest.trim_start().starts_with("biased;");
    text.split("select! {").skip(1).filter(begins).count()
}

#[test]
fn the_tests_of_this_file_can_fail() {
    assert_eq!(unordered_selects("select! {\n biased;\n a => b } select! {\n a = b => {} }"), 1);
    assert_eq!(
        imported_rooms("use crate::{http, app}; crate::redlock::x"),
        ["app", "http", "redlock"].map(String::from).into()
    );
    assert_eq!(room_of("metrics_tests.rs"), "metrics");
    assert!(layer_of("cli") > layer_of("http"));
}
