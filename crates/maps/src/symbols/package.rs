//! A package of split debug information (`.dwp`), shown to the reader.
//!
//! The reader looks for it under the object's path with `.dwp` behind it. Copies have no paths, so
//! a directory of our own has two links that lead to them while it is read first.

#[cfg(feature = "forms")]
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};

use super::copy::Copied;

/// A package that the reader was shown.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) copied: Copied,
    #[cfg(feature = "forms")]
    links: RefCell<Option<tempfile::TempDir>>,
}

impl Package {
    /// Shows the package beside the object at `path`; returns the path at which the reader finds
    /// both.
    #[cfg(feature = "forms")]
    pub(super) fn new(copied: Copied, path: &Path) -> io::Result<(Self, PathBuf)> {
        use std::fs::Permissions;
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let links = tempfile::Builder::new()
            .prefix("dormouse-symbols-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()?;
        let (object, package) = (links.path().join("object"), links.path().join("object.dwp"));
        symlink(path, &object)?;
        symlink(super::open::path_of(&copied.file), package)?;
        Ok((Self { copied, links: RefCell::new(Some(links)) }, object))
    }

    /// Without the feature there is no place for links.
    #[cfg(not(feature = "forms"))]
    pub(super) fn new(_: Copied, _: &Path) -> io::Result<(Self, PathBuf)> {
        Err(super::elf::broken("packages of debug information are not read"))
    }

    /// Removes the links: the reader keeps open what it has opened.
    #[allow(clippy::unused_self, reason = "without the feature there are no links")]
    pub(super) fn hide(&self) {
        #[cfg(feature = "forms")]
        drop(self.links.take());
    }
}

#[cfg(all(test, feature = "forms"))]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn links_are_gone_once_hidden() {
        let copied = Copied::of(&File::open("/proc/self/exe").unwrap(), &[]).unwrap();
        let (package, path) = Package::new(copied, Path::new("/proc/self/exe")).unwrap();
        let directory = path.parent().unwrap();
        assert!(directory.join("object.dwp").exists());
        package.hide();
        assert!(!directory.exists());
    }
}
