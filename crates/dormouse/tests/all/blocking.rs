//! Blocking work on a runtime's threads: in its group where that can be, else under a name.
#![cfg(feature = "tokio")]

use crate::happenings;

use std::sync::mpsc;

use dormouse::tokio::{
    all_instrumented, fs, group_blocking, spawn_blocking, thread_parks, thread_starts, thread_stops,
};
use dormouse::{Group, carry, inherit, inherit_fn};
use tokio::runtime::Builder;

use happenings::{alone, counted, happen, value};

#[test]
fn plain_blocking_work_has_a_name() {
    let _alone = alone();
    let ((blocking, _blocking), (own, _own)) = (counted("tokio blocking"), counted("asks"));
    let before = (value(blocking), blocking.read().requests);
    let runtime = group_blocking(Builder::new_multi_thread().worker_threads(1)).build().unwrap();
    runtime.block_on(own.instrument(async {
        // As tokio::fs does, and libraries.
        tokio::task::spawn_blocking(|| happen(5)).await.unwrap();
        spawn_blocking(|| happen(70)).await.unwrap();
    }));
    assert!(blocking.read().alive >= 1);
    drop(runtime);
    assert_eq!((value(blocking) - before.0, value(own)), (5, 70));
    assert_eq!((blocking.read().alive, blocking.read().requests), (0, before.1));
}

#[test]
fn a_worker_that_has_parked_has_no_name() {
    let _alone = alone();
    let (parks, parked) = mpsc::channel();
    let mut builder = Builder::new_multi_thread();
    // Whichever of these comes last.
    all_instrumented(group_blocking(builder.worker_threads(1))).on_thread_park(move || {
        thread_parks();
        let _ = parks.send(());
    });
    let runtime = builder.build().unwrap();
    parked.recv().unwrap();
    let there = runtime.block_on(runtime.spawn(async { Group::current() }));
    assert_eq!(there.unwrap(), None);
}

#[test]
fn nothing_inherits_the_name() {
    let _alone = alone();
    std::thread::spawn(|| {
        thread_starts();
        assert_eq!(Group::current(), Some(Group::new("tokio blocking")));
        assert_eq!((carry().group(), inherit(async {}).group()), (None, None));
        let own = Group::new("within");
        assert_eq!(own.scope(|| inherit_fn(Group::current))(), Some(own));
        thread_parks();
        assert_eq!(Group::current(), None);
        thread_stops();
    })
    .join()
    .unwrap();
}

#[test]
fn files_are_worked_on_in_the_group() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let group = Group::new("files");
    let work = async {
        fs::create_dir(at("a")).await?;
        fs::create_dir_all(at("b/c")).await?;
        fs::write(at("a/tea"), "two cups").await?;
        assert_eq!(fs::read(at("a/tea")).await?, b"two cups");
        assert_eq!(fs::copy(at("a/tea"), at("b/tea")).await?, 8);
        fs::rename(at("b/tea"), at("b/milk")).await?;
        assert_eq!(fs::read_to_string(at("b/milk")).await?, "two cups");
        fs::hard_link(at("b/milk"), at("b/c/milk")).await?;
        assert_eq!(fs::metadata(at("b/c/milk")).await?.len(), 8);
        let mut permissions = fs::symlink_metadata(at("b/milk")).await?.permissions();
        permissions.set_readonly(true);
        fs::set_permissions(at("b/milk"), permissions).await?;
        std::os::unix::fs::symlink(at("a/tea"), at("link"))?;
        assert_eq!(fs::read_link(at("link")).await?, at("a/tea"));
        assert_eq!(fs::canonicalize(at("link")).await?, std::fs::canonicalize(at("a/tea"))?);
        fs::remove_file(at("a/tea")).await?;
        fs::remove_dir(at("a")).await?;
        fs::remove_dir_all(at("b")).await?;
        assert!(!fs::try_exists(at("b")).await?);
        assert_eq!(fs::read(at("b")).await.unwrap_err().kind(), std::io::ErrorKind::NotFound);
        std::io::Result::Ok(())
    };
    Builder::new_current_thread().build().unwrap().block_on(group.instrument(work)).unwrap();
    assert_eq!((group.read().started, group.read().requests), (1 + 18, 1), "each call is a part");
}
