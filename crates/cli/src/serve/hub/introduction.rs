//! An agent's report about itself, as it is kept.

use dormouse_protocol::Hello;

use crate::target::Process;

/// The longest name or version of a service, in bytes.
const LONGEST_NAME: usize = 128;

/// The longest path, as the kernel has it.
const LONGEST_PATH: usize = 4096;

/// The most operations that an agent may announce.
const MOST_OPS: usize = 256;

/// Cuts the report to a length that can be kept and shown. An agent that had no descriptor left to
/// read its name has the one that the kernel shows.
pub(super) fn shortened(mut hello: Hello, process: &Process) -> Hello {
    let Hello { name, version, exe, .. } = &mut hello;
    if name.is_empty() {
        process.name().clone_into(name);
    }
    for (text, longest) in [(name, LONGEST_NAME), (version, LONGEST_NAME), (exe, LONGEST_PATH)] {
        if text.len() > longest {
            let fits = (0..=longest - "…".len()).rev().find(|&end| text.is_char_boundary(end));
            text.truncate(fits.unwrap_or(0));
            text.push('…');
        }
    }
    hello.ops.retain(|op| op.len() <= LONGEST_NAME);
    hello.ops.truncate(MOST_OPS);
    hello
}
