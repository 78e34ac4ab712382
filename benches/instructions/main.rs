//! Counts the instructions of the steps of a message's way, under valgrind's callgrind, and holds
//! them against bounds: a figure that does not depend on how busy the machine is.
//!
//! `cargo bench -p tokio-fabric --features __instructions,tls --bench instructions` prints the
//! table (of all packages, other features would be built in); it fails if a step takes more than
//! its bound. A change that makes a step cheaper lowers its bound here.

mod calls;
mod manual;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use tokio_fabric::__instructions::{self as steps, Matching, SteppedConnection};
use tokio_fabric::Hints;

/// Each step is done as often, after a first time that is not counted.
const TIMES: u64 = 1000;

/// The C library copies memory in the way that suits the processor best, so that the same program
/// takes 1 to 7 % more instructions on another machine. Without these features there is one way,
/// which every x86-64 processor has.
const ONE_WAY_OF_COPYING: &str =
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-SSSE3,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load";

struct Step {
    name: &'static str,
    /// Instructions, at most: what was counted when it was last looked at, and a fiftieth more; of
    /// half round trips a twentieth, since two ends take turns in an order that varies under load.
    most: u64,
    run: fn(),
}

const STEPS: &[Step] = &[
    Step {
        name: "encode a header",
        most: 90,
        run: || {
            repeat(steps::encode);
        },
    },
    Step {
        name: "decode a header",
        most: 136,
        run: || {
            let bytes = steps::header_bytes();
            repeat(|| steps::decode_header(&bytes));
        },
    },
    Step {
        name: "match a tag among a thousand",
        most: 1319,
        run: || {
            let mut matching = Matching::new();
            repeat(|| matching.one());
        },
    },
    Step {
        name: "post, send and complete a message of 64 B",
        most: 915,
        run: || {
            let mut connection = SteppedConnection::new();
            repeat(|| connection.send_copied(&[0; 64]));
        },
    },
    Step {
        name: "the same of 1 KiB, which is not copied",
        most: 1613,
        run: || {
            let mut connection = SteppedConnection::new();
            repeat(|| connection.send_long());
        },
    },
    Step {
        name: "post, send and complete a tagged message of 64 B over RDM",
        most: 1704,
        run: || {
            let mut connection = SteppedConnection::of_peer();
            repeat(|| connection.send(Some(steps::TAG)));
        },
    },
    Step {
        name: "post, send and complete an RMA write of 64 B, with its ack",
        most: 2309,
        run: || {
            let mut connection = SteppedConnection::new();
            let ack = steps::ack();
            repeat(|| connection.write(&ack));
        },
    },
    Step {
        name: "post, send and complete an RMA read of 64 B",
        most: 2724,
        run: || {
            let mut connection = SteppedConnection::new();
            let response = steps::read_response();
            repeat(|| connection.read(&response));
        },
    },
    Step {
        name: "inject 32 messages of 64 B, send them together",
        most: 8724,
        run: || {
            let mut connection = SteppedConnection::new();
            repeat(|| connection.inject(&[0; 64]));
        },
    },
    Step {
        name: "post a receive, take a message of 64 B in, complete",
        most: 968,
        run: || {
            let mut connection = SteppedConnection::new();
            let message = steps::message();
            repeat(|| connection.receive(&message));
        },
    },
    Step {
        name: "take 32 messages of 64 B in, for a stream of them",
        most: 10_490,
        run: || {
            let mut connection = SteppedConnection::new();
            let messages = steps::message().repeat(steps::GATHERED);
            repeat(|| connection.take_messages(&messages));
        },
    },
    Step {
        name: "the same, of a tagged message and a shared receive (RDM)",
        most: 2002,
        run: || {
            let mut connection = SteppedConnection::of_peer();
            let message = steps::tagged_message();
            repeat(|| connection.receive_shared(&message));
        },
    },
    Step {
        name: "a half round trip of 64 B, manual progress, awaited",
        most: 10_125,
        run: || {
            manual::half_round_trips(TIMES, manual::Waiting::Awaits, manual::over_tcp(), counted)
        },
    },
    Step {
        name: "the same, asking for turns",
        most: 8160,
        run: || {
            manual::half_round_trips(
                TIMES,
                manual::Waiting::AsksForTurns,
                manual::over_tcp(),
                counted,
            )
        },
    },
    Step {
        name: "the same, of domains that drive themselves, awaited",
        most: 10_140,
        run: || {
            manual::half_round_trips(
                TIMES,
                manual::Waiting::AwaitsDrivers,
                manual::over_tcp(),
                counted,
            )
        },
    },
    Step {
        name: "the same, through shared memory",
        most: 11_050,
        run: || {
            manual::half_round_trips(TIMES, manual::Waiting::AwaitsDrivers, Hints::new(), counted)
        },
    },
    Step {
        name: "a message of 64 B of 50 outstanding, manual progress, awaited, to a stream",
        most: 2057,
        run: || manual::messages(TIMES, counted),
    },
    // Half of what it takes more is the cryptography's, of a processor with AES and AVX.
    #[cfg(feature = "tls")]
    Step {
        name: "a half round trip of 64 B over TLS, manual progress, awaited",
        most: 15_700,
        run: || {
            manual::half_round_trips(TIMES, manual::Waiting::Awaits, manual::secured(), counted)
        },
    },
    Step {
        name: "a call of 64 B of tokio-fabric-rpc, both ends",
        most: 28_360,
        run: || calls::calls(1, TIMES as usize, counted),
    },
    Step {
        name: "the same, 64 calls outstanding",
        most: 4655,
        run: || calls::calls(64, TIMES as usize, counted),
    },
    Step {
        name: "the same, 64 outstanding, with spans and times that are kept",
        most: 7410,
        run: || calls::observed_calls(64, TIMES as usize, counted),
    },
];

fn repeat(mut step: impl FnMut()) {
    step();
    counted(&mut || (0..TIMES).for_each(|_| step()));
}

/// What happens in here is counted, and nothing else: callgrind knows it by its name.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
}

fn count(step: &Step) -> Result<u64> {
    // On one processor, which both ends of a step share as they share a thread.
    let mut valgrind = Command::new("taskset");
    valgrind
        .env("GLIBC_TUNABLES", ONE_WAY_OF_COPYING)
        .args(["--cpu-list", &a_processor()?, "valgrind"])
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*instructions::counted*")
        .arg(std::env::current_exe()?)
        .arg(step.name);
    let output = valgrind.output().context("valgrind is not there")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{}: {said}", step.name);
    }
    let collected = said.lines().find_map(|line| line.split_once("Collected :"));
    let (_, count) = collected.with_context(|| format!("callgrind has counted nothing: {said}"))?;
    let count: u64 = count.trim().parse().context("callgrind's count")?;
    if count < TIMES {
        bail!("{}: {count} instructions cannot be all", step.name);
    }
    Ok(count.div_ceil(TIMES))
}

/// One that this program may use.
fn a_processor() -> Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = allowed.and_then(|it| it.trim().split([',', '-']).next());
    Ok(first.context("the processors of the program")?.to_owned())
}

fn main() -> Result<ExitCode> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if let Some(step) = STEPS
        .iter()
        .find(|step| asked.iter().any(|it| it == step.name))
    {
        (step.run)();
        return Ok(ExitCode::SUCCESS);
    }
    let mut result = ExitCode::SUCCESS;
    println!("{:<60} {:>12} {:>8}", "step", "instructions", "bound");
    for step in STEPS {
        let count = count(step)?;
        println!("{:<60} {count:>12} {:>8}", step.name, step.most);
        if count > step.most {
            eprintln!("{}: {count} instructions, at most {}", step.name, step.most);
            result = ExitCode::FAILURE;
        }
    }
    Ok(result)
}
