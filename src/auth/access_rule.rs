//! Access rules: a right and the pattern of resource names that it applies to. Rules only allow: a set of
//! rules allows what at least one of them allows. Names arrive decoded and checked, as [`ResourceName`], and
//! are compared byte for byte, so that no other spelling of a name bypasses a rule.

use std::fmt;
use std::str::FromStr;

use crate::types::{Invalid, RESOURCE_MAX_BYTES, ResourceName};

/// A right that a rule can allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Right {
    /// See holders and waiters.
    Read,
    /// Acquire, extend and release. Includes `Read`.
    Acquire,
    /// End the lease of another holder. Includes `Read`.
    Force,
    /// Receive events. Includes `Read`.
    Events,
    /// See metrics and nodes. Applies to the service, not to names.
    Metrics,
    /// Every right on every name.
    Admin,
}

/// Every right with its name in rules.
pub const RIGHTS: [(Right, &str); 6] = [
    (Right::Read, "read"),
    (Right::Acquire, "acquire"),
    (Right::Force, "force"),
    (Right::Events, "events"),
    (Right::Metrics, "metrics"),
    (Right::Admin, "admin"),
];

impl Right {
    /// The name in a rule and in a refusal.
    pub fn as_str(self) -> &'static str {
        RIGHTS.iter().find(|(right, _)| *right == self).map_or("", |(_, word)| word)
    }

    /// Whether the right applies to resource names.
    pub fn has_names(self) -> bool {
        !matches!(self, Self::Metrics | Self::Admin)
    }

    /// Whether `self` includes `other` on the same names. A refused acquire and events name the holder, so these rights
    /// include `Read`.
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

/// One segment of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// One segment of this form; `*` matches any number of characters.
    Like(String),
    /// `*`: any one segment.
    One,
    /// Any number of segments, including none. Only after a `One`: together they are `**`.
    Any,
}

/// A pattern of resource names: `*` matches any number of characters within a segment, and a segment `**` one
/// or more segments.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// Errors: [`Invalid`] if it is too long or cannot match any name. It never repeats the text: it may be a misplaced secret.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.len() > RESOURCE_MAX_BYTES {
            return Err(Invalid(format!("a pattern has at most {RESOURCE_MAX_BYTES} bytes")));
        }
        let mut parts = Vec::new();
        for (i, segment) in text.split('/').enumerate() {
            match segment {
                "**" => parts.extend([Part::One, Part::Any]),
                "*" => parts.push(Part::One),
                _ if segment.contains("**") => {
                    return Err(Invalid("`**` must be a segment of its own".to_owned()));
                }
                _ => {
                    // With the stars replaced by a letter, it must be a valid segment. Only a first segment may not be reserved.
                    let before = if i == 0 { "" } else { "x/" };
                    ResourceName::parse(&(before.to_owned() + &segment.replace('*', "x")))
                        .map_err(|why| Invalid(format!("a pattern that cannot match a name: {why}")))?;
                    parts.push(Part::Like(segment.to_owned()));
                }
            }
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Whether the pattern matches this name. Takes at most (length of pattern × length of name) steps.
    pub fn matches(&self, name: &ResourceName) -> bool {
        let segments: Vec<&str> = name.as_str().split('/').collect();
        let is_like = |part: &Part, segment: &&str| match part {
            Part::Like(glob) if glob.contains('*') => {
                wildcard(glob.as_bytes(), segment.as_bytes(), |c| *c == b'*', |a, b| a == b)
            }
            Part::Like(text) => text == segment,
            Part::One | Part::Any => true,
        };
        wildcard(&self.parts, &segments, |part| *part == Part::Any, is_like)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

/// Whether `text` matches `pattern`, where a star matches any number of items. Only the last star is retried with more items:
/// retrying an earlier star could only leave less for the later ones.
fn wildcard<P, T>(pattern: &[P], text: &[T], is_star: impl Fn(&P) -> bool, is_like: impl Fn(&P, &T) -> bool) -> bool {
    let (mut p, mut t, mut retry) = (0, 0, None);
    while t < text.len() {
        if p < pattern.len() && is_star(&pattern[p]) {
            retry = Some((p + 1, t));
            p += 1;
        } else if p < pattern.len() && is_like(&pattern[p], &text[t]) {
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

/// A right and the names that it applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRule {
    right: Right,
    /// `None`: the right does not apply to names.
    names: Option<Pattern>,
}

impl FromStr for AccessRule {
    type Err = Invalid;

    /// Parses `acquire:deploy/*`, `read:**`, `metrics`.
    ///
    /// Errors: [`Invalid`] for an unknown right, and for a pattern that is missing, invalid or not allowed here.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (word, pattern) = text.split_once(':').map_or((text, None), |(word, pattern)| (word, Some(pattern)));
        let right = RIGHTS.iter().find(|(_, known)| *known == word).map(|(right, _)| *right);
        let Some(right) = right else {
            let words = RIGHTS.map(|(_, word)| word).join(", ");
            return Err(Invalid(format!("`{}` is not a right; the rights are {words}", word.escape_debug())));
        };
        let names = match (right.has_names(), pattern) {
            (true, Some(pattern)) => {
                Some(Pattern::parse(pattern).map_err(|why| Invalid(format!("`{}`: {why}", text.escape_debug())))?)
            }
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

/// The rules of one principal: it may do everything that any of them allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessRules(pub Vec<AccessRule>);

impl AccessRules {
    /// Whether this right is granted on this name.
    pub fn allow(&self, right: Right, name: &ResourceName) -> bool {
        self.0.iter().any(|rule| rule.right.includes(right) && rule.covers(name))
    }

    /// Whether this right is granted on at least one name, or on the service if it has no names.
    pub fn allow_somewhere(&self, right: Right) -> bool {
        self.0.iter().any(|rule| rule.right.includes(right))
    }
}

#[cfg(test)]
#[path = "access_rule_tests.rs"]
mod tests;
