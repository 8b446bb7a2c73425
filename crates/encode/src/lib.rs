//! Small encoders that several formats share. They depend on nothing, so that a crate which only
//! writes a format needs no platform.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

pub mod digits;
pub mod protobuf;
