//! Runtimes other than tokio.

use dormouse::{Group, inherit, inherit_fn};

use super::here;

#[test]
fn smol_tasks_inherit() {
    let report = async {
        let task = smol::spawn(inherit(async { here() }));
        let blocking = smol::unblock(inherit_fn(here));
        [task.await, blocking.await]
    };
    let groups = smol::block_on(Group::new("smol report").instrument(report));

    assert_eq!(groups, ["smol report", "smol report"]);
    assert_eq!(Group::new("smol report").read().requests, 1);
}

#[test]
fn monoio_tasks_inherit() {
    let mut runtime =
        monoio::RuntimeBuilder::<monoio::LegacyDriver>::new().build().expect("a runtime on this thread");
    let group = runtime.block_on(
        Group::new("monoio report").instrument(async { monoio::spawn(inherit(async { here() })).await }),
    );

    assert_eq!(group, "monoio report");
}
