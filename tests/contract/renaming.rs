//! Cases about a change of the key template: reference and Redis.

use std::collections::BTreeSet;
use std::sync::Arc;

use redlockd::protocol::keys::KeyTemplate;
use redlockd::protocol::{
    AcquireSharedArgs, AdmitArgs, ChangedTerms, FillArgs, Found, MemberStatus, NoVote, NodeList, OldList, ReadArgs,
    ReadEntry, RenameArgs, Reply, Request, RestoreArgs, Terms, View, Vote,
};
use redlockd::types::{Fence, Mode, NodeId};

use super::redis_server::RedisServer;
use super::subject::{
    Server, Subject, acquire, attempt, extend, index, name, params, release, revoke, token, ttl, view,
};

/// The key of "x" under this one is that of "ax" under `{resource}`.
const TEMPLATE: &str = "a{resource}";

/// The view that changes the template of the one before.
fn renamed(run: &str, number: u64, since: u64, from: &str, to: &str) -> Arc<View> {
    let n = NodeId::parse("n").expect("valid");
    let of = |template| Terms { template: KeyTemplate::parse(template).ok(), ..params().terms() };
    let before = [(n.clone(), (run.into(), view(since, run).id))].into();
    let old = OldList { names: [n.clone()].into(), before, terms: Some(of(from)) };
    let changed = Some(ChangedTerms { now: of(to), accepted: vec!["1".into()] });
    let list = NodeList { names: [n].into(), terms: "0".into(), changed, old: Some(old) };
    Arc::new(View { list: Some(Arc::new(list)), ..View::clone(&view(number, run)) })
}

fn member(reply: Reply) -> MemberStatus {
    match reply {
        Reply::Member(member) => *member,
        other => panic!("{other:?}"),
    }
}

fn install(node: &mut impl Server, view: &Arc<View>) {
    assert!(member(node.ask(&Request::Install { view: Arc::clone(view) })).is_done);
    node.set_view(view);
}

/// Pages of one key each, with this between them.
fn rename(node: &mut impl Server, mut between: impl FnMut(&mut dyn FnMut(&Request) -> Reply, RenameArgs)) {
    let mut place = RenameArgs { count: 1, ..RenameArgs::default() };
    loop {
        match node.ask(&Request::Rename(place)) {
            Reply::Renaming { receives, cursor } => place = RenameArgs { receives, cursor, ..place },
            Reply::Renamed => return,
            other => panic!("{other:?}"),
        }
        between(&mut |request| node.ask(request), place);
    }
}

fn fill(view: &Arc<View>) -> Request {
    Request::Fill(FillArgs { view: Arc::clone(view), nonce: 1, page: 1, pages: 1, keeps: true, entries: Vec::new() })
}

fn votes_again(node: &mut impl Server, view: &Arc<View>) {
    assert_eq!(node.ask(&fill(view)), Reply::Filled { done: 1 });
    let admit = AdmitArgs { view: Arc::clone(view), nonce: 1, pages: 1, seed: Fence(0), by_clock: false };
    assert!(matches!(member(node.ask(&Request::Admit(admit))), m if m.is_done && m.vote == Vote::Active));
}

fn shared(resource: &str, by: u64) -> Request {
    Request::AcquireShared(AcquireSharedArgs {
        resource: name(resource),
        token: token(by),
        mode: Mode::Shared,
        attempt: attempt(by),
        ttl: ttl(20_000),
        labels: "{}".into(),
        proposed: None,
    })
}

fn is_ended(reply: &Reply) -> bool {
    matches!(reply, Reply::Released(released) if released.found == Found::Match)
}

pub fn leases_receive_the_names_of_the_view_before_they_are_read(node: &mut impl Server) {
    for (resource, by) in [("x", 1), ("ax", 2), ("aax", 3), ("revoked", 4), ("early", 5), ("late", 6)] {
        assert!(matches!(node.ask(&acquire(resource, by, by, 20_000)), Reply::Granted { .. }));
        node.ask(&index(&[(resource, by)]));
    }
    for by in [7, 8] {
        assert!(matches!(node.ask(&shared("read", by)), Reply::Admitted { .. }));
    }
    node.foreign_set(&name("foreign"), b"theirs", Some(20_000));
    let (run, declared) = (node.run(), Arc::<View>::default());
    let new = renamed(&run, 7, 0, "{resource}", TEMPLATE);
    install(node, &new);
    let read = Request::Read(ReadArgs { cursor: 0, count: 500 });
    assert!(matches!(node.ask(&read), Reply::NoVote(NoVote::OtherView { .. })), "its leases have the former names");
    assert_eq!(node.ask(&fill(&new)), Reply::FillNotNeeded);
    // Whoever is in the former view ends a lease wherever it is.
    let mut step = 0;
    rename(node, |ask, place| {
        step += 1;
        match step {
            2 => assert!(is_ended(&ask(&release("early", 5)))),
            3 => assert!(matches!(ask(&extend("x", 1, None, None)), Reply::NoVote(NoVote::OtherView { .. }))),
            _ => {}
        }
        if place.receives && place.cursor > 0 {
            ask(&release("late", 6));
            ask(&revoke("revoked", 4));
        }
    });
    assert!(step > 8, "{step} pages");
    assert_eq!(node.ask(&Request::Rename(RenameArgs::default())), Reply::Renamed, "a repeated request");
    let Reply::Knowledge { entries, .. } = node.ask(&read) else { panic!("no page") };
    let lease = |entry: &ReadEntry| match entry {
        ReadEntry::Lease { resource, record, left_ms } => {
            assert!(left_ms.is_some_and(|left_ms| left_ms > 10_000), "{entry:?}");
            Some((resource.to_string(), record.token.clone()))
        }
        _ => None,
    };
    let held: BTreeSet<_> = entries.iter().filter_map(lease).collect();
    let expected = [("x", 1), ("ax", 2), ("aax", 3), ("revoked", 4), ("read", 7), ("read", 8)];
    assert_eq!(held, expected.map(|(resource, by)| (resource.to_owned(), token(by))).into());
    votes_again(node, &new);
    for (resource, by) in [("x", 1), ("ax", 2), ("aax", 3)] {
        assert!(matches!(node.ask(&extend(resource, by, None, None)), Reply::Updated { .. }), "{resource}");
        assert!(matches!(node.ask(&acquire(resource, 9, 9, 1_000)), Reply::Held { .. }), "{resource}");
    }
    assert!(matches!(node.ask(&extend("revoked", 4, None, None)), Reply::Ended { .. }));
    assert!(matches!(node.ask(&acquire("early", 9, 9, 1_000)), Reply::Granted { .. }));
    // An instance in the former view ends leases and does not harm others.
    node.set_view(&declared);
    assert!(matches!(node.ask(&acquire("free", 9, 9, 1_000)), Reply::NoVote(NoVote::OtherView { .. })));
    for (resource, by) in [("x", 1), ("ax", 2), ("aax", 3), ("revoked", 4), ("read", 7), ("read", 8), ("early", 9)] {
        assert!(is_ended(&node.ask(&release(resource, by))), "{resource}");
    }
    node.set_view(&new);
    for resource in ["x", "ax", "read"] {
        assert!(matches!(node.ask(&acquire(resource, 9, 10, 1_000)), Reply::Granted { .. }), "{resource}");
        assert!(is_ended(&node.ask(&release(resource, 9))));
    }
}

/// Another instance completes the change in a higher view, from wherever the first one left it.
pub fn another_view_goes_on_with_a_change_of_names(node: &mut impl Server) {
    for by in 0..20 {
        node.ask(&acquire(&format!("r/{by}"), by, by, 20_000));
    }
    let run = node.run();
    install(node, &renamed(&run, 7, 0, "{resource}", TEMPLATE));
    for pages in [3, 20] {
        let mut place = RenameArgs { count: 1, ..RenameArgs::default() };
        for _ in 0..pages {
            if let Reply::Renaming { receives, cursor } = node.ask(&Request::Rename(place)) {
                place = RenameArgs { receives, cursor, ..place };
            }
        }
        install(node, &renamed(&run, 7 + pages, 0, "{resource}", TEMPLATE));
    }
    let new = renamed(&run, 40, 0, "{resource}", TEMPLATE);
    install(node, &new);
    rename(node, |_, _| {});
    votes_again(node, &new);
    for by in 0..20 {
        assert!(matches!(node.ask(&extend(&format!("r/{by}"), by, None, None)), Reply::Updated { .. }));
    }
    // And back, of a process that knows how it names locks.
    let back = renamed(&run, 41, 40, TEMPLATE, "{resource}");
    install(node, &back);
    rename(node, |_, _| {});
    votes_again(node, &back);
    assert!(matches!(node.ask(&extend("r/1", 1, None, None)), Reply::Updated { .. }));
}

/// What a process without a vote is sent in a view that names locks otherwise reaches none of its keys.
pub fn an_update_by_other_names_reaches_nothing(node: &mut impl Server) {
    node.ask(&acquire("x", 1, 1, 20_000));
    let (run, declared) = (node.run(), Arc::<View>::default());
    let new = renamed(&run, 7, 0, "{resource}", TEMPLATE);
    install(node, &new);
    rename(node, |_, _| {});
    let record = match node.ask(&Request::Read(ReadArgs { cursor: 0, count: 500 })) {
        Reply::Knowledge { entries, .. } => match &entries[..] {
            [ReadEntry::Lease { record, .. }] => record.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    // In quarantine, it takes repairs and updates in whatever view; "ax" is the name that x has now.
    node.ask(&Request::Quarantine { by: "i".into() });
    node.set_view(&declared);
    let repair = Request::Restore(RestoreArgs { resource: name("ax"), record, left_ms: 30_000 });
    assert!(matches!(node.ask(&repair), Reply::NoVote(NoVote::Quarantined { .. })));
    assert!(matches!(node.ask(&extend("ax", 1, Some(90_000), None)), Reply::NoVote(NoVote::Quarantined { .. })));
    node.set_view(&new);
    assert!(is_ended(&node.ask(&release("x", 1))));
    assert!(!is_ended(&node.ask(&release("ax", 1))));
}

/// Cannot be, by the rules of views: a view without a fill in which locks have other names.
pub fn a_process_whose_leases_change_names_votes_in_no_view_without_a_fill(node: &mut impl Server) {
    node.ask(&acquire("x", 1, 1, 20_000));
    let run = node.run();
    install(node, &renamed(&run, 7, 0, "{resource}", TEMPLATE));
    node.ask(&Request::Rename(RenameArgs { count: 1, ..RenameArgs::default() }));
    let of = |number| {
        let mut roster = view(number, &run).roster.clone();
        roster.values_mut().for_each(|entry| entry.since = view(0, &run).id);
        Arc::new(View { id: view(number, &run).id, roster, list: None })
    };
    assert!(!member(node.ask(&Request::Install { view: of(8) })).is_done);
    assert!(matches!(node.ask(&Request::probe()), Reply::Status(status) if status.why == "displaced"));
}

/// What a process of a cluster leaves on its server.
fn keys_left(node: &mut RedisServer) -> Vec<String> {
    let keys: Vec<String> = node.command(&[b"KEYS", b"*"]);
    keys.into_iter().filter(|key| !key.starts_with("redlockd:") || key.starts_with("redlockd:moved:")).collect()
}

#[test]
fn nothing_is_left_at_either_name() {
    let mut node = super::declared(RedisServer::start());
    leases_receive_the_names_of_the_view_before_they_are_read(&mut node);
    assert_eq!(keys_left(&mut node), ["foreign"]);
}

/// Another client's lock stands at a lease's new name: nothing is overwritten, and nobody gets the resource while either lasts.
#[test]
fn a_lease_whose_new_name_is_taken_becomes_a_block() {
    let mut node = super::declared(RedisServer::start());
    node.ask(&acquire("x", 1, 1, 20_000));
    node.ask(&shared("read", 2));
    for key in ["lock:x", "lock:read"] {
        node.foreign_set(&name(key), b"theirs", Some(300));
    }
    node.foreign_list(&name("lock:free"), None);
    let new = renamed(&node.run(), 7, 0, "{resource}", "lock:{resource}");
    install(&mut node, &new);
    rename(&mut node, |_, _| {});
    votes_again(&mut node, &new);
    let taken: Vec<Vec<u8>> = node.command(&[b"MGET", b"lock:x", b"lock:read"]);
    assert_eq!(taken, [b"theirs", b"theirs"]);
    let is_blocked = |reply| matches!(reply, Reply::NoVote(NoVote::Blocked { left_ms }) if left_ms > 10_000);
    node.pass(std::time::Duration::from_millis(302));
    for resource in ["x", "read"] {
        assert!(is_blocked(node.ask(&acquire(resource, 9, 9, 1_000))), "{resource}");
    }
    for (resource, by) in [("x", 1), ("read", 2)] {
        assert!(is_ended(&node.ask(&release(resource, by))), "{resource}");
        assert!(matches!(node.ask(&acquire(resource, 9, 9 + by, 1_000)), Reply::Granted { .. }), "{resource}");
        node.ask(&release(resource, 9));
    }
    assert_eq!(keys_left(&mut node), ["lock:free"]);
}
