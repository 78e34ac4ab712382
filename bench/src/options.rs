//! The command line.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::job::Role;
use crate::link::{Link, LinkSpec, MTU_RANGE};

/// Measures tokio-fabric beside its peers.
#[derive(Debug, Parser)]
#[command(name = "fabric-bench", version)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Only this measure (may be given several times; `list` names them)
    #[arg(long, value_name = "MEASURE", global = true)]
    pub only: Vec<String>,
    /// Only subjects whose name contains this, or is this if it begins with = (may be given several
    /// times)
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
    /// Over a link between two network namespaces, as 1gbit,5ms,0.1%: a rate, a delay each way, and
    /// packets that are lost (may be given several times; needs root and iproute2)
    #[arg(long, value_name = "RATE[,DELAY][,LOSS]", global = true)]
    pub link: Vec<LinkSpec>,
    /// Bytes of a packet on a link (may be given several times)
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1500",
        value_parser = clap::value_parser!(u32).range(MTU_RANGE),
        global = true
    )]
    pub mtu: Vec<u32>,
    /// Chooses the packets that links lose [default: by the clock]
    #[arg(long, value_name = "N", global = true)]
    pub seed: Option<u64>,
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

impl Options {
    /// The links to measure over, each with each size of packets.
    pub fn links(&self) -> Vec<LinkSpec> {
        let sizes = |link: &LinkSpec| {
            let link = *link;
            self.mtu.iter().map(move |&mtu| LinkSpec { mtu, ..link })
        };
        self.link.iter().flat_map(sizes).collect()
    }

    /// Makes them, and says what they carry.
    ///
    /// # Errors
    /// Those of [`Link::new`].
    pub fn make_links(&self) -> Result<Vec<Link>> {
        let by_clock = crate::sys::monotonic_ns();
        let seed = self.seed.unwrap_or(by_clock);
        let make = |spec: LinkSpec| {
            let link = Link::new(spec, seed)?;
            print!("link of {spec}: without the rate TCP carries ");
            println!("{:.2} Gbit/s", link.carries as f64 / 1e9);
            if spec.lost > 0 {
                println!("lost packets are chosen by --seed {seed}");
            }
            Ok(link)
        };
        self.links().into_iter().map(make).collect()
    }
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
