//! The rules for terms that an operator changes while the service runs: those of the settings of the same names.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::rules;
use super::settings::Config;
use crate::duration::format_duration;
use crate::protocol::Terms;

/// Ranges of the settings. Milliseconds.
pub(super) const GUARD: RangeInclusive<u64> = 10..=30_000;
pub(super) const LOCK_DELAY: RangeInclusive<u64> = 20..=120_000;
pub(super) const FENCE_TTL: RangeInclusive<u64> = 60_000..=2_592_000_000;

/// What terms of this instance's cluster may be.
#[derive(Debug, Clone, Copy)]
pub struct TermsRules {
    node_timeout: Duration,
}

impl TermsRules {
    /// The rules for an instance with this configuration.
    pub fn from_config(config: &Config) -> Self {
        Self { node_timeout: config.node_timeout }
    }

    /// What is wrong with these terms: the setting and a sentence, for each.
    pub fn check(&self, terms: &Terms) -> Vec<(&'static str, String)> {
        let show = |ms: u64| format_duration(Duration::from_millis(ms));
        let Terms { guard, lock_delay, fence_ttl, .. } = *terms;
        let ranges =
            [("guard", guard, GUARD), ("lock_delay", lock_delay, LOCK_DELAY), ("fence_ttl", fence_ttl, FENCE_TTL)];
        let is_outside = |(_, value, range): &(_, Duration, RangeInclusive<u64>)| {
            !(Duration::from_millis(*range.start())..=Duration::from_millis(*range.end())).contains(value)
        };
        let outside = ranges.into_iter().filter(is_outside);
        let mut wrong: Vec<(&'static str, String)> = outside
            .map(|(key, value, range)| {
                let (from, to) = (show(*range.start()), show(*range.end()));
                (key, format!("`{key}` is {}, but must be from {from} to {to}", format_duration(value)))
            })
            .collect();
        wrong.extend(rules::of_terms(self.node_timeout, guard, lock_delay));
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_obey_the_rules_of_the_configuration() {
        let rules = TermsRules::from_config(&Config::default());
        let Config { guard, lock_delay, fence_ttl, .. } = Config::default();
        let terms = Terms { guard, lock_delay, fence_ttl, template: None };
        assert_eq!(rules.check(&terms), []);
        let ms = Duration::from_millis;
        for (wrong, keys) in [
            (Terms { guard: ms(50), ..terms.clone() }, &["guard"][..]),
            (Terms { guard: ms(501), ..terms.clone() }, &["lock_delay"]),
            (Terms { guard: ms(40_000), lock_delay: ms(90_000), ..terms.clone() }, &["guard"]),
            (Terms { fence_ttl: ms(59_999), ..terms.clone() }, &["fence_ttl"]),
            (
                Terms { guard: ms(9), lock_delay: ms(17), ..terms.clone() },
                &["guard", "lock_delay", "guard", "lock_delay"],
            ),
        ] {
            let found = rules.check(&wrong);
            assert_eq!(found.iter().map(|(key, _)| *key).collect::<Vec<_>>(), keys, "{found:?}");
            assert!(found.iter().all(|(key, why)| why.starts_with(&format!("`{key}` is "))), "{found:?}");
        }
    }
}
