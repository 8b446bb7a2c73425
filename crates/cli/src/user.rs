//! The user of this process: who has switched, to somebody who reads that elsewhere.

use serde::Serialize;

/// A user.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct User {
    pub(crate) uid: u32,
    #[serde(rename = "user")]
    pub(crate) name: String,
}

impl User {
    /// The one that this process runs as.
    pub(crate) fn own() -> User {
        let uid = dormouse_sys::directory::own_uid();
        User { uid, name: name_of(uid) }
    }
}

/// The name of a user in the machine's own file; without one, the number.
fn name_of(uid: u32) -> String {
    let file = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    file.lines().find_map(of_line).unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_the_names_of_the_machine() {
        assert_eq!((name_of(0), name_of(u32::MAX)), ("root".to_owned(), u32::MAX.to_string()));
    }
}
