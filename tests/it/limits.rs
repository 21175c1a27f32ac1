//! Holds the numbers of `docs/limits.md` against the code. Its cells read ``VALUE (`CONSTANT`)`` or
//! ``setting `NAME`: VALUE``; `make docs` writes each VALUE from the constant in the code or the setting's default. A constant
//! whose name is not unique is written with its module: `transport::ANSWER_TIMEOUT`.

use std::path::Path;
use std::time::Duration;

use redlockd::config::SETTINGS;
use redlockd::duration::parse_duration;

use crate::documents::{hold, path, read};

/// A constant as it stands in the source.
struct Constant {
    /// The path of its file below `src/`, without `.rs`; of the client after `client/`.
    file: String,
    name: String,
    is_duration: bool,
    expression: String,
}

/// All constants of numbers and durations below `dir`, in files that are named from `root`.
fn constants((root, before): (&Path, &str), dir: &Path, found: &mut Vec<Constant>) {
    for entry in std::fs::read_dir(dir).expect("readable") {
        let entry = entry.expect("readable").path();
        if entry.is_dir() {
            constants((root, before), &entry, found);
            continue;
        }
        let below = entry.strip_prefix(root).expect("below src").with_extension("");
        let file = format!("{before}{}", below.display());
        for line in std::fs::read_to_string(&entry).unwrap_or_default().lines() {
            let declaration = line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
            let declaration = declaration.trim_start_matches("pub ").strip_prefix("const ");
            let parts = declaration.and_then(|rest| rest.strip_suffix(';')?.split_once(": ")?.1.split_once(" = "));
            if let Some((kind, expression)) = parts {
                let name = declaration.and_then(|rest| rest.split(':').next()).unwrap_or_default().to_owned();
                let (is_duration, expression) = (kind == "Duration", expression.to_owned());
                found.push(Constant { file: file.clone(), name, is_duration, expression });
            }
        }
    }
}

/// A product or shift of whole numbers.
fn number(expression: &str) -> Option<u64> {
    if let Some((left, right)) = expression.split_once(" << ") {
        return Some(number(left)? << number(right)?);
    }
    expression.split(" * ").map(|factor| factor.replace('_', "").parse::<u64>().ok()).product()
}

fn duration(expression: &str) -> Option<Duration> {
    let (unit, argument) = expression.strip_prefix("Duration::from_")?.strip_suffix(')')?.split_once('(')?;
    let argument = number(argument)?;
    let seconds = match unit {
        "millis" => return Some(Duration::from_millis(argument)),
        "secs" => 1,
        "mins" => 60,
        "hours" => 3_600,
        _ => return None,
    };
    Some(Duration::from_secs(argument * seconds))
}

fn shown_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).expect("not that long");
    let units = [(3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    let (size, unit) = units.into_iter().find(|(size, _)| ms >= *size && ms.is_multiple_of(*size)).unwrap_or((1, "ms"));
    format!("{} {unit}", shown_count(ms / size))
}

fn shown_bytes(bytes: u64) -> String {
    let units = [(1 << 20, "MiB"), (1 << 10, "KiB")];
    let (size, unit) =
        units.into_iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size)).unwrap_or((1, "bytes"));
    format!("{} {unit}", shown_count(bytes / size))
}

/// With a comma before each three digits.
fn shown_count(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|g| std::str::from_utf8(g).ok()).collect();
    groups.join(",")
}

/// The value of `NAME` or `MODULE::NAME`.
fn constant(constants: &[Constant], reference: &str) -> String {
    let (module, name) = reference.rsplit_once("::").unwrap_or(("", reference));
    let fits = |c: &&Constant| c.name == name && (module.is_empty() || c.file.split('/').any(|part| part == module));
    let found: Vec<&Constant> = constants.iter().filter(fits).collect();
    let [constant] = found[..] else {
        panic!(
            "docs/limits.md: `{reference}` is {} constants, in {:?}",
            found.len(),
            found.iter().map(|c| &c.file).collect::<Vec<_>>()
        )
    };
    let value = match constant.is_duration {
        true => duration(&constant.expression).map(shown_duration),
        false if name.contains("BYTES") => number(&constant.expression).map(shown_bytes),
        false => number(&constant.expression).map(shown_count),
    };
    value.unwrap_or_else(|| panic!("`{reference}`: `{}` cannot be read", constant.expression))
}

/// The default of a setting.
fn setting(name: &str) -> String {
    let setting = SETTINGS.iter().find(|setting| setting.name == name);
    let default = setting.unwrap_or_else(|| panic!("docs/limits.md: `{name}` is no setting")).default.trim_matches('"');
    match (parse_duration(default), default.parse()) {
        (_, Ok(bytes)) if name.ends_with("_limit") && name != "cleanup_limit" => shown_bytes(bytes),
        (_, Ok(count)) => shown_count(count),
        (Ok(duration), _) => shown_duration(duration),
        _ => panic!("the default of {name} is no number"),
    }
}

/// Length of the value at the start of `text`: digits and, if one follows, a unit.
fn value_length(text: &str) -> usize {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(text.len());
    let digits = text[..digits].trim_end_matches(',').len();
    let unit = text[digits..].strip_prefix(' ').and_then(|rest| rest.split([' ', ',', ';']).next()).unwrap_or_default();
    let is_unit = ["bytes", "KiB", "MiB", "ms", "s", "min", "h"].contains(&unit);
    if is_unit { digits + 1 + unit.len() } else { digits }
}

/// The document with each value taken from the code.
fn filled(text: &str, constants: &[Constant]) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("(`") {
        let reference = rest[at + 2..].split('`').next().unwrap_or_default();
        let is_constant = reference.rsplit("::").next().is_some_and(|name| {
            name.len() > 3 && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
        });
        let before = &rest[..at];
        if is_constant {
            let end = before.rfind(|c: char| c.is_ascii_digit()).expect("a value before each constant") + 1;
            let start = before[..end].rfind(|c: char| !c.is_ascii_digit() && c != ',').map_or(0, |i| i + 1);
            filled.push_str(&before[..start]);
            filled.push_str(&constant(constants, reference));
            filled.push_str(&before[start + value_length(&before[start..])..]);
        } else {
            filled.push_str(before);
        }
        filled.push_str("(`");
        rest = &rest[at + 2..];
    }
    filled.push_str(rest);
    let mut parts = filled.split("setting `");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, value) = part.split_once("`: ").expect("a value after each setting");
        text.push_str(&format!("setting `{name}`: {}{}", setting(name), &value[value_length(value)..]));
    }
    text
}

#[test]
fn numbers_of_the_limits_are_those_of_the_code() {
    let mut all = Vec::new();
    for (src, before) in [("src", ""), ("crates/common/src", ""), ("clients/rust/src", "client/")] {
        constants((&path(src), before), &path(src), &mut all);
    }
    let present = read("docs/limits.md");
    assert!(present.matches("(`").count() > 40 && present.matches("setting `").count() > 15, "{present}");
    hold("docs/limits.md", &filled(&present, &all));
}

#[test]
fn values_are_read_and_written() {
    assert_eq!(
        ["1 << 20", "16 * 1024 * 1024", "20_000", "x"].map(number),
        [Some(1 << 20), Some(16 << 20), Some(20_000), None]
    );
    assert_eq!(duration("Duration::from_secs(60)").map(shown_duration).as_deref(), Some("1 min"));
    assert_eq!(duration("Duration::from_millis(200)").map(shown_duration).as_deref(), Some("200 ms"));
    assert_eq!((shown_bytes(4_096).as_str(), shown_bytes(255).as_str()), ("4 KiB", "255 bytes"));
    assert_eq!(shown_count(1_000_000), "1,000,000");
    assert_eq!(["10 s, twice", "64 KiB", "1,000, twice", "15", "256 each"].map(value_length), [4, 6, 5, 2, 3]);
    let constants =
        [Constant { file: "a/b".into(), name: "MANY".into(), is_duration: false, expression: "7_000".into() }];
    let text = "| a | 1 MiB; 5 of 6 hops (`b::MANY`), setting `max_ttl`: 1 s | x |";
    assert_eq!(filled(text, &constants), "| a | 1 MiB; 5 of 7,000 hops (`b::MANY`), setting `max_ttl`: 5 min | x |");
}
