//! The tables of docs/performance.md and docs/tls.md; `rows.rs` says what they show. A row without
//! figures is left out.

use super::markdown::row;
use super::results::{CaseResult, Figure, Results};
use super::rows::{GLANCE, MISSED, ONE_HOST, Row, TLS, Unit};
use super::targets::{
    BULK, CALL_1, CALL_CPU, CALLS, CALLS_64, ONE, SECURE, SECURE_RPC, TARGETS, TOKIO_TLS, TWO,
};
use crate::spread::two_decimals;

/// Those that ours is shown beside: their names, and the subjects.
type Others = &'static [(&'static str, &'static str)];
const SLEEPING: Others = &[
    ("TCP", "tcp"),
    ("Tokio", "tokio"),
    ("TCP batched", "tcp:gather"),
    ("Tokio batched", "tokio:gather"),
    ("ruapc", "ruapc"),
    ("tarpc", "tarpc"),
    ("tonic", "tonic"),
    ("libfabric", "libfabric:wait"),
];
const SPINNING: Others = &[("TCP", "tcp:spin"), ("libfabric", "libfabric:spin")];

impl Results {
    /// Ours beside others: those that sleep, and those that spin.
    pub(super) fn glance(&self) -> String {
        let mut text = "| measurement | tokio-fabric (default) | others that sleep | tokio-fabric \
                        (busy poll) | others that busy-poll |\n|---|---|---|---|---|\n"
            .to_owned();
        for Row { label, of, unit } in GLANCE {
            let figure = self.figure(of.measure, of.cores);
            let case = self.case(of.measure, of.cores, of.what);
            let (Some(figure), Some(case)) = (figure, case) else {
                continue;
            };
            let spin = format!("{}:spin", of.ours);
            let sleeping = cells(figure, case, unit, of.ours, SLEEPING);
            let spinning = cells(figure, case, unit, &spin, SPINNING);
            row(&mut text, label, sleeping.into_iter().chain(spinning));
        }
        text
    }

    /// What does not meet its target, or has none.
    pub(super) fn missed(&self) -> String {
        let mut text = "| measurement | measured | target |\n|---|---|---|\n".to_owned();
        for Row { label, of, unit } in MISSED {
            let Some(measured) = self.compared(of) else {
                continue;
            };
            let shown = match of.peer {
                Some(_) => measured.map(unit.scale).text(unit.number),
                None => unit.text(measured.median),
            };
            let bound = match TARGETS.iter().find(|target| target.of == *of) {
                Some(target) if target.bound.is_met(measured.median) => continue,
                Some(target) => format!("{}{}", (unit.scale)(target.bound.number()), unit.name),
                None => "none".to_owned(),
            };
            row(&mut text, label, [shown, bound].into_iter());
        }
        text
    }

    /// Ours beside tokio-rustls.
    pub(super) fn tls(&self) -> String {
        self.compare(["tokio-fabric", "tokio-rustls"], TLS)
    }

    /// Ours through shared memory, beside ours over TCP.
    pub(super) fn one_host(&self) -> String {
        self.compare(["through shared memory", "over TCP"], ONE_HOST)
    }

    fn compare(&self, [ours, other]: [&str; 2], rows: &[Row]) -> String {
        let mut text = format!(
            "| measurement (↓ less is better, ↑ more is better) | {ours} | {other} | ratio |\n\
             |---|---:|---:|---:|\n"
        );
        for Row { label, of, unit } in rows {
            let found = || {
                let case = self.case(of.measure, of.cores, of.what)?;
                let value = |subject| Some(unit.text(case.value(subject)?.median));
                let ratio = self.compared(of)?.text(two_decimals);
                Some([value(of.ours)?, value(of.peer?)?, ratio])
            };
            if let Some(cells) = found() {
                row(&mut text, label, cells.into_iter());
            }
        }
        text
    }

    /// Calls relative to frames over tokio-rustls.
    pub(super) fn tls_calls(&self) -> String {
        let mut text = "| calls | cores | messages and RMA of tokio-fabric | tokio-fabric-rpc |\n\
                        |---|---:|---:|---:|\n"
            .to_owned();
        let mut add = |what: &str, (cores, count): (&str, &str), (measure, shown): (&str, &str)| {
            let case = self.case(measure, cores, what)?;
            let ratio = |ours| Some(case.ratio(ours, TOKIO_TLS?)?.text(two_decimals));
            let label = format!("{}: {shown}", what.replace("under way", "outstanding"));
            let cells = [count.to_owned(), ratio(SECURE)?, ratio(SECURE_RPC)?];
            row(&mut text, &label, cells.into_iter());
            Some(())
        };
        for what in [CALL_1, CALLS_64, BULK] {
            for cores in [(ONE, "1"), (TWO, "2")] {
                add(what, cores, (CALL_CPU, "CPU time ↓"));
                add(what, cores, (CALLS, "calls per second ↑"));
            }
        }
        text
    }
}

/// One of ours, and those others that were measured in the same case; the best in bold.
fn cells(
    figure: &Figure,
    case: &CaseResult,
    unit: &Unit,
    ours: &str,
    others: Others,
) -> [String; 2] {
    let value = |subject: &str| Some(case.value(subject)?.median);
    let Some(ours) = value(ours) else {
        return ["-", "-"].map(str::to_owned);
    };
    let measured = |&(name, subject): &(&'static str, &str)| Some((name, value(subject)?));
    let others: Vec<(&str, f64)> = others.iter().filter_map(measured).collect();
    let values = others.iter().map(|other| other.1);
    let best = match figure.more_is_better {
        true => values.fold(ours, f64::max),
        false => values.fold(ours, f64::min),
    };
    let bold = |value: f64, text: String| match value == best {
        true => format!("**{text}**"),
        false => text,
    };
    let listed = others.iter().map(|&(name, value)| {
        let name = match name {
            // Its calls are frames, written together.
            "Tokio" if figure.name == CALLS => "Tokio batched",
            name => name,
        };
        let number = (unit.number)((unit.scale)(value));
        format!("{name} {}", bold(value, number))
    });
    let listed = match others.is_empty() {
        true => "-".to_owned(),
        false => listed.collect::<Vec<_>>().join(", "),
    };
    [bold(ours, unit.text(ours)), listed]
}
