//! The clients in `clients/` and the Rust client against `clients/conformance.py`: real nodes and instances that are
//! frozen, killed and restarted under them.
#![expect(clippy::print_stderr, reason = "a skipped test says so")]

use std::path::Path;
use std::process::Command;

#[path = "../../examples/conformance_driver.rs"]
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
    assert!(printed.contains("9 passed, 0 failed"), "{driver:?} ran not all scenarios:\n{printed}");
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
