//! This copy of dormouse as the host of the probes and groups of libraries (`dormouse-api`).
//!
//! # Safety
//!
//! The unsafe code takes a probe of the API for one of ours: both have the layout that C has, which
//! grows at its end alone, and their keys say so by the same kind of attachment.
#![allow(unsafe_code)]

use std::ptr;

use dormouse_api::{Host, ProbeValue, set_host};
use dormouse_events::Mark;

use crate::core::group::Group;
use crate::core::probe::{self, Probe};

const _: () = assert!(
    size_of::<dormouse_api::Probe>() == size_of::<Probe>()
        && size_of::<dormouse_api::Key>() == size_of::<dormouse_keys::Key>()
);

/// This copy.
static HOST: Host = Host::new(concat!("dormouse ", env!("CARGO_PKG_VERSION")), record).with_groups(
    |name| Group::new(name).id(),
    |group| Group::by_id(group).map_or(0, |group| group.begin_task(false)),
    |group, task| Some(Group::by_id(group)?.enter_task(task)?.place),
    |group, task, place| {
        if let Some(group) = Group::by_id(group) {
            group.leave_task(Mark { place, task });
        }
    },
    |group, task| {
        if let Some(group) = Group::by_id(group) {
            group.end_task(task);
        }
    },
);

/// Makes this copy the host of libraries, unless another one is. Its fault if so.
pub(crate) fn install() -> Option<String> {
    let first = set_host(&HOST).err()?;
    Some(format!(
        "probes and groups of libraries (dormouse-api) go to {first}, which began before {}: the \
         program should contain one version of dormouse (`cargo tree --invert dormouse` lists both)",
        HOST.name()
    ))
}

/// Records a hit of a library's probe.
fn record(probe: &'static dormouse_api::Probe, values: &[ProbeValue<'_>]) {
    // SAFETY: the layout is the same (the module's comment), and the probe is static.
    let probe = unsafe { &*ptr::from_ref(probe).cast::<Probe>() };
    probe::point(probe, |writer| {
        for value in values {
            match *value {
                ProbeValue::Signed(value) => writer.signed(value),
                ProbeValue::Unsigned(value) => writer.unsigned(value),
                ProbeValue::Float(value) => writer.float(value),
                ProbeValue::Boolean(value) => writer.boolean(value),
                ProbeValue::Text(value) => writer.text(value),
                ProbeValue::Formatted(value) => writer.formatted(value),
                // Nothing, and kinds of later versions.
                _ => writer.nothing(),
            }
        }
    });
}
