//! A real redis-server of a test's own: on loopback and a socket in its own directory, stopped by its
//! own process id, gone when dropped.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use deadpool_redis::redis::{AsyncConnectionConfig, Client, FromRedisValue, RedisError, cmd};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::poll;

/// How long a server that has to answer may take: on a busy machine, thousands of writes take longer than the client's half a second.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Another process may take a free port before it is bound.
const PORT_TRIES: usize = 5;

/// Leases of four minutes, as acquires would have left them: those with a number from ARGV[2] to ARGV[3] behind ARGV[1].
const LEASES: &str = "
    local t = redis.call('TIME')
    for i = tonumber(ARGV[2]), tonumber(ARGV[3]) do
        local name, token = ARGV[1] .. i, redis.sha1hex(i) .. string.sub(redis.sha1hex('and ' .. i), 1, 24)
        local fence = string.format('%.0f', t[1] * 1000000 + i)
        redis.call('SET', name, token .. '|000000|240000|' .. fence .. '|p,|{\"owner\":\"test\"}', 'PX', 241000)
        redis.call('HSET', 'redlockd:fences:0', name, fence)
        redis.call('ZADD', 'redlockd:leases', t[1] * 1000 + 241000, name)
    end";

/// What to start it with.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Keep an append-only file, synced always.
    pub appendonly: bool,
    /// Password of the default user.
    pub password: Option<&'static str>,
    /// Users, each as in `users.acl`: `bob on >secret ~* &* +@all`.
    pub users: Vec<&'static str>,
    /// In Redis' notation.
    pub maxmemory: Option<&'static str>,
    /// TLS on the TCP port, with a certificate of the test's own authority.
    pub tls: bool,
    /// With TLS: nobody gets in without a certificate of that authority.
    pub client_certificates: bool,
    /// More configuration, `--name value`.
    pub more: Vec<String>,
    /// Its environment.
    pub env: Vec<(&'static str, PathBuf)>,
}

/// A running server.
pub struct RedisServer {
    options: Options,
    dir: TempDir,
    port: u16,
    child: Child,
}

impl RedisServer {
    /// Starts one without options.
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    /// Starts one and waits until it answers.
    ///
    /// Panics: where there is no redis-server, saying so in one line.
    pub async fn start_with(options: Options) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        if options.tls {
            make_certificates(dir.path());
        }
        let (port, child) = spawn(dir.path(), None, &options).await;
        Self { options, dir, port, child }
    }

    /// `redis://` with the default user's password, or `rediss://`.
    pub fn url(&self) -> String {
        let scheme = if self.options.tls { "rediss" } else { "redis" };
        let secret = self.options.password.map(|p| format!(":{p}@")).unwrap_or_default();
        format!("{scheme}://{secret}127.0.0.1:{}", self.port)
    }

    /// The same over the socket.
    pub fn unix_url(&self) -> String {
        let secret = self.options.password.map(|p| format!("?pass={p}")).unwrap_or_default();
        format!("unix://{}{secret}", socket(self.dir.path()).display())
    }

    /// Its TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the authority that signed its own.
    pub fn ca_pem(&self) -> Vec<u8> {
        fs::read(self.dir.path().join("ca.pem")).expect("made at the start")
    }

    /// A certificate for clients that the same authority signed, and its key.
    pub fn client_pem(&self) -> (Vec<u8>, Vec<u8>) {
        let read = |name: &str| fs::read(self.dir.path().join(name)).expect("made at the start");
        (read("client.pem"), read("client.key"))
    }

    /// Asks it something directly, on a connection of its own over the socket.
    pub async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWERS_WITHIN));
        self.query(words, &config).await.unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    /// All keys and whatever they hold, as text.
    pub async fn everything(&self) -> Vec<String> {
        let mut all = Vec::new();
        for key in self.ask::<Vec<String>>(&["KEYS", "*"]).await {
            let kind: String = self.ask(&["TYPE", &key]).await;
            let words: &[&str] = match kind.as_str() {
                "string" => &["MGET", &key],
                "hash" => &["HGETALL", &key],
                "zset" => &["ZRANGE", &key, "0", "-1"],
                "set" => &["SMEMBERS", &key],
                // It has expired meanwhile.
                "none" => continue,
                _ => panic!("{key} is a {kind}"),
            };
            let values: Vec<Option<Vec<u8>>> = self.ask(words).await;
            all.extend(values.into_iter().flatten().map(|value| String::from_utf8_lossy(&value).into_owned()));
            all.push(key);
        }
        all
    }

    /// As [`Self::ask`], with its error, within half a second.
    pub async fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, RedisError> {
        self.query(words, &AsyncConnectionConfig::new()).await
    }

    async fn query<T: FromRedisValue>(&self, words: &[&str], config: &AsyncConnectionConfig) -> Result<T, RedisError> {
        let client = Client::open(self.unix_url()).expect("a valid address");
        let mut connection = client.get_multiplexed_async_connection_with_config(config).await?;
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut connection).await
    }

    /// Gives it so many leases, named by this and a number from 1. Other servers get the same ones.
    pub async fn hold(&self, name: &str, leases: usize) {
        const AT_A_TIME: usize = 5_000;
        for first in (1..=leases).step_by(AT_A_TIME) {
            let (first, last) = (first.to_string(), (first + AT_A_TIME - 1).min(leases).to_string());
            self.ask::<()>(&["EVAL", LEASES, "0", name, &first, &last]).await;
        }
    }

    /// SIGKILL, and gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// SIGSTOP: connections stay open, nothing is answered.
    pub fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).expect("our own child");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).expect("our own child");
    }

    /// Starts it again on its port, with its data, after [`Self::kill`].
    pub async fn restart(&mut self) {
        self.child = spawn(self.dir.path(), Some(self.port), &self.options).await.1;
    }

    /// Copies its append-only file, which [`Self::restore`] puts back.
    pub fn copy(&self) {
        self.copy_files("appendonlydir", "copy");
    }

    /// Puts the copy in the place of its append-only file, after [`Self::kill`].
    pub fn restore(&self) {
        fs::remove_dir_all(self.dir.path().join("appendonlydir")).expect("its append-only file");
        self.copy_files("copy", "appendonlydir");
    }

    fn copy_files(&self, from: &str, to: &str) {
        let (from, to) = (self.dir.path().join(from), self.dir.path().join(to));
        fs::create_dir_all(&to).expect("a writable directory");
        for file in fs::read_dir(from).expect("a directory") {
            let file = file.expect("a file");
            fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
        }
    }

    /// Starts it again on its port with nothing, after [`Self::kill`].
    pub async fn restart_empty(&mut self) {
        let _ = fs::remove_dir_all(self.dir.path().join("appendonlydir"));
        let _ = fs::remove_file(self.dir.path().join("dump.rdb"));
        self.restart().await;
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server, on a free port where none is given, and waits until it answers on its socket.
async fn spawn(dir: &Path, port: Option<u16>, options: &Options) -> (u16, Child) {
    for _ in 0..PORT_TRIES {
        let port = port.unwrap_or_else(free_port);
        let mut child = launch(dir, port, options);
        let up = poll::until("redis-server answers or ends", || {
            let ended = child.try_wait().expect("our own child").is_some();
            let up = answers(dir);
            async move { (ended || up).then_some(up) }
        })
        .await;
        if up {
            return (port, child);
        }
    }
    let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
    panic!("redis-server did not start: {log}");
}

fn launch(dir: &Path, port: u16, options: &Options) -> Child {
    let _ = fs::remove_file(socket(dir));
    let mut command = Command::new("redis-server");
    let (tcp, tls) = if options.tls { (0, port) } else { (port, 0) };
    command.args(["--port", &tcp.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(dir);
    command.arg("--unixsocket").arg(socket(dir)).args(["--save", "", "--loglevel", "warning"]);
    if tls != 0 {
        command.args([
            "--tls-port",
            &tls.to_string(),
            "--tls-auth-clients",
            if options.client_certificates { "yes" } else { "no" },
        ]);
        for (name, file) in
            [("--tls-cert-file", "node.pem"), ("--tls-key-file", "node.key"), ("--tls-ca-cert-file", "ca.pem")]
        {
            command.arg(name).arg(dir.join(file));
        }
    }
    if options.appendonly {
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
    }
    if let Some(password) = options.password {
        command.args(["--requirepass", password]);
    }
    for user in &options.users {
        command.arg("--user").args(user.split_ascii_whitespace());
    }
    if let Some(maxmemory) = options.maxmemory {
        command.args(["--maxmemory", maxmemory]);
    }
    command.args(&options.more).envs(options.env.iter().map(|(name, value)| (name, value)));
    let log = File::create(dir.join("log")).expect("a writable directory");
    let errors = log.try_clone().expect("a second handle");
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    command.spawn().unwrap_or_else(|e| panic!("redis-server is missing ({e}): run `make deps`"))
}

/// Whether it answers a PING, be it that it asks for a password first.
fn answers(dir: &Path) -> bool {
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(socket(dir))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = vec![0; 7];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH"))
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").port()
}

/// An authority, and certificates for 127.0.0.1 and for clients that it signed.
fn make_certificates(dir: &Path) {
    let openssl = |line: &str| {
        let output = Command::new("openssl").args(line.split(' ')).current_dir(dir).output();
        let output = output.unwrap_or_else(|e| panic!("openssl is missing ({e}): run `make deps`"));
        assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    fs::write(dir.join("san"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n").expect("a writable directory");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=test-authority"));
    openssl(&format!("req {key} -keyout node.key -out node.csr -subj /CN=node"));
    openssl("x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile san -out node.pem");
    openssl(&format!("req {key} -keyout client.key -out client.csr -subj /CN=redlockd"));
    openssl("x509 -req -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile san -out client.pem");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_keeps_its_data_or_loses_it_as_configured() {
        let mut server = RedisServer::start_with(Options { appendonly: true, ..Options::default() }).await;
        let run = |info: String| info.lines().find(|l| l.starts_with("run_id:")).map(str::to_owned);
        let before = run(server.ask(&["INFO", "server"]).await);
        server.ask::<()>(&["SET", "k", "v"]).await;
        server.kill();
        assert!(server.try_ask::<()>(&["PING"]).await.is_err());
        server.restart().await;
        assert_eq!(server.ask::<Option<String>>(&["GET", "k"]).await.as_deref(), Some("v"));
        assert_ne!(run(server.ask(&["INFO", "server"]).await), before);
        server.kill();
        server.restart_empty().await;
        assert_eq!(server.ask::<Option<String>>(&["GET", "k"]).await, None);
    }

    #[tokio::test]
    async fn frozen_it_answers_nothing_and_thawed_it_does() {
        let server = RedisServer::start().await;
        server.freeze();
        assert!(!answers(server.dir.path()));
        server.thaw();
        assert!(answers(server.dir.path()));
    }

    #[tokio::test]
    async fn a_dropped_server_is_gone() {
        let server = RedisServer::start_with(Options { password: Some("pw"), ..Options::default() }).await;
        let (port, pid) = (server.port(), server.pid());
        drop(server);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
