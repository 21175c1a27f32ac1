//! One hostile node of three: random changes of its replies, replies of others, floods. The two honest ones decide: another
//! caller acquires, extends and releases, and nobody gets what it holds.

use redlockd::redlock::random::Entropy;

use super::super::hostile_redis::{with_liar, with_numbers, with_views};
use super::{AT_ONCE, Stage, assert_sound, mutated};
use crate::support::client::{Answer, Client};
use crate::support::poll;
use crate::support::seeded::Seeded;

const REPLIES: [&[u8]; 8] = [
    b"+OK\r\n",
    b"-LOADING Redis is loading\r\n",
    b"-MOVED 1 127.0.0.1:1\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b":9223372036854775807\r\n",
    b"*3\r\n$1\r\nG\r\n:1\r\n:9007199254740991\r\n",
    b">2\r\n$7\r\nmessage\r\n$3\r\nx\r\n\r\n",
];
/// Bytes of one flood.
const FLOOD: usize = 4 << 20;

/// A view of its own: a higher number, other processes, other addresses.
fn view(random: &Seeded, view: &str) -> String {
    let (id, roster) = view.split_at(32);
    let number = if random.percent(10) { u64::MAX } else { random.below(1 << 20) };
    let id = if random.percent(70) { format!("{number:016x}{:016x}", random.bits()) } else { id.to_owned() };
    let lines = roster.split('\n').skip(1).map(|line| match random.below(6) {
        0 => line.replacen(" 0", " 1", 1),
        1 => format!("{line} 127.0.0.1:1"),
        2 => format!("{line}x"),
        _ => line.to_owned(),
    });
    lines.filter(|_| random.percent(95)).fold(id, |text, line| format!("{text}\n{line}"))
}

fn lie(random: &Seeded, honest: &[u8]) -> Vec<u8> {
    match random.below(15) {
        0..6 => honest.to_vec(),
        6 => mutated(random, honest, 4),
        7 => random.pick(&REPLIES).to_vec(),
        8 => with_numbers(honest, random.pick::<&str>(&["0", "-1", "1", "9007199254740991", "1795356509344609"])),
        9 => honest.repeat(2),
        12.. => with_views(honest, |text| view(random, text)),
        10 => b"*1\r\n$1000000\r\n".iter().copied().chain(std::iter::repeat_n(b'x', FLOOD)).collect(),
        _ => Vec::new(),
    }
}

/// Holds a lock for a moment: nobody else gets it meanwhile.
pub(super) async fn exclusive(client: &Client, random: &Seeded) -> String {
    let name = format!("mine/{}", random.bits());
    // Longer than the rest takes on a machine that is busy otherwise.
    let lease = client.acquire(&name, &[("ttl", "4m")]).await;
    if lease.status == 503 {
        // Also a quorum of honest nodes may be late on a busy machine.
        return lease.slug();
    }
    let lease = lease.expect_status(201);
    let second = client.acquire(&name, &[]).await;
    assert!(matches!(second.status, 423 | 503), "{second:?}");
    let extended = client.extend(&name, &lease.token(), &[]).await;
    assert!(matches!(extended.status, 200 | 503), "{extended:?}");
    let seen = client.inspect(&name).await;
    let holder = |seen: &Answer| seen.json()["holders"][0]["token_id"].clone();
    // Where an honest node is late, the word of the hostile one stands against that of the other.
    let is_unknown = seen.status == 503 || seen.json()["state"] == "unknown";
    assert!(is_unknown || holder(&seen) == lease.json()["token_id"], "{lease:?}, {seen:?}");
    let released = client.release(&name, &lease.token()).await;
    assert!(matches!(released.status, 204 | 503), "{released:?}");
    // A node that had counted further may raise the fence, as docs/safety.md says.
    match extended.json()["fence"].as_u64() {
        None => "held, and not extended",
        Some(fence) if fence > lease.fence() => "held, and the fence was raised",
        Some(fence) if fence < lease.fence() => "held, and the fence was lowered",
        Some(_) => "held",
    }
    .to_owned()
}

/// How many nodes vote.
pub(super) async fn votes(client: &Client) -> String {
    format!("{} of 3 vote", client.get("/nodes").await.expect_status(200).json()["quorum"]["granted"])
}

/// A client without a time-out, since the bound of an attack is that of all roles. The service may close a connection that is idle
/// just as it is used again, so that each request has its own.
pub(super) fn patient(client: &Client) -> Client {
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client");
    Client::with(client.base(), http)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_node() {
    let (_cluster, liar, service) = with_liar().await;
    poll::until("all vote", || async { (votes(service.client()).await == "3 of 3 vote").then_some(()) }).await;
    let stage = Stage::of(&patient(service.client()), service.pid()).await;
    let random = Seeded::new(super::number("REDLOCKD_ATTACK_SEED").unwrap_or(1), u64::MAX >> 32);
    liar.set(move |bytes| lie(&random, bytes));
    let client = &stage.client;
    stage
        .play("node", |random: Seeded| async move {
            if random.below(AT_ONCE) == 0 { votes(client).await } else { exclusive(client, &random).await }
        })
        .await;
    assert_sound("node", &service);
}
