//! Measures tokio-fabric beside its peers in one run: each end a process of its own, pinned, rounds
//! interleaved, and ratios per round. The package's README explains the result.

mod bounce;
mod case;
mod end;
mod job;
mod launch;
mod libfabric;
mod link;
mod lock;
mod machine;
mod measure;
mod noise;
mod options;
mod pin;
mod report;
mod rounds;
mod spread;
mod subject;
mod sys;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use options::{Command, Options};
use report::{Report, Results};

/// Counts what is asked of the allocator, in every end alike.
#[global_allocator]
static ALLOCATOR: sys::Counting = sys::Counting;

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options.command {
        Some(Command::End(end)) => end::run(end),
        Some(Command::List) => measure::list(),
        Some(Command::Render { figures }) => render(figures, &options),
        Some(Command::All) | None => run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fabric-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn render(figures: &Path, options: &Options) -> Result<()> {
    Results::parse(&std::fs::read_to_string(figures)?)?.save(options)
}

fn run(options: &Options) -> Result<()> {
    sys::raise_descriptor_limit();
    let machine = machine::Machine::inspect(options)?;
    println!("{machine}");
    let driver = match libfabric::compile() {
        Ok(driver) => Some(driver),
        Err(reason) => {
            println!("libfabric is left out: {reason:#}");
            None
        }
    };
    let has_ucx = end::ucx::is_installed();
    if !has_ucx {
        println!("UCX is left out: ucx_perftest (package ucx-utils) is not there");
    }
    let links = options.make_links()?;
    let plan = rounds::Plan::new(options, machine.cpus, driver, has_ucx, links);
    let mut report = Report::new(machine);
    for case in measure::cases(options)? {
        let outcome = rounds::run(&plan, case);
        println!("{}", outcome.summary());
        report.push(outcome);
        // Each time, so that a run that is broken off leaves what it has measured.
        report.save(options)?;
    }
    println!("\n{}", report.markdown());
    report.verdict()
}
