//! `dormouse bench`: the workloads are in their own crate; this converts their result to an exit
//! code.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use dormouse_bench::BenchArgs;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Context;

pub(crate) fn run(mut args: BenchArgs, context: &mut Context) -> Outcome {
    args.json |= context.json;
    // This program, wherever it lies by now.
    let again = || {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("dormouse").arg("bench");
        command
    };
    dormouse_bench::run(&args, &again).map(|()| Exit::Ok).map_err(|error| {
        let is_closed = error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe);
        if is_closed { Failure::StdoutClosed } else { Failure::failed(format!("{error:#}")) }
    })
}
