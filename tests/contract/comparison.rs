//! Compares the replies of two nodes, which must be equal except for readings of their clocks.

use redlockd::protocol::{NoVote, NodeInspection, NodeResult, ReadEntry, Reply, StoredLock, Vote};
use redlockd::types::Mode;

/// Kinds of replies that the sequences must have produced, or the test proves too little.
pub const EXPECTED_KINDS: [&str; 69] = [
    "acquire NoVote Blocked",
    "acquire NoVote ClockOff",
    "acquire NoVote OtherCluster",
    "acquire NoVote Quarantined",
    "acquire NoVote Unseeded",
    "acquire Ended Cancelled",
    "acquire Ended Forced",
    "acquire Ended Released",
    "acquire Ended Revoked",
    "acquire Granted false",
    "acquire Granted true",
    "acquire Held false false",
    "acquire Held true false",
    "acquire Held true true",
    "acquire NoVote OtherView",
    "acquire_set NoVote OtherView",
    "acquire_set NoVote Quarantined",
    "acquire_set Refused Ended Cancelled",
    "acquire_set Refused Ended Released",
    "acquire_set Refused Held true false",
    "acquire_set Refused Held true true",
    "acquire_set Refused NoVote Blocked",
    "acquire_set SetGranted false",
    "acquire_set SetGranted true",
    "admit Done",
    "admit Not Done",
    "install Done",
    "install Not Done",
    "probe NoVote OtherView",
    "promise Done",
    "promise Not Done",
    "restore NoVote OtherView",
    "update NoVote OtherView",
    "cancel Match",
    "cancel Nothing",
    "cancel Other",
    "delete_foreign Match",
    "delete_foreign Nothing",
    "delete_foreign Other",
    "update NoVote Blocked",
    "update NoVote Quarantined",
    "update Ended Revoked",
    "update Ok FenceTooFarAhead",
    "update Ok Updated",
    "update Ok Missing",
    "update Other false",
    "update Other true",
    "fill Ok FillNotNeeded",
    "fill Ok FillOutOfOrder",
    "fill Ok Filled",
    "init AlreadyInitialised",
    "inspect Foreign",
    "inspect Free",
    "inspect Lease",
    "read NoVote Quarantined",
    "read Ok Knowledge",
    "restore Ended Released",
    "restore Ok FenceTooFarAhead",
    "restore Ok Restored",
    "restore Other false",
    "probe NoVote Unseeded",
    "quarantine NoVote Quarantined",
    "quarantine Witnessed",
    "release Match",
    "revoke Ok Revoked",
    "waiters Waiters false false",
    "waiters Waiters false true",
    "waiters Waiters true false",
    "waiters Waiters true true",
];

/// The same of the sequences about shared leases and permits.
pub const EXPECTED_MEMBER_KINDS: [&str; 37] = [
    "acquire_shared Admitted false",
    "acquire_shared Admitted true",
    "acquire_shared HeldByMembers true",
    "acquire_shared HeldByMembers false",
    "acquire_shared Held true true",
    "acquire_shared Held true false",
    "acquire_shared ModeDiffers",
    "acquire_shared Ended Released",
    "acquire_shared Ended Cancelled",
    "acquire_shared Ok FenceTooFarAhead",
    "acquire_shared NoVote Blocked",
    "acquire_set Refused Ended Cancelled",
    "acquire_set Refused Ended Released",
    "acquire_set Refused Held true false",
    "acquire_set Refused Held true true",
    "acquire_set Refused HeldByMembers false",
    "acquire_set Refused HeldByMembers true",
    "acquire_set Refused ModeDiffers",
    "acquire_set Refused NoVote Blocked",
    "acquire_set SetGranted false",
    "acquire_set SetGranted true",
    "acquire Granted false",
    "acquire HeldByMembers false",
    "acquire HeldByMembers true",
    "acquire ModeDiffers",
    "cancel Match",
    "cancel Other",
    "downgrade Downgraded",
    "downgrade Ok Missing",
    "downgrade Other false",
    "downgrade ModeDiffers",
    "inspect Members",
    "intent Intent true",
    "intent Intent false",
    "restore Ok Restored",
    "update Other true",
    "update Updated s",
];

/// Whether two replies are equal, with clock readings and remaining TTLs at most `slack_us` apart.
pub fn agree(a: &NodeResult, b: &NodeResult, slack_us: u64) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => {
            let (mut a, mut b) = (a.clone(), b.clone());
            let mut times = clocks_of(&mut a).into_iter().zip(clocks_of(&mut b));
            times.all(|(a, b)| a.abs_diff(b) <= slack_us) && a == b
        }
        (Err(a), Err(b)) => a.kind == b.kind,
        _ => false,
    }
}

/// The reply's kind, without numbers and texts.
pub fn kind_of(answer: &NodeResult) -> String {
    let text = match answer {
        Ok(Reply::NoVote(no_vote)) => format!("NoVote {no_vote:?}"),
        Ok(Reply::Status(status)) => format!("{:?}", status.vote).replacen('(', " ", 1),
        Ok(Reply::Member(member)) => if member.is_done { "Done" } else { "Not Done" }.to_owned(),
        Ok(Reply::Ended { reason }) => format!("Ended {reason:?}"),
        Ok(Reply::Released(released)) => format!("{:?}", released.found),
        Ok(Reply::Admitted { joined, .. }) => format!("Admitted {joined}"),
        Ok(Reply::HeldByMembers(held)) => format!("HeldByMembers {}", held.is_intent),
        Ok(Reply::ModeDiffers { .. }) => "ModeDiffers".to_owned(),
        Ok(Reply::Downgraded { .. }) => "Downgraded".to_owned(),
        Ok(Reply::Indexed) => "Indexed".to_owned(),
        Ok(Reply::Intent { is_own }) => format!("Intent {is_own}"),
        Ok(Reply::Updated { record, .. }) if record.mode == Mode::Shared => "Updated s".to_owned(),
        Ok(Reply::Granted { joined, .. }) => format!("Granted {joined}"),
        Ok(Reply::SetGranted { leases }) => format!("SetGranted {}", leases.iter().any(|lease| lease.joined)),
        Ok(Reply::SetRefused { refused }) => {
            refused.first().map_or_else(String::new, |(_, why)| format!("Refused {}", kind_of(&Ok(why.clone()))))
        }
        Ok(Reply::Held { left_ms, record }) => format!("Held {} {}", left_ms.is_some(), record.is_some()),
        Ok(Reply::Other { fence }) => format!("Other {}", fence.is_some()),
        Ok(Reply::Waiters(page)) => format!("Waiters {} {}", page.is_published, !page.entries.is_empty()),
        Ok(Reply::Inspected(seen)) => format!("{:?}", seen.lock),
        other => format!("{other:?}").replacen('(', " ", 1),
    };
    text.chars().take_while(|c| !matches!(c, '{' | '(' | ')')).collect::<String>().trim_end().to_owned()
}

/// Removes an entry's remaining milliseconds, if it has any, and returns them.
fn left_of(entry: &mut ReadEntry) -> u64 {
    match entry {
        ReadEntry::Lease { left_ms, .. } | ReadEntry::Foreign { left_ms, .. } => left_ms.as_mut().map(std::mem::take),
        ReadEntry::Block { left_ms, .. } => Some(std::mem::take(left_ms)),
        ReadEntry::Tombstone(tombstone) => Some(std::mem::take(&mut tombstone.left_ms)),
    }
    .unwrap_or_default()
}

/// Removes every clock reading and remaining TTL from the reply and returns them, in microseconds.
fn clocks_of(reply: &mut Reply) -> Vec<u64> {
    fn ms(of: &mut u64) -> u64 {
        std::mem::take(of).saturating_mul(1_000)
    }
    fn no_vote(of: &mut NoVote) -> Vec<u64> {
        match of {
            NoVote::Quarantined { left_ms } | NoVote::Blocked { left_ms } => vec![ms(left_ms)],
            NoVote::ClockOff { node_us } => vec![std::mem::take(node_us)],
            _ => vec![],
        }
    }
    match reply {
        Reply::Held { left_ms: Some(left_ms), .. } => vec![ms(left_ms)],
        Reply::SetRefused { refused } => refused.iter_mut().flat_map(|(_, why)| clocks_of(why)).collect(),
        Reply::Updated { before_ms, .. } => vec![ms(before_ms)],
        Reply::Downgraded { left_ms, .. } => vec![ms(left_ms)],
        Reply::HeldByMembers(held) => {
            held.members.sort_by(|a, b| a.token.cmp(&b.token));
            vec![ms(&mut held.left_ms)]
        }
        Reply::Kept(page) => {
            page.due.sort_by(|a, b| (&a.resource, &a.record.token).cmp(&(&b.resource, &b.record.token)));
            page.due.iter_mut().map(|due| ms(&mut due.left_ms)).collect()
        }
        Reply::Revoked { left_ms } => vec![ms(left_ms)],
        Reply::NoVote(of) => no_vote(of),
        Reply::Waiters(page) => {
            let lefts = page.entries.iter_mut().map(|listed| ms(&mut listed.left_ms));
            lefts.chain([std::mem::take(&mut page.cursor)]).collect()
        }
        Reply::Inspected(NodeInspection { no_vote: of, lock, .. }) => {
            let mut clocks = of.as_mut().map(no_vote).unwrap_or_default();
            match lock {
                StoredLock::Lease { left_ms, .. } => clocks.push(ms(left_ms)),
                StoredLock::Foreign { left_ms: Some(left_ms), .. } => clocks.push(ms(left_ms)),
                StoredLock::Members(members) => {
                    members.sort_by(|(a, _), (b, _)| a.token.cmp(&b.token));
                    clocks.extend(members.iter_mut().map(|(_, left_ms)| ms(left_ms)));
                }
                StoredLock::Foreign { left_ms: None, .. } | StoredLock::Free => {}
            }
            clocks
        }
        Reply::Knowledge { now_us, entries, .. } => {
            // Each node has an order of its own.
            let without_time = |entry: &ReadEntry| {
                let mut entry = entry.clone();
                let left_ms = left_of(&mut entry);
                (format!("{entry:?}"), left_ms)
            };
            entries.sort_by_cached_key(without_time);
            let mut clocks: Vec<u64> = entries.iter_mut().map(|entry| left_of(entry).saturating_mul(1_000)).collect();
            clocks.push(std::mem::take(now_us));
            clocks
        }
        Reply::Member(member) => match &mut member.vote {
            Vote::NoVote(of) => no_vote(of),
            _ => vec![],
        },
        Reply::Status(status) => {
            let mut clocks = match &mut status.vote {
                Vote::NoVote(of) => no_vote(of),
                Vote::Active | Vote::AlreadyInitialised | Vote::Witnessed => vec![],
            };
            clocks.extend([&mut status.now_us, &mut status.since_us, &mut status.until_us].map(std::mem::take));
            clocks
        }
        _ => vec![],
    }
}
