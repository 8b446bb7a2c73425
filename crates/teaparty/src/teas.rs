//! The teas that the house sells. They seed the database, the blender blends them, the brochure
//! praises them.

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

const fn tea(name: &'static str, price_pence: u32, flavour: Flavour, notes: &'static str) -> Tea {
    Tea { name, price_pence, flavour, notes }
}

/// All of them.
pub(crate) static TEAS: [Tea; 6] = [
    tea("Assam", 280, [0.90, 0.05, 0.05, 0.10], "brisk and malty, takes milk"),
    tea("Darjeeling", 340, [0.35, 0.20, 0.00, 0.70], "light, a whiff of muscat"),
    tea("Jasmine", 310, [0.05, 0.40, 0.00, 0.95], "scented by night with open blossoms"),
    tea("Keemun", 330, [0.70, 0.05, 0.35, 0.30], "winey, with a trace of pine"),
    tea("Lapsang", 360, [0.40, 0.00, 0.95, 0.00], "dried over a fire, and says so"),
    tea("Sencha", 300, [0.05, 0.95, 0.00, 0.25], "cut grass and sea air"),
];
