//! A generated object with any number of sites, loaded into this process.
//!
//! The sites and their entries are those of the library's own macro (site metadata, version 1, see
//! `dormouse-keys`), with two differences. They lie 64 bytes apart, each on another cache line, as
//! sites do in code that does something in between. And the slots that point to their keys are
//! filled here, not by the dynamic linker, because the keys belong to this program. So this module
//! registers the object after that; it has no constructor.
//!
//! The object stays loaded until the process ends, because the keys' sites are its text.
//!
//! # Safety
//!
//! The loaded code is the code written here.

use std::ffi::{CString, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::ptr::NonNull;

use dormouse::keys::{Key, StaticKey};

/// From one site to the next.
const STEP: usize = 64;

/// Some of the object's sites, each of another key.
#[derive(Debug, Clone)]
pub(super) struct Sites {
    /// In the order of their sites, as a compiler orders both.
    pub(super) keys: &'static [StaticKey<false>],
    run: extern "C" fn() -> usize,
}

impl Sites {
    /// Runs them; returns how many are on.
    pub(super) fn run(&self) -> usize {
        (self.run)()
    }
}

/// Assembles, links and loads as many sites as each of `sizes`, or returns why that is impossible.
pub(super) fn load(sizes: &[usize]) -> Result<Vec<Sites>, String> {
    let object = Loaded::open(&source(sizes))?;
    let groups: Vec<_> = sizes.iter().map(|&size| object.sites(size)).collect::<Result<_, _>>()?;
    let description = object.symbol("bench_object")?;
    let register = dormouse::keys::macros::register as *const ();
    // SAFETY: it takes the address of such a description; the entries and, by now, the slots are
    // complete, and the object is never unloaded.
    unsafe {
        std::mem::transmute::<*const (), unsafe extern "C" fn(*mut c_void)>(register)(description.as_ptr());
    }
    Ok(groups)
}

/// The source for the assembler. Each site is followed by a jump past the counting and, 7 bytes
/// behind its start, by its target, which counts.
fn source(sizes: &[usize]) -> String {
    let head = format!(
        ".section dormouse_sites_v1, \"a\", @progbits
         .Lstart:
         .macro sites count
         .text
         .globl bench_run_\\count
         .type bench_run_\\count, @function
         bench_run_\\count:
         xor %eax, %eax
         .balign {STEP}
         .Lcode_\\count:
         .rept \\count
         .byte 0xa9
         .long 2
         jmp . + {STEP} - 5
         inc %eax
         jmp . + {STEP} - 9
         .balign {STEP}
         .endr
         ret
         .section dormouse_sites_v1
         .set index, 0
         .rept \\count
         .long .Lcode_\\count + {STEP} * index - .
         .long .Lcode_\\count + {STEP} * index + 7 - .
         .long .Lkeys_\\count + 8 * index - .
         .long 0
         .set index, index + 1
         .endr
         .data
         .balign 8
         .globl bench_keys_\\count
         bench_keys_\\count:
         .Lkeys_\\count:
         .fill \\count, 8, 0
         .endm\n"
    );
    let groups: Vec<_> = sizes.iter().map(|size| format!("sites {size}\n")).collect();
    let tail = ".section dormouse_sites_v1
                .Lstop:
                .data
                .globl bench_object
                bench_object: .quad 32, .Lstart, .Lstop, 0
                .section .note.GNU-stack, \"\", @progbits\n";
    head + &groups.concat() + tail
}

/// The object.
#[derive(Debug)]
struct Loaded(NonNull<c_void>);

impl Loaded {
    fn open(source: &str) -> Result<Self, String> {
        let directory = tempfile::TempDir::with_prefix("dormouse-bench-")
            .map_err(|error| format!("cannot make a directory for the assembler: {error}"))?;
        let (text, object) = (directory.path().join("sites.s"), directory.path().join("sites.so"));
        fs::write(&text, source).map_err(|error| format!("cannot write a source: {error}"))?;
        let output = Command::new("cc")
            .args(["-shared", "-nostdlib", "-o"])
            .args([&object, &text])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cannot start cc, which assembles and links: {error}"))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!(
                "cc cannot assemble and link: {}",
                why.lines().next().unwrap_or("it does not say why")
            ));
        }
        let path = CString::new(object.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: an object without constructors, to which only this function has a path.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // The mapped object needs no name any more.
        drop(directory);
        NonNull::new(handle).map(Self).ok_or_else(|| "cannot load the assembled object".to_owned())
    }

    fn symbol(&self, name: &str) -> Result<NonNull<c_void>, String> {
        let text = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: a handle that is never closed, and a terminated name.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), text.as_ptr()) };
        NonNull::new(address).ok_or_else(|| format!("the assembled object has no {name}"))
    }

    /// Gives each of the `size` sites a key.
    fn sites(&self, size: usize) -> Result<Sites, String> {
        let run = self.symbol(&format!("bench_run_{size}"))?;
        let slots = self.symbol(&format!("bench_keys_{size}"))?;
        // One name a group, so that a group can be selected.
        let name: &'static str = format!("bench.scale.{size}").leak();
        let keys: Vec<_> = (0..size).map(|_| StaticKey::<false>::new(name, file!(), line!())).collect();
        let keys: &'static [StaticKey<false>] = Vec::leak(keys);
        for (at, key) in keys.iter().enumerate() {
            // SAFETY: inside the object's array, which is not read before the object is registered.
            unsafe { slots.cast::<&'static Key>().add(at).write(key) };
        }
        // SAFETY: a function of the C calling convention that returns a count, in an object that
        // stays.
        let run = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> usize>(run.as_ptr()) };
        Ok(Sites { keys, run })
    }
}
