//! Compares `docs/cases.md` with the tests: each case has a row, and each test that a row names exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const CASES: u32 = 39;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Names of all functions under `src/` and `tests/` that a test attribute or a property stands over.
fn functions() -> BTreeSet<String> {
    let (mut names, mut folders) = (
        BTreeSet::new(),
        vec![root().join("src"), root().join("tests"), root().join("crates"), root().join("clients/rust")],
    );
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).expect("text");
                let declared = text.lines().filter_map(|line| {
                    let line = line.trim_start().trim_start_matches("async ");
                    line.strip_prefix("fn ")?.split('(').next().map(str::to_owned)
                });
                names.extend(declared);
            }
        }
    }
    names
}

#[test]
fn each_case_has_a_row_and_each_named_test_exists() {
    let table = fs::read_to_string(root().join("docs/cases.md")).expect("docs/cases.md");
    let functions = functions();
    let mut rows = BTreeSet::new();
    for line in table.lines().filter(|line| line.starts_with("| T")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [case, what, place] = cells[..] else { panic!("three cells: {line}") };
        assert!(!what.is_empty() && !place.is_empty(), "{line}");
        assert!(rows.insert(case.to_owned()), "{case} has two rows");
        let number = format!("t{}", &case[1..]);
        let named: Vec<&str> = place.split('`').skip(1).step_by(2).collect();
        for test in &named {
            assert!(functions.contains(*test), "{case}: there is no test {test}");
        }
        let own = named.iter().any(|test| test.split('_').any(|word| word == number));
        assert!(own || place.starts_with("Does not apply"), "{case}: no test of its number, and no reason");
    }
    let expected: BTreeSet<String> = (1..=CASES).map(|n| format!("T{n:02}")).collect();
    assert_eq!(rows, expected);
    // And the other way round: a test that carries a number is in the table.
    let is_number = |word: &str| word.len() == 3 && word.starts_with('t') && word[1..].parse::<u32>().is_ok();
    for test in functions.iter().filter(|name| name.split('_').next().is_some_and(is_number)) {
        assert!(table.contains(&format!("`{test}`")), "{test} is in no row");
    }
}
