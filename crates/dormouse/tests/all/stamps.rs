//! The kernel's stamps of a connection's bytes.
#![cfg(feature = "axum")]
#![allow(unsafe_code)]

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use axum::serve::Listener;
use dormouse::tokio::{ServedStream, received};
use dormouse::{Group, Waiting};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::runtime;

/// The flags of the stamps that the kernel takes for the socket.
fn stamps_of(stream: &ServedStream<tokio::net::TcpStream>) -> u32 {
    let (mut flags, mut size) = (0_u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: a word, and its size.
    let answer = unsafe {
        libc::getsockopt(
            stream.get_ref().unwrap().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw mut flags).cast(),
            &raw mut size,
        )
    };
    assert_eq!(answer, 0);
    flags
}

#[test]
fn a_socket_has_stamps_while_times_are_taken() {
    dormouse_testkit::in_child(|| {
        let one = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        one.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut guest = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut stream = received(listener.accept().await.unwrap().0);
            let mut read = async |stream: &mut ServedStream<_>| {
                guest.write_all(b"tea").unwrap();
                stream.read_exact(&mut [0; 3]).await.unwrap();
                stamps_of(stream)
            };
            assert_eq!(read(&mut stream).await, 0);
            let waiting = Waiting::start().unwrap();
            assert_ne!(read(&mut stream).await, 0);
            drop(waiting);
            assert_eq!(read(&mut stream).await, 0);
        });
    });
}

#[test]
fn bytes_before_accept_are_stamped() {
    dormouse_testkit::in_child(|| {
        let one = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        one.block_on(async {
            let waiting = Waiting::start().unwrap();
            let command = Group::new("put");
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut listener = dormouse::axum::listener(listener, Group::new("connections"));
            // The kernel begins to stamp some time after the listener wants that.
            for round in 0.. {
                assert!(round < 100, "no stamps");
                let mut guest = TcpStream::connect(address).unwrap();
                guest.write_all(b"put").unwrap();
                let begun = Instant::now();
                thread::sleep(Duration::from_millis(50));
                let waited = begun.elapsed();
                let serving = tokio::spawn(async move {
                    let (mut stream, _) = listener.accept().await;
                    let stamps = stamps_of(&stream);
                    stream.read_exact(&mut [0; 3]).await.unwrap();
                    command.request().run(|| ());
                    (listener, stamps)
                });
                let stamps;
                (listener, stamps) = serving.await.unwrap();
                assert!(round == 0 || stamps != 0, "inherited from the listener");
                let queue = command.read_waits().queue;
                if round > 0 && queue.received > 0 {
                    let unseen = Duration::from_nanos(queue.unseen_ns);
                    assert!(unseen + Duration::from_micros(100) >= waited, "{unseen:?} {waited:?}");
                    break;
                }
            }
            drop(waiting);
            for may_inherit in [true, false] {
                let _guest = TcpStream::connect(address).unwrap();
                let (stream, _) = listener.accept().await;
                assert!(may_inherit || stamps_of(&stream) == 0, "times are not taken");
            }
        });
    });
}
