//! What the scripts cost a node, beside what a plain Redlock would: run by hand with
//! `cargo test --test it cost -- --ignored --nocapture`.

use std::fmt::Write;

use deadpool_redis::redis::{Client, Script, Value, cmd};
use futures_util::{StreamExt, stream};

use redlockd::protocol::Request;

use super::{Rig, Who};
use crate::support::redis_server::RedisServer;

const CALLS: usize = 20_000;
/// Under way at once: a node under load, its caches warm.
const AT_ONCE: usize = 64;

/// What is measured, and the request of a holder.
type Priced = (&'static str, fn(&Who) -> Request);

/// Microseconds per call since the last reset, as the server counts them.
async fn cost_of(server: &RedisServer, command: &str) -> f64 {
    let stats: String = server.ask(&["INFO", "commandstats"]).await;
    let head = format!("cmdstat_{command}:");
    let line = stats.lines().find_map(|l| l.strip_prefix(&head)).expect("called");
    let cost = line.split(',').find_map(|part| part.strip_prefix("usec_per_call=")).expect("there");
    server.ask::<()>(&["CONFIG", "RESETSTAT"]).await;
    cost.trim().parse().expect("a number")
}

#[tokio::test]
#[ignore = "measures, and judges nothing"]
#[expect(clippy::print_stdout, reason = "its output is its purpose")]
async fn cost() {
    let server = RedisServer::start().await;
    let rig = Rig::voting(&server).await;
    let client = Client::open(server.unix_url()).expect("valid");
    let mut plain = client.get_multiplexed_async_connection().await.expect("up");
    let holders: Vec<Who> = (0..CALLS).map(|i| Who::wanting(&format!("deploy/service-{i}"))).collect();
    let mut table = String::new();
    for round in 0..2 {
        table.clear();
        server.ask::<()>(&["CONFIG", "RESETSTAT"]).await;
        let sets = holders.iter().map(|who| {
            let mut plain = plain.clone();
            let mut set = cmd("SET");
            set.arg(format!("plain-{}", who.resource)).arg(who.token.as_str()).arg("NX").arg("PX").arg(31_000);
            async move { set.query_async::<Value>(&mut plain).await.expect("up") }
        });
        stream::iter(sets).buffer_unordered(AT_ONCE).for_each(async |_| ()).await;
        writeln!(table, "{:<24}{:>6.2}", "plain SET NX PX", cost_of(&server, "set").await).expect("a String");
        let delete = Script::new(
            "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end",
        );
        delete.load_async(&mut plain).await.expect("up");
        let deletes = holders.iter().map(|who| {
            let (mut plain, mut call) = (plain.clone(), delete.key(format!("plain-{}", who.resource)));
            call.arg(who.token.as_str());
            async move { call.invoke_async::<i64>(&mut plain).await.expect("up") }
        });
        stream::iter(deletes).buffer_unordered(AT_ONCE).for_each(async |_| ()).await;
        writeln!(table, "{:<24}{:>6.2}", "plain compare-and-delete", cost_of(&server, "evalsha").await)
            .expect("a String");
        let requests: [Priced; 6] = [
            ("acquire, free", |w| w.acquire(30_000)),
            ("acquire, held", |w| Who::wanting(w.resource.as_str()).acquire(30_000)),
            ("extend", |w| w.extend(None)),
            ("inspect", Who::inspect),
            ("cancel, of none", |w| w.again().cancel()),
            ("release", Who::release),
        ];
        for (what, request) in requests {
            let asks = holders.iter().map(|who| if round == 0 { who.clone() } else { renamed(who) });
            let asks = stream::iter(asks.map(|who| request(&who))).map(|request| rig.reply(request));
            asks.buffer_unordered(AT_ONCE).for_each(async |_| ()).await;
            writeln!(table, "{what:<24}{:>6.2}", cost_of(&server, "evalsha").await).expect("a String");
        }
    }
    println!("microseconds per call on the server, {CALLS} calls each\n{table}");
}

/// The second round's holders: other tokens, since the first round's were released.
fn renamed(who: &Who) -> Who {
    let turned: String = who.token.as_str().chars().rev().collect();
    Who { token: redlockd::types::TokenHash::parse(&turned).expect("hex"), ..who.clone() }
}
