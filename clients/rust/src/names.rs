//! The locks that one request names.

use std::fmt;

use redlockd_common::types::{Invalid, ResourceName};

/// Maximum number of locks in one request.
pub const NAMES_MAX: usize = 16;

/// One lock, or several that are acquired together: all of them or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockNames {
    first: ResourceName,
    others: Vec<ResourceName>,
}

impl LockNames {
    /// Checks several names.
    ///
    /// Errors: [`Invalid`] for none, for more than [`NAMES_MAX`], and for one that is named twice.
    pub fn new(names: impl IntoIterator<Item = ResourceName>) -> Result<Self, Invalid> {
        let mut names = names.into_iter();
        let first = names.next().ok_or_else(|| Invalid("a lock must be named".to_owned()))?;
        let others: Vec<ResourceName> = names.collect();
        if others.len() >= NAMES_MAX {
            return Err(Invalid(format!("at most {NAMES_MAX} locks can be named, not {}", others.len() + 1)));
        }
        let all = Self { first, others };
        let twice = all.iter().enumerate().find(|(at, name)| all.iter().take(*at).any(|before| before == *name));
        let refused = twice.map(|(_, name)| Invalid(format!("{name} is named twice")));
        refused.map_or(Ok(all), Err)
    }

    /// All names, in the given order.
    pub fn iter(&self) -> impl Iterator<Item = &ResourceName> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The first or only name.
    pub fn first(&self) -> &ResourceName {
        &self.first
    }

    /// The name, unless there are several.
    pub fn single(&self) -> Option<&ResourceName> {
        self.others.is_empty().then_some(&self.first)
    }
}

impl From<ResourceName> for LockNames {
    fn from(name: ResourceName) -> Self {
        Self { first: name, others: Vec::new() }
    }
}

/// The names, separated by commas and blanks.
impl fmt::Display for LockNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.first, f)?;
        self.others.iter().try_for_each(|name| write!(f, ", {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Result<LockNames, Invalid> {
        LockNames::new(names.iter().map(|name| ResourceName::parse(name).expect("valid")))
    }

    #[test]
    fn names_are_distinct_and_few() {
        let two = names(&["b", "a"]).expect("two");
        assert_eq!((two.to_string().as_str(), two.single(), two.first().as_str()), ("b, a", None, "b"));
        let one = names(&["a"]).expect("one");
        assert_eq!((one.single(), one.to_string().as_str()), (Some(one.first()), "a"));
        assert_eq!(one, ResourceName::parse("a").expect("valid").into());
        let many: Vec<String> = (0..=NAMES_MAX).map(|i| format!("n{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(names(&many[1..]).map(|all| all.iter().count()), Ok(NAMES_MAX));
        for (bad, why) in [(&[][..], "must be named"), (&["a", "b", "a"], "a is named twice"), (&many, "at most 16")] {
            assert!(names(bad).expect_err("refused").0.contains(why), "{bad:?}");
        }
    }
}
