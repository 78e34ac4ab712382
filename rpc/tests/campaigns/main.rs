//! Campaigns on the layer: short here, long with `TOKIO_FABRIC_DEEP=1` (`docs/deep.md`).

mod cancel_soak;
#[allow(dead_code, reason = "what other programs need of it")]
#[path = "../../../tests/common/child.rs"]
mod child;
mod kill_matrix;
mod moving;
mod panics;
mod restarts;
mod storm;
mod work;

/// The long form.
fn is_deep() -> bool {
    std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0")
}

/// A number that was asked for, or that of the form that runs.
fn count(variable: &str, quick: u64, deep: u64) -> u64 {
    let asked = std::env::var(variable).ok();
    let asked = asked.map(|it| it.parse().expect("a number"));
    asked.unwrap_or(if is_deep() { deep } else { quick })
}
