//! The token: a holder of it may read, and switch keys.
//!
//! 32 random bytes in hex. The file is in the user's runtime directory, which nobody else can enter
//! or replace, so who can read it is this user or root: those whom the agents would let in anyway.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use dormouse_sys::directory::{CLOSED, of_runtime, prepare};
use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::exit::{Failure, Outcome};
use crate::output::{FAIR, say};

/// The shortest token that is taken from a file: nobody guesses as many characters over a network.
const SHORTEST: usize = 16;

/// The longest.
const LONGEST: usize = 1024;

/// The token, and its file.
#[derive(Debug)]
pub(super) struct Token {
    secret: String,
    path: PathBuf,
    /// Whether the file goes with this process.
    is_ours: bool,
}

impl Token {
    /// The one in that file, or a new one that is written there and stays.
    pub(super) fn of_file(path: &Path) -> Outcome<Token> {
        match read(path) {
            Ok(secret) => {
                check(&secret).map_err(|why| unreadable(path, &why))?;
                warn_of_readers(path);
                Ok(Token { secret, path: path.to_owned(), is_ours: false })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let secret = new_secret()?;
                write_new(path, &secret).map_err(|error| unwritable(path, &error))?;
                Ok(Token { secret, path: path.to_owned(), is_ours: false })
            }
            Err(error) => Err(unreadable(path, &error)),
        }
    }

    /// A new one for the listener of an address, in the user's runtime directory.
    pub(super) fn of_listener(address: SocketAddr) -> Outcome<Token> {
        let mut refused = Vec::new();
        for (directory, origin) in of_runtime() {
            match prepare(&directory, CLOSED) {
                Ok(directory) => {
                    let (secret, path) = (new_secret()?, directory.join(file_name(address)));
                    // Of a server that was killed: nobody else can have put it here.
                    let _ = fs::remove_file(&path);
                    write_new(&path, &secret).map_err(|error| unwritable(&path, &error))?;
                    return Ok(Token { secret, path, is_ours: true });
                }
                Err(why) => refused.push(format!("{}{origin}: {why}", directory.display())),
            }
        }
        let message = format!("there is no place for the token's file: {}", refused.join("; "));
        Err(Failure::failed(message).hint("--token-file names a file for it"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    /// Whether `given` is the token. Takes as long whatever its first wrong character is.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        let own = self.secret.as_bytes();
        let difference = own.iter().zip(given).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
        own.len() == given.len() && difference == 0
    }

    /// Takes the file away, if it goes with this process.
    pub(super) fn remove(&self) {
        // A later server of this address may have written its own.
        if self.is_ours && read(&self.path).is_ok_and(|secret| secret == self.secret) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The port alone where that says all: servers of one port may have different addresses.
fn file_name(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => format!("serve-{}.token", address.port()),
        ip => format!("serve-{ip}-{}.token", address.port()),
    }
}

/// Follows links: a cluster's secrets are such.
fn read(path: &Path) -> io::Result<String> {
    // Else the open of a pipe would wait for its other end.
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    file.take(LONGEST as u64 + 2).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

fn check(secret: &str) -> Result<(), String> {
    match secret.len() {
        0 => Err("it is empty".into()),
        n if n < SHORTEST => Err(format!("its token has {n} characters, and needs {SHORTEST}")),
        n if n > LONGEST => Err(format!("its token is longer than {LONGEST} characters")),
        _ if !secret.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err("its token has characters that no header can hold".into())
        }
        _ => Ok(()),
    }
}

/// A file that must not be there yet, also not as a link.
fn write_new(path: &Path, secret: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{secret}")
}

/// 32 bytes of the kernel's generator, in hex.
fn new_secret() -> Outcome<String> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::failed(format!("cannot make a token: {error}"))),
        }
    }
    let digits = |byte| [byte >> 4, byte & 15].map(|digit: u8| char::from_digit(digit.into(), 16));
    Ok(bytes.into_iter().flat_map(digits).flatten().collect())
}

fn warn_of_readers(path: &Path) {
    if let Ok(found) = fs::metadata(path)
        && let Some(what) = match found.mode() & 0o006 {
            0 => None,
            0o004 => Some("read"),
            _ => Some("change"),
        }
    {
        let (path, mode) = (path.display(), found.mode() & 0o777);
        say(format_args!("{FAIR}everybody can {what} the token:{FAIR:#} {path} has mode {mode:o}"));
    }
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot take the token from {}: {why}", path.display()))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write the token to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_token_is_trimmed() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("secret"), directory.path().join("link"));
        fs::write(&file, "0123456789abcdef\n").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let token = Token::of_file(&link).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        drop(token);
        assert!(file.exists(), "it was there before");
    }

    #[test]
    fn each_address_has_its_file() {
        let name = |address: &str| file_name(address.parse().unwrap());
        assert_eq!(name("127.0.0.1:9464"), "serve-9464.token");
        assert_eq!(name("127.0.0.2:9464"), "serve-127.0.0.2-9464.token");
        assert_eq!(name("[::1]:9464"), "serve-::1-9464.token");
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        let Err(refused) = Token::of_file(&pipe) else { panic!("a token of nobody") };
        assert!(format!("{refused:?}").contains("it is no file"), "{refused:?}");
    }

    #[test]
    fn weak_tokens_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        for weak in [String::new(), "short".into(), "a b".repeat(9), "é".repeat(20), "x".repeat(2000)] {
            fs::write(&file, &weak).unwrap();
            assert!(Token::of_file(&file).is_err(), "{weak:?}");
        }
    }

    #[test]
    fn a_new_token_file_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("new");
        let token = Token::of_file(&file).unwrap();
        let found = fs::metadata(&file).unwrap();
        assert_eq!((found.mode() & 0o777, found.len()), (0o600, 65));
        assert_ne!(token.secret, Token::of_file(&file).unwrap().path.display().to_string());
        assert!(Token::of_file(&file).unwrap().is(token.secret.as_bytes()));
        std::os::unix::fs::symlink(directory.path().join("far"), directory.path().join("dangling")).unwrap();
        assert!(Token::of_file(&directory.path().join("dangling")).is_err(), "no link is written through");
    }
}
