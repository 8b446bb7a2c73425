//! The API as libraries use it, in a program without dormouse.

mod alone;
mod hosted;
