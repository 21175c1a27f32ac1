//! The floors: what the same nodes can do for a client in this process, without HTTP. Plain: `SET NX PX` and
//! compare-and-delete. Script: the service's own scripts, encoded by its own code, with token, attempt and time drawn
//! as the service draws them. Both use `pipelined_client` and are decided by a majority.

use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redlockd::protocol::commands::{self, Command, ScriptContext, ScriptRef};
use redlockd::protocol::keys::KeyTemplate;
use redlockd::protocol::{AcquireArgs, ClusterParams, EndReason, ReleaseArgs, Request, RequestTime, TokenUse};
use redlockd::redlock::random::{Entropy, SystemEntropy};
use redlockd::types::{ResourceName, TokenHash, Ttl};
use tokio::task::LocalSet;

use crate::Failure;
use crate::pipelined_client::{PipelinedClient, pack};
use crate::stats::Run;
use crate::workers::{Until, repeat_here};

/// TTL of every lease here.
const TTL_MS: u64 = 30_000;
/// The release of plain Redlock.
pub const COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// `SET NX PX`, then compare-and-delete. The nodes know [`COMPARE_AND_DELETE`].
pub async fn plain(nodes: &[SocketAddr], connections: usize, until: Until) -> Result<Run, Failure> {
    let plain = Rc::new(Plain::new());
    LocalSet::new()
        .run_until(async {
            let client = Rc::new(PipelinedClient::connect(nodes).await?);
            repeat_here(vec![Vec::new(); connections], until, async move |packed: &mut Vec<u8>, number| {
                let (key, value) = (format!("plain-{number}"), SystemEntropy.token());
                for command in [Plain::set, Plain::delete] {
                    packed.clear();
                    command(&plain, packed, &key, value.reveal());
                    if !client.ask(|_, queue| queue.extend_from_slice(packed)).await {
                        return false;
                    }
                }
                true
            })
            .await
        })
        .await
}

/// The service's acquire and release scripts, without anything around them. `fingerprints`: of each node's marker. `requests`: those
/// of the cycle with this number.
pub async fn script(
    nodes: &[SocketAddr],
    fingerprints: Vec<String>,
    connections: usize,
    until: Until,
    requests: impl Fn(u64) -> [Request; 2] + 'static,
) -> Result<Run, Failure> {
    let script = Script::new();
    LocalSet::new()
        .run_until(async {
            let client = Rc::new(PipelinedClient::connect(nodes).await?);
            repeat_here(vec![(); connections], until, async move |(), number| {
                for request in requests(number) {
                    let packed = script.pack_for_each(&[&request], &fingerprints[0]);
                    if !client.ask(|node, queue| packed.write_to(queue, &fingerprints[node])).await {
                        return false;
                    }
                }
                true
            })
            .await
        })
        .await
}

/// The commands of plain Redlock.
struct Plain {
    ttl: String,
    sha: String,
}

impl Plain {
    fn new() -> Self {
        let sha = redis::Script::new(COMPARE_AND_DELETE).get_hash().to_owned();
        Self { ttl: TTL_MS.to_string(), sha }
    }

    fn set(&self, packed: &mut Vec<u8>, key: &str, value: &str) {
        pack(packed, &[b"SET", key.as_bytes(), value.as_bytes(), b"NX", b"PX", self.ttl.as_bytes()]);
    }

    fn delete(&self, packed: &mut Vec<u8>, key: &str, value: &str) {
        pack(packed, &[b"EVALSHA", self.sha.as_bytes(), b"1", key.as_bytes(), value.as_bytes()]);
    }
}

/// The commands of the service.
pub struct Script {
    params: ClusterParams,
    template: KeyTemplate,
}

/// A command that is packed once for all nodes. What differs between them is the marker fingerprint up to the quarantine.
pub struct ForEach {
    packed: Vec<u8>,
    /// Where the first node's is; empty: the command has none.
    place: Range<usize>,
}

impl ForEach {
    /// Appends what the node with this marker fingerprint is sent.
    pub fn write_to(&self, out: &mut Vec<u8>, fingerprint: &str) {
        out.extend_from_slice(&self.packed[..self.place.start]);
        if !self.place.is_empty() {
            out.extend_from_slice(before_quarantine(fingerprint).as_bytes());
        }
        out.extend_from_slice(&self.packed[self.place.end..]);
    }
}

fn before_quarantine(fingerprint: &str) -> &str {
    fingerprint.rsplit_once('|').map_or("", |(before, _)| before)
}

impl Script {
    /// As the service packs them with its default settings.
    pub fn new() -> Self {
        let params = ClusterParams {
            cluster: String::new().into(), // part of the marker fingerprint
            guard: Duration::from_millis(500),
            lock_delay: Duration::from_secs(1),
            quarantine: Duration::ZERO, // part of the marker fingerprint
            fence_ttl: Duration::from_secs(3_600),
            template: Default::default(),
        };
        Self { params, template: Default::default() }
    }

    /// An acquire and its release, with a token that is drawn and hashed.
    pub fn requests(name: &str) -> [Request; 2] {
        Self::requests_with(name, SystemEntropy.token().hash())
    }

    /// The same with this token.
    pub fn requests_with(name: &str, token: TokenHash) -> [Request; 2] {
        [Self::acquire(name, token.clone()), Self::release(name, token)]
    }

    /// An acquire. Panics: not a resource's name.
    pub fn acquire(name: &str, token: TokenHash) -> Request {
        let resource = ResourceName::parse(name).expect("a name");
        let attempt = SystemEntropy.attempt();
        let ttl = Ttl::from_ms(TTL_MS).expect("in range");
        let (labels, token_use) = ("{}".into(), TokenUse::First);
        Request::Acquire(AcquireArgs { resource, token, attempt, ttl, labels, token_use })
    }

    /// A release. Panics: not a resource's name.
    pub fn release(name: &str, token: TokenHash) -> Request {
        let resource = ResourceName::parse(name).expect("a name");
        Request::Release(ReleaseArgs { resource, token, reason: EndReason::Released })
    }

    /// One command for these requests of one kind. `first`: the marker fingerprint of one of the nodes.
    pub fn pack_for_each(&self, requests: &[&Request], first: &str) -> ForEach {
        let mut packed = Vec::new();
        self.pack_batch(requests, first).write_to(&mut packed);
        let differs = before_quarantine(first);
        let place = memchr::memmem::find(&packed, differs.as_bytes()).map_or(0..0, |at| at..at + differs.len());
        ForEach { packed, place }
    }

    fn pack_batch(&self, requests: &[&Request], marker_fingerprint: &str) -> Command {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sent_at = RequestTime(u64::try_from(now.as_micros()).unwrap_or(0));
        let context = ScriptContext { params: &self.params, template: &self.template, marker_fingerprint };
        let batch: Vec<_> = requests.iter().map(|request| (sent_at, *request)).collect();
        commands::build_batch(&context, &batch, ScriptRef::Hash)
    }
}

/// The four commands whose cost on a node is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `SET NX PX`.
    Set,
    /// Compare-and-delete of what [`Kind::Set`] set.
    Delete,
    /// The service's acquire.
    Acquire,
    /// Its release.
    Release,
}

/// Packs commands of each kind for one node. A [`Kind::Acquire`] is to be sent soon: its time of sending ages.
pub struct Calls {
    plain: Plain,
    script: Script,
    marker_fingerprint: String,
    values: Vec<String>,
    releases: Vec<Request>,
}

impl Calls {
    /// For a node whose marker says this.
    pub fn new(marker_fingerprint: String) -> Self {
        Self {
            plain: Plain::new(),
            script: Script::new(),
            marker_fingerprint,
            values: Vec::new(),
            releases: Vec::new(),
        }
    }

    /// One command for these numbers, or (of plain Redlock) one for each; of one number, a release comes after its acquire.
    pub fn pack(&mut self, into: &mut Vec<u8>, kind: Kind, numbers: Range<usize>) {
        match kind {
            Kind::Set | Kind::Delete => numbers.for_each(|number| self.pack_plain(into, kind, number)),
            Kind::Acquire => {
                let mut acquires = Vec::new();
                for number in numbers {
                    let [acquire, release] = Script::requests(&format!("cost/{number}"));
                    acquires.push(acquire);
                    self.releases.push(release);
                }
                let acquires: Vec<&Request> = acquires.iter().collect();
                self.script.pack_batch(&acquires, &self.marker_fingerprint).write_to(into);
            }
            Kind::Release => {
                let releases: Vec<&Request> = self.releases[numbers].iter().collect();
                self.script.pack_batch(&releases, &self.marker_fingerprint).write_to(into);
            }
        }
    }

    fn pack_plain(&mut self, into: &mut Vec<u8>, kind: Kind, number: usize) {
        let key = format!("cost-{number}");
        if kind == Kind::Set {
            let token = SystemEntropy.token();
            self.values.push(token.reveal().to_owned());
            self.plain.set(into, &key, token.reveal());
        } else {
            self.plain.delete(into, &key, &self.values[number]);
        }
    }
}
