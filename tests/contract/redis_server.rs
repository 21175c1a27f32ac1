//! A redis-server of the suite's own, on a unix socket, with the scripts run on it directly: without the service's Redis node,
//! which adds connections and time-outs.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::{self, Connection, FromRedisValue, Value};
use redlockd::protocol::commands::{self, ScriptContext, ScriptRef};
use redlockd::protocol::{ClusterParams, NodeResult, Reply, Request, RequestTime, Unreachable, UnreachableKind, View};
use redlockd::redlock::clock::{Clock, SystemClock};
use redlockd::types::ResourceName;

use super::subject::{Server, Subject};

/// Far above the start time on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(1);

/// A redis-server; killed when dropped.
pub struct RedisServer {
    dir: tempfile::TempDir,
    child: Child,
    connection: Connection,
    /// The process to which the connection is bound; a test may set another one.
    pub run: String,
    pub view: Arc<View>,
}

impl RedisServer {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (child, connection, run) = launch(&dir);
        Self { dir, child, connection, run, view: Arc::default() }
    }

    /// Any command.
    pub fn command<T: FromRedisValue>(&mut self, args: &[&[u8]]) -> T {
        let mut cmd = redis::cmd(std::str::from_utf8(args[0]).expect("a command"));
        for arg in &args[1..] {
            cmd.arg(*arg);
        }
        cmd.query(&mut self.connection).expect("an answer")
    }

    /// Runs the request's script with the time right before and right after it, in one transaction.
    pub fn bracketed(
        &mut self,
        sent_at: RequestTime,
        params: &ClusterParams,
        request: &Request,
    ) -> (u64, NodeResult, u64) {
        let params = &*params.in_view(&self.view);
        let marker_fingerprint = commands::marker_fingerprint(params, &self.run, self.view.id);
        let context = ScriptContext { params, template: &params.template, marker_fingerprint: &marker_fingerprint };
        let call = commands::build(&context, sent_at, request, ScriptRef::Body);
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("TIME").add_command(call.to_cmd()).cmd("TIME").ignore_errors();
        let values: Vec<redis::RedisResult<Value>> = pipe.query(&mut self.connection).expect("a transaction");
        let [before, reply, after] = values.try_into().expect("three answers");
        let time = |value: redis::RedisResult<Value>| {
            let (secs, micros): (u64, u64) = redis::from_redis_value(value.expect("a time")).expect("a time");
            secs * 1_000_000 + micros
        };
        let answer = match reply {
            Ok(value) => commands::parse(request, &value),
            Err(e) => Err(Unreachable::new(UnreachableKind::Protocol, e.to_string())),
        };
        (time(before), answer, time(after))
    }

    /// Sends several requests in one command.
    pub fn ask_batch(&mut self, params: &ClusterParams, asked: &[(RequestTime, Request)]) -> Vec<NodeResult> {
        let params = &*params.in_view(&self.view);
        let marker_fingerprint = commands::marker_fingerprint(params, &self.run, self.view.id);
        let context = ScriptContext { params, template: &params.template, marker_fingerprint: &marker_fingerprint };
        let list: Vec<(RequestTime, &Request)> = asked.iter().map(|(sent_at, request)| (*sent_at, request)).collect();
        let call = commands::build_batch(&context, &list, ScriptRef::Body).to_cmd();
        let value = call.query::<Value>(&mut self.connection);
        let parse = |(i, (_, request)): (usize, &(RequestTime, Request))| match &value {
            Ok(value) => commands::parse_in_batch(asked.len(), i, request, value),
            Err(e) => Err(Unreachable::new(UnreachableKind::Protocol, e.to_string())),
        };
        asked.iter().enumerate().map(parse).collect()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.child.kill().expect("it was running");
        self.child.wait().expect("it ends");
    }
}

fn launch(dir: &tempfile::TempDir) -> (Child, Connection, String) {
    let socket = dir.path().join("redis.sock");
    let child = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"])
        .args(["--maxmemory-samples", "64", "--unixsocket"])
        .arg(&socket)
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server starts; where it is not installed, run `make deps`");
    let client = redis::Client::open(format!("unix://{}", socket.display())).expect("a URL");
    let deadline = SystemClock.now().plus(START_DEADLINE);
    let mut connection = loop {
        match client.get_connection() {
            Ok(connection) => break connection,
            Err(e) => assert!(SystemClock.now() < deadline, "redis-server does not answer: {e}"),
        }
        std::thread::sleep(POLL);
    };
    let info: String = redis::cmd("INFO").arg("server").query(&mut connection).expect("an answer");
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("a run id").trim().to_owned();
    (child, connection, run)
}

impl Subject for RedisServer {
    fn now_us(&mut self) -> u64 {
        let (secs, micros): (u64, u64) = self.command(&[b"TIME"]);
        secs * 1_000_000 + micros
    }

    fn ask_with(&mut self, sent_at: RequestTime, params: &ClusterParams, request: &Request) -> NodeResult {
        self.bracketed(sent_at, params, request).1
    }

    fn set_view(&mut self, view: &Arc<View>) {
        self.view = Arc::clone(view);
    }

    fn run(&mut self) -> String {
        self.run.clone()
    }

    fn pass(&mut self, span: Duration) {
        let until = self.now_us() + u64::try_from(span.as_micros()).expect("short");
        while self.now_us() < until {
            std::thread::sleep(POLL);
        }
    }
}

impl Server for RedisServer {
    fn foreign_set(&mut self, resource: &ResourceName, value: &[u8], ttl_ms: Option<u64>) {
        let key = resource.as_str().as_bytes();
        match ttl_ms {
            Some(ms) => self.command::<()>(&[b"SET", key, value, b"PX", ms.to_string().as_bytes()]),
            None => self.command(&[b"SET", key, value]),
        }
    }

    fn foreign_list(&mut self, resource: &ResourceName, ttl_ms: Option<u64>) {
        let key = resource.as_str().as_bytes();
        self.command::<()>(&[b"DEL", key]);
        self.command::<()>(&[b"RPUSH", key, b"x"]);
        if ttl_ms.is_some() {
            self.foreign_expire(resource, ttl_ms);
        }
    }

    fn foreign_acquire(&mut self, resource: &ResourceName, value: &[u8], ttl_ms: u64) -> bool {
        let (key, ms) = (resource.as_str().as_bytes(), ttl_ms.to_string());
        let set: Option<String> = self.command(&[b"SET", key, value, b"NX", b"PX", ms.as_bytes()]);
        set.is_some()
    }

    fn foreign_expire(&mut self, resource: &ResourceName, ttl_ms: Option<u64>) -> bool {
        let key = resource.as_str().as_bytes();
        match ttl_ms {
            Some(ms) => self.command(&[b"PEXPIRE", key, ms.to_string().as_bytes()]),
            None => {
                self.command::<()>(&[b"PERSIST", key]);
                self.command(&[b"EXISTS", key])
            }
        }
    }

    fn ask_ahead(&mut self, request: &Request, resource: &ResourceName, ms: u64) -> Reply {
        let reply = self.ask(request);
        let name = resource.as_str();
        let of_name = ["redlockd:i:", "redlockd:m:", "redlockd:block:", ""].map(|prefix| format!("{prefix}{name}"));
        for key in of_name.iter().map(String::as_str).chain(["redlockd:intents", "redlockd:blocks"]) {
            let left_ms: i64 = self.command(&[b"PTTL", key.as_bytes()]);
            let kind: String = self.command(&[b"TYPE", key.as_bytes()]);
            if left_ms >= 0 {
                let later = (u64::try_from(left_ms).expect("not negative") + ms).to_string();
                self.command::<bool>(&[b"PEXPIRE", key.as_bytes(), later.as_bytes()]);
            }
            let fields: Vec<(String, String)> =
                if kind == "hash" { self.command(&[b"HGETALL", key.as_bytes()]) } else { vec![] };
            for (field, value) in fields {
                let (end_ms, rest) = value.split_once('|').expect("the end of what the field stands for");
                let later = format!("{}|{rest}", end_ms.parse::<u64>().expect("milliseconds") + ms);
                self.command::<u8>(&[b"HSET", key.as_bytes(), field.as_bytes(), later.as_bytes()]);
            }
        }
        reply
    }

    fn foreign_delete(&mut self, resource: &ResourceName) -> bool {
        self.command(&[b"DEL", resource.as_str().as_bytes()])
    }

    fn flush_all(&mut self) {
        self.command::<()>(&[b"FLUSHALL"]);
    }

    fn serve_quarantine(&mut self) {
        self.command::<()>(&[b"HSET", b"redlockd:meta", b"until", b"0", b"owed", b"0"]);
    }

    /// Sets a key that expires before all others, then lowers the memory limit below what is used.
    fn evict_something(&mut self) {
        let junk = vec![b'x'; 4 << 20];
        self.command::<()>(&[b"SET", b"junk", &junk, b"PX", b"10000"]);
        self.command::<()>(&[b"CONFIG", b"SET", b"maxmemory-policy", b"volatile-ttl"]);
        let info: String = self.command(&[b"INFO", b"memory"]);
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a number").trim();
        let limit = used.parse::<u64>().expect("a number") - (2 << 20);
        self.command::<()>(&[b"CONFIG", b"SET", b"maxmemory", limit.to_string().as_bytes()]);
        self.command::<()>(&[b"SET", b"more", b"x", b"PX", b"1"]);
        assert_eq!(self.command::<u64>(&[b"EXISTS", b"junk"]), 0, "the junk was evicted");
        self.command::<()>(&[b"CONFIG", b"SET", b"maxmemory", b"0"]);
    }

    fn reset_statistics(&mut self) {
        self.command::<()>(&[b"CONFIG", b"RESETSTAT"]);
    }

    fn sync_each_write(&mut self) {
        self.command::<()>(&[b"CONFIG", b"SET", b"appendfsync", b"always"]);
        self.command::<()>(&[b"CONFIG", b"SET", b"appendonly", b"yes"]);
        let begun = ["aof_enabled:1", "aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0", "aof_current_size:"];
        let deadline = SystemClock.now().plus(START_DEADLINE);
        while !begun.iter().all(|text| self.command::<String>(&[b"INFO", b"persistence"]).contains(text)) {
            assert!(SystemClock.now() < deadline, "no append-only file");
            std::thread::sleep(POLL);
        }
    }

    /// What a process with another `run_id` would load: the scripts know the process by what the connection's hand-shake says.
    fn restart_kept(&mut self, ahead_ms: u64) {
        for key in self.command::<Vec<Vec<u8>>>(&[b"KEYS", b"*"]) {
            let left_ms: i64 = self.command(&[b"PTTL", &key]);
            if (0..i64::try_from(ahead_ms).expect("short")).contains(&left_ms) {
                self.command::<u64>(&[b"DEL", &key]);
            }
        }
        self.run = self.run.chars().rev().collect();
    }

    fn restart_empty(&mut self) {
        self.child.kill().expect("it was running");
        self.child.wait().expect("it ends");
        (self.child, self.connection, self.run) = launch(&self.dir);
    }
}
