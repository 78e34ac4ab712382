//! How long after a link has gone down a process knows: the peer lives, but nothing it sends
//! arrives, and no one says so.

use super::Scale;
use crate::case::{Case, Placement, Quantity};
use crate::job::Work;

const QUANTITIES: &[Quantity] = &[Quantity {
    measure: "time to error after the link went down",
    unit: "ms",
    read: |facts, _| Some((facts.get("ended_ns")? - facts.get("cut_ns")?) / 1e6),
    more_is_better: false,
    shows_ratios: true,
}];

pub fn cases(scale: &Scale) -> Vec<Case> {
    vec![Case {
        what: "RMA reads of 64 B".to_owned(),
        job: scale.job(Work::LinkDown),
        placement: Placement::TwoCores,
        quantities: QUANTITIES,
        is_shared: false,
    }]
}
