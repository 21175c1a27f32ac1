//! Settings on which all instances must agree and which an operator may change while instances run: a view then has them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::keys::KeyTemplate;

/// How many sets of terms a view knows besides the present ones: an instance that is configured with older terms is of another
/// cluster.
pub(crate) const FORMER_TERMS_MAX: usize = 8;

/// What a cluster's votes mean. In whole milliseconds once they were changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// The maximum clock offset, and the maximum age of a request, with which a node votes.
    pub guard: Duration,
    /// Added to each TTL on the nodes, but not to the validity that a holder is promised.
    pub lock_delay: Duration,
    /// How long an unused resource's fence counter is kept.
    pub fence_ttl: Duration,
    /// The names of locks; `None` in a view whose template was never changed: the configured one.
    pub template: Option<KeyTemplate>,
}

impl Terms {
    /// Reads the text of [`fmt::Display`]; `None` for any other text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut period = || {
            let word = words.next()?;
            let is_number = (1..=13).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| word.parse().ok()).flatten().map(Duration::from_millis)
        };
        let (guard, lock_delay, fence_ttl) = (period()?, period()?, period()?);
        let template = words.next().map(KeyTemplate::parse).transpose().ok()?;
        words.next().is_none().then_some(Self { guard, lock_delay, fence_ttl, template })
    }

    /// These terms with this template, unless they have one.
    pub(crate) fn or_template(&self, configured: &KeyTemplate) -> Self {
        let template = self.template.clone().or_else(|| Some(configured.clone()));
        Self { template, ..self.clone() }
    }

    /// A hash of guard, lock delay and key template, for terms without one this one: instances with the same hash may share nodes.
    pub(super) fn hash(&self, template: &str) -> Arc<str> {
        hash_of(&self.text(template))
    }

    /// The name of the cluster that instances with these terms, this template and these nodes declare.
    pub(super) fn cluster_name(&self, names: &[&str], template: &str) -> String {
        let mut names = names.to_vec();
        names.sort_unstable();
        // 4 is the version of the protocol. A name without a version is of version 1, one with a 2 is of version 2 or 3: such
        // nodes are adopted.
        format!("4.{}", hash_of(&format!("{}\n{}", names.join("\n"), self.text(template))))
    }

    fn text(&self, template: &str) -> String {
        let (guard, lock_delay) = (self.guard.as_millis(), self.lock_delay.as_millis());
        let template = self.template.as_ref().map_or_else(|| template.to_owned(), KeyTemplate::to_string);
        format!("{guard}\n{lock_delay}\n{}\n{template}", 3_600_000) // the third was once a setting
    }
}

/// Guard, lock delay and fence TTL in milliseconds, and the template if there is one.
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.guard.as_millis(), self.lock_delay.as_millis(), self.fence_ttl.as_millis())?;
        self.template.as_ref().map_or(Ok(()), |template| write!(f, " {template}"))
    }
}

fn hash_of(text: &str) -> Arc<str> {
    HEXLOWER.encode(&Sha256::digest(text.as_bytes())[..8]).into()
}

/// The terms of a view, once they were changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedTerms {
    /// The terms in force.
    pub now: Terms,
    /// Hashes of the terms with which an instance may be configured, besides those under which the cluster was declared; the
    /// latest is the last.
    pub accepted: Vec<Arc<str>>,
}

impl ChangedTerms {
    /// These terms, after `before`, if those were changed, too. `hash`: of the new terms.
    pub(crate) fn after(before: Option<&Self>, now: Terms, hash: Arc<str>) -> Self {
        let mut accepted = before.map_or_else(Vec::new, |before| before.accepted.clone());
        accepted.retain(|other| *other != hash);
        accepted.push(hash);
        accepted.drain(..accepted.len().saturating_sub(FORMER_TERMS_MAX + 1));
        Self { now, accepted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(guard: u64) -> Terms {
        let ms = Duration::from_millis;
        Terms { guard: ms(guard), lock_delay: ms(2 * guard), fence_ttl: ms(9), template: None }
    }

    #[test]
    fn terms_are_read_as_they_were_written() {
        let named = Terms { template: KeyTemplate::parse("lock:{resource}").ok(), ..terms(500) };
        for terms in [terms(500), named] {
            assert_eq!(Terms::parse(&terms.to_string()), Some(terms));
        }
        for bad in [
            "",
            "1",
            "1 2",
            "1 2 3 4",
            "1 2 3 redlockd:{resource}",
            "1 2 3 {resource} x",
            "1 2 -3",
            "1  2 3",
            "1 2 x",
            "1 2 +3",
            "1 2 99999999999999",
        ] {
            assert_eq!(Terms::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_latest_terms_are_accepted_and_a_bounded_number_of_former_ones() {
        let mut changed: Option<ChangedTerms> = None;
        for guard in (1..=20).chain([15]) {
            let now = terms(guard);
            let hash = now.hash("x");
            changed = Some(ChangedTerms::after(changed.as_ref(), now, hash));
        }
        let accepted = changed.expect("some").accepted;
        let expected: Vec<_> = [12, 13, 14, 16, 17, 18, 19, 20, 15].map(|guard| terms(guard).hash("x")).to_vec();
        assert_eq!(accepted, expected);
        assert_ne!(terms(1).hash("x"), terms(1).hash("y"));
        assert_eq!(terms(1).hash("x"), Terms { fence_ttl: Duration::ZERO, ..terms(1) }.hash("x"), "may differ");
    }
}
