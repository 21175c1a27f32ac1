//! The positional arguments of `run`: the names of locks, and the command.

use std::ffi::OsString;

use crate::types::ResourceName;

/// The argument that ends the names.
const DASHES: &str = "--";

/// Separates names and command: `run A B -- COMMAND`, `run A -- COMMAND`, and `run A COMMAND`. `words` follow the first name,
/// without a `--` directly after it; `all` are the arguments of this process, which show whether there was one. In
/// `run A sh -c … -- x` the `--` belongs to the command, since not all words before it are names.
///
/// Errors: what is wrong, in a sentence.
pub(super) fn split(
    first: ResourceName,
    mut words: Vec<OsString>,
    all: &[OsString],
) -> Result<(Vec<ResourceName>, Vec<OsString>), String> {
    // The words are the last arguments, unchanged.
    let before = all.len().checked_sub(words.len() + 1).and_then(|at| all.get(at));
    let mut names = vec![first];
    if before.is_none_or(|word| word != DASHES)
        && let Some(end) = words.iter().position(|word| word == DASHES)
        && let Some(others) = words[..end].iter().map(name).collect::<Option<Vec<_>>>()
    {
        words.drain(..=end);
        names.extend(others);
    }
    if words.is_empty() {
        return Err("the command is missing after --".to_owned());
    }
    Ok((names, words))
}

/// `None` for an option, and for an invalid name.
fn name(word: &OsString) -> Option<ResourceName> {
    word.to_str().filter(|word| !word.starts_with('-')).and_then(|word| ResourceName::parse(word).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the arguments are parsed: a `--` after the first name is left out.
    fn split_line(line: &str) -> Result<(Vec<String>, Vec<String>), String> {
        let all: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let first = all.iter().position(|word| word == "a").expect("the first name");
        let words = &all[first + 1..];
        let words = words.strip_prefix(&[OsString::from("--")]).unwrap_or(words);
        let (names, command) = split(ResourceName::parse("a").expect("valid"), words.to_vec(), &all)?;
        let text = |word: OsString| word.into_string().expect("text");
        Ok((names.iter().map(ToString::to_string).collect(), command.into_iter().map(text).collect()))
    }

    #[test]
    fn names_end_at_the_first_dashes() {
        for (line, names, command) in [
            ("run a true", "a", "true"),
            ("run a -- true", "a", "true"),
            ("run a sh -c x", "a", "sh -c x"),
            ("run a b c/d -- true", "a b c/d", "true"),
            ("run --wait 5s a b -- git checkout -- f", "a b", "git checkout -- f"),
            ("run a -- git checkout -- f", "a", "git checkout -- f"),
            ("run a -- -- f", "a", "-- f"),
            ("run a sh -c -- x", "a", "sh -c -- x"),
            ("run a ./x -- y", "a", "./x -- y"),
            ("run a b --ttl 5s -- y", "a", "b --ttl 5s -- y"),
        ] {
            let (got, words) = split_line(line).expect(line);
            assert_eq!((got.join(" ").as_str(), words.join(" ").as_str()), (names, command), "{line}");
        }
        assert!(split_line("run a b --").expect_err("no command").contains("missing"));
    }
}
