//! Services in the style of other people's: `others NAME`.
//!
//! Each is written as somebody would embed dormouse who has only read its README and guides. It
//! also writes down by itself what it uses ([`known`]), so that a test can compare the two.

mod actix;
mod batch;
mod grpc;
mod known;
mod shop;
mod tcp;
mod tls;
mod web;

use std::io;
use std::process::ExitCode;

// As the README has it.
#[global_allocator]
static ALLOC: dormouse::Alloc = dormouse::Alloc::new();

type Run = fn() -> io::Result<()>;

const SERVICES: [(&str, Run); 8] = [
    ("actix", actix::run),
    ("batch", batch::run),
    ("grpc", grpc::run),
    ("grpc-by-itself", grpc::run_by_itself),
    ("shop", shop::run),
    ("tcp", tcp::run),
    ("tls", tls::run),
    ("web", web::run),
];

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some((_, run)) = SERVICES.iter().find(|(known, _)| *known == name) else {
        let names = SERVICES.map(|(name, _)| name).join(" or ");
        eprintln!("usage: others {names}");
        return ExitCode::from(2);
    };
    if let Err(why) = dormouse::init() {
        eprintln!("dormouse is off: {why}");
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{name}: {why}");
            ExitCode::FAILURE
        }
    }
}
