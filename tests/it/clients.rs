//! The clients in `clients/` and the Rust client against `clients/conformance.py`: real nodes and instances that are
//! frozen, killed and restarted under them.
#![expect(clippy::print_stderr, reason = "a skipped test says so")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redlockd::client::base_url::BaseUrl;
use redlockd::client::error::ErrorClass;
use redlockd::client::lock::{LockOptions, Locks};
use redlockd::client::renewal::RenewalEnd;
use redlockd::client::requests::LockRequest;
use redlockd::client::transport::{Client, ClientSettings};
use redlockd::types::ResourceName;

use crate::support::poll;
use crate::support::service::Service;

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
    assert!(printed.contains("12 passed, 0 failed"), "{driver:?} ran not all scenarios:\n{printed}");
}

#[test]
fn the_python_client_conforms() {
    conforms(&["python3", "python/driver.py"]);
}

#[test]
fn the_node_client_conforms() {
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("node is not installed: the Node.js client is not tested");
        return;
    }
    conforms(&["node", "node/driver.mjs"]);
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

/// A driver that never renews must be found out: the script can fail.
#[test]
fn a_client_that_does_not_renew_fails() {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let driver = "import sys; sys.path.insert(0, 'python'); sys.argv[0] = 'python/driver.py'; import redlockd; \
                  redlockd.Lock._run = lambda lock: None; exec(open('python/driver.py').read().replace('__file__', \"'python/driver.py'\"))";
    let run = Command::new("python3")
        .args(["conformance.py", "--service", env!("CARGO_BIN_EXE_redlockd"), "--only", "holds_and_excludes"])
        .args(["python3", "-c", driver])
        .current_dir(&clients)
        .output()
        .expect("python3 runs");
    let printed = String::from_utf8_lossy(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{printed}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(printed.contains("FAILED  holds_and_excludes"), "{printed}");
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
