//! `make bench`: cycles per second and latencies of the service and its yardsticks. Each round starts servers of its
//! own, so that no round inherits state, and every second round measures its subjects in reverse order.

use std::collections::BTreeMap;
use std::time::Duration;

use redlockd::nodes::embedded::EmbeddedNode;

use crate::floor::Script;
use crate::goals::Goals;
use crate::in_process::{Patience, Within};
use crate::peers::{LockManager, Yardstick};
use crate::process::Parties;
use crate::servers::{Nodes, Service, Start};
use crate::stats::{Run, Spread, print_other_load};
use crate::workers::Until;
use crate::{Asked, Failure, contended, floor, frozen, http, node_cost, peers};

/// Connections, or callers at once.
const CONNECTION_COUNTS: [usize; 3] = [1, 16, 64];
/// What each subject does before a round is measured.
const WARM_UP: Duration = Duration::from_millis(200);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    PlainFloor,
    ScriptFloor,
    Service,
    Least,
    Rslock,
    BareAxum,
    Embedded,
    Within,
}

const SUBJECTS: [Subject; 8] = [
    Subject::PlainFloor,
    Subject::ScriptFloor,
    Subject::Service,
    Subject::Least,
    Subject::Rslock,
    Subject::BareAxum,
    Subject::Embedded,
    Subject::Within,
];

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::PlainFloor => "plain floor",
            Self::ScriptFloor => "script floor",
            Self::Service => "redlockd",
            Self::Least => "least service",
            Self::Rslock => "rslock, in process",
            Self::BareAxum => "bare axum",
            Self::Embedded => "redlockd, embedded",
            Self::Within => "its lock, in process",
        }
    }
}

/// The servers of one round.
pub struct World {
    /// Five masters.
    pub nodes: Nodes,
    /// The service over them.
    pub service: Service,
    embedded: Service,
    bare: Yardstick,
    least: Yardstick,
    within: Within<EmbeddedNode>,
}

impl World {
    /// Starts them.
    ///
    /// Errors: where one of them does not start.
    pub async fn start(asked: &Asked) -> Result<Self, Failure> {
        let start = Start { binary: &asked.binary, under: &[], args: &[] };
        let nodes = Nodes::start().await?;
        let (service, embedded) = (start.over(&nodes).await?, start.embedded().await?);
        let (this, within) = (std::env::current_exe()?, Within::start(Patience::DEFAULT).await?);
        let (bare, least) = (Yardstick::start(&this)?, Yardstick::start_least(&this, &nodes)?);
        Ok(Self { nodes, service, embedded, bare, least, within })
    }

    async fn measure(&self, subject: Subject, connections: usize, length: Duration) -> Result<Run, Failure> {
        let (nodes, until) = (&self.nodes, Until::Passed(length));
        let parties = |subject| Parties { subject, nodes: nodes.pids() };
        let watched = |server: u32| parties(Some(server));
        match subject {
            Subject::PlainFloor => parties(None).watch(floor::plain(&nodes.addresses, connections, until)).await,
            Subject::ScriptFloor => {
                let (fingerprints, requests) =
                    (nodes.fingerprints()?, |number| Script::requests(&format!("script-{number}")));
                let cycles = floor::script(&nodes.addresses, fingerprints, connections, until, requests);
                parties(None).watch(cycles).await
            }
            Subject::Service => self.drive(connections, length).await,
            Subject::Least => {
                let run = http::drive(self.least.address, connections, until, http::cycle);
                watched(self.least.server.pid()).watch(run).await
            }
            Subject::Rslock => {
                parties(None).watch(peers::rslock(&LockManager::new(nodes.urls()), connections, until)).await
            }
            Subject::BareAxum => {
                let run = http::drive(self.bare.address, connections, until, http::cycle);
                watched(self.bare.server.pid()).watch(run).await
            }
            Subject::Embedded => {
                let run = http::drive(self.embedded.address, connections, until, http::cycle);
                watched(self.embedded.server.pid()).watch(run).await
            }
            Subject::Within => parties(None).watch(self.within.cycles(connections, until)).await,
        }
    }

    /// Cycles of the service over the nodes.
    ///
    /// Errors: where nothing can be measured; cycles that fail are counted.
    pub async fn drive(&self, connections: usize, length: Duration) -> Result<Run, Failure> {
        let run = http::drive(self.service.address, connections, Until::Passed(length), http::cycle);
        Parties { subject: Some(self.service.server.pid()), nodes: self.nodes.pids() }.watch(run).await
    }
}

/// Everything, and the list of goals.
///
/// Errors: where a server does not start.
pub async fn run(asked: &Asked) -> Result<(), Failure> {
    let mut all: BTreeMap<(usize, Subject), Vec<Run>> = BTreeMap::new();
    let (mut frozen, mut contended, mut costs) =
        (frozen::Rounds::default(), contended::Rounds::default(), node_cost::OnNode::default());
    for round in 1..=asked.rounds {
        let world = World::start(asked).await?;
        for subject in SUBJECTS {
            world.measure(subject, 16, WARM_UP).await?;
        }
        for connections in CONNECTION_COUNTS {
            eprintln!("round {round} of {}, {connections} at once", asked.rounds);
            let mut order = SUBJECTS;
            if round % 2 == 0 {
                order.reverse();
            }
            for subject in order {
                let run = world.measure(subject, connections, asked.length).await?;
                all.entry((connections, subject)).or_default().push(run);
            }
        }
        contended.measure(&world, asked.length / 2).await?;
        costs.measure(&world.nodes)?;
        frozen.measure(world, round, asked.length).await?;
    }
    table(&all);
    print_other_load(all.values().flatten());
    contended.print();
    costs.print();
    frozen.print();
    let mut goals = Goals::default();
    of_rates(&all, &mut goals);
    contended.add_goals(&mut goals);
    costs.add_goals(&mut goals);
    frozen.add_goals(&mut goals);
    goals.print();
    Ok(())
}

/// In each round, `what` of one subject over that of another.
fn ratios(
    all: &BTreeMap<(usize, Subject), Vec<Run>>,
    connections: usize,
    [one, other]: [Subject; 2],
    what: impl Fn(&Run) -> f64,
) -> Vec<f64> {
    all[&(connections, one)].iter().zip(&all[&(connections, other)]).map(|(a, b)| what(a) / what(b)).collect()
}

fn of_rates(all: &BTreeMap<(usize, Subject), Vec<Run>>, goals: &mut Goals) {
    use Subject::{BareAxum, Embedded, Least, PlainFloor, Rslock, ScriptFloor, Service};
    let rate = |connections, pair| ratios(all, connections, pair, Run::rate);
    goals.at_least("rate at 64 / script floor's", 0.6, "", rate(64, [Service, ScriptFloor]));
    goals.at_least("rate at 64 / plain floor's", 0.15, "", rate(64, [Service, PlainFloor]));
    goals.at_least("rate at 64 / rslock's, in process", 0.42, "", rate(64, [Service, Rslock]));
    let p50 = ratios(all, 1, [Service, PlainFloor], |run| run.percentile(0.5));
    goals.at_most("p50 at 1 / plain floor's", 3.0, "", p50);
    for (floor, name) in [(PlainFloor, "plain"), (ScriptFloor, "script")] {
        let p99 = ratios(all, 16, [Service, floor], |run| run.percentile(0.99));
        goals.at_most(&format!("p99 at 16 / {name} floor's"), 4.0, "", p99);
    }
    goals.at_least("embedded: rate at 64 / bare axum's", 0.6, "", rate(64, [Embedded, BareAxum]));
    for (connections, bound) in [(64, 40.0), (1, 140.0)] {
        let own = all[&(connections, Service)].iter().map(|run| run.cpu.subject).collect();
        goals.at_most(&format!("the service's own CPU per cycle at {connections}"), bound, " µs", own);
    }
    let errors = all.iter().filter(|((_, subject), _)| [Service, Least, Embedded].contains(subject));
    let errors: u64 = errors.flat_map(|(_, runs)| runs).map(|run| run.errors).sum();
    goals.at_most("cycles of the service and of the least service that failed", 0.0, "", vec![errors as f64]);
}

fn table(all: &BTreeMap<(usize, Subject), Vec<Run>>) {
    println!(
        "Medians of the rounds, least to most in brackets. Ratios are of one round each; absolute figures move with the machine.\n"
    );
    println!(
        "| what | at once | cycles/s | of the plain floor | of the script floor | p50 µs | p99 µs | p99.9 µs | longest request ms | errors | CPU µs per cycle: own / nodes / load |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for ((connections, subject), runs) in all {
        let of = |floor| Spread::of(ratios(all, *connections, [*subject, floor], Run::rate)).text(2);
        let median = |what: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(what)).median;
        let errors: u64 = runs.iter().map(|r| r.errors).sum();
        let longest = runs.iter().map(|r| r.longest).max().unwrap_or_default();
        println!(
            "| {} | {connections} | {:.0} | {} | {} | {:.0} | {:.0} | {:.0} | {:.1} | {errors} | {} / {:.1} / {:.1} |",
            subject.name(),
            median(&Run::rate),
            of(Subject::PlainFloor),
            of(Subject::ScriptFloor),
            median(&|run| run.percentile(0.5)),
            median(&|run| run.percentile(0.99)),
            median(&|run| run.percentile(0.999)),
            longest.as_secs_f64() * 1_000.0,
            match median(&|run| run.cpu.subject) {
                0.0 => "–".to_owned(),
                own => format!("{own:.1}"),
            },
            median(&|run| run.cpu.nodes),
            median(&|run| run.cpu.load),
        );
    }
}
