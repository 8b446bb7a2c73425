//! Users: the one of this process, and those of the services that it looks into.
#![cfg_attr(not(feature = "serve"), allow(dead_code, reason = "only a server serves other users"))]

use dormouse_sys::directory::own_uid;
use serde::Serialize;

/// A user.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct User {
    pub(crate) uid: u32,
    #[serde(rename = "user")]
    pub(crate) name: String,
}

impl User {
    /// The one that this process runs as.
    pub(crate) fn own() -> User {
        let uid = own_uid();
        User { uid, name: name_of(uid) }
    }
}

/// The user with this number, if it is not the one of this process.
pub(crate) fn other(uid: u32) -> Option<User> {
    (uid != own_uid()).then(|| User { uid, name: name_of(uid) })
}

/// How close a user is to this process, the closest first: its own, root, others. Others may send
/// anything, and call their services by any name.
pub(crate) fn distance(uid: u32) -> u8 {
    match uid {
        _ if uid == own_uid() => 0,
        0 => 1,
        _ => 2,
    }
}

/// The number of a user by its name, or by itself.
pub(crate) fn uid_of(text: &str) -> Result<u32, String> {
    let named = users().into_iter().find(|user| user.name == text).map(|user| user.uid);
    named.or(text.parse().ok()).ok_or_else(|| "/etc/passwd has no such user: give the number".into())
}

/// The name of a user in the machine's own file; without one, the number.
fn name_of(uid: u32) -> String {
    let named = users().into_iter().find(|user| user.uid == uid);
    named.map_or_else(|| uid.to_string(), |user| user.name)
}

/// The users in the machine's own file.
fn users() -> Vec<User> {
    let file = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some(User { name, uid: fields.nth(1)?.parse().ok()? })
    };
    file.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_the_names_of_the_machine() {
        assert_eq!((uid_of("root"), uid_of("17")), (Ok(0), Ok(17)));
        assert!(uid_of("no such user").is_err());
        assert_eq!((name_of(0), name_of(u32::MAX)), ("root".to_owned(), u32::MAX.to_string()));
    }
}
