//! The work of ebizzy: many threads, each of which again and again picks one of many mapped chunks
//! at random, copies it into fresh memory, searches it, and frees the copy. It is what the trace
//! `ebizzy` records.
//!
//! The origin ran 80 threads on 80 processors, where the faults of all threads interleave. On few
//! processors each would fault alone for a time slice; so a thread gives up its processor after
//! each page that it copies.
//!
//! usage: `ebizzy THREADS CHUNKS PAGES ROUNDS`
#![allow(unsafe_code)]

use std::thread;

const PAGE: usize = 4096;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [threads, chunks, pages, rounds] = numbers[..] else {
        eprintln!("usage: ebizzy THREADS CHUNKS PAGES ROUNDS");
        std::process::exit(2);
    };
    let chunks: Vec<&[u8]> = (0..chunks).map(|number| chunk(pages * PAGE, number)).collect();
    thread::scope(|scope| {
        for number in 0..threads {
            let chunks = &chunks;
            scope.spawn(move || search(chunks, rounds, number as u64 + 1));
        }
    });
}

/// A mapping of its own: the page behind it cannot be touched, so the kernel does not merge
/// neighbours.
fn chunk(bytes: usize, number: usize) -> &'static [u8] {
    // SAFETY: a new private mapping, given to nobody else and never taken away.
    unsafe {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        // Populated, so that the searching makes the faults and not the making.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let base = libc::mmap(std::ptr::null_mut(), bytes + PAGE, rw, flags, -1, 0);
        assert_ne!(base, libc::MAP_FAILED, "cannot map a chunk: {}", std::io::Error::last_os_error());
        assert_eq!(libc::mprotect(base.byte_add(bytes), PAGE, libc::PROT_NONE), 0);
        let chunk = std::slice::from_raw_parts_mut(base.cast::<u8>(), bytes);
        for page in chunk.chunks_mut(PAGE) {
            page[0] = number as u8;
        }
        chunk
    }
}

fn search(chunks: &[&[u8]], rounds: usize, seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut found = 0;
    for _ in 0..rounds {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let chunk = chunks[random as usize % chunks.len()];
        let mut copy = Vec::with_capacity(chunk.len());
        for page in chunk.chunks(PAGE) {
            copy.extend_from_slice(page);
            thread::yield_now();
        }
        found += usize::from(copy.binary_search(&(random as u8)).is_ok());
    }
    std::hint::black_box(found);
}
