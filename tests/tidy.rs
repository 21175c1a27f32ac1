//! Tests of the source tree itself: the layers, what may import what, sizes, and the vocabulary.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::Visit;

/// Modules by layer: a file imports only modules of lower layers, and its own.
const LAYERS: &[(&str, u8)] = &[
    ("api", 0),
    ("types", 0),
    ("bounded_file", 0),
    ("keyed_maps", 0),
    ("mutant", 0),
    ("worker_threads", 0),
    ("clock", 0),
    ("duration", 1),
    ("random", 1),
    ("backoff", 2),
    ("renewal", 3),
    ("protocol", 2),
    ("redlock", 4),
    ("waiting", 5),
    ("nodes", 5),
    ("auth", 5),
    ("manager", 6),
    ("audit", 7),
    ("metrics", 7),
    ("pages", 7),
    ("config", 7),
    ("webhooks", 7),
    ("http", 8),
    ("client", 8),
    ("app", 9),
    ("shutdown", 9),
    ("telemetry", 9),
    ("cli", 10),
    ("main", 11),
];

/// Where the code of each crate is, and before what its files are named: those of the base are modules like the service's own,
/// the client is one module.
const CRATES: &[(&str, &str)] = &[("src", ""), ("crates/common/src", ""), ("clients/rust/src", "client/")];

/// Lines of production code in one file.
const FILE_LINES_MAX: usize = 400;
/// Lines of one function, signature and braces included.
const FUNCTION_LINES_MAX: usize = 70;

/// Words of the glossary's last column that are also names of crates.
const EXCEPTIONS: &[&str] = &["ring"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below `dir` whose names end in one of `endings`.
fn files(dir: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(dir).expect("readable").map(|e| e.expect("readable").path()) {
        if path.is_dir() {
            found.extend(files(&path, endings));
        } else if endings.iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("readable")
}

/// A production file, parsed, without the items that are compiled for tests only.
struct Source {
    /// From the root of the repository.
    file: String,
    /// Below the `src/` of its crate, after the module that the crate is.
    path: String,
    production: syn::File,
    /// Lines of the production code.
    text: String,
}

impl Source {
    fn parse(file: String, path: String, text: &str) -> Self {
        let mut production = syn::parse_file(text).unwrap_or_else(|e| panic!("{file}: {e}"));
        let mut lines: Vec<&str> = text.lines().collect();
        production.items.retain(|item| {
            let is_test = attributes(item).iter().any(is_cfg_test);
            if is_test {
                let span = item.span();
                lines[span.start().line - 1..span.end().line].fill("");
            }
            !is_test
        });
        let text = lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
        Self { file, path, production, text }
    }

    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or(&self.path);
        first.strip_suffix(".rs").unwrap_or(first)
    }
}

/// Production files of all crates.
fn sources() -> Vec<Source> {
    let is_production = |path: &str| !path.ends_with("_tests.rs") && !path.ends_with("/tests.rs");
    let mut sources = Vec::new();
    for (dir, before) in CRATES {
        let src = root().join(dir);
        for file in files(&src, &[".rs"]) {
            let below = file.strip_prefix(&src).expect("below src").to_string_lossy().into_owned();
            if is_production(&below) {
                sources.push(Source::parse(format!("{dir}/{below}"), format!("{before}{below}"), &read(&file)));
            }
        }
    }
    sources
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item::{Const, Enum, Fn, Impl, Macro, Mod, Static, Struct, Trait, Type, Use};
    match item {
        Const(i) => &i.attrs,
        Enum(i) => &i.attrs,
        Fn(i) => &i.attrs,
        Impl(i) => &i.attrs,
        Macro(i) => &i.attrs,
        Mod(i) => &i.attrs,
        Static(i) => &i.attrs,
        Struct(i) => &i.attrs,
        Trait(i) => &i.attrs,
        Type(i) => &i.attrs,
        Use(i) => &i.attrs,
        _ => &[],
    }
}

fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
}

/// Every path that a `use` names, from its first segment on.
fn used_paths(tree: &syn::UseTree, before: &[String], found: &mut Vec<Vec<String>>) {
    let with = |name: String| [before, &[name]].concat();
    match tree {
        syn::UseTree::Path(path) => used_paths(&path.tree, &with(path.ident.to_string()), found),
        syn::UseTree::Name(name) => found.push(with(name.ident.to_string())),
        syn::UseTree::Rename(name) => found.push(with(name.ident.to_string())),
        syn::UseTree::Glob(_) => found.push(with("*".into())),
        syn::UseTree::Group(group) => group.items.iter().for_each(|item| used_paths(item, before, found)),
    }
}

/// What a file imports, spells out as a path, calls and selects.
#[derive(Default)]
struct Uses {
    paths: Vec<Vec<String>>,
    spawns: bool,
    unordered_selects: usize,
    /// Name and number of lines of each function.
    functions: Vec<(String, usize)>,
}

impl Uses {
    fn of(file: &syn::File) -> Self {
        let mut uses = Self::default();
        uses.visit_file(file);
        uses
    }

    fn function(&mut self, name: &syn::Ident, span: proc_macro2::Span) {
        self.functions.push((name.to_string(), span.end().line - span.start().line + 1));
    }

    fn tokens(&mut self, text: &str) {
        let squeezed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        self.spawns |= squeezed.contains("tokio::spawn(");
        self.paths.extend(squeezed.split("crate::").skip(1).map(|rest| vec!["crate".into(), word(rest).into()]));
    }
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    &text[..end]
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        used_paths(&item.tree, &[], &mut self.paths);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let text = item.tokens.to_string();
        let is_select = item.path.segments.last().is_some_and(|s| s.ident == "select");
        self.unordered_selects += usize::from(is_select && !text.starts_with("biased"));
        self.unordered_selects += nested_unordered_selects(&text);
        self.tokens(&text);
        syn::visit::visit_macro(self, item);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(function) = &*call.func {
            let names: Vec<String> = function.path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.spawns |= names == ["tokio", "spawn"];
        }
        syn::visit::visit_expr_call(self, call);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig.ident, item.sig.span().join(item.block.span()).expect("one file"));
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig.ident, item.sig.span().join(item.block.span()).expect("one file"));
        syn::visit::visit_impl_item_fn(self, item);
    }
}

/// A `select!` within another macro is seen as tokens only.
fn nested_unordered_selects(tokens: &str) -> usize {
    let begins = |rest: &&str| !rest.trim_start_matches([' ', '{']).starts_with("biased");
    tokens.split("select !").skip(1).filter(begins).count()
}

fn layer_of(module: &str) -> u8 {
    LAYERS.iter().find(|(name, _)| *name == module).unwrap_or_else(|| panic!("module {module} has no layer")).1
}

fn wrong_imports(source: &Source) -> BTreeSet<String> {
    let module = source.module();
    let imported = Uses::of(&source.production).paths.into_iter().filter_map(|path| match path.first()?.as_str() {
        "crate" | "redlockd_common" => path.get(1).cloned(),
        "redlockd_client" => Some("client".to_owned()),
        _ => None,
    });
    let imported: BTreeSet<String> = imported.filter(|name| name != module).collect();
    let is_module = |name: &String| LAYERS.iter().any(|(known, _)| known == name);
    let points_up = |name: &String| layer_of(name) >= layer_of(module);
    imported.into_iter().filter(is_module).filter(points_up).collect()
}

#[test]
fn a_file_imports_only_lower_layers_and_its_own_module() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.path.ends_with("lib.rs")) {
        wrong.extend(wrong_imports(source).iter().map(|other| format!("{} imports {other}", source.file)));
    }
    assert!(wrong.is_empty(), "imports that point up:\n{}", wrong.join("\n"));
}

/// What a child imports from its parent's `mod.rs` itself: names that are no sibling file.
fn parent_imports(source: &Source, is_sibling: impl Fn(&str) -> bool) -> Vec<String> {
    let paths = Uses::of(&source.production).paths;
    let from_parent = paths.into_iter().filter(|path| path[0] == "super" && path.len() > 1);
    from_parent.map(|path| path[1].clone()).filter(|name| name != "super" && !is_sibling(name)).collect()
}

#[test]
fn a_child_never_imports_its_parent() {
    let mut wrong = Vec::new();
    for source in sources() {
        let Some((dir, file)) = source.file.rsplit_once('/') else { continue };
        if file == "mod.rs" || !source.path.contains('/') {
            continue;
        }
        let dir = root().join(dir);
        // Files of the base are siblings where a module names them as its own.
        let dirs = [dir, root().join("crates/common/src")];
        let is_sibling =
            |name: &str| dirs.iter().any(|dir| dir.join(format!("{name}.rs")).exists() || dir.join(name).is_dir());
        wrong.extend(parent_imports(&source, is_sibling).iter().map(|name| format!("{}: {name}", source.file)));
    }
    assert!(wrong.is_empty(), "children that import their parent:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_owns() {
    let tests = CRATES.iter().map(|(dir, _)| *dir).chain(["tests", "clients/rust/examples"]);
    for file in tests.flat_map(|d| files(&root().join(d), &[".rs"])) {
        assert!(read(&file).starts_with("//! "), "{} does not open with `//! `", file.display());
    }
}

#[test]
fn files_and_functions_stay_readable() {
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            wrong.push(format!("{} has {lines} lines", source.file));
        }
        let functions = Uses::of(&source.production).functions.into_iter();
        let long = functions.filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
        wrong.extend(long.map(|(name, lines)| format!("{}: fn {name} has {lines} lines", source.file)));
    }
    assert!(wrong.is_empty(), "to be split:\n{}", wrong.join("\n"));
}

#[test]
fn every_source_file_is_part_of_the_program() {
    let dirs = CRATES.iter().map(|(dir, _)| root().join(dir));
    for all in dirs.map(|src| files(&src, &[".rs"]).into_iter().map(|f| (f.clone(), read(&f))).collect::<Vec<_>>()) {
        all_are_declared(&all);
    }
}

fn all_are_declared(all: &[(PathBuf, String)]) {
    for (file, _) in all {
        let stem = file.file_stem().and_then(|s| s.to_str()).expect("a name");
        if matches!(stem, "main" | "lib" | "mod") {
            continue;
        }
        let mentioned = all.iter().any(|(_, text)| {
            text.contains(&format!("mod {stem};")) || text.contains(&format!("#[path = \"{stem}.rs\"]"))
        });
        assert!(mentioned, "{} is declared nowhere", file.display());
    }
}

/// The words of the last column of the glossary in CONTRIBUTING.md, each with its row's term.
fn refused_words() -> BTreeMap<String, String> {
    let text = read(&root().join("CONTRIBUTING.md"));
    let glossary = text.split("## Glossary").nth(1).expect("a glossary").split("\n## ").next().unwrap_or_default();
    let mut refused = BTreeMap::new();
    for row in glossary.lines().filter(|line| line.starts_with('|')).skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let &[term, _, not] = cells.as_slice() else { panic!("a row of three cells: {row}") };
        refused.extend(not.split(", ").filter(|word| !word.is_empty()).map(|word| (word.to_owned(), term.to_owned())));
    }
    refused
}

/// Words of a line, identifiers taken apart: `may_ask`, `NodeMonitor`.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in line.split(|c: char| !c.is_alphabetic()) {
        let mut start = 0;
        let letters: Vec<(usize, char)> = part.char_indices().collect();
        for pair in letters.windows(2) {
            if pair[0].1.is_lowercase() && pair[1].1.is_uppercase() {
                words.push(part[start..pair[1].0].to_lowercase());
                start = pair[1].0;
            }
        }
        words.push(part[start..].to_lowercase());
    }
    words
}

fn refused_in(text: &str, refused: &BTreeMap<String, String>) -> Vec<(usize, String)> {
    let singular = |word: String| match word.strip_suffix('s') {
        Some(singular) if refused.contains_key(singular) => singular.to_owned(),
        _ => word,
    };
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let known = words(line).into_iter().map(singular).filter(|word| refused.contains_key(word));
        let wrong = known.filter(|word| !(EXCEPTIONS.contains(&word.as_str()) && names_crate(line, word)));
        found.extend(wrong.map(|word| (number + 1, word)));
    }
    found
}

/// Whether a line names the crate: `rustls::crypto::ring`, or quoted.
fn names_crate(line: &str, name: &str) -> bool {
    line.contains(&format!("::{name}"))
        || line.contains(&format!("{name}::"))
        || line.contains(&format!("`{name}`"))
        || line.contains(&format!("\"{name}\""))
}

#[test]
fn words_that_the_glossary_replaces_are_not_used() {
    let refused = refused_words();
    assert!(refused.len() > 20, "the glossary refuses only {} words: was it read?", refused.len());
    let mut places: Vec<PathBuf> = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    let crates = CRATES.iter().map(|(dir, _)| (*dir, [".rs", ".lua"]));
    let others = [("docs", [".md", ".md"]), ("templates", [".html", ".html"]), ("tests", [".rs", ".py"])];
    let outside = [("benches", [".rs", ".py"]), ("clients", [".mjs", ".py"])];
    for (dir, endings) in crates.chain(others).chain(outside) {
        places.extend(files(&root().join(dir), &endings));
    }
    // This file's own examples have such words.
    places
        .retain(|file| !file.ends_with("tests/tidy.rs") && !file.components().any(|part| part.as_os_str() == "target"));
    let mut wrong = Vec::new();
    for file in places {
        let name = file.strip_prefix(root()).expect("below the root").display().to_string();
        for (line, word) in refused_in(&read(&file), &refused) {
            wrong.push(format!("{name}:{line} says `{word}`; the term is {}", refused[&word]));
        }
    }
    assert!(wrong.is_empty(), "{} words:\n{}", wrong.len(), wrong.join("\n"));
}

/// The algorithm spawns nothing but its own clean-up, and only the composition root spawns for long.
#[test]
fn tasks_are_spawned_where_they_are_owned() {
    for source in sources().iter().filter(|source| source.module() != "app") {
        let spawns = Uses::of(&source.production).spawns;
        assert!(!spawns, "{} spawns a task that nobody awaits: use a tracker", source.file);
    }
}

/// `select!` without `biased;` draws its order from the runtime, which no seed reaches: a simulation
/// with one in it does not repeat itself.
#[test]
fn every_select_has_an_order() {
    for source in sources() {
        let unordered = Uses::of(&source.production).unordered_selects;
        assert_eq!(unordered, 0, "{}: a `select!` does not begin with `biased;`", source.file);
    }
}

#[test]
fn the_tests_of_this_file_can_fail() {
    let source = |path: &str, text: &str| Source::parse(format!("src/{path}"), path.into(), text);
    let early =
        "#[cfg(test)]\nuse crate::app::A;\nuse crate::{\n    http::{X, Y},\n    types,\n};\nfn f() { crate::cli::g() }";
    let early = source("redlock/round.rs", early);
    assert_eq!(wrong_imports(&early), ["cli", "http"].map(String::from).into());
    let other_crates = source("clock.rs", "use redlockd_common::backoff::Backoff;\nuse redlockd_client::Lock;");
    assert_eq!(wrong_imports(&other_crates), ["backoff", "client"].map(String::from).into());
    let child = source("redlock/round.rs", "use super::{\n    quorum::Tally,\n    Redlock,\n};");
    assert_eq!(parent_imports(&child, |name| name == "quorum"), ["Redlock"]);
    let tasks = source("redlock/round.rs", "fn f() { tokio::spawn(g()); }\nasync fn g() { select! { a = b => {} } }");
    let uses = Uses::of(&tasks.production);
    assert!(uses.spawns);
    assert_eq!(uses.unordered_selects, 1);
    assert_eq!(uses.functions[0], ("f".into(), 1));
    let nested =
        source("redlock/x.rs", "async fn g() { outer! { select! { a = b => {} } select! { biased; a = b => {} } } }");
    assert_eq!(Uses::of(&nested.production).unordered_selects, 1);
    assert_eq!(early.text.lines().count(), 5);
    let refused = BTreeMap::from([("seat".to_owned(), "waiter".to_owned()), ("ring".to_owned(), "notice".to_owned())]);
    let text = "let aSeat = rustls::crypto::ring::default();\nring_it(); // seating";
    assert_eq!(refused_in(text, &refused), [(1, "seat".into()), (2, "ring".into())]);
    assert!(layer_of("cli") > layer_of("http"));
}
