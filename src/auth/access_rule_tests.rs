//! Access rules: examples, and properties: patterns agree with a slower definition of them, adding a rule
//! takes nothing away, and an exact rule allows only its own name.

use proptest::prelude::*;

use super::*;

fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).expect(text)
}

fn rules(texts: &[&str]) -> AccessRules {
    AccessRules(texts.iter().map(|text| text.parse().expect(text)).collect())
}

#[test]
fn one_star_matches_within_a_segment_and_two_match_segments() {
    for (pattern, matching, others) in [
        (
            "deploy/*",
            &["deploy/prod", "deploy/a.b"][..],
            &["deploy", "deploy/eu/prod", "Deploy/prod", "xdeploy/prod"][..],
        ),
        ("deploy/**", &["deploy/prod", "deploy/eu/prod"], &["deploy", "deploys/prod"]),
        ("**", &["a", "a/b", "a/b/c"], &[]),
        ("*", &["a", "..."], &["a/b"]),
        ("**/prod", &["a/prod", "a/b/prod"], &["prod", "a/prod/x"]),
        ("a/**/z", &["a/b/z", "a/b/c/z", "a/z/z"], &["a/z", "a/b/z/y"]),
        ("ci-*", &["ci-", "ci-17"], &["ci", "ci-17/x", "CI-17"]),
        ("*-eu-*/x", &["a-eu-b/x", "-eu-/x", "-eu-eu-/x"], &["a-eu/x", "a-eu-b/y"]),
        ("deploy/prod", &["deploy/prod"], &["deploy/prod/x", "deploy/prod2", "deploy", "deploy/Prod"]),
    ] {
        let pattern = Pattern::parse(pattern).expect(pattern);
        assert!(matching.iter().all(|text| pattern.matches(&name(text))), "{pattern:?}");
        assert!(!others.iter().any(|text| pattern.matches(&name(text))), "{pattern:?}");
    }
}

#[test]
fn rights_include_read_where_they_reveal_it_and_nothing_else() {
    let x = name("x");
    for (text, allowed) in [
        ("read:x", &[Right::Read][..]),
        ("acquire:x", &[Right::Read, Right::Acquire]),
        ("force:x", &[Right::Read, Right::Force]),
        ("events:x", &[Right::Read, Right::Events]),
        ("metrics", &[]),
        ("admin", &[Right::Read, Right::Acquire, Right::Force, Right::Events, Right::Metrics, Right::Admin]),
    ] {
        for (right, _) in RIGHTS {
            assert_eq!(rules(&[text]).allow(right, &x), allowed.contains(&right), "{text}: {right}");
        }
    }
    assert!(rules(&["metrics"]).allow_somewhere(Right::Metrics) && !rules(&["metrics"]).allow_somewhere(Right::Read));
    assert!(rules(&["acquire:y"]).allow_somewhere(Right::Read) && !rules(&["acquire:y"]).allow(Right::Read, &x));
    assert!(
        RIGHTS
            .iter()
            .all(|(right, _)| !AccessRules::default().allow(*right, &x)
                && !AccessRules::default().allow_somewhere(*right))
    );
}

#[test]
fn an_invalid_rule_is_refused_with_a_hint() {
    for (text, hint) in [
        ("write:x", "is not a right"),
        ("Read:x", "is not a right"),
        ("", "is not a right"),
        ("acquire", "needs names"),
        ("metrics:**", "has no names"),
        ("admin:x", "has no names"),
        ("read:", "is empty"),
        ("read:/x", "empty"),
        ("read:x/", "empty"),
        ("read:a//b", "empty"),
        ("read:../x", ".."),
        ("read:a**", "a segment of its own"),
        ("read:***", "a segment of its own"),
        ("read:a b", "contains"),
        ("read:a%2Fb", "contains"),
        ("read:redlockd:meta", "own keys"),
        (&format!("read:{}", "x".repeat(256)), "at most 255"),
    ] {
        let why = text.parse::<AccessRule>().expect_err(text).0;
        assert!(why.contains(hint), "{text}: {why}");
    }
    for text in ["acquire:deploy/*", "read:**", "metrics", "admin", "force:a/**/z-*"] {
        assert_eq!(text.parse::<AccessRule>().expect(text).to_string(), text);
    }
}

/// The definition of patterns: every way to split the name is tried.
fn defined(pattern: &[&str], name: &[&str]) -> bool {
    fn glob(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => (0..=text.len()).any(|taken| glob(rest, &text[taken..])),
            (Some((a, rest)), Some((b, behind))) => a == b && glob(rest, behind),
            _ => false,
        }
    }
    match pattern.split_first() {
        None => name.is_empty(),
        Some((&"**", rest)) => (1..=name.len()).any(|taken| defined(rest, &name[taken..])),
        Some((part, rest)) => name
            .split_first()
            .is_some_and(|(segment, behind)| glob(part.as_bytes(), segment.as_bytes()) && defined(rest, behind)),
    }
}

const NAME: &str = "[abA.]{1,3}(/[abA.]{1,3}){0,4}";
const PATTERN: &str = "(\\*\\*|[ab*]{1,3})(/(\\*\\*|[ab*]{1,3})){0,4}";

fn some_rules() -> impl Strategy<Value = Vec<AccessRule>> {
    let rule = (0..RIGHTS.len(), PATTERN).prop_filter_map("a rule", |(i, pattern)| {
        let (right, word) = RIGHTS[i];
        if right.has_names() { format!("{word}:{pattern}") } else { word.to_owned() }.parse::<AccessRule>().ok()
    });
    proptest::collection::vec(rule, 0..4)
}

proptest! {
    #[test]
    fn patterns_match_what_their_definition_says(pattern in PATTERN, text in NAME) {
        let (Ok(parsed), Ok(name)) = (Pattern::parse(&pattern), ResourceName::parse(&text)) else { return Ok(()) };
        let split = |text: &'static str| text;
        let _ = split;
        let (p, n): (Vec<&str>, Vec<&str>) = (pattern.split('/').collect(), text.split('/').collect());
        prop_assert_eq!(parsed.matches(&name), defined(&p, &n), "{} {}", pattern, text);
    }

    /// Whatever is there already, one rule more allows at least as much.
    #[test]
    fn adding_a_rule_never_takes_a_right_away(before in some_rules(), more in some_rules(), at in 0_usize..4, text in NAME) {
        let Ok(name) = ResourceName::parse(&text) else { return Ok(()) };
        let mut after = before.clone();
        for rule in more {
            after.insert(at.min(after.len()), rule);
        }
        let (before, after) = (AccessRules(before), AccessRules(after));
        for (right, _) in RIGHTS {
            prop_assert!(!before.allow(right, &name) || after.allow(right, &name));
            prop_assert!(!before.allow_somewhere(right) || after.allow_somewhere(right));
        }
    }

    /// What is allowed on a name is allowed somewhere; and without rules nothing is.
    #[test]
    fn somewhere_is_where_there_is_a_name(rules in some_rules(), text in NAME) {
        let Ok(name) = ResourceName::parse(&text) else { return Ok(()) };
        let rules = AccessRules(rules);
        for (right, _) in RIGHTS {
            prop_assert!(!rules.allow(right, &name) || rules.allow_somewhere(right));
        }
    }

    /// A rule for one exact name is for that name only, whatever is done to its letters.
    #[test]
    fn an_exact_rule_is_for_its_own_name_only(a in NAME, b in NAME) {
        let (Ok(a), Ok(b)) = (ResourceName::parse(&a), ResourceName::parse(&b)) else { return Ok(()) };
        let rules = AccessRules(vec![format!("acquire:{a}").parse().expect("a name is a pattern")]);
        prop_assert_eq!(rules.allow(Right::Acquire, &b), a == b);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,30}|(read|acquire):[*/a.]{0,20}") {
        if let Ok(rule) = text.parse::<AccessRule>() {
            prop_assert_eq!(rule.to_string(), text);
        }
    }

    /// The worst pattern on the longest name is still quick: it is not exponential.
    #[test]
    fn many_stars_do_not_explode(stars in 1_usize..40) {
        let pattern = Pattern::parse(&vec!["**"; stars.min(80)].join("/")).expect("a pattern");
        let like = Pattern::parse(&format!("{}b", "a*".repeat(stars))).expect("a pattern");
        prop_assert!(pattern.matches(&name(&vec!["a"; 120].join("/"))));
        prop_assert!(!like.matches(&name(&"a".repeat(255))));
    }
}
