//! Measures tokio-fabric beside its peers in one run: each end a process of its own, pinned, rounds
//! interleaved, and ratios per round. README.md, next to this package, tells how to read the result.

mod bounce;
mod case;
mod end;
mod job;
mod launch;
mod libfabric;
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

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use options::{Command, Options};

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options.command {
        Some(Command::End(end)) => end::run(end),
        Some(Command::List) => measure::list(),
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

fn run(options: &Options) -> Result<()> {
    sys::raise_descriptor_limit();
    let machine = machine::Machine::look(options)?;
    println!("{machine}");
    let driver = match libfabric::compile() {
        Ok(driver) => Some(driver),
        Err(reason) => {
            println!("libfabric is left out: {reason:#}");
            None
        }
    };
    let plan = rounds::Plan::new(options, machine.cpus, driver);
    let mut results = Vec::new();
    for case in measure::cases(options)? {
        let result = rounds::run(&plan, case);
        println!("{}", result.summary());
        results.push(result);
    }
    let report = report::Report::new(machine, results);
    println!("\n{}", report.markdown());
    if let Some(file) = &options.json {
        std::fs::write(file, report.json()?)?;
    }
    if let Some(file) = &options.markdown {
        report.write_markdown(file)?;
    }
    report.verdict()
}
