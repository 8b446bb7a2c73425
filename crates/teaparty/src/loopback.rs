//! A socket address that no other machine can reach, as a type: the tea house has no authentication
//! and its load generator could do harm, so neither can be pointed at other machines.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

/// A loopback address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loopback(SocketAddr);

impl Loopback {
    /// 127.0.0.1 and any free port.
    pub const ANY_PORT: Self = Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
}

impl TryFrom<SocketAddr> for Loopback {
    type Error = String;

    fn try_from(addr: SocketAddr) -> Result<Self, String> {
        let refused = || format!("{addr} is not a loopback address; use 127.0.0.1 or [::1]");
        addr.ip().is_loopback().then_some(Self(addr)).ok_or_else(refused)
    }
}

impl FromStr for Loopback {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let addr: Result<SocketAddr, _> = text.parse();
        addr.map_err(|_| format!("{text:?} is not an address and port, as 127.0.0.1:8080"))?.try_into()
    }
}

impl From<Loopback> for SocketAddr {
    fn from(addr: Loopback) -> Self {
        addr.0
    }
}

impl fmt::Display for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_both_families_of_loopback() {
        for good in ["127.0.0.1:0", "127.1.2.3:80", "[::1]:8080"] {
            assert_eq!(good.parse::<Loopback>().map(|addr| addr.to_string()), Ok(good.to_owned()));
        }
    }

    #[test]
    fn refuses_every_other_address_by_name() {
        // The mapped form of 127.0.0.1 is one of them: std does not count it as loopback either.
        for bad in ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "[2001:db8::1]:80", "[::ffff:127.0.0.1]:80"] {
            let refused = bad.parse::<Loopback>().unwrap_err();
            assert!(refused.starts_with(bad), "{refused}");
            assert!(refused.contains("not a loopback address"), "{refused}");
        }
    }

    #[test]
    fn refuses_what_is_no_address() {
        for bad in ["", "localhost", "127.0.0.1", "127.0.0.1:99999"] {
            let refused = bad.parse::<Loopback>().unwrap_err();
            assert!(refused.contains("not an address and port"), "{refused}");
        }
    }
}
