//! The clock of a simulated instance: the world's time at the instance's own rate. Sleeps end a little
//! late, and not while the instance is stopped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::world::{Event, MS, Shared, lock};
use crate::redlock::clock::{BootTime, Clock};

/// The clocks of one instance.
#[derive(Clone)]
pub(super) struct SimClock {
    pub(super) world: Shared,
    pub(super) inst: usize,
}

impl Clock for SimClock {
    fn now(&self) -> BootTime {
        let mut world = lock(&self.world);
        world.stall(self.inst);
        let local = world.local(self.inst);
        world.boot(self.inst, local)
    }

    fn wall_ms(&self) -> u64 {
        lock(&self.world).wall_ms(self.inst)
    }

    fn sleep_until(&self, at: BootTime) -> impl Future<Output = ()> + Send + 'static {
        Sleep { clock: self.clone(), at, id: None }
    }
}

struct Sleep {
    clock: SimClock,
    at: BootTime,
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (inst, at) = (self.clock.inst, self.at);
        let shared = Arc::clone(&self.clock.world);
        let mut world = lock(&shared);
        let local = world.local(inst);
        let is_due = world.boot(inst, local) >= at;
        let set = self.id.and_then(|id| world.insts[inst].timers.get_mut(&id));
        match set {
            Some(waker) if !is_due => {
                waker.clone_from(cx.waker());
                return Poll::Pending;
            }
            _ if is_due => return Poll::Ready(()),
            _ => {}
        }
        let id = world.id();
        let late = world.net_rng.below(MS);
        let (due, life) = (world.when(inst, at) + late, world.insts[inst].life);
        world.insts[inst].timers.insert(id, cx.waker().clone());
        world.at(due, Event::Timer { inst, life, id });
        drop(world);
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let waker = lock(&self.clock.world).insts[self.clock.inst].timers.remove(&id);
            drop(waker); // outside of the lock: it may be the last one of its task
        }
    }
}
