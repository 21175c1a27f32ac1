//! Another user of the host: reads the command lines of all processes, and every file of the service, of its callers and of
//! `redlockd run` that others may read. None has a key, a token or a session.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use redlockd::redlock::random::Entropy;

use super::{Access, CALM, Stage, assert_sound, key, principals};
use crate::support::daemon::{ended, redlockd};
use crate::support::seeded::Seeded;
use crate::support::service::path;

/// What others may read below this directory, and that it has no secret.
fn search(stage: &Stage, dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let mut found = 0;
    for entry in entries.filter_map(Result::ok) {
        // Files come and go.
        let Ok(meta) = entry.metadata() else { continue };
        let is_readable = meta.permissions().mode() & 0o004 != 0;
        if meta.is_dir() {
            found += search(stage, &entry.path());
        } else if meta.is_file()
            && is_readable
            && let Ok(bytes) = std::fs::read(entry.path())
        {
            let text = String::from_utf8_lossy(&bytes);
            for secret in [&stage.secrets[0], &stage.secrets[4]] {
                assert!(!text.contains(secret.as_str()), "{} has {secret}", entry.path().display());
            }
            found += 1;
        }
    }
    found
}

/// The command lines of all processes.
fn command_lines() -> String {
    let processes = std::fs::read_dir("/proc").expect("a process table").filter_map(Result::ok);
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbour_on_the_host() {
    let dir = tempfile::tempdir().expect("a directory");
    let audit = format!("audit_log={}", path(&dir.path().join("audit")));
    let access = Access::with(&principals(&[]));
    let service = access.service(&["--log-level", "debug", "--set", &audit]).await;
    let stage = Stage::of(service.client(), service.pid()).await;
    // The caller's key is in a file of its own, as `redlockd key new --to` leaves it.
    let key_file = dir.path().join("calm.key");
    std::fs::write(&key_file, key(CALM)).expect("writable");
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).expect("own file");
    let (stage, service_ref, dir_ref, access_file) = (&stage, &service, dir.path(), &access.path());
    stage
        .play("neighbour", |random: Seeded| async move {
            match random.below(8) {
                0 => {
                    let name = format!("calm/run-{}", random.bits());
                    let base = service_ref.client().base().to_owned();
                    let mut run =
                        redlockd(&["run", "--url", &base, "--key-file", path(&dir_ref.join("calm.key")), &name]);
                    run.args([
                        "--",
                        "sh",
                        "-c",
                        "tr '\\0' ' ' < /proc/$$/cmdline; stat -c %a \"$REDLOCKD_TOKEN_FILE\"",
                    ]);
                    run.env("XDG_RUNTIME_DIR", dir_ref).env("PATH", "/usr/bin:/bin");
                    let done = tokio::task::spawn_blocking(move || ended(&mut run)).await.expect("no panic");
                    let is_late = match done.code {
                        Some(69) => ["nodes voted for it", "no answer within"].iter().any(|why| done.err.contains(why)),
                        Some(76) => done.err.contains("could not be renewed in time"),
                        _ => false,
                    };
                    if is_late {
                        // The machine is busy otherwise: the node's vote came too late, or the service's answer.
                        return "a late run".to_owned();
                    }
                    assert_eq!(done.code, Some(0), "{done:?}");
                    assert!(done.out.ends_with("600\n"), "{done:?}");
                    "a run".to_owned()
                }
                1 => {
                    stage.assert_hides("a command line", &command_lines());
                    "command lines".to_owned()
                }
                _ => {
                    let access_dir = access_file.parent().expect("a directory");
                    // Also its lock files: who can open one can lock it, and the service does not start again.
                    assert_eq!(search(stage, service_ref.data().path()), 0, "the service's files are for itself");
                    let found = search(stage, dir_ref) + search(stage, access_dir);
                    assert!(found > 0, "nothing was readable: is this test blind?");
                    "files".to_owned()
                }
            }
        })
        .await;
    assert_sound("neighbour", &service);
}
