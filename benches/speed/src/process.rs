//! Processor time and memory of processes, as the kernel counts them.

use std::time::Instant;

use crate::Failure;
use crate::stats::{Cpu, Run};

/// The processes that have a part in a run.
#[derive(Debug, Clone)]
pub struct Parties {
    /// The subject, where it is a process of its own.
    pub subject: Option<u32>,
    /// The nodes.
    pub nodes: Vec<u32>,
}

impl Parties {
    /// The same run, with what its cycles cost each party.
    ///
    /// Errors: those of the run.
    pub async fn watch(&self, run: impl Future<Output = Result<Run, Failure>>) -> Result<Run, Failure> {
        let (before, busy, begun) = (self.spent()?, busy_us()?, Instant::now());
        let mut run = run.await?;
        let (after, cycles) = (self.spent()?, run.cycles().max(1) as f64);
        let other_cores = (busy_us()? - busy) - (after.sum() - before.sum());
        run.other_cores = other_cores / begun.elapsed().as_secs_f64() / 1e6;
        let part = |of: fn(&Cpu) -> f64| (of(&after) - of(&before)) / cycles;
        run.cpu = Cpu { subject: part(|c| c.subject), nodes: part(|c| c.nodes), load: part(|c| c.load) };
        Ok(run)
    }

    fn spent(&self) -> Result<Cpu, Failure> {
        let nodes: Result<Vec<f64>, Failure> = self.nodes.iter().map(|pid| cpu_us(*pid)).collect();
        let subject = self.subject.map_or(Ok(0.0), cpu_us)?;
        Ok(Cpu { subject, nodes: nodes?.iter().sum(), load: cpu_us(std::process::id())? })
    }
}

/// Time that all of the machine's processors were busy so far, microseconds, counted in hundredths of a
/// second; also what the machine below took from them.
fn busy_us() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().ok_or("no processors")?;
    let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    Ok((ticks.iter().sum::<f64>() - ticks.iter().skip(3).take(2).sum::<f64>()) * 10_000.0)
}

/// CPU time of a process so far, microseconds. The scheduler counts it in nanoseconds for each thread;
/// where it does not, the kernel's hundredths of a second have to do.
///
/// Errors: where there is no such process.
pub fn cpu_us(pid: u32) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ended meanwhile did next to nothing: all of these programs keep theirs.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        sum += text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1_000.0;
    }
    if sum > 0.0 {
        return Ok(sum);
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(") ").ok_or("no such process")?.1;
    let ticks: Vec<f64> = after_name.split(' ').skip(11).take(2).filter_map(|n| n.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() * 10_000.0)
}

/// Resident memory of a process, bytes.
///
/// Errors: where there is no such process.
pub fn resident(pid: u32) -> Result<f64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? * 1_024.0)
}
