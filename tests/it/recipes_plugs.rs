//! Every command of docs/recipes.md under each shell, with a job that fails, with Ctrl-C and with SIGTERM; and with each plug
//! pulled: the service killed, the service frozen, the client killed. The job ends before its lease does.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};

use crate::recipes_page::{
    LONG_JOB, SHELLS, block, blocks, command, cron_line, executable, for_shell, is_free, words, yaml,
};
use crate::run_warn::stays_held;
use crate::support::client::{Client, try_send};
use crate::support::daemon::{Daemon, Running, ended, is_running, line_in};
use crate::support::poll;

/// TTL of leases that cannot be renewed; in the recipes it is longer.
const TTL_MS: u64 = 3_000;

/// A recipe, as a line for a shell.
struct Recipe {
    heading: &'static str,
    line: String,
    /// The lock that it takes.
    lock: &'static str,
    /// The program that works under it.
    job: &'static str,
    /// It keeps the lock after the job (`--at-least`).
    stays: bool,
    /// It goes on (`--on-lost warn`).
    goes_on: bool,
    /// Its exit code when the job fails with 3; `None`: it starts the job again.
    failure: Option<i32>,
    /// What becomes of `make`, which has one code for every failure of a job.
    is_make: bool,
}

/// Those of one command, and two scripts as `recipe.sh`, which are written to `dir`.
fn recipes(dir: &Path, shell: &str) -> Vec<Recipe> {
    std::fs::write(dir.join("Makefile"), block("A Makefile", "make")).expect("writable");
    std::fs::create_dir_all(dir.join("tasks")).expect("writable");
    std::fs::create_dir_all(dir.join("done")).expect("writable");
    std::fs::write(dir.join("tasks/one"), "").expect("writable");
    for (name, heading) in [("script.sh", "A script that never runs twice"), ("agents.sh", "Agents that must not")] {
        executable(dir, name, &for_shell(&block(heading, "sh"), shell));
    }
    let cron = cron_line().1;
    let unit = blocks("A systemd timer on many hosts", "ini").remove(0);
    let unit = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command").to_owned();
    let job = &yaml("Kubernetes: a job on a schedule")["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let job = words(&job["containers"][0]["command"]).join(" ");
    let local = |line: String| line.replace("/usr/local/bin/", "").replace("127.0.0.1:4040", "127.0.0.1:0");
    let all = [
        ("cron", cron, "cron/nightly", "nightly", Some(3)),
        ("systemd", unit, "cron/nightly", "nightly", Some(3)),
        ("CronJob", job, "cron/nightly", "nightly", Some(3)),
        ("Terraform", block("Terraform", "sh"), "tf/net", "terraform", Some(3)),
        ("CI", block("CI", "sh"), "staging/db", "integration-test.sh", Some(3)),
        ("make", "make -s deploy".to_owned(), "deploy/prod", "build.sh", Some(2)),
        ("script", "./script.sh".to_owned(), "deploy/prod", "build.sh", Some(3)),
        ("agents", "./agents.sh".to_owned(), "work/one", "agent.sh", Some(3)),
        ("leader", block("A leader", "sh"), "scheduler/leader", "scheduler.sh", None),
    ];
    let recipe = |(heading, line, lock, job, failure): (_, String, _, _, _)| {
        let (stays, goes_on) = (line.contains("--at-least"), line.contains("--on-lost warn"));
        Recipe { heading, line: local(line), lock, job, stays, goes_on, failure, is_make: heading == "make" }
    };
    all.into_iter().map(recipe).collect()
}

/// With a TTL that a test can wait for.
fn with_short_leases(dir: &Path) {
    for name in ["Makefile", "script.sh", "agents.sh"] {
        let path = dir.join(name);
        let text = std::fs::read_to_string(&path).expect("written");
        std::fs::write(&path, text.replace("redlockd run", "redlockd run --ttl 3s")).expect("writable");
    }
}

fn start(daemon: &Daemon, dir: &Path, shell: &str, line: &str) -> Running {
    let mut words = shell.split(' ');
    let mut start = command(daemon, dir, words.next().expect("a program"));
    Running::spawn(start.args(words).args(["-c", line]).process_group(0))
}

#[tokio::test]
async fn every_recipe_ends_with_its_job_under_each_shell() {
    for shell in SHELLS.into_iter().filter(|shell| Path::new(shell.split(' ').next().expect("a program")).exists()) {
        let dir = tempfile::tempdir().expect("a directory");
        for recipe in recipes(dir.path(), shell) {
            fails_and_is_interrupted(dir.path(), shell, &recipe).await;
        }
    }
}

async fn fails_and_is_interrupted(dir: &Path, shell: &str, recipe: &Recipe) {
    let Recipe { heading, line, lock, job, stays, failure, is_make, .. } = recipe;
    if let Some(code) = failure {
        let daemon = Daemon::start();
        // `--at-least 10m` stays until one TTL covers the rest.
        let line = line.replace("10m", "5m");
        executable(dir, job, "#!/bin/sh\nexit 3\n");
        let mut words = shell.split(' ');
        let mut start = command(&daemon, dir, words.next().expect("a program"));
        let done = ended(start.args(words).args(["-c", &line]));
        assert_eq!(done.code, Some(*code), "{shell} {heading}: {done:?}");
        assert_eq!(is_free(&daemon, lock), !stays, "{shell} {heading}");
    }
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let daemon = Daemon::start();
        let _ = std::fs::remove_file(dir.join("pid"));
        executable(dir, job, LONG_JOB);
        let mut script = start(&daemon, dir, shell, line);
        let pid = line_in(&dir.join("pid")).await;
        assert!(!is_free(&daemon, lock), "{shell} {heading}");
        // As the terminal, systemd and runners of CI do.
        kill_process_group(Pid::from_child(script.child()), signal).expect("our own group");
        let done = script.end().await;
        // make has a code of its own where its job was ended by a signal.
        assert!(
            done.code == Some(code) || (*is_make && done.code == Some(2)),
            "{shell} {heading} {signal:?}: {done:?}"
        );
        let what = format!("{shell} {heading} {signal:?}: the job has ended");
        poll::until_true(&what, || !is_running(&pid)).await;
        let what = format!("{shell} {heading} {signal:?}: the lock is free, or stays");
        poll::until_true(&what, || is_free(&daemon, lock) != *stays).await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plug {
    ServiceKilled,
    ServiceFrozen,
    ClientKilled,
}

#[tokio::test]
async fn every_recipe_ends_its_job_in_time_if_the_service_is_killed() {
    pull_of_each(Plug::ServiceKilled).await;
}

#[tokio::test]
async fn every_recipe_ends_its_job_in_time_if_the_service_freezes() {
    pull_of_each(Plug::ServiceFrozen).await;
}

#[tokio::test]
async fn every_recipe_ends_its_job_if_the_client_is_killed() {
    pull_of_each(Plug::ClientKilled).await;
}

async fn pull_of_each(plug: Plug) {
    let dir = tempfile::tempdir().expect("a directory");
    let all = recipes(dir.path(), SHELLS[1]);
    let ends = all.iter().filter(|recipe| !recipe.goes_on);
    futures_util::future::join_all(ends.map(|recipe| pull(recipe.heading, plug))).await;
}

/// A job that says who it is and when it worked.
const WORKER: &str = "#!/bin/sh\necho $$ > pid\nwhile :; do date +%s%3N >> marks; sleep 0.1; done\n";

async fn pull(name: &str, plug: Plug) {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let all = recipes(dir, SHELLS[1]);
    let Recipe { line, lock, job, stays, failure, is_make, .. } =
        all.iter().find(|recipe| recipe.heading == name).expect("listed");
    let mut line = line.clone();
    if plug != Plug::ClientKilled {
        with_short_leases(dir);
        for verb in ["run", "elect"] {
            line = line.replace(&format!("redlockd {verb}"), &format!("redlockd {verb} --ttl 3s"));
        }
    }
    executable(dir, job, WORKER);
    let mut daemon = Daemon::start();
    let mut script = start(&daemon, dir, SHELLS[1], &line);
    let pid = line_in(&dir.join("pid")).await;
    line_in(&dir.join("marks")).await;
    match plug {
        Plug::ServiceKilled => daemon.kill(),
        Plug::ServiceFrozen => daemon.freeze(),
        Plug::ClientKilled => kill_process(client_of(&pid), Signal::KILL).expect("our own grandchild"),
    }
    let pulled_at_ms = SystemClock.wall_ms();
    poll::until_true(&format!("{name} {plug:?}: the job has ended"), || !is_running(&pid)).await;
    let marks = std::fs::read_to_string(dir.join("marks")).expect("written");
    let last: u64 = marks.lines().next_back().and_then(|mark| mark.parse().ok()).expect("a mark");
    assert!(last < pulled_at_ms + TTL_MS, "{name} {plug:?}: it worked until {last}, from {pulled_at_ms}");
    if plug == Plug::ClientKilled {
        poll::until_true(&format!("{name}: the lock is free, or stays"), || is_free(&daemon, lock) != *stays).await;
    } else if failure.is_none() {
        // A leader campaigns again.
        script.signal(Signal::TERM);
    } else {
        let done = script.end().await;
        assert!(done.code == Some(76) || (*is_make && done.code == Some(2)), "{name} {plug:?}: {done:?}");
    }
}

/// The process that runs the job's group.
fn client_of(pid: &str) -> Pid {
    let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
    let leader = getpgid(Some(pid)).expect("it runs").as_raw_nonzero();
    let stat = std::fs::read_to_string(format!("/proc/{leader}/stat")).expect("it runs");
    let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)).expect("a parent");
    Pid::from_raw(parent.parse().expect("a number")).expect("a process")
}

/// Terraform goes on: an apply that is ended halfway leaves a broken state. It keeps its lock unless the service is away.
#[tokio::test]
async fn terraform_goes_on_and_keeps_its_lock_if_the_client_is_killed() {
    for plug in [Plug::ServiceKilled, Plug::ServiceFrozen, Plug::ClientKilled] {
        let dir = tempfile::tempdir().expect("a directory");
        executable(dir.path(), "terraform", "#!/bin/sh\necho $$ > pid\nread x < go\nexit 5\n");
        assert!(std::process::Command::new("mkfifo").arg(dir.path().join("go")).status().expect("mkfifo").success());
        let line = block("Terraform", "sh").replace("redlockd run", "redlockd run --ttl 3s");
        let mut daemon = Daemon::start();
        let script = start(&daemon, dir.path(), SHELLS[1], &format!("{} 2> said", line.trim()));
        let pid = line_in(&dir.path().join("pid")).await;
        match plug {
            Plug::ServiceKilled => daemon.kill(),
            Plug::ServiceFrozen => daemon.freeze(),
            Plug::ClientKilled => kill_process(client_of(&pid), Signal::KILL).expect("our own grandchild"),
        }
        let expected = match plug {
            Plug::ClientKilled => "the lease is renewed until its command ends",
            Plug::ServiceKilled | Plug::ServiceFrozen => "continues WITHOUT the lock",
        };
        let said = || std::fs::read_to_string(dir.path().join("said")).unwrap_or_default();
        poll::until_true("it is said", || said().contains(expected)).await;
        if plug == Plug::ClientKilled {
            stays_held(&daemon, "tf/net", Duration::from_secs(3)).await;
        }
        assert!(is_running(&pid), "{plug:?}");
        std::fs::write(dir.path().join("go"), "go\n").expect("it reads");
        let code = if plug == Plug::ClientKilled { 137 } else { 5 };
        assert_eq!(script.end().await.code, Some(code), "{plug:?}");
        poll::until_true("it ends by itself", || !is_running(&pid)).await;
        if plug == Plug::ClientKilled {
            poll::until_true("the lock is free", || is_free(&daemon, "tf/net")).await;
        }
    }
}

/// The manifest's sidecar, as each of two pods has it, and what its readiness probe asks.
struct Sidecar {
    running: Running,
    page: Client,
    probe: String,
}

impl Sidecar {
    fn start(daemon: &Daemon) -> Self {
        let pod = yaml("Kubernetes: one replica leads");
        let sidecar = &pod["spec"]["containers"][1];
        let probe = &sidecar["readinessProbe"]["httpGet"];
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let asked = format!(":{}", probe["port"].as_u64().expect("a port"));
        let mut args: Vec<String> = words(&sidecar["command"]).into_iter().skip(1).collect();
        let listens = args.iter_mut().find(|word| **word == format!("0.0.0.0{asked}"));
        let listen = format!("127.0.0.1:{port}");
        listen.clone_into(listens.expect("the probe asks where the sidecar answers"));
        let args: Vec<&str> = args.iter().map(|word| if word == "15s" { "3s" } else { word }).collect();
        let running = Running::spawn(daemon.command(&args).process_group(0));
        let page = Client::new(&format!("http://{listen}"));
        Self { running, page, probe: probe["path"].as_str().expect("a path").to_owned() }
    }

    /// The status that the probe gets; `None`: nobody answers.
    async fn ready(&self) -> Option<u16> {
        Some(try_send(self.page.request("GET", &self.probe)).await.ok()?.status)
    }

    async fn until_ready_is(&self, status: u16) {
        let what = format!("the probe gets {status}");
        poll::until(&what, || async { (self.ready().await == Some(status)).then_some(()) }).await;
    }
}

/// Ctrl-C, SIGTERM and SIGKILL of the sidecar that leads: the other pod gets ready.
#[tokio::test]
async fn of_two_pods_the_one_that_leads_is_ready() {
    let daemon = Daemon::start();
    let mut leader = Sidecar::start(&daemon);
    leader.until_ready_is(200).await;
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::KILL, 137)] {
        let other = Sidecar::start(&daemon);
        other.until_ready_is(503).await;
        assert_eq!(leader.ready().await, Some(200), "{signal:?}");
        let (first, second) = (leader.page.get("/").await.json(), other.page.get("/").await.json());
        assert!(first["is_leader"] == true && first["fence"].is_u64(), "{first}");
        assert!(second["is_leader"] == false && second["fence"].is_null(), "{second}");
        kill_process_group(Pid::from_child(leader.running.child()), signal).expect("our own group");
        assert_eq!(leader.running.end().await.code, Some(code));
        other.until_ready_is(200).await;
        leader = other;
    }
    leader.running.signal(Signal::TERM);
    assert_eq!(leader.running.end().await.code, Some(143));
    assert!(is_free(&daemon, "scheduler/leader"));
}

/// The service is killed, or freezes: no pod is ready when the lease is over.
#[tokio::test]
async fn no_pod_is_ready_beyond_its_lease() {
    for plug in [Plug::ServiceKilled, Plug::ServiceFrozen] {
        let mut daemon = Daemon::start();
        let leader = Sidecar::start(&daemon);
        leader.until_ready_is(200).await;
        if plug == Plug::ServiceKilled {
            daemon.kill()
        } else {
            daemon.freeze()
        }
        let pulled = SystemClock.now();
        let last_ready = std::cell::Cell::new(pulled);
        poll::until("the probe gets 503", || async {
            // Before the request: the answer was true at some time after it.
            let asked = SystemClock.now();
            let status = leader.ready().await;
            if status == Some(200) {
                last_ready.set(asked);
            }
            (status == Some(503)).then_some(())
        })
        .await;
        let last_ready = last_ready.get();
        assert!(last_ready.since(pulled).as_millis() < u128::from(TTL_MS), "{plug:?}");
    }
}

/// With curl alone: where the service freezes, the script ends its job before the lease is over.
#[tokio::test]
async fn the_script_with_curl_alone_ends_its_job_in_time() {
    for kills in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        // A tenth of the recipe's times, as far as its clock, which counts seconds, allows.
        let recipe = block("With curl alone", "sh");
        let short = [
            ("ttl=60s", "ttl=6s"),
            ("+ 57", "+ 5"),
            ("sleep 5;", "sleep 0.2;"),
            ("- 20", "- 3"),
            ("sleep 8", "sleep 1"),
            ("--max-time 5", "--max-time 1"),
        ];
        let recipe = short.iter().fold(recipe, |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        });
        executable(dir.path(), "recipe.sh", &recipe);
        executable(dir.path(), "job.sh", WORKER);
        let mut daemon = Daemon::start();
        let script = start(&daemon, dir.path(), SHELLS[0], "./recipe.sh ./job.sh");
        let pid = line_in(&dir.path().join("pid")).await;
        line_in(&dir.path().join("marks")).await;
        if kills {
            daemon.kill()
        } else {
            daemon.freeze()
        }
        let pulled_at_ms = SystemClock.wall_ms();
        poll::until_true("the job has ended", || !is_running(&pid)).await;
        let marks = std::fs::read_to_string(dir.path().join("marks")).expect("written");
        let last: u64 = marks.lines().next_back().and_then(|mark| mark.parse().ok()).expect("a mark");
        assert!(last < pulled_at_ms + 6_000, "it worked until {last}, from {pulled_at_ms}");
        assert_eq!(script.end().await.code, Some(143));
    }
}
