//! Rules between settings: contradictions are errors, probable mistakes are warnings. Each value is within its range.

use std::time::Duration;

use super::error::{ConfigError, Warning};
use super::settings::Config;
use crate::duration::format_duration;

/// One silent node may use up at most this part of the minimum TTL.
const NODE_TIMEOUT_PARTS_OF_MIN_TTL: u32 = 2;
/// One silent node should use up at most this part of a default lease.
const NODE_TIMEOUT_PARTS_OF_DEFAULT_TTL: u32 = 5;

/// Checks all rules.
pub(super) fn check(config: &Config) -> (Vec<ConfigError>, Vec<Warning>) {
    let mut errors = Vec::new();
    times(config, &mut errors);
    limits(config, &mut errors);
    files(config, &mut errors);
    nodes(config, &mut errors);
    authentication(config, &mut errors);
    (errors, warnings(config))
}

/// A duration with an upper limit from another one.
struct Limited {
    key: &'static str,
    value: Duration,
    holds: bool,
    must: String,
}

fn limited(key: &'static str, value: Duration, holds: bool, must: String) -> Limited {
    Limited { key, value, holds, must }
}

fn times(c: &Config, errors: &mut Vec<ConfigError>) {
    let show = format_duration;
    let half_min_ttl = c.min_ttl / NODE_TIMEOUT_PARTS_OF_MIN_TTL;
    let rules = [
        limited(
            "node_timeout",
            c.node_timeout,
            c.node_timeout <= half_min_ttl,
            format!("at most half of min_ttl ({}), or one slow node costs the lease", show(c.min_ttl)),
        ),
        limited(
            "default_ttl",
            c.default_ttl,
            c.min_ttl <= c.default_ttl,
            format!("at least min_ttl ({})", show(c.min_ttl)),
        ),
        limited(
            "default_ttl",
            c.default_ttl,
            c.default_ttl <= c.max_ttl,
            format!("at most max_ttl ({})", show(c.max_ttl)),
        ),
        limited(
            "retry_max",
            c.retry_max,
            c.retry_min <= c.retry_max,
            format!("at least retry_min ({})", show(c.retry_min)),
        ),
        limited(
            "header_timeout",
            c.header_timeout,
            c.header_timeout <= c.idle_timeout,
            format!("at most idle_timeout ({})", show(c.idle_timeout)),
        ),
    ];
    for (key, sentence) in broken(rules).chain(of_terms(c.node_timeout, c.guard, c.lock_delay)) {
        errors.push(ConfigError::rule(key, sentence));
    }
    least_lease(c, errors);
}

/// The rules between guard, lock delay and `node_timeout` that do not hold.
pub(super) fn of_terms(
    node_timeout: Duration,
    guard: Duration,
    lock_delay: Duration,
) -> impl Iterator<Item = (&'static str, String)> {
    let show = format_duration;
    broken([
        limited(
            "guard",
            guard,
            guard > node_timeout,
            format!("more than node_timeout ({}), or slow answers look like wrong clocks", show(node_timeout)),
        ),
        limited(
            "lock_delay",
            lock_delay,
            lock_delay >= guard.saturating_mul(2),
            format!("at least twice guard ({}), because it covers clocks that differ by that much", show(guard)),
        ),
    ])
}

fn broken<const N: usize>(rules: [Limited; N]) -> impl Iterator<Item = (&'static str, String)> {
    let is_broken = |rule: &Limited| !rule.holds;
    rules.into_iter().filter(is_broken).map(|Limited { key, value, must, .. }| {
        (key, format!("`{key}` is {}, but must be {must}", format_duration(value)))
    })
}

/// A grant with the minimum TTL must still have its minimum validity after one slow node.
fn least_lease(c: &Config, errors: &mut Vec<ConfigError>) {
    let (show, half_min_ttl) = (format_duration, c.min_ttl / NODE_TIMEOUT_PARTS_OF_MIN_TTL);
    let least = c.drift(c.min_ttl).saturating_add(c.min_ttl * c.min_validity_percent / 100);
    if c.node_timeout <= half_min_ttl && c.node_timeout.saturating_add(least) > c.min_ttl {
        errors.push(ConfigError::rule(
            "min_ttl",
            format!(
                "`min_ttl` is {}, but must be long enough for node_timeout ({}), drift and min_validity_percent ({} %) \
                 together, or no such lease could be granted",
                show(c.min_ttl),
                show(c.node_timeout),
                c.min_validity_percent
            ),
        ));
    }
}

fn limits(c: &Config, errors: &mut Vec<ConfigError>) {
    if c.waiters_per_resource > c.waiters_total {
        errors.push(ConfigError::rule(
            "waiters_per_resource",
            format!(
                "`waiters_per_resource` is {}, but must be at most waiters_total ({})",
                c.waiters_per_resource, c.waiters_total
            ),
        ));
    }
    if c.uri_limit >= c.head_limit {
        let (uri, head) = (c.uri_limit, c.head_limit);
        let sentence = format!("`uri_limit` is {uri}, but must be below head_limit ({head}), which it is a part of");
        errors.push(ConfigError::rule("uri_limit", sentence));
    }
}

fn files(c: &Config, errors: &mut Vec<ConfigError>) {
    for (key, other, is_alone) in [
        ("tls_cert", "tls_key", c.tls_cert.is_some() && c.tls_key.is_none()),
        ("listen_tls_cert", "listen_tls_key", c.listen_tls_cert.is_some() && c.listen_tls_key.is_none()),
        ("listen_tls_key", "listen_tls_cert", c.listen_tls_key.is_some() && c.listen_tls_cert.is_none()),
        ("listen_tls_client_ca", "listen_tls_cert", c.listen_tls_client_ca.is_some() && c.listen_tls_cert.is_none()),
        ("listen_tls_client_ca", "access_file", c.listen_tls_client_ca.is_some() && c.access_file.is_none()),
        ("tls_key", "tls_cert", c.tls_key.is_some() && c.tls_cert.is_none()),
    ] {
        if is_alone {
            errors.push(ConfigError::rule(key, format!("`{key}` is set, but has no effect without {other}")));
        }
    }
}

/// No server and no name occurs twice.
fn nodes(c: &Config, errors: &mut Vec<ConfigError>) {
    for (i, node) in c.nodes.iter().enumerate() {
        let earlier = |same: &dyn Fn(usize) -> bool| (0..i).find(|j| same(*j)).map(|j| j + 1);
        if let Some(first) = earlier(&|j| c.nodes[j].parsed().address() == node.parsed().address()) {
            let sentence = format!(
                "`nodes` has {} twice, as node {first} and node {}, but the nodes must be independent: one server \
                 has one vote, whatever its database number",
                node.parsed().address(),
                i + 1
            );
            errors.push(ConfigError::rule("nodes", sentence));
        } else if let Some(first) = earlier(&|j| c.nodes[j].id() == node.id()) {
            let sentence = format!("`nodes` has the name {} twice, as node {first} and node {}", node.id(), i + 1);
            errors.push(ConfigError::rule("nodes", sentence));
        }
    }
}

/// Whether only this machine can connect.
fn is_private(c: &Config) -> bool {
    c.listen.ip().to_canonical().is_loopback()
}

impl Config {
    /// Whether other machines can connect without a key.
    pub fn is_open_to_others(&self) -> bool {
        !is_private(self) && self.access_file.is_none()
    }
}

fn authentication(c: &Config, errors: &mut Vec<ConfigError>) {
    if c.is_open_to_others() && !c.insecure_no_auth {
        errors.push(ConfigError::rule(
            "listen",
            format!(
                "`listen` is {}, which other machines can reach, but there is no access_file; --insecure-no-auth \
                 allows everybody to do everything",
                c.listen
            ),
        ));
    }
}

fn warnings(c: &Config) -> Vec<Warning> {
    let mut warnings = Vec::new();
    match c.nodes.len() {
        1 => warnings.push(Warning::OneNode),
        nodes if nodes > 0 && nodes.is_multiple_of(2) => warnings.push(Warning::EvenNodes { nodes }),
        _ => {}
    }
    if c.node_timeout > c.default_ttl / NODE_TIMEOUT_PARTS_OF_DEFAULT_TTL {
        warnings.push(Warning::SlowNodeTimeout {
            node_timeout: format_duration(c.node_timeout),
            default_ttl: format_duration(c.default_ttl),
        });
    }
    match (is_private(c), c.access_file.is_some()) {
        (false, false) => warnings.push(Warning::OpenListen { listen: c.listen }),
        (false, true) if c.listen_tls_cert.is_none() => warnings.push(Warning::PlainKeys { listen: c.listen }),
        _ => {}
    }
    if c.insecure_no_auth && (is_private(c) || c.access_file.is_some()) {
        warnings.push(Warning::NeedlessInsecure);
    }
    let needs_password = |node: &super::nodes::NodeSpec| !node.parsed().has_password() && node.password_file.is_none();
    if c.node_password_file.is_some() && !c.nodes.iter().any(needs_password) {
        warnings.push(Warning::UnusedPasswordFile);
    }
    let tls = [("tls_ca", &c.tls_ca), ("tls_cert", &c.tls_cert), ("tls_key", &c.tls_key)];
    let set = tls.into_iter().find(|(_, path)| path.is_some());
    if let Some((key, _)) = set.filter(|_| !c.nodes.iter().any(|node| node.parsed().is_tls())) {
        warnings.push(Warning::UnusedTls { key });
    }
    warnings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::load::{Inputs, Loaded};
    use super::*;
    use proptest::prelude::*;

    fn load(flags: &[(&str, &str)]) -> Result<Loaded, String> {
        let flags = flags.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let inputs = Inputs { flags, ..Inputs::default() };
        inputs.load(&BTreeMap::<String, String>::new()).map_err(|e| e.to_string())
    }

    fn warnings_of(flags: &[(&str, &str)]) -> Vec<Warning> {
        load(flags).expect("good").warnings
    }

    #[test]
    fn contradictions_are_refused_in_one_sentence_that_names_the_key() {
        for (flags, key) in [
            (&[("node_timeout", "51ms")][..], "node_timeout"),
            (&[("default_ttl", "50ms")], "default_ttl"),
            (&[("default_ttl", "6m")], "default_ttl"),
            (&[("guard", "50ms")], "guard"),
            (&[("lock_delay", "999ms")], "lock_delay"),
            (&[("retry_min", "300ms")], "retry_max"),
            (&[("min_validity_percent", "50")], "min_ttl"),
            (&[("drift_floor", "41ms")], "min_ttl"),
            (&[("waiters_total", "999")], "waiters_per_resource"),
            (&[("listen", "0.0.0.0:1")], "listen"),
            (&[("listen_tls_cert", "/a")], "listen_tls_cert"),
            (&[("listen_tls_key", "/a")], "listen_tls_key"),
            (&[("listen_tls_client_ca", "/a"), ("access_file", "/b")], "listen_tls_client_ca"),
            (&[("uri_limit", "8193"), ("head_limit", "8192")], "uri_limit"),
            (&[("header_timeout", "2m")], "header_timeout"),
            (&[("tls_cert", "/a")], "tls_cert"),
            (&[("tls_key", "/a")], "tls_key"),
            (&[("nodes", "redis://a,redis://b,redis://:pw@A:6379/2")], "nodes"),
            (&[("nodes", "a=redis://a,b=redis://b,a=redis://c")], "nodes"),
            (&[("nodes", "redis://a,a:6379=redis://b,redis://c")], "nodes"),
        ] {
            let text = load(flags).expect_err(key);
            assert!(text.starts_with(&format!("`{key}` ")) && !text.contains('\n') && !text.contains("pw"), "{text}");
        }
    }

    #[test]
    fn refusal_explains_itself() {
        assert_eq!(
            load(&[("node_timeout", "60ms")]).expect_err("too slow"),
            "`node_timeout` is 60ms, but must be at most half of min_ttl (100ms), or one slow node costs the lease"
        );
        assert_eq!(
            load(&[("nodes", "redis://h/0,redis://x,redis://h/1")]).expect_err("twice"),
            "`nodes` has h:6379 twice, as node 1 and node 3, but the nodes must be independent: one server has one \
             vote, whatever its database number"
        );
    }

    #[test]
    fn probable_mistakes_are_warnings() {
        assert_eq!(warnings_of(&[("nodes", "redis://a")]), [Warning::OneNode]);
        assert_eq!(warnings_of(&[("nodes", "redis://a,redis://b")]), [Warning::EvenNodes { nodes: 2 }]);
        assert_eq!(warnings_of(&[("nodes", "redis://a,redis://b,redis://c")]), []);
        let four = [("nodes", "redis://a,redis://b,redis://c,redis://d")];
        assert_eq!(warnings_of(&four), [Warning::EvenNodes { nodes: 4 }]);
        for (listen, is_open) in [
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
            ("127.9.9.9:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
        ] {
            let insecure = warnings_of(&[("listen", listen), ("insecure_no_auth", "true")]);
            assert_eq!(matches!(insecure[..], [Warning::OpenListen { .. }]), is_open, "{listen}");
            assert_eq!(insecure == [Warning::NeedlessInsecure], !is_open, "{listen}");
            let keys = warnings_of(&[("listen", listen), ("access_file", "/a")]);
            assert_eq!(matches!(keys[..], [Warning::PlainKeys { .. }]), is_open, "{listen}");
            assert_eq!(load(&[("listen", listen)]).is_err(), is_open, "{listen}");
            let loaded = load(&[("listen", listen), ("insecure_no_auth", "true")]).expect("good");
            assert_eq!(loaded.config.is_open_to_others(), is_open, "{listen}");
            let loaded = load(&[("listen", listen), ("access_file", "/a")]).expect("good");
            assert!(!loaded.config.is_open_to_others(), "{listen}");
        }
        let slow = [("default_ttl", "200ms"), ("node_timeout", "50ms")];
        assert!(matches!(warnings_of(&slow)[..], [Warning::SlowNodeTimeout { .. }]));
        assert_eq!(
            warnings_of(&[("tls_ca", "/ca"), ("nodes", "redis://a,redis://b,redis://c")]),
            [Warning::UnusedTls { key: "tls_ca" }]
        );
        assert_eq!(warnings_of(&[("tls_ca", "/ca"), ("nodes", "redis://a,redis://b,rediss://c")]), []);
        for (nodes, unused) in
            [("redis://:p@a,redis://:p@b,redis://u:p@c", true), ("redis://:p@a,redis://b,redis://c", false)]
        {
            let warned = warnings_of(&[("node_password_file", "/p"), ("nodes", nodes)]);
            assert_eq!(warned == [Warning::UnusedPasswordFile], unused, "{nodes}");
        }
    }

    proptest! {
        /// A valid configuration satisfies the relations that the algorithm requires.
        #[test]
        fn valid_configuration_satisfies_every_relation(
            node_timeout in 1_u64..400, min_ttl in 10_u64..1_000, default_ttl in 10_u64..2_000, max_ttl in 1_000_u64..3_000,
            guard in 10_u64..600, lock_delay in 20_u64..1_500, validity in 1_u32..=90, ppm in 1_000_u32..200_000,
        ) {
            let ms = Duration::from_millis;
            let config = Config {
                node_timeout: ms(node_timeout), min_ttl: ms(min_ttl), default_ttl: ms(default_ttl), max_ttl: ms(max_ttl),
                guard: ms(guard), lock_delay: ms(lock_delay), min_validity_percent: validity, drift_ppm: ppm,
                ..Config::default()
            };
            let relations = [
                node_timeout * 2 <= min_ttl,
                min_ttl <= default_ttl,
                default_ttl <= max_ttl,
                node_timeout < guard,
                2 * guard <= lock_delay,
                // In units of a millionth of a millisecond, without rounding.
                (node_timeout + 2) * 1_000_000 + min_ttl * (u64::from(ppm) + u64::from(validity) * 10_000) <= min_ttl * 1_000_000,
            ];
            let (errors, _) = check(&config);
            // The drift is rounded up to a microsecond, so the last relation may be refused on its edge.
            let edge = (node_timeout + 2) * 1_000_000 + min_ttl * (u64::from(ppm) + u64::from(validity) * 10_000);
            if errors.is_empty() {
                prop_assert!(relations.iter().all(|kept| *kept), "{:?}", relations);
            } else if edge.abs_diff(min_ttl * 1_000_000) > 1_000 {
                prop_assert!(relations.iter().any(|kept| !kept), "{:?}", errors);
            }
        }
    }
}
