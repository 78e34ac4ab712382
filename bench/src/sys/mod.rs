//! What the safe libraries do not offer of the operating system: the only folder with `unsafe`.

mod addresses;
mod allocations;
mod cpu_time;
mod heap;
mod namespace;
mod syscalls;
mod tun;

pub use addresses::addresses;
pub use allocations::{
    Allocations, Counting, count_all as count_allocations, forget as forget_allocations,
    share as share_allocations,
};
pub use cpu_time::{children_cpu, monotonic_ns, process_cpu};
pub use heap::heap_in_use;
pub use namespace::Namespace;
pub use syscalls::Syscalls;
pub use tun::{TUN_READ_MAX, open_tun, run_in_real_time};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many descriptors as this process may have; a thousand connections need more than the usual
/// soft limit. What cannot be had shows when connections are made.
pub fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}
