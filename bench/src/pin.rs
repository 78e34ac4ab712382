//! Which processors the ends run on.

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::case::Placement;

/// The processors of client and server.
#[derive(Clone, Copy, Debug)]
pub struct Cpus {
    pub client: usize,
    pub server: usize,
}

impl Cpus {
    /// Those that were asked for, or the first two this process may run on.
    pub fn choose(asked: Option<&[usize]>) -> Result<Cpus> {
        let allowed = sched_getaffinity(None).context("which processors are allowed")?;
        let all: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&cpu| allowed.is_set(cpu))
            .collect();
        match (asked, all.as_slice()) {
            (Some(&[client, server]), _) => {
                match [client, server].iter().find(|c| !all.contains(c)) {
                    Some(cpu) => bail!("processor {cpu} is not one of those allowed here: {all:?}"),
                    None => Ok(Cpus { client, server }),
                }
            }
            (_, &[client, server, ..]) => Ok(Cpus { client, server }),
            (_, _) => bail!("two processors are needed, allowed are {all:?}"),
        }
    }

    /// Where client and server go.
    pub fn placed(self, placement: Placement) -> Cpus {
        match placement {
            Placement::TwoCores | Placement::Link(_) => self,
            Placement::SameCore => Cpus {
                client: self.client,
                server: self.client,
            },
        }
    }
}

/// Keeps this thread, and the threads it starts, on these processors.
pub fn to(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).with_context(|| format!("pinning to processors {cpus:?}"))
}
