//! Simulated machines.

use super::{row, side};
use crate::compare::side::Side;
use crate::row::Row;
use crate::runner::SplitMix64;

/// Runs as this machine gives them: rows whose processes differ more than their rounds, by a normal
/// spread, by one of two layouts, and now and then by a neighbour that doubles everything.
pub(super) struct Machines(SplitMix64);

impl Machines {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }

    fn unit(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal, by the sum of twelve.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    fn rows(&mut self, slower: f64) -> Vec<Row> {
        let common = 1.0 + 0.01 * self.normal();
        let row = |machine: &mut Self, number: usize| {
            let spread = [0.005, 0.01, 0.03][number % 3];
            let layout = if number.is_multiple_of(5) && machine.unit() < 0.4 { 1.12 } else { 1.0 };
            let neighbour = if machine.unit() < 0.04 { 1.0 + machine.unit() } else { 1.0 };
            let middle = 10.0 * common * layout * neighbour * (1.0 + spread * machine.normal());
            let values: Vec<f64> =
                (0..5).map(|_| middle * slower * (1.0 + 0.01 * machine.normal().abs())).collect();
            row(&format!("kind-{}/{number}", number % 4), "ns", &values)
        };
        (0..60).map(|number| row(self, number)).collect()
    }

    /// A process on a machine whose pace changes by 12 % from process to process: nine rows that
    /// follow it, each in its own way, four of which are slower.
    pub(super) fn paced(&mut self, slower: f64) -> Vec<Row> {
        let common = 1.0 + 0.12 * self.normal().clamp(-2.5, 2.5);
        let row = |machine: &mut Self, number: usize| {
            let slope = [0.1, 0.5, 1.0][number % 3];
            let own = 10.0 * (1.0 + 0.04 * machine.normal()) * if number < 4 { slower } else { 1.0 };
            let rounds: Vec<(f64, f64)> = (0..6)
                .map(|_| {
                    let pace = common * (1.0 + 0.05 * machine.normal());
                    (own * pace.powf(slope) * (1.0 + 0.02 * machine.normal()), 1e5 * pace)
                })
                .collect();
            let (values, pace): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
            row(&format!("kind/{number}"), "ns", &values).at(&pace)
        };
        (0..9).map(|number| row(self, number)).collect()
    }

    pub(super) fn run(&mut self, slower: f64) -> Side {
        side("simulated", (0..10).map(|_| self.rows(slower)).collect())
    }
}
