//! Observes each request and its answer at the nodes: adds them to the trace and the hash, counts hard
//! states, and checks what must never happen on a node.

use super::actors::{all_terms, declared};
use super::coverage::HardState;
use super::network::Packet;
use super::profile::Variant;
use super::world::{MS, Us, World};
use crate::protocol::{
    AcquireArgs, AcquireSharedArgs, CancelArgs, EndReason, FillEntry, MemberStatus, NoVote, NodeResult, ReleaseArgs,
    Reply, Request, RestoreArgs, Terms, UpdateArgs, UpdateKind, Vote,
};
use crate::types::{AttemptId, Mode, ResourceName, TokenHash};

/// Shorter than a note counts, by as much as clocks may be apart and be stepped within the guard.
const WITNESS: Us = 1_400 * MS;

impl World {
    /// Records a request and its answer, and checks what must never happen.
    pub(super) fn observe(&mut self, packet: &Packet, answer: &NodeResult) {
        let (node, request) = (packet.node, &*packet.request);
        let code = answer_code(answer);
        self.mix(&[node as u64, packet.inst as u64, packet.stamp.sent_at.0, code.0, code.1]);
        self.trace(|| {
            let late = if packet.is_late { " LATE" } else { "" };
            format!("n{node} <- i{}{late} {} => {}", packet.inst, brief(request), brief_answer(answer))
        });
        let no_vote = match answer {
            Ok(Reply::NoVote(no_vote)) => Some(no_vote),
            Ok(Reply::Status(status)) => match &status.vote {
                Vote::NoVote(no_vote) => Some(no_vote),
                _ => None,
            },
            _ => None,
        };
        if let Some(no_vote) = no_vote {
            let what = match no_vote {
                NoVote::Quarantined { .. } if matches!(request, Request::Update(_)) => {
                    HardState::ExtendedOverQuarantine
                }
                NoVote::Quarantined { .. } => HardState::Quarantined,
                NoVote::OtherCluster { .. } | NoVote::NewerProtocol { .. } => HardState::OtherClusterRefused,
                NoVote::OtherView { .. } | NoVote::OtherProcess { .. } => HardState::ViewStraddled,
                NoVote::ClockOff { .. } if packet.is_late => HardState::LateAcquireMetGuard,
                NoVote::ClockOff { .. } => HardState::ClockOff,
                NoVote::Unseeded { .. } | NoVote::Blocked { .. } => HardState::Unseeded,
            };
            self.coverage.count(what);
            // A refusal of another cluster says nothing about the clock.
            let shows_the_clock = !matches!(no_vote, NoVote::OtherCluster { .. } | NoVote::OtherView { .. });
            self.servers[node].noticed += u32::from(shows_the_clock);
        }
        if matches!((request, answer), (Request::Fill(_), Ok(Reply::Filled { .. })))
            && !self.checker.lost_tail.is_empty()
        {
            // It may have been filled from a node that lost a cancel.
            self.checker.lost_tail.insert(node);
        }
        self.observe_membership(packet, answer);
        self.observe_by_kind(node, request, answer, packet.is_late);
    }

    /// Whether the cluster may have this name: with changed terms it has another one if it is begun anew after all nodes forgot.
    fn may_be_ours(&self, name: &str) -> bool {
        let first: Vec<usize> = (0..self.profile.nodes).collect();
        let lists = [Some(&first), self.profile.corrected.as_ref()];
        let is_of = |list: &Vec<usize>| {
            let of = |terms: Terms| declared(&self.profile, list, &terms).get();
            all_terms().any(|terms| *of(terms) == *name)
        };
        (self.profile.reterms || self.profile.relists)
            && lists.into_iter().flatten().chain(&self.answered_lists).any(is_of)
    }

    /// Orders, witnesses, and whose a node is.
    fn observe_membership(&mut self, packet: &Packet, answer: &NodeResult) {
        let (node, inst, now) = (packet.node, packet.inst, self.now);
        if let Ok(Reply::Member(member)) = answer {
            return self.observe_change(packet, member);
        }
        let Ok(Reply::Status(status)) = answer else { return };
        let is_clock_off = matches!(status.vote, Vote::NoVote(NoVote::ClockOff { .. }));
        let is_other = |inst: usize| self.profile.variant == Variant::OtherCluster && inst + 1 == self.insts.len();
        match &*packet.request {
            Request::Probe(args) => {
                let is_foreign = matches!(status.vote, Vote::NoVote(NoVote::OtherCluster { .. }));
                // An instance that was started with changed terms learns the cluster's name from the nodes.
                let is_claimed =
                    matches!(&status.vote, Vote::NoVote(NoVote::OtherCluster { theirs }) if !self.may_be_ours(theirs));
                // A node takes no notes of an instance of another cluster.
                if args.is_witness && !is_clock_off && !is_foreign && !is_other(inst) {
                    self.servers[node].witnessed.insert(inst, now);
                }
                if is_claimed && !is_other(inst) && !self.checker.taken_by_other.contains(&node) {
                    self.fail(format!("node {node} was claimed by another cluster at a look"));
                }
            }
            Request::Quarantine { .. } if status.vote == Vote::Witnessed => {
                self.coverage.count(HardState::OrderRefused);
            }
            Request::Quarantine { .. } => {
                // A note from before a step of this clock may be from its future now.
                let stepped = self.servers[node].disturbed;
                let is_fresh = |(other, at): (&usize, &Us)| {
                    *other != inst && at + WITNESS > now && stepped.is_none_or(|stepped| stepped < *at)
                };
                if let Some((other, at)) = self.servers[node].witnessed.iter().find(|seen| is_fresh(*seen)) {
                    let ago = (now - at) / MS;
                    self.fail(format!("i{inst} quarantined n{node}, where i{other} was right {ago} ms before"));
                } else {
                    self.coverage.count(HardState::QuarantineOrdered);
                    self.servers[node].disturb(now);
                    self.unnoticed.remove(&node);
                }
            }
            _ => {}
        }
    }

    /// Views, and who is admitted to them.
    fn observe_change(&mut self, packet: &Packet, member: &MemberStatus) {
        if matches!(&*packet.request, Request::Install { view } if member.is_done && member.view.id == view.id)
            && self.servers[packet.node].machine.votes_by_disk()
        {
            self.coverage.count(HardState::ResumedByDisk);
        }
        let is_other = self.profile.variant == Variant::OtherCluster && packet.inst + 1 == self.insts.len();
        match &*packet.request {
            Request::Admit(args) if member.is_done => {
                if is_other {
                    self.checker.taken_by_other.insert(packet.node);
                }
                self.coverage.count(HardState::QuarantineLeft);
                self.coverage.count(if args.by_clock { HardState::SeededByClock } else { HardState::Healed });
                if args.by_clock && args.view.roster.len() < self.profile.nodes {
                    self.coverage.count(HardState::SeededWithoutEnded);
                }
            }
            // A half-done change was begun anew, by whoever was there.
            Request::Install { view }
                if view.old().is_some_and(|old| {
                    old.before.iter().any(|(name, (run, since))| {
                        *name == self.profile.name_of(packet.node) && *run == member.run && member.admitted > *since
                    })
                }) =>
            {
                self.coverage.count(HardState::ChangeCompleted);
            }
            Request::Promise { .. } | Request::Install { .. } if !member.is_done => {
                self.coverage.count(HardState::ChangeDisplaced);
            }
            _ => {}
        }
    }

    /// A node has set this attempt's lease just now.
    pub(super) fn check_not_ended(
        &mut self,
        node: usize,
        resource: &ResourceName,
        token: &TokenHash,
        attempt: &AttemptId,
    ) {
        let server = &self.servers[node];
        // An old request may look new where the clocks went back by as much.
        let is_ghost = server.was_cancelled(resource, attempt) && !self.checker.clocks_stepped;
        if is_ghost || server.ended.contains(&(resource.clone(), token.clone())) {
            let why = if is_ghost { "its attempt was cancelled" } else { "its token was released" };
            self.fail(format!("resurrected: node {node} set {resource} for {token:?} although {why} there before"));
        }
    }

    fn observe_by_kind(&mut self, node: usize, request: &Request, answer: &NodeResult, is_late: bool) {
        match (request, answer) {
            (Request::Acquire(AcquireArgs { resource, token, attempt, .. }), Ok(Reply::Granted { .. }))
            | (
                Request::AcquireShared(AcquireSharedArgs { resource, token, attempt, .. }),
                Ok(Reply::Admitted { .. }),
            ) => {
                let is_proposal = matches!(request, Request::AcquireShared(args) if args.proposed.is_some());
                if is_proposal {
                    self.coverage.count(HardState::FenceProposed);
                }
                self.check_not_ended(node, resource, token, attempt);
            }
            (Request::Fill(args), Ok(Reply::Filled { .. })) => {
                let is_member = |entry: &FillEntry| matches!(entry, FillEntry::Copy { record, .. } if record.mode != Mode::Exclusive);
                if args.entries.iter().any(is_member) {
                    self.coverage.count(HardState::MemberFilled);
                }
            }
            (Request::AcquireSet(args), answer) => self.observe_set(node, args, answer),
            (Request::Acquire(_), Ok(Reply::Ended { reason: EndReason::Cancelled })) if is_late => {
                self.coverage.count(HardState::LateAcquireMetTombstone);
            }
            (Request::Acquire(_), Ok(Reply::Ended { .. })) => self.coverage.count(HardState::EndedTokenRefused),
            (Request::Cancel(CancelArgs { resource, attempt, token }), Ok(_)) => {
                self.servers[node].cancelled.insert((resource.clone(), attempt.as_str().to_owned()));
                if self.lease_on(node, resource, token).is_some() {
                    self.coverage.count(HardState::ClaimLeftStanding);
                }
            }
            (Request::Release(ReleaseArgs { resource, token, .. }), Ok(_)) => {
                self.servers[node].ended.insert((resource.clone(), token.clone()));
            }
            (Request::Update(UpdateArgs { fence: Some(_), kind: UpdateKind::Edit, .. }), Ok(Reply::Updated { .. })) => {
                self.coverage.count(HardState::FenceWrittenBack);
            }
            (Request::Restore(_), Ok(Reply::Restored)) => self.coverage.count(HardState::LeaseRestored),
            (_, Ok(Reply::Status(status))) if status.why == "clock" => self.coverage.count(HardState::ClockRanBack),
            _ => {}
        }
    }
}

/// Two numbers that distinguish answers.
fn answer_code(answer: &NodeResult) -> (u64, u64) {
    match answer {
        Ok(Reply::Granted { fence, joined }) => (1 + u64::from(*joined), fence.0),
        Ok(Reply::SetGranted { leases }) => (15, leases.iter().fold(0, |sum, lease| sum ^ lease.fence.0)),
        Ok(Reply::SetRefused { refused }) => (16, refused.len() as u64),
        Ok(Reply::Held { left_ms, .. }) => (3, left_ms.unwrap_or(0)),
        Ok(Reply::Admitted { fence, joined }) => (15 + u64::from(*joined), fence.0),
        Ok(Reply::HeldByMembers(held)) => (17, held.left_ms),
        Ok(Reply::Updated { record, before_ms }) => (4, record.fence.0 ^ before_ms),
        Ok(Reply::Missing) => (5, 0),
        Ok(Reply::Other { .. }) => (6, 0),
        Ok(Reply::Ended { reason }) => (7, *reason as u64),
        Ok(Reply::Restored) => (8, 0),
        Ok(Reply::Released(released)) => (9, released.found as u64),
        Ok(Reply::NoVote(_)) => (10, 0),
        Ok(Reply::Status(status)) => (11, status.high_water.0),
        Ok(Reply::Member(member)) => (14, member.view.id.number() ^ member.high_water.0),
        Ok(_) => (12, 0),
        Err(error) => (13, error.kind as u64),
    }
}

fn brief(request: &Request) -> String {
    match request {
        Request::Acquire(AcquireArgs { resource, token, attempt, ttl, .. }) => {
            format!("acquire {resource} {token:?} {attempt:?} {} ms", ttl.as_ms())
        }
        Request::Update(UpdateArgs { resource, token, fence, kind, ttl, .. }) => {
            format!("update {resource} {token:?} fence {fence:?} ttl {ttl:?} {kind:?}")
        }
        Request::Restore(RestoreArgs { resource, record, left_ms }) => {
            format!("restore {resource} {:?} {left_ms} ms", record.token)
        }
        Request::Cancel(CancelArgs { resource, token, attempt }) => format!("cancel {resource} {token:?} {attempt:?}"),
        Request::Release(ReleaseArgs { resource, token, .. }) => format!("release {resource} {token:?}"),
        other => format!("{other:?}"),
    }
}

fn brief_answer(answer: &NodeResult) -> String {
    match answer {
        Ok(Reply::Held { left_ms, record }) => format!("held {left_ms:?} {:?}", record.as_ref().map(|r| &r.token)),
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("{error}"),
    }
}
