//! A tea house behind HTTP: the service that `dormouse demo` looks into, and the example of how to
//! embed dormouse.
//!
//! A service talks to dormouse in six places. Read them in this order:
//!
//! | file | shows |
//! |---|---|
//! | `main.rs` | the allocator, so that allocations can be counted and sampled |
//! | `instrument.rs` | start: the agent, the log, a CPU budget for each request, and the switch to a build without any of it |
//! | `routes.rs` | a group per route, by a layer; work that is handed on takes it along |
//! | `routes/*.rs` | probes, `tracing` callsites, a probed function, a static key that changes behaviour |
//! | `server.rs` | a group around other groups: connections, and the requests on them |
//! | `background.rs` | groups for work that no request asked for: a task and a plain thread |
//!
//! The rest is a service like any other: axum over hyper, an embedded `SQLite` database, clean
//! shutdown, and a bounded load generator, so that there is something to see.
//!
//! ```no_run
//! use clap::Parser;
//! use dormouse_teaparty::{Args, run};
//!
//! #[derive(Parser)]
//! struct Program {
//!     #[command(flatten)]
//!     args: Args,
//! }
//!
//! let summary = run(&Program::parse().args, |url| println!("listening on {url}"))?;
//! println!("{summary}");
//! # anyhow::Ok(())
//! ```

// In the bare build, variables that only probes read are unused.
#![cfg_attr(not(feature = "dormouse"), expect(unused_variables))]

mod args;
mod background;
mod instrument;
pub mod load;
mod loopback;
mod routes;
mod run;
mod server;
mod stop;
mod store;
mod tally;
mod teas;

pub use args::Args;
pub use loopback::Loopback;
pub use run::{Summary, run};
pub use server::{Served, Server};
pub use stop::Stop;
