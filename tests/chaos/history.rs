//! The history of a run as its clients saw it, on one clock (CLOCK_BOOTTIME, microseconds), and the
//! checker that examines it afterwards. Independent of HTTP and Redis, so that artificial histories test it.

use std::collections::BTreeMap;

use super::locks::Refused;

/// A lease, as its client knows it.
#[derive(Debug, Clone, Default)]
pub struct Grant {
    pub resource: usize,
    pub token: String,
    pub fence: Option<u64>,
    /// Readers may hold a resource together.
    pub is_shared: bool,
    pub sent: u64,
    pub answered: u64,
    /// Of the grant, or of the last extend that succeeded.
    pub deadline: u64,
    /// When the client stopped relying on it: at its deadline, or when it sent the release.
    pub end: u64,
    pub extends: u32,
}

/// An acquire that was sent: until `gone` it may block other clients.
#[derive(Debug, Clone, Default)]
pub struct Claim {
    pub resource: usize,
    pub token: String,
    pub sent: u64,
    pub gone: u64,
}

/// An acquire that was refused.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub resource: usize,
    pub token: String,
    pub sent: u64,
    pub answered: u64,
    pub no: Refused,
}

/// Kind of effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The node lost its memory, or its process.
    Memory,
    /// Its clock was stepped.
    Clock,
    /// Requests are late: a slow network, a stopped process.
    Late,
}

/// A lease was reported as lost to its holder before its deadline.
#[derive(Debug, Clone)]
pub struct Loss {
    pub grant: Grant,
    pub operation: &'static str,
    pub at: u64,
    pub no: Refused,
}

/// A fault while it lasted; `node` is `None` where it affects all.
#[derive(Debug, Clone)]
pub struct Fault {
    pub name: &'static str,
    pub effect: Effect,
    pub node: Option<usize>,
    pub from: u64,
    pub to: u64,
}

/// Everything that happened in a run.
#[derive(Debug, Default)]
pub struct History {
    pub grants: Vec<Grant>,
    pub claims: Vec<Claim>,
    pub refusals: Vec<Refusal>,
    pub faults: Vec<Fault>,
    pub losses: Vec<Loss>,
    /// Found while it happened.
    pub violations: Vec<String>,
    /// Writes after the deadline that the fenced register refused.
    pub late_writes_stopped: u64,
    /// Writes of holders that it accepted.
    pub writes: u64,
    pub hang_ups: u64,
    pub lost_answers: u64,
}

/// How long after a fault refusals may name its effects, microseconds.
pub struct Reach {
    /// Quarantine, the seeding after it, and the probe rounds in between.
    pub memory: u64,
    /// A late request, and the answer to it.
    pub late: u64,
}

impl History {
    /// All violations, described.
    pub fn check(&self, reach: &Reach) -> Vec<String> {
        let mut wrong = self.violations.clone();
        let mut by_resource: BTreeMap<usize, Vec<&Grant>> = BTreeMap::new();
        for grant in &self.grants {
            by_resource.entry(grant.resource).or_default().push(grant);
        }
        for grants in by_resource.values_mut() {
            grants.sort_by_key(|g| g.answered);
            exclusion(grants, &mut wrong);
            fences(grants, &mut wrong);
        }
        self.causes(reach, &mut wrong);
        self.losses(&mut wrong);
        wrong
    }

    /// No lease is reported as lost before its deadline: only nodes with a vote count for that, and a quorum
    /// of these still has it.
    fn losses(&self, wrong: &mut Vec<String>) {
        for loss in &self.losses {
            wrong.push(format!("{} answers {} before the deadline: {loss:?}", loss.operation, loss.no.status));
        }
    }

    /// Faults shortly before, to explain a violation.
    pub fn faults_before(&self, at: u64, within: u64) -> Vec<&Fault> {
        self.faults.iter().filter(|f| f.from <= at && f.to + within >= at).collect()
    }

    /// Every refusal names a cause that existed.
    fn causes(&self, reach: &Reach, wrong: &mut Vec<String>) {
        let mut claims: Vec<&Claim> = self.claims.iter().collect();
        claims.sort_by_key(|c| c.sent);
        let longest = claims.iter().map(|c| c.gone - c.sent).max().unwrap_or(0);
        for refusal in &self.refusals {
            let Refused { status, reason, nodes } = &refusal.no;
            let asked = |c: &Claim| c.resource == refusal.resource && c.token != refusal.token;
            let stands = |c: &Claim| asked(c) && c.sent <= refusal.answered && c.gone >= refusal.sent;
            let first = claims.partition_point(|c| c.sent < refusal.sent.saturating_sub(longest));
            let mut near = claims[first..].iter().take_while(|c| c.sent <= refusal.answered);
            match status {
                423 if reason.ends_with("foreign") => wrong.push(format!("nobody else uses these nodes: {refusal:?}")),
                423 if !near.any(|c| stands(c)) => {
                    wrong.push(format!("held, but nobody has asked for it: {refusal:?}"));
                }
                0 | 410 | 423 | 503 => {}
                _ => wrong.push(format!("an unexpected answer: {refusal:?}")),
            }
            for (node, outcome) in nodes {
                let recent = |effect: Effect, reach: u64| {
                    self.faults.iter().any(|f| {
                        let here = f.node.is_none_or(|n| n == *node);
                        f.effect == effect && here && f.from <= refusal.answered && f.to + reach >= refusal.sent
                    })
                };
                let forgot = recent(Effect::Memory, reach.memory) || recent(Effect::Clock, reach.memory);
                // Where too few are left to fill it, a node that has served its quarantine waits for all others.
                let one_forgot = self.faults.iter().any(|f| {
                    matches!(f.effect, Effect::Memory | Effect::Clock)
                        && f.from <= refusal.answered
                        && f.to + reach.memory >= refusal.sent
                });
                let is_true = match outcome.as_str() {
                    "quarantined" => forgot,
                    "awaiting-seed" => one_forgot,
                    "clock-off" => recent(Effect::Clock, reach.late) || recent(Effect::Late, reach.late),
                    "other-cluster" => false,
                    _ => true,
                };
                if !is_true {
                    wrong.push(format!("node {node} is said to be {outcome}, without a fault: {refusal:?}"));
                }
            }
        }
    }
}

/// No two leases at a time, but those of readers. A successful extend confirms the whole time since the grant.
fn exclusion(grants: &[&Grant], wrong: &mut Vec<String>) {
    let mut running: Vec<&Grant> = Vec::new();
    for grant in grants {
        running.retain(|other| other.end > grant.answered);
        let may_share = |other: &Grant| other.is_shared && grant.is_shared;
        for other in running.iter().filter(|other| other.token != grant.token && !may_share(other)) {
            let us = other.end.min(grant.end).saturating_sub(grant.answered);
            wrong.push(format!("two leases at a time for {us} us: {other:?} and {grant:?}"));
        }
        running.push(grant);
    }
}

/// Fences are unique, and larger than that of every grant that was answered before this one was requested.
fn fences(grants: &[&Grant], wrong: &mut Vec<String>) {
    let fenced = grants.iter().filter_map(|g| g.fence.map(|fence| (fence, *g)));
    let mut seen: BTreeMap<u64, &Grant> = BTreeMap::new();
    for (fence, grant) in fenced.clone() {
        if let Some(other) = seen.insert(fence, grant).filter(|other| other.token != grant.token) {
            wrong.push(format!("one fence for two: {other:?} and {grant:?}"));
        }
    }
    let mut by_sent: Vec<(u64, &Grant)> = fenced.clone().collect();
    by_sent.sort_by_key(|(_, g)| g.sent);
    let mut answered = fenced.peekable();
    let mut highest: Option<(u64, &Grant)> = None;
    for (fence, grant) in by_sent {
        while let Some(before) = answered.next_if(|(_, g)| g.answered < grant.sent) {
            highest = highest.max_by_key_with(before);
        }
        if let Some((_, other)) = highest.filter(|(f, g)| *f >= fence && g.token != grant.token) {
            wrong.push(format!("a fence fell: {other:?}, then {grant:?}"));
        }
    }
}

trait MaxByFence<'a> {
    fn max_by_key_with(self, other: (u64, &'a Grant)) -> Self;
}

impl<'a> MaxByFence<'a> for Option<(u64, &'a Grant)> {
    fn max_by_key_with(self, other: (u64, &'a Grant)) -> Self {
        Some(self.filter(|(fence, _)| *fence >= other.0).unwrap_or(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACH: Reach = Reach { memory: 5_000, late: 1_000 };

    fn grant(token: &str, sent: u64, answered: u64, end: u64, fence: u64) -> Grant {
        let token = token.to_owned();
        Grant { token, sent, answered, deadline: end, end, fence: Some(fence), ..Grant::default() }
    }

    fn check(grants: Vec<Grant>) -> Vec<String> {
        History { grants, ..History::default() }.check(&REACH)
    }

    fn refusal(status: u16, reason: &str, nodes: Vec<(usize, String)>) -> Refusal {
        let no = Refused { status, reason: reason.to_owned(), nodes };
        Refusal { resource: 0, token: "b".into(), sent: 10_000, answered: 10_100, no }
    }

    #[test]
    fn a_good_history_is_good() {
        let good = vec![grant("a", 0, 10, 100, 1), grant("b", 20, 100, 200, 2), grant("c", 150, 210, 300, 3)];
        assert_eq!(check(good), [""; 0]);
    }

    #[test]
    fn two_at_a_time_are_found_in_any_order() {
        let (a, b) = (grant("a", 0, 10, 100, 1), grant("b", 5, 99, 200, 2));
        for pair in [vec![a.clone(), b.clone()], vec![b, a]] {
            let wrong = check(pair);
            assert!(matches!(&wrong[..], [only] if only.starts_with("two leases at a time for 1 us")), "{wrong:?}");
        }
    }

    #[test]
    fn readers_are_held_together_and_beside_no_writer() {
        let reader = |token, from, fence| Grant { is_shared: true, ..grant(token, 0, from, 100, fence) };
        assert_eq!(check(vec![reader("a", 10, 1), reader("b", 20, 2)]), [""; 0]);
        for pair in [[reader("a", 10, 1), grant("b", 0, 20, 90, 2)], [grant("a", 0, 10, 100, 1), reader("b", 20, 2)]] {
            let wrong = check(pair.to_vec());
            assert!(matches!(&wrong[..], [only] if only.starts_with("two leases at a time")), "{wrong:?}");
        }
        let twice = check(vec![reader("a", 10, 1), reader("b", 20, 1)]);
        assert!(matches!(&twice[..], [only] if only.starts_with("one fence for two")), "{twice:?}");
    }

    #[test]
    fn fences_that_repeat_or_fall_are_found() {
        let twice = check(vec![grant("a", 0, 10, 20, 7), grant("b", 5, 30, 40, 7)]);
        assert!(matches!(&twice[..], [only] if only.starts_with("one fence for two")), "{twice:?}");
        let fell = check(vec![grant("a", 0, 10, 20, 7), grant("b", 25, 30, 40, 6)]);
        assert!(matches!(&fell[..], [only] if only.starts_with("a fence fell")), "{fell:?}");
        // Requested before the other was answered: any order is correct.
        assert_eq!(check(vec![grant("a", 0, 10, 20, 7), grant("b", 5, 30, 40, 6)]), [""; 0]);
    }

    #[test]
    fn a_replay_is_not_a_second_holder() {
        assert_eq!(check(vec![grant("a", 0, 10, 100, 7), grant("a", 20, 30, 120, 7)]), [""; 0]);
    }

    #[test]
    fn a_loss_before_the_deadline_is_found() {
        let no = Refused { status: 410, reason: "lease-expired/expired".into(), nodes: vec![] };
        for operation in ["release", "extend"] {
            let loss = Loss { grant: grant("a", 0, 10, 100, 1), operation, at: 50, no: no.clone() };
            let history = History { losses: vec![loss], ..History::default() };
            assert_eq!(history.check(&REACH).len(), 1, "{operation}");
        }
    }

    #[test]
    fn causes_that_were_not_there_are_found() {
        let lies = [
            refusal(423, "locked/held", vec![]),
            refusal(423, "locked/foreign", vec![]),
            refusal(500, "internal", vec![]),
            refusal(503, "quorum-unavailable", vec![(1, "quarantined".into())]),
            refusal(503, "quorum-unavailable", vec![(1, "clock-off".into())]),
            refusal(503, "quorum-unavailable", vec![(1, "other-cluster".into())]),
        ];
        for lie in lies {
            let history = History { refusals: vec![lie.clone()], ..History::default() };
            assert_eq!(history.check(&REACH).len(), 1, "{lie:?}");
        }
    }

    #[test]
    fn causes_that_were_there_are_taken() {
        let fault = |effect, node| Fault { name: "", effect, node: Some(node), from: 8_000, to: 9_500 };
        let claim = Claim { resource: 0, token: "a".into(), sent: 0, gone: 10_050 };
        let nodes = vec![(1, "quarantined".into()), (2, "clock-off".into()), (3, "timeout".into())];
        let refusals = vec![refusal(423, "locked/held", vec![]), refusal(503, "quorum-unavailable", nodes)];
        let faults = vec![fault(Effect::Memory, 1), fault(Effect::Late, 2)];
        let mut history = History { refusals, faults, claims: vec![claim], ..History::default() };
        assert_eq!(history.check(&REACH), [""; 0]);
        history.faults[0].node = Some(2);
        assert_eq!(history.check(&REACH).len(), 1, "the fault was another node's");
    }
}
