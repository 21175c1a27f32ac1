//! Somebody on the network. Between a caller and a service with TLS: reads what passes, changes it, cuts it off, repeats it
//! and holds it back. The caller gets the service's answer or an error, and nothing readable passes. Between a service and its
//! nodes without TLS: delays, withholds and cuts off what passes to one of three at a time, or changes what passes to one of them,
//! in both directions. Two of three nodes decide, and nobody gets what another one holds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use redlockd::redlock::random::Entropy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::super::hostile_redis::with_liar;
use super::super::tls::{Authority, Secure};
use super::node::{exclusive, patient, votes};
use super::{AT_ONCE, Access, CALM, CALM_LOCK, MEMORY_MAX_MIB, Stage, assert_sound, key, mutated, principals};
use crate::support::chaos_proxy::{FAIR, Flow, Weather};
use crate::support::client::{Client, try_send};
use crate::support::cluster::Cluster;
use crate::support::poll;
use crate::support::seeded::Seeded;
use crate::support::service::SHORT_TIMES;

/// When a caller gives up whose answer was cut off.
const HANGS_UP_AFTER: Duration = Duration::from_secs(5);

/// What must not be readable on the wire.
type Secrets = Arc<Vec<String>>;

/// Forwards one direction, and changes one chunk of it.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, random: Seeded, secrets: Secrets) {
    let mut buffer = vec![0; 16 << 10];
    let changed = random.below(6);
    for chunk in 0.. {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        let text = String::from_utf8_lossy(&buffer[..count]);
        assert!(!secrets.iter().any(|secret| text.contains(secret.as_str())), "it can be read: {text}");
        let bytes = if chunk == changed { mutated(&random, &buffer[..count], 3) } else { buffer[..count].to_vec() };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// A network of its own before the service; its port.
async fn network(service: SocketAddr, random: Seeded, secrets: Secrets, tasks: &mut JoinSet<()>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    tasks.spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(service).await else { return };
            let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
            // Either end closes both.
            tokio::select! {
                () = forward(from_client, to_server, random.clone(), Arc::clone(&secrets)) => {}
                () = forward(from_server, to_client, random.clone(), Arc::clone(&secrets)) => {}
            }
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_on_the_network() {
    let access = Access::with(&principals(&[]));
    let secure = Secure::start(&access, &Authority::new("clients").pem, &[]).await;
    // Bytes that were taken away leave both ends waiting for them.
    let impatient = &|| secure.builder().http1_only().timeout(HANGS_UP_AFTER).build().expect("a client");
    let client = Client::with(&secure.url, secure.builder().build().expect("a client"));
    let stage = Stage::of(&client, secure.pid()).await;
    let secrets: &Secrets = &Arc::new(stage.secrets.clone());
    let service: SocketAddr = secure.url.trim_start_matches("https://").parse().expect("an address");
    stage
        .play("network", |random: Seeded| async move {
            let mut tasks = JoinSet::new();
            let port = network(service, random, Arc::clone(secrets), &mut tasks).await;
            let through = Client::with(&format!("https://127.0.0.1:{port}"), impatient());
            let request = through.request("GET", &format!("/locks/{CALM_LOCK}")).bearer_auth(key(CALM));
            let word = match try_send(request).await {
                Err(_) => "an error".to_owned(),
                // A node was late.
                Ok(answer) if answer.status == 503 => {
                    answer.expect_problem(503, "quorum-unavailable").status.to_string()
                }
                Ok(answer) => {
                    assert_eq!(answer.json()["holders"][0]["fence"].to_string(), secrets[2], "{answer:?}");
                    answer.status.to_string()
                }
            };
            drop(through);
            // A panic in one of them is one of the attack.
            tasks.abort_all();
            while let Some(ended) = tasks.join_next().await {
                assert!(ended.is_ok() || ended.is_err_and(|error| error.is_cancelled()), "it can be read");
            }
            word
        })
        .await;
    let most = secure.memory() >> 20;
    assert!(u64::try_from(most).expect("small") < MEMORY_MAX_MIB, "{most} MiB");
}

/// What the attacker makes of one link.
fn weather(random: &Seeded) -> Weather {
    let delay = Flow::Delay(Duration::from_millis(random.between(1, 400)));
    match random.below(9) {
        0 => Weather { to_node: Flow::Silent, ..FAIR },
        1 => Weather { to_client: Flow::Silent, ..FAIR },
        2 => Weather { to_node: Flow::Hold, ..FAIR },
        3 => Weather { to_client: Flow::Hold, ..FAIR },
        4 => Weather { to_node: delay, ..FAIR },
        5 => Weather { to_client: delay, ..FAIR },
        6 => Weather { passes_close: false, ..FAIR },
        _ => FAIR,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_withholds_what_passes_to_the_nodes() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service_with(&SHORT_TIMES).await;
    over.until_all_vote().await;
    let stage = Stage::of(&patient(over.client()), over.service.pid()).await;
    let (client, proxies, attacked) = (&stage.client, &over.proxies, &Mutex::new(0));
    stage
        .play("network of the nodes", |random: Seeded| async move {
            if random.below(AT_ONCE) > 0 {
                return exclusive(client, &random).await;
            }
            // The former link is let go first: of three nodes, one at a time is out of reach.
            let mut attacked = attacked.lock().await;
            proxies[*attacked].set(FAIR);
            let next = usize::try_from(random.below(3)).expect("small");
            if next != *attacked && !votes(client).await.starts_with('3') {
                return "fair weather".to_owned();
            }
            *attacked = next;
            proxies[next].set(weather(&random));
            if random.percent(20) {
                proxies[next].reset();
            }
            "other weather".to_owned()
        })
        .await;
    assert_sound("network of the nodes", &over.service);
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_changes_what_passes_to_a_node() {
    let (_cluster, liar, service) = with_liar().await;
    poll::until("all vote", || async { (votes(service.client()).await == "3 of 3 vote").then_some(()) }).await;
    let stage = Stage::of(&patient(service.client()), service.pid()).await;
    let changing = |stream: u64| {
        let random = Seeded::new(super::number("REDLOCKD_ATTACK_SEED").unwrap_or(1), u64::MAX >> stream);
        move |bytes: &[u8]| if random.percent(60) { bytes.to_vec() } else { mutated(&random, bytes, 3) }
    };
    liar.set(changing(33));
    liar.set_requests(changing(34));
    let client = &stage.client;
    stage
        .play("network of a node", |random: Seeded| async move {
            if random.below(AT_ONCE) == 0 { votes(client).await } else { exclusive(client, &random).await }
        })
        .await;
    assert_sound("network of a node", &service);
}
