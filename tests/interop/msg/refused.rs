//! Accesses that the target refuses, each from either side, at a C peer and from one.

use crate::ours::refused::{Mistake, Refused};
use crate::stage::{initiate, serve};

const WRITE: bool = true;
const READ: bool = false;

/// Our end makes the mistake, C refuses.
fn to_c(scenario: &str, mistake: Mistake, write: bool) {
    let refused = Refused { mistake, write };
    initiate(scenario, |session, initiator| {
        refused.run(session, initiator)
    });
}

/// C makes the mistake, our end refuses.
fn from_c(scenario: &str, mistake: Mistake, write: bool) {
    let refused = Refused { mistake, write };
    serve(scenario, |session, initiator| {
        refused.run(session, initiator)
    });
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with an unknown key ends with an error when
/// C refuses it, and the next connection works.
#[test]
fn bad_key_write_to_c() {
    to_c("badkey", Mistake::Key, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with an unknown key touches no byte of
/// ours, and the next connection works.
#[test]
fn bad_key_write_from_c() {
    from_c("badkey", Mistake::Key, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with an unknown key ends with an error when
/// C refuses it, and the next connection works.
#[test]
fn bad_key_read_to_c() {
    to_c("badkey-read", Mistake::Key, READ);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with an unknown key touches no byte of ours,
/// and the next connection works.
#[test]
fn bad_key_read_from_c() {
    from_c("badkey-read", Mistake::Key, READ);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with a range that ends outside of the
/// region ends with an error when C refuses it, and the next connection works.
#[test]
fn out_of_bounds_write_to_c() {
    to_c("bounds", Mistake::Bounds, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with a range that ends outside of the
/// region touches no byte of ours, and the next connection works.
#[test]
fn out_of_bounds_write_from_c() {
    from_c("bounds", Mistake::Bounds, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with a range that ends outside of the region
/// ends with an error when C refuses it, and the next connection works.
#[test]
fn out_of_bounds_read_to_c() {
    to_c("bounds-read", Mistake::Bounds, READ);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with a range that ends outside of the region
/// touches no byte of ours, and the next connection works.
#[test]
fn out_of_bounds_read_from_c() {
    from_c("bounds-read", Mistake::Bounds, READ);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with an address and a length that add up to
/// more than 64 bits ends with an error when C refuses it, and the next connection works.
#[test]
fn wrapping_range_write_to_c() {
    to_c("wrap", Mistake::Wrap, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with an address and a length that add up to
/// more than 64 bits touches no byte of ours, and the next connection works.
#[test]
fn wrapping_range_write_from_c() {
    from_c("wrap", Mistake::Wrap, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with an address and a length that add up to
/// more than 64 bits ends with an error when C refuses it, and the next connection works.
#[test]
fn wrapping_range_read_to_c() {
    to_c("wrap-read", Mistake::Wrap, READ);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with an address and a length that add up to
/// more than 64 bits touches no byte of ours, and the next connection works.
#[test]
fn wrapping_range_read_from_c() {
    from_c("wrap-read", Mistake::Wrap, READ);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with a right that was not granted ends with
/// an error when C refuses it, and the next connection works.
#[test]
fn missing_right_write_to_c() {
    to_c("rights", Mistake::Rights, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with a right that was not granted touches
/// no byte of ours, and the next connection works.
#[test]
fn missing_right_write_from_c() {
    from_c("rights", Mistake::Rights, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with a right that was not granted ends with
/// an error when C refuses it, and the next connection works.
#[test]
fn missing_right_read_to_c() {
    to_c("rights-read", Mistake::Rights, READ);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with a right that was not granted touches no
/// byte of ours, and the next connection works.
#[test]
fn missing_right_read_from_c() {
    from_c("rights-read", Mistake::Rights, READ);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with one bad segment of four ends with an
/// error when C refuses it, and the next connection works.
#[test]
fn bad_segment_write_to_c() {
    to_c("badsegment", Mistake::Segment, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a write with one bad segment of four touches no
/// byte of ours, and the next connection works.
#[test]
fn bad_segment_write_from_c() {
    from_c("badsegment", Mistake::Segment, WRITE);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with one bad segment of four ends with an
/// error when C refuses it, and the next connection works.
#[test]
fn bad_segment_read_to_c() {
    to_c("badsegment-read", Mistake::Segment, READ);
}

/// fi_domain(3): "RMA operations that attempt to access a memory address that is either not
/// registered for such operations" are refused: a read with one bad segment of four touches no byte
/// of ours, and the next connection works.
#[test]
fn bad_segment_read_from_c() {
    from_c("badsegment-read", Mistake::Segment, READ);
}

/// fi_getinfo(3): "a provider must enable support for only those primary capabilities which were
/// selected": a write to an endpoint that was opened without RMA touches no byte of ours, and the
/// next connection works.
#[test]
fn missing_capability_write_from_c() {
    from_c("rights", Mistake::Capability, WRITE);
}

/// fi_getinfo(3): "a provider must enable support for only those primary capabilities which were
/// selected": a read from an endpoint that was opened without RMA touches no byte of ours, and the
/// next connection works.
#[test]
fn missing_capability_read_from_c() {
    from_c("rights-read", Mistake::Capability, READ);
}
