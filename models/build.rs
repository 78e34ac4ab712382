//! Sets `cfg(loom)` for this package alone: Tokio leaves its sockets out where it is set for all.

fn main() {
    println!("cargo::rustc-cfg=loom");
}
