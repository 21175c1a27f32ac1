//! Access rules: a right, and a pattern of names that it is for. They only ever allow: a set of
//! rules allows what one of them allows, so adding one never takes anything away. Names come in as
//! [`ResourceName`], decoded and checked, and are compared byte for byte: no spelling gets around a rule.

use std::fmt;
use std::str::FromStr;

use crate::types::{Invalid, RESOURCE_MAX_BYTES, ResourceName};

/// What can be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Right {
    /// See who holds and who waits.
    Read,
    /// Acquire, extend, release; reads as well.
    Acquire,
    /// End somebody else's lease; reads as well.
    Force,
    /// Hear what happens; reads as well.
    Events,
    /// See the service itself: its metrics and its nodes. Has no names.
    Metrics,
    /// Everything, on every name.
    Admin,
}

/// Every right, with its word.
pub const RIGHTS: [(Right, &str); 6] = [
    (Right::Read, "read"),
    (Right::Acquire, "acquire"),
    (Right::Force, "force"),
    (Right::Events, "events"),
    (Right::Metrics, "metrics"),
    (Right::Admin, "admin"),
];

impl Right {
    /// The word in a rule and in the answer that misses it.
    pub fn as_str(self) -> &'static str {
        RIGHTS.iter().find(|(right, _)| *right == self).map_or("", |(_, word)| word)
    }

    /// Whether the right is for names.
    pub fn has_names(self) -> bool {
        !matches!(self, Self::Metrics | Self::Admin)
    }

    /// Whether whoever has `self` has `other`, on the same names. Whoever may acquire learns who is
    /// in the way, and whoever hears events knows who holds: so these read.
    fn includes(self, other: Self) -> bool {
        match self {
            Self::Admin => true,
            Self::Acquire | Self::Force | Self::Events => other == self || other == Self::Read,
            Self::Read | Self::Metrics => other == self,
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One part of a pattern, between slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Exactly one segment, which looks like this; `*` stands for any run of characters.
    Like(String),
    /// Exactly one segment.
    One,
    /// Any number of segments, none as well. Only behind a `One`: together they are `**`.
    Any,
}

/// Which names: segments as in a name, where `*` stands for any run of characters within one, and a
/// segment `**` for one segment or more.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

impl Pattern {
    /// Reads one.
    ///
    /// Errors: [`Invalid`] for what could match no name, or is too long.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.len() > RESOURCE_MAX_BYTES {
            return Err(Invalid(format!("a pattern has at most {RESOURCE_MAX_BYTES} bytes")));
        }
        let mut parts = Vec::new();
        for segment in text.split('/') {
            match segment {
                "**" => parts.extend([Part::One, Part::Any]),
                "*" => parts.push(Part::One),
                _ if segment.contains("**") => {
                    return Err(Invalid(format!("`**` in the pattern `{text}` must be a segment of its own")));
                }
                _ => {
                    // With its stars filled in, it must be a segment of some name.
                    ResourceName::parse(&segment.replace('*', "x")).map_err(|why| {
                        Invalid(format!("the pattern `{}` matches no name: {why}", text.escape_debug()))
                    })?;
                    parts.push(Part::Like(segment.to_owned()));
                }
            }
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Whether this is one of the names. Takes at most as many steps as pattern and name have
    /// characters, multiplied.
    pub fn matches(&self, name: &ResourceName) -> bool {
        let segments: Vec<&str> = name.as_str().split('/').collect();
        let like = |part: &Part, segment: &&str| match part {
            Part::Like(glob) if glob.contains('*') => {
                wildcard(glob.as_bytes(), segment.as_bytes(), |c| *c == b'*', |a, b| a == b)
            }
            Part::Like(text) => text == segment,
            Part::One | Part::Any => true,
        };
        wildcard(&self.parts, &segments, |part| *part == Part::Any, like)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

/// Whether `text` is like `pattern`, where a star stands for any number of items. Only the last
/// star is ever tried again, which is enough: an earlier one that takes more leaves less to a later.
fn wildcard<P, T>(pattern: &[P], text: &[T], is_star: impl Fn(&P) -> bool, like: impl Fn(&P, &T) -> bool) -> bool {
    let (mut p, mut t, mut retry) = (0, 0, None);
    while t < text.len() {
        if p < pattern.len() && is_star(&pattern[p]) {
            retry = Some((p + 1, t));
            p += 1;
        } else if p < pattern.len() && like(&pattern[p], &text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((behind, taken)) = retry {
            (p, t) = (behind, taken + 1);
            retry = Some((behind, taken + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(is_star)
}

/// A right, and the names that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRule {
    right: Right,
    /// `None`: the right is not for names.
    names: Option<Pattern>,
}

impl FromStr for AccessRule {
    type Err = Invalid;

    /// Reads `acquire:deploy/*`, `read:**`, `metrics`.
    ///
    /// Errors: [`Invalid`] for an unknown right, and for a pattern that is missing, wrong or not wanted.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (word, pattern) = text.split_once(':').map_or((text, None), |(word, pattern)| (word, Some(pattern)));
        let right = RIGHTS.iter().find(|(_, known)| *known == word).map(|(right, _)| *right);
        let Some(right) = right else {
            let words = RIGHTS.map(|(_, word)| word).join(", ");
            return Err(Invalid(format!("`{}` is no right: there are {words}", word.escape_debug())));
        };
        let names = match (right.has_names(), pattern) {
            (true, Some(pattern)) => Some(Pattern::parse(pattern)?),
            (false, None) => None,
            (true, None) => {
                return Err(Invalid(format!(
                    "`{word}` needs names, such as `{word}:deploy/*`, or `{word}:**` for all"
                )));
            }
            (false, Some(_)) => return Err(Invalid(format!("`{word}` has no names: write it without a colon"))),
        };
        Ok(Self { right, names })
    }
}

impl AccessRule {
    fn covers(&self, name: &ResourceName) -> bool {
        match &self.names {
            Some(pattern) => pattern.matches(name),
            None => self.right == Right::Admin,
        }
    }
}

impl fmt::Display for AccessRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.names {
            Some(pattern) => write!(f, "{}:{}", self.right, pattern.text),
            None => write!(f, "{}", self.right),
        }
    }
}

/// What one principal may do: what any of the rules allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessRules(pub Vec<AccessRule>);

impl AccessRules {
    /// Whether this may be done to this name.
    pub fn allow(&self, right: Right, name: &ResourceName) -> bool {
        self.0.iter().any(|rule| rule.right.includes(right) && rule.covers(name))
    }

    /// Whether it may be done to some name, or to the service where the right has no names.
    pub fn allow_somewhere(&self, right: Right) -> bool {
        self.0.iter().any(|rule| rule.right.includes(right))
    }
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
