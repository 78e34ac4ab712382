//! One case of a measure: a job, where it runs, and what is read from the ends' reports.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::job::Job;
use crate::link::LinkSpec;

/// Where the two ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// Each end on its own processor: waking the other one costs most.
    TwoCores,
    /// Both on one: shows what the software itself costs.
    SameCore,
    /// Each on its own processor and on its own host, with this between them.
    Link(LinkSpec),
}

impl Placement {
    pub const BOTH: [Placement; 2] = [Placement::TwoCores, Placement::SameCore];

    pub fn name(self) -> Cow<'static, str> {
        match self {
            Placement::TwoCores => "two cores".into(),
            Placement::SameCore => "same core".into(),
            Placement::Link(spec) => spec.to_string().into(),
        }
    }
}

/// What the client's end reported: names and numbers.
pub type Figures = BTreeMap<String, f64>;

/// A figure of the result.
#[derive(Debug)]
pub struct Quantity {
    /// What it is called in tables and in JSON.
    pub measure: &'static str,
    pub unit: &'static str,
    /// Computes it; `None` if the figures do not hold it.
    pub read: fn(&Figures, &Job) -> Option<f64>,
    /// Whether more is better; ratios are always ours divided by the peer's.
    pub more_is_better: bool,
    /// Whether the page shows ratios too. They are in the JSON in any case.
    pub shows_ratios: bool,
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    pub what: String,
    pub job: Job,
    pub placement: Placement,
    pub quantities: &'static [Quantity],
    /// All subjects at the same time, and one round: they do next to nothing, for long.
    pub is_shared: bool,
}

/// `65536` as `64 KiB`.
pub fn bytes(size: usize) -> String {
    match size {
        0x4000_0000.. if size.is_multiple_of(0x4000_0000) => format!("{} GiB", size >> 30),
        0x10_0000.. if size.is_multiple_of(0x10_0000) => format!("{} MiB", size >> 20),
        0x400.. if size.is_multiple_of(0x400) => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}
