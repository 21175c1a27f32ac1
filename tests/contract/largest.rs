//! The largest replies that an honest node has: an instance accepts 4 MiB and 16,384 elements (`nodes/redis/reply_limit.rs`).

use redlockd::protocol::{
    AcquireArgs, AcquireSharedArgs, LeaseRecord, ListArgs, MAX_CLAIMS, MEMBERS_MAX, ReadArgs, ReadEntry, Reply,
    Request, StoredLock, TokenUse,
};
use redlockd::types::{Labels, Mode, PermitLimit, ResourceName};

use super::subject::{Subject, attempt, name, token, ttl};

/// Locks with one lease, beside one with as many members as it may have.
const LEASES: u64 = 249;
/// Framing and numbers of an element with its neighbours: more than they take.
const FRAME: usize = 48;

/// The longest name, of the lease with this number.
fn longest_name(i: u64) -> ResourceName {
    name(&format!("{i:04}/{}", "n".repeat(250)))
}

/// As long as labels may be.
fn largest_labels() -> std::sync::Arc<str> {
    let metadata = (0..16).map(|i| (format!("{i:02}"), "m".repeat(62))).collect();
    let labels = Labels {
        owner: "o".repeat(128),
        note: "n".repeat(512),
        metadata,
        acquired_at_ms: 1_800_000_000_000,
        principal: "p".repeat(32),
        kept_until_ms: 1_800_000_000_000,
    };
    labels.check().expect("within the bounds");
    labels.encode()
}

/// Bytes of a lease with so many claims as it may have.
fn bytes(resource: &ResourceName, record: &LeaseRecord) -> usize {
    let claim = record.claims.len();
    resource.as_str().len() + record.encode().len() + (MAX_CLAIMS - 1) * claim + FRAME
}

pub fn the_largest_replies_are_accepted(node: &mut impl Subject) {
    let (labels, ttl) = (largest_labels(), ttl(3_600_000));
    for i in 0..LEASES {
        let args = AcquireArgs {
            resource: longest_name(i),
            token: token(i),
            attempt: attempt(i),
            ttl,
            labels: std::sync::Arc::clone(&labels),
            token_use: TokenUse::Again,
        };
        assert!(matches!(node.ask(&Request::Acquire(args)), Reply::Granted { .. }));
    }
    let (shared, limit) = (longest_name(LEASES), PermitLimit::new(64).expect("valid"));
    assert_eq!(limit.get(), 64);
    for i in 0..MEMBERS_MAX as u64 {
        let args = AcquireSharedArgs {
            resource: shared.clone(),
            token: token(LEASES + i),
            mode: Mode::Shared,
            attempt: attempt(i),
            ttl,
            labels: std::sync::Arc::clone(&labels),
            proposed: None,
        };
        assert!(matches!(node.ask(&Request::AcquireShared(args)), Reply::Admitted { .. }));
    }
    let all: Vec<(ResourceName, _)> = (0..=LEASES).map(|i| (longest_name(i), token(i))).collect();
    for some in all.chunks(redlockd::protocol::INDEX_MAX) {
        let index = redlockd::protocol::IndexArgs { leases: some.into() };
        assert_eq!(node.ask(&Request::Index(index)), Reply::Indexed);
    }
    let Reply::Page { leases, .. } = node.ask(&Request::List(ListArgs { cursor: 0, count: 1_000 })) else {
        panic!("no page")
    };
    let list: usize = leases.iter().map(|lease| bytes(&lease.resource, &lease.record)).sum();
    let Reply::Inspected(seen) = node.ask(&Request::Inspect { resource: shared }) else { panic!("no inspection") };
    let StoredLock::Members(members) = seen.lock else { panic!("{:?}", seen.lock) };
    let inspected: usize = members.iter().map(|(record, _)| bytes(&name("x"), record)).sum();
    assert_eq!((leases.len(), members.len()), (1_249, 1_000));
    // As docs and comments say, and some of it is missing in none.
    for (what, bytes, mib) in [("list", list, 3.0), ("inspection", inspected, 2.2)] {
        let measured = f64::from(u32::try_from(bytes).expect("small")) / f64::from(1 << 20);
        assert!((mib - 0.15..mib + 0.15).contains(&measured), "{what}: {measured} MiB");
    }
    // A page of all that the node knows: these, and as many more as there are keys in a page.
    let Reply::Knowledge { entries, .. } = node.ask(&Request::Read(ReadArgs { cursor: 0, count: 500 })) else {
        panic!("no page")
    };
    let each = entries.iter().filter_map(|entry| match entry {
        ReadEntry::Lease { resource, record, .. } => Some(bytes(resource, record)),
        _ => None,
    });
    let most = each.max().expect("a lease");
    assert!((500 + MEMBERS_MAX) * most < 4 << 20, "{most} bytes for each");
}
