//! The graph of waits as a drawing: waiters on the left, the resources that they wait for on the arrows, holders on the right.

use std::collections::HashMap;

use super::format;
use crate::manager::overview::{ListedWaiter, Overview};

/// Maximum number of resources that are drawn: those with the most waiters.
const RESOURCES_MAX: usize = 12;
/// Maximum number of owners that a box names.
const OWNERS_NAMED: usize = 2;
/// Maximum number of holders in a row that wait for the next one; longer chains are drawn in the last column.
const DEPTH_MAX: usize = 3;
/// Width of the drawing. Units: of the SVG's view box.
pub(crate) const WIDTH: usize = 960;
/// Distance between two rows.
const ROW: usize = 34;
/// Space above the first row, for the name of an arrow.
const TOP: usize = 6;
/// Height of a name above its arrow.
const LABEL: usize = 16;
/// The horizontal extent of an arrow's bend.
const BEND: usize = 28;
pub(crate) const BOX: usize = 24;

/// Owners that wait, or an owner that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GraphBox {
    pub x: usize,
    pub y: usize,
    /// The owners in the box, for people.
    pub text: String,
    /// Whether an owner in the box waits.
    pub waits: bool,
}

/// An arrow from waiters to the holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GraphArrow {
    /// The line, as a path.
    pub path: String,
    /// Left edge of the name.
    pub x: usize,
    /// Upper edge of the name.
    pub y: usize,
    /// The resources that the arrow's source box waits for; only the first arrow of a box has this.
    pub resource: String,
}

/// The waiters of a resource in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GraphRow {
    pub waiters: String,
    /// Number of their waiting requests.
    pub waiting: usize,
    /// Number of tickets among them.
    pub tickets: usize,
    pub resource: String,
    pub holder: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WaitGraph {
    pub boxes: Vec<GraphBox>,
    pub arrows: Vec<GraphArrow>,
    pub rows: Vec<GraphRow>,
    /// Width of each box.
    pub box_width: usize,
    /// Width of the space between two columns, for names.
    pub gap: usize,
    /// Height of the drawing.
    pub height: usize,
    /// Resources that are not drawn.
    pub hidden: usize,
}

/// A box without a position.
struct Party {
    text: String,
    waits: bool,
    /// Boxes that this box waits for, each with the resource.
    targets: Vec<(usize, String)>,
}

impl Party {
    /// The names that this box waits for.
    fn resources(&self) -> String {
        self.targets.iter().map(|(_, resource)| resource.as_str()).collect::<Vec<_>>().join(", ")
    }
}

#[derive(Default)]
struct Parties {
    all: Vec<Party>,
    by_owner: HashMap<String, usize>,
}

impl Parties {
    fn add(&mut self, text: String) -> usize {
        self.all.push(Party { text, waits: false, targets: Vec::new() });
        self.all.len() - 1
    }

    /// The box of a named owner; each such owner has one.
    fn owner(&mut self, owner: &str) -> usize {
        if let Some(index) = self.by_owner.get(owner) {
            return *index;
        }
        let index = self.add(format::visible(owner));
        self.by_owner.insert(owner.to_owned(), index);
        index
    }

    /// The number of waits behind each box, at most [`DEPTH_MAX`]. If owners wait for each other, the wait that closes the cycle
    /// does not count.
    fn depths(&self) -> Vec<usize> {
        let mut depths = vec![None; self.all.len()];
        for index in 0..self.all.len() {
            self.depth(index, &mut depths, &mut Vec::new());
        }
        depths.into_iter().map(|depth| depth.unwrap_or(0).min(DEPTH_MAX)).collect()
    }

    /// `open`: the boxes on the path to this one, at most as many as there are resources.
    fn depth(&self, index: usize, depths: &mut [Option<usize>], open: &mut Vec<usize>) -> usize {
        if let Some(depth) = depths[index] {
            return depth;
        }
        open.push(index);
        let mut deepest = 0;
        for (target, _) in &self.all[index].targets {
            if !open.contains(target) {
                deepest = deepest.max(self.depth(*target, depths, open) + 1);
            }
        }
        open.pop();
        depths[index] = Some(deepest);
        deepest
    }
}

/// `ann, bob and 3 more`.
fn named(owners: &[&str]) -> String {
    let shown = owners.iter().take(OWNERS_NAMED);
    let shown = shown.map(|owner| if owner.is_empty() { "no owner".to_owned() } else { format::visible(owner) });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match owners.len().saturating_sub(OWNERS_NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl WaitGraph {
    /// `waiters`: oldest first; only those that the reader may see.
    pub(crate) fn new(overview: &Overview, waiters: &[ListedWaiter]) -> Self {
        let mut queues: Vec<(&str, Vec<&str>, Option<String>)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for waiter in waiters {
            let resource = waiter.resource.as_str();
            let place = *places.entry(resource).or_insert_with(|| {
                let lease = overview.leases.leases.get(&waiter.resource).filter(|lease| lease.left > overview.age);
                queues.push((resource, Vec::new(), lease.map(|lease| lease.labels().owner.to_string())));
                queues.len() - 1
            });
            queues[place].1.push(&waiter.owner);
        }
        queues.sort_by(|(a, x, _), (b, y, _)| y.len().cmp(&x.len()).then_with(|| a.cmp(b)));
        let hidden = queues.len().saturating_sub(RESOURCES_MAX);
        queues.truncate(RESOURCES_MAX);
        let row = |(resource, waiters, holder): &(&str, Vec<&str>, Option<String>)| GraphRow {
            waiters: named(waiters),
            waiting: waiters.len(),
            tickets: 0,
            resource: (*resource).to_owned(),
            holder: match holder.as_deref() {
                None => "no lease listed".to_owned(),
                Some("") => "no owner".to_owned(),
                Some(owner) => format::visible(owner),
            },
        };
        let mut rows: Vec<GraphRow> = queues.iter().map(row).collect();
        for row in &mut rows {
            row.tickets = waiters.iter().filter(|one| one.is_ticket && one.resource.as_str() == row.resource).count();
        }
        let mut parties = Parties::default();
        for ((_, _, holder), row) in queues.iter().zip(&rows) {
            match holder.as_deref() {
                Some(owner) if !owner.is_empty() => _ = parties.owner(owner),
                _ => _ = parties.add(row.holder.clone()),
            }
        }
        Self { hidden, rows, ..draw(&connected(parties, &queues)) }
    }
}

/// Adds the waiters: a waiter that also holds a waited-for resource already has a box; all others of a queue share one.
fn connected(mut parties: Parties, queues: &[(&str, Vec<&str>, Option<String>)]) -> Parties {
    let has_name = |i: &usize| parties.by_owner.values().any(|of| of == i);
    let mut nameless = (0..parties.all.len()).filter(|i| !has_name(i)).collect::<Vec<_>>().into_iter();
    for (resource, waiters, holder) in queues {
        let owner = holder.as_deref().filter(|owner| !owner.is_empty());
        let target = match owner {
            Some(owner) => parties.owner(owner),
            None => nameless.next().unwrap_or(0),
        };
        let (holders, others): (Vec<&str>, Vec<&str>) =
            waiters.iter().partition(|owner| !owner.is_empty() && parties.by_owner.contains_key(**owner));
        let mut waiting: Vec<usize> = holders.iter().map(|owner| parties.owner(owner)).collect();
        waiting.dedup();
        if !others.is_empty() {
            waiting.push(parties.add(named(&others)));
        }
        for index in waiting {
            let party = &mut parties.all[index];
            party.waits = true;
            party.targets.push((target, (*resource).to_owned()));
        }
    }
    parties
}

fn draw(parties: &Parties) -> WaitGraph {
    let depths = parties.depths();
    let deepest = depths.iter().copied().max().unwrap_or(0).max(1);
    let box_width = [300, 300, 200, 140][deepest.min(DEPTH_MAX)];
    let pitch = (WIDTH - box_width) / deepest;
    let mut used = vec![0; deepest + 1];
    let mut boxes: Vec<GraphBox> = Vec::new();
    for (party, depth) in parties.all.iter().zip(&depths) {
        let (x, y) = ((deepest - depth) * pitch, used[*depth] * ROW + TOP);
        used[*depth] += 1;
        boxes.push(GraphBox { x, y, text: party.text.clone(), waits: party.waits });
    }
    let arrow = |from: &GraphBox, to: &GraphBox, resource: String| {
        let (x1, y1, y2) = (from.x + box_width, from.y + BOX / 2, to.y + BOX / 2);
        let path = if from.x < to.x {
            format!("M{x1} {y1}L{} {y2}m-6 -4l6 4l-6 4", to.x)
        } else {
            // Owners that wait for each other: the arrow goes around the right-hand side.
            let (x2, bend) = (to.x + box_width, x1 + BEND);
            format!("M{x1} {y1}C{bend} {y1} {bend} {y2} {x2} {y2}m6 -4l-6 4l6 4")
        };
        GraphArrow { path, x: x1 + 6, y: y1 - LABEL, resource }
    };
    let arrows = parties.all.iter().zip(&boxes).flat_map(|(party, from)| {
        // Arrows from one box begin at the same place: the first has the label for all of them.
        let names = |i| if i == 0 { party.resources() } else { String::new() };
        let targets = party.targets.iter().enumerate();
        targets.map(|(i, (target, _))| arrow(from, &boxes[*target], names(i))).collect::<Vec<_>>()
    });
    let arrows = arrows.collect();
    let height = used.iter().max().copied().unwrap_or(0) * ROW;
    WaitGraph { boxes, arrows, box_width, gap: (pitch - box_width).saturating_sub(12), height, ..WaitGraph::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::locks::tests::four;
    use std::time::Duration;

    fn waiter(resource: &str, owner: &str) -> ListedWaiter {
        ListedWaiter {
            resource: crate::types::ResourceName::parse(resource).expect("valid"),
            instance: crate::protocol::InstanceName::from_random(1),
            position: 1,
            owner: owner.into(),
            waiting: Duration::from_secs(1),
            left: None,
            note: "".into(),
            is_ticket: false,
        }
    }

    fn graph(waiters: &[(&str, &str)]) -> WaitGraph {
        let waiters: Vec<_> = waiters.iter().map(|(resource, owner)| waiter(resource, owner)).collect();
        WaitGraph::new(&four(), &waiters)
    }

    fn texts(graph: &WaitGraph) -> Vec<(usize, &str, bool)> {
        graph.boxes.iter().map(|drawn| (drawn.x, drawn.text.as_str(), drawn.waits)).collect()
    }

    #[test]
    fn waiters_point_at_the_holder_and_are_summed_up() {
        let graph = graph(&[("deploy/prod", "a"), ("deploy/prod", ""), ("deploy/prod", "c"), ("next", "d")]);
        assert_eq!(
            texts(&graph),
            [
                (660, "ci-4711", false),
                (660, "no lease listed", false),
                (0, "a, no owner and 1 more", true),
                (0, "d", true)
            ]
        );
        let arrows: Vec<_> = graph.arrows.iter().map(|arrow| (arrow.resource.as_str(), arrow.path.as_str())).collect();
        assert_eq!(
            arrows,
            [("deploy/prod", "M300 18L660 18m-6 -4l6 4l-6 4"), ("next", "M300 52L660 52m-6 -4l6 4l-6 4")]
        );
        let row = &graph.rows[0];
        assert_eq!((row.waiting, row.waiters.as_str(), row.holder.as_str()), (3, "a, no owner and 1 more", "ci-4711"));
        assert_eq!((graph.height, graph.hidden), (2 * ROW, 0));
    }

    #[test]
    fn a_holder_that_waits_stands_between_and_a_cycle_ends() {
        let chain = graph(&[("deploy/prod", "CI-12"), ("deploy/test", "z")]);
        assert_eq!(texts(&chain), [(760, "ci-4711", false), (380, "CI-12", true), (0, "z", true)]);
        let cycle = graph(&[("deploy/prod", "CI-12"), ("deploy/test", "ci-4711")]);
        assert_eq!((cycle.boxes.len(), cycle.arrows.len()), (2, 2));
        assert_ne!(cycle.boxes[0].x, cycle.boxes[1].x, "only the wait that closes the cycle goes back: {cycle:?}");
        assert!(cycle.boxes.iter().all(|drawn| drawn.x + cycle.box_width <= WIDTH), "{cycle:?}");
        assert!(WaitGraph::new(&four(), &[]).rows.is_empty());
    }

    #[test]
    fn only_the_queues_with_the_most_waiters_are_drawn() {
        let names: Vec<String> = (0..RESOURCES_MAX + 5).map(|i| format!("r/{i}")).collect();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "o")).chain([("r/16", "p")]).collect();
        let drawn = graph(&all);
        assert_eq!((drawn.rows.len(), drawn.hidden, drawn.rows[0].resource.as_str()), (RESOURCES_MAX, 5, "r/16"));
    }
}
