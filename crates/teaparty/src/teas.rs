//! What the house sells. The database is seeded from it, the blender blends it, the brochure praises it.

/// How a tea tastes, each from 0 to 1: malt, grass, smoke, flower.
pub(crate) type Flavour = [f64; 4];

/// One tea.
#[derive(Debug)]
pub(crate) struct Tea {
    pub(crate) name: &'static str,
    pub(crate) price_pence: u32,
    pub(crate) flavour: Flavour,
    pub(crate) notes: &'static str,
}

/// All of them.
pub(crate) const TEAS: [Tea; 6] = [
    Tea {
        name: "Assam",
        price_pence: 280,
        flavour: [0.90, 0.05, 0.05, 0.10],
        notes: "brisk and malty, takes milk",
    },
    Tea {
        name: "Darjeeling",
        price_pence: 340,
        flavour: [0.35, 0.20, 0.00, 0.70],
        notes: "light, a whiff of muscat",
    },
    Tea {
        name: "Jasmine",
        price_pence: 310,
        flavour: [0.05, 0.40, 0.00, 0.95],
        notes: "scented by night with open blossoms",
    },
    Tea {
        name: "Keemun",
        price_pence: 330,
        flavour: [0.70, 0.05, 0.35, 0.30],
        notes: "winey, with a trace of pine",
    },
    Tea {
        name: "Lapsang",
        price_pence: 360,
        flavour: [0.40, 0.00, 0.95, 0.00],
        notes: "dried over a fire, and says so",
    },
    Tea {
        name: "Sencha",
        price_pence: 300,
        flavour: [0.05, 0.95, 0.00, 0.25],
        notes: "cut grass and sea air",
    },
];
