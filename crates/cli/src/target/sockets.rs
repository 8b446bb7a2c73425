//! Which agents listen: the kernel's table of Unix sockets.
//!
//! The table is read, not the runtime directory of this command's own environment, because a
//! service started by an init system or another user's shell has another one. Also, the table
//! cannot contain leftovers of a dead process: a stale file is in a directory, not in the table.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// `__SO_ACCEPTCON` of the flags column: the socket listens.
const LISTENS: u64 = 0x1_0000;

/// A socket that an agent listens on, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct AgentSocket {
    /// The path as its owner wrote it, in the owner's mount namespace; or `@` and an abstract name,
    /// in the owner's network namespace.
    pub(crate) path: PathBuf,
    /// The process id in its name: what the owner calls itself.
    pub(crate) number: u32,
}

/// Agents' sockets in a table as `/proc/PID/net/unix` shows it.
pub(crate) fn listening(table: &[u8]) -> Vec<AgentSocket> {
    let mut found: Vec<AgentSocket> = table.split(|&byte| byte == b'\n').filter_map(agent).collect();
    found.sort_by(|a, b| (a.number, &a.path).cmp(&(b.number, &b.path)));
    found.dedup();
    found
}

/// `Num RefCount Protocol Flags Type St Inode Path`, where the path is the rest of the line.
fn agent(line: &[u8]) -> Option<AgentSocket> {
    let mut rest = line;
    let mut columns = [&[][..]; 7];
    for column in &mut columns {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|&byte| byte == b' ')?;
        (*column, rest) = rest.split_at(end);
    }
    let flags = u64::from_str_radix(std::str::from_utf8(columns[3]).ok()?, 16).ok()?;
    if flags & LISTENS == 0 {
        return None;
    }
    // One blank ends the inode; further ones belong to the path.
    let path = Path::new(OsStr::from_bytes(rest.get(1..)?));
    let mut name = path.file_name()?.to_str()?.strip_suffix(".sock")?;
    if let Some(kernels) = kernels_name(path) {
        let (directory, _) = kernels.split_once('/').filter(|(_, rest)| !rest.contains('/'))?;
        // The number behind it is another one each time.
        let (process, random) = name.split_once('.')?;
        if !directory.starts_with("dormouse-") || !is_ours(directory) || random.is_empty() {
            return None;
        }
        name = process;
    } else if !path.is_absolute() || !is_ours(path.parent()?.file_name()?.to_str()?) {
        return None;
    }
    let number: u32 = name.parse().ok()?;
    // One spelling only: no sign and no leading zero.
    (number.to_string() == name).then(|| AgentSocket { path: path.to_owned(), number })
}

/// The name that a socket has with the kernel, if it is no file.
pub(crate) fn kernels_name(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix('@')
}

/// `dormouse` in a runtime directory, or `dormouse-UID` in `/tmp`.
fn is_ours(directory: &str) -> bool {
    let uid = directory.strip_prefix("dormouse-");
    directory == "dormouse" || uid.is_some_and(|uid| uid.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(flags: &str, path: &str) -> String {
        format!("0000000000000000: 00000002 00000000 {flags} 0001 01 23456 {path}\n")
    }

    #[test]
    fn listening_agents_are_found_wherever_they_are() {
        let mut table = String::from("Num       RefCount Protocol Flags    Type St Inode Path\n");
        for path in [
            "/run/user/1000/dormouse/12.sock",
            "/tmp/dormouse-65534/7.sock",
            "/a b/dormouse/8.sock",
            "/run/user/1000/dormouse/12.sock",
            "@dormouse-1000/9.00f3.sock",
        ] {
            table += &row("00010000", path);
        }
        let found: Vec<_> = listening(table.as_bytes())
            .into_iter()
            .map(|s| (s.number, s.path.display().to_string()))
            .collect();
        assert_eq!(
            found,
            [
                (7, "/tmp/dormouse-65534/7.sock".into()),
                (8, "/a b/dormouse/8.sock".into()),
                (9, "@dormouse-1000/9.00f3.sock".into()),
                (12, "/run/user/1000/dormouse/12.sock".into())
            ]
        );
    }

    #[test]
    fn everything_else_is_left_out() {
        for (flags, path) in [
            ("00000000", "/run/dormouse/12.sock"), // a connection
            ("00010000", "@/run/dormouse/12.sock"),
            ("00010000", "@dormouse/12.00f3.sock"),
            ("00010000", "@dormouse-0/12.sock"),
            ("00010000", "@dormouse-0/12..sock"),
            ("00010000", "@dormouse-0/x/12.00f3.sock"),
            ("00010000", "@dormouse-x/12.00f3.sock"),
            ("00010000", "run/dormouse/12.sock"),
            ("00010000", "/run/other/12.sock"),
            ("00010000", "/run/dormouse-x/12.sock"),
            ("00010000", "/run/dormouse/12.socket"),
            ("00010000", "/run/dormouse/x.sock"),
            ("00010000", "/run/dormouse/+12.sock"),
            ("00010000", "/run/dormouse/012.sock"),
            ("00010000", "/run/dormouse/4294967296.sock"),
            ("zzzz", "/run/dormouse/12.sock"),
            ("00010000", ""),
        ] {
            assert_eq!(listening(row(flags, path).as_bytes()), [], "{flags} {path}");
        }
        assert_eq!(listening(b"\n\nNum\n\xff\xfe\n"), []);
    }
}
