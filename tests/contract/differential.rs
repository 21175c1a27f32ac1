//! Random sequences of requests and events, run on the reference and on a real Redis; every reply is compared. Seeded and
//! bounded.
//!
//! No step is taken close to the end of a key, a quarantine or a period of the fence counters, or to the half of a lease's
//! time, since the two nodes differ by a millisecond or two there: the test waits until it has passed. Each script runs on Redis in one transaction
//! with `TIME` before and after it. The reference is given the first reading, and the second one if the replies
//! differ (a key may have expired in between). Clock readings and remaining TTLs may differ by the distance of these
//! readings and Redis' rounding to milliseconds; everything else must be equal.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use redlockd::protocol::reference::{EvictedKey, ForeignValue, ReferenceNode};
use redlockd::protocol::{
    AcquireArgs, AcquireSetArgs, AcquireSharedArgs, AdmitArgs, CancelArgs, ClusterParams, DeleteForeignArgs,
    DowngradeArgs, EndReason, FillArgs, FillEntry, IndexArgs, InstanceName, IntentArgs, KeptArgs, LeaseRecord,
    ListArgs, ListedLease, NoVote, NodeInspection, NodeResult, ProbeArgs, ReadArgs, ReadEntry, ReleaseArgs, Reply,
    Request, RequestStamp, RequestTime, RestoreArgs, RevokeArgs, RosterEntry, StoredLock, TokenUse, Tombstone,
    UpdateArgs, View, ViewId, WaitersArgs,
};
use redlockd::types::{Fence, Mode, NodeId, PermitLimit, ResourceName, WantedMode};

use super::comparison::{EXPECTED_KINDS, EXPECTED_MEMBER_KINDS, agree, kind_of};
use super::redis_server::RedisServer;
use super::steps::{
    Ask, FOREIGN, FenceKind, Filled, FilledKind, MODES, MemberKind, RESOURCES, SentAtKind, Step, Who, member_steps,
    seeded_runner, steps,
};
use super::subject::{Server, Subject, attempt, name, token, ttl, view_id};

/// The number of sequences, and the maximum number of steps of one: a few thousand steps in some seconds.
const SEQUENCES: u32 = 150;
const MEMBER_SEQUENCES: u32 = 200;
const STEPS: usize = 60;
/// Fixed, so that every run tests the same.
const SEED: [u8; 32] = *b"redlockd contract differential 1";
/// Redis rounds each TTL to a millisecond when it is set and again when it is read, and a replay sets it again from what
/// it read: one millisecond each.
const ROUNDING_MS: u64 = 6;
const MAX_PAGES: usize = 100;
/// A busy machine may delay the next command by as much.
const SCHEDULING_US: u64 = 1_000;

const GUARD: Duration = Duration::from_secs(5);
const BRIEF_MS: u64 = 15;
const INSTANCES: [&str; 2] = ["", "i1"];

fn ours(is_brief: bool) -> ClusterParams {
    ClusterParams {
        cluster: "one".into(),
        guard: GUARD,
        lock_delay: Duration::from_millis(10),
        quarantine: Duration::from_millis(if is_brief { BRIEF_MS } else { 100_000 }),
        fence_ttl: Duration::from_millis(if is_brief { 10 * BRIEF_MS } else { 600_000 }),
        template: Default::default(),
    }
}

/// Both nodes, and what the steps so far have produced.
struct Pair<'a> {
    real: &'a mut RedisServer,
    reference: ReferenceNode,
    params: ClusterParams,
    last_fence: u64,
    last_print: String,
    /// Of the last exchange of waiters.
    last_cursor: u64,
    restarts: u32,
    installed: ViewId,
    promised: ViewId,
    admitted: ViewId,
    was_evicted: bool,
    /// Resources and tokens that an acquire named.
    used: BTreeSet<(usize, u64)>,
    /// By how much the two may differ by now, in microseconds.
    slack_us: u64,
    /// How often each kind of reply came to each kind of request.
    met: BTreeMap<String, u32>,
}

impl<'a> Pair<'a> {
    fn new(real: &'a mut RedisServer, is_brief: bool) -> Self {
        real.flush_all();
        real.run = run_id(0);
        real.view = Arc::default();
        let reference = ReferenceNode::new(&run_id(0));
        let params = ours(is_brief);
        let slack_us = ROUNDING_MS * 1_000;
        Self {
            real,
            reference,
            params,
            last_fence: 0,
            last_print: String::new(),
            last_cursor: 0,
            restarts: 0,
            installed: ViewId::NONE,
            promised: ViewId::NONE,
            admitted: ViewId::NONE,
            was_evicted: false,
            used: BTreeSet::new(),
            slack_us,
            met: BTreeMap::new(),
        }
    }

    fn fence(&mut self, kind: FenceKind) -> u64 {
        let now = self.real.now_us();
        match kind {
            FenceKind::Last => self.last_fence,
            FenceKind::OneMore => self.last_fence + 1,
            FenceKind::OneLess => self.last_fence.saturating_sub(1),
            FenceKind::Any => 0,
            FenceKind::Ahead => now + 3_000_000,
            FenceKind::TooFarAhead => now + 20_000_000,
        }
    }

    fn request(&mut self, ask: &Ask) -> Request {
        let r = |i: &usize| name(RESOURCES[*i]);
        // Each token and resource has attempts of its own, as in operation.
        let at = |i: &usize, t: &u64, a: &u64| attempt(u64::try_from(*i).expect("small") * 100 + t * 10 + a);
        match ask {
            Ask::Acquire { resource, token: t, attempt: a, ms } => Request::Acquire(AcquireArgs {
                resource: r(resource),
                token: token(*t),
                attempt: at(resource, t, a),
                ttl: ttl(*ms),
                labels: "{\"o\":\"|\"}".into(),
                token_use: if self.used.insert((*resource, *t)) { TokenUse::First } else { TokenUse::Again },
            }),
            Ask::AcquireShared { resource, token: t, attempt: a, ms, mode, proposed } => {
                Request::AcquireShared(AcquireSharedArgs {
                    resource: r(resource),
                    token: token(*t),
                    mode: mode_of(*mode),
                    attempt: at(resource, t, a),
                    ttl: ttl(*ms),
                    labels: "{\"o\":\"|\"}".into(),
                    proposed: Some(self.fence(*proposed)).filter(|f| *f > 0).map(Fence),
                })
            }
            Ask::Downgrade { resource, token: t, attempts } => {
                let claims: String = attempts.iter().map(|a| format!("{},", at(resource, t, a).as_str())).collect();
                Request::Downgrade(DowngradeArgs { resource: r(resource), token: token(*t), claims: claims.into() })
            }
            Ask::Intent { resource, token: t, since, mode, is_withdrawn } => Request::Intent(IntentArgs {
                resource: r(resource),
                token: token(*t),
                since: RequestTime(*since),
                mode: mode.map_or(WantedMode::Exclusive, |mode| mode_of(mode).wanted()),
                is_withdrawn: *is_withdrawn,
            }),
            Ask::Kept { resource } => Request::Kept(KeptArgs { add: vec![r(resource)] }),
            Ask::AcquireSet { resources, token: t, attempt: a, ms, is_shared } => Request::AcquireSet(AcquireSetArgs {
                resources: resources.iter().map(r).collect(),
                token: token(*t),
                attempt: at(&resources[0], t, a),
                ttl: ttl(*ms),
                labels: "{\"o\":\"|\"}".into(),
                is_shared: *is_shared,
            }),
            Ask::Update { resource, token: t, ms, fence, kind, labels } => Request::Update(UpdateArgs {
                resource: r(resource),
                token: token(*t),
                ttl: ms.map(ttl),
                fence: Some(self.fence(*fence)).filter(|f| *f > 0).map(Fence),
                kind: *kind,
                labels: labels.map(Into::into),
            }),
            Ask::Restore { resource, token: t, ms, fence, mode } => Request::Restore(RestoreArgs {
                resource: r(resource),
                record: LeaseRecord {
                    mode: mode.map_or(Mode::Exclusive, mode_of),
                    token: token(*t),
                    renewals: 7,
                    ttl: ttl(*ms),
                    fence: Fence(self.fence(*fence)),
                    claims: "p,".into(),
                    labels: "{}".into(),
                },
                left_ms: *ms,
            }),
            Ask::Cancel { resource, token: t, attempt: a } => {
                Request::Cancel(CancelArgs { resource: r(resource), token: token(*t), attempt: at(resource, t, a) })
            }
            Ask::Release { resource, token: t, forced } => Request::Release(ReleaseArgs {
                resource: r(resource),
                token: token(*t),
                reason: if *forced { EndReason::Forced } else { EndReason::Released },
            }),
            Ask::Revoke { resource, token: t } => {
                Request::Revoke(RevokeArgs { resource: r(resource), token: token(*t) })
            }
            Ask::DeleteForeign { resource, sees } => {
                let fingerprint = if *sees { self.last_print.as_str() } else { "none" };
                Request::DeleteForeign(DeleteForeignArgs { resource: r(resource), fingerprint: fingerprint.into() })
            }
            Ask::Inspect { resource } => Request::Inspect { resource: r(resource) },
            Ask::Waiters { instance, publishes, from_start } => Request::Waiters(WaitersArgs {
                instance: InstanceName::parse(&format!("i{instance}")).expect("valid"),
                entry: publishes.then(|| format!("{{}} of {instance}").into()),
                ttl: self.params.fence_ttl.min(Duration::from_secs(20)),
                cursor: if *from_start { 0 } else { self.last_cursor },
            }),
            Ask::Read => Request::Read(ReadArgs { cursor: 0, count: 500 }),
            Ask::Fill { nonce, page, entries } => {
                let entries: Vec<_> = entries.iter().map(|entry| self.entry(entry)).collect();
                // One without entries may come for a view that is not above the node's, is not promised, or names another process.
                let by = u64::from(!entries.is_empty() && !self.has_promised());
                let view = self.view_above(by, *page < 3, true);
                Request::Fill(FillArgs { view, nonce: *nonce, page: *page, pages: 3, keeps: false, entries })
            }
            Ask::Probe { instance, is_witness, alive } => {
                let node = |i: &usize| NodeId::parse(["n1", "n2/b"][*i]).expect("valid");
                let alive = alive.iter().map(|(name, run)| (node(name), ["0a", "0b"][*run].into())).collect();
                Request::Probe(ProbeArgs {
                    instance: INSTANCES[*instance].into(),
                    is_witness: *is_witness,
                    alive,
                    syncs: None,
                })
            }
            Ask::Init => Request::Init { view: Arc::clone(&self.real.view) },
            Ask::Quarantine { instance } => Request::Quarantine { by: INSTANCES[*instance].into() },
            Ask::Member { what, by, is_named, fence } => {
                let view = self.view_above(*by, *is_named, matches!(what, MemberKind::Admit));
                match what {
                    MemberKind::Promise => Request::Promise { view: view.id },
                    MemberKind::Install => Request::Install { view },
                    MemberKind::Admit => {
                        let seed = Fence(self.fence(*fence));
                        let by_clock = seed.0.is_multiple_of(2);
                        Request::Admit(AdmitArgs { view, nonce: 9, pages: 1, seed, by_clock })
                    }
                }
            }
        }
    }

    /// Whether the last promise is of a view that is not installed.
    fn has_promised(&self) -> bool {
        self.promised.number() > self.installed.number()
    }

    /// A view so much above the one that the node has, which names it, with its last admission or as admitted in it.
    fn view_above(&mut self, by: u64, is_named: bool, is_admission: bool) -> Arc<View> {
        let id = view_id(self.installed.number().max(self.promised.number()) + by);
        let run = if is_named { self.real.run.as_str().into() } else { "00".into() };
        let since = if is_admission { id } else { self.admitted };
        Arc::new(View {
            id,
            roster: [(NodeId::parse("n").expect("valid"), RosterEntry { run, since, address: None })].into(),
            list: None,
        })
    }

    fn entry(&mut self, of: &Filled) -> FillEntry {
        let Filled { kind, resource, token: t, attempts, ms, fence } = of;
        let at = |a: &u64| attempt(u64::try_from(*resource).expect("small") * 100 + t * 10 + a);
        let (left_ms, fence, first) = (*ms, Fence(self.fence(*fence)), at(&attempts[0]));
        let claims: String = attempts.iter().map(|a| format!("{},", at(a).as_str())).collect();
        let (resource, token, claims) = (name(RESOURCES[*resource]), token(*t), claims.into());
        let tombstone = |attempt, reason| {
            let (resource, token) = (resource.clone(), token.clone());
            FillEntry::Tombstone(Tombstone { resource, token, attempt, reason, left_ms })
        };
        match kind {
            FilledKind::Released => tombstone(None, EndReason::Released),
            FilledKind::Revoked => tombstone(None, EndReason::Revoked),
            FilledKind::Cancelled => tombstone(Some(first), EndReason::Cancelled),
            FilledKind::Foreign { value } => {
                let value = FOREIGN.get(*value).map(|value| (*value).into());
                FillEntry::Foreign { resource, value, left_ms }
            }
            FilledKind::Block => FillEntry::Block { resource, token, claims, left_ms },
            FilledKind::Copy | FilledKind::CopyMember { .. } => {
                let mode = if let FilledKind::CopyMember { mode } = kind { mode_of(*mode) } else { Mode::Exclusive };
                let (renewals, ttl, labels) = (7, ttl(*ms), "{\"n\":\"|\"}".into());
                FillEntry::Copy {
                    resource,
                    record: LeaseRecord { mode, token, renewals, ttl, fence, claims, labels },
                    left_ms,
                }
            }
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let now = self.clear_of_ends();
        match step {
            Step::Ask { what, sent_at, who } => {
                let sent_at = match sent_at {
                    SentAtKind::Now => now,
                    SentAtKind::SlightlyOff(by) => now.saturating_add_signed(*by),
                    SentAtKind::Late => now - 6_000_000,
                    SentAtKind::Early => now + 6_000_000,
                };
                let mut params = self.params.clone();
                match who {
                    Who::Us => {}
                    Who::OtherCluster => params.cluster = "two".into(),
                    Who::LongerTtl => params.quarantine *= 2,
                    Who::LowerView => self.real.view = of_id(view_id(self.installed.number().saturating_sub(1))),
                    Who::HigherView => self.real.view = of_id(view_id(self.installed.number() + 1)),
                }
                if let Ask::DeleteForeign { resource, sees: true } = what {
                    self.ask(
                        RequestTime(now),
                        &self.params.clone(),
                        &Request::Inspect { resource: name(RESOURCES[*resource]) },
                    )?;
                }
                if matches!(what, Ask::Fill { entries, .. } if !entries.is_empty()) && !self.has_promised() {
                    let promise = Request::Promise { view: self.view_above(1, true, true).id };
                    self.ask(RequestTime(now), &self.params.clone(), &promise)?;
                }
                let request = self.request(what);
                self.ask(RequestTime(sent_at), &params, &request)?;
            }
            Step::Foreign { resource, value, ttl_ms } => {
                let r = name(RESOURCES[*resource]);
                match FOREIGN.get(*value) {
                    Some(bytes) => {
                        self.real.foreign_set(&r, bytes, *ttl_ms);
                        self.reference.foreign_set(now, &r, &ForeignValue::Bytes(bytes.to_vec()), *ttl_ms);
                    }
                    None => {
                        self.real.foreign_list(&r, *ttl_ms);
                        self.reference.foreign_set(now, &r, &ForeignValue::OtherType("list"), *ttl_ms);
                    }
                }
            }
            Step::Expire { resource, ttl_ms } => {
                let r = name(RESOURCES[*resource]);
                self.real.foreign_expire(&r, *ttl_ms);
                self.reference.foreign_expire(now, &r, *ttl_ms);
            }
            Step::Delete { resource } => {
                self.real.foreign_delete(&name(RESOURCES[*resource]));
                self.reference.foreign_delete(now, &name(RESOURCES[*resource]));
            }
            Step::FlushAll => {
                self.real.flush_all();
                self.reference.flush_all();
            }
            Step::Evict => self.evict(now),
            Step::ResetStatistics => self.reset_statistics(now)?,
            Step::Restart { keeps_memory } => self.restart(*keeps_memory),
            Step::ClockWasAhead => self.clock_was_ahead(now),
            Step::Heal { entries } => self.heal(entries)?,
            Step::Wait => self.real.pass(Duration::from_millis(2 * BRIEF_MS + 5)),
        }
        // Commands other than scripts may have taken until now.
        self.slack_us += if matches!(step, Step::Ask { .. } | Step::Heal { .. } | Step::Wait) {
            0
        } else {
            self.real.now_us() - now
        };
        Ok(())
    }

    /// The end of the quarantine is set by hand on both.
    fn heal(&mut self, entries: &[Filled]) -> Result<(), TestCaseError> {
        let entries = entries.iter().map(|entry| self.entry(entry)).collect();
        let view = self.view_above(1, true, true);
        let fill =
            Request::Fill(FillArgs { view: Arc::clone(&view), nonce: 9, page: 1, pages: 1, keeps: false, entries });
        let promise = Request::Promise { view: view.id };
        let seed = Fence(self.fence(FenceKind::Last));
        let admit = Request::Admit(AdmitArgs { view, nonce: 9, pages: 1, seed, by_clock: false });
        let quarantine = Request::Quarantine { by: INSTANCES[0].into() };
        for request in [quarantine, promise, fill, Request::probe(), admit] {
            let (sent_at, params) = (RequestTime(self.clear_of_ends()), self.params.clone());
            if matches!(request, Request::Probe(_)) {
                self.real.serve_quarantine();
                self.reference.serve_quarantine();
            }
            self.ask(sent_at, &params, &request)?;
        }
        Ok(())
    }

    /// The server counts an eviction that the marker does not have yet.
    fn evict(&mut self, now: u64) {
        let script = "if redis.call('HEXISTS', KEYS[1], 'ev') == 1 then redis.call('HSET', KEYS[1], 'ev', -1) end";
        self.real.command::<()>(&[b"EVAL", script.as_bytes(), b"1", b"redlockd:meta"]);
        self.reference.evict(now, &EvictedKey::Counter(name("junk")));
        self.was_evicted = true;
    }

    /// The marker has more evictions than the server counts now, until a probe.
    fn reset_statistics(&mut self, now: u64) -> Result<(), TestCaseError> {
        let script = "if redis.call('HEXISTS', KEYS[1], 'ev') == 1 then redis.call('HSET', KEYS[1], 'ev', 9) end";
        self.real.command::<()>(&[b"EVAL", script.as_bytes(), b"1", b"redlockd:meta"]);
        self.reference.reset_statistics();
        self.ask(RequestTime(now), &self.params.clone(), &Request::probe())
    }

    /// Another process replies, with or without memory. Not after an eviction: the real server's own count would have to
    /// restart as well.
    fn restart(&mut self, keeps_memory: bool) {
        if self.was_evicted {
            return;
        }
        self.restarts += 1;
        let run = run_id(self.restarts);
        if keeps_memory {
            self.reference.restart_with_memory(&run);
        } else {
            self.real.flush_all();
            self.reference.restart_empty(&run);
        }
        self.real.run = run;
    }

    /// The reference is called at that time. On Redis the effects are made by hand: keys that end by then are deleted, and
    /// the late request updates the marker.
    fn clock_was_ahead(&mut self, now: u64) {
        const AHEAD_MS: u64 = 6_000;
        let script = "for _, key in ipairs(redis.call('KEYS', '*')) do
              local left = redis.call('PTTL', key)
              if left >= 0 and left < tonumber(ARGV[3]) then redis.call('DEL', key) end
            end
            local m = redis.call('HMGET', KEYS[1], 'run', 'seen')
            if m[1] == ARGV[2] and tonumber(m[2]) < tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], 'seen', ARGV[1]) end";
        let (ahead, run) = (now + AHEAD_MS * 1_000, self.real.run.clone());
        let (ahead_text, span_text) = (ahead.to_string(), AHEAD_MS.to_string());
        let args =
            [script.as_bytes(), b"1", b"redlockd:meta", ahead_text.as_bytes(), run.as_bytes(), span_text.as_bytes()];
        self.real.command::<()>(&[&[&b"EVAL"[..]], &args[..]].concat());
        let reply =
            self.reference.apply(ahead, "", RequestTime(now), &self.params, &Request::Inspect { resource: name("a") });
        assert!(
            matches!(reply, Ok(Reply::Inspected(NodeInspection { no_vote: Some(NoVote::ClockOff { .. }), .. }))),
            "{reply:?}"
        );
    }

    /// Whether the slack has become as long as the time between two changes.
    fn is_too_late(&self) -> bool {
        2 * u128::from(self.slack_us + SCHEDULING_US) >= self.params.fence_ttl.as_micros()
    }

    /// Waits until nothing ends within the slack, before or after; returns the node's time.
    fn clear_of_ends(&mut self) -> u64 {
        let period_us = u64::try_from(self.params.fence_ttl.as_micros()).expect("short");
        let slack_us = self.slack_us + SCHEDULING_US;
        loop {
            let now = self.real.now_us();
            let early = now - slack_us;
            let new_period = early.next_multiple_of(period_us);
            let end =
                self.reference.next_end_us(early, self.params.lock_delay).map_or(new_period, |end| end.min(new_period));
            if end > now + slack_us {
                return now;
            }
            self.real.pass(Duration::from_micros(end + slack_us - now + 1));
        }
    }

    fn ask(&mut self, sent_at: RequestTime, params: &ClusterParams, request: &Request) -> Result<(), TestCaseError> {
        let (before, mut real, after) = self.real.bracketed(sent_at, params, request);
        self.read_on(&mut real, sent_at, params);
        self.slack_us += after - before;
        let stamp = RequestStamp::new(sent_at, Arc::clone(&self.real.view));
        let mut later = self.reference.clone();
        let expected = self.reference.apply(before, "", stamp.clone(), params, request);
        if !agree(&real, &expected, self.slack_us) {
            let at_the_end = later.apply(after, "", stamp, params, request);
            prop_assert!(
                agree(&real, &at_the_end, self.slack_us),
                "{request:?} at {before}\n  redis:   {real:?}\n  reference: {expected:?}"
            );
            self.reference = later;
        }
        *self.met.entry(format!("{} {}", request.operation(), kind_of(&real))).or_default() += 1;
        match &real {
            Ok(
                Reply::Granted { fence, .. }
                | Reply::Admitted { fence, .. }
                | Reply::Updated { record: LeaseRecord { fence, .. }, .. },
            ) => {
                self.last_fence = fence.0;
            }
            Ok(Reply::Inspected(NodeInspection { lock: StoredLock::Foreign { fingerprint, .. }, .. })) => {
                self.last_print = fingerprint.to_string();
            }
            Ok(Reply::Waiters(page)) => self.last_cursor = page.cursor,
            Ok(Reply::Member(member)) => {
                (self.installed, self.promised, self.admitted) = (member.view.id, member.promised, member.admitted);
            }
            Ok(Reply::Status(status)) => {
                (self.installed, self.promised, self.admitted) = (status.view.id, status.promised, status.admitted);
            }
            _ => {}
        }
        self.real.view = of_id(self.installed);
        Ok(())
    }

    /// Adds the further pages to the first one, as the reference has all on one. Of several tombstones of a token the one stays
    /// that counts in a fill.
    fn read_on(&mut self, real: &mut NodeResult, sent_at: RequestTime, params: &ClusterParams) {
        let Ok(Reply::Knowledge { next, entries, .. }) = real else { return };
        while let Some(cursor) = *next {
            let further = self.real.ask_with(sent_at, params, &Request::Read(ReadArgs { cursor, count: 500 }));
            let Ok(Reply::Knowledge { next: after, entries: more, .. }) = further else { panic!("{further:?}") };
            (*next, _) = (after, entries.extend(more));
        }
        let shown = |entry: &ReadEntry| match entry {
            ReadEntry::Tombstone(tombstone) => Some(tombstone.clone()),
            _ => None,
        };
        let all: Vec<Tombstone> = entries.iter().filter_map(shown).collect();
        let rank = |t: &Tombstone| (t.reason != EndReason::Revoked, t.left_ms);
        let is_same =
            |a: &Tombstone, b: &Tombstone| (&a.resource, &a.token, &a.attempt) == (&b.resource, &b.token, &b.attempt);
        entries.retain(|entry| match entry {
            ReadEntry::Tombstone(own) => !all.iter().any(|other| is_same(own, other) && rank(other) > rank(own)),
            _ => true,
        });
    }

    /// At the end both must hold the same leases.
    fn compare_all(&mut self) -> Result<(), TestCaseError> {
        for resource in RESOURCES {
            let sent_at = RequestTime(self.clear_of_ends());
            let params = self.params.clone();
            self.ask(sent_at, &params, &Request::Inspect { resource: name(resource) })?;
        }
        let (sent_at, params) = (RequestTime(self.clear_of_ends()), self.params.clone());
        self.ask(sent_at, &params, &Request::Read(ReadArgs { cursor: 0, count: 500 }))?;
        // Every lease is listed, so that the lists can be compared.
        let all = RESOURCES.iter().flat_map(|resource| (0..4).map(|t| (name(resource), token(t)))).collect();
        let (sent_at, index) = (RequestTime(self.clear_of_ends()), Request::Index(IndexArgs { leases: all }));
        self.ask(sent_at, &params, &index)?;
        let (mut real, mut cursor) = (Vec::new(), 0);
        let now = self.clear_of_ends();
        for _ in 0..MAX_PAGES {
            let list = Request::List(ListArgs { cursor, count: 2 });
            let Ok(Reply::Page { next, leases, .. }) = self.real.ask_with(RequestTime(now), &self.params, &list) else {
                panic!("no page")
            };
            real.extend(leases);
            match next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        if self.real.now_us() > now + self.slack_us + SCHEDULING_US {
            return Err(TestCaseError::reject("the machine was too slow"));
        }
        let (mut of_reference, mut cursor) = (Vec::new(), 0);
        for _ in 0..MAX_PAGES {
            let list = Request::List(ListArgs { cursor, count: 2 });
            let Ok(Reply::Page { next, leases, .. }) =
                self.reference.apply(now, "", RequestTime(now), &self.params, &list)
            else {
                panic!("no page")
            };
            of_reference.extend(leases);
            match next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        let by_name = |l: &ListedLease| (l.resource.clone(), l.record.token.clone());
        real.sort_by_key(by_name);
        real.dedup_by_key(|l| by_name(l));
        of_reference.sort_by_key(by_name);
        let names = |list: &[ListedLease]| {
            list.iter().map(|l| (l.resource.clone(), l.record.clone())).collect::<Vec<(ResourceName, _)>>()
        };
        prop_assert_eq!(names(&real), names(&of_reference));
        Ok(())
    }

    /// Compares what no reply has shown yet: tombstones, and the next fence for a caller with a slow clock, so that only the
    /// nodes' memory decides.
    fn compare_hidden(&mut self) -> Result<(), TestCaseError> {
        let params = self.params.clone();
        for resource in RESOURCES.map(name) {
            let now = self.clear_of_ends();
            self.real.foreign_delete(&resource);
            self.reference.foreign_delete(now, &resource);
            for t in 0..2 {
                let reason = EndReason::Released;
                let release = Request::Release(ReleaseArgs { resource: resource.clone(), token: token(t), reason });
                for _ in 0..2 {
                    let sent_at = RequestTime(self.clear_of_ends());
                    self.ask(sent_at, &params, &release)?;
                }
            }
            let acquire = Request::Acquire(AcquireArgs {
                resource,
                token: token(9),
                attempt: attempt(999),
                ttl: ttl(20_000),
                labels: "{}".into(),
                token_use: TokenUse::Again,
            });
            let slow = RequestTime(self.clear_of_ends() - 4_900_000);
            self.ask(slow, &params, &acquire)?;
        }
        Ok(())
    }
}

/// A view of nobody.
fn of_id(id: ViewId) -> Arc<View> {
    Arc::new(View { id, ..View::default() })
}

/// In hex, as Redis' own.
fn run_id(process: u32) -> String {
    format!("{process:040x}")
}

fn mode_of(index: usize) -> Mode {
    let (slot, limit) = MODES[index];
    PermitLimit::new(limit).map_or(Mode::Shared, |limit| Mode::permit(slot, limit).expect("a slot"))
}

#[test]
fn the_reference_and_redis_give_the_same_replies_to_random_sequences() {
    compare(steps(), SEQUENCES, &EXPECTED_KINDS);
}

#[test]
fn the_reference_and_redis_give_the_same_replies_about_shared_leases_and_permits() {
    compare(member_steps(), MEMBER_SEQUENCES, &EXPECTED_MEMBER_KINDS);
}

fn compare(steps: impl Strategy<Value = Step>, cases: u32, expected: &[&str]) {
    let (real, met) = (RefCell::new(RedisServer::start()), RefCell::new(BTreeMap::<_, u32>::new()));
    let sequences = (any::<bool>(), prop::bool::weighted(0.9), prop::collection::vec(steps, 1..STEPS));
    let outcome = seeded_runner(cases, &SEED).run(&sequences, |(is_brief, is_initialised, steps)| {
        let mut real = real.borrow_mut();
        let mut pair = Pair::new(&mut real, is_brief);
        if is_initialised {
            let sent_at = RequestTime(pair.real.now_us());
            pair.ask(sent_at, &pair.params.clone(), &Request::init())?;
        }
        for step in &steps {
            pair.step(step)?;
            // On a machine that stopped the test for so long there is no time at which nothing can have ended.
            if pair.is_too_late() {
                return Err(TestCaseError::reject("the machine was too slow"));
            }
        }
        let outcome = pair.compare_all().and_then(|()| pair.compare_hidden());
        for (kind, times) in std::mem::take(&mut pair.met) {
            *met.borrow_mut().entry(kind).or_default() += times;
        }
        outcome
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let met = met.into_inner();
    for kind in expected {
        assert!(met.contains_key(*kind), "no such reply, so not tested: {kind}; received: {met:#?}");
    }
}
