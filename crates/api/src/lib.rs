//! Probes, static keys and groups for libraries.
//!
//! A library depends on this crate, which is small and hardly changes. If the program contains
//! [dormouse](https://docs.rs/dormouse), that finds everything here by name; if not, each use costs
//! an instruction or a load, and nothing else happens.
//!
//! ```
//! use dormouse_api::{Group, probe};
//!
//! static POOL: Group = Group::new("db pool");
//!
//! fn query(sql: &str) {
//!     let _entered = POOL.enter();
//!     probe!("db.query", sql, bytes = sql.len());
//! }
//! # query("select 1");
//! ```
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | `abi` | [`Key`], [`StaticKey`], [`Probe`]: what dormouse reads, in layouts that C has, too |
//! | `site` | [`unlikely!`], [`likely!`] |
//! | `field` | [`ProbeField`], [`ProbeValue`]: what a probe records |
//! | `host` | [`Host`]: the functions of the dormouse in this program |
//! | `probe` | [`probe!`] |
//! | `group` | [`Group`], [`Entered`], [`Instrumented`] |
//!
//! `docs/design/api.md` in dormouse's repository explains how dormouse finds all this.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

mod abi;
mod arch;
mod field;
mod group;
mod host;
mod probe;
mod site;

pub use abi::{Key, Probe, StaticKey};
pub use field::{ProbeField, ProbeValue};
pub use group::{Entered, Group, Instrumented};
pub use host::{Host, set_host};

/// The macros expand to these items; do not use them directly.
#[doc(hidden)]
pub mod macros {
    pub use crate::probe::record;
    pub use crate::site::flags;
}
