//! Groups the requests that are queued for a connection into as few commands as the protocol allows, and distributes their
//! answers.
//!
//! Requests about one resource are sent in the order in which they were enqueued. Requests that may share a command
//! ([`commands::batch_kind`]) share it with others of the same turn, unless that would change this order.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;

use super::request_queue::PendingRequest;
use crate::keyed_maps::HASHING;
use crate::protocol::commands::{self, BATCH_MAX, BatchKind, ScriptContext, ScriptRef};
use crate::protocol::keys::{LEASES_KEY, META_KEY};
use crate::protocol::{ClusterParams, Reply, Request, ViewId};
use crate::redlock::clock::BootTime;
use crate::types::NodeId;

/// The data for building commands, besides the requests.
#[derive(Debug, Clone)]
pub(super) struct CommandContext {
    /// The configured parameters on which all instances agree. Each command has those of its view.
    pub params: Arc<ClusterParams>,
    pub id: NodeId,
    /// The last fingerprint: a connection has the same one until the view changes.
    fingerprint: Arc<Mutex<Option<Fingerprint>>>,
}

/// The text that scripts compare with the marker, for a process in a view.
#[derive(Debug)]
struct Fingerprint {
    run: Arc<str>,
    view: ViewId,
    cluster: Arc<str>,
    text: Arc<str>,
}

impl CommandContext {
    /// The context of the commands to one node.
    pub(super) fn new(id: NodeId, params: Arc<ClusterParams>) -> Self {
        Self { params, id, fingerprint: Arc::default() }
    }

    fn fingerprint(&self, params: &ClusterParams, run: &Arc<str>, view: ViewId) -> Arc<str> {
        let (mut last, cluster) = (self.fingerprint.lock(), params.cluster.get());
        let is_same =
            |known: &&Fingerprint| known.view == view && known.run == *run && Arc::ptr_eq(&known.cluster, &cluster);
        if let Some(known) = last.as_ref().filter(is_same) {
            return Arc::clone(&known.text);
        }
        let text: Arc<str> = commands::marker_fingerprint(params, run, view).into();
        *last = Some(Fingerprint { run: Arc::clone(run), view, cluster, text: Arc::clone(&text) });
        text
    }

    /// Appends the command for a batch that is sent to the process `run`.
    pub(super) fn write_command(
        &self,
        out: &mut Vec<u8>,
        run: &Arc<str>,
        batch: &[PendingRequest],
        script_ref: ScriptRef,
    ) {
        let Some(first) = batch.first() else { return };
        let (sent_at, view) = (first.stamp().sent_at, &*first.stamp().view);
        let params = &*self.params.in_view(view);
        let marker_fingerprint = self.fingerprint(params, run, view.id);
        let context = ScriptContext { params, template: &params.template, marker_fingerprint: &marker_fingerprint };
        match commands::batch_kind(first.request()) {
            Some(kind) => {
                let requests = batch.iter().map(|pending| (pending.stamp(), pending.request()));
                commands::write_batch(out, &context, kind, requests, script_ref);
            }
            None => commands::build(&context, sent_at, first.request(), script_ref).write_to(out),
        }
    }
}

/// Refuses the requests whose view names another process than the one at the other end; returns the others.
pub(super) fn sendable(id: &NodeId, run: &str, requests: Vec<PendingRequest>, now: BootTime) -> Vec<PendingRequest> {
    // Most requests have one view, which names this process.
    let Some(first) = requests.first().map(PendingRequest::stamp) else { return requests };
    let is_of_view = |pending: &PendingRequest| Arc::ptr_eq(&pending.stamp().view, &first.view);
    if requests.iter().all(is_of_view) && first.names(id, run) {
        return requests;
    }
    let mut sent = Vec::with_capacity(requests.len());
    for pending in requests {
        let stamp = pending.stamp();
        let refusal = (!stamp.names(id, run)).then(|| stamp.refusal(id, run, pending.request())).flatten();
        match refusal {
            Some(no_vote) => pending.answer(Ok(Reply::NoVote(no_vote)), now),
            None => sent.push(pending),
        }
    }
    sent
}

/// Groups requests into commands, in the order of sending.
pub(super) fn batches(requests: Vec<PendingRequest>, now: BootTime) -> Vec<Vec<PendingRequest>> {
    if requests.len() == 1 {
        return if requests[0].is_abandoned(now) { Vec::new() } else { vec![requests] };
    }
    let count = requests.len();
    let mut batches: Vec<Vec<PendingRequest>> = Vec::with_capacity(2);
    // By kind, the last batch that may take more; by resource, the last batch with a request about it.
    let (mut open, hasher) = ([None; 2], BuildHasherDefault::<AsIs>::default());
    let mut last: HashMap<u64, usize, _> = HashMap::with_capacity_and_hasher(count, hasher);
    for pending in requests {
        if pending.is_abandoned(now) {
            continue;
        }
        // One hash for all connections, since the nodes of a round share it.
        let key = pending.stamp().order(pending.request(), |request| HASHING.hash_one(ordering_key(request)));
        let kind = commands::batch_kind(pending.request()).map(|kind| match kind {
            BatchKind::Acquire => 0,
            BatchKind::Release => 1,
        });
        let is_of_view =
            |batch: &[PendingRequest]| batch.first().is_some_and(|p| p.stamp().view.id == pending.stamp().view.id);
        let fits = |index: &usize| {
            let batch = &batches[*index];
            last.get(&key).is_none_or(|last| last < index) && batch.len() < BATCH_MAX && is_of_view(batch)
        };
        let index = match kind.and_then(|kind| open[kind]).filter(fits) {
            Some(index) => index,
            None => {
                batches.push(Vec::with_capacity(count.min(BATCH_MAX)));
                batches.len() - 1
            }
        };
        if let Some(kind) = kind {
            open[kind] = Some(index);
        }
        last.insert(key, index);
        batches[index].push(pending);
    }
    batches
}

/// The keys of that map are already hashes.
#[derive(Debug, Clone, Copy, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Requests with the same key keep their order: the key is the resource, or the requested key of the node itself.
pub(super) fn ordering_key(request: &Request) -> &str {
    if let Some(resource) = request.resource() {
        return resource.as_str();
    }
    match request {
        Request::List(_) | Request::Index(_) => LEASES_KEY,
        _ => META_KEY,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::nodes::redis::connections::NodeConnections;
    use crate::nodes::redis::request_queue::tests::pending;
    use crate::protocol::{
        AcquireArgs, CancelArgs, ChangedTerms, EndReason, NodeList, ReleaseArgs, RequestStamp, RequestTime, Terms,
        TokenUse, View,
    };
    use crate::types::{AttemptId, ResourceName, Token, Ttl};

    /// The context of the commands to a node.
    pub(in crate::nodes::redis) fn context() -> CommandContext {
        let ms = Duration::from_millis;
        let params = ClusterParams {
            cluster: "c".into(),
            guard: ms(500),
            lock_delay: ms(1_000),
            quarantine: ms(10_000),
            fence_ttl: ms(60_000),
            template: Default::default(),
        };
        CommandContext::new(NodeId::parse("n").expect("valid"), Arc::new(params))
    }

    fn resource(name: &str) -> ResourceName {
        ResourceName::parse(name).expect("valid")
    }

    /// `a`: acquire, `r`: release, `c`: cancel, `i`: inspect; then the resource.
    fn request(abbreviation: &str) -> Request {
        let (kind, name) = abbreviation.split_at(1);
        let (resource, token) = (resource(name), Token::parse("abcdefghijklmnopqrstuv").expect("valid").hash());
        let attempt = AttemptId::from_random(1);
        match kind {
            "a" => Request::Acquire(AcquireArgs {
                resource,
                token,
                attempt,
                ttl: Ttl::from_ms(1_000).expect("valid"),
                labels: "{}".into(),
                token_use: TokenUse::Again,
            }),
            "r" => Request::Release(ReleaseArgs { resource, token, reason: EndReason::Released }),
            "c" => Request::Cancel(CancelArgs { resource, token, attempt }),
            _ => Request::Inspect { resource },
        }
    }

    fn abbreviated(request: &Request) -> String {
        let kind = match request {
            Request::Acquire(_) => "a",
            Request::Release(_) => "r",
            Request::Cancel(_) => "c",
            _ => "i",
        };
        format!("{kind}{}", ordering_key(request))
    }

    /// The commands that requests become, abbreviated; `!` before a request: its caller is gone.
    fn commands(requests: &[&str]) -> Vec<String> {
        let (mut callers, mut waiting) = (Vec::new(), Vec::new());
        let connections = Arc::new(NodeConnections::new((1, 1), None, BootTime::default()));
        for entry in requests {
            let (gone, entry) = (entry.starts_with('!'), entry.trim_start_matches('!'));
            let (one, caller) = pending(RequestTime(1).into(), request(entry), &connections);
            waiting.push(one);
            if !gone {
                callers.push(caller);
            }
        }
        let batches = batches(waiting, BootTime::default());
        batches.iter().map(|b| b.iter().map(|p| abbreviated(p.request())).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn requests_of_one_kind_share_a_command() {
        assert_eq!(commands(&["a1", "r2", "a3", "c4", "a5"]), ["a1 a3 a5", "r2 c4"]);
        assert_eq!(commands(&["i1", "i2"]), ["i1", "i2"]);
        assert_eq!(commands(&[]), Vec::<String>::new());
    }

    #[test]
    fn requests_about_one_resource_keep_their_order() {
        assert_eq!(commands(&["a1", "a1"]), ["a1", "a1"], "and never share a command");
        assert_eq!(commands(&["a1", "r1", "a1"]), ["a1", "r1", "a1"]);
        assert_eq!(commands(&["r1", "a1", "r2", "a2"]), ["r1 r2", "a1 a2"]);
        // The release of 2 may not join the first command: its acquire was enqueued before it.
        assert_eq!(commands(&["r1", "a1", "a2", "r2"]), ["r1", "a1 a2", "r2"]);
        assert_eq!(commands(&["a1", "i2", "a2", "a3"]), ["a1", "i2", "a2 a3"]);
    }

    #[test]
    fn a_command_has_the_terms_of_its_view() {
        let (ms, context) = (Duration::from_millis, context());
        let now = Terms { guard: ms(700), lock_delay: ms(5_000), fence_ttl: ms(90_000), template: None };
        let changed = Some(ChangedTerms { now, accepted: vec!["0".into()] });
        let list = Arc::new(NodeList { terms: "c".into(), changed, ..NodeList::default() });
        let with_terms = View { id: ViewId::NONE.above(1), list: Some(list), ..View::default() };
        let words = |view: View, abbreviation: &str| -> Vec<String> {
            let stamp = RequestStamp::new(RequestTime(1), Arc::new(view));
            let connections = Arc::new(NodeConnections::new((1, 1), None, BootTime::default()));
            let (pending, _caller) = pending(stamp, request(abbreviation), &connections);
            let mut command = Vec::new();
            context.write_command(&mut command, &"0f".into(), &[pending], ScriptRef::Hash);
            let text = String::from_utf8(command).expect("text");
            text.split("\r\n").map(str::to_owned).collect()
        };
        let has = |words: &[String], text: &str| words.iter().any(|word| word == text);
        let (before, after) = (words(View::default(), "a1"), words(with_terms.clone(), "a1"));
        // Guard, fence TTL, and a TTL of a second with the lock delay.
        assert!(["500000", "60000", "2000"].iter().all(|word| has(&before, word)), "{before:?}");
        assert!(["700000", "90000", "6000"].iter().all(|word| has(&after, word)), "{after:?}");
        // The quarantine that is asked for covers the longest lease: 7,871 ms of TTL.
        // After the marker's words and the two periods, each behind its length.
        let pass = after.iter().position(|word| word.starts_with("0f|c|")).expect("the marker's words");
        let asked = after[pass + 6].parse::<u64>().ok();
        assert!(asked.is_some_and(|asked| (14_400..14_500).contains(&asked)), "{asked:?}");
        let cancel = |view: View| words(view, "c1");
        assert!(has(&cancel(View::default()), "2000") && has(&cancel(with_terms), "2400"));
    }

    #[test]
    fn abandoned_requests_are_not_sent() {
        assert_eq!(commands(&["!a1", "a2", "!r3"]), ["a2"]);
    }

    #[test]
    fn a_command_has_a_maximum_number_of_requests() {
        let names: Vec<String> = (0..BATCH_MAX + 1).map(|n| format!("a{n}")).collect();
        let found = commands(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found.iter().map(|g| g.split(' ').count()).collect::<Vec<_>>(), [BATCH_MAX, 1]);
    }
}
