//! The requests of the guests, and how often each comes.

use hyper::Method;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Menu,
    Place,
    Read,
    Blend,
    Brochure,
    Steep,
}

use Ask::{Blend, Brochure, Menu, Place, Read, Steep};

/// One round, repeated: no dice, so that two runs ask for the same. It begins with an order, so
/// that there is one to read.
pub(super) const MIX: [Ask; 16] = [
    Place, Menu, Menu, Steep, Blend, Read, Menu, Brochure, Place, Menu, Steep, Read, Menu, Blend, Menu,
    Brochure,
];

impl Ask {
    pub(super) const ALL: [Self; 6] = [Menu, Place, Read, Blend, Brochure, Steep];

    /// The route's name, as the service names its group.
    pub(super) const fn route(self) -> &'static str {
        match self {
            Menu => "GET /menu",
            Place => "POST /orders",
            Read => "GET /orders/{id}",
            Blend => "GET /blend",
            Brochure => "GET /brochure",
            Steep => "GET /steep",
        }
    }

    pub(super) fn method(self) -> Method {
        match self {
            Place => Method::POST,
            _ => Method::GET,
        }
    }

    pub(super) fn path(self, latest_order: u64) -> String {
        match self {
            Menu => "/menu".into(),
            Place => "/orders".into(),
            Read => format!("/orders/{latest_order}"),
            Blend => "/blend?malt=0.6&smoke=0.3".into(),
            Brochure => "/brochure?guest=Alice".into(),
            Steep => "/steep?ms=5".into(),
        }
    }

    pub(super) const fn body(self) -> &'static [u8] {
        match self {
            Place => br#"{"tea":"Assam","cups":2}"#,
            _ => b"",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_every_route() {
        for ask in Ask::ALL {
            assert!(MIX.contains(&ask), "{ask:?}");
        }
    }
}
