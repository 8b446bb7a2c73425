//! Small encoders that several formats share. They depend on no platform crate, so that a crate
//! which only writes a format needs none.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

pub mod gzip;
pub mod hex;
pub mod protobuf;
