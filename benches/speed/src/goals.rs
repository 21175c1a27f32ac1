//! The goals of a run beside what was measured: the list that each command ends with. A goal is checked against the median
//! of the rounds; the range stands beside it.

use crate::stats::Spread;

/// The goals of one command.
#[derive(Debug, Default)]
pub struct Goals(Vec<Goal>);

#[derive(Debug)]
struct Goal {
    what: String,
    bound: Bound,
    unit: &'static str,
    measured: Spread,
    rounds: usize,
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Goals {
    /// The median is to be at least this.
    pub fn at_least(&mut self, what: &str, bound: f64, unit: &'static str, values: Vec<f64>) {
        self.add(what, Bound::AtLeast(bound), unit, values);
    }

    /// The median is to be at most this.
    pub fn at_most(&mut self, what: &str, bound: f64, unit: &'static str, values: Vec<f64>) {
        self.add(what, Bound::AtMost(bound), unit, values);
    }

    fn add(&mut self, what: &str, bound: Bound, unit: &'static str, values: Vec<f64>) {
        let rounds = values.len();
        self.0.push(Goal { what: what.to_owned(), bound, unit, measured: Spread::of(values), rounds });
    }

    /// Prints the list.
    pub fn print(&self) {
        println!("\n| goal | | measured: median (least to most), rounds | met? |\n|---|---|---|---|");
        for Goal { what, bound, unit, measured, rounds } in &self.0 {
            let (sign, value) = match bound {
                Bound::AtLeast(value) => ("≥", value),
                Bound::AtMost(value) => ("≤", value),
            };
            let decimals = if measured.most.abs() >= 100.0 { 0 } else { 2 };
            let met = if bound.is_met(measured.median) { "yes" } else { "**no**" };
            println!("| {what} | {sign} {value}{unit} | {}{unit}, {rounds} | {met} |", measured.text(decimals));
        }
    }
}

impl Bound {
    /// What is not a number meets nothing.
    fn is_met(self, median: f64) -> bool {
        match self {
            Self::AtLeast(bound) => median >= bound,
            Self::AtMost(bound) => median <= bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Bound;

    #[test]
    fn a_goal_is_met_by_a_figure_only() {
        assert!(Bound::AtLeast(0.6).is_met(0.6) && !Bound::AtLeast(0.6).is_met(0.59));
        assert!(Bound::AtMost(2.0).is_met(2.0) && !Bound::AtMost(2.0).is_met(2.01));
        assert!(!Bound::AtLeast(0.0).is_met(f64::NAN) && !Bound::AtMost(9.0).is_met(f64::NAN));
    }
}
