//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::job::Role;

/// Measures tokio-fabric beside its peers.
#[derive(Debug, Parser)]
#[command(name = "fabric-bench", version)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Only this measure (may be given several times; `list` names them)
    #[arg(long, value_name = "MEASURE", global = true)]
    pub only: Vec<String>,
    /// Only subjects whose name contains this (may be given several times)
    #[arg(long, value_name = "NAME", global = true)]
    pub subject: Vec<String>,
    /// A smoke test: few cases, short, ends within two minutes; its figures mean nothing
    #[arg(long, global = true)]
    pub quick: bool,
    /// Rounds that count, per case [default: 7; quick: 2]
    #[arg(long, value_name = "N", global = true)]
    pub rounds: Option<usize>,
    /// Milliseconds measured per subject and round [default: 300; quick: 60]
    #[arg(long, value_name = "MS", global = true)]
    pub run_ms: Option<u64>,
    /// Count rounds too in which other processes took over 12 % of the time
    #[arg(long, global = true)]
    pub keep_noisy: bool,
    /// Two processors to pin to, client's first [default: the first two allowed]
    #[arg(
        long,
        value_name = "A,B",
        value_delimiter = ',',
        num_args = 2,
        global = true
    )]
    pub cpus: Option<Vec<usize>>,
    /// Connections of the measure of idle ones [default: 10000; quick: 100]
    #[arg(long, value_name = "N", global = true)]
    pub idle_connections: Option<usize>,
    /// Writes all figures here
    #[arg(long, value_name = "FILE", global = true)]
    pub json: Option<PathBuf>,
    /// Writes the tables here (may be given several times)
    #[arg(long, value_name = "FILE", global = true)]
    pub markdown: Vec<PathBuf>,
    /// Draws the charts into this directory
    #[arg(long, value_name = "DIRECTORY", global = true)]
    pub charts: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Every measure, or those named by --only
    All,
    /// Names the measures and the subjects
    List,
    /// Writes tables and charts of figures that `--json` has written
    Render {
        /// The file
        figures: PathBuf,
    },
    /// One end of a measurement; the program starts itself so
    #[command(hide = true)]
    End(EndOptions),
}

/// The arguments of one end.
#[derive(Clone, Debug, Args)]
pub struct EndOptions {
    pub role: Role,
    /// A subject of the table
    pub subject_name: String,
    /// The job, as `name=value` words
    pub job: Vec<String>,
}
