//! What is shipped around the binary, as far as it can be checked without systemd as the first
//! process and without a container engine: units are verified by systemd-analyze, and
//! every setting that they name is one that the program takes.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_yaml_ng::Value;

use crate::support::daemon::{ended, redlockd};
use crate::support::programs::has;

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(packaging(file)).expect(file)
}

/// The script that `make dist` runs, with the binary under test: the package has what it should, and both start. Two at a time,
/// as in two checkouts on one machine.
#[test]
fn the_packages_start_in_bare_directories() {
    let dist = tempfile::tempdir().expect("a directory");
    let packages = |name: &str| {
        let mut script = Command::new(packaging("packages.sh"));
        ended(script.arg(env!("CARGO_BIN_EXE_redlockd")).env("DIST", dist.path().join(name)).env("COMPRESSION", "none"))
    };
    let both = std::thread::scope(|scope| {
        let other = scope.spawn(|| packages("b"));
        [packages("a"), other.join().expect("it ends")]
    });
    for done in both {
        assert_eq!(done.code, Some(0), "{done:?}");
        let lines: Vec<&str> = done.out.lines().collect();
        assert!(lines[0].ends_with("starts in a bare directory (static: no)"), "{done:?}");
        if has("dpkg-deb") {
            assert!(lines[1].ends_with("its unit is read, its configuration is good, its binary starts"), "{done:?}");
        }
    }
    let built =
        std::fs::read_dir(dist.path().join("a")).expect("readable").map(|entry| entry.expect("readable").path());
    let Some(package) = built.into_iter().find(|path| path.extension().is_some_and(|end| end == "deb")) else { return };
    let Ok(listing) = Command::new("dpkg-deb").arg("--contents").arg(package).output() else { return };
    let listing = String::from_utf8(listing.stdout).expect("text");
    for file in [
        "usr/bin/redlockd",
        "lib/systemd/system/redlockd.service",
        "etc/redlockd/redlockd.toml",
        "etc/logrotate.d/redlockd",
        "usr/share/man/man1/redlockd.1.gz",
        "usr/share/bash-completion/completions/redlockd",
        "usr/share/redlockd/redlockd.py",
        "usr/share/redlockd/redlockd.mjs",
    ] {
        assert!(listing.lines().any(|line| line.ends_with(&format!(" ./{file}"))), "{file}: {listing}");
    }
}

#[test]
fn the_unit_starts_what_there_is_and_systemd_reads_it() {
    let unit = read("systemd/redlockd.service");
    let start = unit.lines().find_map(|l| l.strip_prefix("ExecStart=/usr/local/bin/redlockd ")).expect("a start");
    assert_eq!(ended(&mut redlockd(&[start, "--help"])).code, Some(0));
    let dir = tempfile::tempdir().expect("a directory");
    let settings = dir.path().join("redlockd.toml");
    std::fs::write(&settings, ended(&mut redlockd(&["config", "default"])).out).expect("writable");
    let check = ended(redlockd(&["config", "check"]).env("REDLOCKD_CONFIG", &settings));
    assert_eq!((check.code, check.err.as_str()), (Some(0), ""));
    if !has("systemd-analyze") {
        return;
    }
    let unit = unit.replace("/usr/local/bin/redlockd", env!("CARGO_BIN_EXE_redlockd"));
    let path = dir.path().join("redlockd.service");
    std::fs::write(&path, unit).expect("writable");
    let verified = ended(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
    assert!(!verified.err.contains("redlockd.service:"), "{verified:?}");
    // M4: its exposure by systemd's own measure, in tenths.
    let args = ["security", "--offline=yes", "--threshold=20", "--no-pager"];
    let measured = ended(Command::new("systemd-analyze").args(args).arg(&path));
    assert_eq!(measured.code, Some(0), "{measured:?}");
}

/// M4: what the unit promises of reloads, files of root, the boot id and refused system calls.
#[test]
fn m4_the_unit_reloads_and_hands_over_files_of_root() {
    let unit = read("systemd/redlockd.service");
    let lines: Vec<&str> = unit.lines().collect();
    assert!(lines.contains(&"ExecReload=/bin/kill -HUP $MAINPID") && lines.contains(&"SystemCallErrorNumber=EPERM"));
    assert!(!lines.iter().any(|line| line.starts_with("ProcSubset=")), "it hides /proc/sys/kernel/random/boot_id");
    for name in ["access.toml", "tls.crt", "tls.key", "node-password"] {
        assert!(lines.contains(&format!("#LoadCredential={name}:/etc/redlockd/{name}").as_str()), "{name}");
        assert!(unit.contains(&format!("\"/run/credentials/redlockd.service/{name}\"")), "{name}");
    }
    // The settings in its comment are settings.
    let settings = unit.lines().filter_map(|line| line.strip_prefix("#   ")?.split_once(" = \"/run/credentials"));
    let settings: Vec<&str> = settings.map(|(name, _)| name).collect();
    assert_eq!(settings.len(), 4);
    for name in settings {
        assert!(redlockd::config::SETTINGS.iter().any(|setting| setting.name == name), "{name}");
    }
}

/// M4: `systemctl reload` sends SIGHUP, also to a service that has no files to read again.
#[test]
fn m4_a_reload_does_not_end_the_service() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, data) = (dir.path().join("notify"), dir.path().join("data"));
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("an option");
    let received = || {
        let mut text = [0; 64];
        let bytes = socket.recv(&mut text).expect("a state in time");
        String::from_utf8_lossy(&text[..bytes]).into_owned()
    };
    let mut service = redlockd(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().expect("ASCII")]);
    let mut service = service.env("NOTIFY_SOCKET", &path).spawn().expect("the binary runs");
    assert_eq!(received(), "READY=1");
    for signal in [Signal::HUP, Signal::TERM] {
        kill_process(Pid::from_child(&service), signal).expect("our own child");
    }
    assert_eq!(received(), "STOPPING=1");
    assert_eq!(service.wait().expect("our own child").code(), Some(0));
}

#[test]
fn the_compose_file_is_five_nodes_and_settings_that_are_accepted() {
    let compose: Value = serde_yaml_ng::from_str(&read("container/compose.yaml")).expect("YAML");
    let services = compose["services"].as_mapping().expect("services");
    assert_eq!(services.keys().filter(|k| k.as_str().is_some_and(|k| k.starts_with("redis"))).count(), 5);
    let environment = &compose["x-redlockd"]["environment"];
    let nodes = environment["<<"]["REDLOCKD_NODES"].as_str().expect("nodes");
    let listen = environment["REDLOCKD_LISTEN"].as_str().expect("an address");
    let mut check = redlockd(&["config", "check"]);
    let insecure = environment["REDLOCKD_INSECURE_NO_AUTH"].as_str().expect("a flag");
    check.env("REDLOCKD_NODES", nodes).env("REDLOCKD_LISTEN", listen).env("REDLOCKD_INSECURE_NO_AUTH", insecure);
    let check = ended(&mut check);
    assert_eq!(check.code, Some(0), "{check:?}");
    assert!(check.out.contains("nodes: 5 (redis1:6379, "), "{check:?}");
    for service in services.values().filter(|s| !s["command"].is_null() && !s["profiles"].is_null()) {
        let command = service["command"][0].as_str().expect("a command");
        assert_eq!(ended(&mut redlockd(&[command, "--help"])).code, Some(0), "{command}");
    }
    for service in services.values() {
        for volume in service["volumes"].as_sequence().into_iter().flatten().filter_map(Value::as_str) {
            let source = volume.split(':').next().expect("a source");
            assert!(packaging("container").join(source).is_file(), "{source} is mounted and not there");
        }
    }
    let scraped: Value = serde_yaml_ng::from_str(&read("container/prometheus.yml")).expect("YAML");
    let targets = scraped["scrape_configs"][0]["static_configs"][0]["targets"].as_sequence().expect("targets");
    for target in targets.iter().filter_map(Value::as_str) {
        assert!(services.contains_key(target.split(':').next().expect("a name")), "{target}");
    }
}

/// Grafana finds the Prometheus of the same file, and the dashboard where it is configured to look; and
/// Prometheus finds its rules.
#[test]
fn the_parts_of_the_compose_file_find_each_other() {
    let compose: Value = serde_yaml_ng::from_str(&read("container/compose.yaml")).expect("YAML");
    let mounted = |service: &str| -> Vec<(String, String)> {
        let volumes = compose["services"][service]["volumes"].as_sequence().expect("volumes");
        let pair = |v: &Value| {
            let mut parts = v.as_str().expect("text").split(':');
            (parts.next().expect("a source").to_owned(), parts.next().expect("a target").to_owned())
        };
        volumes.iter().map(pair).collect()
    };
    let sources: Value = serde_yaml_ng::from_str(&read("container/grafana/datasources.yaml")).expect("YAML");
    let url = sources["datasources"][0]["url"].as_str().expect("a URL");
    assert!(url.starts_with("http://prometheus:") && !compose["services"]["prometheus"].is_null());
    let boards: Value = serde_yaml_ng::from_str(&read("container/grafana/dashboards.yaml")).expect("YAML");
    let folder = boards["providers"][0]["options"]["path"].as_str().expect("a path");
    let in_folder = |(source, target): &(String, String)| {
        source.ends_with("config/grafana-dashboard.json") && target.starts_with(folder)
    };
    assert!(mounted("grafana").iter().any(in_folder), "{folder}");
    let scraped: Value = serde_yaml_ng::from_str(&read("container/prometheus.yml")).expect("YAML");
    let rules = scraped["rule_files"].as_sequence().expect("rules");
    for rule in rules.iter().filter_map(Value::as_str) {
        assert!(mounted("prometheus").iter().any(|(_, target)| target == rule), "{rule} is not mounted");
    }
    assert_eq!(rules.len(), 2);
}

/// logrotate itself is asked; what it must not do is looked at in any case.
#[test]
fn the_rotation_makes_no_file_and_sends_no_signal() {
    let file = read("logrotate/redlockd");
    let words: Vec<&str> = file.lines().filter(|l| !l.starts_with('#')).map(str::trim).collect();
    assert!(words.contains(&"nocreate") && words.contains(&"delaycompress"), "{words:?}");
    assert!(!words.iter().any(|w| w.starts_with("postrotate") || w.starts_with("copytruncate")), "{words:?}");
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    // It refuses files that others may write, such as those of a checkout.
    let own = dir.path().join("redlockd");
    std::fs::write(&own, &file).expect("writable");
    if has("logrotate") {
        let asked = ended(Command::new("logrotate").arg("--debug").arg("--state").arg(&state).arg(&own));
        assert!(asked.code == Some(0) && !asked.err.contains("error:"), "{asked:?}");
    }
}

/// L16: `make dist` lists every crate in the binary with its licence.
#[test]
fn l16_the_licences_and_the_bill_of_materials_have_every_crate_of_the_binary() {
    let dir = tempfile::tempdir().expect("a directory");
    if !has("python3") {
        return;
    }
    let output = Command::new("python3").arg(packaging("dist.py")).arg(dir.path()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect(name);
    let bill: serde_json::Value = serde_json::from_str(&read("redlockd.cdx.json")).expect("JSON");
    let components = bill["components"].as_array().expect("components");
    let names: Vec<&str> = components.iter().filter_map(|component| component["name"].as_str()).collect();
    for name in ["ring", "rustls", "hyper", "tokio", "jsonwebtoken"] {
        assert!(names.contains(&name), "{name}");
    }
    for name in ["proptest", "fantoccini", "stateright", "redlockd"] {
        assert!(!names.contains(&name), "{name} is not in the binary");
    }
    let licences = read("THIRD-PARTY-LICENSES.txt");
    for component in components {
        let (name, version) = (&component["name"], &component["version"]);
        assert!(
            component["licenses"][0]["expression"].is_string() && component["hashes"][0]["content"].is_string(),
            "{name}"
        );
        let line = format!("{} {}:", name.as_str().expect("text"), version.as_str().expect("text"));
        assert!(licences.contains(&line), "{line}");
    }
}

/// Files outside `src/` that the compiler includes, relative to the root.
fn texts_of_the_binary(root: &Path) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![root.join("src")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("text");
            let included =
                ["include_str!(\"", "include_bytes!(\""].into_iter().flat_map(|what| text.split(what).skip(1));
            let names = included.filter_map(|rest| rest.split('"').next()).filter(|name| name.starts_with("../"));
            found.extend(names.map(|name| name.trim_start_matches("../").to_owned()));
        }
    }
    found.retain(|name| !root.join("src").join(name).exists() && !name.ends_with(".lua"));
    found
}

/// What the container copies is all that the build needs, and what it runs are commands that exist.
#[test]
fn the_container_file_copies_what_is_there_and_runs_what_exists() {
    let file = read("container/Containerfile");
    let root = packaging("..");
    let copied: Vec<&str> = file
        .lines()
        .filter_map(|l| l.strip_prefix("COPY "))
        .filter(|l| !l.starts_with("--from"))
        .flat_map(|l| l.split(' ').collect::<Vec<_>>().split_last().expect("a target").1.to_vec())
        .collect();
    for path in &copied {
        assert!(root.join(path).exists(), "{path} is copied and does not exist");
    }
    for needed in ["Cargo.toml", "Cargo.lock", "config", "src", "crates", "clients/rust", "openapi.yaml"] {
        assert!(copied.contains(&needed), "{needed} is needed and not copied");
    }
    let texts = texts_of_the_binary(&root);
    assert!(texts.len() > 5, "{texts:?}");
    for text in texts {
        assert!(copied.iter().any(|path| text.starts_with(path)), "{text} is part of the binary and not copied");
    }
    assert!(file.contains("REDLOCKD_DRAIN_DELAY=5s"), "a balancer sends requests until its next check");
    for args in [&["serve", "--help"][..], &["health", "--live", "--help"]] {
        assert_eq!(ended(&mut redlockd(args)).code, Some(0));
    }
    assert!(file.contains(r#"CMD ["redlockd", "health", "--live"]"#) && file.contains(r#"CMD ["serve"]"#));
}
