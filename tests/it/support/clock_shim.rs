//! Steps a clock of one process that a test starts: a library for `LD_PRELOAD`, and the file that says by how much.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A library and its file, removed when dropped.
pub struct ClockShim(TempDir);

impl ClockShim {
    /// The wall clock of a program that reads it by libc, as Redis does.
    pub fn of_libc() -> Self {
        Self::compiled("tests/chaos/clockshim.c", &[])
    }

    /// That of one that reads it without libc, as the service does.
    pub fn of_system_calls() -> Self {
        Self::compiled("clients/suspend.c", &["-DTRAPPED=CLOCK_REALTIME"])
    }

    /// The clock that runs during a suspend; timers go on as if there had been none.
    pub fn of_suspend() -> Self {
        Self::compiled("clients/suspend.c", &[])
    }

    fn compiled(source: &str, options: &[&str]) -> Self {
        let shim = Self(tempfile::tempdir().expect("a directory"));
        shim.step(0);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(shim.library()).args(options).arg(source);
        let done = compiler.output().expect("a C compiler");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        shim
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("shim.so")
    }

    fn offset(&self) -> PathBuf {
        self.0.path().join("offset")
    }

    /// The environment of the process.
    pub fn env(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.library()), ("CLOCKSHIM", self.offset())]
    }

    /// From now on its clock is ahead by this. The process has mapped the file, so it is written in place.
    pub fn step(&self, ms: i64) {
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(self.offset());
        std::os::unix::fs::FileExt::write_all_at(&file.expect("writable"), &ms.to_ne_bytes(), 0).expect("writable");
    }
}
