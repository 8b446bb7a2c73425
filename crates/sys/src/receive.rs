//! Reading a socket, and when the kernel received what was read.
//!
//! The kernel stamps each packet as it comes from the network, as soon as one socket of the machine
//! wants that (`SO_TIMESTAMPING`), and returns the stamp of the last packet beside the bytes. TCP
//! sockets have stamps; streams of Unix sockets have none.
//!
//! # References
//!
//! `Documentation/networking/timestamping.rst`; `tcp_recv_timestamp` in `net/ipv4/tcp.c`;
//! `Documentation/networking/tls.rst`.
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

/// The time at which the kernel has received a packet, by its own clock.
const TIMES: libc::c_uint = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;

/// A record that the kernel has decrypted: its control message, and the type of the program's own
/// bytes (`linux/tls.h`).
const TLS_GET_RECORD_TYPE: libc::c_int = 2;
const TLS_DATA: u8 = 23;

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
/// The kernel's error, for example for something that is no socket. `AlreadyExists` if the program
/// itself wants other times of this socket: it keeps them. (A socket has those that the one has
/// which accepted it.)
///
/// # Cost
///
/// Two system calls to begin, one to end. As long as a socket of the machine wants stamps, the
/// kernel reads the clock for each packet of the machine.
pub fn want_times(socket: BorrowedFd<'_>, wants: bool) -> io::Result<()> {
    if wants && ![0, TIMES].contains(&times(socket)?) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    set_times(socket, if wants { TIMES } else { 0 })
}

fn set_times(socket: BorrowedFd<'_>, flags: libc::c_uint) -> io::Result<()> {
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

fn times(socket: BorrowedFd<'_>) -> io::Result<libc::c_uint> {
    let mut flags: libc::c_uint = 0;
    let mut size = size_of::<libc::c_uint>() as libc::socklen_t;
    // SAFETY: a word of that size.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw mut flags).cast(),
            &raw mut size,
        )
    };
    if answer == 0 { Ok(flags) } else { Err(io::Error::last_os_error()) }
}

/// Reads what a socket has received, as `recv` does.
///
/// # Errors
///
/// As `recv`. Where the kernel decrypts TLS, a record that is no data of the program's is an `EIO`,
/// as it is for `recv`, and is read.
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
    let told = beside(&message);
    if told.record.is_some_and(|kind| kind != TLS_DATA) {
        return Err(io::Error::from_raw_os_error(libc::EIO));
    }
    Ok(Received { bytes, realtime_ns: told.realtime_ns })
}

/// The kernel's data about bytes that were read.
#[derive(Default)]
struct Beside {
    /// When they came.
    realtime_ns: Option<u64>,
    /// The kind of their record of TLS.
    record: Option<u8>,
}

fn beside(message: &libc::msghdr) -> Beside {
    let mut told = Beside::default();
    // SAFETY: the kernel has written control data of that length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or within the control data.
    while let Some(of) = unsafe { header.as_ref() } {
        match (of.cmsg_level, of.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => {
                // SAFETY: the message begins with a time, of whatever alignment.
                let time = unsafe { ptr::read_unaligned(libc::CMSG_DATA(header).cast::<libc::timespec>()) };
                let ns = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
                told.realtime_ns = u64::try_from(ns).ok().filter(|&ns| ns != 0);
            }
            // SAFETY: the message is one byte.
            (libc::SOL_TLS, TLS_GET_RECORD_TYPE) => told.record = Some(unsafe { *libc::CMSG_DATA(header) }),
            _ => {}
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    told
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::{Instant, SystemTime, UNIX_EPOCH};

    use dormouse_testkit::HANG;

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
    fn other_times_that_the_program_wants_stay() {
        const SENT: libc::c_uint = libc::SOF_TIMESTAMPING_TX_SOFTWARE;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        want_times(listener.as_fd(), true).unwrap();
        let guest = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(times(accepted.as_fd()).unwrap(), TIMES, "the listener's");
        want_times(accepted.as_fd(), true).unwrap();
        set_times(guest.as_fd(), SENT).unwrap();
        let refused = want_times(guest.as_fd(), true).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(times(guest.as_fd()).unwrap(), SENT);
    }

    /// The kernel decrypts a stream if its module is there.
    #[test]
    fn an_alert_of_tls_is_no_data() {
        const TCP_ULP: libc::c_int = 31;
        const TLS_TX: libc::c_int = 1;
        const TLS_RX: libc::c_int = 2;
        const TLS_SET_RECORD_TYPE: libc::c_int = 1;
        /// TLS 1.2 by AES-128-GCM: version, cipher, then nonce, key, salt and the record's number.
        #[repr(C)]
        struct Keys([u16; 2], [u8; 8 + 16 + 4 + 8]);
        let keys = Keys([0x0303, 51], [7; 36]);
        let set = |socket: &TcpStream, level, option, value: *const libc::c_void, size: usize| {
            // SAFETY: a value of that size.
            unsafe {
                libc::setsockopt(socket.as_raw_fd(), level, option, value, size as libc::socklen_t) == 0
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        for (socket, direction) in [(&sender, TLS_TX), (&receiver, TLS_RX)] {
            let has = set(socket, libc::IPPROTO_TCP, TCP_ULP, c"tls".as_ptr().cast(), 3)
                && set(socket, libc::SOL_TLS, direction, (&raw const keys).cast(), size_of::<Keys>());
            if !has {
                return dormouse_testkit::skip("this kernel has no TLS");
            }
        }
        want_times(receiver.as_fd(), true).unwrap();
        (&sender).write_all(b"tea").unwrap();
        assert_eq!(read(receiver.as_fd()).bytes, 3);

        let mut warning = [1_u8, 0];
        let mut bytes = libc::iovec { iov_base: warning.as_mut_ptr().cast(), iov_len: 2 };
        let mut control = Control([0; 128]);
        // SAFETY: plain data, of which zero is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut bytes, 1);
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: room for one header and its byte.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(1) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_TLS, TLS_SET_RECORD_TYPE);
            (*header).cmsg_len = libc::CMSG_LEN(1) as _;
            *libc::CMSG_DATA(header) = 21;
            assert_eq!(libc::sendmsg(sender.as_raw_fd(), &raw const message, 0), 2);
        }
        let refused = receive(receiver.as_fd(), &mut [MaybeUninit::uninit(); 64]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_stamp_lies_between_sending_and_reading() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut guest = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        want_times(stream.as_fd(), true).unwrap();
        // The kernel begins with it some time after the machine's first socket wants it.
        let begun = Instant::now();
        loop {
            let before = now();
            guest.write_all(b"tea").unwrap();
            let received = read(stream.as_fd());
            if let Some(stamp) = received.realtime_ns {
                break assert!((before..=now()).contains(&stamp), "{before} {received:?}");
            }
            assert!(begun.elapsed() < HANG, "no stamp");
        }
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
