//! The threads that serve requests. Each has a runtime of its own: a connection of a client stays on one thread, and its requests
//! use connections to the nodes of that thread, so that the nodes' answers wake no other thread. (A runtime that moves tasks
//! between threads took 1.6 times the processor time of one thread: `docs/performance.md`.)

use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::sync::Arc;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The number of this thread among those that serve; 0 on the main thread, and on each that serves nothing.
pub(crate) fn current() -> usize {
    CURRENT.get()
}

/// The threads that serve requests: the main thread, which also does all background work, and others. Cheap to clone. The default
/// is the main thread alone.
#[derive(Debug, Clone, Default)]
pub struct WorkerThreads {
    others: Arc<[Handle]>,
}

impl WorkerThreads {
    /// Starts all but the main thread; `count`: all of them, 0 for one per CPU. They end when the guard is dropped, and their tasks
    /// with them.
    ///
    /// Errors: the system has no more threads or file descriptors.
    pub(crate) fn start(count: usize) -> io::Result<(Self, DropGuard)> {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let cpus = || std::thread::available_parallelism().map_or(1, NonZero::get);
        let count = if count == 0 { cpus() } else { count };
        let others: io::Result<Arc<[Handle]>> = (1..count).map(|number| start_thread(number, stop.clone())).collect();
        Ok((Self { others: others? }, guard))
    }

    /// How many there are, with the main thread.
    pub(crate) fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Until the guard is dropped, sockets, timers and tasks that this thread creates belong to the thread with this number; the
    /// main thread's are those of the caller's runtime.
    pub(crate) fn enter(&self, number: usize) -> Option<EnterGuard<'_>> {
        Some(number.checked_sub(1).and_then(|other| self.others.get(other))?.enter())
    }

    /// Does this work on the thread with this number. Cancel: the work is dropped, there.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        number: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let mut task = JoinSet::new();
        {
            let _runtime = self.enter(number);
            task.spawn(work);
        }
        task.join_next().await?.ok()
    }
}

fn start_thread(number: usize, stop: CancellationToken) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let work = move || {
        CURRENT.set(number);
        runtime.block_on(stop.cancelled());
        // Blocking threads had their time to finish.
        runtime.shutdown_background();
    };
    std::thread::Builder::new().name(format!("worker-{number}")).spawn(work)?;
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_on_its_thread_and_ends_with_the_threads() {
        let (threads, guard) = WorkerThreads::start(3).expect("threads");
        assert_eq!((threads.count(), WorkerThreads::default().count()), (3, 1));
        for number in 0..3 {
            assert_eq!(threads.run(number, async { current() }).await, Some(number));
        }
        let never = threads.run(2, std::future::pending::<()>());
        drop(guard);
        assert_eq!(never.await, None);
        assert!(WorkerThreads::start(0).expect("threads").0.count() >= 1);
    }

    #[tokio::test]
    async fn dropped_work_ends() {
        let (threads, _guard) = WorkerThreads::start(2).expect("threads");
        let (caller, ended) = tokio::sync::oneshot::channel::<()>();
        let (begun, is_begun) = tokio::sync::oneshot::channel();
        let mut work = Box::pin(threads.run(1, async move {
            let _caller = caller;
            let _ = begun.send(());
            std::future::pending::<()>().await;
        }));
        tokio::select! {
            _ = &mut work => unreachable!("it is pending for ever"),
            begun = is_begun => begun.expect("it began"),
        }
        drop(work);
        assert!(ended.await.is_err());
    }
}
