//! The protocol on a Redis node as commands: the Lua files, and the keys and arguments that a request
//! gives them. Pure: no connection, no clock. What comes back is read by [`super::replies`].

use std::sync::LazyLock;
use std::time::Duration;

use deadpool_redis::redis::{Cmd, Script};

use super::keys::{self, KeyTemplate};
use crate::protocol::{
    AcquireArgs, CancelArgs, ClusterParams, DeleteForeignArgs, EndReason, ListArgs, ReleaseArgs, Request, RequestTime,
    RestoreArgs, RevokeArgs, TOKEN_TOMBSTONE, UpdateArgs,
};
use crate::types::{AttemptId, ResourceName, TokenHash};

/// The most leases that are asked for as one page: it holds the node up for one or two milliseconds.
pub const LIST_MAX: u32 = 1_000;
/// How many entries of the index of leases one probe tidies: one instance probing each second keeps up
/// with this many abandoned leases per second, for about a millisecond of the node's time where there
/// are so many.
pub const SWEEP_MAX: u32 = 512;
/// The longest lifetime that is sent to a node, 34 years (2^40 ms, as [`crate::types::Ttl`]):
/// more would overflow a node's own sum.
const LIFETIME_MAX_MS: u64 = 1 << 40;

macro_rules! script {
    ($name:ident, $file:literal, $why:literal) => {
        #[doc = $why]
        pub static $name: LazyLock<NodeScript> =
            LazyLock::new(|| NodeScript::new(concat!(include_str!("lua/marker.lua"), include_str!($file))));
    };
    (bare $name:ident, $file:literal, $why:literal) => {
        #[doc = $why]
        pub static $name: LazyLock<NodeScript> = LazyLock::new(|| NodeScript::new(include_str!($file)));
    };
}

script!(ACQUIRE, "lua/acquire.lua", "Takes or joins; several at once.");
script!(HOLD, "lua/update.lua", "Extends, edits, writes a fence back.");
script!(PLANT, "lua/restore.lua", "Repairs.");
script!(INSPECT, "lua/inspect.lua", "Looks.");
script!(NODE, "lua/node.lua", "The node's own affairs.");
script!(bare RELEASE, "lua/release.lua", "Releases and cancels; several at once.");
script!(bare REVOKE, "lua/revoke.lua", "Forbids renewals.");
script!(bare EVICT, "lua/delete_foreign.lua", "Removes a foreigner's lock.");
script!(bare LIST, "lua/list.lua", "A page of leases.");

/// Every script, for loading on a new connection.
pub fn all() -> [&'static NodeScript; 9] {
    [&ACQUIRE, &HOLD, &PLANT, &INSPECT, &NODE, &RELEASE, &REVOKE, &EVICT, &LIST]
}

/// A script and the name that Redis gives it.
#[derive(Debug)]
pub struct NodeScript {
    source: &'static str,
    sha: String,
}

impl NodeScript {
    fn new(source: &'static str) -> Self {
        Self { source, sha: Script::new(source).get_hash().to_owned() }
    }

    /// The command that loads it.
    pub fn load(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("SCRIPT").arg("LOAD").arg(self.source);
        cmd
    }

    /// Its SHA-1 in hex.
    pub fn sha(&self) -> &str {
        &self.sha
    }
}

/// How a script is named in a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptRef {
    /// By its SHA-1: short, but the node must have loaded it.
    Hash,
    /// By its full text, which also loads it: used after the node replied `NOSCRIPT`.
    Body,
}

/// The most requests that one command carries: it holds the node up for some 200 microseconds.
pub const BATCH_MAX: usize = 32;

/// Which commands requests may share: such of one kind, about different resources, one after the other.
/// The script decides each as if it had come alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKind {
    /// Acquires.
    Acquire,
    /// Releases and cancels.
    Release,
}

/// Which command a request may share with others, if any.
pub fn batch_kind(request: &Request) -> Option<BatchKind> {
    match request {
        Request::Acquire(_) => Some(BatchKind::Acquire),
        Request::Release(_) | Request::Cancel(_) => Some(BatchKind::Release),
        _ => None,
    }
}

/// What scripts are told beside the request.
#[derive(Debug, Clone, Copy)]
pub struct ScriptContext<'a> {
    /// What all instances agree on.
    pub params: &'a ClusterParams,
    /// Names of lock keys.
    pub template: &'a KeyTemplate,
    /// What the node's marker is compared with, see [`marker_fingerprint`].
    pub marker_fingerprint: &'a str,
}

/// What a node that votes carries in its marker: the process it was when it got its vote, the cluster
/// and the quarantine, in one text so that the common case is one comparison. `run` is the `run_id`
/// that the connection is bound to; empty: each script reads it itself.
pub fn marker_fingerprint(params: &ClusterParams, run: &str) -> String {
    format!("{run}|{}|{}", params.cluster, millis(params.quarantine))
}

/// The command for a request.
pub fn build(context: &ScriptContext<'_>, sent_at: RequestTime, request: &Request, script_ref: ScriptRef) -> Cmd {
    build_batch(context, &[(sent_at, request)], script_ref)
}

fn acquires(context: &ScriptContext<'_>, asked: &[(RequestTime, &Request)], script_ref: ScriptRef) -> Cmd {
    let mut call = Call::begin(&ACQUIRE, script_ref, 2 + 4 * asked.len(), asked.len());
    call.keys([keys::META_KEY, keys::LEASES_KEY]);
    for (_, request) in asked {
        if let Request::Acquire(AcquireArgs { resource, token, attempt, .. }) = request {
            call.text(&context.template.lock(resource)).text(&keys::token_tombstone(resource, token));
            call.text(&keys::attempt_tombstone(resource, token, attempt)).text(&keys::fence(resource));
        }
    }
    call.params(context);
    for (sent_at, request) in asked {
        if let Request::Acquire(AcquireArgs { resource, token, attempt, ttl, labels }) = request {
            call.number(sent_at.0).text(token.as_str()).number(ttl.as_ms());
            call.number(millis(ttl.as_duration().saturating_add(context.params.lock_delay)));
            call.text(attempt.as_str()).text(labels).text(resource.as_str());
        }
    }
    call.end()
}

fn releases(context: &ScriptContext<'_>, asked: &[(RequestTime, &Request)], script_ref: ScriptRef) -> Cmd {
    let ends = || asked.iter().filter_map(|(_, request)| End::of(context, request));
    let mut call = Call::begin(&RELEASE, script_ref, 1 + 2 * asked.len(), asked.len());
    call.text(keys::LEASES_KEY);
    for end in ends() {
        call.text(&context.template.lock(end.resource)).text(&end.tombstone());
    }
    for end in ends() {
        call.text(end.token.as_str()).text(end.attempt.map_or("", |a| a.as_str())).number(millis(end.keep));
        call.text(end.reason).text(&keys::freed_channel(end.resource)).text(end.resource.as_str());
    }
    call.end()
}

/// What a release and a cancel have in common.
struct End<'a> {
    resource: &'a ResourceName,
    token: &'a TokenHash,
    attempt: Option<&'a AttemptId>,
    reason: &'static str,
    keep: Duration,
}

impl<'a> End<'a> {
    fn of(context: &ScriptContext<'_>, request: &'a Request) -> Option<Self> {
        match request {
            Request::Release(ReleaseArgs { resource, token, reason }) => {
                Some(Self { resource, token, attempt: None, reason: reason.as_str(), keep: TOKEN_TOMBSTONE })
            }
            Request::Cancel(CancelArgs { resource, token, attempt }) => {
                let (reason, keep) = (EndReason::Cancelled.as_str(), context.params.attempt_tombstone());
                Some(Self { resource, token, attempt: Some(attempt), reason, keep })
            }
            _ => None,
        }
    }

    fn tombstone(&self) -> String {
        let Self { resource, token, .. } = self;
        self.attempt
            .map_or_else(|| keys::token_tombstone(resource, token), |a| keys::attempt_tombstone(resource, token, a))
    }
}

/// The command for several requests that may share one ([`shared`]), each with when it was sent; or for one
/// of any other kind. Not to be called for none.
pub fn build_batch(context: &ScriptContext<'_>, asked: &[(RequestTime, &Request)], script_ref: ScriptRef) -> Cmd {
    let Some(&(sent_at, request)) = asked.first() else { return Cmd::new() };
    match request {
        Request::Acquire(_) => acquires(context, asked, script_ref),
        Request::Cancel(_) | Request::Release(_) => releases(context, asked, script_ref),
        Request::Update(UpdateArgs { resource, token, ttl, fence, renewal, labels }) => {
            let mut call = Call::begin(&HOLD, script_ref, 4, 1);
            call.keys([
                keys::META_KEY,
                &context.template.lock(resource),
                &keys::fence(resource),
                &keys::token_tombstone(resource, token),
            ]);
            call.prelude(context, sent_at);
            call.text(token.as_str()).number(ttl.map_or(0, |t| t.as_ms())).number(millis(context.params.lock_delay));
            call.number(fence.map_or(0, |f| f.0)).number(u64::from(*renewal)).text(labels.as_deref().unwrap_or(""));
            call.end()
        }
        Request::Restore(RestoreArgs { resource, record, left_ms }) => {
            let mut call = Call::begin(&PLANT, script_ref, 5, 1);
            call.keys([keys::META_KEY, &context.template.lock(resource), &keys::fence(resource)]);
            call.keys([&keys::token_tombstone(resource, &record.token), keys::LEASES_KEY]);
            call.prelude(context, sent_at);
            call.number((*left_ms).clamp(1, LIFETIME_MAX_MS)).number(record.fence.0);
            call.text(&record.encode()).text(resource.as_str());
            call.end()
        }
        Request::Revoke(RevokeArgs { resource, token }) => {
            let mut call = Call::begin(&REVOKE, script_ref, 2, 1);
            call.keys([&context.template.lock(resource), &keys::token_tombstone(resource, token)]);
            call.text(token.as_str()).number(millis(TOKEN_TOMBSTONE));
            call.end()
        }
        Request::DeleteForeign(DeleteForeignArgs { resource, fingerprint }) => {
            let mut call = Call::begin(&EVICT, script_ref, 1, 1);
            call.keys([&context.template.lock(resource)]);
            call.text(fingerprint).text(&keys::freed_channel(resource));
            call.end()
        }
        Request::Inspect { resource } => {
            let mut call = Call::begin(&INSPECT, script_ref, 2, 1);
            call.keys([keys::META_KEY, &context.template.lock(resource)]);
            call.prelude(context, sent_at);
            call.end()
        }
        Request::List(ListArgs { cursor, count }) => {
            let mut call = Call::begin(&LIST, script_ref, 1, 1);
            call.keys([keys::LEASES_KEY]);
            call.number(*cursor).number((*count).clamp(1, LIST_MAX).into());
            call.text(context.template.head()).text(context.template.tail());
            call.end()
        }
        Request::Probe => node(context, sent_at, script_ref, "probe", 0),
        Request::Init => node(context, sent_at, script_ref, "init", 0),
        Request::Quarantine => node(context, sent_at, script_ref, "quarantine", 0),
        Request::Activate { seed } => node(context, sent_at, script_ref, "activate", seed.0),
    }
}

fn node(context: &ScriptContext<'_>, sent_at: RequestTime, script_ref: ScriptRef, verb: &str, seed: u64) -> Cmd {
    let mut call = Call::begin(&NODE, script_ref, 2, 1);
    call.keys([keys::META_KEY, keys::LEASES_KEY]);
    call.prelude(context, sent_at);
    call.text(verb).number(seed);
    call.text(context.template.head()).text(context.template.tail()).number(SWEEP_MAX.into());
    call.end()
}

fn millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX).clamp(1, LIFETIME_MAX_MS)
}

/// A command in the making.
struct Call(Cmd);

impl Call {
    /// Room for an acquire with usual names, so that a command is built without moving it.
    const ARGS: usize = 5;
    const ARGS_EACH: usize = 11;
    const BYTES: usize = 160;
    const BYTES_EACH: usize = 640;

    /// For `asked` requests.
    fn begin(script: &'static NodeScript, script_ref: ScriptRef, keys: usize, asked: usize) -> Self {
        let mut cmd = Cmd::with_capacity(Self::ARGS + Self::ARGS_EACH * asked, Self::BYTES + Self::BYTES_EACH * asked);
        match script_ref {
            ScriptRef::Hash => cmd.arg("EVALSHA").arg(script.sha.as_str()),
            ScriptRef::Body => cmd.arg("EVAL").arg(script.source),
        };
        cmd.arg(keys);
        Self(cmd)
    }

    fn keys<const N: usize>(&mut self, keys: [&str; N]) -> &mut Self {
        for key in keys {
            self.0.arg(key);
        }
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.0.arg(text);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.0.arg(number);
        self
    }

    /// The arguments that every script with the prelude begins with.
    fn prelude(&mut self, context: &ScriptContext<'_>, sent_at: RequestTime) {
        self.params(context);
        self.number(sent_at.0);
    }

    /// Those of them that are the same for all requests.
    fn params(&mut self, context: &ScriptContext<'_>) {
        let params = context.params;
        self.text(context.marker_fingerprint);
        self.number(u64::try_from(params.guard.as_micros()).unwrap_or(u64::MAX).min(LIFETIME_MAX_MS));
        self.number(millis(params.fence_ttl));
    }

    fn end(self) -> Cmd {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use deadpool_redis::redis::Arg;

    use super::*;
    use crate::types::{Token, Ttl};

    fn words(cmd: &Cmd) -> Vec<String> {
        let text = |arg| match arg {
            Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => "?".to_owned(),
        };
        cmd.args_iter().map(text).collect()
    }

    fn params() -> ClusterParams {
        ClusterParams {
            cluster: "c1".into(),
            guard: Duration::from_millis(500),
            lock_delay: Duration::from_secs(1),
            quarantine: Duration::from_secs(305),
            fence_ttl: Duration::from_hours(1),
        }
    }

    fn sent(request: &Request, script_ref: ScriptRef) -> Vec<String> {
        let (params, template) = (params(), KeyTemplate::parse("lock:{resource}").expect("valid"));
        let marker_fingerprint = marker_fingerprint(&params, "beef");
        let context = ScriptContext { params: &params, template: &template, marker_fingerprint: &marker_fingerprint };
        words(&build(&context, RequestTime(77), request, script_ref))
    }

    fn resource() -> ResourceName {
        ResourceName::parse("a/b").expect("valid")
    }

    fn token() -> TokenHash {
        Token::parse("abcdefghijklmnopqrstuv").expect("valid").hash()
    }

    #[test]
    fn an_acquire_names_its_keys_and_arguments_in_order() {
        let (hash, attempt) = (token(), AttemptId::from_random(5));
        let (resource, ttl) = (resource(), Ttl::from_ms(30_000).expect("valid"));
        let request = Request::Acquire(AcquireArgs {
            resource,
            token: hash.clone(),
            attempt: attempt.clone(),
            ttl,
            labels: Arc::from("{}"),
        });
        let (hash, attempt) = (hash.as_str(), attempt.as_str());
        let (gone, tried) = (format!("redlockd:gone:{hash}:a/b"), format!("redlockd:gone:{hash}:a/b#{attempt}"));
        let expected = [
            "EVALSHA",
            ACQUIRE.sha(),
            "6",
            "redlockd:meta",
            "redlockd:leases",
            "lock:a/b",
            &gone,
            &tried,
            "redlockd:fence:a/b",
            "beef|c1|305000",
            "500000",
            "3600000",
            "77",
            hash,
            "30000",
            "31000",
            attempt,
            "{}",
            "a/b",
        ];
        assert_eq!(sent(&request, ScriptRef::Hash), expected);
        let by_source = sent(&request, ScriptRef::Body);
        assert_eq!(by_source[0], "EVAL");
        assert!(by_source[1].contains("local function judge") && by_source[1].contains("attempt tombstone"));
        assert_eq!(by_source[2..], sent(&request, ScriptRef::Hash)[2..]);
    }

    #[test]
    fn a_release_buries_the_token_and_a_cancel_the_attempt() {
        let (hash, attempt) = (token(), AttemptId::from_random(5));
        let release =
            Request::Release(ReleaseArgs { resource: resource(), token: hash.clone(), reason: EndReason::Forced });
        let gone = format!("redlockd:gone:{}:a/b", hash.as_str());
        let release = sent(&release, ScriptRef::Hash);
        assert_eq!(release[3..6], ["redlockd:leases", "lock:a/b", &gone]);
        assert_eq!(release[6..], [hash.as_str(), "", "60000", "forced", "redlockd:freed:a/b", "a/b"]);
        let cancel =
            Request::Cancel(CancelArgs { resource: resource(), token: hash.clone(), attempt: attempt.clone() });
        let cancel = sent(&cancel, ScriptRef::Hash);
        assert_eq!(cancel[5], format!("{gone}#{}", attempt.as_str()));
        assert_eq!(cancel[7..10], [attempt.as_str(), "2000", "cancelled"]);
    }

    #[test]
    fn requests_that_share_a_command_follow_each_other_in_it() {
        let (params, template) = (params(), KeyTemplate::parse("lock:{resource}").expect("valid"));
        let marker_fingerprint = marker_fingerprint(&params, "beef");
        let context = ScriptContext { params: &params, template: &template, marker_fingerprint: &marker_fingerprint };
        let release = |name: &str| {
            Request::Release(ReleaseArgs {
                resource: ResourceName::parse(name).expect("valid"),
                token: token(),
                reason: EndReason::Released,
            })
        };
        let (a, b) = (release("a"), release("b"));
        let both = words(&build_batch(&context, &[(RequestTime(1), &a), (RequestTime(2), &b)], ScriptRef::Hash));
        let (one, two) = (sent(&a, ScriptRef::Hash), sent(&b, ScriptRef::Hash));
        assert_eq!(both[2], "5");
        assert_eq!(both[3..8], [&one[3..6], &two[4..6]].concat());
        assert_eq!(both[8..], [&one[6..], &two[6..]].concat());
    }

    #[test]
    fn absurd_numbers_are_cut_to_what_a_node_can_add() {
        let page = sent(&Request::List(ListArgs { cursor: u64::MAX, count: u32::MAX }), ScriptRef::Hash);
        assert_eq!(page[4..6], [u64::MAX.to_string(), LIST_MAX.to_string()]);
        assert_eq!(sent(&Request::List(ListArgs { cursor: 0, count: 0 }), ScriptRef::Hash)[5], "1");
        assert_eq!(millis(Duration::MAX), LIFETIME_MAX_MS);
        assert_eq!(millis(Duration::ZERO), 1);
    }

    #[test]
    fn every_script_has_a_name_of_its_own() {
        let names: std::collections::HashSet<_> = all().iter().map(|s| s.sha().to_owned()).collect();
        assert_eq!(names.len(), all().len());
    }
}
