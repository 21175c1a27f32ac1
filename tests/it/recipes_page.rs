//! The recipes of docs/recipes.md: scripts under dash, bash and busybox, with signals and failing jobs; cron lines, units,
//! manifests and Makefiles read by what reads them, and their commands run.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_yaml_ng::Value;
use tempfile::TempDir;

use crate::support::daemon::{Daemon, Ended, Running, ended, is_running, line_in};
use crate::support::poll;
use crate::support::programs::skipped;
use crate::support::terraform::install;

const DOCUMENT: &str = include_str!("../../docs/recipes.md");
/// What a `#!` line names; the first of each is its program.
pub const SHELLS: [&str; 3] = ["/usr/bin/dash", "/bin/bash", "/usr/bin/busybox sh"];

pub fn blocks(heading: &str, language: &str) -> Vec<String> {
    let section = DOCUMENT.split("\n## ").find(|s| s.starts_with(heading)).unwrap_or_else(|| panic!("no {heading}"));
    let start = format!("```{language}\n");
    let blocks = section.split(&start).skip(1);
    let blocks: Vec<String> = blocks.filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect();
    assert!(!blocks.is_empty(), "no {language} below {heading}");
    blocks
}

pub fn block(heading: &str, language: &str) -> String {
    blocks(heading, language).remove(0)
}

/// A script for this shell, which also starts itself again with it.
pub fn for_shell(script: &str, shell: &str) -> String {
    let again = format!("-- {shell} \"$0\"");
    script.replacen("#!/bin/sh", &format!("#!{shell}"), 1).replace("-- sh \"$0\"", &again)
}

/// The command of the crontab, and its variables.
pub fn cron_line() -> (Vec<String>, String) {
    let text = block("Cron on many hosts", "crontab");
    let mut lines: Vec<&str> = text.lines().collect();
    let line = lines.pop().expect("a line");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(&words[..6], ["15", "3", "*", "*", "*", "app"]);
    (lines.into_iter().map(str::to_owned).collect(), words[6..].join(" "))
}

pub fn executable(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("writable");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("own file");
}

/// A command in `dir`, which is also first in its PATH, after the binary under test.
pub fn command(daemon: &Daemon, dir: &Path, program: &str) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_redlockd")).parent().expect("a directory");
    let path = format!("{}:{}:{}", binary.display(), dir.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.current_dir(dir).env("PATH", path).env("REDLOCKD_URL", daemon.url()).env("XDG_RUNTIME_DIR", dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn sh(daemon: &Daemon, dir: &Path, line: &str) -> Ended {
    ended(command(daemon, dir, "sh").args(["-c", line]))
}

/// The recipe as a script for each shell that is installed.
fn in_each_shell(recipe: &str, test: impl AsyncFn(&Path)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for shell in SHELLS {
        if !Path::new(shell.split(' ').next().expect("a program")).exists() {
            skipped(&format!("{shell} is missing: `make deps` installs it"));
            continue;
        }
        let dir = tempfile::tempdir().expect("a directory");
        executable(dir.path(), "recipe.sh", &for_shell(recipe, shell));
        runtime.block_on(test(dir.path()));
    }
}

pub fn is_free(daemon: &Daemon, resource: &str) -> bool {
    daemon.ask(&["status", resource]).code == Some(1)
}

/// A job that says who it is and then works until it is ended.
pub const LONG_JOB: &str = "#!/bin/sh\necho $$ > pid\nexec sleep 600\n";

/// Sends the signal to the script alone, or to its whole process group as Ctrl-C does; the job must end, the lock be free,
/// and nothing after the job be run.
async fn ends_by(daemon: &Daemon, dir: &Path, words: &[&str], signal: Signal, code: i32) {
    let _ = std::fs::remove_file(dir.join("pid"));
    let mut start = command(daemon, dir, "./recipe.sh");
    let mut script = Running::spawn(start.args(words).process_group(0));
    let job = line_in(&dir.join("pid")).await;
    assert!(!is_free(daemon, "deploy/prod"));
    if signal == Signal::INT {
        kill_process_group(Pid::from_child(script.child()), signal).expect("our own group");
    } else {
        script.signal(signal);
    }
    let done = script.end().await;
    assert_eq!(done.code, Some(code), "{signal:?}: {done:?}");
    assert!(!is_running(&job), "the job outlived the script");
    assert!(is_free(daemon, "deploy/prod"), "{signal:?}: {done:?}");
    assert!(!dir.join("after").exists());
}

#[test]
fn a_script_that_never_runs_twice() {
    let recipe = block("A script that never runs twice", "sh");
    in_each_shell(&recipe, async |dir| {
        let daemon = Daemon::start();
        executable(dir, "build.sh", "#!/bin/sh\necho built \"$@\"\n");
        executable(dir, "upload.sh", "#!/bin/sh\nredlockd status --plain deploy/prod | grep -o state=held\nexit 3\n");
        let failed = ended(command(&daemon, dir, "./recipe.sh").arg("--fast"));
        assert_eq!((failed.code, failed.out.as_str()), (Some(3), "built\nstate=held\n"), "{failed:?}");
        assert!(is_free(&daemon, "deploy/prod"));
        // Also where it is no path that was called, nor executable.
        let text = std::fs::read_to_string(dir.join("recipe.sh")).expect("written");
        std::fs::write(dir.join("deploy"), &text).expect("writable");
        let mut words = text.lines().next().and_then(|line| line.strip_prefix("#!")).expect("a shell").split(' ');
        let mut start = command(&daemon, dir, words.next().expect("a program"));
        let failed = ended(start.args(words).arg("deploy"));
        assert_eq!((failed.code, failed.out.as_str()), (Some(3), "built\nstate=held\n"), "{failed:?}");
        executable(dir, "build.sh", LONG_JOB);
        executable(dir, "upload.sh", "#!/bin/sh\n: > after\n");
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            ends_by(&daemon, dir, &[], signal, code).await;
        }
        // The second one waits for the first and then runs.
        let token = daemon.get(&["acquire", "--ttl", "2s", "deploy/prod"]);
        assert_eq!(token.trim().len(), 32);
        executable(dir, "build.sh", "#!/bin/sh\necho built\n");
        let waited = ended(&mut command(&daemon, dir, "./recipe.sh"));
        assert_eq!((waited.code, waited.out.as_str()), (Some(0), "built\n"), "{waited:?}");
    });
}

#[test]
fn with_curl_alone() {
    let recipe = block("With curl alone", "sh");
    in_each_shell(&recipe, async |dir| {
        let daemon = Daemon::start();
        let failed = ended(command(&daemon, dir, "./recipe.sh").args([
            "sh",
            "-c",
            "redlockd status --plain deploy/prod | grep -o state=held; exit 3",
        ]));
        assert_eq!((failed.code, failed.out.as_str()), (Some(3), "state=held\n"), "{failed:?}");
        assert!(is_free(&daemon, "deploy/prod"));
        executable(dir, "job.sh", LONG_JOB);
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            ends_by(&daemon, dir, &["./job.sh"], signal, code).await;
        }
        // A signal ends the wait, and the request that waited leaves nothing behind.
        let token = daemon.get(&["acquire", "--ttl", "4m", "deploy/prod"]);
        let mut start = command(&daemon, dir, "./recipe.sh");
        let mut waiting = Running::spawn(start.args(["touch", "after"]).process_group(0));
        let waiters = || daemon.json(&["status", "--json", "deploy/prod"])["waiting"].as_u64();
        poll::until_true("it queues", || waiters() == Some(1)).await;
        waiting.signal(Signal::TERM);
        assert_eq!(waiting.end().await.code, Some(143));
        poll::until_true("it has left the queue", || waiters() == Some(0)).await;
        std::fs::write(dir.join("token"), token).expect("writable");
        daemon.get(&["release", "--token-file", dir.join("token").to_str().expect("text"), "deploy/prod"]);
        assert!(is_free(&daemon, "deploy/prod") && !dir.join("after").exists());
    });
}

/// The lease is lost while the job works: the job is ended, although nobody asked the script.
#[test]
fn the_loop_with_curl_ends_a_job_whose_lease_is_lost() {
    let recipe = block("With curl alone", "sh");
    let daemon = Daemon::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let dir = tempfile::tempdir().expect("a directory");
    executable(dir.path(), "recipe.sh", &recipe.replace("sleep 5;", "sleep 0.2;"));
    executable(dir.path(), "job.sh", LONG_JOB);
    runtime.block_on(async {
        let script = Running::spawn(command(&daemon, dir.path(), "./recipe.sh").arg("./job.sh"));
        let job = line_in(&dir.path().join("pid")).await;
        daemon.get(&["force", "--now", "--reason", "test", "deploy/prod"]);
        let done = script.end().await;
        assert_eq!(done.code, Some(143), "{done:?}");
        assert!(!is_running(&job));
    });
}

/// The command of a cron line, a unit or a manifest, on two hosts one after the other: the job runs once.
fn runs_once(daemon: &Daemon, line: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    executable(dir.path(), "nightly", "#!/bin/sh\necho ran >> ran\n");
    let line = line.replace("/usr/local/bin/nightly", "nightly").replace("/usr/local/bin/redlockd", "redlockd");
    for _ in 0..2 {
        let done = sh(daemon, dir.path(), &line);
        assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "", ""), "{line}");
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("ran")).expect("written"), "ran\n", "{line}");
    let holder = daemon.json(&["status", "--json", "cron/nightly"])["holders"][0]["valid_for_ms"].as_u64();
    assert!(holder.is_some_and(|ms| ms > 200_000), "{holder:?}");
}

#[test]
fn cron_and_systemd_on_many_hosts() {
    let (variables, of_cron) = cron_line();
    assert_eq!(variables[0], "PATH=/usr/local/bin:/usr/bin:/bin");
    assert!(variables.len() == 2 && variables[1].starts_with("REDLOCKD_URL=http://"), "{variables:?}");
    let units = blocks("A systemd timer on many hosts", "ini");
    let of_unit = units[0].lines().find_map(|l| l.strip_prefix("ExecStart=")).expect("a command").to_owned();
    for line in [of_cron, of_unit] {
        // `--at-least 10m` waits with a TTL of 5 minutes until 5 are left: the test asks for what one TTL covers.
        runs_once(&Daemon::start(), &line.replace("10m", "5m"));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("nightly");
    executable(dir.path(), "nightly", "#!/bin/sh\n");
    for (unit, name) in units.iter().zip(["nightly.service", "nightly.timer"]) {
        let unit = unit.replace("/usr/local/bin/redlockd", env!("CARGO_BIN_EXE_redlockd"));
        let unit = unit.replace("/usr/local/bin/nightly", program.to_str().expect("text"));
        std::fs::write(dir.path().join(name), unit).expect("writable");
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(["nightly.service", "nightly.timer"].map(|name| dir.path().join(name)));
    if let Ok(output) = verify.output() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("nightly."), "{said}");
    }
}

pub fn yaml(heading: &str) -> Value {
    serde_yaml_ng::from_str(&block(heading, "yaml")).expect("YAML")
}

pub fn words(command: &Value) -> Vec<String> {
    command.as_sequence().expect("a command").iter().map(|w| w.as_str().expect("text").to_owned()).collect()
}

/// The sidecar is tested with its probe (`recipes_plugs.rs`).
#[test]
fn the_job_for_kubernetes_runs_once() {
    let job = yaml("Kubernetes: a job on a schedule");
    let container = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0];
    runs_once(&Daemon::start(), &words(&container["command"]).join(" ").replace("10m", "5m"));
}

/// A directory where the other recipes find what they call.
fn workplace() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["build.sh", "upload.sh", "integration-test.sh"] {
        executable(dir.path(), name, &format!("#!/bin/sh\necho {name} ${{REDLOCKD_RESOURCE:-unlocked}}\n"));
    }
    executable(dir.path(), "terraform", "#!/bin/sh\necho terraform $* $REDLOCKD_RESOURCE\n");
    dir
}

#[test]
fn ci_make_and_terraform_run_their_steps_under_the_lock() {
    let (daemon, dir) = (Daemon::start(), workplace());
    let ci = sh(&daemon, dir.path(), &block("CI", "sh"));
    assert_eq!((ci.code, ci.out.as_str()), (Some(0), "integration-test.sh staging/db\n"), "{ci:?}");
    std::fs::write(dir.path().join("Makefile"), block("A Makefile", "make")).expect("writable");
    let made = ended(command(&daemon, dir.path(), "make").args(["-s", "deploy"]));
    assert_eq!((made.code, made.out.as_str()), (Some(0), "build.sh deploy/prod\nupload.sh deploy/prod\n"), "{made:?}");
    let applied = sh(&daemon, dir.path(), &block("Terraform", "sh"));
    let expected = "terraform apply -lock=false -auto-approve tf/net\n";
    assert_eq!((applied.code, applied.out.as_str()), (Some(0), expected), "{applied:?}");
    // A failing step fails the whole, and frees the lock.
    executable(dir.path(), "upload.sh", "#!/bin/sh\nexit 3\n");
    assert_eq!(ended(command(&daemon, dir.path(), "make").args(["-s", "deploy"])).code, Some(2));
    assert!(is_free(&daemon, "deploy/prod"));
}

/// Two applies at once with the real Terraform, whose own locking is off: one after the other. Only its built-in provider is
/// used, so nothing is downloaded.
#[test]
fn terraform_applies_take_turns() {
    let dir = tempfile::tempdir().expect("a directory");
    if !install(dir.path()) {
        return;
    }
    let daemon = Daemon::start();
    let config = r#"resource "terraform_data" "one" {
  triggers_replace = timestamp()
  provisioner "local-exec" { command = "echo begin >> log; sleep 0.3; echo end >> log" }
}"#;
    std::fs::write(dir.path().join("main.tf"), config).expect("writable");
    let terraform = |line: &str| {
        let mut command = command(&daemon, dir.path(), "sh");
        command.args(["-c", line]).env("CHECKPOINT_DISABLE", "1").env("TF_IN_AUTOMATION", "1").env("HOME", dir.path());
        command
    };
    let begun = ended(&mut terraform("terraform init -input=false"));
    assert_eq!(begun.code, Some(0), "{begun:?}");
    let line = block("Terraform", "sh");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let both: Vec<Running> = (0..2).map(|_| Running::spawn(&mut terraform(&line))).collect();
        for apply in both {
            let done = apply.end().await;
            assert_eq!(done.code, Some(0), "{done:?}");
        }
    });
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).expect("written"), "begin\nend\nbegin\nend\n");
}

/// Two agents over the same list: every task is done once, also the one whose first agent fails.
#[test]
fn agents_do_no_work_twice() {
    let recipe = block("Agents that must not", "sh");
    in_each_shell(&recipe, async |dir| {
        let daemon = Daemon::start();
        for made in ["tasks", "done"] {
            std::fs::create_dir(dir.join(made)).expect("writable");
        }
        for task in 0..6 {
            std::fs::write(dir.join("tasks").join(format!("t{task}")), "").expect("writable");
        }
        executable(
            dir,
            "agent.sh",
            "#!/bin/sh\necho $1 >> log\n[ $1 != t3 ] || [ -e retried ] || { : > retried; exit 1; }\n",
        );
        let agents: Vec<Running> = (0..2).map(|_| Running::spawn(&mut command(&daemon, dir, "./recipe.sh"))).collect();
        for agent in agents {
            assert!(matches!(agent.end().await.code, Some(0 | 1)));
        }
        // Another round does what failed or was left.
        assert_eq!(ended(&mut command(&daemon, dir, "./recipe.sh")).code, Some(0));
        let log = std::fs::read_to_string(dir.join("log")).expect("written");
        let mut done: Vec<&str> = log.lines().collect();
        done.sort_unstable();
        assert_eq!(done, ["t0", "t1", "t2", "t3", "t3", "t4", "t5"]);
    });
}
