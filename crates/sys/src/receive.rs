//! Reading a socket, and when the kernel received what was read.
//!
//! The kernel stamps each packet as it comes from the network, as soon as one socket of the machine
//! wants that (`SO_TIMESTAMPING`), and returns the stamp of the last packet beside the bytes. TCP
//! sockets have stamps; streams of Unix sockets have none.
//!
//! # References
//!
//! `Documentation/networking/timestamping.rst`; `tcp_recv_timestamp` in `net/ipv4/tcp.c`.
//!
//! # Safety
//!
//! The unsafe code calls the kernel with places that live as long as the call, and reads control
//! messages as far as it says that it has written them.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The number of bytes, at the buffer's beginning.
    pub bytes: usize,
    /// When the kernel received the last of them, by `CLOCK_REALTIME` in nanoseconds since 1970.
    pub realtime_ns: Option<u64>,
}

/// Three times (`struct scm_timestamping`), in a message that is aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// Lets [`receive`] return the times of packets that the kernel receives from now on, or no longer.
///
/// # Errors
///
/// The kernel's error, for example for something that is no socket.
///
/// # Cost
///
/// A system call. As long as a socket of the machine wants stamps, the kernel reads the clock for
/// each packet of the machine.
pub fn want_times(socket: BorrowedFd<'_>, wants: bool) -> io::Result<()> {
    let flags: libc::c_uint =
        if wants { libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE } else { 0 };
    let size = size_of::<libc::c_uint>() as libc::socklen_t;
    // SAFETY: a word of that size.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const flags).cast(),
            size,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads what a socket has received, as `recv` does.
///
/// # Errors
///
/// As `recv`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [MaybeUninit<u8>]) -> io::Result<Received> {
    let mut control = Control([0; 128]);
    let mut bytes = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: plain data, of which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: all places live, and are as long as the message says.
    let answer = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let bytes = usize::try_from(answer).map_err(|_| io::Error::last_os_error())?;
    Ok(Received { bytes, realtime_ns: realtime_ns(&message) })
}

/// The time in the message's control data.
fn realtime_ns(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel has written control data of that length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or within the control data.
    while let Some(of) = unsafe { header.as_ref() } {
        if (of.cmsg_level, of.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) {
            // SAFETY: the message begins with a time, of whatever alignment.
            let time = unsafe { ptr::read_unaligned(libc::CMSG_DATA(header).cast::<libc::timespec>()) };
            let ns = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
            return u64::try_from(ns).ok().filter(|&ns| ns != 0);
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
    }

    fn read(socket: BorrowedFd<'_>) -> Received {
        let mut buffer = [MaybeUninit::uninit(); 64];
        let received = receive(socket, &mut buffer).unwrap();
        // SAFETY: written by the kernel.
        let byte = unsafe { buffer[0].assume_init() };
        assert!(received.bytes > 0 && byte == b't', "{received:?}");
        received
    }

    #[test]
    fn a_stamp_lies_between_sending_and_reading() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut guest = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        want_times(stream.as_fd(), true).unwrap();
        let before = now();
        guest.write_all(b"tea").unwrap();
        let received = read(stream.as_fd());
        let stamp = received.realtime_ns.unwrap();
        assert!((before..=now()).contains(&stamp), "{before} {received:?}");
        want_times(stream.as_fd(), false).unwrap();
        guest.write_all(b"tea").unwrap();
        assert_eq!(read(stream.as_fd()).realtime_ns, None);
    }

    #[test]
    fn a_unix_stream_is_read_without_stamps() {
        let (mut guest, stream) = UnixStream::pair().unwrap();
        _ = want_times(stream.as_fd(), true);
        guest.write_all(b"tea").unwrap();
        assert_eq!(read(stream.as_fd()), Received { bytes: 3, realtime_ns: None });
    }
}
