//! The argument of `watch`: an address, or the name of a variable.
//!
//! The service does not have its own files open and has no names, so this command finds the address
//! in the files that the process has mapped.

use std::fmt;
use std::str::FromStr;

use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::{StaticError, StaticPlace, Statics};
use dormouse_protocol::WireAccess;

use crate::exit::{Exit, Failure, Outcome};
use crate::target::Process;
use crate::text::{list, read_by_text};

/// The longest that is watched at an address without a length: a register's width.
const WIDEST: u64 = 8;

/// How many variables of a name a message lists.
const MOST_NAMED: usize = 8;

/// The place to watch, as a person has written it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    what: What,
    /// After the last colon.
    len: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Addr(u64),
    Name(String),
}

/// A place in the memory of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let (name, len) = match text.rsplit_once(':') {
            // The second half of `::` begins no length.
            Some((name, digits)) if !name.ends_with(':') => {
                let len = digits.parse().ok().filter(|&len| len > 0);
                (
                    name,
                    Some(len.ok_or_else(|| format!("{digits:?} is no length: give bytes, as in 0x1000:8"))?),
                )
            }
            _ => (text, None),
        };
        let hex = name.strip_prefix("0x").or_else(|| name.strip_prefix("0X"));
        let what = match hex {
            // The parser of numbers takes a sign.
            Some(hex) if !hex.starts_with('+') => {
                let addr = u64::from_str_radix(hex, 16);
                What::Addr(addr.map_err(|error| format!("{name:?} is no address in hex: {error}"))?)
            }
            Some(_) => return Err("an address has no sign".into()),
            None if name.is_empty() => return Err("it is empty: name a variable, or give an address".into()),
            None if name.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(format!("write an address in hex, with 0x in front: 0x{name}"));
            }
            None => What::Name(name.to_owned()),
        };
        Ok(Wanted { what, len })
    }
}

read_by_text!(Wanted);

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Addr(addr) => write!(f, "{addr:#x}")?,
            What::Name(name) => f.write_str(name)?,
        }
        self.len.map_or(Ok(()), |len| write!(f, ":{len}"))
    }
}

impl Wanted {
    /// The place of it in `process`.
    pub(crate) fn find(&self, process: &Process, access: WireAccess) -> Outcome<Variable> {
        let mut found = match &self.what {
            What::Addr(addr) => {
                // The most that a register takes there.
                let len = WIDEST.min(1 << addr.trailing_zeros().min(63));
                Variable { name: self.to_string(), addr: *addr, len }
            }
            What::Name(name) => by_name(process, name, access)?,
        };
        found.len = self.len.unwrap_or(found.len);
        if access == WireAccess::Execute {
            // The kernel's word for one instruction.
            found.len = WIDEST;
        }
        Ok(found)
    }
}

/// The only static variable of the process that `text` names; to watch its execution, the only
/// function.
fn by_name(process: &Process, text: &str, access: WireAccess) -> Outcome<Variable> {
    let space = AddressSpace::of(process.pid).map_err(|error| Failure::from(&error))?;
    let found = match access {
        WireAccess::Execute => Statics::new().find_function(&space, text),
        _ => Statics::new().find(&space, text),
    };
    let mut found = found.map_err(|error| match &error {
        StaticError::Space(error) => error.into(),
        StaticError::Syntax { .. } => Failure::new(Exit::Usage, error.to_string()),
        _ => Failure::failed(error.to_string()),
    })?;
    // Of several, that of the program itself: those of libraries it has seldom seen.
    let is_own = |place: &StaticPlace| Some(&*place.object) == process.exe.as_deref();
    if found.iter().filter(|place| is_own(place)).count() == 1 {
        found.retain(is_own);
    }
    match (found.len(), found.pop()) {
        (1, Some(StaticPlace { name, addr, len, .. })) => Ok(Variable { name, addr, len }),
        (_, None) => Err(Failure::failed(format!("nothing is named {text:?}"))),
        (n, Some(last)) => {
            found.push(last);
            let line = |one: &StaticPlace| format!("{} at {:#x} of {}", one.name, one.addr, one.object);
            let lines: Vec<String> = found.iter().map(line).collect();
            let message = format!("{n} places are named {text:?}: {}", list(&lines, MOST_NAMED));
            Err(Failure::new(Exit::Usage, message).hint("give the whole name of one, or its address"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_have_lengths() {
        let wanted = |what, len| Ok(Wanted { what, len });
        let name = |name: &str| What::Name(name.into());
        for (text, right) in [
            ("0x10", wanted(What::Addr(0x10), None)),
            ("0XfF:4", wanted(What::Addr(0xff), Some(4))),
            ("tea::ORDERS", wanted(name("tea::ORDERS"), None)),
            ("tea::ORDERS:24", wanted(name("tea::ORDERS"), Some(24))),
            ("tea::HOUSE.door.open", wanted(name("tea::HOUSE.door.open"), None)),
            ("tea::CUPS+8:8", wanted(name("tea::CUPS+8"), Some(8))),
            ("cafe", wanted(name("cafe"), None)),
        ] {
            assert_eq!(text.parse(), right, "{text}");
        }
        for text in
            ["", ":8", "0x", "0x+1", "1000", "tea:0", "tea:-1", "tea:x", "tea:", "0x10000000000000000"]
        {
            assert!(text.parse::<Wanted>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_address_has_the_length_that_fits() {
        let me = crate::target::Proc::system().process(std::process::id()).unwrap();
        let len = |text: &str, access| text.parse::<Wanted>().unwrap().find(&me, access).unwrap().len;
        for (text, right) in [("0x1000", 8), ("0x1004", 4), ("0x1002", 2), ("0x1001", 1), ("0x0", 8)] {
            assert_eq!(len(text, WireAccess::Write), right, "{text}");
        }
        assert_eq!(len("0x1001:3", WireAccess::Write), 3);
        assert_eq!(len("0x1001", WireAccess::Execute), 8);
    }
}
