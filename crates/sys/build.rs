//! Exists for `links = "dormouse"` alone: two versions of the per-thread block in one
//! binary would mean two current tasks per thread, so cargo is told to refuse that.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
