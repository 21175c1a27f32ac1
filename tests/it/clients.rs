//! The clients in `clients/` and the Rust client against `clients/conformance.py`: real nodes and instances that are
//! frozen, killed and restarted under them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use redlockd::client::base_url::BaseUrl;
use redlockd::client::error::ErrorClass;
use redlockd::client::lock::{LockOptions, Locks};
use redlockd::client::renewal::RenewalEnd;
use redlockd::client::requests::LockRequest;
use redlockd::client::transport::{Client, ClientSettings};
use redlockd::types::ResourceName;

use crate::access::tls::Authority;
use crate::support::daemon::{Daemon, Ended, ended};
use crate::support::poll;
use crate::support::programs::has;
use crate::support::service::{Service, path};

#[path = "../../clients/rust/examples/conformance_driver.rs"]
mod conformance_driver;

/// Runs the conformance script with this driver.
fn conforms(driver: &[&str]) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let script = clients.join("conformance.py");
    let run = Command::new("python3")
        .arg(script)
        .args(["--service", env!("CARGO_BIN_EXE_redlockd")])
        .args(driver)
        .current_dir(&clients)
        .output()
        .expect("python3 runs");
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{driver:?}:\n{printed}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(printed.contains("17 passed, 0 failed"), "{driver:?} ran not all scenarios:\n{printed}");
}

#[test]
fn the_python_client_conforms() {
    conforms(&["python3", "python/driver.py"]);
}

#[test]
fn the_node_client_conforms() {
    if has("node") {
        conforms(&["node", "node/driver.mjs"]);
    }
}

/// The driver runs in a process of its own: this test program again, with [`driver`] alone.
#[test]
fn the_rust_client_conforms() {
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("a path in UTF-8");
    conforms(&[program, "clients::driver", "--exact", "--ignored", "--nocapture", "--quiet"]);
}

#[test]
#[ignore = "the process that the conformance script starts"]
fn driver() {
    conformance_driver::main().expect("the commands are carried out");
}

/// The script finds out the Python client with `flaw` in this scenario: it can fail.
fn is_found_out(scenario: &str, flaw: &str) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let driver = format!(
        "import sys, time; sys.path.insert(0, 'python'); import redlockd; {flaw}; \
         exec(open('python/driver.py').read().replace('__file__', \"'python/driver.py'\"))"
    );
    let run = Command::new("python3")
        .args(["conformance.py", "--service", env!("CARGO_BIN_EXE_redlockd"), "--only", scenario])
        .args(["python3", "-c", &driver])
        .current_dir(&clients)
        .output()
        .expect("python3 runs");
    let printed = String::from_utf8_lossy(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{printed}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(printed.contains(&format!("FAILED  {scenario}")), "{printed}");
}

#[test]
fn a_client_that_does_not_renew_fails() {
    is_found_out("holds_and_excludes", "redlockd.Lock._run = lambda lock: None");
}

#[test]
fn a_client_on_a_clock_that_stands_still_while_suspended_fails() {
    is_found_out("notices_a_suspend", "redlockd._now = time.monotonic");
}

#[test]
fn a_client_that_does_not_notice_that_an_instance_hangs_fails() {
    is_found_out("passes_over_an_instance_that_hangs", "redlockd._Watch._run = lambda watch: None");
}

#[test]
fn a_client_that_does_not_notice_that_an_instance_freezes_fails() {
    is_found_out("leaves_an_instance_that_freezes_under_a_waiter", "redlockd.PROBE_AGAIN = 100.0");
}

#[test]
fn a_client_that_asks_each_instance_for_the_whole_wait_fails() {
    let flaw = "ask = redlockd._ask_to_wait; redlockd._ask_to_wait = lambda request, left: ask(request, 8)";
    is_found_out("waits_no_longer_than_asked", flaw);
}

/// Where there is no `CLOCK_BOOTTIME`: a suspend and a step ahead count, a step back does not, and hides no later suspend.
#[test]
fn the_python_client_takes_the_larger_of_two_clocks() {
    let script = "
read = [100.0, 5000.0]
now = redlockd._LargerElapsed(lambda: read[0], lambda: read[1])
for monotonic, wall, sum in [(1, 1, 1), (0, 60, 61), (2, -3600, 63), (0, 30, 93), (1, 1.01, 94.01), (0, 0, 94.01)]:
    read[0] += monotonic
    read[1] += wall
    print(round(now(), 3) == sum)
";
    let done = python(script, &[]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "True\n".repeat(6).as_str()), "{done:?}");
}

/// The same of the Node.js client, which has no other clock: seen in how long a lease is valid.
#[test]
fn the_node_client_takes_the_larger_of_two_clocks() {
    if !has("node") {
        return;
    }
    let lease = r#"{"resource":"x","fence":1,"ttl_ms":100000,"valid_for_ms":100000,"waited_ms":0}"#;
    let (url, _heads) = recorder(json_answer(lease));
    let script = "
const read = [100, 5000]
performance.now = () => read[0]
Date.now = () => read[1]
const other = await import('./node/redlockd.mjs?on-these-clocks')
const held = await new other.Client().lock('x', { renew: false, margin: 0 })
for (const [monotonic, wall, left] of [[1000, 1000, 99000], [0, 60000, 39000], [2000, -3600000, 37000], [0, 30000, 7000], [990, 1000, 6000]]) {
  read[0] += monotonic
  read[1] += wall
  console.log(held.validFor() === left)
}
";
    let done = node(script, &[("REDLOCKD_URL", &url), ("HOME", "/nowhere")]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "true\n".repeat(5).as_str()), "{done:?}");
}

fn script(program: &str, args: &[&str], env: &[(&str, &str)]) -> Ended {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    ended(command.args(args).current_dir(clients).env_clear().env("PATH", path).envs(env.iter().copied()))
}

/// A script beside the Python client.
fn python(text: &str, env: &[(&str, &str)]) -> Ended {
    script("python3", &["-c", &format!("import sys; sys.path.insert(0, 'python'); import redlockd\n{text}")], env)
}

/// A script beside the Node.js client.
fn node(text: &str, env: &[(&str, &str)]) -> Ended {
    let import = "import * as redlockd from './node/redlockd.mjs'\nconst { Client, lock } = redlockd";
    script("node", &["--input-type=module", "-e", &format!("{import}\n{text}")], env)
}

/// What both clients print, with a script and environment for each.
fn both(of_python: &str, of_node: &str, env: &[(&str, &str)]) -> Vec<Ended> {
    let mut printed = vec![python(of_python, env)];
    if has("node") {
        printed.push(node(of_node, env));
    }
    printed
}

fn json_answer(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// A server that gives every caller this answer; its URL, and the heads that it received.
fn recorder(answer: String) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (sender, heads) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.expect("a caller"), Vec::new());
            let mut buffer = [0; 1024];
            while !head.windows(4).any(|w| w == b"\r\n\r\n") {
                let n = stream.read(&mut buffer).expect("readable");
                assert_ne!(n, 0, "the caller left");
                head.extend_from_slice(&buffer[..n]);
            }
            // Fails where the test is over.
            let _ = sender.send(String::from_utf8(head).expect("text"));
            stream.write_all(answer.as_bytes()).expect("writable");
        }
    });
    (url, heads)
}

/// A server that says once that it is alive and answers nothing else; its URL, and the first lines that it received.
fn freezes() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut open, mut is_asked) = (Vec::new(), false);
        for stream in listener.incoming() {
            let (mut stream, mut buffer) = (stream.expect("a caller"), [0; 1024]);
            let n = stream.read(&mut buffer).expect("readable");
            let line = String::from_utf8_lossy(&buffer[..n]).lines().next().unwrap_or_default().to_owned();
            if line.contains("/health/live") && !std::mem::replace(&mut is_asked, true) {
                stream.write_all(json_answer("{}").as_bytes()).expect("writable");
            }
            open.push(stream);
            // Fails where the test is over.
            let _ = sender.send(line);
        }
    });
    (url, lines)
}

/// Longer than it takes to leave an instance that freezes: nobody else could serve the request.
#[test]
fn with_one_instance_alone_the_clients_wait_on() {
    for ask_as in ["python", "node"] {
        let (url, lines) = freezes();
        let env = [("REDLOCKD_URL", url.as_str()), ("HOME", "/nowhere")];
        let of_python = "
try:
    redlockd.Client().request('GET', '/x', timeout=7)
except redlockd.Unavailable as error:
    print(error)";
        let of_node =
            "await new Client().request('GET', '/x', { timeout: 7000 }).catch((error) => console.log(error.message))";
        let done = match ask_as {
            "python" => python(of_python, &env),
            _ if has("node") => node(of_node, &env),
            _ => continue,
        };
        assert!(done.out.contains("no instance answers") && !done.out.contains("stopped answering"), "{done:?}");
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["GET /x HTTP/1.1", "GET /health/live HTTP/1.1"]);
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

#[test]
fn the_clients_find_the_key_where_the_command_line_does() {
    let (url, heads) = recorder(json_answer("{}"));
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| {
        let at = dir.path().join(name);
        std::fs::create_dir_all(at.parent().expect("a folder")).expect("writable");
        std::fs::write(&at, format!("{}\n", name.replace('/', "-"))).expect("writable");
        path(&at).to_owned()
    };
    let (option, variable) = (file("option"), file("variable"));
    file("home/.config/redlockd/key");
    file("xdg/redlockd/key");
    let (home, xdg) = (path(dir.path()).to_owned() + "/home", path(dir.path()).to_owned() + "/xdg");
    let (of_home, of_xdg) = ("Bearer home-.config-redlockd-key", "Bearer xdg-redlockd-key");
    let ask = |options: [&str; 2], env: &[(&str, &str)], key: Option<&str>| {
        let env = [&[("REDLOCKD_URL", url.as_str()), ("HOME", &home)], env].concat();
        let scripts = options.map(|options| format!("Client({options}).inspect('x')"));
        for done in both(&format!("redlockd.{}", scripts[0]), &format!("await new {}", scripts[1]), &env) {
            assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
        }
        for head in heads.try_iter() {
            assert_eq!((head.starts_with("GET /locks/x "), header(&head, "authorization")), (true, key), "{head}");
        }
    };
    let (in_python, in_node) = (format!("key_file='{option}'"), format!("{{ keyFile: '{option}' }}"));
    ask([&in_python, &in_node], &[("REDLOCKD_KEY_FILE", &variable)], Some("Bearer option"));
    ask(["key='given'", "{ key: 'given' }"], &[("REDLOCKD_KEY_FILE", &variable)], Some("Bearer given"));
    ask(["", ""], &[("REDLOCKD_KEY_FILE", &variable)], Some("Bearer variable"));
    ask(["", ""], &[("XDG_CONFIG_HOME", &xdg)], Some(of_xdg));
    ask(["", ""], &[], Some(of_home));
    ask(["", ""], &[("XDG_CONFIG_HOME", "/nowhere")], None);
}

/// Nothing is sent to these names, which do not exist: the clients cannot be made.
#[test]
fn the_clients_send_no_key_openly_to_another_host_and_take_no_file_without_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = |name: &str, text: &str| {
        let at = dir.path().join(name);
        std::fs::write(&at, text).expect("writable");
        path(&at).to_owned()
    };
    let files = [text("empty", "\n"), text("two", "a sesame\n"), text("long", &"s".repeat(257)), "/nowhere/key".into()];
    let home = [("HOME", path(dir.path()))];
    let made = |of_python: &str, of_node: &str| -> Vec<String> {
        let of_python = format!(
            "
try:
    redlockd.Client({of_python})
    print('made')
except (ValueError, OSError) as error:
    print(error)"
        );
        let of_node = format!(
            "try {{ new Client({of_node}); console.log('made') }} catch (error) {{ console.log(error.message) }}"
        );
        both(&of_python, &of_node, &home).into_iter().map(|done| done.out).collect()
    };
    for urls in ["http://locks.invalid", "http://127.0.0.1:1,http://10.0.0.1:5625", "http://[2001:db8::1]"] {
        for said in made(&format!("'{urls}', key='sesame'"), &format!("{{ urls: '{urls}', key: 'sesame' }}")) {
            assert!(said.contains("https") && !said.contains("sesame"), "{urls}: {said}");
        }
        let allowed = (
            format!("'{urls}', key='sesame', insecure_key=True"),
            format!("{{ urls: '{urls}', key: 'sesame', insecureKey: true }}"),
        );
        assert!(made(&allowed.0, &allowed.1).iter().all(|said| said == "made\n"), "{urls}");
    }
    let own = "https://locks.invalid,http://localhost:1,http://127.8.0.1:1,http://[::1]:1";
    let said = made(&format!("'{own}', key='sesame'"), &format!("{{ urls: '{own}', key: 'sesame' }}"));
    assert!(said.iter().all(|said| said == "made\n"), "{said:?}");
    for file in &files {
        for said in made(&format!("key_file='{file}'"), &format!("{{ keyFile: '{file}' }}")) {
            assert!(said.contains(file) && !said.contains("sesame") && !said.contains("sss"), "{said}");
        }
    }
}

#[test]
fn the_clients_follow_no_redirect_and_use_no_proxy() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a free port");
    elsewhere.set_nonblocking(true).expect("an option");
    let other = format!("http://{}", elsewhere.local_addr().expect("bound"));
    for status in ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let (url, heads) = recorder(format!(
            "HTTP/1.1 {status}\r\nLocation: {other}/locks/x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ));
        let proxies = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
        let mut env: Vec<(&str, &str)> = proxies.into_iter().map(|name| (name, other.as_str())).collect();
        env.extend([("REDLOCKD_URL", url.as_str()), ("NODE_USE_ENV_PROXY", "1"), ("HOME", "/nowhere")]);
        let of_python = "
try:
    redlockd.Client(key='sesame').lock('x').acquire()
except redlockd.Refused as error:
    print(error.status)";
        let of_node = "await new Client({ key: 'sesame' }).lock('x').catch((error) => console.log(error.status))";
        for done in both(of_python, of_node, &env) {
            assert_eq!((done.code, done.out.trim()), (Some(0), &status[..3]), "{done:?}");
        }
        for head in heads.try_iter() {
            assert!(head.starts_with("POST /locks/x ") && header(&head, "lock-token").is_some(), "{head}");
        }
    }
    assert_eq!(elsewhere.accept().expect_err("nobody came").kind(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn the_clients_trust_the_authority_that_they_are_given() {
    let (authority, dir) = (Authority::new("servers"), tempfile::tempdir().expect("a directory"));
    let (cert, key) = authority.for_loopback();
    let written = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).expect("writable");
        path(&dir.path().join(name)).to_owned()
    };
    let (own, other) = (written("own", &authority.pem), written("other", &Authority::new("others").pem));
    let settings = [("listen_tls_cert", written("cert", &cert)), ("listen_tls_key", written("key", &key))];
    let settings: Vec<String> = settings.iter().map(|(name, file)| format!("{name}={file}")).collect();
    let daemon = Daemon::start_with(&["--set", &settings[0], "--set", &settings[1]]);
    let url = daemon.url().replace("http:", "https:");
    let env = [("REDLOCKD_URL", url.as_str()), ("HOME", "/nowhere")];
    for (python_ca, node_ca, expected) in [
        (format!("ca_file='{own}'"), format!("{{ ca: readFileSync('{own}') }}"), "held"),
        (format!("ca_file='{other}'"), format!("{{ ca: readFileSync('{other}') }}"), "certificate"),
        (String::new(), String::new(), "certificate"),
    ] {
        let of_python = format!(
            "
client = redlockd.Client({python_ca})
try:
    with client.lock('x') as lock:
        lock.extend()
        print('held' if client.inspect('x') else 'free')
except redlockd.Unavailable as error:
    print(error, error.maybe_done)"
        );
        let of_node = format!(
            "
import {{ readFileSync }} from 'node:fs'
const client = new Client({node_ca})
try {{
  const held = await client.lock('x')
  await held.extend()
  console.log(await client.inspect('x') ? 'held' : 'free')
  await held.release()
}} catch (error) {{
  console.log(error.message, error.maybeDone)
}}"
        );
        for done in both(&of_python, &of_node, &env) {
            assert!(done.out.contains(expected) && !done.out.to_lowercase().contains("true"), "{done:?}");
        }
    }
}

/// `await using` calls this at the end of its block; a wait that is given up leaves neither waiter nor lock.
#[tokio::test]
async fn a_lock_of_node_is_disposed_of_and_a_wait_is_given_up() {
    if !has("node") {
        return;
    }
    let daemon = Daemon::start();
    let done = node(
        "
import assert from 'node:assert'
const client = new Client()
const held = await client.lock('x', { owner: 'first' })
const wanted = new AbortController()
const waiting = client.lock('x', { wait: '1m', owner: 'second', signal: wanted.signal })
const waiters = async () => (await client.inspect('x')).waiters.length
while (await waiters() === 0);
wanted.abort(new Error('not needed any more'))
await assert.rejects(waiting, /not needed any more/)
while (await waiters() > 0);
await assert.rejects(client.lock('y', { signal: wanted.signal }), /not needed any more/)
assert.equal(await client.inspect('y'), null)
await held[Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]()
assert.equal(await client.inspect('x'), null)
assert.throws(() => held.check(), redlockd.LockLost)
// After the grant the signal means nothing to the lease.
const late = new AbortController()
const kept = await client.lock('x', { signal: late.signal })
late.abort()
await kept.extend()
kept.check()
await kept.release()
",
        &[("REDLOCKD_URL", &daemon.url()), ("HOME", "/nowhere")],
    );
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
}

/// A lock as a value: released when it is dropped, kept beyond its TTL, and its end by others is reported.
#[tokio::test]
async fn a_lock_lives_as_long_as_its_value() {
    let service = Service::embedded(&[]).await;
    let http = service.client();
    let settings = ClientSettings { urls: vec![BaseUrl::parse(http.base()).expect("a URL")], key: None, ca_pem: None };
    let locks = Locks::new(Client::new(settings).expect("a client"));
    let ttl = Duration::from_secs(2);
    let wanted = LockRequest { ttl: Some(ttl), ..LockRequest::of(ResourceName::parse("value").expect("valid")) };
    let options = LockOptions { wait: Duration::ZERO, margin: Duration::from_millis(200) };
    let lock = locks.acquire(&wanted, options).await.expect("free");
    assert_eq!(
        (lock.names(), http.inspect("value").await.json()["holders"][0]["fence"].as_u64()),
        (&wanted.names, Some(lock.fence()))
    );
    poll::until("it is renewed", || async {
        (http.inspect("value").await.json()["holders"][0]["renewals"].as_u64() > Some(0)).then_some(())
    })
    .await;
    let valid = lock.valid_for();
    assert!(valid > Duration::ZERO && valid <= ttl - options.margin, "{valid:?}");
    let refused = locks.acquire(&wanted, options).await.expect_err("held");
    assert_eq!(refused.class(), ErrorClass::Held);
    drop(lock);
    poll::until("it is released", || async { (http.inspect("value").await.status == 404).then_some(()) }).await;
    // An acquire that is dropped while it waits leaves nothing behind.
    let lock = locks.acquire(&wanted, options).await.expect("free");
    let waits = LockOptions { wait: Duration::from_mins(1), ..options };
    let waiter = tokio::spawn({
        let (locks, wanted) = (locks.clone(), wanted.clone());
        async move { locks.acquire(&wanted, waits).await }
    });
    poll::until("it waits", || async { (http.waiting("value").await == 1).then_some(()) }).await;
    waiter.abort();
    poll::until("it has left", || async { (http.waiting("value").await == 0).then_some(()) }).await;
    // An operator ends it.
    let lost = tokio::spawn(lock.lost());
    http.request("DELETE", "/locks/value?force=now&reason=test").send().await.expect("an answer");
    assert!(matches!(lost.await.expect("no panic"), RenewalEnd::Ended(_)));
    assert_eq!(lock.valid_for(), Duration::ZERO);
    assert_eq!(lock.release().await.expect_err("it had ended").class(), ErrorClass::Lost);
    let lock = locks.acquire(&wanted, options).await.expect("free");
    lock.release().await.expect("released");
    drop(locks.acquire(&wanted, options).await.expect("free"));
    locks.close().await;
    http.inspect("value").await.expect_status(404);
}
