//! `GET /blend?malt=0.6&smoke=0.4`: pure computation, about a millisecond, off the workers.
//!
//! The best blend is found by trying every way to divide the spoons among the teas: with the
//! default of 24 spoons and six teas C(29, 5) = 118,755 ways.

use axum::{
    Json,
    extract::{Query, rejection::QueryRejection},
};
use serde::{Deserialize, Serialize};

use crate::{
    instrument::{probe, spawn_blocking, tracing},
    routes::refusal::Refusal,
    teas::{Flavour, TEAS},
};

/// The most spoons in a pot: 435,897 ways to divide them.
const MAX_SPOONS: u32 = 32;

/// The flavour that a guest would like, and the size of the pot.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct BlendQuery {
    malt: f64,
    grass: f64,
    smoke: f64,
    flower: f64,
    spoons: u32,
}

impl Default for BlendQuery {
    fn default() -> Self {
        Self { malt: 0.5, grass: 0.3, smoke: 0.2, flower: 0.4, spoons: 24 }
    }
}

impl BlendQuery {
    fn check(&self) -> Result<(), Refusal> {
        let Self { malt, grass, smoke, flower, spoons } = *self;
        for (name, value) in [("malt", malt), ("grass", grass), ("smoke", smoke), ("flower", flower)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Refusal::bad_request(format!("{name} is {value}, must be from 0 to 1")));
            }
        }
        if !(1..=MAX_SPOONS).contains(&spoons) {
            return Err(Refusal::bad_request(format!("spoons is {spoons}, must be from 1 to {MAX_SPOONS}")));
        }
        Ok(())
    }
}

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct Blend {
    recipe: Vec<Part>,
    distance: f64,
    tried: u32,
}

#[derive(Debug, PartialEq, Serialize)]
struct Part {
    tea: &'static str,
    spoons: u32,
}

/// Finds the blend nearest to a flavour.
pub(super) async fn mix(query: Result<Query<BlendQuery>, QueryRejection>) -> Result<Json<Blend>, Refusal> {
    let Query(query) = query?;
    query.check()?;
    let blend =
        spawn_blocking(move || search([query.malt, query.grass, query.smoke, query.flower], query.spoons))
            .await?;
    tracing::debug!(distance = blend.distance, tried = blend.tried, "blend found");
    Ok(Json(blend))
}

#[cfg_attr(feature = "dormouse", dormouse::probed("blend.search", fields(spoons)))]
fn search(wanted: Flavour, spoons: u32) -> Blend {
    let _span = tracing::debug_span!("search", spoons).entered();
    let mut search = Search {
        // In spoons times flavour, so that the innermost loop divides nothing.
        wanted: wanted.map(|taste| taste * f64::from(spoons)),
        parts: [0; TEAS.len()],
        best: [0; TEAS.len()],
        distance: f64::INFINITY,
        tried: 0,
    };
    search.divide(0, spoons, Flavour::default());
    probe!("blend.found", tried = search.tried, distance = search.distance);
    Blend {
        recipe: TEAS
            .iter()
            .zip(search.best)
            .filter(|&(_, spoons)| spoons > 0)
            .map(|(tea, spoons)| Part { tea: tea.name, spoons })
            .collect(),
        distance: search.distance.sqrt() / f64::from(spoons),
        tried: search.tried,
    }
}

/// A depth-first search over the teas.
struct Search {
    wanted: Flavour,
    parts: [u32; TEAS.len()],
    best: [u32; TEAS.len()],
    /// The squared distance of `best`.
    distance: f64,
    tried: u32,
}

impl Search {
    /// Divides the spoons that are `left` among `TEAS[tea..]`; the tea already in the pot tastes as
    /// `pot`.
    ///
    /// Straight code, so that a build without optimization is not a hundred times as slow.
    fn divide(&mut self, tea: usize, left: u32, pot: Flavour) {
        if tea + 1 == TEAS.len() {
            return self.taste(left, pot);
        }
        let mut spoons = 0;
        while spoons <= left {
            self.parts[tea] = spoons;
            self.divide(tea + 1, left - spoons, with(pot, spoons, TEAS[tea].flavour));
            spoons += 1;
        }
    }

    /// Tastes a pot to which only the last tea has to be added.
    fn taste(&mut self, left: u32, pot: Flavour) {
        let last = TEAS.len() - 1;
        self.parts[last] = left;
        self.tried += 1;
        let [malt, grass, smoke, flower] = with(pot, left, TEAS[last].flavour);
        let [malt, grass, smoke, flower] =
            [malt - self.wanted[0], grass - self.wanted[1], smoke - self.wanted[2], flower - self.wanted[3]];
        let distance = malt * malt + grass * grass + smoke * smoke + flower * flower;
        if distance < self.distance {
            self.distance = distance;
            self.best = self.parts;
        }
    }
}

/// The flavour of a pot with some spoons of a tea in addition.
fn with(pot: Flavour, spoons: u32, tea: Flavour) -> Flavour {
    let spoons = f64::from(spoons);
    [pot[0] + spoons * tea[0], pot[1] + spoons * tea[1], pot[2] + spoons * tea[2], pot[3] + spoons * tea[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_teas_flavour_is_met_by_it() {
        for tea in &TEAS {
            let blend = search(tea.flavour, 5);
            assert_eq!(blend.recipe, [Part { tea: tea.name, spoons: 5 }]);
            assert!(blend.distance < 1e-9, "{}", blend.distance);
        }
    }

    #[test]
    fn half_and_half_is_met_by_halves() {
        let (assam, sencha) = (TEAS[0].flavour, TEAS[5].flavour);
        let blend = search(std::array::from_fn(|i| f64::midpoint(assam[i], sencha[i])), 6);
        assert_eq!(blend.recipe, [Part { tea: "Assam", spoons: 3 }, Part { tea: "Sencha", spoons: 3 }]);
    }

    #[test]
    fn every_way_to_divide_is_tried_once() {
        assert_eq!(search([0.5; 4], 24).tried, 118_755);
    }
}
