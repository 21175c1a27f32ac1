//! A future that is polled only once it was woken. hyper polls the answer to a request whenever the connection's task runs: also
//! because the request's own body was read.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Passes wake-ups on to the task.
struct Wakes {
    is_woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// A future that is polled at first, and then once for each wake-up. Cancel: as the future.
pub(super) struct WokenFuture<F> {
    future: F,
    wakes: Arc<Wakes>,
    waker: Waker,
}

impl<F: Future + Unpin> WokenFuture<F> {
    pub(super) fn new(future: F) -> Self {
        let wakes = Arc::new(Wakes { is_woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { future, waker: Arc::clone(&wakes).into(), wakes }
    }
}

impl<F: Future + Unpin> Future for WokenFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, wakes, waker } = self.get_mut();
        // Before the flag is read: a wake-up in between reaches the task.
        wakes.task.register(cx.waker());
        if !wakes.is_woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        Pin::new(future).poll(&mut Context::from_waker(waker))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_future_is_polled_at_first_and_for_each_wake_up_which_wakes_the_latest_task() {
        let polls = AtomicUsize::new(0);
        let mut future = WokenFuture::new(poll_fn(|_| match polls.fetch_add(1, Ordering::Relaxed) {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }));
        let inner = future.waker.clone();
        let tasks = [Arc::new(Count::default()), Arc::new(Count::default())];
        let mut poll = |task: &Arc<Count>| {
            let waker = Waker::from(Arc::clone(task));
            Pin::new(&mut future).poll(&mut Context::from_waker(&waker))
        };
        assert!(poll(&tasks[0]).is_pending() && poll(&tasks[1]).is_pending());
        assert_eq!(polls.load(Ordering::Relaxed), 1, "nothing has woken it");
        inner.wake();
        assert_eq!([&tasks[0], &tasks[1]].map(|task| task.0.load(Ordering::Relaxed)), [0, 1]);
        assert!(poll(&tasks[0]).is_ready());
    }
}
