//! The real binary as a process: started on a free port, its announcement read, its output kept,
//! stopped by its own process id. Stands apart from the clusters that it runs over. Knows the
//! command line, and no test.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::client::Client;
use super::poll;
use super::temp_dir;

/// Short enough to wait for an expiry, long enough for a machine that has other work: a node may
/// take 200 ms, a lease runs for 400 ms at least and is kept for 600 ms more.
pub const SHORT_TIMES: [&str; 8] =
    ["--set", "node_timeout=200ms", "--set", "min_ttl=400ms", "--set", "guard=300ms", "--set", "lock_delay=600ms"];

/// With [`SHORT_TIMES`]: a quarantine of some three seconds.
pub const SHORT_MEMORY: [&str; 4] = ["--set", "max_ttl=2s", "--set", "default_ttl=2s"];

/// The binary with these arguments and an empty environment: that of this build, or for measurements the one that
/// `REDLOCKD_BINARY` names.
pub fn redlockd<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Command {
    let other = std::env::var_os("REDLOCKD_BINARY");
    let mut command = Command::new(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_redlockd").into()));
    command.args(args).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running service; killed when dropped.
pub struct Service {
    child: Child,
    address: SocketAddr,
    client: Client,
    output: Arc<Mutex<Vec<String>>>,
    data: Arc<TempDir>,
}

impl Service {
    /// Starts one with further arguments, in a data directory of its own.
    pub async fn start<S: AsRef<str>>(args: &[S]) -> Self {
        Self::start_in(Arc::new(temp_dir::in_memory()), args).await
    }

    /// Starts one on embedded nodes, with short times.
    pub async fn embedded(more: &[&str]) -> Self {
        Self::start(&[&SHORT_TIMES, more].concat()).await
    }

    /// Starts one in a data directory that another one may have had before, and reads where it
    /// listens from its announcement.
    pub async fn start_in<S: AsRef<str>>(data: Arc<TempDir>, args: &[S]) -> Self {
        Self::start_at("127.0.0.1:0", data, args).await
    }

    /// The same on another address.
    pub async fn start_at<S: AsRef<str>>(listen: &str, data: Arc<TempDir>, args: &[S]) -> Self {
        Self::start_with_env(&[], listen, data, args).await
    }

    /// The same with these variables in its environment.
    pub async fn start_with_env<S: AsRef<str>>(
        env: &[(&str, &str)],
        listen: &str,
        data: Arc<TempDir>,
        args: &[S],
    ) -> Self {
        let mut all = vec!["serve", "--listen", listen, "--data-dir", path(data.path())];
        all.extend(args.iter().map(AsRef::as_ref));
        let mut child = redlockd(&all).envs(env.iter().copied()).spawn().expect("the binary runs");
        let output: Arc<Mutex<Vec<String>>> = Arc::default();
        keep(child.stdout.take().expect("piped"), &output);
        keep(child.stderr.take().expect("piped"), &output);
        let found = poll::until("the service says where it listens, or ends", || {
            let address = address_in(&lines(&output));
            let ended = child.try_wait().expect("own child").is_some();
            async move { (address.is_some() || ended).then_some(address) }
        });
        let address = found.await.unwrap_or_else(|| panic!("it does not start: {:#?}", lines(&output)));
        Self { child, address, client: Client::new(&format!("http://{address}")), output, data }
    }

    /// A caller of it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its data directory, for the next one.
    pub fn data(&self) -> Arc<TempDir> {
        Arc::clone(&self.data)
    }

    /// All that it has said so far, on both streams.
    pub fn output(&self) -> Vec<String> {
        lines(&self.output)
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).expect("own child");
    }

    /// SIGKILL, and gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("own child");
        self.child.wait().expect("own child");
    }

    /// The exit code, once it has ended.
    pub async fn exit_code(&mut self) -> Option<i32> {
        let child = &mut self.child;
        let status = poll::until("the service ends", || {
            let status = child.try_wait().expect("own child");
            async move { status }
        });
        status.await.code()
    }

    /// Waits until it is ready.
    pub async fn until_ready(&self) {
        poll::until("the service is ready", || async {
            (self.client.get("/health/ready").await.status == 200).then_some(())
        })
        .await;
    }
}

impl Drop for Service {
    #[expect(clippy::print_stdout, reason = "the harness shows it where the test fails")]
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            println!("{}: {:#?}", self.address, self.output());
        }
    }
}

fn keep(from: impl Read + Send + 'static, output: &Arc<Mutex<Vec<String>>>) {
    let output = Arc::clone(output);
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            output.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    });
}

fn lines(output: &Mutex<Vec<String>>) -> Vec<String> {
    output.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn address_in(lines: &[String]) -> Option<SocketAddr> {
    let (_, address) = lines.iter().find_map(|line| line.split_once("listens on http://"))?;
    // The whole announcement comes in one write; its last line is the one to paste.
    lines.iter().any(|line| line.contains("try:")).then(|| address.parse().expect("an address"))
}

/// A path of ours as text.
pub fn path(path: &Path) -> &str {
    path.to_str().expect("an ASCII path")
}
